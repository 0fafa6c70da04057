"""Lists the memory-bound kernels that torch can run: what each reads and writes per element, and how to set it up.

``elements`` count what the first output (of a reduction: the input) holds. Bytes are those of the algorithm, each
tensor once, as operators count them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import filled
from projector.dataclass import dataclass

_NARROW_ROW = 64  # experts that a router scores, of the order of published models


class Tensors:
    """Makes the filled tensors of one pass, each of ``rows`` rows of ``width`` elements on ``device``."""

    def __init__(self, device: Device, rows: int, width: int) -> None:
        self.device, self.torch, self.rows, self.width = device, device.torch, rows, width

    def bf16(self, rows: int = 0, width: int = 0) -> Any:
        return filled(self.device, (rows or self.rows, width or self.width), self.torch.bfloat16)

    def fp32(self, rows: int = 0, width: int = 0) -> Any:
        return filled(self.device, (rows or self.rows, width or self.width), self.torch.float32)

    def order(self) -> Any:
        """Returns the numbers of all rows, shuffled."""
        return self.torch.randperm(self.rows, device=self.device.place)

    def drawn(self) -> Any:
        """Returns as many numbers of rows as there are rows, drawn one by one."""
        return self.torch.randint(self.rows, (self.rows,), device=self.device.place)


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel of ``kind``: bytes ``read`` and written (``write``) per element, kernels launched, width of a row;
    ``build`` makes its tensors and returns what runs the kernel once."""

    kind: str
    name: str
    read: float
    write: float
    launches: int
    width: int
    build: Callable[[Tensors], Callable[[], object]]

    def setup(self, device: Device, rows: int, width: int) -> Callable[[], object]:
        """Allocates on ``device`` and returns what runs the kernel once."""
        return self.build(Tensors(device, rows, width))


def _norm(x: Tensors) -> Callable[[], object]:
    weight, bias = x.bf16(1)[0], x.bf16(1)[0]
    return partial(x.torch.native_layer_norm, x.bf16(), (x.width,), weight, bias, 1e-5)


def _norm_backward(x: Tensors) -> Callable[[], object]:
    tensor, gradient, weight, bias = x.bf16(), x.bf16(), x.bf16(1)[0], x.bf16(1)[0]
    _, mean, deviation = x.torch.native_layer_norm(tensor, (x.width,), weight, bias, 1e-5)
    back = x.torch.ops.aten.native_layer_norm_backward
    return partial(back, gradient, tensor, (x.width,), mean, deviation, weight, bias, (True, True, True))


def _rope(x: Tensors) -> Callable[[], object]:
    pairs, angles = (
        x.torch.view_as_complex(x.fp32(rows, 2 * x.width).reshape(rows, x.width, 2)) for rows in (x.rows, 1)
    )
    return partial(x.torch.mul, pairs, angles, out=x.torch.empty_like(pairs))


def _to_fp8(x: Tensors) -> Callable[[], object]:
    wide = x.bf16()
    return partial(wide.to(x.torch.float8_e4m3fn).copy_, wide)


def _adam(x: Tensors) -> Callable[[], object]:
    weight, gradient, first = (x.fp32() for _ in range(3))
    second, step = first.abs(), x.torch.ones((), device=x.device.place)
    tensors: Any = ([weight], [gradient], [first], [second], [], [step])
    options = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
    return partial(x.torch._fused_adamw_, *tensors, **options, amsgrad=False, maximize=False)


#: Every pass; those of one kind differ in what they read and write. Bytes per element: two for bf16, four for fp32.
PASSES: tuple[Pass, ...] = (
    Pass("copy", "copy", 2, 2, 1, 4096, lambda x: partial(x.bf16().copy_, x.bf16())),
    Pass("fill", "zero", 0, 2, 1, 4096, lambda x: x.bf16().zero_),
    Pass("elementwise", "add", 4, 2, 1, 4096, lambda x: partial(x.torch.add, x.bf16(), x.bf16(), out=x.bf16())),
    Pass("elementwise", "add to fp32", 6, 4, 1, 4096, lambda x: partial(x.fp32().add_, x.bf16())),
    Pass("elementwise", "scale", 2, 2, 1, 4096, lambda x: partial(x.torch.mul, x.bf16(), 1.5, out=x.bf16())),
    Pass("cast", "fp32 to bf16", 4, 2, 1, 4096, lambda x: partial(x.bf16().copy_, x.fp32())),
    Pass("cast", "bf16 to fp32", 2, 4, 1, 4096, lambda x: partial(x.fp32().copy_, x.bf16())),
    Pass("cast", "bf16 to fp8", 2, 1, 1, 4096, _to_fp8),
    Pass("norm", "LayerNorm", 2, 2, 1, 4096, _norm),
    Pass("norm", "LayerNorm backward", 4, 2, 2, 4096, _norm_backward),
    Pass("activation", "GLU", 4, 2, 1, 4096, lambda x: partial(x.torch.nn.functional.glu, x.bf16(0, 2 * x.width))),
    Pass(
        *("activation", "GLU backward", 6, 4, 1, 4096),
        lambda x: partial(x.torch.ops.aten.glu_backward, x.bf16(), x.bf16(0, 2 * x.width), -1),
    ),
    Pass("activation", "GELU", 2, 2, 1, 4096, lambda x: partial(x.torch.nn.functional.gelu, x.bf16())),
    Pass("rope", "complex rotation", 8, 8, 1, 64, _rope),
    Pass(
        *("permute", "permuted rows", 2, 2, 1, 4096),
        lambda x: partial(x.torch.index_select, x.bf16(), 0, x.order(), out=x.bf16()),
    ),
    Pass(
        *("gather", "chosen rows", 2, 2, 1, 4096),
        lambda x: partial(x.torch.index_select, x.bf16(), 0, x.drawn(), out=x.bf16()),
    ),
    Pass("scatter", "rows added", 4, 2, 1, 4096, lambda x: partial(x.bf16().index_add_, 0, x.order(), x.bf16())),
    Pass("transpose", "transpose", 2, 2, 1, 4096, lambda x: partial(x.bf16(x.width, x.rows).copy_, x.bf16().t())),
    Pass("softmax", "softmax", 2, 2, 1, 4096, lambda x: partial(x.torch.softmax, x.bf16(), -1)),
    Pass(
        *("softmax", "softmax backward", 4, 2, 1, 4096),
        lambda x: partial(x.torch.ops.aten._softmax_backward_data, x.bf16(), x.bf16(), -1, x.torch.bfloat16),
    ),
    Pass("router", "softmax over experts", 4, 4, 1, _NARROW_ROW, lambda x: partial(x.torch.softmax, x.fp32(), -1)),
    Pass("loss", "log-softmax", 4, 4, 1, 32768, lambda x: partial(x.torch.log_softmax, x.fp32(), -1)),
    Pass(
        *("loss", "log-softmax backward", 8, 4, 1, 32768),
        lambda x: partial(x.torch.ops.aten._log_softmax_backward_data, x.fp32(), x.fp32(), -1, x.torch.float32),
    ),
    Pass("reduce", "norm", 4, 0, 1, 4096, lambda x: partial(x.torch.linalg.vector_norm, x.fp32())),
    Pass("optimizer", "AdamW", 16, 12, 1, 4096, _adam),
    Pass("optimizer", "scale", 4, 4, 1, 4096, lambda x: partial(x.fp32().mul_, 1.0)),
    Pass("optimizer", "norm", 4, 0, 1, 4096, lambda x: partial(x.torch.linalg.vector_norm, x.fp32())),
    Pass("optimizer", "zero", 0, 4, 1, 4096, lambda x: x.fp32().zero_),
    Pass("optimizer", "fp32 to bf16", 4, 2, 1, 4096, lambda x: partial(x.bf16().copy_, x.fp32())),
)
