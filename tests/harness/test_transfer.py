"""Transfer tests: the group that is left out is unseen, what is left out is said, and the tables are whole."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.contracts.results import Row, RunFacts
from harness.evaluation.evaluate import Evaluation
from harness.report import view_transfer
from harness.score import transfer


@pytest.fixture
def rows(make_row) -> list[Row]:
    generator = np.random.default_rng(2)
    made = []
    for f in range(5):
        for gpu, off in (("h100_sxm", 1.1), ("b200", 1.1), ("mi300x", 1.4), ("mi355x", 1.1)):
            for i in range(3):
                projected = 100.0 * off * math.exp(0.03 * float(generator.normal()))
                made.append(
                    make_row(
                        f"{gpu}-{f}-{i}",
                        100.0,
                        projected,
                        fit="uncalibrated",
                        family=f"m{f}",
                        gpu=gpu,
                        framework=f"fw{i}",
                        compute_s=1.0 / projected,
                    )
                )
    return made


def told(rows: list[Row]) -> dict[str, RunFacts]:
    """Each run of one of five sources, which have all GPUs, frameworks and families."""
    source = {r.run_id: f"{int(r.family[1:]) + i}" for i, r in enumerate(rows)}
    return {i: RunFacts(run_id=i, source=f"source {int(s) % 5}") for i, s in source.items()}


def test_an_unseen_gpu_is_off_by_what_only_it_could_teach(rows: list[Row], framed) -> None:
    found = {o.name: o for o in transfer.transfers(transfer.of_rows(framed(rows, told(rows)), "simulate"))}
    groups = [("source", 5), ("family", 5), ("framework", 3), ("GPU", 4)]
    assert [(o.name, o.groups) for o in found.values()] == groups
    error = {name: float(o.rows["error"][o.rows["gpu"] == "mi300x"].abs().mean()) for name, o in found.items()}
    assert error["family"] < 0.12 < 0.2 < error["GPU"]
    for outcome in found.values():
        assert set(outcome.rows["fit"]) == {"heldout"}
        assert sum(outcome.chosen.values()) == len(rows)
        for r in outcome.rows.itertuples():
            assert r.error == pytest.approx(r.projected_tgs / r.measured_tgs - 1.0)


def test_poisoned_rows_of_a_gpu_move_other_rows_only(rows: list[Row], framed) -> None:
    bad = [replace(r, error=3.0, measured_tgs=r.projected_tgs / 4.0) if r.gpu == "b200" else r for r in rows]
    one, two = (
        transfer.of_rows(framed(some, told(rows)), "simulate")
        .outcome("GPU")
        .rows.set_index("run_id")["projected_tgs"]
        .to_dict()
        for some in (rows, bad)
    )
    assert {i: v for i, v in one.items() if i.startswith("b200")} == {
        i: v for i, v in two.items() if i.startswith("b200")
    }
    assert one != two


def test_the_tables(rows: list[Row]) -> None:
    made = view_transfer.of_evaluation(Evaluation(rows=tuple(rows), facts=told(rows)), "simulate")
    assert [t.title for t in made] == [
        "What is left out",
        "Laws of calibration",
        "Every framework as if nobody had measured it",
        "Every GPU as if nobody had measured it",
    ]
    assert [line[0] for line in made[0].rows] == ["one source", "one family", "one framework", "one GPU"]
    assert [line[0] for line in made[1].rows] == ["none", "one", "stack", "places"]
    for table in made:
        assert all(len(line) == len(table.columns) for line in table.rows)
    assert view_transfer.of_evaluation(Evaluation(rows=(), facts={}), "simulate") == []


def test_the_table_of_frameworks_without_their_profiles(rows: list[Row]) -> None:
    own = Evaluation(rows=tuple(rows), facts=told(rows))
    bare = replace(own, rows=tuple(replace(row, framework="unknown", fit="heldout") for row in rows))
    table = view_transfer.unprofiled(own, bare, "simulate")
    assert [line[0] for line in table.rows] == ["all", *sorted({row.framework for row in rows})]
    assert all(len(line) == len(table.columns) for line in table.rows)
