"""Layers of Megatron-Core: asked for by name, refused with the extra where they are missing, and driven by its public
names, which a stand-in has here.
"""

import os
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from asked import refusal, says

torch = pytest.importorskip("torch")

from benchmark_cases import SMALL as RUN  # noqa: E402
from benchmark_cases import arguments, stand_in  # noqa: E402

from projector.benchmark import layers_megatron, measured, source  # noqa: E402
from projector.benchmark.device import Device  # noqa: E402
from projector.benchmark.layers_parts import LayerSetup  # noqa: E402
from projector.errors import InputError, Unsupported  # noqa: E402
from projector.hardware import catalogue  # noqa: E402
from projector.workload import zoo  # noqa: E402
from projector.workload.model import decoder  # noqa: E402
from tests.workloads import workload  # noqa: E402

SMALL = {"num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256}


def _made(name: str = "llama3_8b", **recipe: object) -> LayerSetup:
    groups = {} if zoo.load(name).mla else {"num_query_groups": 2, "kv_channels": 8}
    stated = {"micro_batch_size": 2, "global_batch_size": 2, "seq_length": 16, "precision": "bf16"} | recipe
    return LayerSetup(workload(zoo.load(name, **SMALL, **groups), 1, **stated))


_Config = arguments(
    "_Config", num_layers=0, hidden_size=0, num_attention_heads=0, ffn_hidden_size=0, num_query_groups=None,
    kv_channels=None, gated_linear_unit=False, bf16=False, params_dtype=None, num_moe_experts=None, moe_router_topk=2,
    moe_grouped_gemm=False, tensor_model_parallel_size=1, expert_model_parallel_size=1,
)  # fmt: skip
_LatentConfig = arguments("_LatentConfig", _Config, multi_latent_attention=True, q_lora_rank=None, kv_lora_rank=512)


class _Layer(torch.nn.Module):
    def __init__(self, config: Any, layer_number: int, spec: dict[str, Any]) -> None:
        super().__init__()
        self.config, self.layer_number, self.spec = config, layer_number, spec
        self.linear = torch.nn.Linear(config.hidden_size, config.hidden_size, dtype=config.params_dtype)

    def forward(self, hidden_states: Any, attention_mask: Any = None, rotary_pos_emb: Any = None) -> tuple[Any, None]:
        assert hidden_states.shape[1:] == (2, self.config.hidden_size)
        return hidden_states + self.linear(hidden_states), None


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Megatron-Core's public names."""
    seen: dict[str, Any] = {}

    def local(
        num_experts: Any, moe_grouped_gemm: Any, qk_layernorm: Any, multi_latent_attention: Any
    ) -> dict[str, Any]:
        return {"num_experts": num_experts, "mla": multi_latent_attention, "grouped": moe_grouped_gemm}

    contents: dict[str, dict[str, Any]] = {
        "parallel_state": {
            "model_parallel_is_initialized": lambda: "groups" in seen,
            "initialize_model_parallel": lambda **sizes: seen.update(groups=sizes),
        },
        "tensor_parallel.random": {
            "model_parallel_cuda_manual_seed": lambda seed: seen.update(seed=seed),
            "initialize_rng_tracker": lambda inference_rng_tracker: seen.update(tracker=inference_rng_tracker),
        },
        "transformer.transformer_config": {"TransformerConfig": _Config, "MLATransformerConfig": _LatentConfig},
        "transformer.spec_utils": {"build_module": lambda spec, **how: _Layer(spec=spec, **how)},
        "transformer.moe.moe_utils": {},
        "models.gpt.gpt_layer_specs": {"get_gpt_layer_local_spec": local},
        "models.common.embeddings.rotary_pos_embedding": {
            "RotaryEmbedding": lambda kv_channels, rotary_percent: lambda length: torch.zeros(length, 1, 1, kv_channels)
        },
    }
    stand_in(monkeypatch, {f"megatron.core.{name}": inside for name, inside in contents.items()})
    monkeypatch.setattr(layers_megatron, "installed", lambda: True)
    monkeypatch.setattr(layers_megatron, "start_alone", lambda kind: None)
    for name in ("current_device", "current_stream", "Stream"):  # put back after what a CPU needs
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    return seen


def test_without_megatron_the_extra_is_named(cpu: Device) -> None:
    if layers_megatron.installed():
        pytest.skip("Megatron-Core is installed here")
    refusal(source.find, "megatron", _made(), match=r"projector-harness\[megatron\].*--layers torch")
    assert source.find("auto", _made()).name == "torch"


def test_auto_takes_megatron_only_where_its_layers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no kernel for this shape")

    for layer, runs in ((torch.nn.Identity(), True), (Fails(), False)):
        made = types.SimpleNamespace(layer=lambda _, layer=layer: layer)
        monkeypatch.setattr(layers_megatron, "source", lambda _, made=made: made)
        assert layers_megatron.runnable(_made()) is (made if runs else None)


@pytest.mark.parametrize("name", ["nonsense", "no.such.module:layers", "json:nothing"])
def test_an_unknown_source_is_told_with_those_there_are(name: str) -> None:
    with pytest.raises(
        InputError, match=r"auto, torch, megatron, torchtitan, transformers:config\.json or package\.module:function"
    ):
        source.find(name, _made())


def test_layers_are_built_from_its_specs(core: dict[str, Any]) -> None:
    made = _made()
    found = source.find("megatron", made)
    assert found.name == "megatron-core"
    layer: Any = found.layer(decoder(False))
    assert core["groups"]["tensor_model_parallel_size"] == 1
    inner = layer.layer
    assert inner.spec == {"num_experts": None, "mla": False, "grouped": False}
    assert (inner.config.hidden_size, inner.config.num_query_groups, inner.config.kv_channels) == (32, 2, 8)
    assert inner.config.params_dtype == torch.bfloat16
    x = torch.zeros(made.tokens, 32, dtype=torch.bfloat16, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert inner.linear.weight.grad is not None


def test_routed_latent_layers_get_their_config(core: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"grouped product.*moe_grouped_gemm=loop"):
        source.find("megatron", _made("deepseek_v2_lite")).layer(decoder(True))
    made = _made("deepseek_v2_lite", moe_grouped_gemm="loop")
    layer: Any = source.find("megatron", made).layer(decoder(True))
    moe = made.model.moe
    assert layer.layer.spec["num_experts"] == moe.num_experts
    assert layer.layer.spec["mla"]
    assert isinstance(layer.layer.config, _LatentConfig)
    assert layer.layer.config.moe_router_topk == moe.moe_router_topk


def test_on_a_cpu_nothing_is_asked_of_a_gpu(core: dict[str, Any]) -> None:
    layer: Any = source.find("megatron", _made()).layer(decoder(False))
    assert core["tracker"]
    assert "seed" not in core
    assert layer.mask.shape == (1, 1, 16, 16)
    if not torch.cuda.is_available():
        assert torch.empty(1, device=torch.cuda.current_device()).device.type == "cpu"


def test_what_it_cannot_build_is_refused(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument 'k_channels'")

    refusal(source.find("megatron", _made()).layer, decoder(False, 128), match="sliding-window", kind=Unsupported)
    monkeypatch.setattr(sys.modules["megatron.core.transformer.spec_utils"], "build_module", fails)
    with pytest.raises(Unsupported, match=r"cannot build here.*k_channels"):
        source.find("megatron", _made()).layer(decoder(False))


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.skipif(not layers_megatron.installed(), reason="Megatron-Core is not installed here")
def test_the_package_itself_runs_routed_layers_on_a_cpu(dispatcher: str, tmp_path: Path) -> None:
    """With the dispatcher that the recipe names, in a process of its own: its groups are those of a process."""
    recipe = {**RUN["recipe"], "precision": "fp32", "moe_grouped_gemm": "loop", "moe_token_dispatcher_type": dispatcher}
    model = {**RUN["model"], "base": "mixtral_8x7b", "moe": {"moe_ffn_hidden_size": 64}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**RUN, "model": model, "recipe": recipe}))
    words = ("benchmark", "--config", tmp_path / "run.yaml", "--device", "cpu", "--threads", "1", "--budget", "0.05")
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "TORCHDYNAMO_DISABLE": "1"}  # its fused functions compile for 10 s
    done = command_line.run("projector", *words, "--layers", "megatron", env=env, fresh=True)
    assert done.returncode == 0, done.stderr
    says(done.stdout, "layer moe, backward", "layers of megatron-core")


def test_the_exchange_is_that_of_the_recipe() -> None:
    flex: dict[str, Any] = {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "moe_permute_fusion": True,
    }
    alone = layers_megatron.settings(_made("deepseek_v2_lite", **flex))
    assert (alone["moe_token_dispatcher_type"], alone["moe_permute_fusion"]) == ("alltoall", False)
    wide = replace(_made("deepseek_v2_lite").workload, gpus=2)
    made = LayerSetup(replace(wide, recipe=replace(wide.recipe, ep=2, **flex)))
    found = layers_megatron.settings(made)
    assert (found["moe_token_dispatcher_type"], found["moe_flex_dispatcher_backend"]) == ("flex", "hybridep")


def test_a_step_is_timed_with_its_layers(core: dict[str, Any], cpu: Device) -> None:
    work = _made().workload
    found = measured.measure(work, catalogue.cluster("cpu"), cpu, layers="megatron", budget=0.02)
    assert found.timings.source == "megatron-core"
    assert measured.restore(found, work, catalogue.cluster("cpu")).step_seconds > 0
