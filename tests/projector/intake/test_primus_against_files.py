"""Shipped experiments beside a second, simpler reader of their files: every size and switch of every one agrees."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.intake import detect, primus
from projector.workload import parameters
from tests.projector.intake.test_primus_shipped import FILES, ROOT

pytestmark = pytest.mark.skipif(not FILES, reason="no checkout of Primus beside this project (PRIMUS_EXAMPLES)")
CONFIGS = ROOT / "primus/configs"


def _read(path: Path) -> dict[str, Any]:
    """The keys of a file over those of the files it names, its variables at their defaults."""
    content = yaml.safe_load(re.sub(r"\$\{[^:{}]+:([^}]*)\}", r"\1", path.read_text())) or {}
    found: dict[str, Any] = {}
    for word in ("includes", "bases", "extends"):
        parents = content.pop(word, [])
        for parent in [parents] if isinstance(parents, str) else parents:
            found |= _read(path.parent / parent)
    return found | content


def _merged(path: Path, framework: str) -> dict[str, Any]:
    (module,) = _read(path)["modules"].values()
    model = _read(CONFIGS / "models" / framework / module["model"])
    trainer = _read(CONFIGS / "modules" / framework / module["config"])
    found = model | trainer
    for key, value in (module.get("overrides") or {}).items():
        found[key] = {**found[key], **value} if isinstance(found.get(key), dict) and isinstance(value, dict) else value
    return found


def _megatron(keys: dict[str, Any]) -> dict[str, Any]:
    def said(name: str, silent: Any = None) -> Any:
        return silent if keys.get(name) is None else keys[name]

    turbo, stage = bool(said("enable_primus_turbo")), said("turbo_sync_free_moe_stage", 0)
    sharded = "optim" if said("use_distributed_optimizer") else "no_shard"
    if said("use_megatron_fsdp"):
        sharded = said("data_parallel_sharding_strategy", "no_shard")
    if said("use_torch_fsdp2"):
        sharded = "optim_grads_params"
    none_at_all = said("recompute_method") == "block" and said("recompute_num_layers") == 0
    recompute = said("recompute_granularity", "none")
    expected = {
        "tp": said("tensor_model_parallel_size", 1), "pp": said("pipeline_model_parallel_size", 1),
        "cp": said("context_parallel_size", 1), "micro_batch_size": said("micro_batch_size"),
        "global_batch_size": said("global_batch_size"), "seq_length": said("seq_length"),
        "overlap_grad_reduce": said("overlap_grad_reduce", False),
        "overlap_param_gather": said("overlap_param_gather", False),
        "gradient_accumulation_fusion": said("gradient_accumulation_fusion", True),
        "apply_rope_fusion": said("apply_rope_fusion", True), "manual_gc": said("manual_gc", False),
        "optimizer": said("optimizer"), "mock_data": said("mock_data", False),
        "use_turbo_attention": turbo and bool(said("use_turbo_attention")), "data_parallel_sharding": sharded,
        "recompute_granularity": "none" if none_at_all and not said("recompute_layer_ids") else recompute,
        "precision": "mxfp4" if said("fp4") else "bf16" if not said("fp8") else "fp8",
    }  # fmt: skip
    if said("fp8") and not said("fp4") and said("fp8_recipe") == "mxfp8":
        expected["precision"] = "mxfp8"
    if said("num_experts"):
        flexible = turbo and (said("use_turbo_deepep") or stage >= 2)
        expected |= {
            "ep": said("expert_model_parallel_size", 1),
            "moe_token_dispatcher_type": "flex" if flexible else said("moe_token_dispatcher_type"),
            "moe_router_force_load_balancing": said("moe_router_force_load_balancing", False),
            "moe_permute_fusion": bool(said("moe_permute_fusion")) or (turbo and stage >= 1),
        }
    return expected


def _torchtitan(keys: dict[str, Any]) -> dict[str, Any]:
    training, degrees = keys["training"], keys["parallelism"]
    return {
        "tp": degrees["tensor_parallel_degree"], "pp": degrees["pipeline_parallel_degree"],
        "cp": degrees["context_parallel_degree"], "micro_batch_size": training["local_batch_size"],
        "seq_length": training["seq_len"], "mock_data": training["mock_data"],
        "torch_compile": keys["compile"]["enable"], "recompute_granularity": keys["activation_checkpoint"]["mode"],
        "precision": "fp8" if "quantize.linear.float8" in keys["model"]["converters"] else "bf16",
    }  # fmt: skip


def _maxtext(keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "micro_batch_size": keys["per_device_batch_size"],
        "seq_length": keys["max_target_length"],
        "precision": "fp8" if "fp8" in keys["quantization"] else "bf16",
        "recompute_granularity": "full",
        "mock_data": keys["dataset_type"] == "synthetic",
    }


READERS = {"megatron": _megatron, "torchtitan": _torchtitan, "maxtext": _maxtext}


@pytest.mark.parametrize("framework", READERS)
def test_every_experiment_says_what_its_files_say(framework: str, every: int) -> None:
    seen = 0
    for path in [path for path in FILES if path.relative_to(ROOT).parts[1] == framework][::every]:
        try:
            loaded = primus.load(path, env={})
        except (InputError, Unsupported):
            continue
        expected = READERS[framework](_merged(path, framework))
        recipe = loaded.workload(64).recipe
        assert {name: getattr(recipe, name) for name in expected} == expected, path.name
        seen += 1
    assert seen > 30 // every


def test_stacks_of_primus_are_turns_of_a_mixer_and_an_mlp() -> None:
    """What hybrid_block.py makes of a share of attention; counts as the names say."""
    folder = ROOT / "examples/megatron/configs/MI300X"
    for name, letters, count in (
        ("mamba_370M", "M" * 48, 370e6),
        ("zebra_llama_1B", "+-M-M-M-" * 4, 1.3e9),
        ("zebra_llama_8B", "+-M-M-M-" * 8, 8e9),
        ("zebra_llama_1B_gdn_pure", "G-" * 16, 1.2e9),
    ):
        model = detect.load(folder / f"{name}-pretrain.yaml").model
        assert (model.hybrid_layer_pattern, model.unsupported) == (letters, ())
        assert abs(parameters.count(model).total / count - 1.0) < 0.02
    delta = detect.load(folder / "zebra_llama_1B_kda-pretrain.yaml").model
    assert (delta.hybrid_layer_pattern, delta.unsupported) == ("+-K-K-K-" * 4, ())
    kda = detect.load(folder / "zebra_llama_300M_kda_pure-pretrain.yaml").model.kda
    assert (kda.keys, kda.values, kda.gate_rank) == (256, 512, 64)  # keys and values of different widths
