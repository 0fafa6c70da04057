"""The memory-bound kernels that torch can run: what each reads and writes per element, and how to set it up.

``elements`` count what the first output (of a reduction: the input) holds. Bytes are those of the algorithm, each
tensor once, as operators count them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import filled
from projector.dataclass import dataclass

Setup = Callable[[Device, int, int], Callable[[], object]]

_NARROW_ROW = 64  # experts that a router scores, of the order of published models


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel of ``kind``: bytes ``read`` and ``written`` per element, kernels launched, width of a row, setup.

    ``setup(device, rows, width)`` allocates and returns what runs the kernel once.
    """

    kind: str
    name: str
    read: float
    write: float
    launches: int
    width: int
    setup: Setup


def _bf16(device: Device, rows: int, width: int) -> Any:
    return filled(device, (rows, width), device.torch.bfloat16)


def _fp32(device: Device, rows: int, width: int) -> Any:
    return filled(device, (rows, width), device.torch.float32)


def _copy(device: Device, rows: int, width: int) -> Callable[[], object]:
    source, target = _bf16(device, rows, width), _bf16(device, rows, width)
    return lambda: target.copy_(source)


def _fill(device: Device, rows: int, width: int) -> Callable[[], object]:
    return _bf16(device, rows, width).zero_  # type: ignore[no-any-return]


def _add(device: Device, rows: int, width: int) -> Callable[[], object]:
    a, b, out = (_bf16(device, rows, width) for _ in range(3))
    return lambda: device.torch.add(a, b, out=out)


def _add_wide(device: Device, rows: int, width: int) -> Callable[[], object]:
    gradient, buffer = _bf16(device, rows, width), _fp32(device, rows, width)
    return lambda: buffer.add_(gradient)


def _scale(device: Device, rows: int, width: int) -> Callable[[], object]:
    a, out = _bf16(device, rows, width), _bf16(device, rows, width)
    return lambda: device.torch.mul(a, 1.5, out=out)


def _down(device: Device, rows: int, width: int) -> Callable[[], object]:
    wide, narrow = _fp32(device, rows, width), _bf16(device, rows, width)
    return lambda: narrow.copy_(wide)


def _up(device: Device, rows: int, width: int) -> Callable[[], object]:
    wide, narrow = _fp32(device, rows, width), _bf16(device, rows, width)
    return lambda: wide.copy_(narrow)


def _to_fp8(device: Device, rows: int, width: int) -> Callable[[], object]:
    wide = _bf16(device, rows, width)
    narrow = wide.to(device.torch.float8_e4m3fn)
    return lambda: narrow.copy_(wide)


def _norm(device: Device, rows: int, width: int) -> Callable[[], object]:
    x, weight, bias = _bf16(device, rows, width), _bf16(device, 1, width)[0], _bf16(device, 1, width)[0]
    return lambda: device.torch.native_layer_norm(x, (width,), weight, bias, 1e-5)


def _norm_backward(device: Device, rows: int, width: int) -> Callable[[], object]:
    torch = device.torch
    x, gradient = _bf16(device, rows, width), _bf16(device, rows, width)
    weight, bias = _bf16(device, 1, width)[0], _bf16(device, 1, width)[0]
    _, mean, deviation = torch.native_layer_norm(x, (width,), weight, bias, 1e-5)
    back = torch.ops.aten.native_layer_norm_backward
    return lambda: back(gradient, x, (width,), mean, deviation, weight, bias, (True, True, True))


def _glu(device: Device, rows: int, width: int) -> Callable[[], object]:
    both = _bf16(device, rows, 2 * width)
    return lambda: device.torch.nn.functional.glu(both)


def _glu_backward(device: Device, rows: int, width: int) -> Callable[[], object]:
    both, gradient = _bf16(device, rows, 2 * width), _bf16(device, rows, width)
    return lambda: device.torch.ops.aten.glu_backward(gradient, both, -1)


def _gelu(device: Device, rows: int, width: int) -> Callable[[], object]:
    x = _bf16(device, rows, width)
    return lambda: device.torch.nn.functional.gelu(x)


def _rope(device: Device, rows: int, width: int) -> Callable[[], object]:
    torch = device.torch
    x = torch.view_as_complex(_fp32(device, rows, 2 * width).reshape(rows, width, 2))
    angles = torch.view_as_complex(_fp32(device, 1, 2 * width).reshape(1, width, 2))
    out = torch.empty_like(x)
    return lambda: torch.mul(x, angles, out=out)


def _permute(device: Device, rows: int, width: int) -> Callable[[], object]:
    source, target = _bf16(device, rows, width), _bf16(device, rows, width)
    order = device.torch.randperm(rows, device=device.place)
    return lambda: device.torch.index_select(source, 0, order, out=target)


def _gather(device: Device, rows: int, width: int) -> Callable[[], object]:
    source, target = _bf16(device, rows, width), _bf16(device, rows, width)
    chosen = device.torch.randint(rows, (rows,), device=device.place)
    return lambda: device.torch.index_select(source, 0, chosen, out=target)


def _scatter(device: Device, rows: int, width: int) -> Callable[[], object]:
    source, target = _bf16(device, rows, width), _bf16(device, rows, width)
    order = device.torch.randperm(rows, device=device.place)
    return lambda: target.index_add_(0, order, source)


def _transpose(device: Device, rows: int, width: int) -> Callable[[], object]:
    source, target = _bf16(device, rows, width), _bf16(device, width, rows)
    return lambda: target.copy_(source.t())


def _softmax(device: Device, rows: int, width: int) -> Callable[[], object]:
    x = _bf16(device, rows, width)
    return lambda: device.torch.softmax(x, -1)


def _softmax_backward(device: Device, rows: int, width: int) -> Callable[[], object]:
    gradient, out = _bf16(device, rows, width), _bf16(device, rows, width)
    return lambda: device.torch.ops.aten._softmax_backward_data(gradient, out, -1, device.torch.bfloat16)


def _router(device: Device, rows: int, width: int) -> Callable[[], object]:
    x = _fp32(device, rows, width)
    return lambda: device.torch.softmax(x, -1)


def _log_softmax(device: Device, rows: int, width: int) -> Callable[[], object]:
    x = _fp32(device, rows, width)
    return lambda: device.torch.log_softmax(x, -1)


def _log_softmax_backward(device: Device, rows: int, width: int) -> Callable[[], object]:
    gradient, out = _fp32(device, rows, width), _fp32(device, rows, width)
    return lambda: device.torch.ops.aten._log_softmax_backward_data(gradient, out, -1, device.torch.float32)


def _total(device: Device, rows: int, width: int) -> Callable[[], object]:
    x = _fp32(device, rows, width)
    return lambda: device.torch.linalg.vector_norm(x)


def _zero_wide(device: Device, rows: int, width: int) -> Callable[[], object]:
    return _fp32(device, rows, width).zero_  # type: ignore[no-any-return]


def _scale_wide(device: Device, rows: int, width: int) -> Callable[[], object]:
    x = _fp32(device, rows, width)
    return lambda: x.mul_(1.0)


def _adam(device: Device, rows: int, width: int) -> Callable[[], object]:
    torch = device.torch
    weight, gradient, first = (_fp32(device, rows, width) for _ in range(3))
    second, step = first.abs(), torch.ones((), device=device.place)
    return lambda: torch._fused_adamw_(
        *([weight], [gradient], [first], [second], [], [step]),
        lr=1e-4,
        beta1=0.9,
        beta2=0.95,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


#: Every pass; those of one kind differ in what they read and write. Bytes per element: two for bf16, four for fp32.
PASSES: tuple[Pass, ...] = (
    Pass("copy", "copy", 2, 2, 1, 4096, _copy),
    Pass("fill", "zero", 0, 2, 1, 4096, _fill),
    Pass("elementwise", "add", 4, 2, 1, 4096, _add),
    Pass("elementwise", "add to fp32", 6, 4, 1, 4096, _add_wide),
    Pass("elementwise", "scale", 2, 2, 1, 4096, _scale),
    Pass("cast", "fp32 to bf16", 4, 2, 1, 4096, _down),
    Pass("cast", "bf16 to fp32", 2, 4, 1, 4096, _up),
    Pass("cast", "bf16 to fp8", 2, 1, 1, 4096, _to_fp8),
    Pass("norm", "LayerNorm", 2, 2, 1, 4096, _norm),
    Pass("norm", "LayerNorm backward", 4, 2, 2, 4096, _norm_backward),
    Pass("activation", "GLU", 4, 2, 1, 4096, _glu),
    Pass("activation", "GLU backward", 6, 4, 1, 4096, _glu_backward),
    Pass("activation", "GELU", 2, 2, 1, 4096, _gelu),
    Pass("rope", "complex rotation", 8, 8, 1, 64, _rope),
    Pass("permute", "permuted rows", 2, 2, 1, 4096, _permute),
    Pass("gather", "chosen rows", 2, 2, 1, 4096, _gather),
    Pass("scatter", "rows added", 4, 2, 1, 4096, _scatter),
    Pass("transpose", "transpose", 2, 2, 1, 4096, _transpose),
    Pass("softmax", "softmax", 2, 2, 1, 4096, _softmax),
    Pass("softmax", "softmax backward", 4, 2, 1, 4096, _softmax_backward),
    Pass("router", "softmax over experts", 4, 4, 1, _NARROW_ROW, _router),
    Pass("loss", "log-softmax", 4, 4, 1, 32768, _log_softmax),
    Pass("loss", "log-softmax backward", 8, 4, 1, 32768, _log_softmax_backward),
    Pass("reduce", "norm", 4, 0, 1, 4096, _total),
    Pass("optimizer", "AdamW", 16, 12, 1, 4096, _adam),
    Pass("optimizer", "scale", 4, 4, 1, 4096, _scale_wide),
    Pass("optimizer", "norm", 4, 0, 1, 4096, _total),
    Pass("optimizer", "zero", 0, 4, 1, 4096, _zero_wide),
    Pass("optimizer", "fp32 to bf16", 4, 2, 1, 4096, _down),
)
