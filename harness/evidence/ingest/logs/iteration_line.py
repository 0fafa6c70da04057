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
from harness.evidence.ingest.logs.numbers import NUMBER, group, loss, measure, measured, whole

#: Behind a number: at a line's end it may be broken off.
_GOES_ON = r"(?=\s{0,40}[^\s0-9.,])"
_ITERATION = re.compile(r"iteration(?:\s{1,40}|:\s{1,40}|=\s{0,40})([0-9]{1,18})\s{0,40}[/|]")
_ELAPSED = re.compile(rf"elapsed time per iteration\s?\((ms|s)\):\s{{0,20}}{NUMBER}")
_TFLOPS = re.compile(rf"TFLOPs?(?:/s/GPU\)?)?:\s{{0,20}}{NUMBER}")
_TOKENS = re.compile(
    rf"(?:tokens/s/GPU(?:\)|\s{{1,9}}inst/harmonic mean)|tokens per gpu per second \(tgs\)):\s{{0,20}}{NUMBER}"
    rf"{_GOES_ON}"
)
_SAMPLES = re.compile(rf"samples per second:\s{{0,20}}{NUMBER}")
_DEVICE = re.compile(rf"(?:hip|rocm) mem usage/free/total/usage_ratio:\s{{0,20}}{NUMBER}\s?Gi?B/")
_FULLEST = re.compile(rf"max mem usage/usage_ratio:\s{{0,20}}{NUMBER}\s?Gi?B/")
_RESERVED = re.compile(rf"memory usage/free/total:\s{{0,20}}{NUMBER}\s?GiB/")
_RATIO = re.compile(r"mem usages:\s{0,20}([0-9]*\.[0-9]+)")
_BATCH = re.compile(rf"(?:global|gloabl) batch size:\s{{0,20}}([0-9,]{{1,24}}){_GOES_ON}")
_SKIPPED = re.compile(r"number of skipped iterations:\s{0,20}([1-9])")
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
    """Whether the line may be an iteration line: the cheap question, asked of every line of a log."""
    return "elapsed" in line and ("elapsed time per iteration" in line or _KEYED in line)


def is_step(line: str) -> bool:
    """Whether the line is an iteration line with its time."""
    return has_time(line) and _ITERATION.search(line) is not None


def step(line: str, number: int) -> Step | None:
    """The step of a line, None where it is none or was cut before its time."""
    if _KEYED in line:
        for theirs, ours in _SPELLED:
            line = line.replace(theirs, ours)
    elapsed = _ELAPSED.search(line)
    if elapsed is None:
        return None
    iteration = _ITERATION.search(line, 0, elapsed.start())
    seconds = measured(elapsed[2])
    if iteration is None or not seconds or not _whole_number(elapsed, line):
        return None
    rest = elapsed.end()
    batch = _BATCH.search(line, rest)
    memory, kind, ratio = _memory(line)
    length = _LENGTH.search(line, rest) if "seq" in line else None
    return Step(
        iteration=int(iteration[1]),
        seconds=seconds / 1000 if elapsed[1] == "ms" else seconds,
        line=number,
        tokens_per_s=group(_TOKENS.search(line, rest)),
        samples_per_s=measure(_SAMPLES.search(line, rest)) if "samples per" in line else None,
        tflops=group(_TFLOPS.search(line, rest)),
        global_batch_size=whole(batch[1]) if batch else None,
        memory_gib=memory,
        memory_kind=kind,
        memory_ratio=ratio,
        seq_length=whole(length[1]) if length else None,
        skipped=_SKIPPED.search(line, rest) is not None,
        loss=loss(line),
    )


def _whole_number(elapsed: re.Match[str], line: str) -> bool:
    """Whether the time was printed to its end: a line that is cut or wrapped in the middle of a number says a smaller
    one. All shapes print decimals."""
    return bool(line[elapsed.end() :].strip()) or "." in elapsed[2][:-1]


def _memory(line: str) -> tuple[float | None, str | None, float | None]:
    """(GiB, kind, ratio) that the line states."""
    if "mem" not in line:
        return None, None, None
    if (fullest := _FULLEST.search(line)) or (fullest := _DEVICE.search(line)):
        return measured(fullest[1]), "device", None
    if reserved := _RESERVED.search(line):
        return measured(reserved[1]), "reserved", None
    return None, None, group(_RATIO.search(line))
