"""Laws of compressed sparse attention and of a residual of several streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.layers.lower import layer
from projector.operators.types import Attention, Collective, Gemm
from projector.pipeline.schedules import build
from projector.projection import project
from projector.step.boundary import activations
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.workloads import workload

FLASH = zoo.load("deepseek_v4_flash")


def blocks(model, **recipe):
    case = resolve(workload(model, **{"global_batch_size": 8, "ep": 8} | recipe), "nvidia", "hopper")
    return {kind.name: layer(kind, case) for kind in dict.fromkeys(model.layer_kinds)}


def test_keys_of_a_query_are_bounded_and_grow_with_the_sequence() -> None:
    sizes = FLASH.compressed
    for seq in (64, 4096, 131072, 2**20):
        window, chosen, all_entries = (sizes.keys(ratio, seq) for ratio in (0, 4, 128))
        assert window <= min(128, seq)
        assert window <= chosen <= window + min(512, seq / 4)
        assert all_entries == pytest.approx(window + seq / 256)
    assert sizes.keys(128, 2**20) > sizes.keys(4, 2**20) > sizes.keys(4, 4096)


def test_a_longer_sequence_costs_the_indexer_its_square_and_attention_its_length() -> None:
    short, long = (blocks(FLASH, seq_length=seq)["compressed4_moe"].forward for seq in (8192, 32768))
    scores = [sum(op.flops for op in ops if op.name == "indexer.scores") for ops in (short, long)]
    core = [sum(op.flops for op in ops if isinstance(op, Attention)) for ops in (short, long)]
    assert scores[1] == pytest.approx(16 * scores[0])
    assert 4 * core[0] <= core[1] < 4.5 * core[0]
    assert not any(op.name == "indexer.scores" for op in blocks(FLASH)["compressed128_moe"].forward)


def test_a_trained_indexer_costs_more_and_its_gradient_stays_its_own() -> None:
    """Attention's scores once more (half of its forward: no values), weight gradients of the indexer, nothing below it."""
    learning = replace(FLASH, compressed=replace(FLASH.compressed, trained=True))
    frozen, trained = (blocks(model)["compressed4_moe"] for model in (FLASH, learning))
    flops = {op.name: op.flops for op in trained.forward if isinstance(op, Attention)}
    assert flops["indexer.target"] == flops["core_attn"] / 2
    for phase in ("forward", "backward_input", "backward_weight"):
        one, other = ({op.name for op in getattr(block, phase)} for block in (frozen, trained))
        assert one < other
        assert all(name.startswith("indexer") for name in other - one)
        assert "indexer.q.dgrad" not in other
    assert trained.saved_bytes > frozen.saved_bytes
    assert blocks(learning)["compressed128_moe"] == blocks(FLASH)["compressed128_moe"]
    cluster = catalogue.default_cluster("mi355x")
    runs = [
        project(workload(model, framework="primus", global_batch_size=8, ep=8), cluster) for model in (FLASH, learning)
    ]
    assert runs[0].step_seconds < runs[1].step_seconds
    assert runs[0].memory.required <= runs[1].memory.required


def test_streams_widen_what_is_kept_and_what_is_sent() -> None:
    """At four streams: four times the message between stages, 24 × 4 h of projection for each half of a layer."""
    one = replace(FLASH, hyper_connections=0)
    sent = []
    for model in (FLASH, one):
        case = resolve(workload(model, global_batch_size=8, pp=4, ep=2), "nvidia", "hopper")
        sent.append(sum(each.bytes for each in activations(case, build("1f1b", 4, 1, 8)) if each))
    assert sent[0] == 4 * sent[1] > 0
    wide, plain = blocks(FLASH)["compressed0_moe"], blocks(one)["compressed0_moe"]
    assert wide.saved_bytes > plain.saved_bytes + 2 * 3 * 2 * 4096 * 4096
    products = [sum(op.flops for op in each.forward if isinstance(op, Gemm)) for each in (wide, plain)]
    assert products[0] - products[1] == 2 * 2 * 4096 * 24 * 4 * 4096


def test_ranks_that_share_a_sequence_gather_entries_and_get_what_is_before_them() -> None:
    """A rank's tokens, the window's hidden states from its neighbour, the entries of all; the last rank sees most keys."""
    whole, split = blocks(FLASH, ep=4), blocks(FLASH, cp=4, ep=4)
    sizes = FLASH.compressed
    assert sizes is not None
    assert whole["compressed0_moe"].held.total == split["compressed0_moe"].held.total
    h, d, seq = FLASH.hidden_size, FLASH.kv_channels, 4096
    for ratio, entries in ((0, 0), (4, seq // 4), (128, seq // 128)):
        for phase, kind in (("forward", "all_gather"), ("backward_input", "reduce_scatter")):
            found = [op for op in getattr(split[f"compressed{ratio}_moe"], phase) if isinstance(op, Collective)]
            sent = [op.bytes for op in found if op.kind == "send_recv"]
            wide = d + (sizes.index_head_dim if ratio == 4 and phase == "forward" else 0)
            assert sent == [2 * h * 128]
            assert sum(op.bytes for op in found if op.kind == kind and op.group == "cp") == 2 * entries * wide
        cores = [
            op for each in (whole, split) for op in each[f"compressed{ratio}_moe"].forward if op.name == "core_attn"
        ]
        assert [op.keys for op in cores] == [sizes.keys(ratio, seq), sizes.keys(ratio, seq, 4)]
        assert cores[0].flops / 4 < cores[1].flops < cores[0].flops / 2
        # all parts of a sequence together: the mean over growing prefixes gives the last part back
        last = 4 * sizes.keys(ratio, seq) - 3 * sizes.keys(ratio, 3 * seq // 4)
        assert sizes.keys(ratio, seq, 4) == pytest.approx(last)
    cluster = catalogue.default_cluster("h200_sxm")
    times = [
        project(Workload(model=FLASH, recipe=Recipe(micro_batch_size=1, global_batch_size=8, seq_length=32768, ep=8, cp=cp),
                         gpus=8), cluster).step_seconds for cp in (1, 2, 8)
    ]  # fmt: skip
    assert 1 < times[1] / times[0] < 2


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(Unsupported, match="fewer than 128 tokens"):
        blocks(FLASH, cp=8, seq_length=512)
    with pytest.raises(InputError, match="compress_ratios"):
        zoo.load("deepseek_v4_flash", compressed={"compress_ratios": "every fourth"})
