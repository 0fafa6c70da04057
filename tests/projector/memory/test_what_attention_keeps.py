"""Attention without a flash kernel keeps what autograd keeps; a mask that nobody meant is not made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.frameworks import Resolved
from projector.hardware import catalogue
from projector.layers.mask import mask_bytes
from projector.projection import project
from projector.search.remedies import remedies
from projector.settle.workload import settle
from projector.workload.workload import Workload
from tests import workloads

_A100, _V100 = (catalogue.default_cluster(name) for name in ("a100_sxm_80gb", "v100_sxm_32gb"))


def _scores(load: Workload) -> float:
    """Bytes of activations that unfused attention adds to those of a flash kernel, a layer and score."""
    plain, unfused = (
        project(workloads.workload(load.model, 8, load.framework, **said), _A100).memory.components["activations"]
        for said in ({**_said(load), "attention_backend": "flash"}, _said(load))
    )
    recipe, model = load.recipe, load.model
    heads = recipe.micro_batch_size * model.num_attention_heads / recipe.tp
    lse = 4.0 * heads * recipe.seq_length * model.num_layers
    return (unfused - plain + lse) / (heads * recipe.seq_length**2 * model.num_layers)


def _said(load: Workload) -> dict[str, object]:
    names = ("tp", "seq_length", "micro_batch_size", "attention_backend", "attention_dropout")
    fixed = {"recompute_granularity": "none", "precision": "bf16"}
    return {name: getattr(load.recipe, name) for name in names} | fixed


@pytest.mark.parametrize(
    ("framework", "dropout", "bytes_"),
    [
        ("megatron-lm", None, 2.0),  # the softmax's output, which the product with the values keeps as its input
        ("megatron-lm", 0.0, 2.0),
        ("megatron-lm", 0.1, 5.0),  # Korthikanti et al. 2022, section 4: and a mask, and the dropped copy
        ("torchtitan", None, 6.0),  # an eager softmax in fp32, and its cast
    ],
)
def test_unfused_attention_keeps_one_score_matrix_a_layer(framework: str, dropout: float | None, bytes_: float) -> None:
    said = {"attention_backend": "unfused", "attention_dropout": dropout, "tp": 2, "seq_length": 4096}
    assert _scores(workloads.workload("llama3.1_8b", 8, framework, **said)) == pytest.approx(bytes_, rel=0.01)


def test_dropout_costs_time_where_scores_lie_in_memory_alone() -> None:
    def step(**said: object) -> float:
        return project(workloads.workload("llama3.1_8b", 8, tp=4, **said), _A100).step_seconds

    assert step(attention_backend="unfused", attention_dropout=0.1) > step(attention_backend="unfused")
    assert step(attention_backend="flash", attention_dropout=0.1) == step(attention_backend="flash")


def test_a_gpu_without_flash_kernels_writes_its_scores() -> None:
    for cluster, materialised in ((_A100, False), (_V100, True)):
        resolved = settle(workloads.workload("llama3.1_8b", 8, tp=4, precision="fp16"), cluster)
        assert resolved.execution.fusion.attention_materialised is materialised


def _resolved(seq: int, cp: int, **said: object) -> Resolved:
    return settle(workloads.workload("llama3.1_8b", 8, cp=cp, global_batch_size=8, seq_length=seq, **said), _A100)


@settings(max_examples=40, deadline=None)
@given(seq=st.sampled_from([2**n for n in range(13, 21)]), cp=st.sampled_from((1, 2, 4, 8)))
def test_a_mask_is_made_where_somebody_may_have_meant_it(seq: int, cp: int) -> None:
    resolved = _resolved(seq, cp)
    inputs = 2.0 * seq / cp * resolved.workload.model.hidden_size * resolved.workload.model.num_layers
    made = mask_bytes(resolved)
    assert made in (0.0, float(seq) ** 2)
    assert (made == 0.0) == (seq >= 2**15 and float(seq) ** 2 > inputs)
    said = [text for text in resolved.assumed if text.startswith("create_attention_mask_in_dataloader=")]
    assert len(said) == (seq >= 2**15)
    assert mask_bytes(_resolved(seq, cp, create_attention_mask_in_dataloader=True)) == float(seq) ** 2


def test_a_mask_that_is_asked_for_is_the_first_thing_to_leave() -> None:
    load = workloads.workload(
        "llama3.1_8b", 64, tp=8, cp=8, sequence_parallel=True, global_batch_size=8, seq_length=2**19,
        recompute_granularity="full", data_parallel_sharding="optim", create_attention_mask_in_dataloader=True,
    )  # fmt: skip
    assert project(load, _A100).memory.order == 2
    found = remedies(load, _A100, lambda each: project(each, _A100)).found
    assert "no attention mask from the data loader" in found[0].change.label
