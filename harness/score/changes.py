"""Scores the effect of a change: pairs of measured runs, the projected ratio against the measured one. Pure functions.

A pair is two runs of one publisher: of one group, whatever they differ in, or of one model and framework that differ in
one kind of change (as a recipe declares it) and in nothing that no recipe field holds. This is what ``projector
performance --anchor`` answers: one run is measured, the other is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts.estimates import publisher
from harness.score.switches import Gain, different, gain, twos, usable
from projector.dataclass import dataclass
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd


#: The kind of change of every recipe field, as the field declares it, and of keys that are no recipe field.
_KIND = {
    **{name: about.kind for name, about in about_of(Recipe).items()},
    "gpus": "scale",
    "gpu": "GPU",
    "model": "model",
    "num_layers": "model",
    "framework": "software",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Gain):
    """Two runs that differ by one change. ``kinds``: of the change, none where no projector sees a difference;
    ``unseen``: changed keys that no recipe field holds. ``group``: the group of both, or empty."""

    first: str
    second: str
    publisher: str
    group: str
    kinds: frozenset[str]
    unseen: frozenset[str] = frozenset()

    @property
    def seen(self) -> bool:
        """Tells whether the projector sees any difference between the two runs."""
        return bool(self.kinds)

    @property
    def kind(self) -> str:
        """Returns the kind of the change where it is a single one, else words for it."""
        if len(self.kinds) == 1:
            return next(iter(self.kinds))
        return "several kinds" if self.kinds else "only what no recipe field holds" if self.unseen else "nothing"


def pairs(rows: pd.DataFrame) -> list[Pair]:
    """Returns every two comparable rows of one predictor and one fit, in the order of the rows."""
    known = usable(rows).reset_index(drop=True)
    known = known.assign(publisher=known["source"].map(publisher))
    by_place: dict[tuple[int, int], Pair] = {}
    for by in (["publisher", "group"], ["publisher", "model", "framework"]):
        for first, second in twos(known, by):
            if (first.Index, second.Index) not in by_place and (pair := _pair(first, second)):
                by_place[first.Index, second.Index] = pair
    return [by_place[place] for place in sorted(by_place)]


def _pair(first: Any, second: Any) -> Pair | None:
    hidden = {*first.switches, *second.switches}
    kinds = between(
        *({key: value for key, value in row.differs.items() if key not in hidden} for row in (first, second))
    )
    unseen = different(first, second) & hidden
    together = first.group if first.group == second.group else ""
    if not together and (len(kinds) != 1 or unseen - {"version"} or first.model != second.model):
        return None
    return Pair(
        first=first.run_id,
        second=second.run_id,
        publisher=first.publisher,
        group=together,
        kinds=kinds,
        unseen=frozenset(unseen),
        **gain(first, second),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The error of a set of pairs: |projected ratio / measured ratio − 1| (``median``, ``p90``), mean of ln error
    (``bias``), ``right`` signs of ``real`` pairs, which are those whose measured gain exceeds
    :data:`harness.score.switches.REAL`."""

    pairs: int
    sources: int
    median: float
    p90: float
    bias: float
    real: int
    right: int
    worst: Pair

    @property
    def sign(self) -> float | None:
        return self.right / self.real if self.real else None


def score(found: Sequence[Pair]) -> Score | None:
    """Returns the score of the pairs; None without pairs."""
    if not found:
        return None
    off = np.abs([p.projected / p.measured - 1.0 for p in found])
    return Score(
        pairs=len(found),
        sources=len({p.publisher for p in found}),
        median=float(np.median(off)),
        p90=float(np.quantile(off, 0.9)),
        bias=float(np.mean([p.error for p in found])),
        real=sum(p.real for p in found),
        right=sum(p.real and p.right for p in found),
        worst=max(found, key=lambda p: abs(p.error)),
    )


def between(one: Mapping[str, object], other: Mapping[str, object]) -> frozenset[str]:
    """Returns the kinds in which two runs differ; keys of no kind are ignored, and values compare as text. A global
    batch that grows as the number of GPUs does is no change of the batch (weak scaling)."""
    changed = {key for key in (*one, *other) if key in _KIND and str(one.get(key, "")) != str(other.get(key, ""))}
    if "gpus" in changed and _samples_per_gpu(one) == _samples_per_gpu(other):
        changed.discard("global_batch_size")
    return frozenset(_KIND[key] for key in changed)


def _samples_per_gpu(run: Mapping[str, object]) -> float | None:
    batch, gpus = run.get("global_batch_size"), run.get("gpus")
    return float(str(batch)) / float(str(gpus)) if batch and gpus else None
