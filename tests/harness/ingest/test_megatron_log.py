"""Megatron iteration lines in every shape, argument dumps, steady state."""

import re
from pathlib import Path

import pytest
from asked import put, refusal
from tabled import tabled

from harness.evidence.ingest.command import load
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.dialects import read_log
from harness.evidence.ingest.logs.events import Step
from harness.evidence.ingest.logs.megatron import events
from tests.conftest import ROOT

TAIL = "learning rate: 1.0E-05 | global batch size:   128 | lm loss: 1.1E+01 | number of skipped iterations:   0 |"
HIP = "hip mem usage/free/total/usage_ratio: 145.40{u}/46.58{u}/191.98{u}/75.74%"
GB, GIB = HIP.format(u="GB"), HIP.format(u="GiB")
DUMP = """\
using world size: 8, data-parallel size: 4
------------------------ arguments ------------------------
{args}
-------------------- end of arguments ---------------------
"""
ARGS = tabled("readers", "megatron_log_args")


def dump(prefix: str = "") -> str:
    lines = (f"{prefix}  {name} {'.' * (40 - len(name))} {value}" for name, value in ARGS.items())
    return DUMP.format(args="\n".join(lines))


def steps(times: list[float]) -> str:
    line = "{p} iteration {i:8d}/ 50 | elapsed time per iteration (ms): {ms:.1f} | {tail}"
    return "\n".join(line.format(p="", i=i + 1, ms=1000 * t, tail=TAIL) for i, t in enumerate(times))


def iterations(text: str) -> list[Step]:
    return [event for event in events(enumerate(text.splitlines(keepends=True), 1)) if isinstance(event, Step)]


def test_seconds_and_thousands_and_repeats() -> None:
    text = (
        "[default7]: iteration 12695/ 115311 | elapsed time per iteration (s): 105.22 | TFLOPs: 149.02 |\n"
        "iteration 12696/ 115311 | elapsed time per iteration (ms): 1,052.5 |\n"
        "iteration 12696/ 115311 | elapsed time per iteration (ms): 1,052.5 |\n"
    )
    first, second, third = iterations(text)
    assert (first.seconds, first.tflops) == (105.22, 149.02)
    assert second.seconds == third.seconds == pytest.approx(1.0525)


def test_what_a_log_lacks_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "a.log", steps([1.0] * 3))
    caught = refusal(load, path)
    keys = [p.key for p in caught.problems]
    assert keys == ["model", "recipe.micro_batch_size", "recipe.seq_length"]
    refusal(load, put(path, "hello\n"), match="known log dialect")
    beside = put(tmp_path / "b.yaml", "{gpu: mi999, gpus: 0, colour: red, recipe: {tp: x}}")
    assert {"gpu", "gpus", "colour", "recipe.tp"} <= {p.key for p in refusal(read_context, beside).problems}


def test_a_ramp_of_the_batch_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "ramp.log"
    ramp = steps([1.0] * 20)
    made = load(put(path, dump() + ramp.replace("size:   128", "size:    64", 12)))
    assert "cut: 12 other batch size (steps 1 to 12)" in made.rows[0].mapped
    assert made.runs[0].measured.samples == 8


def test_bigscience_logs(shared: Path) -> None:
    log = shared / "corpus" / "logs" / "nvidia" / "bigscience_meg_ds_3d_gpt2_perf_n16-ds-off.log"
    run = load(log).runs[0]
    assert (run.gpus, run.model.num_layers, run.recipe.tp, run.recipe.pp) == (64, 64, 4, 16)
    assert run.measured.step_seconds == pytest.approx(126.6, abs=0.5)


@pytest.mark.parametrize("before", ["", "using world size: 16, data-parallel size: 16\n"])
def test_a_log_that_goes_on_with_other_gpus_is_read_from_there(tmp_path: Path, before: str) -> None:
    later = steps([1.0] * 30).replace("iteration        ", "iteration       3")
    text = f"{before}{steps([2.0] * 30)}\nusing world size: 32, data-parallel size: 32\n{later}"
    made = read_log(put(tmp_path / "a.log", text), incomplete=True)
    run, row = made.runs[0], made.rows[0]
    assert (run.gpus, run.measured.step_seconds, run.measured.rel_std) == (32, 1.0, 0.0)
    assert any("32 GPUs" in doubt for doubt in row.doubts)


def test_a_log_that_goes_on_with_longer_sequences_is_read_from_there(tmp_path: Path) -> None:
    made = "".join(
        steps([seconds] * 30).replace("global batch", f"seq_length: {length} | global batch") + "\n"
        for seconds, length in ((1.0, 4096), (2.0, 8192))
    )
    (run,) = read_log(put(tmp_path / "a.log", made), incomplete=True).runs
    assert (run.switches["seq_length"], run.measured.step_seconds, run.measured.rel_std) == (8192, 2.0, 0.0)


def test_a_log_of_two_models_is_the_last_one_and_says_so(tmp_path: Path) -> None:
    log = (ROOT / "tests" / "data" / "logs" / "megatron_b.log").read_text()
    smaller = re.sub(r"(num_layers \.+) \d+", r"\1 16", log)
    (row,) = read_log(put(tmp_path / "a.log", smaller + log), read_context(None, gpu="mi300x")).rows
    assert row.doubts[0] == "it goes on with num_layers 32, before 16: the steps until there do not count"
