"""What the error is made of: points add up, kin are told from the cell, a planted term is found, ablations only shrink."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.contracts.results import Row
from harness.evaluation.evaluate import Evaluation
from harness.report import view_causes
from harness.score import accuracy, causes


@pytest.fixture
def rows(make_row) -> list[Row]:
    """Six families × three GPUs: one family is off everywhere, one cell scatters, one cell is a single odd row."""
    made = []
    for f in range(6):
        for g in range(3):
            for i in range(4 if (f, g) != (5, 2) else 1):
                off = (
                    1.3 if f == 0 else 1.0 + 0.4 * (i - 1.5) if (f, g) == (1, 0) else 3.0 if (f, g) == (5, 2) else 1.02
                )
                made.append(
                    make_row(
                        f"{f}{g}{i}", 100.0, 100.0 * off, family=f"m{f}", gpu=f"g{g}", framework="mlm", compute_s=0.6,
                        host_s=0.4,
                    )
                )  # fmt: skip
    return made


def test_points_add_up_to_the_macro_error(rows: list[Row], framed) -> None:
    points = causes.cells(framed(rows))["points"].tolist()
    assert math.fsum(points) == pytest.approx(accuracy.summarise(framed(rows)).macro_mape)
    assert points == sorted(points, reverse=True)


def test_where_to_look_is_told_by_kin(rows: list[Row], framed) -> None:
    faults = {(c.family, c.gpu): c.fault for c in causes.cells(framed(rows)).itertuples()}
    assert faults["m0", "g0"] == "the whole family"
    assert faults["m1", "g0"].startswith("scatter")
    assert faults["m5", "g2"].startswith("one row alone")


def test_ablations_never_leave_more_and_cells_leave_the_scatter(rows: list[Row], framed) -> None:
    found = {a.name: a for a in causes.ablations(framed(rows)).itertuples()}
    assert all(a.error <= found["nothing"].error + 1e-12 for a in found.values())
    assert found["cell"].values == 18
    assert found["family"].error < 0.6 * found["nothing"].error
    middle = np.median([math.log(1.0 + 0.4 * (i - 1.5)) for i in range(4)])
    odd = [r for r in rows if (r.family, r.gpu) == ("m1", "g0")]
    scatter = np.mean([abs(math.log1p(r.error) - middle) for r in odd]) / 18
    assert found["cell"].error == pytest.approx(scatter)


def test_bias_and_scatter_by_gpu(rows: list[Row], framed) -> None:
    found = {s.key: s for s in causes.per_key(framed(rows), "gpu").itertuples()}
    assert set(found) == {"g0", "g1", "g2"}
    for split in found.values():
        assert split.without_cells <= split.error + 1e-12
        assert split.cells == 6


def test_a_planted_part_is_found_and_holds_in_unseen_families(make_row, framed) -> None:
    generator = np.random.default_rng(3)
    made = []
    for f in range(10):
        for i in range(12):
            host = float(generator.uniform(0.0, 0.7))
            off = math.exp(0.4 * host + 0.02 * float(generator.normal()))
            parts = {"compute_s": 1.0 - host, "host_s": host}
            made.append(make_row(f"{f}-{i}", 100.0, 100.0 * off, family=f"m{f}", **parts))
    first = next(causes.terms(framed(made)).itertuples())
    assert first.name == "host"
    assert first.theta == pytest.approx(0.4, abs=0.1)
    assert first.held_out > 0.5 * first.saved > 0.0
    assert causes.terms(framed([make_row("x")])).empty


def test_conditions_split_rows_in_two(rows: list[Row], framed) -> None:
    made = framed(rows)
    tests = {"first": made["family"] == "m0", "none": made["family"] == ""}
    found = {c.name: c for c in causes.conditions(made, tests).itertuples()}
    assert set(found) == {"first"}
    first = found["first"]
    assert (first.rows, first.cells, first.mape) == (12, 3, pytest.approx(0.3))
    assert first.points == pytest.approx(3 * 0.3 / 18)
    assert first.range == (pytest.approx(0.3), pytest.approx(0.3))


def test_the_tables_are_made_of_complete_rows_only(rows: list[Row], facts_for) -> None:
    made = view_causes.of_predictor(Evaluation(rows=tuple(rows), facts=facts_for(*rows)), "simulate")
    assert [t.title.split(": ")[1] for t in made] == [
        "cells", "biases", "bias and scatter by GPU", "parts of the step", "conditions",
    ]  # fmt: skip
    assert len(made[0].rows) == 15
    incomplete = facts_for(*rows, complete=False)
    assert view_causes.of_predictor(Evaluation(rows=tuple(rows), facts=incomplete), "simulate") == []
    for table in made:
        assert all(len(line) == len(table.columns) for line in table.rows)
