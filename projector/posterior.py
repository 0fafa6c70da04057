"""What measured runs teach about a projection: the step to expect, a 90 % interval, and what the user's own runs add.

A projected step is a sum of parts, and stacks differ in how fast each part is. For one run

    ln(measured / projected) = Σ_k share_k (θ_k + θ_k,framework + θ_k,source) + share_compute θ_gpu
        + θ_(gpu, family) + θ_source + θ_(source, model) + θ_(source, model, gpu) + θ_(source, model, gpu, breakdown)
        + θ_(source, model, gpu, step) + Σ_a θ_(a, source) + x θ_law + θ_run + ε

where two breakdowns are alike to a tenth of the step and two steps to a factor of e^½ of their time a token, so that a
run says most of those like it; k runs over :data:`projector.effects.PARTS` (shares of the projected step; the bubble
follows the rest), a over the kinds of input that were assumed or not understood, and x is by how much the projection
lies outside a law of plain utilisation (:mod:`projector.reference_law`). Every θ is a random effect: normal, of zero
mean, with a variance of its term; those of one stack alone are multiplied with how far the stacks of its framework lie
from each other: submissions to a benchmark are alike, loops that everybody writes anew are not. This is a linear mixed
model (Laird, Ware, *Random-effects models for longitudinal data*, Biometrics 38, 1982) in its Gaussian-process form
(Rasmussen, Williams, *Gaussian Processes for Machine Learning*, 2006, 2.7): to condition it on runs is one matrix and
two solves. Runs of a stack say how far it lies from others, too, as in a Student-t process (Shah, Wilson, Ghahramani,
*Student-t processes as alternatives to Gaussian processes*, AISTATS 2014).

``posterior.json`` beside this file holds the variances, which come from runs that nobody had seen when they were
projected, and the posterior of all effects that do not belong to one source. ``python -m harness calibrate`` writes
it. Nothing else corrects a projection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from projector.dataclass import dataclass
from projector.effects import Array, Effect, Facts, Prior
from projector.errors import InputError, Problem
from projector.io.documents import parse_json
from projector.parameter import parameter

#: What a figure is, the best first: runs of the user's own or layers timed on this device; runs of others on this GPU or
#: under this framework; neither; and whatever stands on an assumed size, layout or recompute.
GRADES = HERE, ELSEWHERE, MODELLED, ASSUMED = "measured here", "measured elsewhere", "modelled", "assumed"
LEVEL = parameter(0.9, kind="assumed", source="share of runs that an interval is to hold: what the field reports")
FREEDOM = parameter(
    4.0, kind="assumed", source="degrees of freedom of Student's t, of runs and of stacks that lie far off"
)
REPEAT = parameter(
    0.02,
    kind="derived",
    source="deviation of ln(step) of one measurement: 388 pairs of one configuration differ by 2.9 %",
)
_FILE = Path(__file__).with_name("posterior.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measured run: the facts of its projection, and the measured seconds of a step."""

    facts: Facts
    measured_seconds: float

    @property
    def log_ratio(self) -> float:
        """Returns ln(measured / projected step time)."""
        return math.log(self.measured_seconds / self.facts.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What measured runs let expect of a step in seconds, or of a ratio of two steps: the middle and the ends of the
    interval.

    ``parts``: half width in ln by cause, whose squares add up to that of the whole. ``rests_on``: which runs the
    expectation rests on, as words; ``grade``: the kind of this evidence, one of :data:`GRADES`. ``unusual``: a sentence
    where the projection lies far from what runs like it reach.
    """

    low: float
    middle: float
    high: float
    level: float = LEVEL
    parts: Mapping[str, float] = field(default_factory=dict)
    rests_on: str = ""
    grade: str = ""
    unusual: str = ""

    @property
    def half_width(self) -> float:
        """Returns the half width of the interval in ln."""
        return 0.5 * math.log(self.high / self.low)


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """A normal distribution over effects.

    ``effects``, ``mean`` (n,), ``covariance`` (n, n): what is known of effects; others have their ``prior``. ``tail``:
    half widths of the 90 % interval in standard deviations, without and with runs of the user's own, which tell less of
    another configuration than a normal distribution has it. ``counts``: rows and sources that the posterior rests on,
    by GPU × framework, GPU and framework. ``evidence``: where it comes from, as text. ``law``: coefficients of
    :mod:`projector.reference_law`. ``own``: how many runs of the user's own were given; over all ``given_runs``
    ``surprise`` is the sum of squared distances in standard deviations; ``timed``: timed parts of a step are among
    them; ``before``: the posterior without the last runs.
    """

    prior: Prior
    tail: tuple[float, float]
    effects: tuple[Effect, ...] = ()
    mean: Array = field(default_factory=lambda: np.zeros(0))
    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)
    law: Mapping[str, float] = field(default_factory=dict)
    own: int = 0
    given_runs: int = 0
    surprise: float = 0.0
    timed: bool = False
    before: Posterior | None = None

    def given(self, runs: Sequence[Run]) -> Posterior:
        """Returns the posterior after further runs. A run that is given twice counts once, and their order does not matter.

        A run far from what is expected of it counts less (the weight of Student's t), so one broken log does not spoil the
        rest. More runs never widen an interval.
        """
        runs = distinct(runs)
        if not runs:
            return self
        wide = self._with(effect for run in runs for effect in run.facts.effects)
        z = wide.prior.design([run.facts for run in runs], wide.effects)
        residual = np.array([run.log_ratio for run in runs]) - z @ wide.mean
        spread = z @ wide.covariance @ z.T
        # the variance of a run grows for its distance, as in the weights of Student's t (Lange, Little, Taylor, *Robust
        # statistical modeling using the t distribution*, JASA 84, 1989)
        weight: Array = (FREEDOM + residual**2 / (np.diag(spread) + REPEAT**2)) / (FREEDOM + 1.0)
        noise = REPEAT**2 * np.maximum(1.0, weight)
        solved = np.linalg.solve(spread + np.diag(noise), np.column_stack([z @ wide.covariance, residual]))
        gain = solved[:, :-1].T
        return replace(
            wide,
            mean=wide.mean + gain @ residual,
            covariance=wide.covariance - gain @ (z @ wide.covariance),
            own=self.own + sum(not run.facts.timed for run in runs),
            given_runs=self.given_runs + len(runs),
            surprise=self.surprise + float(residual @ solved[:, -1]),
            timed=self.timed or any(run.facts.timed for run in runs),
            before=self,
        )

    @property
    def reach(self) -> float:
        """Returns the half width of the 90 % interval in standard deviations."""
        return self.tail[1] * agreement(self.surprise, self.given_runs) if self.own else self.tail[0]

    def log_ratio(self, facts: Facts) -> tuple[float, float]:
        """Returns the mean and variance of ln(measured / projected step time) of one more run."""
        wide = self._with(facts.effects)
        z = wide.prior.design([facts], wide.effects)[0]
        return float(z @ wide.mean), max(float(wide._variances(z).sum()), 0.0) + REPEAT**2

    def expect(self, facts: Facts) -> Expectation:
        """Returns the step to expect of a projection, in seconds, with its interval and where the uncertainty comes from."""
        wide = self._with(facts.effects)
        z = wide.prior.design([facts], wide.effects)[0]
        most = self.before.expect(facts).half_width if self.before else math.inf
        return wide._expectation(z, facts.step_seconds, REPEAT**2, self.basis(facts), self.reach, most)

    def ratio(self, target: Facts, anchor: Facts, variant: bool = False, most: float = math.inf) -> Expectation:
        """Returns the ratio of two measured steps, target over anchor, in which effects that both share cancel. Of a
        run to itself it is exactly 1. ``variant``: the target is the anchor's run with a setting changed, so what is
        special about the run is shared, too; else a change of a run that was slower than expected would seem to gain by
        chance. ``most``: the largest half width in ln."""
        wide = self._with([*target.effects, *anchor.effects])
        z = np.subtract(*wide.prior.design([target, anchor], wide.effects))
        if variant:
            z[[term == "run" for term, _ in wide.effects]] = 0.0
        same = target.fingerprint == anchor.fingerprint and not variant
        noise = 0.0 if same else 2.0 * REPEAT**2
        tail = self.tail[0] if variant else self.reach
        return wide._expectation(z, target.step_seconds / anchor.step_seconds, noise, self.basis(target), tail, most)

    def nearest(self, facts: Facts) -> tuple[str, int, int] | None:
        """Returns the nearest kind of runs that were measured, their number and their sources; None: none is near."""
        for key, name in (
            (f"{facts.gpu} × {facts.framework}", f"{facts.framework} on {facts.gpu}"),
            (facts.gpu, f"{facts.gpu} under other frameworks"),
            (facts.framework, f"{facts.framework} on other GPUs"),
        ):
            if key in self.counts and not facts.processor:
                return (name, *self.counts[key])
        return None

    def basis(self, facts: Facts) -> str:
        """Returns one sentence: which measured runs an expectation rests on."""
        own = f"{self.own} {'run' if self.own == 1 else 'runs'} of your own and " if self.own else ""
        own = f"its layers, timed on this device, and {own}" if self.timed else own
        if (found := self.nearest(facts)) is not None:
            name, rows, sources = found
            runs, from_ = (f"{word}{'' if count == 1 else 's'}" for word, count in (("run", rows), ("source", sources)))
            return f"{own}{rows} measured {runs} of {name}, from {sources} {from_}"
        if facts.processor:
            return f"{own}nothing that was learnt on GPUs: this is a CPU"
        return (
            f"{own}no measured run of this GPU or this framework" if not own else f"{own}none of this GPU or framework"
        )

    def _expectation(self, z: Array, scale: float, noise: float, basis: str, tail: float, most: float) -> Expectation:
        """Returns the expectation of the combination ``z`` of effects. ``tail``: half width in standard deviations;
        ``most``: its largest value in ln."""
        each = self._variances(z)
        variance = max(float(each.sum()), 0.0) + noise
        half, middle = min(tail * math.sqrt(variance), most), scale * math.exp(float(z @ self.mean))
        parts: dict[str, float] = {}
        for (term, _), value in zip(self.effects, each.tolist(), strict=True):
            if value:
                parts[cause(term)] = parts.get(cause(term), 0.0) + value
        parts["the run itself"] = parts.get("the run itself", 0.0) + noise
        # Parts that make up for others have no width of their own: the rest share what is left.
        positive = math.fsum(value for value in parts.values() if value > 0.0)
        widths = {name: half * math.sqrt(value / positive) for name, value in parts.items() if value > 0.0}
        ordered = dict(sorted(widths.items(), key=lambda item: -item[1]))
        return Expectation(
            low=middle * math.exp(-half), middle=middle, high=middle * math.exp(half), parts=ordered, rests_on=basis
        )

    def _variances(self, z: Array) -> Array:
        """Returns what each effect adds to the variance of the combination ``z``. A run has some twenty of all effects,
        so the others are left out: the whole matrix would wake as many threads as there are cores."""
        each, (own,) = np.zeros_like(z), z.nonzero()
        each[own] = z[own] * (self.covariance[np.ix_(own, own)] @ z[own])
        return each

    def _with(self, effects: object) -> Posterior:
        """Returns the posterior with ``effects`` added, which have their prior."""
        known = set(self.effects)
        new = [e for e in dict.fromkeys(effects) if e not in known and self.prior.deviations.get(e[0])]  # type: ignore[call-overload]
        if not new:
            return self
        n = len(self.effects)
        covariance = np.zeros((n + len(new),) * 2)
        covariance[:n, :n] = self.covariance
        covariance[range(n, n + len(new)), range(n, n + len(new))] = self.prior.variances(new)
        mean = np.concatenate([self.mean, np.zeros(len(new))])
        return replace(self, effects=(*self.effects, *new), mean=mean, covariance=covariance)


def distinct(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Returns each run once, however often it is given."""
    return tuple({(run.facts.fingerprint, run.measured_seconds): run for run in runs}.values())


def agreement(surprise: float, runs: int) -> float:
    """Returns the factor of a stack's deviations after ``runs`` of it whose squared deviations sum to ``surprise``."""
    return math.sqrt((FREEDOM + surprise) / (FREEDOM + runs))


def cause(term: str) -> str:
    """Returns the words for a term: what a user can look into."""
    part = term.partition(",")[0]
    words = {
        "compute": "kernels",
        "tp": "tensor-parallel exchange",
        "ep": "expert exchange in a node",
        "ep between nodes": "expert exchange between nodes",
        "cp": "context-parallel exchange",
        "pp": "pipeline messages",
        "dp": "gradient exchange in a node",
        "dp between nodes": "gradient exchange between nodes",
        "family on gpu": "this kind of model on this GPU",
        "model": "the model",
        "model on gpu": "the model",
        "breakdown": "the configuration",
        "step": "the configuration",
        "source": "the stack",
        "run": "the run itself",
        "law": "far from plain utilisation",
    }
    return words.get(part, part)


@lru_cache(maxsize=1)
def load() -> Posterior:
    """Returns the posterior that the package carries. Raises :class:`InputError` for a broken file."""
    return parse(_FILE.read_text(encoding="utf-8"), str(_FILE))


def parse(text: str, where: str) -> Posterior:
    """Returns the posterior in the ``text`` of a file. Raises :class:`InputError` that names what is wrong."""
    try:
        data = parse_json(text, where)
        effects = tuple((str(term), str(level)) for term, level in data["effects"])
        lower = np.zeros((len(effects),) * 2)
        for row, values in enumerate(data["covariance"]):
            lower[row, : row + 1] = values
        mean = np.array(data["mean"], dtype=np.float64)
        if mean.shape != (len(effects),) or not (np.isfinite(mean).all() and np.isfinite(lower).all()):
            raise ValueError(f"{mean.size} means for {len(effects)} effects, or figures that are not finite")
        return Posterior(
            prior=Prior(
                deviations={str(k): float(v) for k, v in data["deviations"].items()},
                scatter={str(k): float(v) for k, v in data["scatter"].items()},
            ),
            tail=(float(data["tail"][0]), float(data["tail"][1])),
            effects=effects,
            mean=mean,
            covariance=lower + np.tril(lower, -1).T,
            counts={str(k): (int(rows), int(sources)) for k, (rows, sources) in data["counts"].items()},
            evidence={str(k): str(v) for k, v in data["evidence"].items()},
            law={str(k): float(v) for k, v in data["law"].items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        keys = "evidence, deviations, scatter, tail, counts, law, effects, mean and covariance"
        raise InputError([Problem(where, "", f"{type(error).__name__}: {error}", keys)]) from error
