"""Every dialect's log of our own making (tests/data/logs), read to a run."""

from pathlib import Path

import pytest
from asked import LOGS, put
from log_records import step
from tabled import tabled

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.command import load
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.dialects import read_records_of_log

RECIPE = "{model: llama3.1_8b, gpu: mi300x, gpus: 8, recipe: {micro_batch_size: 2, seq_length: 8192}}"
TOKENS = 128 * 8192 / 6.0 / 8

WHOLE = tabled("readers", "log_dialects_whole")
BESIDE = tabled("readers", "log_dialects_beside")
#: Trainers that the projector has no profile of: what they logged counts, with that named.
TRAINERS = tabled("readers", "log_dialects_trainers")


def only(name: str, recipe: Path | None = None) -> MeasuredRun:
    (run,) = load(LOGS / name, None, read_context(recipe)).runs
    return run


@pytest.mark.parametrize("name", WHOLE)
def test_a_log_with_its_arguments_is_a_whole_run(name: str) -> None:
    dialect, seconds, framework, memory, kind = WHOLE[name]
    assert read_records_of_log(LOGS / name)[0] == dialect
    run = only(name)
    assert run.measured.step_seconds == pytest.approx(seconds, rel=1e-6)
    assert run.stack.framework == framework
    assert (run.measured.peak_memory_gib, run.measured.memory_kind) == (memory, kind)
    assert run.gpus == 8
    assert run.model is not None
    assert run.problem in ("", "gpu not stated")
    expected = run.recipe.global_batch_size * run.recipe.seq_length / run.measured.step_seconds / 8
    assert run.measured.tgs == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", BESIDE)
def test_a_log_without_arguments_takes_them_from_a_file(name: str, tmp_path: Path) -> None:
    dialect, seconds, batch, memory = BESIDE[name]
    recipe = tmp_path / "beside.yaml"
    micro = 4 if name == "deepspeed.log" else 2
    recipe.write_text(RECIPE.replace("size: 2", f"size: {micro}, global_batch_size: {batch}"))
    assert read_records_of_log(LOGS / name)[0] == dialect
    run = only(name, recipe)
    assert (run.problem, run.gpus, run.recipe and run.recipe.global_batch_size) == ("", 8, batch)
    assert run.measured.step_seconds == pytest.approx(seconds, rel=1e-6)
    assert run.measured.peak_memory_gib == memory


PROFILED = {"internevo", "paddlenlp", "xtuner"}


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_is_read_and_named_where_it_has_no_profile(name: str, tmp_path: Path) -> None:
    dialect, seconds, memory, kind = TRAINERS[name]
    recipe = tmp_path / "beside.yaml"
    micro = 8 if name == "litgpt.log" else 2
    recipe.write_text(RECIPE.replace("size: 2", f"size: {micro}, global_batch_size: 128"))
    assert read_records_of_log(LOGS / name)[0] == dialect
    run = only(name, recipe)
    assert run.problem == ""
    assert run.stack.framework == (dialect if dialect in PROFILED else "unknown")
    assert any(dialect in text for text in run.assumed) == (dialect not in PROFILED)
    assert (run.gpus, run.measured.peak_memory_gib, run.measured.memory_kind) == (8, memory, kind)
    assert run.measured.step_seconds == pytest.approx(seconds, rel=1e-6)
    recipe.write_text(recipe.read_text().replace("gpus: 8", "gpus: 8, framework: pytorch"))
    assert (only(name, recipe).stack.framework, only(name, recipe).problem) == ("pytorch", "")


@pytest.mark.parametrize("shape", "abcde")
def test_every_megatron_shape_says_the_same(shape: str) -> None:
    run, plain = only(f"megatron_{shape}.log"), only("megatron_plain.log")
    assert plain.model is not None
    assert (run.model, run.recipe) == (plain.model, plain.recipe)
    assert (run.model.name, run.model.vocab_size) == ("llama3_8b", 128256)
    assert (run.recipe.tp, run.recipe.micro_batch_size, run.recipe.data_parallel_sharding) == (2, 2, "optim")
    assert run.measured.tflops_per_gpu == plain.measured.tflops_per_gpu
    assert run.measured.tgs == pytest.approx(TOKENS)


def test_bridge_and_nemo_configurations_are_read() -> None:
    bridge, nemo = only("bridge.log"), only("nemo1.log")
    assert (bridge.model.name, bridge.recipe.tp, bridge.recipe.data_parallel_sharding) == ("llama3.1_8b", 2, "optim")
    assert (nemo.model.name, nemo.recipe.precision, nemo.recipe.seq_length) == ("llama2_7b", "bf16", 4096)


def test_torchtitan_of_2024_and_its_newer_start(tmp_path: Path) -> None:
    text = (LOGS / "torchtitan.log").read_text()
    new = text.replace("Training starts at step 1, with", "Trainer is initialized with")
    new = new.replace("size 32, seq", "size 32, gradient accumulation steps 1, seq")
    assert new != text
    assert load(put(tmp_path / "torchtitan.log", new.replace("tps:", "wps:"))).runs[0] == only("torchtitan.log")


def test_torchtitan_says_its_mesh_and_recomputation() -> None:
    run = only("torchtitan.log")
    assert (run.gpu, run.model_name) == ("mi300x", "llama3_8b")
    assert (run.recipe.micro_batch_size, run.recipe.data_parallel_sharding) == (4, "optim_grads_params")
    assert run.recipe.recompute_granularity == "full"
    assert run.measured.derived == ("step_seconds from tgs",)


def test_mllog_gives_gpus_from_accumulation_and_the_vendor_name() -> None:
    run = only("mllog_blocks.log")
    assert (run.gpu, run.gpus, run.model_name, run.recipe.precision) == ("b200", 8, "llama3.1_8b", "fp8")


def test_a_restart_with_other_arguments_counts_from_there() -> None:
    made = load(LOGS / "megatron_restart.log")
    run, row = made.runs[0], made.rows[0]
    assert run.recipe.micro_batch_size == 4
    assert "2 starts" in row.mapped
    assert "2 lines repeat a step" in row.mapped
    assert "cut: 12 other configuration (steps 1 to 12)" in row.mapped
    assert "cut: 1 after an evaluation" in row.mapped
    said, doubt = row.doubts  # the rate of this made-up log is not that of its step time
    assert said == "it goes on with micro_batch_size 4, before 2: the steps until there do not count"
    assert doubt.startswith("TFLOP/s/GPU: found 443.1, expected 971.6 to 1449, by step time")


def test_a_last_start_that_never_ran_does_not_count(tmp_path: Path) -> None:
    text = (LOGS / "megatron_d.log").read_text()
    again = text.partition("[-----------training.py")[0].rpartition("\n")[0].replace(" 2\n", " 4\n")
    path = put(tmp_path / "megatron_d.log", f"{text}{again}\nRuntimeError: HIP error: invalid device ordinal\n")
    made = load(path)
    assert made.runs[0].recipe == only("megatron_d.log").recipe
    assert made.runs[0].measured == only("megatron_d.log").measured
    assert "RuntimeError: HIP error" in made.rows[0].doubts[0]


def test_checkpoints_and_timers() -> None:
    assert "cut: 1 after a checkpoint" in load(LOGS / "megatron_d.log").rows[0].mapped
    record = read_records_of_log(LOGS / "megatron_plain.log")[1][0]
    assert {name: (round(total, 6), count) for name, (total, count) in record.timers.items()} == {
        "forward-backward": (5.5002, 1),
        "optimizer": (0.11025, 1),
    }


def test_a_trace_says_its_kernels() -> None:
    record = read_records_of_log(LOGS / "kineto.json")[1][0]
    kernels = record.kernels
    (gemm, seconds, calls), (collective, _, _) = kernels.top
    assert (gemm, round(seconds, 6), calls) == ("Cijk_gemm_kernel", 24 * 0.09, 24)
    assert collective.startswith("nccl")
    # a collective of 100 ms each step, 40 ms of it beside a kernel
    assert kernels.communication_s == pytest.approx(0.6)
    assert kernels.exposed_s == pytest.approx(6 * 0.06)
    assert kernels.busy_s == pytest.approx(6 * (0.36 + 0.06))


def test_a_column_of_a_table_is_a_run(tmp_path: Path) -> None:
    recipe = put(tmp_path / "beside.yaml", RECIPE.replace("size: 2", "size: 2, global_batch_size: 128"))
    before, after = load(LOGS / "iterations.md", None, read_context(recipe)).runs
    assert (before.id, after.id) == ("iterations-before", "iterations-after")
    assert after.measured.step_seconds == pytest.approx(0.9 * 6.0)
    assert after.measured.tflops_per_gpu == 700.0


def test_out_of_memory_is_a_result() -> None:
    run = only("out_of_memory.log")
    assert (run.measured.status, run.measured.step_seconds) == ("out-of-memory", None)


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        ("Step time (ms)\n\n| iter | one | loss |", {"one": 0.35}),
        ("| step | step_time_ms | grad_norm | memory (GiB) | token_acc |", {"step_time_ms": 0.35}),
        ("| iter | loss | lr | memory (GiB) | cumulative elapsed |", {}),
        ("TFLOP/s of each run\n\n| iter | one | two |", {}),
    ],
)
def test_columns_of_a_table_are_times_where_it_says_so(head: str, seconds: dict[str, float], tmp_path: Path) -> None:
    """Losses, rates and bytes beside them are none, nor a cell that holds more than a number; the first iteration's has
    its thousands apart."""
    columns = head.rpartition("\n")[2].count("|") - 2
    rows = [f"| {at} | " + " | ".join(["38 130" if at == 1 else "350 ± 3"] * columns) + " |" for at in range(1, 13)]
    rows.append("| 13 | " + " | ".join(["1m 57s"] * columns) + " |")
    file = put(tmp_path / "t.md", "\n".join([head, "|---" * (columns + 1) + "|", *rows]) + "\n")
    found = {record.name: step(record) for record in read_records_of_log(file)[1] if record.steps}
    assert found == pytest.approx(seconds)
