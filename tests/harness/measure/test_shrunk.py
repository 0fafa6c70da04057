"""The shrink test's verdict: off by more than the limit fails, unless the measurements were disturbed by more than that."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asked import put, refusal
from measure_jobs import LLAMA, job

from harness.evidence.ingest.command import load
from harness.measure import launch, log, spec
from harness.measure.launch import TakenTurn, Turn, in_order, take
from harness.measure.log import Disturbed, TrainedStep
from harness.measure.shrink_test import ShrinkTest, check, confirmed, disturbed, judged
from harness.measure.suite_trainings import _least_disturbed
from harness.measure.train_plan import Trained
from harness.predictors.live import Here
from projector.errors import InputError

LIMIT = 0.08


def _verdict(*found: tuple[float, float]) -> tuple[str, bool]:
    every = [ShrinkTest(id=f"run{i}", error=error, by=Disturbed(spread=s)) for i, (error, s) in enumerate(found)]
    made = check("local", LIMIT, every)
    return str(made).split()[0], made.passed


def test_only_quiet_measurements_judge() -> None:
    assert _verdict((0.05, 0.01), (-0.079, 0.08)) == ("PASS", True)
    assert _verdict((0.05, 0.01), (-0.09, 0.01)) == ("FAIL", False)
    assert _verdict((0.68, 0.3)) == ("INCONCLUSIVE", True)
    assert _verdict((0.02, 0.01), (0.5, 0.3)) == ("INCONCLUSIVE", True)
    assert _verdict((0.1, 0.01), (0.5, 0.3)) == ("FAIL", False)
    assert _verdict() == ("FAIL", False)
    for by in (Disturbed(spread=0.3), Disturbed(waited=0.09), Disturbed(pace=0.1)):
        made = check("local", LIMIT, [ShrinkTest(id="llama-dp2", error=0.5, by=by)])
        assert (made.passed, made.inconclusive, made.found) == (True, True, None)
        assert f"llama-dp2 +50.0% ({by})" in str(made)
    full = check("local", LIMIT, [ShrinkTest(id="x", error=0.0, full=True)])
    assert full.detail.endswith("; ranks on all cores leave none to other programs")


class Machine:
    """Two trainings of a second a step on both sides of their layers' timing, on a clock whose ``speed(t)`` is faked.

    ``wrong``: by how much the model misses what the layers take, as a factor.
    """

    def __init__(self, speed: Callable[[float], float], wrong: float) -> None:
        self.now, self.speed, self.wrong = 0.0, speed, wrong

    def work(self, seconds: float) -> float:
        began = self.now
        for _ in range(20):
            self.now += seconds / 20 / self.speed(self.now)
        return self.now - began

    def judged(self) -> ShrinkTest:
        (one,) = spec.parse([job("x", LLAMA, 1, 4)], "f")[0].jobs
        asked: Any = SimpleNamespace(ranks=1)
        turns = [
            Turn(job=one, name="", number=1),
            Turn(job=one, name="", asked=asked),
            Turn(job=one, name="", number=2),
        ]
        rounds: list[float] = []
        step: list[float] = []

        def run(turn: Turn) -> dict[str, Any]:
            taken = sorted(self.work(1.0) for _ in range(6))
            (step if turn.asked else rounds).append(taken[3])
            found = {"step": {"spread": (taken[4] - taken[1]) / taken[3], "samples": 6}} if turn.asked else None
            return {"waited": 0.0, "others": 0.0, "found": found}

        words = take(turns, run, lambda: self.work(0.1), lambda _: None)
        taken = tuple(TakenTurn(turn=turn, **each) for turn, each in zip(turns, words, strict=True))
        done: Any = SimpleNamespace(job=one, rounds=tuple(rounds), spread=max(rounds) / min(rounds) - 1.0, taken=taken)
        restored = SimpleNamespace(step_seconds=step[0] * self.wrong)
        alone: Any = SimpleNamespace(project=lambda _: restored, device="cuda")
        return judged(done, alone, asked)


def _word(speed: Callable[[float], float], wrong: float = 1.0) -> str:
    return str(check("local", LIMIT, [Machine(speed, wrong).judged()])).split()[0]


@pytest.mark.parametrize("wrong", [0.8, 1.2])
def test_a_wrong_model_fails_on_a_machine_that_drifts_slowly(wrong: float) -> None:
    slow: Callable[[float], float] = lambda t: 1.0 - 0.4 * t / 360.0  # noqa: E731
    assert _word(slow, wrong) == _word(lambda t: 1.0 + 0.4 * t / 360.0, wrong) == _word(lambda _: 1.0, wrong) == "FAIL"
    assert _word(slow) == _word(lambda _: 0.6) == _word(lambda _: 1.0) == "PASS"
    assert Machine(lambda _: 1.0, wrong).judged().error == pytest.approx(wrong - 1.0)


def test_an_error_fails_only_where_it_repeats() -> None:
    def said(first: float, second: float) -> str:
        one, other = ShrinkTest(id="x", error=first), ShrinkTest(id="x", error=second)
        return str(check("local", LIMIT, [confirmed(one, LIMIT, lambda: other)]))

    assert said(-0.2, -0.19).startswith("FAIL")
    assert said(-0.2, 0.01).startswith("INCONCLUSIVE")
    assert "again 21% apart" in said(-0.2, 0.01)
    assert said(0.05, 0.5).startswith("PASS"), "what holds is not measured again"
    noisy = ShrinkTest(id="x", error=-0.2, by=Disturbed(pace=0.5))
    assert confirmed(noisy, LIMIT, lambda: pytest.fail("it says nothing anyway")) is noisy


@pytest.mark.parametrize("at", [3.0, 9.0, 15.0])
def test_a_machine_that_changes_under_a_measurement_says_nothing(at: float) -> None:
    """Neither of a right model nor of a wrong one, which the change might happen to hide."""
    jumps: list[Callable[[float], float]] = [
        lambda t: 0.6 if t > at else 1.0,
        lambda t: 1.4 if t > at else 1.0,
        lambda t: 0.6 if at < t < at + 8.0 else 1.0,
        lambda t: 0.6 if 6.1 < t < 16.4 else 1.0,  # while layers are timed, and in neither training
    ]
    for jump in jumps:
        assert {_word(jump, wrong) for wrong in (0.7, 0.8, 1.0, 1.2, 1.4)} == {"INCONCLUSIVE"}


def test_a_rank_waits_for_other_programs_only_as_far_as_these_ran() -> None:
    (one,) = spec.parse([job("x", LLAMA, 1, 4)], "f")[0].jobs
    found = TakenTurn(turn=Turn(job=one, name=""), pace=1.0, waited=0.4, others=0.02)
    done: Any = SimpleNamespace(taken=(found,), spread=0.01)
    assert disturbed(done, None).waited == pytest.approx(0.02)
    done.taken = (replace(found, others=0.9),)
    assert disturbed(done, None).waited == pytest.approx(0.4)


def test_the_line_of_waiting_hides_nothing_from_who_reads_the_log(tmp_path) -> None:
    (one,) = spec.parse([job("x", LLAMA, 1, 4)], "f")[0].jobs
    steps = [TrainedStep(i, 1.7e9 + i, 2.0, 0.4 if i < 3 else 1.9, 6.0, 1.0) for i in range(1, 5)]
    log.save(tmp_path / "x.log", [*log.head(one, {}), *log.body(one, steps)])
    assert "without a core (%): 20.00" in (tmp_path / "x.log").read_text()  # a third is kept in any case: these two
    assert load(tmp_path / "x.log").runs


def _trained(name: str, folder: Path, spread: float) -> Trained:
    (one,) = spec.parse([job(name, LLAMA, 1, 4)], "f")[0].jobs
    path = put(folder / f"{name}.log", f"{spread}")
    run: Any = name
    return Trained(job=one, run=run, path=path, rounds=(1.0, 1.0 + spread), low=None, high=None, losses=())


def test_what_was_disturbed_runs_again_while_there_is_time(tmp_path) -> None:
    again = {"noisy": [0.5, 0.2], "busy": [0.01]}
    first = (_trained("quiet", tmp_path, 0.02), _trained("noisy", tmp_path, 0.3), _trained("busy", tmp_path, 0.3))

    def train(one: spec.Job) -> Trained:
        return _trained(one.id, tmp_path / "again", again[one.id].pop(0))

    assert _least_disturbed(first, LIMIT, train, time.monotonic() - 1.0) == first
    kept = _least_disturbed(first, LIMIT, train, time.monotonic() + 60.0)
    assert [each.spread for each in kept] == pytest.approx([0.02, 0.2, 0.01])
    assert not any(again.values())
    assert [float(each.path.read_text()) for each in kept] == [0.02, 0.2, 0.01]
    assert [each.path.parent for each in kept] == [tmp_path] * 3


def test_timings_that_fail_leave_the_rest(tmp_path, monkeypatch) -> None:
    (one,) = spec.parse([job("x", LLAMA, 1, 4)], "f")[0].jobs
    turns = [*in_order([one], 2, {"x": [SimpleNamespace(ranks=1), SimpleNamespace(ranks=1)]})]  # type: ignore[list-item]
    started: list[int] = []

    def start(started_job: Any, heard: Callable[[Any], None], _: object) -> list[str]:
        rest = started_job.payload[0]
        started.append(len(rest))
        for number, each in enumerate(rest):
            if each.asked is turns[1].asked:
                heard([turn.name for turn in rest[:number]])
                raise InputError([])
        return [turn.name for turn in rest]

    monkeypatch.setattr(launch, "launch", start)
    here = launch.Host("cpu", 2)
    found = launch.run(turns, spec.Plan(), here, tmp_path, lambda _: None)
    assert found == ["trained x (1 of 2)", None, "timed layers of x", "trained x (2 of 2)"]
    assert started == [4, 2]
    turns[1] = turns[0]  # of a training nothing can be left out
    monkeypatch.setattr(launch, "launch", lambda *_: (_ for _ in ()).throw(InputError([])))
    refusal(launch.run, turns[:1], spec.Plan(), here, tmp_path, lambda _: None)


def test_the_layers_that_are_timed_are_those_that_were_trained(tmp_path, monkeypatch) -> None:
    """Also where Megatron-Core is installed on a GPU, whose layers `auto` would take."""
    from projector.benchmark import device, measured

    heard: dict[str, object] = {}
    monkeypatch.setattr(device, "open_device", lambda *_: None)
    monkeypatch.setattr(measured, "project", lambda *_, **how: heard.update(how))
    Here(cluster="h200", device="cuda", threads=1, artifact=tmp_path / "x.json").project(None)  # type: ignore[arg-type]
    assert heard["layers"] == "torch"
