"""MLPerf logs: the units of counts and throughputs, decided by what the log itself says twice."""

import json
from pathlib import Path

import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.mllog import platform, system
from harness.evidence.ingest.logs.translate import translate
from harness.evidence.ingest.steady import state_of

BATCH, LENGTH, STEP, BLOCK = 64, 2048, 0.8, 12


def entry(key: str, value: object = None, now: float = 0.0, **metadata: object) -> str:
    return ":::MLLOG " + json.dumps({"key": key, "value": value, "time_ms": now * 1000, "metadata": metadata})


def head(benchmark: str = "llama31_8b") -> list[str]:
    stated = {"submission_benchmark": benchmark, "global_batch_size": BATCH, "max_sequence_length": LENGTH}
    return [entry(key, value) for key, value in stated.items()]


def blocks(counter: str, of: float, throughput: float | None = None, stated: float | None = None) -> list[str]:
    """Eight blocks, each with an evaluation of 5 s behind it; ``of``: counts of a step."""
    lines, now = [entry("run_start"), entry("block_start", **{counter: 0})], 0.0
    for block in range(1, 9):
        now += BLOCK * STEP
        stats = {"throughput": throughput, "train_step_time": stated}
        if found := {key: value for key, value in stats.items() if value is not None}:
            lines.append(entry("tracked_stats", found, now))
        count = round(block * BLOCK * of)
        lines += [entry("block_stop", None, now, **{counter: count}), entry("eval_start", None, now)]
        now += 5
        lines += [entry("eval_accuracy", 2.7, now, **{counter: count}), entry("eval_stop", None, now)]
        lines.append(entry("block_start", None, now, **{counter: block}))  # in steps, blocks or anything
    return lines


def read(tmp_path: Path, lines: list[str]) -> Logged:
    (record,) = read_records_of_log(put(tmp_path / "result_0.txt", "\n".join(lines) + "\n"))[1]
    return record


@pytest.mark.parametrize("throughput", [None, BATCH / STEP, BATCH * LENGTH / STEP])
@pytest.mark.parametrize(
    ("counter", "of"), [("samples_count", BATCH), ("epoch_num", BATCH * LENGTH), ("epoch_num", BATCH)]
)
def test_every_pair_of_units_gives_the_same_step(tmp_path, counter: str, of: float, throughput: float | None) -> None:
    record = read(tmp_path, [*head("gpt3"), *blocks(counter, of, throughput)])
    assert state_of(record).value == pytest.approx(STEP)
    assert not record.notes


def test_samples_that_are_steps_are_told_by_the_throughput(tmp_path: Path) -> None:
    state = state_of(read(tmp_path, [*head(), *blocks("samples_count", 1, BATCH / STEP)]))
    assert state.value == pytest.approx(STEP)


def test_two_readings_that_contradict_each_other_give_no_step(tmp_path: Path) -> None:
    record = read(tmp_path, [*head(), *blocks("samples_count", BATCH, 3 * BATCH / STEP)])
    assert record.steps == 0
    assert "is in no unit what the log's own counts and times say" in record.notes[0]


def test_a_stated_step_that_its_own_times_deny_is_doubted(tmp_path: Path) -> None:
    record = read(tmp_path, [*head(), *blocks("samples_count", BATCH, stated=2 * STEP)])
    assert record.steps == 8
    assert "stated step times of 1.6 s, but 0.8 s by the log's own counts" in record.notes[0]
    assert not read(tmp_path, [*head(), *blocks("samples_count", BATCH, stated=STEP)]).notes


def test_counts_of_no_unit_give_no_step(tmp_path: Path) -> None:
    record = read(tmp_path, [*head(), *blocks("epoch_num", 1 / BLOCK)])
    assert record.steps == 0
    assert "their unit is unknown" in record.notes[0]


def test_a_loss_line_faster_than_its_block_means_an_evaluation_inside(tmp_path: Path) -> None:
    lines, now = [*head(), entry("run_start"), entry("block_start", samples_count=0)], 0.0
    for block in range(1, 6):
        for tenth in (1, 2):
            now += 10 * STEP
            lines.append(entry("train_loss", 2.0, now, samples_count=(block * 20 - 20 + tenth * 10) * BATCH))
        now += 4
        lines.append(entry("block_stop", None, now, samples_count=block * 20 * BATCH))
        lines.append(entry("block_start", None, now, samples_count=block * 20))
    assert "evaluation inside" in read(tmp_path, lines).notes[0]


def test_a_second_run_in_the_file_counts_anew(tmp_path: Path) -> None:
    once = [*head(), *blocks("samples_count", BATCH)]
    record = read(tmp_path, once + once)
    state = state_of(record)
    assert (record.steps, int(record.segment[-1]), round(state.value, 6)) == (16, 1, STEP)


@given(
    count=st.floats(0, 1e12), now=st.floats(-1e12, 1e12), key=st.sampled_from(["block_stop", "train_loss", "eval_stop"])
)
def test_any_marks_are_read_without_an_error(count: float, now: float, key: str) -> None:
    from harness.evidence.ingest.logs import mllog

    lines = [*head(), entry("block_start", samples_count=0), entry(key, None, now, samples_count=count)] * 2
    assert list(mllog.events(enumerate(lines, 1)))


@pytest.mark.parametrize(("text", "gpu", "gpus"), tabled("readers", "a_platform_says_what_it_says_and_no_more"))
def test_a_platform_says_what_it_says_and_no_more(text: str, gpu: str | None, gpus: int | None) -> None:
    facts = {event.key: event.value for event in platform(text)}
    assert (facts.get("gpu"), facts.get("gpus")) == (gpu, gpus)


def test_a_system_record_taken_without_its_gpus_says_nothing() -> None:
    record = {"number_of_nodes": "16", "accelerators_per_node": "8", "accelerator_model_name": "NVIDIA H200"}
    line = "+ echo ':::SYSJSON " + json.dumps(record) + "'"
    assert [event.value for event in system(line)] == ["NVIDIA H200", 128]
    assert not list(system(line.replace("NVIDIA H200", "No devices were found")))
    assert not list(system(":::SYSJSON {"))


@pytest.mark.parametrize("task", ["bert", "resnet", "flux1", "stable_diffusion", "dlrm_dcnv2"])
def test_other_benchmarks_are_named(tmp_path: Path, task: str) -> None:
    path = put(tmp_path / "result_0.txt", "\n".join([*head(task), *blocks("samples_count", BATCH)]) + "\n")
    (problem,) = refusal(read_log, path).problems
    assert problem.found.startswith(task)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("batch", "tp"), [(BATCH, 2), (BATCH + 1, None)])
def test_a_launchers_configuration_counts_where_it_makes_the_batch(tmp_path: Path, batch: int, tp: int | None) -> None:
    launch = "+ echo ':::DLPAL /a/b.sqsh 9113 4 worker-[1-4] 'unknown' DGXH200_4x8x16xtp2pp2cp2'"
    lines = [launch, *head(), entry("gradient_accumulation_steps", 16), *blocks("samples_count", batch)]
    record = read(tmp_path, [line.replace(f'"value": {BATCH},', f'"value": {batch},') for line in lines])
    assert record.stated.values.get("tensor_model_parallel_size") == tp
    values = translate(record.stated.values, "mllog")[0]
    assert (values.get("micro_batch_size"), values.get("world_size")) == ((1, 32) if tp else (None, None))


def test_a_platform_that_denies_the_system_record_is_a_doubt(tmp_path: Path) -> None:
    machines = {"number_of_nodes": "4", "accelerators_per_node": "8", "accelerator_model_name": "NVIDIA H200"}
    lines = [f":::SYSJSON {json.dumps(machines)}", entry("submission_platform", "8xNVIDIA DGX H200"), *head()]
    record = read(tmp_path, [*lines, *blocks("samples_count", BATCH)])
    assert record.facts["gpus"] == 32
    assert record.notes == ["32 GPUs by the system record, 64 by the platform's name"]
