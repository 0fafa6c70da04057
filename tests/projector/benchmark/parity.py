"""What two ranks compute with split layers against what one computes with whole ones; run by ``test_two_processes``."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from projector.benchmark.layers_decoder import DecoderLayer
from projector.benchmark.layers_dtensor import mesh_of, split, whole
from projector.benchmark.layers_moe import Routed
from projector.benchmark.layers_parallel import Group, Ranks
from projector.benchmark.layers_parts import LayerSetup
from projector.mechanisms import Execution
from projector.workload import zoo
from projector.workload.model import decoder
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

__all__ = ["differences"]

_APART = Execution.of(fusion={"qkv": False, "gate_up": False}, tensor_parallel={"strategy": "dtensor"})
_ROWS = ("proj", "fc2")  # split by what goes in


def differences(_: object, __: object, ___: object) -> dict[str, float]:
    """Largest difference of an output or a gradient, by kind of split."""
    rank = dist.get_rank()
    group = Group(2, rank, dist.group.WORLD)
    return {
        "tensor parallel": _layer(Ranks(tp=group)),
        "sequence parallel": _layer(Ranks(tp=group, sequence_parallel=True)),
        "dtensor": _dtensor(Ranks(tp=group)),
        "alibi": _layer(Ranks(tp=group), position_embedding_type="alibi"),
        "alibi, dtensor": _dtensor(Ranks(tp=group), position_embedding_type="alibi"),
        "experts": _experts(Ranks(ep=group)),
    }


def _made(ranks: Ranks, **differs: Any) -> LayerSetup:
    sizes = {"num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 8, "vocab_size": 64, **differs}
    model = zoo.load("llama3_8b", num_layers=1, hidden_size=32, ffn_hidden_size=48, **sizes)
    made = Recipe(micro_batch_size=2, global_batch_size=2, seq_length=8, precision="fp32")
    return LayerSetup(Workload(model=model, recipe=made, gpus=2), "cpu", ranks, _APART)


def _reference(**differs: Any) -> tuple[DecoderLayer, torch.Tensor]:
    torch.manual_seed(0)
    layer = DecoderLayer(_made(Ranks(), **differs), decoder(False))
    x = torch.randn(16, 32, requires_grad=True)
    return layer, x


def _layer(ranks: Ranks, **differs: Any) -> float:
    reference, x = _reference(**differs)
    out = reference(x)
    out.square().sum().backward()
    split_layer = DecoderLayer(_made(ranks, **differs), decoder(False))
    rank = ranks.tp.rank
    with torch.no_grad():
        for (name, own), (_, full) in zip(split_layer.named_parameters(), reference.named_parameters(), strict=True):
            if own.shape == full.shape:
                own.copy_(full)
            else:
                own.copy_(full.chunk(2, dim=1 if any(row in name for row in _ROWS) else 0)[rank])
    mine = slice(8 * rank, 8 * rank + 8) if ranks.sequence_parallel else slice(None)
    y = x.detach()[mine].clone().requires_grad_(True)
    got = split_layer(y)
    got.square().sum().backward()
    assert y.grad is not None
    return max(_largest(got, out[mine]), _largest(y.grad, x.grad[mine]))


def _dtensor(ranks: Ranks, **differs: Any) -> float:
    reference, x = _reference(**differs)
    out = reference(x)
    torch.manual_seed(0)
    made = _made(ranks, **differs)
    layer = split(DecoderLayer(whole(made), decoder(False)), mesh_of("cpu", ranks.tp.handle))
    got = layer(x.detach())
    return _largest(got, out)


def _experts(ranks: Ranks) -> float:
    base = _made(Ranks())
    model = zoo.load("qwen3_30b_a3b", num_layers=1, hidden_size=32, vocab_size=64)
    assert model.moe is not None
    moe = replace(model.moe, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=16, moe_layer_freq=(1,))
    work = replace(base.workload, model=replace(model, moe=moe))
    torch.manual_seed(0)
    reference = Routed(replace(base, workload=work), moe)
    x = torch.randn(16, 32)
    own = Routed(replace(base, workload=work, ranks=ranks), moe)
    rank = ranks.ep.rank
    with torch.no_grad():
        own.router.linear.weight.copy_(reference.router.linear.weight)
        own.experts.fc1.copy_(reference.experts.fc1.chunk(2)[rank])
        own.experts.fc2.copy_(reference.experts.fc2.chunk(2)[rank])
    mine = slice(8 * rank, 8 * rank + 8)
    return _largest(own(x[mine]), reference(x)[mine])


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).detach().abs().max())
