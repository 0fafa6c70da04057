"""Whether the devices at hand have the memory that a measurement takes; where not, which smaller one they have it for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from projector.benchmark.device import Device
from projector.benchmark.launched import place
from projector.benchmark.timings import Asked
from projector.errors import InputError, Problem
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.memory.plan import plan
from projector.workload.model import Model
from projector.workload.workload import Workload

_ROOM = 0.9  # share of the free memory that a measurement may need
_GIB = 2.0**30
#: Bytes of a weight in an update that is timed by itself: itself, its gradient and Adam's moments in fp32; of 16 bits with
#: an fp32 copy itself, its gradient, the copy and its gradient, and the moments. Then what norm and clip take beside.
_STATE, _STATE_16, _BESIDE = 16.0, 20.0, 1.015


def needed(asked: Asked, workload: Workload | None = None) -> float:
    """Bytes of one rank: the shortened model in training (one layer of each kind), then a whole stage's update."""
    work = workload or asked.workload
    short = replace(work, model=_short(work.model, asked), framework=work.framework)
    found = plan(resolve(short), catalogue.gpu("cpu")).allocated
    per_layer = {part.key: part.count for part in asked.parts}
    weights = sum(_weights(work, moe="moe" in key) * count for key, count in per_layer.items())
    share = max((stage.share for stage in asked.stages), default=1.0)
    state = _BESIDE * (_STATE if work.recipe.precision == "fp32" else _STATE_16)
    return max(
        found, state * share * (weights + 2.0 * work.padded_vocab_size * work.model.hidden_size / work.recipe.tp)
    )


def check(asked: Asked, device: Device) -> None:
    """Raises :class:`InputError` where that is more than is free, with a change after which it would fit."""
    ranks = max(asked.ranks, asked.beside) if device.type == "cpu" else 1  # processes share the memory of a host
    free = device.free_bytes() * _ROOM / ranks
    wanted = needed(asked)
    if wanted <= free:
        return
    once = ((text, asked, work) for text, work in _smaller(asked.workload))
    piped = _piped(asked, dict(_smaller(asked.workload)))
    fits = next((text for text, less, work in (*once, *piped) if needed(less, work) <= free), "")
    expected = f"at most {free / _GIB:.2f} GiB of {device.title}: " + (
        f"with {fits} it would fit" if fits else "no smaller batch, sequence or share of the model fits either"
    )
    raise InputError([Problem(place(), "memory", f"{wanted / _GIB:.2f} GiB for a rank", expected)])


def _smaller(work: Workload) -> Iterator[tuple[str, Workload]]:
    """Smaller measurements, the mildest first."""
    recipe, model = work.recipe, work.model
    one = replace(recipe, micro_batch_size=1, global_batch_size=max(1, work.dp))
    if recipe.micro_batch_size > 1:
        yield "micro_batch_size 1", replace(work, recipe=one)
    for length in (recipe.seq_length // 2, recipe.seq_length // 4, recipe.seq_length // 8):
        if length:
            yield f"micro_batch_size 1 and seq_length {length}", replace(work, recipe=replace(one, seq_length=length))
    for ranks in (2, 4, 8, 16, 32, 64):
        if model.moe is not None and model.moe.num_experts % ranks == 0 and model.moe.num_experts > ranks:
            moe = replace(model.moe, num_experts=model.moe.num_experts // ranks)
            topk = replace(moe, moe_router_topk=min(moe.moe_router_topk, moe.num_experts))
            yield f"{ranks} times the ep", replace(work, model=replace(model, moe=topk), recipe=one)
    for ranks in (2, 4, 8, 16, 32, 64):
        if model.num_query_groups % ranks == 0:
            yield f"{ranks} times the tp", replace(work, model=_narrow(model, ranks), recipe=one)


def _piped(asked: Asked, others: Mapping[str, Workload]) -> Iterator[tuple[str, Asked, Workload]]:
    """Fewer layers of each kind on a rank, alone and with other shares: what one stage updates is timed as a whole."""
    for text, work in {"": asked.workload, **others}.items():
        for stages in (2, 4, 8, 16, 32, 64):
            parts = tuple(replace(part, count=-(-part.count // stages)) for part in asked.parts)
            yield f"{text}{' and ' if text else ''}{stages} times the pp", replace(asked, parts=parts), work


def _narrow(model: Model, ranks: int) -> Model:
    moe = model.moe and replace(model.moe, moe_ffn_hidden_size=max(1, model.moe.moe_ffn_hidden_size // ranks))
    return replace(
        model,
        num_attention_heads=max(1, model.num_attention_heads // ranks),
        num_query_groups=max(1, model.num_query_groups // ranks),
        ffn_hidden_size=max(1, model.ffn_hidden_size // ranks),
        vocab_size=max(1, model.vocab_size // ranks),
        moe=moe,
    )


def _short(model: Model, asked: Asked) -> Model:
    kinds = [part.kind for part in asked.parts]
    moe = model.moe and replace(model.moe, moe_layer_freq=tuple(int(kind.moe) for kind in kinds))
    return replace(model, num_layers=len(kinds), moe=moe)


def _weights(work: Workload, *, moe: bool) -> float:
    """Elements of one layer on one rank."""
    model, recipe = work.model, work.recipe
    gates = 3 if model.gated_linear_unit else 2
    attention = model.hidden_size * (model.num_attention_heads * 2 + model.num_query_groups * 2) * model.head_dim_qk
    if moe and model.moe:
        experts = model.moe.num_experts / recipe.ep * model.moe.moe_ffn_hidden_size / recipe.etp
        wide = experts + model.moe.moe_shared_expert_intermediate_size / recipe.tp
    else:
        wide = model.ffn_hidden_size / recipe.tp
    return attention / recipe.tp + gates * model.hidden_size * wide
