"""Says in one sentence which run is faster, by how much, and whether that is more than chance. Pure functions of sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from harness.compare.side import Side
from harness.evidence.medians import LEAST, resampled
from harness.score.ranking import NOISE
from projector.dataclass import dataclass

#: Values that every run must state, and that must agree: (name in words, the value as text, empty where not stated).
_NEEDED: tuple[tuple[str, Callable[[Side], str]], ...] = (
    ("model", lambda side: side.architecture or side.differs.get("model", "")),
    ("batch", lambda side: f"{side.tokens_per_step:,} tokens a step" if side.tokens_per_step else ""),
    ("number of GPUs", lambda side: str(side.gpus or "")),
)
#: Values that must agree among the runs that state them.
_ALIKE: tuple[tuple[str, Callable[[Side], str]], ...] = (
    ("number of layers", lambda side: side.differs.get("num_layers", "")),
    ("sequence length", lambda side: side.differs.get("seq_length", "")),
)


def obstacles(sides: Sequence[Side]) -> tuple[str, ...]:
    """Returns why no winner can be named, in words; empty where the runs did the same work on as many GPUs of one kind.
    Logs hardly ever name the GPU: runs none of which names it are taken to be of one machine, as the user who lays them
    side by side does."""
    reasons = [words for name, value in _NEEDED for words in _needed(name, value, sides)]
    reasons += [words for name, value in _ALIKE for words in _differing(name, value, sides)]
    if any(side.gpu for side in sides):
        reasons += _needed("GPU", lambda side: side.gpu, sides)
    return (*reasons, *(f"{side.name} cannot be true ({side.impossible})" for side in sides if side.impossible))


def _needed(name: str, value: Callable[[Side], str], sides: Sequence[Side]) -> Iterator[str]:
    silent = [side.name for side in sides if not value(side)]
    if len(silent) == len(sides):
        yield f"the {name} is not stated"
    elif silent:
        yield f"the {name} of {' and '.join(silent)} is not stated"
    yield from _differing(name, value, sides)


def _differing(name: str, value: Callable[[Side], str], sides: Sequence[Side]) -> Iterator[str]:
    values = {side.name: value(side) for side in sides if value(side)}
    if len(set(values.values())) > 1:
        yield f"the {name} differs ({', '.join(f'{run}: {text}' for run, text in values.items())})"


def common(sides: Sequence[Side]) -> str | None:
    """Returns the measure to compare in: step time where the work of a step is the same or unknown, else TGS."""
    works = {round(side.work, 6) for side in sides if side.work is not None}
    timed = all(side.step_seconds for side in sides)
    if timed and len(works) <= 1:
        return TIME
    if all(side.tgs for side in sides):
        return RATE
    return TIME if timed else None


def verdict(sides: Sequence[Side]) -> str:
    """Returns the sentence. With more than two sides: the best against the next and the last (their intervals widened so
    that both hold together, Bonferroni). No winner is named where the runs did not do the same work on as many GPUs, or
    do not say so: then the sentence gives the reasons and the figures alone."""
    judged = [side for side in sides if side.step_seconds or side.tgs]
    untimed = [side.name for side in sides if side not in judged]
    tail = f"; nothing can be said of {', '.join(untimed)}, without a step time" if untimed else ""
    if len(judged) < 2:
        return f"No two of these runs have a time to compare{tail}."
    what = common(judged)
    if what is None:
        return f"The step times cannot be compared: not every run says its batch, sequence and GPUs{tail}."
    if reasons := obstacles(judged):
        return f"No run can be called the faster: {'; '.join(reasons)}. The figures alone: {_unranked(judged, what)}{tail}."
    ranked = sorted(judged, key=lambda side: (side.step_seconds or 0.0) if what == TIME else -(side.tgs or 0.0))
    best, following, last = ranked[0], ranked[1], ranked[-1]
    level = LEVEL if len(ranked) == 2 else 1 - (1 - LEVEL) / 2
    parts = [_pair(best, following, what, level, full=True)]
    if len(ranked) > 2:
        again = _pair(best, last, what, level, full=False)
        parts.append(again.removeprefix("is ") if parts[0].startswith("is ") else again)
    return f"{best.name} {' and '.join(parts)}{tail}."


def _unranked(sides: Sequence[Side], what: str) -> str:
    """Returns for example ``a 5 s, b 6 s a step (b over a 1.2, 90 % interval 1.19 to 1.21)``."""
    unit = "a step" if what == TIME else "tokens/s/GPU"
    figures = f"{', '.join(f'{side.name} {_figure(side, what)}' for side in sides)} {unit}"
    if len(sides) != 2:
        return figures
    quotient = ratio(sides[0], sides[1], what=what)
    if quotient.low is None or quotient.high is None:
        around = f"; {_certainty(quotient, LEVEL)}"
    else:
        around = f", {100 * LEVEL:.0f} % interval {quotient.low:.4g} to {quotient.high:.4g}"
    return f"{figures} ({sides[1].name} over {sides[0].name} {quotient.value:.4g}{around})"


def _pair(best: Side, other: Side, what: str, level: float, *, full: bool) -> str:
    """Returns for example ``is 12.0 % faster than b (…)``: by the ratio of step times, or of tokens/s/GPU."""
    gain = ratio(other, best, level, what) if what == RATE else ratio(best, other, level, what)
    words = "by step time" if what == TIME else "by tokens/s/GPU"
    figures = f"{words}: {_figure(best, what)} against {_figure(other, what)}" if full else _figure(other, what)
    if gain.significant is False:
        return f"does not differ significantly from {other.name} ({figures}; {_certainty(gain, level)})"
    faster = f"{gain.value:.2f} times as fast as" if gain.value >= 2 else f"{100 * (gain.value - 1):.1f} % faster than"
    return f"is {faster} {other.name} ({figures}; {_certainty(gain, level)})"


def _figure(side: Side, what: str) -> str:
    return f"{side.step_seconds:.5g} s" if what == TIME else f"{side.tgs:.5g}"


def _certainty(quotient: Ratio, level: float) -> str:
    if quotient.low is None or quotient.high is None:
        whose = f"of {quotient.silent[0]}" if len(quotient.silent) == 1 else "of either"
        return f"significance cannot be stated: no steps and no spread {whose}"
    interval = f"{100 * level:.0f} % interval {100 * (quotient.low - 1):+.2f} % to {100 * (quotient.high - 1):+.2f} %"
    if not quotient.significant:
        return interval
    if abs(quotient.value - 1) < NOISE:
        return f"{interval}: significant within these runs, yet below the {100 * NOISE:g} % that repeats of a run differ by"
    return f"{interval}: significant"


# The certainty of a difference of two runs: the interval of the ratio of their step times, from steps by resampling
# (:mod:`harness.evidence.medians`), from a stated figure with its relative standard error by normal draws. No single run
# can say what repeats of a whole run would add (another node, another day).
LEVEL = 0.90
TIME, RATE = "step time", "TGS"
_RESAMPLES = 4000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The ratio of two sides. ``value``: other over first, of ``what`` (:data:`TIME` or :data:`RATE`); above 1 the other
    is slower in time and faster in rate. ``low``, ``high``: its interval, None where a side has neither steps nor a
    spread (``silent``)."""

    what: str
    value: float
    low: float | None = None
    high: float | None = None
    silent: tuple[str, ...] = ()

    @property
    def significant(self) -> bool | None:
        """Tells whether the interval excludes 1; None where there is none."""
        return None if self.low is None or self.high is None else not self.low <= 1.0 <= self.high


def ratio(first: Side, other: Side, level: float = LEVEL, what: str = TIME) -> Ratio:
    """Returns other over first, of the step times or of TGS. Raises :class:`ValueError` where a side has no such figure."""
    values = [_rate_of(side, what) for side in (first, other)]
    middle = values[1] / values[0]
    draws = [_draws(side, seed) for seed, side in enumerate((first, other))]
    silent = tuple(side.name for side, drawn in zip((first, other), draws, strict=True) if drawn is None)
    if draws[0] is None or draws[1] is None:
        return Ratio(what=what, value=middle, silent=silent)
    slower = draws[1] / draws[0]
    low, high = _ends(middle * (1 / slower if what == RATE else slower), level)
    return Ratio(what=what, value=middle, low=low, high=high)


def interval(side: Side, level: float = LEVEL) -> tuple[float, float] | None:
    """Returns (low, high) of the step time over its figure; None where the uncertainty of that figure is unknown."""
    draws = _draws(side, 0)
    return None if draws is None else _ends(draws, level)


def _ends(draws: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _rate_of(side: Side, what: str) -> float:
    value = side.tgs if what == RATE else side.step_seconds
    if not value:
        raise ValueError(f"{side.name} has no {what}")
    return value


def _draws(side: Side, seed: int) -> Floats | None:
    """Returns resampled step times over the figure of the side, or None where the uncertainty of that figure is unknown."""
    if side.series is not None and len(side.series.kept) >= LEAST:
        steady = side.series.kept
        return resampled(steady, _RESAMPLES, seed) / float(np.median(steady))
    if side.rel_std is not None and side.rel_std > 0:
        return np.maximum(1 + side.rel_std * np.random.default_rng(seed).standard_normal(_RESAMPLES), 1e-3)
    return None
