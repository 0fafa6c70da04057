"""Turns projections into expected steps, with the user's own runs where there are some."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from projector import effects, posterior, reference_law
from projector.dataclass import dataclass
from projector.effects import Facts
from projector.frameworks.flops import flops_per_token
from projector.memory.tolerance import uncounted
from projector.posterior import Expectation, Posterior, Run

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.projection import Projection
    from projector.workload.workload import Workload

#: The kind of an assumed entry, by its first words. Entries that none matches moved no step at a first look.
_KINDS = (
    ("size", re.compile(r"(?:dense layers|num_layers|seq_length|(?:global|micro)_batch_size|documents)\b")),
    ("recompute", re.compile(r"recompute")),
    ("layout", re.compile(r"(?:tp|pp|vpp|ep|cp|etp|data_parallel_sharding)\b")),
)
#: Parts of a step that consist of layers alone, so that timing layers times them.
_TIMED = ("compute", "host")


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What expectations rest on: the posterior that the package carries (or ``known``), ``runs`` of the user's own, and
    ``timed`` parts of a step."""

    runs: tuple[Run, ...] = ()
    timed: tuple[Run, ...] = ()
    known: Posterior | None = None

    @cached_property
    def posterior(self) -> Posterior:
        """Returns the posterior after the timed parts and the user's own runs."""
        return (self.known or posterior.load()).given((*self.timed, *self.runs))

    @cached_property
    def anchor(self) -> Run | None:
        """Returns the user's run where there is just one, else None."""
        runs = posterior.distinct(self.runs)
        return runs[0] if len(runs) == 1 else None

    def expect(self, projection: Projection, assumed: Collection[str] = ()) -> Expectation:
        """Returns the step to expect of a projection, in seconds. ``assumed``: what the reader of its configuration
        assumed."""
        return self.of(self.facts(projection, assumed))

    def of(self, facts: Facts) -> Expectation:
        """Returns the step to expect of a projection's facts, in seconds. One run of the user's own is trusted: the
        step is the measured one times the ratio of the two, so that the run itself is expected to take what it took.
        Several runs are weighed against each other."""
        known = self.posterior
        if self.anchor is None:
            expectation = known.expect(facts)
        else:
            free = known.before.expect(facts).half_width if known.before else math.inf
            of, measured = known.ratio(facts, self.anchor.facts, most=free), self.anchor.measured_seconds
            expectation = replace(of, low=of.low * measured, middle=of.middle * measured, high=of.high * measured)
        return replace(expectation, unusual=reference_law.words(facts.law), grade=self.grade(facts))

    def grade(self, facts: Facts) -> str:
        """Returns the kind of the evidence (:data:`projector.posterior.GRADES`): the worst that holds of ``facts``."""
        if facts.assumed:
            return posterior.ASSUMED
        same_stack = (run.facts.gpu == facts.gpu and run.facts.framework == facts.framework for run in self.runs)
        if self.timed or any(same_stack):
            return posterior.HERE
        return posterior.MODELLED if self.posterior.nearest(facts) is None else posterior.ELSEWHERE

    def after_timing(self, projection: Projection, live: Projection) -> Knowledge:
        """Returns the knowledge after layers of the step were timed, which observes kernels and host part by part.
        ``live``: ``projection`` with the timed layers put in."""
        facts, timed = self.facts(projection), []
        for part in _TIMED:
            projected, measured = (each.breakdown.get(f"{part}_s", 0.0) for each in (projection, live))
            if projected > 0.0 and measured > 0.0:
                facts_of_part = replace(facts, shares={part: 1.0}, step_seconds=projected, timed=True)
                timed.append(Run(facts=facts_of_part, measured_seconds=measured))
        return replace(self, timed=(*self.timed, *timed))

    def ratio(self, target: Projection, base: Projection, assumed: Collection[str] = ()) -> Expectation:
        """Returns the step of ``target``, a variant of ``base``, over that of ``base``: effects that both share cancel."""
        return self.posterior.ratio(self.facts(target, assumed), self.facts(base, assumed), variant=True)

    def facts(self, projection: Projection, assumed: Collection[str] = ()) -> Facts:
        """Returns the facts of a projection."""
        texts = (*assumed, *projection.assumed)
        workload, step = projection.resolved.workload, projection.step_seconds
        return facts_of(workload, projection.cluster, step, projection.breakdown, texts, self.law)

    @property
    def law(self) -> Mapping[str, float]:
        """Returns the coefficients of :mod:`projector.reference_law`."""
        return (self.known or posterior.load()).law


def facts_of(
    workload: Workload,
    cluster: Cluster,
    step_seconds: float,
    breakdown: Mapping[str, float],
    assumed: Collection[str],
    law: Mapping[str, float],
    *,
    unread: Collection[str] = (),
    source: str = "own",
) -> Facts:
    """Returns the facts of any projection of ``workload``. ``breakdown``: exposed seconds by part, empty where there is
    none; ``law``: coefficients of :mod:`projector.reference_law`; ``unread``: words of the input that nobody understood."""
    processor = cluster.gpu.vendor == "cpu"
    return Facts(
        step_seconds=step_seconds,
        shares=effects.shares(breakdown, crossing=crossing(workload, cluster.gpus_per_node)),
        gpu=cluster.gpu.name,
        framework=workload.framework,
        family=workload.model.family,
        model=workload.model.name,
        tokens=workload.tokens_per_step / workload.gpus,
        source=source,
        assumed=frozenset(kinds(assumed)) | (frozenset({"unread"}) if unread else frozenset()),
        law=0.0 if processor else _law(workload, cluster, step_seconds, law),
        processor=processor,
    )


def crossing(workload: Workload, domain: int) -> frozenset[str]:
    """Returns which exchanges, ``ep`` and ``dp``, leave the ``domain`` of GPUs that a fast fabric joins. Ranks of
    tensor and expert parallelism are neighbours; those of data parallelism are the farthest apart."""
    recipe = workload.recipe
    experts = recipe.ep * (recipe.etp or 1)
    return frozenset(name for name, wide in (("ep", experts), ("dp", workload.gpus)) if wide > domain)


def kinds(assumed: Collection[str]) -> set[str]:
    """Returns the :data:`projector.effects.ASSUMPTIONS` among assumed entries such as
    ``micro_batch_size=1 (not stated)``."""
    return {kind for kind, words in _KINDS for entry in assumed if words.match(entry)}


def memory_grade(projection: Projection, assumed: Collection[str] = ()) -> str:
    """Returns the kind of the evidence for the memory, one of :data:`projector.posterior.GRADES`: how far off a peak
    may be was seen on measured runs, except for layers whose saved tensors nobody has counted. ``assumed``: what the
    reader of its configuration assumed."""
    if kinds((*assumed, *projection.assumed)):
        return posterior.ASSUMED
    return posterior.MODELLED if uncounted(projection.resolved.workload.model) else posterior.ELSEWHERE


def _law(workload: Workload, cluster: Cluster, step_seconds: float, coefficients: Mapping[str, float]) -> float:
    if not coefficients:
        return 0.0
    flops = flops_per_token(workload, "megatron-2026-05") * workload.tokens_per_step
    return reference_law.excess(
        reference_law.log_step(coefficients, workload, cluster.gpu, flops), math.log(step_seconds)
    )
