"""The report on the effect of a change: projected ratios of two measured runs against the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from harness.calibrate import held_out
from harness.calibrate.conditioned import Conditioned
from harness.contracts import frame
from harness.contracts.estimates import Observation
from harness.contracts.results import Evaluation
from harness.report.said import said
from harness.report.spec import tabled
from harness.report.table import Report, Table, percent
from harness.score.changes import Pair, Score, pairs, score
from harness.score.ranking import group_rankings
from harness.score.switches import REAL
from harness.score.whatif import ceiling, repeats
from projector import posterior
from projector.io.rows import grouped
from projector.io.table import factor, percent0

#: The goals of a projected ratio: median and p90 of its error at most, share of right signs at least.
GOALS = (0.03, 0.10, 0.95)
_SPREADS = (0.005, 0.01, 0.02, 0.04)
_FEWEST = 5  # least pairs of a kind that is called one of the worst
_GROUPS = 20
_NAMED = 3

Line = tuple[str, Score, str]
Widths = Mapping[tuple[str, str], float]


def build(evaluation: Evaluation, predictor: str) -> Report:
    """Returns the report on ``predictor``'s uncalibrated projections: a factor that both runs share cancels."""
    all_pairs = pairs(frame.part(evaluation.once, predictor=predictor, fit="uncalibrated"))
    seen = [p for p in all_pairs if p.seen]
    widths = _widths(evaluation.observed.get(predictor, ()), all_pairs)
    groups = _lines([p for p in seen if p.group], lambda p: [p.group], {})
    by_kind = _lines(all_pairs, lambda p: [p.kind], widths)
    tables = (
        _table("In short", "which", _whole(all_pairs, widths)),
        _table("By kind of change, alone", "kind", by_kind),
        _table("By kind of change, alone or with others", "kind", _lines(seen, lambda p: p.kinds, widths)),
        _reachable(evaluation, predictor, all_pairs),
        _table("By source", "source", _lines(seen, lambda p: [p.publisher], widths)),
        _table("Groups that are furthest off", "group", groups[:_GROUPS]),
    )
    lines = [sentence(seen), _worst(by_kind)] if seen else ["no two measured runs to compare"]
    return Report.of("What a change brings", tables, lines)


def _widths(rows: Sequence[Observation], changes: Sequence[Pair]) -> Widths:
    """Returns half widths in ln of the ratios of pairs, learnt from other sources; none where nothing was observed."""
    if not rows:
        return {}
    known = posterior.load()
    conditioned = Conditioned.of(rows, held_out.prior_of(known))
    return held_out.ratio_widths(conditioned, rows, [(p.first, p.second) for p in changes], known.tail[0])


def sentence(seen: Sequence[Pair]) -> str:
    """Returns the headline."""
    of = score(seen)
    if of is None:
        return ""
    met = (of.median <= GOALS[0], of.p90 <= GOALS[1], (of.sign or 0.0) >= GOALS[2])
    words = ["met" if goal_met else "missed" for goal_met in met]
    return said("whatif", {"of": of, "goal": GOALS, "met": words, "least": REAL})[0]


def _worst(by_kind: Sequence[Line]) -> str:
    enough = [line for line in by_kind if line[1].pairs >= _FEWEST and line[0] != "nothing"]
    worst = sorted(enough, key=lambda line: -line[1].p90)[:_NAMED]
    return "Furthest off, nine in ten: " + ", ".join(f"{name} {percent(of.p90)}" for name, of, _ in worst)


def _whole(all_pairs: Sequence[Pair], widths: Widths) -> list[Line]:
    parts: Mapping[str, Callable[[Pair], bool]] = {
        "all that differ in what a projector sees": lambda p: p.seen,
        "of them inside a group": lambda p: p.seen and bool(p.group),
        "of them one kind of change": lambda p: len(p.kinds) == 1,
        "only what no recipe field holds": lambda p: not p.seen and bool(p.unseen),
        "one configuration twice": lambda p: not p.seen and not p.unseen,
    }
    return _scored({name: [p for p in all_pairs if holds(p)] for name, holds in parts.items()}, widths)


def _lines(found: Sequence[Pair], keys: Callable[[Pair], Iterable[str]], widths: Widths) -> list[Line]:
    """Returns a line for each key, furthest off first; a pair stands in the lines of all of its keys."""
    by_key = grouped((key, pair) for pair in found for key in keys(pair))
    return sorted(_scored(by_key, widths), key=lambda line: (-line[1].p90, line[0]))


def _scored(by: Mapping[str, Sequence[Pair]], widths: Widths) -> list[Line]:
    return [(name, of, _inside(members, widths)) for name, members in by.items() if (of := score(members))]


def _inside(members: Sequence[Pair], widths: Widths) -> str:
    """Returns the share of pairs inside the interval that other sources give, and the interval's median reach."""
    judged = [(abs(p.error) <= half, half) for p in members if (half := widths.get((p.first, p.second))) is not None]
    if not judged:
        return ""
    inside, halves = np.array(judged).T
    return f"{percent0(float(inside.mean()))}, {factor(float(np.median(halves)))}"


def _reachable(evaluation: Evaluation, predictor: str, found: Sequence[Pair]) -> Table:
    """Returns the order that a projection without error would reach, by how well a measurement repeats."""
    rows = frame.part(evaluation.once, predictor=predictor, fit="heldout")
    seen = rows[rows["group"].isin([g.group for g in group_rankings(rows) if g.stated])]
    again = repeats(found)
    spreads = sorted({*_SPREADS, again[0]} if again else _SPREADS)
    lines = [of for spread in spreads if (of := ceiling(seen, spread))]
    text = (
        f" As here: {again[1]} pairs of one configuration, of {again[2]} sources, a median a source." if again else ""
    )
    return tabled("reachable", lines, again=text, here=lambda of: "as here" if again and of.spread == again[0] else "")


def _table(title: str, word: str, lines: Sequence[Line]) -> Table:
    return tabled("pairs", lines, title=title, word=word)
