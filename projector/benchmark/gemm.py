"""Times dense products through torch: forward (TN), data gradient (NN), weight gradient (NT), 8-bit operands too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import FP8, Job, Ready, Skip, filled, torch_type
from projector.kernels.constants import element_bytes
from projector.operators.types import Gemm

_LIBRARIES = {"nvidia": "cublaslt", "amd": "hipblaslt"}
_BLOCK, _MX = 128, 32  # operand elements that share a scale (DeepSeek-V3 report section 3.3; OCP MX specification)
_TWO_KERNELS = "product and addition in two kernels"


def family(device: Device, dtype: str) -> str:
    """Returns the library behind ``torch.mm``."""
    if device.type == "cpu":
        return "mkl" if dtype == "fp32" and device.torch.backends.mkl.is_available() else "onednn"
    return _LIBRARIES[device.vendor]


def jobs(op: Gemm, device: Device) -> tuple[Job, ...]:
    """Returns the product as one job. Raises :class:`Skip` for a layout or type that torch cannot run."""
    if op.layout not in ("TN", "NN", "NT"):
        raise Skip(f"layout {op.layout}")
    torch_type(device, op.dtype)
    op = replace(op, name="", launches=1, scaling=op.scaling or "tensorwise" if op.dtype == "fp8" else op.scaling)
    width = element_bytes(op.dtype)
    nbytes = op.batch * (width * (op.m * op.k + op.n * op.k) + 2 * op.out_bytes * op.m * op.n)
    return (Job("gemm", op, family(device, op.dtype), nbytes, lambda: _build(op, device)),)


def _build(op: Gemm, device: Device) -> Ready:
    if device.type == "cuda" and hasattr(device.torch.backends.cuda, "preferred_blas_library"):
        device.torch.backends.cuda.preferred_blas_library("cublaslt")  # hipBLASLt on ROCm: the family of the row
    product, note = _narrow(op, device) if op.dtype in FP8 else _plain(op, device)
    return Ready(product, note)


def _plain(op: Gemm, device: Device) -> tuple[Callable[[], object], str]:
    torch = device.torch
    dtype = torch_type(device, op.dtype)
    lead = (op.batch,) if op.batch > 1 else ()

    def operand(rows: int, columns: int, turned: bool) -> Any:
        tensor = filled(device, (*lead, columns, rows) if turned else (*lead, rows, columns), dtype)
        return tensor.mT if turned else tensor

    a, b = operand(op.m, op.k, op.layout == "NT"), operand(op.k, op.n, op.layout == "TN")
    out_type = torch.float32 if op.out_bytes == 4 else dtype
    out = torch.zeros((*lead, op.m, op.n), dtype=out_type, device=device.place)
    multiply, add = (torch.bmm, torch.baddbmm) if lead else (torch.mm, torch.addmm)
    precise = "high" if op.dtype == "tf32" else "highest"

    def with_precision(call: Callable[[], object]) -> Callable[[], object]:
        torch.set_float32_matmul_precision(precise)
        return call

    if out_type == dtype:
        if op.accumulate:
            return with_precision(lambda: add(out, a, b, out=out)), ""
        return with_precision(lambda: multiply(a, b, out=out)), ""
    if op.accumulate:
        wide = _first_supported(
            device, lambda: add(out, a, b, out_dtype=out_type, out=out), lambda: add(out, a, b, out_dtype=out_type)
        )
    else:
        wide = _first_supported(device, lambda: multiply(a, b, out_dtype=out_type))
    if wide is not None:
        return wide, ""
    temporary = torch.empty((*lead, op.m, op.n), dtype=dtype, device=device.place)
    if op.accumulate:
        return (lambda: (multiply(a, b, out=temporary), out.add_(temporary))), _TWO_KERNELS
    return (lambda: (multiply(a, b, out=temporary), out.copy_(temporary))), "product and cast in two kernels"


def _first_supported(device: Device, *calls: Callable[[], object]) -> Callable[[], object] | None:
    """Returns the first call that this build of torch has a kernel for, or None."""
    for call in calls:
        try:
            call()
            device.synchronize()
        except (RuntimeError, TypeError):
            continue
        return call
    return None


def _narrow(op: Gemm, device: Device) -> tuple[Callable[[], object], str]:
    if op.batch > 1:
        raise Skip("batches of 8-bit products")
    out_type = device.torch.float32 if op.out_bytes == 4 else device.torch.bfloat16
    multiply = narrow(device, op.m, op.n, op.k, op.scaling, out_type, fast=op.layout == "TN")
    # 8-bit kernels want both operands with K innermost whatever the product is for: frameworks keep transposed copies
    notes = [] if op.layout == "TN" else ["operands transposed beforehand"]
    if not op.accumulate:
        return multiply, "; ".join(notes)
    out = device.torch.zeros((op.m, op.n), dtype=out_type, device=device.place)
    return (lambda: out.add_(multiply())), "; ".join([*notes, _TWO_KERNELS])


def narrow(device: Device, m: int, n: int, k: int, scaling: str, out_type: Any, fast: bool = True) -> Callable[[], Any]:
    """Returns a product of 8-bit operands through ``torch._scaled_mm``. Raises :class:`Skip` where it has no kernel."""
    torch = device.torch
    if not hasattr(torch, "_scaled_mm"):
        raise Skip("this torch has no _scaled_mm")
    dtype = torch_type(device, "fp8")
    a = filled(device, (m, k), torch.bfloat16).to(dtype)
    b = filled(device, (n, k), torch.bfloat16).to(dtype).t()
    scale_a, scale_b = _scales(device, m, n, k, scaling)

    def multiply() -> Any:
        return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out_type, use_fast_accum=fast)

    return multiply


def _scales(device: Device, m: int, n: int, k: int, scaling: str) -> tuple[Any, Any]:
    torch = device.torch

    def ones(*shape: int) -> Any:
        return torch.ones(shape, dtype=torch.float32, device=device.place)

    if scaling in ("", "tensorwise"):
        return ones().reshape(()), ones().reshape(())
    if scaling == "rowwise":
        return ones(m, 1), ones(1, n)
    if scaling == "blockwise" and k % _BLOCK == 0 and n % _BLOCK == 0:
        return ones(k // _BLOCK, m).t(), ones(n // _BLOCK, k // _BLOCK).t()
    if scaling == "mxfp8" and k % _MX == 0:
        # scales come in tiles of 128 rows by 4 blocks (cuBLAS 12.9, section on block scaling)
        columns = -(-k // _MX // 4) * 4
        exponent = torch.float8_e8m0fnu
        return ones(-(-m // 128) * 128 * columns).to(exponent), ones(-(-n // 128) * 128 * columns).to(exponent)
    raise Skip(f"8-bit products scaled {scaling} of this shape")
