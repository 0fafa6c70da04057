"""A switch over a group of one rank changes nothing: neither the time nor the memory of a step, for any framework.

What is no switch of a group: another implementation of data parallelism (FSDP, ZeRO-2 and ZeRO-3 keep other copies even
for one rank), and types or kernels of a rank's own work.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.projection import Projection, project
from projector.workload.declared import about_of
from projector.workload.recipe import Recipe
from tests import workloads

_GPU = {"primus": "mi355x", "maxtext": "mi355x"}
_CHOICES = {name: about_of(Recipe)[name].choices for name in ("cp_comm_type", "moe_token_dispatcher_type")}
_SWITCH = st.sampled_from((True, False))
#: By the size that is one: the fields that only matter to a group of it.
_SWITCHES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "tp": {"sequence_parallel": _SWITCH, "tp_comm_overlap": _SWITCH, "muon_tp_mode": st.sampled_from(("blockwise",))},
    "cp": {"cp_comm_type": st.sampled_from(_CHOICES["cp_comm_type"]), "dynamic_context_parallel": _SWITCH},
    "pp": {
        "pipeline_schedule": st.sampled_from(("1f1b", "gpipe", "zb_h1", "zbv", "interleaved")),
        "overlap_p2p_comm": _SWITCH,
        "defer_embedding_wgrad_compute": _SWITCH,
        "microbatch_group_size_per_vp_stage": st.integers(1, 8),
        "account_for_embedding_in_pipeline_split": _SWITCH,
        "account_for_loss_in_pipeline_split": _SWITCH,
        "pipeline_remainder": st.sampled_from(("weighted", "first")),
        "allow_uneven_pipeline_split": _SWITCH,
    },
    "ep": {
        "moe_token_dispatcher_type": st.sampled_from(_CHOICES["moe_token_dispatcher_type"]),
        "moe_deepep_num_sms": st.integers(8, 64),
        "moe_all_to_all_kernel": st.sampled_from(("collective", "one_shot")),
        "moe_shared_expert_overlap": _SWITCH,
        "overlap_moe_expert_parallel_comm": _SWITCH,
        "delay_wgrad_compute": _SWITCH,
    },
    "dp": {
        "overlap_grad_reduce": _SWITCH,
        "overlap_param_gather": _SWITCH,
        "ddp_bucket_size": st.integers(10**6, 10**8),
        "num_distributed_optimizer_instances": st.just(1),
    },
}


def _made(framework: str, model: str, group: str, stated: dict[str, Any]) -> Projection:
    sizes: dict[str, Any] = {
        "tp": 2,
        "pp": 2,
        "cp": 2,
        "ep": 2 if model != "llama3.1_8b" else 1,
        "sequence_parallel": True,
    }
    sizes |= {group: 1} if group != "dp" else {"cp": 1}
    if sizes["tp"] == 1 or framework == "maxtext":
        del sizes["sequence_parallel"]
    gpus = 4 if group == "dp" else 16
    load = workloads.workload(model, gpus, framework, seq_length=8192, recompute_granularity="none", **sizes | stated)
    return project(load, catalogue.default_cluster(_GPU.get(framework, "h100_sxm")))


@pytest.mark.parametrize("group", sorted(_SWITCHES))
@pytest.mark.parametrize(
    "framework", ["megatron-lm", "primus", "torchtitan", "megatron-bridge", "automodel", "maxtext"]
)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_switch_over_a_group_of_one_changes_nothing(framework: str, group: str, data: st.DataObject) -> None:
    # experts have a group of replicas of their own where the dense part has none
    model = (
        "llama3.1_8b"
        if group == "dp"
        else "mixtral_8x7b"
        if group == "ep"
        else data.draw(st.sampled_from(("llama3.1_8b", "mixtral_8x7b")))
    )
    name = data.draw(st.sampled_from(sorted(_SWITCHES[group])))
    stated = {name: data.draw(_SWITCHES[group][name])}
    try:
        made, plain = (_made(framework, model, group, said) for said in (stated, {}))
    except Unsupported:
        return
    assert made.step_seconds == pytest.approx(plain.step_seconds, rel=1e-12), stated
    assert made.memory.allocated == pytest.approx(plain.memory.allocated, rel=1e-12), stated


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-bridge", "torchtitan"])
def test_a_switch_over_a_group_of_several_changes_something(framework: str) -> None:
    """The law is about the size of the group: the same switches do something where it has two ranks."""
    deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    plain, made = (_made(framework, "mixtral_8x7b", "cp", said) for said in ({}, deepep))
    assert made.step_seconds != plain.step_seconds
