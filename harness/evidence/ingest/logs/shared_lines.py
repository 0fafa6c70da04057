"""Lines that every PyTorch trainer may print: the GPU's name, failures, checkpoints, evaluations, memory of a rank."""

from __future__ import annotations

import re

from harness.evidence.ingest.logs.events import Event, Fact, Failure, Mark, Memory
from harness.evidence.ingest.logs.numbers import NUMBER, measured

_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP) out of memory|RESOURCE_EXHAUSTED")
_ERROR = re.compile(
    r"^(?:\[[^\]]{0,80}\]:?\s?)?(?:[A-Za-z.]{0,60}Error: |primus launcher exited with code [1-9])|NCCL error"
)
#: A device's name ends before a word in small letters: ``CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory``.
_GPU = re.compile(
    r"(AMD Instinct MI[0-9]{3}[A-Z]?|(?:NVIDIA [A-Z]{1,2}[0-9]{1,4}[A-Z]?|Tesla [A-Z][0-9]{1,3}|"
    r"NVIDIA (?:GeForce |Quadro |TITAN ){0,1}(?:RTX|GTX) [A-Z]?[0-9]{3,4})\b(?:[ -][A-Z0-9][\w.-]{0,15}){0,4})"
)
_MEMORY = re.compile(
    rf"memory \(MB\).{{0,200}}?max allocated:\s{{0,9}}{NUMBER}(?:.{{0,200}}?max reserved:\s{{0,9}}{NUMBER})?"
)
_RANK = re.compile(r"\[rank-?[0-9]{1,7}/([0-9]{1,7})\]")
_SAVED = (
    "saving checkpoint at iteration",
    "successfully saved checkpoint",
    "Saving the checkpoint",
    "saved a checkpoint",
)
_EVALUATED = ("validation loss at iteration", "Validation completed", "eval metrics after step", "validate step:")
_LONG = 600  # characters: these lines are short, and long ones are read for their steps alone
_MIB_PER_GIB = 1024  # Megatron-LM's "MB" is 2**20 bytes


def shared(line: str, number: int, seen: set[str]) -> Event | None:
    """Returns the event of a line, None for most. ``seen``: keys of facts already given (a log repeats them per rank)."""
    if len(line) > _LONG:
        return None
    if "memory (MB)" in line and (match := _MEMORY.search(line)):
        reserved = match[2] is not None
        used = measured(match[2] if reserved else match[1])
        return Memory(used / _MIB_PER_GIB, "reserved" if reserved else "allocated") if used else None
    if any(text in line for text in _SAVED):
        return Mark.CHECKPOINT
    if any(text in line for text in _EVALUATED):
        return Mark.EVALUATION
    if "rror" in line or "out of memory" in line or "exited with code" in line or "EXHAUSTED" in line:
        if _OUT_OF_MEMORY.search(line):
            return Failure("out-of-memory", line.strip()[:200], number)
        if _ERROR.search(line):
            return Failure("error", line.strip()[:200], number)
        return None
    return _gpu_fact(line, seen)


def _gpu_fact(line: str, seen: set[str]) -> Fact | None:
    if "gpu" not in seen and ("Instinct" in line or "NVIDIA" in line or "Tesla" in line) and (gpu := _GPU.search(line)):
        seen.add("gpu")
        return Fact("gpu", gpu[1].strip())
    if "ranks" not in seen and "[rank" in line and (rank := _RANK.search(line)):
        seen.add("ranks")
        return Fact("gpus", int(rank[1]))
    return None
