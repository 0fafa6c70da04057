"""How benchmarks measure, and where they leave it: a table of Markdown in ``$BENCHMARK_TABLES`` or ``out/benchmarks``."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from projector.io.files import write_whole

__all__ = ["cpu", "machine", "write"]


def cpu() -> float:
    """CPU seconds of this process and of those it started and waited for: what else the machine does is not among them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


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
