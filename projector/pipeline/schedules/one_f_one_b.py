"""1F1B (PipeDream-Flush): as many forwards ahead as stages below, then one forward, one backward."""

from __future__ import annotations

from projector.pipeline.schedules.split import alternate
from projector.pipeline.types import Action, Generator, Schedule, actions, loop_placement


def build(pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> Schedule:
    """Warm-up of ``min(m, pp − r − 1)`` forwards on rank ``r``; ``group`` does not apply."""
    del vpp, group
    orders = tuple(_rank(min(microbatches, pp - rank - 1 + extra_warmup), microbatches) for rank in range(pp))
    return Schedule("1f1b", pp, 1, microbatches, False, orders, loop_placement(pp, 1))


def _rank(warmup: int, microbatches: int) -> tuple[Action, ...]:
    forward, backward = actions("F", 0, microbatches), actions("B", 0, microbatches)
    return (*forward[:warmup], *alternate(forward[warmup:], backward), *backward[microbatches - warmup :])


GENERATOR = Generator(
    name="1f1b",
    build=build,
    chunks=1,
    split=False,
    aliases=("one-forward-one-backward", "pipedream-flush", "no-pipeline", "none", "non-interleaved", "dapple"),
    run_by=("megatron", "primus", "torchtitan"),
    source="Narayanan et al., arXiv 2104.04473; Megatron-LM megatron/core/pipeline_parallel/schedules.py",
    looped="interleaved",
)
