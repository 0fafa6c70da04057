"""Parts that all layers share: how weights are made, linears, norms, dense feed-forward networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from projector.benchmark.layers_parallel import ALONE, Ranks
from projector.dataclass import dataclass
from projector.mechanisms import Execution
from projector.workload.model import Model
from projector.workload.workload import Workload

DEVIATION = 0.02  # of initial weights (Megatron-LM --init-method-std; initializer_range of most configurations)
_EPSILON = 1e-5  # of norms (Megatron-LM --norm-epsilon)
_FP32_BYTES = 4.0
_TYPES = {"fp32": torch.float32, "fp16": torch.float16}

_PLAIN = Execution()


@dataclass(frozen=True)
class LayerSetup:
    """How layers of ``workload`` are made: sizes of the whole model, ``ranks`` that share them, device ``place``."""

    workload: Workload
    place: str = "cpu"
    ranks: Ranks = ALONE
    execution: Execution = _PLAIN

    @property
    def model(self) -> Model:
        return self.workload.model

    @property
    def length(self) -> int:
        """Returns the tokens of one sequence on one rank of the context group."""
        return max(1, self.workload.recipe.seq_length // self.workload.recipe.cp)

    @property
    def tokens(self) -> int:
        """Returns the tokens of one micro-batch, before tensor parallelism splits them."""
        return self.workload.recipe.micro_batch_size * self.length

    @property
    def own_tokens(self) -> int:
        """Returns the tokens that a rank holds between layers."""
        return self.tokens // (self.ranks.tp.size if self.ranks.sequence_parallel else 1)

    @property
    def dtype(self) -> torch.dtype:
        """Returns the type in which products run."""
        return torch_dtype(self.workload.recipe.precision)

    @property
    def weight_dtype(self) -> torch.dtype:
        """Returns the type in which weights are kept: fp32 where the framework casts them at every use."""
        return torch.float32 if self.execution.data_parallel.parameter_bytes >= _FP32_BYTES else self.dtype


def torch_dtype(precision: str) -> torch.dtype:
    """Returns the type that layers compute in: bf16 also stands for the narrower ones."""
    return _TYPES.get(precision, torch.bfloat16)


def share(size: int, ranks: int) -> int:
    """Returns a rank's part of ``size``, rounded up, at least 1."""
    return max(1, -(-size // ranks))


class Linear(nn.Linear):
    """A linear whose weight is cast to the type of its input where it is kept in a wider one."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, cast(self.weight, x), None if self.bias is None else cast(self.bias, x))


def cast(weight: Tensor, x: Tensor) -> Tensor:
    """Returns ``weight`` in the type of ``x``."""
    return weight if weight.dtype == x.dtype else weight.to(x.dtype)


def linear(made: LayerSetup, inputs: int, outputs: int, bias: bool = False) -> Linear:
    """Returns a linear with Megatron's initial weights."""
    layer = Linear(inputs, outputs, bias=bias, device=made.place, dtype=made.weight_dtype)
    nn.init.normal_(layer.weight, std=DEVIATION)
    return layer


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension, as the model has it."""

    def __init__(self, made: LayerSetup, width: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": made.place, "dtype": made.weight_dtype}
        kind = made.model.normalization
        self.shape = (width,)
        self.centred = kind != "RMSNorm"
        self.weight = nn.Parameter(torch.ones(width, **options)) if kind != "NonParametricLayerNorm" else None
        self.bias = nn.Parameter(torch.zeros(width, **options)) if kind == "LayerNorm" else None

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else cast(self.weight, x)
        if self.centred:
            bias = None if self.bias is None else cast(self.bias, x)
            return nn.functional.layer_norm(x, self.shape, weight, bias, _EPSILON)
        return nn.functional.rms_norm(x, self.shape, weight, _EPSILON)


def activated(model: Model, x: Tensor) -> Tensor:
    """Returns GELU of ``x``, or SiLU of its first half times the second."""
    if not model.gated_linear_unit:
        return nn.functional.gelu(x)
    gate, up = x.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up


class FeedForward(nn.Module):
    """Two linears and the activation between them on all tokens; ``width``: that of all ranks, split over ``tp``.

    The output is this rank's summand: see :meth:`projector.benchmark.layers_parallel.Ranks.leave`.
    """

    def __init__(self, made: LayerSetup, width: int) -> None:
        super().__init__()
        model, inner = made.model, share(width, made.ranks.tp.size)
        self.model = model
        separate_gate = model.gated_linear_unit and not made.execution.fusion.gate_up
        wide = (2 if model.gated_linear_unit and not separate_gate else 1) * inner
        self.gate = linear(made, model.hidden_size, inner, model.add_bias_linear) if separate_gate else None
        self.fc1 = linear(made, model.hidden_size, wide, model.add_bias_linear)
        self.fc2 = linear(made, inner, model.hidden_size, model.add_bias_linear)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            inner = activated(self.model, self.fc1(x))
        else:
            inner = nn.functional.silu(self.gate(x)) * self.fc1(x)
        out: Tensor = self.fc2(inner)
        return out
