"""How benchmarks measure, and where they leave it: a table of Markdown in ``$BENCHMARK_TABLES`` or ``out/benchmarks``."""

import gc
import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from projector.io.files import write_whole

T = TypeVar("T")

__all__ = ["best", "cpu", "machine", "spent", "write"]


def cpu() -> float:
    """CPU seconds of this process and of those it started and waited for: what else the machine does is not among them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def spent(work: Callable[[], T]) -> tuple[T, float]:
    """What ``work`` makes, and its CPU seconds."""
    began = cpu()
    return work(), cpu() - began


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the fastest of ``repeats`` runs: the one least disturbed by whatever else the machine does.

    Without the garbage collector, as ``timeit`` does: it would charge for the objects of all other tests.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return min(spent(work)[1] for _ in range(repeats))
    finally:
        if was_on:
            gc.enable()


def machine() -> str:
    """Cores and processor, as far as the system says."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores, {model}"


def write(name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> Path:
    path = Path(os.environ.get("BENCHMARK_TABLES", "out/benchmarks")) / name
    lines = [f"# {title}", "", *_table(head, rows), "", *(line for note in notes for line in (note, ""))]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(lines[:-1]) + "\n")
    return path


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [line[0], "|" + " --- |" + " ---: |" * (len(head) - 1), *line[1:]]
