"""Layers of a Hugging Face configuration stand in for the project's own, and weights of one shard for those of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest
from docs_tools import code

from projector.benchmark.device import Device
from projector.errors import InputError
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.intake import huggingface
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

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
    from projector.benchmark.layers_parts import Made

    work = _work(tmp_path / "config.json")
    made = Made(work, execution=resolve(work, cpu.vendor, cpu.arch).execution)
    kind = work.model.layer_kinds[0]
    ours, theirs = (source.find(name, made).layer(kind) for name in ("torch", f"transformers:{tmp_path}/config.json"))
    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in (ours, theirs)]
    assert sizes[0] == sizes[1]
    x = torch.randn(64, 64, requires_grad=True)
    out = theirs(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(weight.grad is not None for weight in theirs.parameters())


def test_without_transformers_the_command_says_what_to_install(
    cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from projector.benchmark import layers_transformers, source
    from projector.benchmark.layers_parts import Made

    monkeypatch.setattr(layers_transformers.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install transformers"):
        source.find("transformers:config.json", Made(_work(tmp_path / "config.json"), cpu.place))
    monkeypatch.undo()
    if util.find_spec("transformers") is not None:
        with pytest.raises(InputError, match="that transformers reads"):
            source.find(f"transformers:{tmp_path}/none/", Made(_work(tmp_path / "config.json"), cpu.place))


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
    from projector.benchmark.layers_parts import Made

    work = _work(tmp_path / "config.json")
    execution = resolve(work, cpu.vendor, cpu.arch).execution
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        outs = []
        for ranks in (Ranks(), Ranks(tp=Group(1, 0, dist.group.WORLD))):
            torch.manual_seed(0)
            layers = source.find("torch", Made(work, "cpu", ranks, execution))
            parts = [layers.embedding(), layers.layer(work.model.layer_kinds[0]), layers.head()]
            ids = torch.arange(64).view(2, 32)
            outs.append(parts[2](parts[1](parts[0](ids)), ids))
        assert outs[0].item() == pytest.approx(outs[1].item())
        assert any(isinstance(weight, DTensor) for weight in parts[1].parameters())
    finally:
        dist.destroy_process_group()
