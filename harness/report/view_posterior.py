"""Tabulates the posterior: the error that new sources should expect, the gain from a few runs of one's own, and where
stacks differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from harness.calibrate import weights
from harness.calibrate.held_out import Judgement
from harness.calibrate.learn import LeftOutRow
from harness.report.said import said
from harness.report.spec import tabled
from harness.report.table import Table
from projector import frameworks
from projector.hardware import catalogue
from projector.posterior import LEVEL, Posterior, cause


def by_group(judged: Judgement) -> Table:
    """Tabulates error and intervals of first looks judged by other sources, of open rows, and of rows of known sources,
    each by properties of the stack."""
    first = [row for row in judged.unseen if not row.own]
    rows = [*_groups("unseen", first), *_groups("seen", judged.seen), *_groups("known source", judged.known)]
    return tabled("expected", [_line(name, members) for name, members in rows])


def own_runs(unseen: Sequence[LeftOutRow]) -> Table:
    """Tabulates the error of first looks after none and after some runs of the same source."""
    lines = []
    for number in sorted({row.own for row in unseen}):
        rows = [row for row in unseen if row.own == number]
        if drawn := [row for row in rows if not row.nearest]:
            nearest = _line("", [row for row in rows if row.nearest or not number])
            lines.append({**_line(str(number), drawn), "nearest": nearest})
    return tabled("own_runs", lines)


def _line(name: str, rows: Sequence[LeftOutRow]) -> dict[str, Any]:
    """Returns the figures of a line of rows."""
    size, sources = [abs(judged.throughput_error) for judged in rows], [judged.row.source for judged in rows]
    return {
        "name": name,
        "n": len(rows),
        "sources": len(set(sources)),
        "median": median(size),
        "plain": fmean(size),
        "macro": weights.macro(size, sources),
        "inside": fmean(judged.inside for judged in rows),
        "inside_macro": weights.macro([float(judged.inside) for judged in rows], sources),
        "reaches": median(judged.half for judged in rows),
        "score": score(rows),
    }


def deviations(known: Posterior) -> Table:
    """Tabulates the standard deviation of every term, largest first: where stacks differ from their projection."""
    return tabled("deviations", sorted(known.prior.deviations.items(), key=lambda item: -item[1]), cause=cause)


def scatter(known: Posterior) -> Table:
    """Tabulates by framework how far its stacks lie from each other, widest first."""
    named = [(name or "any other", value) for name, value in known.prior.scatter.items()]
    return tabled("scatter", sorted(named, key=lambda item: -item[1]))


def headline(unseen: Sequence[LeftOutRow]) -> str:
    """Returns the error that a new source should expect in one sentence: the figures of README, page and terminal."""
    rows = [row for row in unseen if not row.own]
    if not rows:
        return "No first looks."
    return said("unseen", _line("", rows))[0]


def score(rows: Sequence[LeftOutRow]) -> float:
    """Returns the mean interval score in ln (Gneiting, Raftery, *Strictly proper scoring rules*, JASA 102, 2007): width
    and, of a miss, 2 / (1 − level) times its distance from the interval."""
    alpha = 1.0 - LEVEL
    return fmean(2.0 * e.half + 2.0 / alpha * max(abs(e.error) - e.half, 0.0) for e in rows)


def _groups(word: str, rows: Sequence[LeftOutRow]) -> list[tuple[str, Sequence[LeftOutRow]]]:
    profiles = frozenset(frameworks.names()) - {"unknown"}
    vendor = {name: catalogue.gpu(name).vendor for name in catalogue.gpu_names()}
    holds: Mapping[str, Callable[[LeftOutRow], bool]] = {
        "all": lambda _: True,
        "frameworks with a profile": lambda e: e.row.facts.framework in profiles,
        "other code": lambda e: e.row.facts.framework not in profiles,
        "NVIDIA": lambda e: vendor.get(e.row.facts.gpu) == "nvidia",
        "AMD": lambda e: vendor.get(e.row.facts.gpu) == "amd",
        "nothing assumed": lambda e: not e.row.facts.assumed,
        "something assumed": lambda e: bool(e.row.facts.assumed),
    }
    groups = [(f"{word}: {name}", [e for e in rows if test(e)]) for name, test in holds.items()]
    return [(name, members) for name, members in groups if members]
