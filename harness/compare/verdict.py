"""One sentence: which run is faster, by how much, and whether that is more than chance. Pure functions of sides."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.side import Side
from harness.compare.significance import LEVEL, RATE, TIME, Ratio, ratio
from harness.ranking import NOISE

__all__ = ["common", "verdict"]


def common(sides: Sequence[Side]) -> str | None:
    """What all sides can be compared in: step time where the work of a step is the same or unknown, else TGS."""
    works = {round(side.work, 6) for side in sides if side.work is not None}
    timed = all(side.step_seconds for side in sides)
    if timed and len(works) <= 1:
        return TIME
    if all(side.tgs for side in sides):
        return RATE
    return TIME if timed else None


def verdict(sides: Sequence[Side]) -> str:
    """The sentence. With more than two sides: the best against the next and the last (their intervals widened so that
    both hold together, Bonferroni)."""
    judged = [side for side in sides if side.step_seconds or side.tgs]
    left = [side.name for side in sides if side not in judged]
    tail = f"; nothing can be said of {', '.join(left)}, without a step time" if left else ""
    if len(judged) < 2:
        return f"No two of these runs have a time to compare{tail}."
    what = common(judged)
    if what is None:
        return f"The step times cannot be compared: not every run says its batch, sequence and GPUs{tail}."
    ranked = sorted(judged, key=lambda side: (side.step_seconds or 0.0) if what == TIME else -(side.tgs or 0.0))
    best, following, last = ranked[0], ranked[1], ranked[-1]
    level = LEVEL if len(ranked) == 2 else 1 - (1 - LEVEL) / 2
    parts = [_pair(best, following, what, level, full=True)]
    if len(ranked) > 2:
        again = _pair(best, last, what, level, full=False)
        parts.append(again.removeprefix("is ") if parts[0].startswith("is ") else again)
    same = ", in seconds per step of unequal or unstated work" if what == TIME and not _same_work(judged) else ""
    models = {name for side in judged if (name := side.differs.get("model"))}
    kinds = f", of {len(models)} different models" if len(models) > 1 else ""
    return f"{best.name} {' and '.join(parts)}{same}{kinds}{tail}."


def _same_work(sides: Sequence[Side]) -> bool:
    return all(side.work is not None for side in sides) and len({round(side.work or 0, 6) for side in sides}) == 1


def _pair(best: Side, other: Side, what: str, level: float, *, full: bool) -> str:
    """``is 12.0 % faster than b (…)``: by the ratio of step times, or of tokens/s/GPU."""
    found = ratio(other, best, level, what) if what == RATE else ratio(best, other, level, what)
    words = "by step time" if what == TIME else "by tokens/s/GPU"
    figures = f"{words}: {_figure(best, what)} against {_figure(other, what)}" if full else _figure(other, what)
    if found.significant is False:
        return f"does not differ significantly from {other.name} ({figures}; {_sure(found, level)})"
    much = f"{found.value:.2f} times as fast as" if found.value >= 2 else f"{100 * (found.value - 1):.1f} % faster than"
    return f"is {much} {other.name} ({figures}; {_sure(found, level)})"


def _figure(side: Side, what: str) -> str:
    return f"{side.step_seconds:.5g} s" if what == TIME else f"{side.tgs:.5g}"


def _sure(found: Ratio, level: float) -> str:
    if found.low is None or found.high is None:
        whose = f"of {found.silent[0]}" if len(found.silent) == 1 else "of either"
        return f"significance cannot be stated: no steps and no spread {whose}"
    interval = f"{100 * level:.0f} % interval {100 * (found.low - 1):+.2f} % to {100 * (found.high - 1):+.2f} %"
    if not found.significant:
        return interval
    if abs(found.value - 1) < NOISE:
        return f"{interval}: significant within these runs, yet below the {100 * NOISE:g} % that repeats of a run differ by"
    return f"{interval}: significant"
