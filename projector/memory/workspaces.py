"""Small buffers that libraries allocate once and never free; all of them show up in the allocator's figure."""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.memory.sizes import MIB, sizes

__all__ = ["workspace_bytes"]

# TransformerEngine pytorch/cpp_extensions/gemm.py: 32 MiB + 1 KiB from compute capability 9 on, else 4 MiB.
_TE_LARGE, _TE_SMALL = 32 * MIB + 1024, 4 * MIB
_TE_SMALL_ARCHS = frozenset({"volta", "turing", "ampere", "ada", "x86_64"})
# Grouped GEMMs keep one workspace per stream, four streams (the same file).
_GROUPED_STREAMS = 4
# torch aten/src/ATen/cuda/CublasHandlePool.cpp: default workspace of one (handle, stream) pair by architecture.
_TORCH_BLAS = {"hopper": 32 * MIB, "gfx90a": 32 * MIB, "gfx942": 128 * MIB, "gfx950": 128 * MIB}
_TORCH_BLAS_DEFAULT = 8.125 * MIB
# The forward and the autograd thread have a handle each.
_THREADS = 2


def workspace_bytes(resolved: Resolved, gpu_arch: str, *, moe: bool, head: bool) -> float:
    """Bytes on one rank. ``moe``: it holds experts; ``head``: it holds the output layer."""
    workload = resolved.workload
    model, recipe, size = workload.model, workload.recipe, sizes(resolved)
    megatron = resolved.execution.data_parallel in ("ddp", "megatron_fsdp")
    one = _TE_SMALL if gpu_arch in _TE_SMALL_ARCHS else _TE_LARGE
    total = _rope_table(resolved)
    if megatron:
        total += one * (1 + (_GROUPED_STREAMS if moe else 0))
        total += 3 * one if recipe.tp_comm_overlap and recipe.tp > 1 else 0.0
    if head or not megatron:
        # torch.matmul runs only in Megatron's output layer; elsewhere in every linear
        total += _THREADS * _TORCH_BLAS.get(gpu_arch, _TORCH_BLAS_DEFAULT)
    if head and megatron and size.sequence_parallel:
        # the global buffer that the output layer gathers its input into
        total += size.gathered_bytes
    if model.mtp_num_layers and head and size.sequence_parallel:
        total += size.gathered_bytes
    return total


def _rope_table(resolved: Resolved) -> float:
    """Cached rotation angles of the rank's part of the sequence, fp32 (MLA: cosine and sine)."""
    model, size = resolved.workload.model, sizes(resolved)
    if "rope" not in model.position_embedding_type:
        return 0.0
    width = 2 * model.mla.qk_pos_emb_head_dim if model.mla else model.kv_channels
    return 4.0 * size.sequence * width
