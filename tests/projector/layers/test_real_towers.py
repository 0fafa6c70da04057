"""An encoder and a decoder that attends to it against a real pair of stacks, and their laws."""

from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
from lowering_cases import flops, resolved

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.layers import lower
from projector.memory.plan import plan
from projector.operators.types import Attention, Gemm
from projector.projection import project
from projector.settle.workload import settle
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.towers import Encoder
from projector.workload.workload import Workload

CLUSTER = catalogue.cluster("h100")
T5 = zoo.load("t5_large", vocab_size=32768)  # whole multiples of 128 · tp: no padding


def run(model: Any = T5, gpus: int = 8, **change: Any) -> Workload:
    given = {"micro_batch_size": 8, "global_batch_size": 64, "seq_length": 128, "encoder_seq_length": 512, **change}
    return Workload(model=model, recipe=Recipe(**given), gpus=gpus)


def blocks(model: Any, **change: Any) -> list[Any]:
    """Of every layer of both stacks, and of the ends."""
    case = resolved(model, **change)
    layers = [lower.layer(kind, case) for kind in (*model.tower_kinds, *model.layer_kinds)]
    return [*layers, lower.embedding(case), lower.head(case)]


def test_a_pair_of_stacks_is_what_a_real_one_is() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")
    from test_real_modules import BATCH, GQA, LENGTH, eager, same  # type: ignore[import-not-found]

    from tests.projector.layers import torch_layers as real
    from tests.projector.layers.torch_norms import _Flash

    model = replace(
        GQA, num_query_groups=8, vocab_size=0, num_layers=2, encoder=Encoder(num_layers=2), gated_linear_unit=False,
        position_embedding_type="relative",
    )  # fmt: skip
    there = 96

    class Biased(_Flash):  # type: ignore[misc]
        """Scores and a bias, which is saved."""

        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
            out = (scores.softmax(-1) @ v).transpose(1, 2).contiguous()
            ctx.save_for_backward(q, k, v, out, scores.float().logsumexp(-1), bias)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            q, k, v, out, lse, bias = ctx.saved_tensors
            out, grad, scale = out.transpose(1, 2), grad.transpose(1, 2), q.shape[-1] ** -0.5
            p = (q @ k.transpose(-1, -2) * scale + bias - lse[..., None]).exp().to(q.dtype)
            ds = p * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
            scaled = ds * scale
            return scaled @ k, scaled.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad, ds.sum(0, keepdim=True)

    class Reads(real.Attention):  # type: ignore[misc]
        """Queries of ``x``, keys and values of ``memory``; a bias on the scores or none."""

        def forward(self, x: Any, memory: Any, bias: Any = None) -> Any:
            heads = [(self.q, x), (self.k, memory), (self.v, memory)]
            q, k, v = (one(of).unflatten(-1, (-1, self.d)).transpose(1, 2) for one, of in heads)
            out = _Flash.apply(q, k, v) if bias is None else Biased.apply(q, k, v, bias)
            return self.o(out.flatten(2))

    class Layer(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, crosses: bool) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(real.RMSNorm(model.hidden_size) for _ in range(2 + crosses))
            self.attends = torch.nn.ModuleList(Reads(model) for _ in range(1 + crosses))
            self.mlp = real.FeedForward(model, model.ffn_hidden_size)

        def forward(self, x: Any, bias: Any, memory: Any) -> Any:
            normed = self.norms[0](x)
            x = x + self.attends[0](normed, normed, bias)
            if memory is not None:
                x = x + self.attends[1](self.norms[2](x), memory)
            return x + self.mlp(self.norms[1](x))

    class Both(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.ModuleList(Layer(False) for _ in range(2))
            self.decoder = torch.nn.ModuleList(Layer(True) for _ in range(2))
            self.tables = torch.nn.ModuleList(torch.nn.Embedding(32, 8) for _ in range(2))
            self.norm = real.RMSNorm(model.hidden_size)

        def bias(self, table: Any, n: int) -> Any:
            buckets = (torch.arange(n)[:, None] - torch.arange(n)).abs() % 32
            return table(buckets).permute(2, 0, 1)[None].contiguous()

        def forward(self, x: Any) -> Any:
            memory, bias = x[:, :there] * 1, self.bias(self.tables[0], there)
            for layer in self.encoder:
                memory = layer(memory, bias, None)
            memory, x, bias = self.norm(memory), x * 1, self.bias(self.tables[1], LENGTH)
            for layer in self.decoder:
                x = layer(x, bias, memory)
            return x

    made = eager(model)
    work = replace(made.workload, recipe=replace(made.workload.recipe, encoder_seq_length=there))
    made = replace(made, workload=work)
    assert work.recipe.micro_batch_size == BATCH
    same([lower.layer(kind, made) for kind in (*model.tower_kinds, *model.layer_kinds)], Both(), model)


def test_tensor_parallel_ranks_share_what_one_rank_does() -> None:
    """FLOP of products over the ranks, and their parameters: norms and tables of a half each, the rest in shards."""
    whole = blocks(T5, seq_length=128, encoder_seq_length=512)
    done = sum(flops((*each.forward, *each.backward_input, *each.backward_weight)) for each in whole)
    for tp in (2, 4, 8):
        shard = blocks(T5, seq_length=128, encoder_seq_length=512, tp=tp, sequence_parallel=True)
        assert tp * sum(flops((*b.forward, *b.backward_input, *b.backward_weight)) for b in shard) == pytest.approx(
            done
        )
    split = [weight for each in blocks(T5, tp=4) for weight in each.weights if not weight.borrowed]
    once = sum(weight.elements * (4 if weight.split else 1) for weight in split)
    assert once == count(T5).main


def test_attention_to_an_encoder_is_of_its_tokens_and_no_mask() -> None:
    kind = T5.layer_kinds[1]
    made = lower.layer(kind, resolved(T5, seq_length=128, encoder_seq_length=512))
    (cross,) = (op for op in made.forward if isinstance(op, Attention) and op.name == "cross_attn")
    assert (cross.seq_q, cross.seq_k, cross.causal) == (128, 512, False)
    kv = [op for op in made.forward if isinstance(op, Gemm) and op.name.startswith("cross_kv")]
    assert {op.m for op in kv} == {512}
    assert all(weight.name not in ("relative.decoder",) for weight in made.weights)
    short = lower.layer(kind, resolved(T5, seq_length=128, encoder_seq_length=1))
    plain = lower.layer(replace(kind, cross=False), resolved(T5, seq_length=128))
    h, q = T5.hidden_size, T5.num_attention_heads * T5.kv_channels
    assert flops(short.forward) - flops(plain.forward) == 2 * (128 * 2 * h * q + 2 * h * q)
    assert short.held.total - plain.held.total == 4 * h * q + h


def test_a_step_grows_with_the_encoder_and_recompute_frees_it() -> None:
    seconds = [project(run(encoder_seq_length=n), CLUSTER).step_seconds for n in (64, 256, 512, 1024)]
    assert seconds == sorted(seconds)
    alone = project(run(replace(T5, encoder=None), encoder_seq_length=None), CLUSTER)
    assert alone.step_seconds < seconds[0]
    both = project(run(), CLUSTER)
    assert 0 < both.mfu < 1
    full = project(run(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1), CLUSTER)
    assert full.step_seconds > both.step_seconds
    saved = [plan(each.resolved, CLUSTER.gpu).allocated for each in (both, full)]
    assert saved[1] < saved[0]


def test_what_is_not_known_of_an_encoder_is_refused() -> None:
    for reason, change in (
        ("pipeline", {"pp": 2}), ("sequence split", {"cp": 2}), ("document_lengths", {"document_lengths": (64, 64)}),
        ("recompute_num_layers", {"recompute_granularity": "full", "recompute_num_layers": 4}),
    ):  # fmt: skip
        refusal(settle, run(**change), CLUSTER, match=reason, kind=Unsupported)
    refusal(settle, run(replace(T5, encoder=None)), CLUSTER, match="no encoder")
    refusal(settle, run(tp=8, sequence_parallel=True, encoder_seq_length=100), CLUSTER, match="encoder_seq_length")
