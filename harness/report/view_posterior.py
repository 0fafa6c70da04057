"""Tables of the posterior: what new sources should expect, what a few runs of one's own add, and where stacks differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import numpy as np

from harness.calibrate import weights
from harness.calibrate.held import Judged
from harness.report.table import Table, figure, listed, number, percent, text
from projector import frameworks
from projector.hardware import catalogue
from projector.io.table import factor
from projector.posterior import LEVEL, Posterior, cause

Group = tuple[str, Sequence[Judged]]


def by_group(unseen: Sequence[Judged], seen: Sequence[Judged] = ()) -> Table:
    """Error and intervals of rows that nobody had seen, and beside them of open rows, by what is known of their stack."""
    rows = [*_groups("unseen", [each for each in unseen if not each.own]), *_groups("seen", seen)]
    made = (
        text("rows", lambda line: line[0]),
        figure("rows", lambda line: len(line[1])),
        figure("sources", lambda line: len({each.row.source for each in line[1]})),
        figure("median", lambda line: median(abs(each.throughput_error) for each in line[1]), percent),
        figure("plain", lambda line: fmean(abs(each.throughput_error) for each in line[1]), percent),
        figure("by source", lambda line: macro(line[1]), percent, "mean over sources of the mean inside each"),
        figure("inside", lambda line: fmean(each.inside for each in line[1]), percent, "of their 90 % interval"),
        figure("inside, by source", lambda line: inside(line[1]), percent),
        figure("reaches", lambda line: median(each.half for each in line[1]), factor, "to either side, median"),
        figure(
            "score",
            lambda line: number(score(line[1]), 2),
            help="interval score in ln: width and misses, less is better",
        ),
    )
    note = (
        "Unseen: first looks, each judged with variances and a width from other sources' first looks and by no row of its"
        " source. Seen: open rows as they are projected today, each by no row of its source; the physics was changed with"
        " them in sight. Error of the expected throughput."
    )
    return listed("What a new source should expect", rows, made, note)


def own_runs(unseen: Sequence[Judged]) -> Table:
    """The error of first looks after none and after some runs of the same source."""
    counts = sorted({each.own for each in unseen})
    rows = [(own, [e for e in unseen if e.own == own]) for own in counts]
    nearest = {own: [e for e in those if e.nearest or not own] for own, those in rows}
    drawn = [(own, [e for e in those if not e.nearest]) for own, those in rows]
    made = (
        figure("runs of one's own", lambda line: line[0]),
        figure("judged", lambda line: len(line[1])),
        figure("median", lambda line: median(abs(e.throughput_error) for e in line[1]), percent),
        figure("by source", lambda line: macro(line[1]), percent),
        figure("inside", lambda line: fmean(e.inside for e in line[1]), percent),
        figure("reaches", lambda line: median(e.half for e in line[1]), factor),
        figure("nearest: median", lambda line: median(abs(e.throughput_error) for e in nearest[line[0]]), percent),
        figure("nearest: by source", lambda line: macro(nearest[line[0]]), percent),
    )
    note = (
        "First looks of sources with five rows or more after some, drawn five times; nearest: the most alike by the"
        " posterior."
    )
    return listed("What runs of one's own add", [line for line in drawn if line[1]], made, note)


def deviations(known: Posterior) -> Table:
    """The standard deviation of every term, largest first: where stacks differ from what is projected."""
    made = (
        text("term", lambda item: item[0]),
        text("what it is", lambda item: cause(item[0])),
        figure("standard deviation, ln", lambda item: number(item[1], 3)),
    )
    ordered = sorted(known.deviations.items(), key=lambda item: -item[1])
    return listed(
        "Where stacks differ", ordered, made, "Of ln(measured / projected) of a step that consists of the part alone."
    )


def headline(unseen: Sequence[Judged]) -> str:
    """What a new source should expect, in one sentence: the figures of README, page and terminal."""
    rows = [each for each in unseen if not each.own]
    if not rows:
        return "No first looks."
    errors = np.abs([each.throughput_error for each in rows])
    return (
        f"Of {len(rows)} runs of {len({e.row.source for e in rows})} sources that nobody had seen, half are within"
        f" {percent(float(np.median(errors)))} of what is measured, {percent(macro(rows))} off on average over sources;"
        f" {percent(fmean(e.inside for e in rows), 0)} lie inside their 90 % interval, which at the median"
        f" reaches {factor(median(e.half for e in rows))} to either side."
    )


def macro(rows: Sequence[Judged]) -> float:
    """Mean over sources of the mean |error| of throughput inside each."""
    return weights.macro(np.abs([e.throughput_error for e in rows]), [e.row.source for e in rows])


def inside(rows: Sequence[Judged]) -> float:
    """Share of rows inside their interval, every source weighing the same."""
    return weights.macro([float(e.inside) for e in rows], [e.row.source for e in rows])


def score(rows: Sequence[Judged]) -> float:
    """Mean interval score in ln (Gneiting, Raftery, *Strictly proper scoring rules*, JASA 102, 2007): width and, of a
    miss, 2 / (1 − level) of what it lies outside."""
    alpha = 1.0 - LEVEL
    return fmean(2.0 * e.half + 2.0 / alpha * max(abs(e.error) - e.half, 0.0) for e in rows)


def _groups(word: str, rows: Sequence[Judged]) -> list[Group]:
    profiles = frozenset(frameworks.names()) - {"unknown"}
    vendor = {name: catalogue.gpu(name).vendor for name in catalogue.gpu_names()}
    holds: Mapping[str, Callable[[Judged], bool]] = {
        "all": lambda _: True,
        "frameworks with a profile": lambda e: e.row.facts.framework in profiles,
        "other code": lambda e: e.row.facts.framework not in profiles,
        "NVIDIA": lambda e: vendor.get(e.row.facts.gpu) == "nvidia",
        "AMD": lambda e: vendor.get(e.row.facts.gpu) == "amd",
        "nothing assumed": lambda e: not e.row.facts.assumed,
        "something assumed": lambda e: bool(e.row.facts.assumed),
    }
    made = [(f"{word}: {name}", [e for e in rows if test(e)]) for name, test in holds.items()]
    return [(name, some) for name, some in made if some]
