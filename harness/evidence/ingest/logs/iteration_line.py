"""The iteration line of Megatron-LM and of the trainers built on it.

Shapes (facts of AMD-AGI/Primus' log formats, 2025-04 to 2026-08): plain; ``value/average`` pairs; memory as a ratio
(``mem usages``), or as ``hip mem usage/free/total/usage_ratio`` in GB or GiB anywhere in the line (both mean 2**30);
``throughput`` or ``compute per GPU``; ``tokens per GPU`` or ``tokens/s/GPU inst/harmonic mean``; Megatron-Bridge's
``seq_length``; Megatron-DeepSpeed's seconds, ``TFLOPs`` and ``samples per second``; torchtitan under Primus with
``memory usage/free/total``; ``key=value`` with underscores (Megatron-DeepSpeed of argonne-lcf). Any prefix. Of a pair
the first value counts: that of the step.
"""

from __future__ import annotations

import re

from harness.evidence.ingest.logs.events import Step
from harness.evidence.ingest.logs.numbers import NUMBER, count, group, loss, measure, measured

#: Behind a number: at a line's end it may be broken off.
_GOES_ON = r"(?=\s{0,40}[^\s0-9.,])"
_NUMBERED = r"iteration(?:\s{1,40}|:\s{1,40}|=\s{0,40})([0-9]{1,18})\s{0,40}[/|]"
_ITERATION = re.compile(_NUMBERED)
#: A line with its time, from its start.
ITERATION = rf"^(?=.*elapsed(?: time per iteration|_time_per_iteration_ms=))(?:.*?){_NUMBERED}"
_ELAPSED = re.compile(rf"elapsed time per iteration\s?\((ms|s)\):\s{{0,20}}{NUMBER}")
_TFLOPS = re.compile(rf"TFLOPs?(?:/s/GPU\)?)?:\s{{0,20}}{NUMBER}")
_TOKENS = re.compile(
    rf"(?:tokens/s/GPU(?:\)|\s{{1,9}}inst/harmonic mean)|tokens per gpu per second \(tgs\)|tokens/sec/gpu|"
    rf"tokens-per-second-per-gpu):\s{{0,20}}{NUMBER}"
    rf"{_GOES_ON}"
)
_SAMPLES = re.compile(rf"samples per second:\s{{0,20}}{NUMBER}")
_DEVICE = re.compile(rf"(?:hip|rocm) mem usage/free/total/usage_ratio:\s{{0,20}}{NUMBER}\s?Gi?B/")
_FULLEST = re.compile(rf"max mem usage/usage_ratio:\s{{0,20}}{NUMBER}\s?Gi?B/")
_RESERVED = re.compile(rf"memory usage/free/total:\s{{0,20}}{NUMBER}\s?GiB/")
_MAX_RESERVED = re.compile(
    rf"max_memory_reserved\(GB\):\s{{0,20}}{NUMBER}{_GOES_ON}"
)  # of MindSpeed-LLM, which divides by 2**30
_RATIO = re.compile(r"mem usages:\s{0,20}([0-9]*\.[0-9]+)")
_BATCH = re.compile(rf"(?:global|gloabl) batch size:\s{{0,20}}([0-9,]{{1,24}}){_GOES_ON}")
_SKIPPED = re.compile(r"number of skipped iterations:\s{0,20}([0-9]{1,18})")
_LENGTH = re.compile(rf"(?:\bseq_length|actual seqlen):\s{{0,20}}([0-9,]{{1,24}}){_GOES_ON}")


_KEYED = "elapsed_time_per_iteration_ms="
#: Fields of the ``key=value`` shape, in the words of the other; its ``[DS]TFLOPs`` count what DeepSpeed's profiler does.
_SPELLED = (
    ("elapsed_time_per_iteration_ms=", "elapsed time per iteration (ms): "),
    ("global_batch_size=", "global batch size: "),
    ("actual_seqlen=", "actual seqlen: "),
    ("samples_per_second=", "samples per second: "),
    ("tokens_per_gpu_per_second_tgs=", "tokens/s/GPU): "),
    ("[DS]-TFLOPs=", ""),
    ("[DS]TFLOPs=", ""),
    ("TFLOPs=", "TFLOPs: "),
    ("number_of_skipped_iterations=", "number of skipped iterations: "),
)


def has_time(line: str) -> bool:
    """Returns whether the line may be an iteration line: the cheap question, asked of every line of a log."""
    return "elapsed" in line and ("elapsed time per iteration" in line or _KEYED in line)


def step(line: str, number: int) -> Step | None:
    """Returns the step of a line; None for another line or one that was cut before its time."""
    if _KEYED in line:
        for theirs, ours in _SPELLED:
            line = line.replace(theirs, ours)
    elapsed = _ELAPSED.search(line)
    iteration = _ITERATION.search(line, 0, elapsed.start()) if elapsed else None
    if elapsed is None or iteration is None or not _whole_number(elapsed, line) or not (time := measured(elapsed[2])):
        return None
    rest = elapsed.end()
    skipped = _SKIPPED.search(line, rest) if "skipped" in line else None
    gib, kind, ratio = _memory(line)
    return Step(
        int(iteration[1]),
        time / 1000 if elapsed[1] == "ms" else time,
        number,
        group(_TOKENS.search(line, rest)) if "tokens" in line else None,
        measure(_SAMPLES.search(line, rest)) if "samples per" in line else None,
        group(_TFLOPS.search(line, rest)) if "FLOP" in line else None,
        count(_BATCH.search(line, rest)),
        gib,
        kind,
        ratio,
        count(_LENGTH.search(line, rest)) if "seq" in line else None,
        skipped is not None and skipped[1][0] != "0",
        loss(line),
    )


def _whole_number(elapsed: re.Match[str], line: str) -> bool:
    """Returns whether the time was printed to its end: a line cut in the middle of a number shows a smaller one. All shapes
    print decimals."""
    return bool(line[elapsed.end() :].strip()) or "." in elapsed[2][:-1]


def _memory(line: str) -> tuple[float | None, str | None, float | None]:
    """Returns (GiB, their kind, share of the device) of the memory that the line states."""
    if "mem" not in line:
        return None, None, None
    marked = (
        ("max mem", _FULLEST, "device"),
        (" mem usage/", _DEVICE, "device"),
        ("memory usage/", _RESERVED, "reserved"),
        ("max_memory_reserved", _MAX_RESERVED, "reserved"),
    )
    for mark, pattern, kind in marked:
        if mark in line and (used := pattern.search(line)):
            return measured(used[1]), kind, None
    return None, None, group(_RATIO.search(line)) if "mem usages" in line else None
