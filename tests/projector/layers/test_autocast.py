"""The copies that torch.autocast makes of fp32 weights: which live when, in torch and in the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from lowering_cases import DENSE, LLAMA_70B, resolved

from projector import project
from projector.layers.lower import head, layer
from projector.mechanisms.data_parallel import Gathered
from projector.mechanisms.execution import Execution
from projector.memory.chunks import block_memory, chunk_memory
from projector.operators.types import Operator
from projector.workload.composition import compositions

H, FFN, KV = 8192, 28672, 1024
LAYER = H * (H + 2 * KV) + H * H + 3 * H * FFN
TWO = replace(LLAMA_70B, num_layers=2)


def case(autocast: bool, sharding: str = "no_shard", **recipe: Any) -> Any:
    how = Execution.of(data_parallel={"strategy": "torch_ddp", "autocast": autocast})
    return resolved(TWO, 1, how, data_parallel_sharding=sharding, **recipe)


def cast_bytes(ops: tuple[Operator, ...]) -> float:
    return sum(op.bytes for op in ops if op.name.endswith("cast"))


def test_a_trained_weight_is_cast_once_and_its_gradient_cast_back() -> None:
    plain, cast = (layer(DENSE, case(autocast)) for autocast in (False, True))
    assert cast.saved_bytes - plain.saved_bytes == 2 * LAYER
    assert cast_bytes(cast.forward) == cast_bytes(cast.backward_weight) == (4 + 2) * LAYER
    assert cast_bytes(plain.forward) == cast_bytes(plain.backward_weight) == 0


@pytest.mark.parametrize(
    "recipe",
    [
        {"sharding": "optim_grads_params"},
        {"sharding": "optim_grads"},
        {"precision": "fp32"},
        {"use_precision_aware_optimizer": True, "main_params_dtype": "bf16"},
    ],
)
def test_weights_that_are_as_wide_as_products_or_gathered_are_not_cast(recipe: dict[str, Any]) -> None:
    assert cast_bytes(layer(DENSE, case(True, **recipe)).forward) == 0


def test_a_loss_that_takes_the_output_weight_keeps_no_copy_of_it_but_a_gradient_in_its_type() -> None:
    vocabulary = next(weight.elements for weight in head(case(True)).weights if weight.role == "output")
    for fusion, more in (("unfused", 2), ("linear", 0), ("liger", 4 - 2)):
        plain, cast = (head(case(autocast, cross_entropy_fusion=fusion)) for autocast in (False, True))
        assert cast.saved_bytes - plain.saved_bytes == more * vocabulary


@pytest.mark.parametrize(("compiled", "cached"), [(False, 2 * 2 * LAYER), (True, 0)])
def test_copies_of_replayed_layers_live_to_the_end_of_the_forward_and_not_beyond(compiled: bool, cached: float) -> None:
    def memory(autocast: bool) -> Any:
        one = case(autocast, recompute_granularity="full", torch_compile=compiled, cross_entropy_fusion="linear")
        chunk = compositions(one.workload.model, one.workload.recipe)[1][0]
        return chunk_memory(one, chunk, True, True, Gathered(), partial(block_memory, one))

    plain, cast = memory(False), memory(True)
    assert cast.saved == plain.saved
    assert cast.forward.total - plain.forward.total == pytest.approx(cached)


@pytest.mark.parametrize("sharding", ["no_shard", "optim"])
@pytest.mark.parametrize(("gpus", "beside"), [(1, 0), (2, 4)])
def test_buckets_live_beside_gradients_where_there_are_several_processes(gpus: int, beside: int, sharding: str) -> None:
    run = project(
        model="llama3.2_1b", gpu="h100_sxm", gpus=gpus, framework="pytorch", global_batch_size=2 * gpus,
        data_parallel_sharding=sharding,
    )  # fmt: skip
    held = run.memory.components
    assert held["gradients"] == pytest.approx((4 + beside) / 4 * held["weights"])


def test_a_hook_in_16_bits_leaves_gradients_as_wide_as_they_were() -> None:
    wide, narrow = (
        project(model="llama3.2_1b", gpu="h100_sxm", gpus=2, framework="pytorch", grad_reduce_in_bf16=hook)
        for hook in (False, True)
    )
    assert wide.memory.components == narrow.memory.components
    assert narrow.step_seconds < wide.step_seconds


def test_torch_saves_the_copies_of_trained_and_frozen_weights_and_caches_those_of_trained_ones() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its autocast is not there to compare with")
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    trained, frozen = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False).requires_grad_(False)
    names = {linear.weight.data_ptr(): name for linear, name in ((trained, "trained"), (frozen, "frozen"))}
    copies: list[tuple[str, Any]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "_to_copy" in str(func) and out.dtype == torch.bfloat16 and args[0].data_ptr() in names:
                copies.append((names[args[0].data_ptr()], StorageWeakRef(out.untyped_storage())))
            return out

    def alive() -> set[str]:
        return {name for name, copy in copies if not copy.expired()}

    def both(x: Any) -> Any:
        return frozen(trained(x))

    x, every = torch.ones(4, 8, requires_grad=True), {"trained", "frozen"}
    for replayed, inside, between in ((False, every, every), (True, {"trained"}, set())):
        copies.clear()
        with Watch():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = checkpoint(both, x, use_reentrant=False) if replayed else both(x)
                assert alive() == inside
            assert alive() == between
            out.sum().backward()
        assert alive() == set()
        assert trained.weight.grad.dtype == torch.float32


def test_torch_reduces_in_buckets_of_its_own(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its buckets are not there to compare with")
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    buckets: list[Any] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
        buckets.append(bucket.buffer().untyped_storage())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(64, 64, bias=False)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(None, hook)
        wrapped(torch.ones(1, 64)).sum().backward()
        (bucket,) = buckets
        assert bucket.nbytes() == 4 * 64 * 64
        assert bucket.data_ptr() != model.weight.grad.untyped_storage().data_ptr()
    finally:
        torch.distributed.destroy_process_group()
