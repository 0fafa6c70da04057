"""What launchers, terminals, loggers, schedulers and people do to a log: none of it changes how fast the run was."""

import re
import textwrap
from collections.abc import Callable, Mapping

from tabled import tabled

PREFIXES = tuple(tabled("readers", "log_disguises_prefixes"))
_BETWEEN = tuple(tabled("readers", "log_disguises_between"))
_LOSS = re.compile(r"(loss\S{0,8}[:=]?\s{0,9}\"?)[0-9]\.[0-9E+]+")
_DECIMAL = re.compile(r"(?<![\w.,:])([0-9]+)\.([0-9]+)(?![\w.]*[.][0-9])(?![0-9.])")
_LARGE = re.compile(r"(?<![\w.,:/])([0-9]{4,9})(?=(?:\.[0-9]+)?(?:ms)?(?:[\s|,/;)]|$))(?!-)")

_GROUPED = re.compile(r"\b([0-9]{1,3}),([0-9]{3})\.([0-9]+)\b")

Disguise = Callable[[str], str]
#: A log to what a cut leaves of it, and to that without and with the line that was cut.
Cut = Callable[[str], tuple[str, str, str]]


def prefixed(prefix: str) -> Disguise:
    return lambda text: "".join(prefix + line for line in text.splitlines(keepends=True))


def _coloured(text: str) -> str:
    return re.sub(r"([0-9]+\.[0-9]+)", "\x1b[1;32m\\1\x1b[0m", text)


def _wrapped(columns: int) -> Disguise:
    def wrap(text: str) -> str:
        lines = (
            textwrap.wrap(line, columns, drop_whitespace=False, break_on_hyphens=False) for line in text.split("\n")
        )
        return "\n".join("\n".join(parts) for parts in lines)

    return wrap


def _broken(columns: int) -> Disguise:
    """Where a terminal of so many columns is full: in the middle of words and of numbers."""

    def wrap(text: str) -> str:
        lines = ([line[at : at + columns] for at in range(0, len(line) or 1, columns)] for line in text.split("\n"))
        return "\n".join("\n".join(parts) for parts in lines)

    return wrap


def _head(share: float) -> Cut:
    def cut(text: str) -> tuple[str, str, str]:
        at = int(len(text) * share)
        return text[:at], text[: text.rfind("\n", 0, at) + 1], text[: text.find("\n", at) + 1]

    return cut


def _tail(share: float) -> Cut:
    def cut(text: str) -> tuple[str, str, str]:
        at = int(len(text) * share)
        return text[at:], text[text.find("\n", at) + 1 :], text[text.rfind("\n", 0, at) + 1 :]

    return cut


def _restarted(text: str) -> str:
    """The job ended at 80 % of its lines and went on from a checkpoint at 60 %."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: len(lines) * 8 // 10] + lines[len(lines) * 6 // 10 :])


def _ranks(text: str) -> str:
    return "".join(f"[rank{rank}]: {line}" for line in text.splitlines(keepends=True) for rank in range(4))


def _late_ranks(text: str) -> str:
    """The second rank's prints come a line later than the first's."""
    lines = text.splitlines(keepends=True)
    pairs = zip(lines, ["\n", *lines], strict=False)
    return "".join(f"[rank0]: {one}[rank1]: {other}" for one, other in pairs)


def _between(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line + (f"{_BETWEEN[i % len(_BETWEEN)]}\n" if i % 3 == 2 else "") for i, line in enumerate(lines))


def _nan(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(_LOSS.sub(r"\1nan", line) if i > len(lines) * 0.7 else line for i, line in enumerate(lines))


#: Disguises that may tear a number or make it ambiguous: that a reader gives up is as good as the same figures.
DESTRUCTIVE = ("wrapped", "broken", "thousands", "decimal commas")
#: Name → what is done.
DISGUISES: Mapping[str, Disguise] = {
    **{f"prefix {prefix}": prefixed(prefix) for prefix in PREFIXES}, "coloured": _coloured,
    "coloured lines": lambda text: "".join(f"\x1b[36m{line}\x1b[0m\n" for line in text.splitlines()),
    "carriage returns": lambda text: text.replace("\n", "\r\n"), "wrapped 80": _wrapped(80),
    "wrapped 120": _wrapped(120), **{f"broken {columns}": _broken(columns) for columns in (77, 80, 100, 120, 132, 160)},
    "twice": lambda text: text + text, "restarted": _restarted, "ranks": _ranks, "late ranks": _late_ranks,
    "between": _between, "nan": _nan, "thousands": lambda text: _LARGE.sub(lambda match: f"{int(match[1]):,}", text),
    "decimal commas": lambda text: _DECIMAL.sub(r"\1,\2", _GROUPED.sub(r"\1.\2,\3", text)),
    "trailing spaces": lambda text: text.replace("\n", "   \n"), "indented": prefixed("    "),
}  # fmt: skip
#: Ends that are missing: of a job that still runs, of a file that was copied in part; and heads, of `tail -n`.
CUTS = (
    *(_head(share) for share in (0.5, 0.61, 0.7, 0.83, 0.9, 0.97)),
    *(_tail(share) for share in (0.05, 0.1, 0.3, 0.5)),
)
