"""Configurations that differ outside their layers share them: the view that layers have loses nothing they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.evidence import dataset
from harness.predictors.ours import cluster_of
from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, resolve
from projector.frameworks.scope import OUTSIDE_A_LAYER, as_layers_see, as_modules_see
from projector.layers import lower
from projector.layers.local import local
from projector.operators.part import Block
from projector.settle.workload import settle
from tests.workloads import workload

RUNS = Path(__file__).parents[2] / "measured" / "runs"


def settled(every: int) -> Iterator[tuple[str, Resolved]]:
    for run in [run for run in dataset.read(RUNS) if not run.problem][::every]:
        try:
            yield run.id, settle(run.workload, cluster_of(run.cluster, run.gpu, run.gpus_per_node), published=True)
        except (InputError, Unsupported):
            continue


def blocks(resolved: Resolved) -> Iterator[Block]:
    model = resolved.workload.model
    yield lower.embedding.__wrapped__(resolved)
    yield lower.head.__wrapped__(resolved)
    for kind in dict.fromkeys(model.layer_kinds):
        yield lower.layer.__wrapped__(kind, resolved, True)
        yield lower.layer.__wrapped__(kind, resolved, False)
    if model.mtp_num_layers:
        yield lower.mtp.__wrapped__(resolved)
        yield lower.mtp_layer.__wrapped__(resolved)


def parts(resolved: Resolved) -> Iterator[object]:
    """Blocks and what they save, which is no part of their identity."""
    for block in blocks(resolved):
        yield block
        yield block.saves, block.kept, block.dropped, block.offloadable
        yield block.forward_transient, block.replay_transient, block.backward_transients


def modules(resolved: Resolved) -> Iterator[object]:
    """Before anything is said of recompute."""
    yield lower.embedding.__wrapped__(resolved)
    yield lower.head.__wrapped__(resolved)
    for kind in dict.fromkeys(resolved.workload.model.layer_kinds):
        yield lower._layer_parts.__wrapped__(kind, local(lower._seen_by(kind, resolved)))


@pytest.mark.skipif(not RUNS.is_dir(), reason="no measured runs in this checkout")
def test_every_measured_run_has_the_same_layers_in_the_view(every: int) -> None:
    seen: set[Resolved] = set()
    for name, resolved in settled(every):
        if resolved in seen:
            continue
        seen.add(resolved)
        try:
            whole = list(parts(resolved))
        except Unsupported:
            continue
        assert whole == list(parts(as_layers_see(resolved))), name
        assert list(modules(resolved)) == list(modules(as_modules_see(resolved))), name
    assert len(seen) > 500 // every


@pytest.mark.parametrize("model", ["deepseek_v3", "mixtral_8x22b", "qwen3_30b_a3b", "gpt_oss_20b"])
@pytest.mark.parametrize("quantised", [{}, {"precision": "fp8"}, {"moe_grouped_gemm": "legacy"}])
def test_weights_do_not_know_how_tokens_travel(model: str, quantised: dict[str, str]) -> None:
    """Runs that differ in their exchange alone hold the same."""
    sizes = {"tp": 2, "pp": 2, "ep": 4, "global_batch_size": 512, "sequence_parallel": True, **quantised}
    weights = [
        [block.weights for block in blocks(resolve(workload(model, 256, **sizes, **words)))]
        for words in (
            {"moe_token_dispatcher_type": "alltoall"},
            {"moe_token_dispatcher_type": "allgather"},
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep", "tp_comm_overlap": True},
        )
    ]
    assert weights == weights[:1] * len(weights)


def some(**fields: object) -> Resolved:
    return resolve(workload("deepseek_v3", 256, global_batch_size=512, tp=2, pp=4, ep=8, **fields))


def test_what_lies_outside_makes_no_other_view() -> None:
    one = as_layers_see(some())
    for name, value in {
        "vpp": 2,
        "global_batch_size": 1024,
        "pipeline_schedule": "zb_1p",
        "optimizer": "sgd",
        "overlap_grad_reduce": False,
        "optimizer_cpu_offload": True,
    }.items():
        assert name in OUTSIDE_A_LAYER
        other = some()
        recipe = replace(other.workload.recipe, **{name: value})
        assert as_layers_see(replace(other, workload=replace(other.workload, recipe=recipe))) is one


def test_what_lies_inside_makes_another_view() -> None:
    one = as_layers_see(some())
    assert as_layers_see(some(sequence_parallel=True)) is not one
    assert as_layers_see(some(precision="fp8")) is not one
    base = some()
    flat = replace(base, workload=replace(base.workload, recipe=replace(base.workload.recipe, pp=1)))
    assert as_layers_see(flat) is not one  # tied embeddings share storage there


def test_a_view_of_a_view_is_itself() -> None:
    view = as_layers_see(some())
    assert as_layers_see(view) is view


@pytest.mark.parametrize("granularity", ["none", "selective", "full"])
def test_modules_are_the_same_whatever_is_computed_again(granularity: str) -> None:
    seen = some(recompute_granularity=granularity)
    assert as_modules_see(seen) is as_modules_see(some())
    assert lower.head(seen) is lower.head(some())
    assert (as_layers_see(seen) is as_layers_see(some())) == (
        granularity == some().workload.recipe.recompute_granularity
    )
