"""Documents packed into a sequence: attention by the sum of squared lengths, everything else by tokens."""

from __future__ import annotations

import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.frameworks.flops import flops_per_token
from projector.hardware import catalogue
from projector.layers import lower
from projector.layers.context_parallel_dynamic import ranks_of
from projector.operators.types import Attention, Collective, Scan
from projector.projection import project
from projector.workload.workload import Workload
from tests.workloads import workload

CLUSTER = catalogue.default_cluster("h100_sxm")


def case(name: str = "llama3_8b", **fields: object) -> Workload:
    stated = {"global_batch_size": 16, "seq_length": 32768, "tp": 8, "sequence_parallel": True}
    return workload(name, **stated | fields)


def attention(job: Workload) -> list[Attention]:
    made = resolve(job, "nvidia", "hopper")
    block = lower.layer(job.model.layer_kinds[0], made)
    return [op for op in (*block.forward, *block.backward_input) if isinstance(op, Attention)]


def test_attention_costs_the_sum_of_squared_lengths_and_nothing_else_changes() -> None:
    whole = attention(case())
    lengths = (16384, 8192, 4096, 4096)
    packed = attention(case(document_lengths=lengths))
    share = sum(length**2 for length in lengths) / 32768**2
    assert sum(op.flops for op in packed) == pytest.approx(share * sum(op.flops for op in whole))
    assert sum(op.launches for op in packed) == sum(op.launches for op in whole)
    assert [op.flops for op in attention(case(document_lengths=(32768,)))] == [op.flops for op in whole]
    made, other = (
        lower.layer(job.model.layer_kinds[0], resolve(job, "nvidia", "hopper"))
        for job in (case(), case(document_lengths=lengths))
    )
    assert made.saves == other.saves
    assert [op for op in made.forward if not isinstance(op, Attention)] == [
        op for op in other.forward if not isinstance(op, Attention)
    ]
    counted = [flops_per_token(case(document_lengths=each), "megatron-2026-05") for each in (None, (32768,), lengths)]
    assert counted[0] == counted[1] == flops_per_token(case(), "megatron-2025-04")
    model, squares = case().model, sum(length**2 for length in lengths)
    scores = 6 * model.num_layers * model.num_attention_heads * model.kv_channels
    assert counted[0] - counted[2] == pytest.approx(scores * (32768 - squares / 32768))
    times = [project(case(document_lengths=each), CLUSTER).step_seconds for each in ((32768,), lengths, (1024,) * 32)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(project(case(), CLUSTER).step_seconds, rel=1e-9)


def test_recurrences_of_documents_run_beside_one_another() -> None:
    job = case("nemotron_h_8b", document_lengths=(4096,) * 8)
    block = lower.layer(job.model.layer_kinds[0], resolve(job, "nvidia", "hopper"))
    assert max(op.steps for op in block.forward if isinstance(op, Scan)) == 4096 // 128


def test_what_does_not_fit_is_named() -> None:
    for lengths in ((32768, 1), (0, 16)):
        with pytest.raises(InputError, match="document_lengths"):
            project(case(document_lengths=lengths), CLUSTER)
    with pytest.raises(Unsupported, match="a2a"):
        project(case(document_lengths=(1024,), tp=4, cp=2), CLUSTER)
    assert project(case(document_lengths=(16384,) * 2, tp=4, cp=2, cp_comm_type="a2a"), CLUSTER).step_seconds > 0


def pieces(job: Workload) -> tuple[float, float, int]:
    """FLOP, bytes of messages and launches of attention's forward on one rank."""
    made = resolve(job, "nvidia", "hopper")
    block = lower.layer(job.model.layer_kinds[0], made)
    ops = [op for op in block.forward if op.name.startswith(("core_attn", "cp."))]
    sent = sum(op.bytes for op in ops if isinstance(op, Collective))
    return sum(op.flops for op in ops if isinstance(op, Attention)), sent, sum(op.launches for op in ops)  # type: ignore[attr-defined]


def test_dynamic_context_parallelism_gives_each_document_the_ranks_that_hold_it() -> None:
    """All short: what one rank costs; one long: what static context parallelism costs; between them between."""
    dynamic = {"tp": 2, "cp": 4, "dynamic_context_parallel": True}
    short, long, mixed = (8192,) * 4, (32768,), (16384, 8192, 4096, 4096)
    assert [ranks_of(length, 8192) for length in (1, 8192, 8193, 16384, 16385, 32768)] == [1, 1, 2, 2, 4, 4]
    alone = case(tp=2, cp=1, seq_length=8192, document_lengths=(8192,))
    static = case(tp=2, cp=4)
    assert pieces(case(document_lengths=short, **dynamic)) == pieces(alone)
    assert pieces(case(document_lengths=long, **dynamic)) == pieces(static)
    flops, sent, _ = pieces(case(document_lengths=mixed, **dynamic))
    squares = sum(length**2 for length in mixed) / 32768**2
    assert flops == pytest.approx(squares * 4 * pieces(static)[0] / 4, rel=0.01)
    ring = 8192 * 8 // 2 * 2 * 128 * 2.0  # keys and values of a rank's tokens, sent once in a ring of two
    assert sent == ring * 2 / 4
    assert 0 < sent < pieces(static)[1]
    times = [project(case(document_lengths=each, **dynamic), CLUSTER).step_seconds for each in (short, mixed, long)]
    assert times == sorted(times)
    assert times[2] == pytest.approx(project(static, CLUSTER).step_seconds, rel=1e-9)
    memory = [project(case(document_lengths=each, **dynamic), CLUSTER).memory.allocated for each in (short, long)]
    assert memory[0] == memory[1]


def test_dynamic_context_parallelism_that_nobody_can_place_is_refused() -> None:
    dynamic = {"tp": 2, "cp": 4, "dynamic_context_parallel": True}
    with pytest.raises(Unsupported, match="document_lengths"):
        project(case(**dynamic), CLUSTER)
    with pytest.raises(Unsupported, match="latent attention"):
        project(case("deepseek_v2_lite", document_lengths=(4096,), **dynamic | {"tp": 1}), CLUSTER)
    with pytest.raises(Unsupported, match="state is divided"):
        project(case("nemotron_h_8b", document_lengths=(4096,), **dynamic), CLUSTER)
    with pytest.raises(InputError, match="power of two"):
        project(case(seq_length=24576, document_lengths=(4096,), **dynamic | {"tp": 1, "cp": 6}), CLUSTER)
