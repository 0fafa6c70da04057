"""The shrink test's verdict: off by more than the limit fails, unless the measurements scatter by more than that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from measure_jobs import LLAMA, job

from harness.evidence.ingest.command import load
from harness.measure import closed, log, spec
from harness.measure.log import Step
from harness.measure.shrunk import Shrunk, check
from harness.predictors.live import Here


def _verdict(*found: tuple[float, float]) -> tuple[str, bool]:
    made = check("local", 0.08, [Shrunk(id=f"run{i}", error=error, spread=s) for i, (error, s) in enumerate(found)])
    return str(made).split()[0], made.passed


def test_only_quiet_measurements_judge() -> None:
    assert _verdict((0.05, 0.01), (-0.079, 0.08)) == ("PASS", True)
    assert _verdict((0.05, 0.01), (-0.09, 0.01)) == ("FAIL", False)
    assert _verdict((0.68, 0.3)) == ("INCONCLUSIVE", True)
    assert _verdict((0.02, 0.01), (0.5, 0.3)) == ("INCONCLUSIVE", True)
    assert _verdict((0.1, 0.01), (0.5, 0.3)) == ("FAIL", False)
    assert _verdict() == ("FAIL", False)
    said = str(check("local", 0.08, [Shrunk(id="llama-dp2", error=0.5, spread=0.3)]))
    assert "llama-dp2 +50.0% (spread 30%, no core 0%)" in said


def test_a_training_that_waited_for_cores_judges_nothing(tmp_path: Path) -> None:
    made = check("local", 0.08, [Shrunk(id="once", error=0.5, spread=0.0, waited=0.09)])
    assert (made.passed, made.inconclusive, made.found) == (True, True, None)
    (one,) = spec.parse([job("x", LLAMA, 1, 4)], "f")[0].jobs
    texts = []
    for share in (0.5, 0.2):  # a third is kept in any case: these two
        steps = [Step(i, 1.7e9 + i, 2.0, 2.0 * share if i < 3 else 1.9, 6.0, 1.0) for i in range(1, 5)]
        texts += [*log.head(one, {}), *log.body(one, steps)]
        assert closed.waited("\n".join(texts)) == pytest.approx(share)
    log.save(tmp_path / "x.log", [*texts, *log.head(one, {}), *log.body(one, [replace(s, waited=0.0) for s in steps])])
    assert closed.waited((tmp_path / "x.log").read_text()) == 0.0
    assert load(tmp_path / "x.log").runs  # the line hides nothing from who reads the log


def test_the_layers_that_are_timed_are_those_that_were_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Megatron-Core is installed on a GPU, whose layers `auto` would take."""
    from projector.benchmark import device, measured

    heard: dict[str, object] = {}
    monkeypatch.setattr(device, "open_device", lambda *_: None)
    monkeypatch.setattr(measured, "project", lambda *_, **how: heard.update(how))
    Here(cluster="h200", device="cuda", threads=1, artifact=tmp_path / "x.json").project(None)  # type: ignore[arg-type]
    assert heard["layers"] == "torch"
