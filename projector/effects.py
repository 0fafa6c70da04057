"""The random effects that act on a projection when measured runs say how far off it is.

:mod:`projector.posterior` says what effects are; this file says which of them a run has, what each is multiplied with,
and how widely each may scatter before any run is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass

Array: TypeAlias = NDArray[np.float64]
#: (term, level): the random effect that a term has on one level, such as ("host, framework", "nemo").
Effect: TypeAlias = tuple[str, str]

#: Parts of a step: the columns of a breakdown, with exchange inside a node apart from exchange between nodes.
PARTS = ("compute", "host", "tp", "ep", "ep between nodes", "cp", "pp", "dp", "dp between nodes", "optimizer", "other")
#: Kinds of input that can be assumed or not understood, each an effect of its own.
ASSUMPTIONS = ("size", "layout", "recompute", "unread")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the posterior sees of one projection.

    ``tokens``: of a step, by GPU. ``shares``: of the projected step by part, summing to 1 (:func:`shares`). ``source``:
    who runs it; runs of one source share its effects. ``assumed``: the :data:`ASSUMPTIONS` that apply. ``law``: ln(law /
    projected step) beyond ± 1, else 0 (:func:`projector.reference_law.excess`). ``timed``: this is one part of a step
    that was timed by itself, of which nothing holds that is said of whole steps. ``processor``: it runs on a CPU, of
    which nothing holds that was learnt on GPUs: its effects are its own.
    """

    step_seconds: float
    shares: Mapping[str, float]
    gpu: str
    framework: str
    family: str
    model: str = ""
    tokens: float = 1.0
    source: str = "own"
    assumed: frozenset[str] = frozenset()
    law: float = 0.0
    timed: bool = False
    processor: bool = False

    @cached_property
    def effects(self) -> dict[Effect, float]:
        """Returns the factor of every effect of the run."""
        apart = " on a CPU" if self.processor else ""
        return {(term, f"{level}{apart}"): x for (term, level), x in self._effects.items()}

    @property
    def _effects(self) -> dict[Effect, float]:
        found: dict[Effect, float] = {}
        for part, share in self.shares.items():
            if share > 0.0:
                found[part, ""] = share
                found[f"{part}, framework", self.framework] = share
                found[f"{part}, source", self.source] = share
        found["compute, gpu", self.gpu] = self.shares.get("compute", 0.0)
        if self.timed:
            return found
        found["family on gpu", f"{self.family} on {self.gpu}"] = 1.0
        found["source", self.source] = 1.0
        found["model, source", f"{self.model}, {self.source}"] = 1.0
        like = f"{self.model} on {self.gpu}, {self.source}"
        found["model on gpu, source", like] = 1.0
        tenths = ((part, math.floor(10.0 * share + 0.5)) for part, share in sorted(self.shares.items()))
        found["breakdown, source", f"{like}: {[each for each in tenths if each[1]]}"] = 1.0
        found["step, source", f"{like}: {round(2.0 * math.log(self.step_seconds / self.tokens))}"] = 1.0
        for kind in sorted(self.assumed):
            found[f"assumed {kind}", self.source] = 1.0
        if self.law:
            found["law", ""] = self.law
        found["run", self.fingerprint] = 1.0
        return found

    @property
    def fingerprint(self) -> str:
        """Returns a key that is equal for two measurements of one configuration by one source."""
        sizes = ",".join(f"{part}={share:.9g}" for part, share in sorted(self.shares.items()))
        return f"{self.source}|{self.gpu}|{self.framework}|{self.model}|{self.step_seconds:.9g}|{sizes}"


def shares(breakdown: Mapping[str, float], crossing: Collection[str] = ()) -> dict[str, float]:
    """Returns the shares of a step by part from its breakdown (``compute_s`` …, exposed seconds), but the bubble, which
    follows the rest.

    ``crossing``: exchanges (``ep``, ``dp``) that leave the node. Without a breakdown all is compute.
    """
    seconds = {name.removesuffix("_s"): max(value, 0.0) for name, value in breakdown.items() if name != "bubble_s"}
    for part in sorted(crossing):
        seconds[f"{part} between nodes"] = seconds.pop(part, 0.0)
    total = math.fsum(seconds.values())
    if not total > 0.0:
        return {"compute": 1.0}
    return {part: value / total for part, value in seconds.items() if value > 0.0}


def of_stack(term: str) -> bool:
    """Returns whether the effects of a term belong to one stack alone: its source, what it left open, the run itself."""
    return term.endswith("source") or term.startswith("assumed") or term == "run"


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is known of effects before any run.

    ``deviations``: the standard deviation of every term in ln; a term that is not there has no effect. ``scatter``: by
    framework, how many times as far as usual its stacks lie from each other; that of frameworks without known runs is
    under "".
    """

    deviations: Mapping[str, float]
    scatter: Mapping[str, float] = field(default_factory=dict)

    def variances(self, effects: Iterable[Effect]) -> Array:
        """Returns the variance of each effect, (n,)."""
        return np.array([self.deviations.get(term, 0.0) ** 2 for term, _ in effects])

    def design(self, facts: Sequence[Facts], effects: Sequence[Effect]) -> Array:
        """Returns the matrix (facts, effects) of the factors of effects; other effects of a run are left out."""
        place = {effect: column for column, effect in enumerate(effects)}
        z = np.zeros((len(facts), len(place)))
        for row, each in enumerate(facts):
            wide = self.scatter.get(each.framework, self.scatter.get("", 1.0))
            for effect, x in each.effects.items():
                if effect in place:
                    z[row, place[effect]] = x * wide if of_stack(effect[0]) else x
        return z
