"""Real layers on the CPU: shrunk to one rank, timed, compared with their projection and put back into the whole run."""

import json
import math
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from benchmark_cases import SMALL
from docs_tools import code

from projector.benchmark.device import Device
from projector.benchmark.shrink import shrink_to
from projector.cli.source import workload
from projector.errors import InputError
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.intake import huggingface
from projector.kernels.protocol import ComputeOp, Times
from projector.projection import project
from projector.workload import zoo
from projector.workload.model import decoder
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.workloads import workload as made
from tests.workloads import written


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    changes = {"model.base": "deepseek_v2_lite", "model.num_attention_heads": 2}
    return written(tmp_path / "routed.yaml", SMALL, changes)


def _whole(**recipe: int) -> Workload:
    return made("mixtral_8x7b", 64, **recipe)


def test_shrinking_keeps_what_one_rank_computes() -> None:
    whole = _whole(tp=2, pp=4, ep=4, cp=2)
    made = shrink_to(whole, 1)
    alone, notes = made.workload, made.notes
    model, small = whole.model, alone.model
    assert model.moe is not None
    assert small.moe is not None
    assert alone.gpus == 1
    assert (alone.recipe.tp, alone.recipe.pp, alone.recipe.ep, alone.recipe.cp) == (1, 1, 1, 1)
    assert small.num_attention_heads == model.num_attention_heads // 2
    assert small.kv_channels == model.kv_channels
    assert small.hidden_size == model.hidden_size
    assert small.moe.num_experts == model.moe.num_experts // 4
    assert small.moe.moe_router_topk == 2
    assert alone.recipe.seq_length == 2048
    assert any("rank's own tokens" in note for note in notes)


def test_an_unsplit_workload_shrinks_to_itself() -> None:
    made = shrink_to(_whole(), 1)
    assert replace(made.workload.model, vocab_size=0) == replace(_whole().model, vocab_size=0)
    assert made.notes == ()


def test_fewer_experts_than_a_token_reaches_take_as_many_rows() -> None:
    made = shrink_to(_whole(ep=8), 1)
    moe = made.workload.model.moe
    assert (moe.num_experts, moe.moe_router_topk) == (1, 2)
    assert made.workload.recipe.moe_router_force_load_balancing
    assert any("take turns" in note for note in made.notes)


def _layer(work: Workload, cpu: Device, moe: bool) -> tuple[Any, Any]:
    from projector.benchmark import source
    from projector.benchmark.layers_parts import LayerSetup

    made = LayerSetup(work, execution=resolve(work, cpu.vendor, cpu.arch).execution)
    return made, source.find("torch", made).layer(decoder(moe))


@pytest.mark.parametrize("moe", [False, True])
def test_a_layer_keeps_its_shape_and_gives_every_weight_a_gradient(cpu: Device, routed: Path, moe: bool) -> None:
    alone = shrink_to(workload(str(routed)), 1).workload
    made, layer = _layer(alone, cpu, moe)
    x = cpu.torch.randn(made.tokens, alone.model.hidden_size, dtype=made.dtype, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())


def test_a_layer_has_the_parameters_that_are_counted(cpu: Device, small: Path) -> None:
    alone = shrink_to(workload(str(small)), 1).workload
    _, layer = _layer(alone, cpu, False)
    h, f, width = 64, 128, 16
    attention = h * (4 + 2 * 2) * width + 4 * width * h
    assert sum(weight.numel() for weight in layer.parameters()) == attention + 3 * h * f + 2 * h


def test_alibi_takes_its_slope_off_by_the_distance() -> None:
    """The published slopes of 8 and of 12 heads (arXiv:2108.12409 §3 and its code), and attention by its definition."""
    torch = pytest.importorskip("torch")
    from projector.benchmark.layers_attention import Attention, distances, slopes
    from projector.benchmark.layers_parts import LayerSetup

    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(12) == pytest.approx([2.0**-i for i in range(1, 9)] + [2.0**-i for i in (0.5, 1.5, 2.5, 3.5)])
    sizes = {"num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 8, "hidden_size": 32}
    model = zoo.load("llama3_8b", num_layers=1, position_embedding_type="alibi", **sizes)
    recipe = Recipe(micro_batch_size=2, global_batch_size=2, seq_length=6, precision="fp32")
    layer = Attention(LayerSetup(Workload(model=model, recipe=recipe, gpus=1)))
    x = torch.randn(12, 32)
    q, k, v = (t.unflatten(0, (2, 6)).unflatten(-1, (-1, 8)) for t in layer.qkv[0](x).split([32, 16, 16], dim=-1))
    k, v = (t.repeat_interleave(2, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
    for head in range(4):
        for query in range(6):
            for key in range(6):
                scores[:, head, query, key] -= slopes(4)[head] * (query - key) if key <= query else math.inf
    mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(12, 32)
    torch.testing.assert_close(layer(x), layer.proj(mixed))
    every = distances(4, 0, 4, 6, torch.float32, x.device)
    assert torch.equal(distances(4, 2, 2, 6, torch.float32, x.device), every[2:])


def test_layers_twice_as_slow_make_a_slower_step(small: Path) -> None:
    whole = workload(str(small))
    cluster = catalogue.cluster("cpu")

    class Twice:
        name = "twice"

        def __init__(self, base: object) -> None:
            self._base = base

        def times(self, ops: list[ComputeOp]) -> Times:
            base = self._base.times(ops)  # type: ignore[attr-defined]
            return Times(base.seconds * 2.0, np.ones(len(ops), dtype=np.bool_))

    plain, slower = project(whole, cluster), project(whole, cluster, corrected=Twice)
    assert plain.step_seconds < slower.step_seconds < 2.0 * plain.step_seconds + 1e-9
    assert slower.measured_share > 0.25


def test_the_command_prints_each_part_and_the_whole(small: Path, cpu: Device) -> None:
    flags = ["--config", str(small), "--device", "cpu", "--budget", "0.1"]
    shown = command_line.told("projector", "benchmark", *flags)
    assert "layer dense, backward" in shown
    assert "tables ms" not in shown  # of a CPU nobody has any
    assert "with these layers" in shown
    document = command_line.document("projector", "benchmark", *flags)
    assert document["step_seconds"]["share"] > 0
    parts = {each["part"]: each for each in document["step"]}
    assert {f"{part}, {way}" for part in ("embedding", "layer dense", "head") for way in ("forward", "backward")} < set(
        parts
    )
    assert all(each["measured"] > 0 for name, each in parts.items() if name.startswith(("layer", "head", "step")))


# Layers of a Hugging Face configuration stand in for the project's own, and weights of one shard for those of a run.


CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "norm_topk_prob": True, "max_position_embeddings": 64, "hidden_act": "silu",
    "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
}  # fmt: skip

SIZES = {"hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "num_query_groups": 4, "vocab_size": 128}


def _work(path: Path) -> Workload:
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    recipe = Recipe(tp=1, micro_batch_size=2, global_batch_size=2, seq_length=32, precision="fp32")
    return Workload(model=huggingface.load(path).model, recipe=recipe, gpus=1, framework="pytorch")


def test_a_layer_of_transformers_has_the_weights_of_ours(cpu: Device, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import torch

    from projector.benchmark import source
    from projector.benchmark.layers_parts import LayerSetup

    work = _work(tmp_path / "config.json")
    made = LayerSetup(work, execution=resolve(work, cpu.vendor, cpu.arch).execution)
    kind = work.model.layer_kinds[0]
    ours, theirs = (source.find(name, made).layer(kind) for name in ("torch", f"transformers:{tmp_path}/config.json"))
    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in (ours, theirs)]
    assert sizes[0] == sizes[1]
    x = torch.randn(64, 64, requires_grad=True)
    out = theirs(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(weight.grad is not None for weight in theirs.parameters())


def test_without_transformers_the_command_says_what_to_install(cpu: Device, tmp_path: Path, monkeypatch) -> None:
    from projector.benchmark import source
    from projector.benchmark.layers_parts import LayerSetup

    monkeypatch.setattr(source.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install transformers"):
        source.find("transformers:config.json", LayerSetup(_work(tmp_path / "config.json"), cpu.place))
    monkeypatch.undo()
    if util.find_spec("transformers") is not None:
        with pytest.raises(InputError, match="that transformers reads"):
            source.find(f"transformers:{tmp_path}/none/", LayerSetup(_work(tmp_path / "config.json"), cpu.place))


def test_the_adapter_of_the_page_is_timed(cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from projector.benchmark import measured

    (text,) = code("extend/live-layers.md", "python")
    (tmp_path / "our_layers.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    work = replace(_work(tmp_path / "config.json"), model=zoo.load("llama3_8b", num_layers=1, **SIZES))
    found = measured.measure(work, catalogue.cluster("cpu"), cpu, layers="our_layers:source", budget=0.01)
    assert found.timings.source == "ours"
    assert measured.restore(found, work, catalogue.cluster("cpu")).step_seconds > 0


def test_one_shard_computes_what_a_whole_weight_does(cpu: Device, tmp_path: Path) -> None:
    """Of a run whose weights are sharded tensors one rank times them as such, whoever else there is not."""
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor import DTensor

    from projector.benchmark import source
    from projector.benchmark.layers_parallel import Group, Ranks
    from projector.benchmark.layers_parts import LayerSetup

    work = _work(tmp_path / "config.json")
    execution = resolve(work, cpu.vendor, cpu.arch).execution
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        outs = []
        for ranks in (Ranks(), Ranks(tp=Group(1, 0, dist.group.WORLD))):
            torch.manual_seed(0)
            layers = source.find("torch", LayerSetup(work, "cpu", ranks, execution))
            parts = [layers.embedding(), layers.layer(work.model.layer_kinds[0]), layers.head()]
            ids = torch.arange(64).view(2, 32)
            outs.append(parts[2](parts[1](parts[0](ids)), ids))
        assert outs[0].item() == pytest.approx(outs[1].item())
        assert any(isinstance(weight, DTensor) for weight in parts[1].parameters())
    finally:
        dist.destroy_process_group()
