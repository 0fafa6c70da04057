"""A log of every dialect, with steps of 6 s but for the first: files of our own making, and lines of the others."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from asked import LOGS
from tabled import sample, tabled

_STEPS = 24
_SLOW = 60.0  # seconds of the first step
_STEADY = 6.0

#: Trainer → the line(s) of step ``{i}`` that took ``{s}`` seconds, ``{clock}`` after the start.
LINES: Mapping[str, str] = tabled("readers", "lines_of_trainers")
#: Trainer → what its log prints before the first step.
HEADS: Mapping[str, str] = {"gpt_neox": sample("gpt_neox_head.log")}


def samples() -> dict[str, str]:
    """Name → text of a log."""
    files = {path.stem: path.read_text() for path in sorted(LOGS.glob("*.log"))}
    return files | {name: HEADS.get(name, "") + _log(line) for name, line in LINES.items()}


def _log(line: str) -> str:
    rows, spent, start = [], 0.0, datetime(2025, 12, 31, 23, 58)
    for i in range(1, _STEPS + 1):
        seconds = (_SLOW if i == 1 else _STEADY) + (i % 3 - 1) / 100
        spent += seconds
        rows.append(
            line.format(
                i=i, s=seconds, ms=1e3 * seconds, sum=spent, less=0.9 * seconds, rate64=64 / seconds, rate8=8 / seconds,
                rate8192=8192 / seconds, rate8192k=8.192 / seconds, clock=str(timedelta(seconds=int(spent))),
                stamp=(start + timedelta(seconds=spent)).isoformat(" ", "milliseconds"),
            )
        )  # fmt: skip
    return "\n".join(rows) + "\n"
