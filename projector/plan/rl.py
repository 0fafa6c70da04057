"""Projects a step of reinforcement learning (GRPO, PPO): generation, log-probabilities, training, new weights.

Only training and the passes beside it are modelled. How fast an engine generates is not: its rate is given, as a
measurement of the engine says it, and stands apart in every answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import fsum

from projector.collectives.model import seconds_of
from projector.collectives.placement import ranks_per_node, shape_of
from projector.dataclass import dataclass
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.projection import Projection, project
from projector.workload.parameters import count
from projector.workload.workload import Workload

_WEIGHT = 2.0  # bytes of a parameter in the engine that generates


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What is generated in a step: ``samples`` answers of ``response`` tokens (their mean) to each of ``prompts`` of
    ``prompt`` tokens, at ``rate`` tokens/s on each of ``gpus``. ``apart``: these are not the GPUs that train;
    ``ahead``: the answers of the next step are generated while this one trains (one step off policy)."""

    prompts: int
    samples: int
    prompt: int
    response: int
    rate: float
    gpus: int
    apart: bool = False
    ahead: bool = False

    @property
    def answers(self) -> int:
        return self.prompts * self.samples

    @property
    def seconds(self) -> float:
        """Returns the seconds of all answers, the GPUs evenly busy: the longest answers of a batch add to it what the
        given rate leaves out."""
        return self.answers * self.response / (self.rate * self.gpus)


@dataclass(frozen=True, kw_only=True)
class RlStep:
    """A projected step. ``parts``: seconds by name, in order of execution. ``updates``: optimizer steps on the answers."""

    rollout: Rollout
    updates: int
    parts: Mapping[str, float]
    made: Projection

    @property
    def seconds(self) -> float:
        """Returns the seconds of the whole step: the sum of its parts, or with generation ahead the longer side and the
        weights."""
        generation, weights = self.parts["generation"], self.parts["weights"]
        rest = fsum(self.parts.values()) - generation - weights
        return (max(generation, rest) if self.rollout.ahead else generation + rest) + weights

    @property
    def even(self) -> float:
        """Returns how many GPUs would generate as long as the others train, at the given rate."""
        rest = fsum(self.parts.values()) - self.parts["generation"] - self.parts["weights"]
        return self.rollout.gpus * self.parts["generation"] / rest


def rl_step(
    workload: Workload,
    cluster: Cluster,
    rollout: Rollout,
    updates: int = 1,
    reference: bool = True,
    critic: bool = False,
    settings: Settings = kernel_settings.DEFAULT,
) -> RlStep:
    """Projects a step of reinforcement learning. ``workload``: the policy that trains; its batch and length become those
    of the answers. ``reference``: a frozen model judges the answers, too; ``critic``: so does a value model of the same
    size (PPO), which then learns from them, in turn. Raises :class:`InputError` as :func:`projector.projection.project`."""
    length, batch = rollout.prompt + rollout.response, rollout.answers // updates
    recipe = replace(workload.recipe, global_batch_size=batch, seq_length=length)
    projection = project(replace(workload, recipe=recipe), cluster, settings=settings)
    passes = updates * forward_seconds(projection)
    parts = {
        "generation": rollout.seconds,
        "log-probabilities": passes,
        "reference": passes if reference else 0.0,
        "values": passes if critic else 0.0,
        "training": updates * projection.step_seconds,
        "critic": updates * projection.step_seconds if critic else 0.0,
        "weights": weight_seconds(projection, cluster, rollout),
    }
    return RlStep(rollout=rollout, updates=updates, parts=parts, made=projection)


def forward_seconds(projection: Projection) -> float:
    """Returns the seconds of a forward of every micro-batch of a step through the pipeline: one through all stages, and
    of the others what the slowest rank takes: Σ f + (m − 1) · max f."""
    work = projection.resolved.workload
    forward = [seconds for seconds, _ in projection.stage_seconds]
    ranks = [0.0] * work.recipe.pp
    for (rank, _), seconds in zip(projection.timeline.compiled.schedule.home, forward, strict=True):
        ranks[rank] += seconds
    return fsum(forward) + (work.num_microbatches - 1) * max(ranks)


def weight_seconds(projection: Projection, cluster: Cluster, rollout: Rollout) -> float:
    """Returns the seconds to gather the new weights in bf16 once over the GPUs that train, and those that generate apart."""
    gpus = projection.resolved.workload.gpus + rollout.gpus * rollout.apart
    size = _WEIGHT * count(projection.resolved.workload.model).total
    shape = shape_of(1, gpus, gpus, ranks_per_node(gpus, cluster))
    return float(seconds_of("all_gather", size, shape, cluster)) if gpus > 1 else 0.0
