"""Predictions on disk: the same to the last bit, taken only where everything that they depend on is the same."""

import importlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from asked import ROOT

from harness import disk_cache
from harness.contracts.results import BASELINE
from harness.contracts.runs import MeasuredRun
from harness.evaluation import evaluate
from harness.evaluation.evaluate import Selected
from harness.evidence import dataset
from harness.predictors.constant_mfu import ConstantMfu
from harness.predictors.ours import Ours, cluster_of
from projector.errors import Unsupported
from projector.io import code
from projector.kernels.settings import Settings
from projector.kernels.tables import digest
from tests.harness.conftest import anew

projection = importlib.import_module("projector.projection")


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    names = ("simumax_a100.yaml", "simumax_b200.yaml")
    every = [run for name in names for run in dataset.read(ROOT / "measured" / "runs" / name)]
    assert len(every) >= 4
    return every


def _one(runs: list[MeasuredRun]) -> MeasuredRun:
    return next(run for run in runs if run.recipe and run.measured.step_seconds and not run.problem)


def _files(folder: Path, kind: str = "prediction") -> list[Path]:
    return sorted(folder.rglob(f"{kind}-*"))


def test_the_same_to_the_last_bit_and_projected_once(cache: Path, runs: list[MeasuredRun], monkeypatch) -> None:
    tools = (Ours("simulate"), ConstantMfu())
    selected = [Selected("s", run) for run in runs]
    disk_cache.switch_off()  # undone by the fixture
    plain = evaluate.evaluate(selected, tools)
    monkeypatch.setenv("PROJECTOR_CACHE", str(cache))
    anew()
    first = evaluate.evaluate(selected, tools)
    assert _files(cache)
    anew()
    monkeypatch.setattr(projection, "project", lambda *_, **__: pytest.fail("projected again"))
    again = evaluate.evaluate(selected, tools)

    def timeless(rows: evaluate.Evaluation) -> list[object]:
        return [replace(row, seconds_to_project=None) for row in rows.rows]

    assert repr(timeless(plain)) == repr(timeless(first)) == repr(timeless(again))
    ours = [[r.seconds_to_project for r in made.rows if r.predictor != BASELINE] for made in (first, again)]
    assert ours[0] == ours[1], "what it took when it was made"


def test_whatever_a_prediction_depends_on_gives_another(cache: Path, runs: list[MeasuredRun]) -> None:
    run = _one(runs)
    tool, measured = Ours("simulate"), run.measured
    variants = [
        (tool, run),
        (tool, replace(run, recipe=replace(run.recipe, global_batch_size=2 * run.recipe.global_batch_size))),
        (tool, replace(run, model=replace(run.model, num_layers=run.model.num_layers // 2))),
        (tool, replace(run, stack=replace(run.stack, framework="nemo"))),
        (tool, replace(run, stack=replace(run.stack, date="2023-01"))),
        (tool, replace(run, gpu="h200_sxm", cluster=None)),
        (tool, replace(run, measured=replace(measured, memory_kind="device"))),
        (tool, replace(run, measured=replace(measured, memory_kind="allocated", memory_rank=0))),
        (tool, replace(run, measured=type(measured)())),
        (tool, replace(run, measured=replace(measured, status="out-of-memory", step_seconds=None, tgs=None))),
        (Ours("simulate", Settings(gpu_clock_mhz=1000.0)), run),
    ]
    contents = [each.content(one) for each, one in variants]
    assert None not in contents
    assert len(set(contents)) == len(contents)
    same = replace(run, id="other", notes="n", measured=replace(measured, step_seconds=1e9))
    assert tool.content(same) == contents[0], "no figure that is scored"
    made = [each.predict(one) for each, one in variants]
    anew()
    assert [each.recalled(one) for each, one in variants] == made


def test_what_code_does_not_hold_is_never_remembered(
    cache: Path, runs: list[MeasuredRun], tmp_path, monkeypatch
) -> None:
    run = _one(runs)
    assert Ours("simulate").predict(replace(run, gpu="nobody_knows", cluster=None)).status == "invalid"
    assert Ours("simulate", Settings(gemm_backend="mine")).content(run) is None
    gpu = (ROOT / "projector" / "hardware" / "gpus" / "h100_sxm.yaml").read_text()
    (tmp_path / "own.yaml").write_text(gpu + "efficiency: constants.yaml\n")
    constants = ROOT / "projector" / "hardware" / "efficiency" / "hopper.yaml"
    (tmp_path / "constants.yaml").write_text(constants.read_text())
    assert Ours("simulate").content(replace(run, gpu=str(tmp_path / "own.yaml"), cluster=None)) is None

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(projection, "project", broken)
    assert Ours("simulate").predict(run).reason.startswith("internal error: ZeroDivisionError")
    assert _files(cache) == []

    def refuses(*_: object, **__: object) -> None:
        raise Unsupported("no model")

    monkeypatch.setattr(projection, "project", refuses)
    assert Ours("simulate").predict(run) == Ours("simulate").recalled(run)
    assert Ours("simulate").recalled(replace(run, problem="too odd")).reason == "too odd"


def test_what_measured_kernels_say_is_remembered_with_their_tables(
    cache: Path, runs: list[MeasuredRun], tmp_path, monkeypatch
) -> None:
    run, tool = _one(runs), Ours("benchmark")
    made = tool.predict(run)
    assert made.measured_share > 0
    assert tool.recalled(run) == made
    assert Ours("simulate").content(run) != tool.content(run)
    own = tmp_path / "measured" / "kernels" / cluster_of(run.cluster, run.gpu, run.gpus_per_node).gpu.name
    shutil.copytree(ROOT / own.relative_to(tmp_path), own)
    monkeypatch.chdir(tmp_path)
    assert tool.recalled(run) == made, "the same tables elsewhere"
    digest.cache_clear()
    (own / "gemm.csv").write_text("".join((own / "gemm.csv").read_text().splitlines(keepends=True)[:-1]))
    assert tool.recalled(run) is None


def test_code_that_changes_under_a_process_is_not_what_it_ran(
    cache: Path, runs: list[MeasuredRun], monkeypatch
) -> None:
    run, tool = _one(runs), Ours("simulate")
    assert disk_cache._folder() is not None
    monkeypatch.setattr(disk_cache, "_BEGAN", code.changed() - 1.0)
    disk_cache._code_unchanged.cache_clear()
    tool.predict(run)  # the folder of the old code is known, and a file is newer than this process
    assert _files(cache) == []
    anew()
    assert disk_cache._folder() is None


def test_in_several_processes_as_in_one(cache: Path, runs: list[MeasuredRun], monkeypatch) -> None:
    monkeypatch.setattr(evaluate, "MIN_PARALLEL", 2)
    selected = [Selected("s", run) for run in runs]
    seen: list[tuple[int, int]] = []
    first = evaluate.evaluate(selected, [Ours("simulate")], jobs=2, progress=lambda *at: seen.append(at))
    assert _files(cache)
    assert seen[-1] == (len(runs), len(runs))
    _files(cache)[0].write_bytes(b"torn")
    second = evaluate.evaluate(selected, [Ours("simulate")], jobs=2)

    def figures(made: evaluate.Evaluation) -> list[object]:
        return [(r.run_id, r.fit, r.projected_tgs, r.projected_memory_gib) for r in made.rows]

    assert figures(first) == figures(second)
