"""Arguments, lines and user against each other: what is refused, what is doubted, and what is neither."""

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from asked import LOGS, put, refusal
from hypothesis import given
from hypothesis import strategies as st

from harness.__main__ import main
from harness.contracts.runs import MeasuredRun
from harness.evidence import dataset
from harness.evidence.ingest.command import load
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.dialects import read_log
from projector.errors import InputError

TEXT = (LOGS / "megatron_c.log").read_text()


def changed(pattern: str, replacement: str) -> str:
    made = re.sub(pattern, replacement, TEXT)
    assert made != TEXT
    return made


def argument(name: str, value: object) -> str:
    return changed(rf"({name} \.+) \S+", rf"\g<1> {value}")


def honest() -> str:
    """The log with the TFLOP/s that its step time, model and batch give."""
    return changed(r"(TFLOP/s/GPU\): )[0-9.]+/[0-9.]+", r"\g<1>1150.0/1150.0")


PRODUCT, TWO = "tp x pp x cp", "2 x 1 x 1 = 2"
REFUSED = (
    ("global_batch_size", 256, "line 46: global batch size: found 128, expected 256, as the arguments of line 3 say"),
    (
        "data_parallel_size",
        2,
        f"line 3: data_parallel_size: found 2, expected 4: world_size 8 over {PRODUCT} = 2 x 1 x 1 = 2",
    ),
    ("tensor_model_parallel_size", 3, f"line 3: world_size: found 8, expected a multiple of {PRODUCT} = 3 x 1 x 1 = 3"),
    (
        "pipeline_model_parallel_size",
        3,
        f"line 3: world_size: found 8, expected a multiple of {PRODUCT} = 2 x 3 x 1 = 6",
    ),
    (
        "micro_batch_size",
        3,
        "line 3: global_batch_size: found 128, expected a multiple of micro_batch_size x data-parallel ranks = 3 x 4",
    ),
)


@pytest.mark.parametrize(("name", "value", "line"), REFUSED)
def test_what_is_refused(name: str, value: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path / "x.log", argument(name, value))
    out = tmp_path / "out"
    assert main(["ingest", str(path), "--gpu", "mi300x", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out.startswith(f"x ({path}): refused\n  read: step 6 s (median of 11 steps")
    assert f"  refused: {line}\n" in said.out
    assert said.err.splitlines() == [f"{path}: {line}"]
    assert not out.exists()


def doubts(text: str, folder: Path) -> list[str]:
    path = put(folder / "x.log", text)
    (row,) = load(path).rows
    return [doubt.removeprefix(f"{path}: ") for doubt in row.doubts]


def printing(rate: float) -> str:
    return re.sub(r"(tokens/s/GPU\): )[0-9.]+/[0-9.]+", rf"\g<1>{rate}/{rate}", honest())


def test_rates_that_the_step_time_does_not_quite_give_are_doubts(tmp_path: Path) -> None:
    assert doubts(honest(), tmp_path) == []
    (rate,) = doubts(TEXT, tmp_path)
    assert rate == (
        "TFLOP/s/GPU: found 480.0, expected 1053 to 1570, by step time, model and batch, as frameworks count FLOP"
    )
    (said,) = doubts(printing(21000.0), tmp_path)
    assert said.startswith("tokens/s/GPU: found 21000.0, expected 21845.3, by global_batch_size x seq_length over")


@given(factor=st.floats(1.06, 100.0), above=st.booleans())
def test_a_rate_that_the_step_time_denies_is_refused_with_both(factor: float, above: bool) -> None:
    """Batch, sequence, step time and GPUs make a rate; where a log prints another one, one of them is wrong."""
    printed = round(21845.3 * (factor if above else 1 / factor), 1)
    with TemporaryDirectory() as folder, pytest.raises(InputError) as caught:
        doubts(printing(printed), Path(folder))
    (problem,) = caught.value.problems
    assert (problem.key, problem.found) == ("tokens/s/GPU", pytest.approx(printed, rel=1e-3))
    assert "21845.3, by global_batch_size x seq_length over step time and GPUs" in problem.expected


def stamped(seconds: float, rate: int, name: str = "[titan]") -> str:
    """120 steps of torchtitan whose clock goes on by ``seconds``."""
    start = datetime(2026, 1, 31, 23, 58)
    stamps = (f"{start + timedelta(seconds=i * seconds):%Y-%m-%d %H:%M:%S},{i:03d}" for i in range(120))
    line = "INFO - step: {:3d}  loss:  8.1  memory: 95.23GiB(49.6%)  tps: {:,}  mfu: 41.00%\n"
    return "".join(f"{name} {stamp} - root - {line.format(i, rate)}" for i, stamp in enumerate(stamps, start=1))


BESIDE = "{model: llama3.1_8b, gpu: mi300x, gpus: 64, recipe: {micro_batch_size: 2, seq_length: 8192, %s}}"


@given(seconds=st.floats(1.0, 40.0), factor=st.sampled_from([1 / 64, 0.5, 1.0, 2.0, 16.0]))
def test_a_step_that_follows_from_a_rate_is_what_the_clock_says(seconds: float, factor: float) -> None:
    """A batch that nobody ran shows: the time that it would take is not that between the lines."""
    with TemporaryDirectory() as folder:
        log, beside = Path(folder) / "x.log", Path(folder) / "beside.yaml"
        log.write_text(stamped(seconds, round(128 * 8192 / 64 / seconds)))
        beside.write_text(BESIDE % f"global_batch_size: {round(128 * factor)}")
        if factor == 1.0:
            (run,) = load(log, None, read_context(beside)).runs
            assert run.measured.step_seconds == pytest.approx(seconds, rel=0.01)
            return
        caught = refusal(load, log, None, read_context(beside))
    (problem,) = caught.problems
    assert (problem.key, problem.found) == (
        "step_seconds from tokens a second",
        pytest.approx(seconds * factor, rel=0.01),
    )
    assert float(problem.expected.partition(",")[0]) == pytest.approx(seconds, rel=0.05)


def test_a_step_that_is_printed_is_doubted_by_the_clock(tmp_path: Path) -> None:
    """What stands between two steps may be no part of either."""
    head, body = steps()
    clocks = (f"[2026-01-01 10:{i // 6:02d}:{i % 6 * 10:02d}] {line}" for i, line in enumerate(body))
    lines = list(clocks)
    for text in (head + lines, lines):  # without its arguments, too
        (log,) = read_log(put(tmp_path / "a.log", "\n".join(text) + "\n"), incomplete=True).logs
        assert log.row.doubts == ("step time: found 6.02, expected 10 s, as the time of day goes on",)


def steps() -> tuple[list[str], list[str]]:
    """(head, forty iteration lines with 6.0 s and a few hundredths)."""
    lines = re.sub(r"tokens per GPU[^|]*\| ", "", honest()).splitlines()
    first = next(i for i, line in enumerate(lines) if "elapsed time per iteration" in line)
    body = [
        re.sub(
            r"\(ms\): [\d.]+/[\d.]+",
            f"(ms): {6000 + 10 * (i % 5)}.0/6000.0",
            re.sub(r"iteration\s+\d+/\s+\d+", f"iteration {i:8d}/ 40", lines[first]),
        )
        for i in range(1, 41)
    ]
    return lines[:first], body


def test_a_restart_has_its_own_warm_up_and_its_failure_is_over(tmp_path: Path) -> None:
    head, body = steps()
    slow = [line.replace("(ms): 60", "(ms): 90") for line in body[20:25]]
    died = "[rank0]: RuntimeError: NCCL error: remote process exited"
    path = put(tmp_path / "x.log", "\n".join([*head, *body[:30], died, *head, *slow, *body[25:]]) + "\n")
    (log,) = load(path).logs
    assert int(log.record.segment[-1]) == 1
    assert log.row.doubts == ()
    assert [(cut.reason, cut.steps) for cut in log.state.cuts] == [("warm-up", 10)]
    (doubt,) = load(put(path, "\n".join([*head, *body[:30], died]) + "\n")).rows[0].doubts
    assert "the job failed: RuntimeError: NCCL error" in doubt


def test_a_restart_is_drawn_in_the_order_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.cli import ingest_view

    head, body = steps()
    path = put(tmp_path / "x.log", "\n".join([*head, *body[:30], *head, *body[10:]]) + "\n")
    seen: list[str] = []
    places = ingest_view._places
    monkeypatch.setattr(ingest_view, "_places", lambda record: seen.append(places(record)[1]) or places(record))
    assert main(["ingest", str(path), "--gpu", "mi300x", "--out", str(tmp_path / "out")]) == 0
    assert seen == ["logged step (iterations 1 to 40; dotted: 2 starts)"]
    assert (tmp_path / "out" / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("packed", [False, True])
def test_answers_at_their_own_lengths_have_no_rate(packed: bool, tmp_path: Path) -> None:
    """MindSpeed-LLM's --no-pad-to-seq-lengths: the longest sample would make the rate too high. Packed samples are whole."""
    said = {"no_pad_to_seq_lengths": True, "is_instruction_dataset": True, "neat_pack": packed}
    head = re.search(r"(.*)add_bias_linear \.+ \S+\n", TEXT)
    lines = "".join(f"{head[1]}{name} {'.' * 40} {value}\n" for name, value in said.items())
    (run,) = read_log(put(tmp_path / "a.log", TEXT.replace(head[0], head[0] + lines)), incomplete=True).runs
    assert run.measured.step_seconds == pytest.approx(6.0)
    assert ("no_pad_to_seq_lengths" in run.problem) == (not packed)
    assert "how long these are" in run.problem or packed


# Runs of one source that do the same work a token must agree on it: step time times TFLOP/s over tokens.

ROUNDING = 1.06


def contradictions(runs: Iterable[MeasuredRun]) -> list[str]:
    """Sources and ids of runs of the same model on the same samples whose printed figures say different FLOPs a token."""
    counted: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for run in runs:
        said = run.measured
        computed = any(line.startswith(("step_seconds", "tflops")) for line in said.derived)
        if run.problem or run.doubt or computed or not said.step_seconds or not said.tflops_per_gpu:
            continue
        work, recipe = run.workload, run.workload.recipe
        same = (str(run.source), work.model, recipe.seq_length, recipe.recompute_granularity)
        counted[same][run.id] = said.step_seconds * said.tflops_per_gpu * run.gpus / work.tokens_per_step
    return [
        f"{same[0]}: {found}" for same, found in counted.items() if max(found.values()) > ROUNDING * min(found.values())
    ]


def test_sources_agree_with_themselves(root: Path) -> None:
    """Rows that nobody had seen are read after their first look; what contradicts itself there is not doubted yet."""
    files = (root / "measured" / "runs").glob("[!u]*.yaml")
    assert contradictions(run for path in sorted(files) for run in dataset.read(path)) == []


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_rate_of_deepspeed_is_what_the_clock_says_too(tmp_path: Path, factor: float) -> None:
    """Its steps wait until it is clear that Megatron-LM prints none."""
    timer = "[INFO] [timer.py:199:stop] global_step={}, RunningAvgSamplesPerSec=32.1, CurrSamplesPerSec=32.0"
    lines = (f"[2023-04-18 01:{at // 60:02d}:{at % 60:02d},171] {timer.format(at // 4)}\n" for at in range(0, 3200, 40))
    log = put(tmp_path / "x.log", "".join(lines))
    recipe = f"{{micro_batch_size: 2, global_batch_size: {round(128 * factor)}, seq_length: 512}}"
    beside = put(tmp_path / "beside.yaml", f"{{model: llama3.1_8b, gpu: h100, gpus: 8, recipe: {recipe}}}")
    if factor == 1.0:
        (run,) = load(log, None, read_context(beside)).runs
        assert run.measured.step_seconds == pytest.approx(4.0)
    else:
        assert "as the time of day" in str(refusal(load, log, None, read_context(beside)))
