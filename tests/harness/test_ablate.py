"""One mechanism switched off at a time: what can be, that it is and nothing else, and what the change is worth."""

import json
from typing import Any

import command_line
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import main
from harness.contracts import frame
from harness.contracts.results import RunFacts
from harness.contracts.runs import MeasuredRun
from harness.evaluation import ablate
from harness.evidence import shelf
from harness.evidence.runs_of import runs_of
from harness.predictors.ours import Ours
from harness.score.whatif import worth
from projector.frameworks import profiles_io
from tests.harness.plain_rows import row


def of_errors(errors: list[tuple[float, str]], **more: Any) -> Any:
    """Rows with these errors, of these sources."""
    rows = [row(f"r{i}", 100.0, 100.0 * (1 + error), **more) for i, (error, _) in enumerate(errors)]
    facts = {f"r{i}": RunFacts(run_id=f"r{i}", source=source) for i, (_, source) in enumerate(errors)}
    return frame.of(rows, facts)


def test_a_source_weighs_as_one_and_what_helps_is_positive() -> None:
    sources = ["a/a", "a/a", "a/a", "b/b", "c/c"]
    publisher = {f"r{i}": source for i, source in enumerate(sources)}
    on = of_errors(list(zip([0.1, 0.1, 0.1, -0.2, 0.3], sources, strict=True)))
    off = of_errors(list(zip([0.2, 0.2, 0.2, -0.1, 0.3], sources, strict=True)))
    found = worth(on, off, publisher)
    assert found.error == pytest.approx((0.1 - 0.1 + 0.0) / 3)
    assert (found.helped, found.hurt) == (("a/a",), ("b/b",))
    assert (found.moved, found.lost) == (4, 0)
    assert set(found.touched) >= {*found.helped, *found.hurt}
    assert found.interval[0] < found.error < found.interval[1]


@given(st.lists(st.tuples(st.floats(-0.5, 0.5), st.sampled_from(["a/a", "b/b", "c/c"])), min_size=2, max_size=9))
def test_what_changes_nothing_is_worth_nothing(errors: list[tuple[float, str]]) -> None:
    rows, publisher = of_errors(errors), {f"r{i}": source for i, (_, source) in enumerate(errors)}
    found = worth(rows, rows, publisher)
    assert (found.error, found.moved, found.touched, found.lost) == (0.0, 0, (), 0)
    assert not found.helped + found.hurt
    assert {found.tau, found.memory, found.whatif} <= {0.0, None}


def test_an_order_that_is_lost_costs_tau_and_a_lost_row_is_counted() -> None:
    def frame_of(*projected: float | None) -> Any:
        rows = [row(f"r{i}", 100.0 + 10 * i, each) for i, each in enumerate(projected)]
        return frame.of(rows, {one.run_id: RunFacts(run_id=one.run_id, source="a/a") for one in rows})

    publisher = dict.fromkeys(("r0", "r1", "r2"), "a/a")
    found = worth(frame_of(100, 110, 120), frame_of(120, 110, 100), publisher)
    assert (found.tau, found.lost) == (-2.0, 0)
    assert worth(frame_of(100, 110, 120), frame_of(100, 110, None), publisher).lost == 1


def test_everything_that_profiles_state_can_be_switched_off() -> None:
    names = [each.name for each in ablate.declared()]
    assert len(names) == len(set(names))
    for framework in map(profiles_io.load, profiles_io.names()):
        for place, stated in framework.execution.items():
            assert {f"{place}.{name}" for name in stated if name != "strategy"} <= set(names)
        assert {f"when {word}" for rule in framework.rules for word in rule["when"]} <= set(names)
    assert "step.slowest_chip.slowest" in names
    assert all(each.lines > 0 for each in ablate.declared())


@pytest.fixture(scope="module")
def few() -> list[MeasuredRun]:
    """Two dense runs and two with experts."""
    every = [run for run in runs_of(shelf.folder("measured/runs") / "torchtitan.yaml") if run.model and not run.problem]
    return [*(run for run in every if not run.model.moe)][:2] + [run for run in every if run.model.moe][:2]  # type: ignore[union-attr]


def seconds(made: dict[str, ablate.Outcome]) -> list[float | None]:
    return [prediction.step_seconds for _, prediction in made.values()]


def test_one_is_off_and_everything_else_is_on(few: list[MeasuredRun]) -> None:
    every = {each.name: each for each in ablate.declared()}
    on = ablate.projected(few, None, 1, {})

    def off(name: str) -> list[float | None]:
        return seconds(ablate.projected(few, every[name], 1, on))

    before = seconds(on)
    assert None not in before
    for run in few:  # what this process remembers of a run is forgotten in those that project it with something off
        Ours("simulate").projection(run)
    assert off("kernels.gemm") != before
    assert off("dispatch.dispersion")[:2] == before[:2]
    slowest = off("step.slowest_chip.slowest")
    assert all(now <= was for now, was in zip(slowest, before, strict=True))  # type: ignore[operator]
    assert slowest != before
    assert seconds(ablate.projected(few, None, 1, {})) == before


def test_a_factor_is_one_where_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-LM's profile says nothing of experts of 8 bits, so the value of its strategy would hold on."""
    factor = next(each for each in ablate.declared() if each.name == "runtime.narrow_expert_factor")
    changed: list[Any] = []
    monkeypatch.setattr(ablate, "_change_profiles", changed.append)
    factor.off()
    for name in ("megatron-lm", "torchtitan"):
        assert changed[0](profiles_io.load(name)).execution["runtime"]["narrow_expert_factor"] == 1.0


def test_a_changed_profile_is_not_projected_where_it_settles_nothing(few: list[MeasuredRun]) -> None:
    """What is known of a run that it leaves alone comes back as it was given."""
    every = {each.name: each for each in ablate.declared()}
    on = ablate.projected(few[:1], None, 1, {})
    marked: Any = {run: (resolved, "as it was") for run, (resolved, _) in on.items()}
    assert ablate.projected(few[:1], every["when adapters"], 1, marked) == marked


def test_the_command(tmp_path, capsys) -> None:
    folder = shelf.folder("measured/runs")
    (tmp_path / "unseen_few.yaml").write_text((folder / "simumax_b200.yaml").read_text())
    (tmp_path / "open.yaml").write_text((folder / "simumax_a100.yaml").read_text())
    asked = ["ablate", "step.slowest_chip.*", "tree", "--measured", str(tmp_path), "--jobs", "1"]
    assert main([*asked, "--out", str(tmp_path / "m.md"), "--json"]) == 0
    tables = {table["title"]: table["rows"] for table in json.loads(capsys.readouterr().out)["tables"]}
    assert [line["off"] for line in tables["mechanism"]] == ["step.slowest_chip.slowest"]
    assert [line["off"] for line in tables["collective"]] == ["tree"]
    assert "step.slowest_chip.slowest" in (tmp_path / "m.md").read_text()
    assert "step.slowest_chip.slowest" in command_line.refused("harness", "ablate", "step.slowst", "--list")
