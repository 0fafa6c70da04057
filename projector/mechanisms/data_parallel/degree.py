"""The strategy that runs a recipe's degree of sharding in a framework."""

from __future__ import annotations

from projector.errors import Unsupported
from projector.mechanisms.data_parallel.base import DataParallel
from projector.mechanisms.data_parallel.ddp import DDP, DistributedOptimizer, TorchDDP, Zero2, ZeroRedundancy
from projector.mechanisms.data_parallel.fsdp2 import FSDP2
from projector.mechanisms.data_parallel.sharded import FSDP1, MegatronFSDP

_BY_DEGREE: dict[str, type[DataParallel]] = {
    kind.degree: kind for kind in (DDP, DistributedOptimizer, Zero2, MegatronFSDP)
}


def of_degree(strategy: DataParallel, degree: str | None) -> DataParallel:
    """Returns ``strategy`` where a recipe shards as it does (``data_parallel_sharding``), else the one of that degree,
    with the same parameters. PyTorch's own divide weights even then, and leave each gathered until its backward: who
    divides gradients alone keeps weights of 16 bits, and fp32 copies of a rank's shard (ColossalAI@4f9953be
    colossalai/zero/low_level/low_level_optim.py, Fast-LLM@7d61a1ba fast_llm/engine/multi_stage/fsdp.py). An optimizer
    without copies of its own steps the weights themselves, as torch's do: its full sharding is torch's.
    Raises :class:`Unsupported` for an unknown degree."""
    kind = _BY_DEGREE.get(degree or DDP.degree)
    if kind is None:
        raise Unsupported(f"data-parallel sharding {degree!r}")
    if kind is DDP and strategy.always_divides_states:
        kind = DistributedOptimizer
    if kind is MegatronFSDP and not strategy.master_bytes:
        kind = FSDP2
    if kind is Zero2 and isinstance(strategy, FSDP1 | FSDP2):
        return strategy.evolve({"keeps_gathered": True})
    if kind is DistributedOptimizer and isinstance(strategy, TorchDDP):
        kind = ZeroRedundancy
    if kind is Zero2 and strategy.autocast and strategy.parameter_bytes > 2.0:
        return Zero2(**strategy.carried(kind) | {"parameter_bytes": 2.0, "master_bytes": 4.0, "autocast": False})
    return strategy if strategy.degree == kind.degree else kind(**strategy.carried(kind))
