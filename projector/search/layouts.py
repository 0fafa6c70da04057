"""Ways to lay the layers of a model on pipeline stages, as a framework can be told them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projector.settle import launch
from projector.workload.workload import Workload

__all__ = ["layouts", "written"]


def layouts(base: Workload, pp: int, vpp: int, *, v_shaped: bool = False) -> Iterator[dict[str, Any]]:
    """Evenly; embedding and loss counted as layers; and stages that differ by one layer, with embedding, loss and
    each layer of multi-token prediction counted as one, where that is none of these. A framework with a rule of its
    own for what does not divide (torchtitan) takes no other."""
    layers, stages = base.model.num_layers, pp * vpp
    if launch.family(base.framework) == "torchtitan":
        yield {}
        return
    even = layers % stages == 0
    if even:
        yield {}
    if (layers + 2) % stages == 0 and layers + 2 > stages:
        yield {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    elif (layers + 1) % stages == 0 and layers + 1 > stages:
        yield {"account_for_loss_in_pipeline_split": True}
    elif not v_shaped:
        found = written(layers, base.model.mtp_num_layers, stages)
        if found is not None:
            yield {"pipeline_model_parallel_layout": found}


def written(layers: int, mtp: int, stages: int) -> str | None:
    """Megatron-LM's layout string of stages that differ by one at most, the last ones the emptier: embedding, loss
    and each MTP layer stand for a layer. None where a stage would hold nothing."""
    each, more = divmod(layers + mtp + 2, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1 + mtp
    if counts[-1] < 0:  # what does not fit there moves to the stages before
        lacking, counts[-1] = -counts[-1], 0
        for stage in range(lacking):
            counts[-2 - stage % max(1, stages - 2)] -= 1
    if min(counts[1:-1], default=1) < 1 or counts[0] < 0 or stages < 2:
        return None
    parts = ["t" * count for count in counts]
    parts[0], parts[-1] = "E" + parts[0], parts[-1] + "m" * mtp + "L"
    return "|".join(parts)
