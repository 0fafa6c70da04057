"""Whatever stands in an experiment: a workload, or every mistake in words; nothing else is raised."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import primus
from projector.workload.validate import problems
from tests.projector.intake.primus_tree import checkout, experiment

PRESETS = tabled("readers", "primus_damaged_presets")
KEYS: dict[str, tuple[str, ...]] = {
    "megatron": (
        "num_layers", "hidden_size", "moe_layer_freq", "window_size", "window_attn_skip_freq", "lora", "fp8", "spec",
        "pipeline_model_parallel_size", "tensor_model_parallel_size", "recompute_granularity", "recompute_num_layers",
        "pipeline_model_parallel_layout", "turbo_sync_free_moe_stage", "enable_primus_turbo", "model_type",
        "vocab_size", "optimizer", "cuda_graph_scope", "lfm_layer_types", "recompute_layer_ids", "num_experts",
        "patch_primus_pipeline",
    ),
    "torchtitan": (
        "training", "parallelism", "activation_checkpoint", "model", "quantize", "optimizer", "primus_turbo",
    ),
    "maxtext": (
        "per_device_batch_size", "ici_fsdp_parallelism", "ici_expert_parallelism", "dcn_pipeline_parallelism",
        "remat_policy", "quantization", "capacity_factor", "sparse_matmul", "model_name", "num_experts",
        "decoder_block", "base_num_decoder_layers", "gradient_accumulation_steps", "ici_pipeline_parallelism",
        "mlp_activations",
    ),
    "megatron_bridge": ("flavor", "hf_path", "peft", "precision_config", "model", "train", "recipe", "packed_sequence"),
}  # fmt: skip
SECTIONS = tabled("readers", "primus_damaged_sections")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70), st.just(10**30), st.floats(),
    st.sampled_from(["", "8", "full", "fp8", "block", "none", "[1, 2", "([0]*3+[1]*29)", "mamba", "1e3", "deepseek_v3"]),
)  # fmt: skip
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from("abc"), SCALARS, max_size=2))


@st.composite
def overrides(draw: st.DrawFn, framework: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(KEYS[framework]), min_size=1, max_size=4, unique=True)):
        inner = SECTIONS.get(key) if framework == "torchtitan" else None
        found[key] = draw(st.dictionaries(st.sampled_from(inner), VALUES, max_size=2) if inner else VALUES)
    return found


@pytest.mark.parametrize("framework", PRESETS)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_damaged_experiments(tmp_path: Path, framework: str, data: st.DataObject) -> None:
    preset, config = PRESETS[framework]
    root = checkout(tmp_path)
    path = experiment(root, preset, framework, config, **data.draw(overrides(framework)))
    with suppress(InputError, Unsupported):
        problems(primus.load(path, env={}).workload(64))
