"""The version at which a row broke, on rows whose history is known."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contracts.results import Row, RunFacts
from harness.history.changes import changes, standing
from harness.history.series import Series, figures, series
from harness.history.store import Recorded, Recording
from tests.harness import plain_rows
from tests.harness.history.conftest import recording_of

Versions = Callable[..., tuple[Recorded, ...]]


def only(recorded: tuple[Recorded, ...]) -> Series:
    (found,) = series(recorded)
    return found


def at(found: Series, **more: Any) -> list[tuple[str, str, str]]:
    return [(c.run_id, c.kind, c.at.subject) for c in changes(found, **more)]


def test_the_first_version_at_which_the_error_grew_is_named(of_errors: Versions) -> None:
    found = only(
        of_errors({"a": 0.02, "b": -0.1}, {"a": 0.03, "b": -0.1}, {"a": 0.30, "b": -0.1}, {"a": 0.31, "b": -0.1})
    )
    (change,) = changes(found)
    assert (change.run_id, change.kind, change.at.subject, change.since.subject) == (
        "a", "broke", "change 3", "change 2",
    )  # fmt: skip
    assert (change.before, change.after, change.now) == (pytest.approx(0.02), pytest.approx(0.30), pytest.approx(0.31))
    assert standing(changes(found)) == (change,)
    assert [(f["moved"], f["broken"]) for f in figures(found.versions, 0.05)] == [(0, 0), (1, 0), (1, 1), (1, 0)]


SMALL = (0.10, 0.12, 0.14, 0.16, 0.18, 0.20)
PASSED = (0.28, 0.29, 0.31, 0.32)


@pytest.mark.parametrize(
    ("errors", "more", "expected", "standing_now"),
    [
        ((0.2, -0.2, 0.21), {}, [], 0),  # a sign that turns is no growth
        (SMALL, {}, [("broke", 4)], 1),
        (SMALL, {"tolerance": 0.03}, [("broke", 3), ("broke", 5)], 1),
        ((0.1, 0.5, 0.12), {}, [("broke", 2), ("mended", 3)], 0),
        (PASSED, {}, [], 0),
        (PASSED, {"limit": 0.3}, [("over the limit", 3)], 1),
    ],
)
def test_what_is_told_of_a_row(
    of_errors: Versions, errors, more: dict[str, float], expected, standing_now: int
) -> None:
    found = only(of_errors(*({"a": error} for error in errors)))
    assert at(found, **more) == [("a", kind, f"change {number}") for kind, number in expected]
    assert len(standing(changes(found, **more), **more)) == standing_now


def test_lost_gained_and_removed_rows(of_errors: Versions) -> None:
    found = only(of_errors({"a": 0.1, "b": 0.1}, {"a": None, "b": 0.1}, {"a": None}, {"a": 0.1}))
    assert at(found) == [("a", "lost", "change 2"), ("b", "removed", "change 3"), ("a", "gained", "change 4")]
    assert [c.run_id for c in standing(changes(found))] == ["b"]
    (lost,) = [c for c in changes(found) if c.kind == "lost"]
    assert lost.reason == "unsupported: no model of it"


def test_the_measured_figure_is_told_apart(of_errors: Versions, make_row: Callable[..., Row]) -> None:
    first, second = of_errors({"a": 0.0}, {"a": 0.0})
    other = replace(second, rows=(make_row("a", measured=50.0, projected=100.0),))
    (change,) = changes(only((first, other)))
    assert change.remeasured


def test_versions_stand_in_the_order_of_their_commits(of_errors: Versions) -> None:
    recorded = of_errors({"a": 0.1}, {"a": 0.1}, {"a": 0.4})
    assert at(only(recorded[::-1])) == at(only(recorded)) == [("a", "broke", "change 3")]


def test_the_same_evaluation_recorded_twice_counts_once_and_other_selections_apart(of_errors: Versions) -> None:
    one, two = of_errors({"a": 0.1}, {"a": 0.4})
    again = replace(one, recording=replace(one.recording, recorded="2026-02-01T00:00:00+00:00"))
    assert [v.recording.subject for v in only((one, two, again)).versions] == ["change 1", "change 2"]
    beside = replace(two, recording=replace(two.recording, suites={"s": "same", "t": "x"}))
    clocked = replace(two, recording=replace(two.recording, settings={"gpu_clock_mhz": 900.0}))
    titles = [s.title for s in series((one, beside, clocked))]
    assert titles == ["s, simulate", "s, simulate, evaluated with t", "s, simulate, gpu_clock_mhz=900.0"]


def test_changed_runs_of_a_suite_are_marked(of_errors: Versions) -> None:
    one, two = of_errors({"a": 0.1}, {"a": 0.1})
    other = replace(two, recording=replace(two.recording, suites={"s": "other"}))
    assert [v.other_runs for v in only((one, other)).versions] == [False, True]


ERRORS = st.lists(st.floats(-0.9, 3.0), min_size=1, max_size=12)


@given(ERRORS, st.floats(0.01, 0.5))
def test_laws(errors: list[float], tolerance: float) -> None:
    """No step is larger than the tolerance without a change; what stands is worse now than it was before."""
    facts = {"a": RunFacts(run_id="a")}
    rows = [plain_rows.row("a", 1.0, 1 + error) for error in errors]
    recorded = tuple(Recorded(recording=recording_of(i + 1), rows=(r,), facts=facts) for i, r in enumerate(rows))
    found = only(recorded)
    told: Mapping[str, str] = {c.at.subject: c.kind for c in changes(found, tolerance)}
    for i in range(1, len(errors)):
        if abs(errors[i]) - abs(errors[i - 1]) > tolerance + 1e-9:
            assert told[f"change {i + 1}"] == "broke"
    for c in standing(changes(found, tolerance), tolerance):
        assert abs(errors[-1]) - abs(c.before or 0.0) > tolerance - 1e-9


def test_the_label_says_which_code_it_was(recording: Callable[..., Recording]) -> None:
    clean = recording(1)
    assert clean.label == clean.revision[:9]
    assert replace(clean, changed=True).label == f"{clean.revision[:9]}+{clean.code[:9]}"
    assert replace(clean, revision="").label == f"0.1.0+{clean.code[:9]}"
