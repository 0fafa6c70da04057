"""Trainers whose lines say all, and histories of one run as JSON lines or CSV."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from asked import put, refusal
from tabled import tabled

from harness.evidence.ingest.command import ingest
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.dialect import read_all
from harness.evidence.ingest.steady import state_of
from projector.errors import InputError

PLAIN = Path(__file__).resolve().parents[2] / "data" / "logs" / "megatron_plain.log"
#: Trainer, its line(s) of step ``{i}``, basis and value of a step, memory.
LINES = tabled("readers", "log_lines_that_say_all")


@pytest.mark.parametrize(("name", "line", "basis", "value"), LINES)
def test_a_line_that_says_all(tmp_path: Path, name: str, line: str, basis: str, value: float) -> None:
    path = put(tmp_path / "a.log", "".join(line.format(i=i) + "\n" for i in range(1, 12)))
    dialect, (record,) = read_records_of_log(path)
    state = state_of(record)
    assert (dialect, record.steps, record.basis, list(record.iteration[:2])) == (name, 11, basis, [1, 2])
    assert state.value == pytest.approx(value)


@pytest.mark.parametrize("first", [0, 1680])
def test_levanters_bar_rounds_its_numbers_beyond_a_thousand(tmp_path: Path, first: int) -> None:
    def bar(i: int) -> str:
        step, clock = first + 7 * i, timedelta(seconds=60 * i)
        shown = f"{step:.3g}it" if step < 1000 else f"{step / 1000:.2f}kit"
        return f"Progress on:train {shown}/10.0kit rate:1.0it/s remaining:2:00 elapsed:{clock} postfix:loss=2.5\n"

    dialect, (record,) = read_records_of_log(put(tmp_path / "a.log", "".join(map(bar, range(1, 140)))))
    assert (dialect, state_of(record).value) == ("levanter", pytest.approx(60 / 7, rel=0.03))
    assert record.loss[0] == 2.5


def test_gigabytes_and_bars(tmp_path: Path) -> None:
    path = put(tmp_path / "a.log", "".join(LINES[7][1].format(i=i) + "\n" for i in range(1, 9)))
    assert read_records_of_log(path)[1][0].memory["reserved"] == pytest.approx(2e9 / 2**30)
    bars = [f" 1|{i}|Loss: 1.25: 1%|x| {i}/900 [{i * 6 // 60:02d}:{i * 6 % 60:02d}<9:59, 6.00s/it]" for i in range(40)]
    for before, start in (("", " 1"), ("\n[trainer0|0]:", "1")):  # alone, and behind torchx's name of a rank
        dialect, (record,) = read_records_of_log(put(path, "\r".join(before + start + bar[2:] for bar in bars)))
        assert dialect == "torchtune"
        assert set(record.value) == {6.0}


def record_of(i: int) -> dict[str, object]:
    return {"step": i, "loss": 2.0, "mem": 20.0, "tps": 8000.0, "tps_per_gpu": 2000.0, "num_tokens_per_step": 16000}


TITAN = {"extras": {"throughput(tps)": 4500.0, "time_metrics/end_to_end(s)": 0.45, "memory/max_reserved(GiB)": 9.5}}
SWIFT = {"loss": 1.2, "memory(GiB)": 30.0, "train_speed(s/it)": 88.5}


@pytest.mark.parametrize(
    ("rows", "seconds", "framework"),
    [
        ([record_of(i) for i in range(12)], 2.0, "automodel"),  # a rate of the job; that of a rank is no GPU's
        ([TITAN | {"step": i} for i in range(1, 12)], 0.45, "torchtitan"),
        ([{"step": i, "step_time_ms": 1e3 * (1 + (i % 4 > 0)), "loss": 1.0} for i in range(200)], 1.75, None),
        (
            [
                SWIFT | {"global_step/max_steps": f"{i}/50", "elapsed_time": f"{i * 90 // 60}m {i * 90 % 60}s"}
                for i in range(1, 12)
            ],
            90.0,
            "hf-trainer",
        ),
        (
            [SWIFT | {"iteration": f"{i}/50", "elapsed_time": f"{i * 90 // 60}m {i * 90 % 60}s"} for i in range(1, 12)],
            90.0,
            "megatron-lm",
        ),
    ],
)
def test_json_lines(tmp_path: Path, rows: list[dict[str, object]], seconds: float, framework: str | None) -> None:
    (log,) = ingest([put(tmp_path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))]).logs
    assert (log.dialect, log.record.facts.get("framework")) == ("history", framework)
    assert log.run.measured.step_seconds == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("count", ["global_step/max_steps", "iteration"])
def test_a_clock_beside_the_loss_counts_where_no_bar_is_printed(tmp_path: Path, count: str) -> None:
    """Of ms-swift, whose bar goes to another stream: the records of its JSON lines as Python prints them."""
    rows = [SWIFT | {count: f"{i}/50", "elapsed_time": f"{i * 90 // 60}m {i * 90 % 60}s"} for i in range(1, 12)]
    bars = [f"Train: 4%|x| {i}/50 [{timedelta(seconds=80 * i)}<9:59, 80.0s/it]\n" for i in range(1, 12)]
    for before, seconds in ((["", *[""] * 10], 90.0), (bars, 80.0)):
        path = put(tmp_path / "a.log", "".join(f"{bar}{row}\n" for bar, row in zip(before, rows, strict=True)))
        dialect, (record,) = read_records_of_log(path)
        assert (dialect, state_of(record).value, record.memory) == ("hf-trainer", seconds, {"reserved": 30.0})


@pytest.mark.parametrize(("line", "kind", "gib"), tabled("readers", "log_lines_of_memory"))
def test_a_memory_is_read_to_its_last_digit_and_by_its_kind(tmp_path: Path, line: str, kind: str, gib: float) -> None:
    path = put(tmp_path / "a.log", "".join(line.format(i=i) + "\n" for i in range(1, 12)))
    assert read_records_of_log(path)[1][0].memory == {kind: pytest.approx(gib)}


@pytest.mark.parametrize("words", tabled("readers", "words_of_tokens_a_gpu"))
def test_the_rate_of_a_gpu_in_every_forks_words(tmp_path: Path, words: str) -> None:
    line = " iteration {i:8d}/ 100 | elapsed time per iteration (ms): 500.0 | {words}: 9000.5 | learning rate: 1e-4 |\n"
    path = put(tmp_path / "a.log", "".join(line.format(i=i, words=words) for i in range(1, 12)))
    assert set(read_records_of_log(path)[1][0].tokens) == {9000.5}


def test_the_rate_between_two_seconds_of_a_clock_is_that_of_all_records(tmp_path: Path) -> None:
    """Steps of 0.5 s on a clock of whole seconds: long sequences fall on those that advance it."""
    path = tmp_path / "logging.jsonl"
    rows = ({"global_step/max_steps": f"{i}/900", "elapsed_time": f"{i // 2}s"} for i in range(1, 60))
    path.write_text(
        "".join(json.dumps(row | {"tokens_per_gpu_per_sec": 900 - 400 * (i % 2)}) + "\n" for i, row in enumerate(rows))
    )
    (log,) = ingest([path]).logs
    assert log.run.measured.tgs == pytest.approx(700, rel=0.02)


@pytest.mark.parametrize(("line", "device", "gpu"), tabled("readers", "a_log_names_its_device"))
def test_a_log_names_its_device_and_one_that_nobody_knows_is_said(line: str, device: str, gpu: str, tmp_path) -> None:
    path = put(tmp_path / "a.log", line + "\n" + "".join(f"iter {i}: loss 3.4, time 92.16ms\n" for i in range(20)))
    (log,) = read_log(path, incomplete=True).logs
    assert (log.run.gpu, log.record.facts.get("gpu", "")) == (gpu, device)
    assert log.row.doubts == ((f"GPU {device} by the log, of no name in the catalogue",) if device and not gpu else ())
    (whole,) = read_log(put(path, line + "\n" + PLAIN.read_text())).logs
    unknown = f"unknown gpu {device!r}, expected a known name"
    assert gpu or whole.row.refused[0].startswith(unknown if device else "gpu not stated")
    assert any(text.startswith(unknown) for text in log.row.refused) is bool(device and not gpu)
    assert ("gpu", "--gpu NAME") in log.row.missing or gpu
    (other,) = read_log(path, read_context(None, gpu="mi300x"), incomplete=True).logs
    overruled = f"GPU mi300x, as the user says; {gpu or device} by the log"
    assert (overruled in other.row.doubts) is bool(device)


def test_two_runs_at_once_in_one_log_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    pairs = ((i + 40, i) for i in range(20))
    path.write_text("".join(f"iter {i}: loss 3.4, time 92.16ms\n" for pair in pairs for i in pair))
    (log,) = read_log(path, incomplete=True).logs
    assert any(doubt.endswith("times: several runs at once in one log?") for doubt in log.row.doubts)


TORN = {
    "megatron": " iteration {i:8d}/ 1000 | consumed samples: {i:12d} | elapsed time per iteration (ms): 30123.4 | "
    "learning rate: 1.0E-04 | global batch size:   512 | lm loss: 2.000000E+00 | number of skipped iterations:   0 |",
    "nanogpt": "iter {i}: loss 3.4575, time 30123.45ms, mfu 41.23%",
    "torchtitan": "[titan] 2025-01-01 10:00:00,000 - root - INFO - step: {i:2d}  loss:  8.1234  memory: 45.12GiB(56.94%)  "
    "tps: 7,412  tflops: 123.45  mfu: 41.20%",
}


@pytest.mark.parametrize("name", TORN)
def test_a_figure_torn_over_two_lines_is_no_smaller_one(tmp_path: Path, name: str) -> None:
    """Of lines wrapped at every width: a step has its whole time or rate, or the log says that it has none."""
    path = tmp_path / "a.log"
    lines = [TORN[name].format(i=i) for i in range(1, 12)]
    for width in range(20, max(map(len, lines)) + 1):
        path.write_text("".join(f"{line[at : at + width]}\n" for line in lines for at in range(0, len(line), width)))
        try:
            (log,) = read_log(path, incomplete=True).logs
        except InputError:
            continue
        measured = log.run.measured
        assert measured.step_seconds == pytest.approx(30.1234, rel=1e-4) or measured.tgs == pytest.approx(7412), width


@pytest.mark.parametrize("ahead", range(1, 8))
def test_two_runs_a_few_steps_apart_in_one_log_are_said(tmp_path: Path, ahead: int) -> None:
    path = tmp_path / "a.log"
    pairs = ((f"iter {i + ahead}: loss 3.4, time 50.0ms", f"iter {i}: loss 3.4, time 90.0ms") for i in range(30))
    (log,) = read_log(put(path, "".join(f"{line}\n" for pair in pairs for line in pair)), incomplete=True).logs
    assert any(doubt.endswith("another time: several runs in one log?") for doubt in log.row.doubts)
    path.write_text(path.read_text().replace("90.0", "50.0"))  # ranks that print out of turn
    (log,) = read_log(path, incomplete=True).logs
    assert log.row.doubts == ()


def test_an_export_is_a_history_and_a_table_of_runs_is_none(tmp_path: Path) -> None:
    path = tmp_path / "wandb.csv"
    rows = "".join(f"{i},{30.5 + 25 * i},2.1\n" for i in range(12))
    (log,) = ingest([put(path, f'"_step","_runtime","train/loss"\n{rows}')]).logs
    assert (log.dialect, log.run.measured.step_seconds) == ("history", 25.0)
    # W&B counts records, the trainer its steps: 25 s pass in ten of them
    rows = "".join(f"{2 * i},{30.5 + 25 * i},{10 * i},2.1\n{2 * i + 1},{31 + 25 * i},,\n" for i in range(12))
    path.write_text(f'"_step","_runtime","train/global_step","train/loss"\n{rows}')
    assert ingest([path]).logs[0].run.measured.step_seconds == 2.5
    rows = "".join(f"{1700000000.25 + 25 * i},{5 * i},2.1\n" for i in range(12))
    (log,) = ingest([put(path, f"Wall time,Step,Value\n{rows}")]).logs
    assert (log.dialect, log.run.measured.step_seconds, log.row.read[-1].startswith("loss")) == ("history", 5.0, False)
    refusal(ingest, [put(path, f"step,tps\n{rows}")], match="columns of a run")
    assert ingest([put(path, "model,gpu,step,step_seconds\nllama2_7b,H100,1,2.5\n")]).logs == ()


def test_records_before_the_trainers_first_count_no_steps(tmp_path: Path) -> None:
    """W&B's own counter stands alone until the trainer logs: it is no step of the run."""
    rows = [{"_step": i, "_runtime": 30.0 * i, "memory": 1.0} for i in range(3)]
    rows += [{"_step": i, "_runtime": 30.0 * i, "train/global_step": 10 * i} for i in range(3, 20)]
    path = put(tmp_path / "history.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    _, (record,) = read_records_of_log(path)
    assert state_of(record).value == 3.0


def test_rates_that_are_none_of_a_gpus_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    line = "step {} | epoch 0 | loss 1.4 | mem 15.10 GiB | tps 2512.06(1256.03/gpu) | num_label_tokens 2056\n"
    refusal(read_log, put(path, "".join(map(line.format, range(9)))), match="data-parallel rank")
    path.write_text("[batch=1/9]:\n    Train throughput/device/tokens_per_sec: 1255.17\n")
    refusal(read_log, path, match="window of batches")


def test_every_macro_of_a_dialect_is_known() -> None:
    """What no macro replaces would be the end of a line and more behind it, and never match."""
    for each in read_all():
        written = (*each.steps.values(), *each.figures.values(), *each.memory.values(), *each.quotient)
        for pattern in (*written, each.heads, each.gpus, each.settings, each.checkpoint, each.evaluation):
            assert re.search(r"\$\{?[a-z]", each.compiled(pattern).pattern) is None, (each.name, pattern)


@pytest.mark.parametrize(
    ("text", "said"), [("step: {}", "step: found"), ("steps: [x]", "steps: found"), ("[a]", "a mapping")]
)
def test_a_dialect_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    refusal(read_all, tmp_path, match=said)
