"""Iteration lines of Megatron-LM and of what is built on it (Primus, Megatron-Bridge, Megatron-DeepSpeed).

Shapes (facts of Primus' log formats, 2025-04 to 2026-08): plain; ``value/average`` pairs; memory as a ratio
(``mem usages``), or as ``hip mem usage/free/total/usage_ratio`` in GB or GiB, anywhere in the line; ``throughput`` or
``compute per GPU``; ``tokens per GPU`` or ``tokens/s/GPU inst/harmonic mean``. Any prefix, ANSI colours, seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Iteration", "iterations", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One logged step; values are those of the step itself, never the running average printed beside them."""

    number: int
    seconds: float
    global_batch_size: int | None = None
    tflops: float | None = None
    tokens_per_s_per_gpu: float | None = None
    memory_gib: float | None = None
    memory_total_gib: float | None = None
    memory_ratio: float | None = None
    world: int | None = None
    seq_length: int | None = None
    skipped: bool = False


_N = r"([\d,]+(?:\.\d+)?)"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+")
_ELAPSED = re.compile(rf"elapsed time per iteration\s*\((ms|s)\):\s*{_N}")
_TFLOPS = re.compile(rf"(?:(?:compute|throughput) per GPU\s*\(TFLOP/s/GPU\)|\bTFLOP/s/GPU|\bTFLOPs):\s*{_N}")
_TOKENS = re.compile(rf"(?:tokens per GPU\s*\(tokens/s/GPU\)|tokens/s/GPU\s+inst/harmonic mean):\s*{_N}")
_HIP = re.compile(rf"hip mem usage/free/total/usage_ratio:\s*{_N}\s*Gi?B/{_N}\s*Gi?B/{_N}\s*Gi?B/")
_TITAN = re.compile(rf"memory usage/free/total:\s*{_N}\s*GiB/{_N}")
_RATIO = re.compile(r"mem usages:\s*([\d.]+)")
_GBS = re.compile(r"global batch size:\s*(\d+)")
_SKIPPED = re.compile(r"number of skipped iterations:\s*(\d+)")
_RANK = re.compile(r"\[rank-\d+/(\d+)\]")
_SEQ = re.compile(r"\bseq_length:\s*(\d+)")


def plain(text: str) -> str:
    """The text without ANSI colours."""
    return _ANSI.sub("", text)


def iterations(text: str) -> list[Iteration]:
    """Every iteration once, in order of its number; of repeated lines (several ranks, restarts) the last counts."""
    found: dict[int, Iteration] = {}
    for line in text.splitlines():
        if "iteration" in line and (step := _iteration(plain(line))):
            found[step.number] = step
    return [found[number] for number in sorted(found)]


def _iteration(line: str) -> Iteration | None:
    number, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
    if not number or not elapsed:
        return None
    seconds = _float(elapsed[2]) / (1000 if elapsed[1] == "ms" else 1)
    memory = _HIP.search(line)
    titan = _TITAN.search(line)
    skipped = _SKIPPED.search(line)
    return Iteration(
        number=int(number[1]),
        seconds=seconds,
        global_batch_size=_whole(_GBS.search(line)),
        tflops=_first(_TFLOPS.search(line)),
        tokens_per_s_per_gpu=_first(_TOKENS.search(line)),
        memory_gib=_first(memory) if memory else _first(titan),
        memory_total_gib=_float(memory[3]) if memory else None,
        memory_ratio=_first(_RATIO.search(line)),
        world=_whole(_RANK.search(line)),
        seq_length=_whole(_SEQ.search(line)),
        skipped=skipped is not None and int(skipped[1]) > 0,
    )


def _float(text: str) -> float:
    return float(text.replace(",", ""))


def _first(match: re.Match[str] | None) -> float | None:
    return _float(match[1]) if match else None


def _whole(match: re.Match[str] | None) -> int | None:
    return int(match[1]) if match else None
