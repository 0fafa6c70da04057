"""Experts that compute nothing, queries through a latent, layers that lack a half: against real modules, and their laws."""

from dataclasses import replace
from typing import Any

import pytest
from lowering_cases import flops, named, resolved

from projector.hardware import catalogue
from projector.layers.lower import embedding, head, layer
from projector.projection import project
from projector.workload import zoo
from projector.workload.layer_kinds import Dense, PerLayer
from projector.workload.model import LayerKind
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def test_experts_that_return_their_input_take_rows_from_those_that_compute() -> None:
    model = zoo.load("longcat_flash")
    kind = model.layer_kinds[0]
    with_, none = (
        layer(kind, resolved(each, ep=8))
        for each in (model, replace(model, moe=replace(model.moe, zero_expert_num=0, moe_router_topk=12)))
    )
    rows = [named(block.forward, "experts.fc1").rows for block in (with_, none)]
    assert rows[0] / rows[1] == pytest.approx(512 / 768, rel=1e-3)
    assert [named(block.forward, "router").n for block in (with_, none)] == [768, 512]
    assert with_.held.total - none.held.total == 256 * 6144
    assert named(with_.forward, "zero_experts").write == 2 * 4096 * 6144
    twelve = count(replace(model, moe=replace(model.moe, zero_expert_num=0))).active
    idle = count(model).active - 28 * 8 * 3 * 6144 * 2048
    embedding = 131072 * 6144  # which the paper's 18.6 to 31.3 B leave out (arXiv:2509.01322, table 1)
    assert (idle - embedding) / 1e9 == pytest.approx(18.6, abs=0.1)
    assert (twelve - embedding) / 1e9 == pytest.approx(31.3, abs=0.1)


def test_a_layer_without_halves_costs_nothing_and_layers_add_up() -> None:
    base = zoo.load("llama3.1_8b", num_layers=4)
    heads, widths = (32, 0, 32, 0), (14336, 4096, 0, 0)
    model = replace(base, per_layer=PerLayer(num_attention_heads=heads, ffn_hidden_size=widths))
    kinds = model.layer_kinds
    assert [kind.name for kind in kinds] == ["dense", "dense", "attention", "empty"]
    blocks = [layer(kind, resolved(model)) for kind in kinds]
    assert not blocks[3].forward
    assert not blocks[3].weights
    assert blocks[3].saved_bytes == 0
    full = layer(LayerKind(), resolved(base))
    half = layer(LayerKind(None, Dense()), resolved(base))
    assert flops(blocks[2].forward) + flops(half.forward) == pytest.approx(flops(full.forward))
    assert sum(block.held.total for block in blocks) == count(model).main - 2 * 128256 * 4096 - 4096
    work = Workload(
        model=model,
        recipe=Recipe(micro_batch_size=1, global_batch_size=16, seq_length=4096, pp=2, data_parallel_sharding="optim"),
        gpus=8,
    )
    cluster = catalogue.cluster("h100")
    searched, whole = (project(each, cluster) for each in (work, replace(work, model=base)))
    assert searched.step_seconds < whole.step_seconds


def test_real_ones_agree() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")
    from test_real_modules import GQA, ROUTED, eager, same  # type: ignore[import-not-found]

    from tests.projector.layers import torch_layers as real

    class Spread(real.Experts):  # type: ignore[misc]
        """Top-k over experts of which some return their input; every one is chosen as often."""

        def __init__(self, model: Any) -> None:
            super().__init__(model)
            self.moe = model.moe
            self.router = torch.nn.Linear(model.hidden_size, self.moe.scored, False)

        def forward(self, x: Any) -> Any:
            flat, n = x.flatten(0, 1), self.moe.num_experts
            scores = self.router(flat).float().softmax(-1)
            chosen = (torch.arange(len(flat))[:, None] * self.k + torch.arange(self.k)) % self.moe.scored
            weights = scores.gather(-1, chosen).to(x.dtype)
            idle = (weights * (chosen >= n)).sum(-1, keepdim=True)
            order = chosen.flatten().argsort()
            sizes = torch.bincount(chosen.flatten(), minlength=self.moe.scored)[:n].tolist()
            own = order[: sum(sizes)]
            rows, factors = flat[own // self.k], weights.flatten()[own, None]
            work = zip(self.experts, rows.split(sizes), factors.split(sizes), strict=True)
            done = [each(*part) for each, *part in work]
            out = torch.cat((*done, flat.new_zeros(len(order) - len(own), flat.shape[-1])))
            out = out[order.argsort()].unflatten(0, (-1, self.k)).sum(1)
            return (out + flat * idle).view_as(x)

    class Factored(real.Attention):  # type: ignore[misc]
        """Queries through a latent with a norm of its own."""

        def __init__(self, model: Any) -> None:
            super().__init__(model)
            rank, width = model.share_q_dim, model.num_attention_heads * model.kv_channels
            up, normed = torch.nn.Linear(rank, width, False), real.RMSNorm(rank)
            self.q = torch.nn.Sequential(torch.nn.Linear(model.hidden_size, rank, False), normed, up)

    model = replace(GQA, moe=replace(ROUTED, zero_expert_num=8, moe_shared_expert_intermediate_size=0))
    (kind,) = model.layer_kinds
    module = real.Layer(model, kind)
    module.mlp = Spread(model)
    same(layer(kind, eager(model)), module, model)

    model = replace(GQA, share_q_dim=96)
    (kind,) = model.layer_kinds
    module = real.Layer(model, kind)
    module.attention = Factored(model)
    same(layer(kind, eager(model)), module, model)


def test_the_heads_of_an_encoder_are_what_real_ones_are() -> None:
    """Masked words through a linear, an activation and a norm; the next sentence through two linears on the first token."""
    model = zoo.load("bert_base", vocab_size=30592)  # whole multiples of 128: no padding
    for change in ({}, {"tp": 4}, {"pp": 2}):
        case = resolved(model, **change)
        ends = [head(case), embedding(case)]
        assert {"lm_dense", "pooler", "binary_head", "output.bias"} <= {each.name for each in ends[0].weights}
        assert {"embedding", "positions", "tokentypes"} <= {each.name for each in ends[1].weights}
    made = resolved(model)
    layers = sum(layer(kind, made).held.total for kind in model.layer_kinds)
    assert head(made).owned.total + embedding(made).held.total + layers == count(model).main
    torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")
    from test_real_modules import CLASSIC, GQA, eager, same  # type: ignore[import-not-found]

    class Heads(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, h: int, words: int) -> None:
            super().__init__()
            self.dense, self.norm, self.words = torch.nn.Linear(h, h), torch.nn.LayerNorm(h), torch.nn.Linear(h, words)
            self.pooler, self.pair = torch.nn.Linear(h, h), torch.nn.Linear(h, 2)

        def forward(self, x: Any) -> Any:
            normed = self.norm(torch.nn.functional.gelu(self.dense(x)))
            logits = self.words(normed).float().flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            return loss + self.pair(self.pooler(x[:, 0]).tanh()).float().sum()

    small = replace(GQA, num_query_groups=8, causal=False, masked_lm_head=True, bert_binary_head=True, **CLASSIC)
    same(head(eager(small)), Heads(small.hidden_size, small.vocab_size), small)
