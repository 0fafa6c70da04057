"""The physical check of a run: what is impossible is refused, what is unlikely is doubted, both in words with figures."""

from dataclasses import replace
from pathlib import Path

import command_line
import pytest
from asked import put, refusal, says
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.__main__ import main
from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evidence import dataset, run_text
from harness.evidence.physics import judge, marked
from projector.frameworks.flops import flops_per_token
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe

BATCH, LENGTH, GPUS = 128, 8192, 64


def run(seconds: float | None = 4.0, *, precision: str = "bf16", gpu: str = "h100_sxm", **more: object) -> MeasuredRun:
    """A Llama 3 8B step of 1 Mi tokens on 64 GPUs; 4 s are 20 % of an H100's peak."""
    if "date" in more:
        more["stack"] = Stack(framework="nemo", date=str(more.pop("date")))
    figures = {name: more.pop(name) for name in Measured.__dataclass_fields__ if name in more}
    tgs = BATCH * LENGTH / seconds / GPUS if seconds and "tgs" not in figures else None
    measured = Measured(**{"step_seconds": seconds, "tgs": tgs, "derived": ("tgs from step_seconds",), **figures})  # type: ignore[arg-type]
    recipe = Recipe(micro_batch_size=1, global_batch_size=BATCH, seq_length=LENGTH, tp=2, precision=precision)
    model = zoo.load("llama3_8b")
    base = MeasuredRun(
        id="x", source=Source(title="t"), gpu=gpu, gpus=GPUS, stack=Stack(framework="megatron-lm"),
        model=model, recipe=recipe, measured=measured,
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def rate(times: float) -> dict[str, object]:
    """A run of which the rate is stated, ``times`` that of the usual one."""
    return {"seconds": 4.0 / times, "tgs": 4096.0 * times, "derived": ("step_seconds from tgs",)}


def said(made: MeasuredRun) -> tuple[str, ...]:
    found = judge(made)
    return tuple(f"refused: {text}" for text in found.refused) + tuple(f"doubt: {text}" for text in found.doubts)


def test_an_honest_run_is_neither_refused_nor_doubted() -> None:
    assert said(run()) == ()
    assert said(run(None)) == ()
    assert (
        said(run(4.0, peak_memory_gib=71.2, rel_std=0.01, samples=40, stack=Stack(framework="nemo", date="2025-02")))
        == ()
    )


def test_every_measured_run_of_the_project_is_physical(root: Path) -> None:
    """The bounds hold for what was measured: no row of measured/runs is refused, and none is doubted."""
    runs = dataset.read(root / "measured" / "runs")
    assert [(made.id, said(made)) for made in runs if said(made)] == []


@given(st.floats(0.0, 6.0))
def test_mfu_is_refused_exactly_where_every_count_is_above_the_peak(power: float) -> None:
    seconds = 10.0 ** (1.0 - power)
    made = run(seconds)
    least = min(flops_per_token(made.workload, name) for name in ("megatron-2025-04", "torchtitan", "megatron-2024-03"))
    mfu = least * BATCH * LENGTH / seconds / GPUS / catalogue.gpu("h100_sxm").peak["bf16"]
    if mfu < 0.9:
        assert not judge(made).refused
    if mfu > 1.5:
        assert judge(made).refused


def test_frozen_weights_do_a_third_less_work() -> None:
    least = run(0.65)
    recipe = least.recipe
    assert recipe is not None
    assert judge(least).refused
    assert not judge(replace(least, recipe=replace(recipe, lora=LoRA(dim=16)))).refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
*tabled("refusals", "physics"),
({"gpus": 10**400}, "refused: 10^400.0 GPUs are more than the 10,000,000"),
],
)  # fmt: skip
def test_what_is_said_of_what(changes: dict[str, object], words: str) -> None:
    found = said(run(**changes))  # type: ignore[arg-type]
    assert any(words in text for text in found), found
    assert len({text.partition(":")[0] for text in found}) == 1 or "tgs" in changes


NUMBERS = st.none() | st.floats() | st.floats(1e-6, 1e6)


@given(
    seconds=NUMBERS, tgs=NUMBERS, peak=NUMBERS, spread=NUMBERS, gpus=st.integers(0, 10**40),
    day=st.text(max_size=12) | st.dates().map(str),
)  # fmt: skip
def test_any_figures_are_judged_without_an_error(
    seconds: float | None, tgs: float | None, peak: float | None, spread: float | None, gpus: int, day: str
) -> None:
    figures = Measured(step_seconds=seconds, tgs=tgs, peak_memory_gib=peak, rel_std=spread)
    judge(replace(run(), measured=figures, gpus=gpus, stack=Stack(framework="nemo", date=day)))


def test_a_run_without_its_gpu_is_held_to_the_fastest_known() -> None:
    assert said(run(4.0, gpu="")) == ()
    (found,) = said(run(0.004, gpu=""))
    assert found.startswith("refused: 0.004 s a step means ")
    says(found, "of the bf16 peak of the fastest GPU known, ", "4 s would be")


def test_a_processor_at_hand_is_not_held_to_the_catalogues() -> None:
    assert said(run(0.01, gpu="cpu", peak_memory_gib=500.0)) == ()


def test_doubts_are_said_where_a_file_is_projected(tmp_path, capsys) -> None:
    path = put(tmp_path / "runs.yaml", run_text.to_yaml([run(3500.0), replace(run(0.004), id="y")]))
    out = tmp_path / "out"
    assert main(["run", "--runs", str(path), "--no-gate", "--no-plots", "--out", str(out)]) == 0
    assert "doubtful: x: 3500 s a step means" in capsys.readouterr().err
    assert "0.004 s a step means 19,947 % of the bf16 peak" in (out / "results.csv").read_text()


def test_a_refused_run_is_kept_with_its_reason_and_marked_once() -> None:
    made, found = marked(run(0.004, problem="gpu not stated"))
    assert made.problem.startswith("gpu not stated; 0.004 s a step means")
    assert found.refused
    assert marked(made)[0] == made
    assert made.measured.step_seconds == 0.004


def test_a_strict_file_is_judged_as_it_is_read(tmp_path) -> None:
    path = tmp_path / "runs.yaml"
    path.write_text(run_text.to_yaml([run(0.004), replace(run(3500.0), id="y"), replace(run(), id="z")]))
    read = {made.id: made.problem for made in dataset.read(path)}
    assert read["x"].startswith("0.004 s a step means")
    assert (read["y"], read["z"]) == ("", "")
    out = command_line.told("harness", "ingest", path)
    says(out, "  refused: 0.004 s a step means", "  doubtful: 3500 s a step means")


@pytest.mark.parametrize("value", [".nan", ".inf", "-1.0", "0"])
def test_a_figure_that_is_no_number_is_a_mistake_of_the_file(value: str, tmp_path) -> None:
    path = put(tmp_path / "runs.yaml", run_text.to_yaml([run()]))
    path.write_text(path.read_text().replace("step_seconds: 4.0", f"step_seconds: {value}"))
    refusal(dataset.read, path, match=r"measured.step_seconds: found .*expected a positive number", kind=ValueError)
