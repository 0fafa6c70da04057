"""Small buffers that libraries allocate once and never free; all of them show up in the allocator's figure."""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.layers.local import local
from projector.operators.types import GROUPED_STREAMS
from projector.parameter import parameter

_MIB = 2.0**20

# from compute capability 9 on, else
_TE_LARGE, _TE_SMALL = parameter(
    (32 * _MIB + 1024, 4 * _MIB), unit="B", kind="published", source="TransformerEngine pytorch/cpp_extensions/gemm.py"
)
_TE_SMALL_ARCHS = frozenset({"volta", "turing", "ampere", "ada", "x86_64"})
# by architecture, and of any other
_TORCH_BLAS, _TORCH_BLAS_DEFAULT = parameter(
    ({"hopper": 32 * _MIB, "gfx90a": 32 * _MIB, "gfx942": 128 * _MIB, "gfx950": 128 * _MIB}, 8.125 * _MIB),
    unit="B",
    kind="published",
    source="torch aten/src/ATen/cuda/CublasHandlePool.cpp: default workspace of one (handle, stream) pair",
)
_THREADS = parameter(2, kind="published", source="the forward and the autograd thread have a handle each")


def workspace_bytes(resolved: Resolved, gpu_arch: str, *, moe: bool, head: bool) -> float:
    """Bytes on one rank. ``moe``: it holds experts; ``head``: it holds the output layer."""
    workload = resolved.workload
    model, recipe, lo = workload.model, workload.recipe, local(resolved)
    megatron = resolved.execution.data_parallel.megatron_core
    one = _TE_SMALL if gpu_arch in _TE_SMALL_ARCHS else _TE_LARGE
    total = _rope_table(resolved)
    if megatron:
        total += one * (1 + (GROUPED_STREAMS if moe else 0))
        total += 3 * one if recipe.tp_comm_overlap and recipe.tp > 1 else 0.0
    if head or not megatron:
        # torch.matmul runs only in Megatron's output layer; elsewhere in every linear
        total += _THREADS * _TORCH_BLAS.get(gpu_arch, _TORCH_BLAS_DEFAULT)
    if head and megatron and lo.sp:
        # the global buffer that the output layer gathers its input into
        total += lo.gathered_bytes
    if model.mtp_num_layers and head and lo.sp:
        total += lo.gathered_bytes
    return total


def _rope_table(resolved: Resolved) -> float:
    """Cached rotation angles of the rank's part of the sequence, fp32 (MLA: cosine and sine)."""
    model, recipe = resolved.workload.model, resolved.workload.recipe
    if "rope" not in model.position_embedding_type:
        return 0.0
    width = 2 * model.mla.qk_pos_emb_head_dim if model.mla else model.kv_channels
    return 4.0 * (recipe.seq_length // recipe.cp) * width
