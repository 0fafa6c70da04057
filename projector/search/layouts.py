"""Ways to lay the layers of a model on pipeline stages, as a framework can be told them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from projector.settle import launch
from projector.workload.workload import Workload


def layouts(base: Workload, pp: int, vpp: int, *, v_shaped: bool = False) -> Iterator[dict[str, Any]]:
    """Evenly; embedding and loss counted as layers; a lighter first and last stage; and stages that differ by one layer,
    with embedding, loss and each layer of multi-token prediction counted as one, where they divide neither evenly nor
    counted. A framework with a rule of its own for what does not divide (torchtitan) takes no other."""
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
    if not v_shaped:
        yield from _ends(layers, pp, vpp)


def _ends(layers: int, pp: int, vpp: int) -> Iterator[dict[str, Any]]:
    """A last rank with fewer layers than the others, or a first and a last one: by one layer a chunk, or two."""
    first, last = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
    least = layers // (pp * vpp)
    for each in {vpp * least, vpp * (least + 1)} - {0}:
        left = layers - each * (pp - 1)
        if 0 < left < each <= left + 2 * vpp and left % vpp == 0:
            yield {last: left}
        rest = (layers - each * (pp - 2)) // vpp if pp > 2 else 0  # layers of each chunk of both ends together
        ends = {first: vpp * (rest - rest // 2), last: vpp * (rest // 2)}
        fits = layers == each * (pp - 2) + sum(ends.values())
        if fits and 0 < ends[last] <= ends[first] < each <= ends[last] + 2 * vpp:
            yield ends


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
    return spelled(counts, mtp)


def spelled(counts: Sequence[int], mtp: int) -> str:
    """Megatron-LM's layout string of stages with these ``counts`` of layers, and layers of multi-token prediction on the
    last."""
    middle = ((f"{_repeated(count)}|", len(list(same))) for count, same in groupby(counts[1:-1]))
    stages_between = "".join(stage if times == 1 else f"({stage})*{times}" for stage, times in middle)
    return f"E{_repeated(counts[0])}|{stages_between}{_repeated(counts[-1])}{'m' * mtp}L"


def _repeated(layers: int) -> str:
    return "t" * layers if layers < 4 else f"t*{layers}"
