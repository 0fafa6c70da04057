"""Times core attention through ``torch.nn.functional.scaled_dot_product_attention``, forward and backward apart."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import Job, Ready, Skip, filled, torch_type
from projector.kernels.constants import element_bytes
from projector.operators.types import Attention

_WIDE = ("bf16", "fp16", "fp32")


def jobs(op: Attention, device: Device) -> tuple[Job, ...]:
    """Returns a job for each kernel family that can be selected. Raises :class:`Skip` for what tables do not hold."""
    if not op.flash:
        raise Skip("attention out of separate products: its products and streams are timed")
    if op.window is not None:
        raise Skip("sliding windows: tables have no column for them")
    if op.causal and op.seq_q != op.seq_k:
        raise Skip("causal attention of unequal lengths")
    if op.dtype not in _WIDE:
        raise Skip(f"attention of {op.dtype} operands through torch")
    op = replace(op, name="", launches=1)
    width = element_bytes(op.dtype) * op.batch
    queries = width * op.seq_q * op.heads * (op.head_dim_qk + op.head_dim_v)
    keys = width * op.seq_k * op.kv_heads * (op.head_dim_qk + op.head_dim_v)
    nbytes = (queries + keys) * (3 if op.backward else 1)
    families = _families(op, device)
    return tuple(Job("attention", op, name, nbytes, partial(_build, op, device, kernel)) for name, kernel in families)


def _families(op: Attention, device: Device) -> Iterator[tuple[str, str | None]]:
    """Yields (name of the family in the tables, name of torch's backend or None where torch chooses)."""
    if device.type == "cpu":
        # other head dimensions of values than of keys leave the tiled kernel (ATen sdp_utils_cpp.cpp)
        yield ("sdpa_cpu" if op.head_dim_qk == op.head_dim_v else "math"), None
        return
    if device.vendor == "nvidia":
        yield "fa2", "FLASH_ATTENTION"
        yield "cudnn", "CUDNN_ATTENTION"
        return
    chosen = getattr(device.torch.backends.cuda, "preferred_rocm_fa_library", lambda: "aotriton")()
    yield ("ck" if "ck" in str(chosen).lower() else "aotriton"), "FLASH_ATTENTION"


def _build(op: Attention, device: Device, backend: str | None) -> Ready:
    torch, dtype = device.torch, torch_type(device, op.dtype)
    nn = importlib.import_module("torch.nn.attention")

    def heads(count: int, length: int, width: int) -> Any:
        tensor = filled(device, (op.batch, length, count, width), dtype).transpose(1, 2)
        return tensor.requires_grad_(op.backward)

    q = heads(op.heads, op.seq_q, op.head_dim_qk)
    k = heads(op.kv_heads, op.seq_k, op.head_dim_qk)
    v = heads(op.kv_heads, op.seq_k, op.head_dim_v)
    grouped = {"enable_gqa": True} if op.kv_heads < op.heads else {}

    def chosen() -> AbstractContextManager[object]:
        return nullcontext() if backend is None else nn.sdpa_kernel(getattr(nn.SDPBackend, backend))

    def forward() -> Any:
        with chosen():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=op.causal, **grouped)

    if not op.backward:
        return Ready(forward)
    out = forward()
    gradient = torch.randn_like(out)
    return Ready(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
