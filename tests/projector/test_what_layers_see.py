"""Configurations that differ outside their layers have the same ones: what a field says that it does not affect it does
not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.evidence import dataset
from harness.predictors.ours import cluster_of
from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, resolve
from projector.frameworks.scope import OUTSIDE_A_LAYER
from projector.layers import lower
from projector.operators.module import Block
from projector.settle.workload import settle
from projector.workload.recipe import Recipe
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


def within(resolved: Resolved) -> Resolved:
    """The same with everything that no layer depends on at one value."""
    work, recipe = resolved.workload, resolved.workload.recipe
    plain = Recipe(micro_batch_size=1, global_batch_size=1, seq_length=1)
    changed = {name: getattr(plain, name) for name in OUTSIDE_A_LAYER}
    changed |= {"pp": min(2, recipe.pp), "data_parallel_shard_size": min(2, recipe.data_parallel_shard_size or 1)}
    changed["global_batch_size"] = min(2, work.num_microbatches) * recipe.micro_batch_size
    made = replace(recipe, **changed)
    return replace(resolved, workload=replace(work, recipe=made, gpus=made.replica_ranks))


@pytest.mark.skipif(not RUNS.is_dir(), reason="no measured runs in this checkout")
def test_every_measured_run_has_the_layers_of_one_that_differs_outside_them(every: int) -> None:
    seen: set[Resolved] = set()
    for name, resolved in settled(every):
        if resolved in seen:
            continue
        seen.add(resolved)
        try:
            whole = list(parts(resolved))
        except Unsupported:
            continue
        assert whole == list(parts(within(resolved))), name
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
