"""Times dense products through torch: forward (TN), data gradient (NN), weight gradient (NT), 8-bit operands too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import FP8, Job, Ready, Skip, as_run, filled, in_two_kernels, torch_type
from projector.kernels.constants import element_bytes
from projector.operators.types import Gemm

_LIBRARIES = {"nvidia": "cublaslt", "amd": "hipblaslt"}
_BLOCK, _MX = 128, 32  # operand elements that share a scale (DeepSeek-V3 report section 3.3; OCP MX specification)


def family(device: Device, dtype: str) -> str:
    """Returns the library behind ``torch.mm``."""
    if device.type == "cpu":
        return "mkl" if dtype == "fp32" and device.torch.backends.mkl.is_available() else "onednn"
    return _LIBRARIES[device.vendor]


def jobs(op: Gemm, device: Device) -> tuple[Job, ...]:
    """Returns the product as one job. Raises :class:`Skip` for a layout or type that torch cannot run."""
    op = as_run(op, device)
    width = element_bytes(op.dtype)
    nbytes = op.batch * (width * (op.m * op.k + op.n * op.k) + 2 * op.out_bytes * op.m * op.n)

    def build() -> Ready:
        if device.type == "cuda" and hasattr(device.torch.backends.cuda, "preferred_blas_library"):
            device.torch.backends.cuda.preferred_blas_library("cublaslt")  # hipBLASLt on ROCm: the family of the row
        return _narrow(op, device) if op.dtype in FP8 else _plain(op, device)

    return (Job("gemm", op, family(device, op.dtype), nbytes, build),)


def _plain(op: Gemm, device: Device) -> Ready:
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
    product = partial(add, out, a, b) if op.accumulate else partial(multiply, a, b)
    if out_type == dtype:
        torch.set_float32_matmul_precision("high" if op.dtype == "tf32" else "highest")
        return Ready(partial(product, out=out))
    cast = partial(product, out_dtype=out_type)
    wide = _first_supported(device, *([partial(cast, out=out)] if op.accumulate else []), cast)
    if wide is not None:
        return Ready(wide)
    temporary = torch.empty((*lead, op.m, op.n), dtype=dtype, device=device.place)
    return in_two_kernels(partial(multiply, a, b, out=temporary), out, op.accumulate)


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


def _narrow(op: Gemm, device: Device) -> Ready:
    if op.batch > 1:
        raise Skip("batches of 8-bit products")
    out_type = device.torch.float32 if op.out_bytes == 4 else device.torch.bfloat16
    multiply = narrow(device, op.m, op.n, op.k, op.scaling, out_type, fast=op.layout == "TN")
    # 8-bit kernels want both operands with K innermost whatever the product is for: frameworks keep transposed copies
    note = "" if op.layout == "TN" else "operands transposed beforehand"
    if not op.accumulate:
        return Ready(multiply, note)
    added = in_two_kernels(multiply, device.torch.zeros((op.m, op.n), dtype=out_type, device=device.place), True)
    return Ready(added.call, "; ".join(filter(None, (note, added.note))))


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
    def ones(*shape: int) -> Any:
        return device.torch.ones(shape, dtype=device.torch.float32, device=device.place)

    if scaling in ("", "tensorwise"):
        return ones(), ones()
    if scaling == "rowwise":
        return ones(m, 1), ones(1, n)
    if scaling == "blockwise" and k % _BLOCK == 0 and n % _BLOCK == 0:
        return ones(k // _BLOCK, m).t(), ones(n // _BLOCK, k // _BLOCK).t()
    if scaling == "mxfp8" and k % _MX == 0:
        # scales come in tiles of 128 rows by 4 blocks (cuBLAS 12.9, section on block scaling)
        columns = -(-k // _MX // 4) * 4
        exponent = device.torch.float8_e8m0fnu
        return ones(-(-m // 128) * 128 * columns).to(exponent), ones(-(-n // 128) * 128 * columns).to(exponent)
    raise Skip(f"8-bit products scaled {scaling} of this shape")
