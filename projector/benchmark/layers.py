"""Parts of a decoder set up to be timed one by one on one device: what runs, on which input, with which weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import filled
from projector.benchmark.layers_decoder import DecoderLayer, Embedding, Head
from projector.benchmark.layers_parts import Made
from projector.frameworks import resolve
from projector.workload.model import LayerKind
from projector.workload.workload import Workload

__all__ = ["Built", "embedding", "head", "layer"]


@dataclass(frozen=True)
class Built:
    """A part of the model: ``run`` maps ``inputs`` to an output (or a loss); ``weights`` hold its parameters."""

    run: Callable[[Any], Any]
    inputs: Any
    weights: list[Any]


def layer(kind: LayerKind, workload: Workload, device: Device) -> Built:
    """One decoder layer on [tokens, hidden]. Raises :class:`Unsupported` for what the plain parts lack."""
    made = _made(workload, device)
    module = DecoderLayer(made, kind)
    inputs = filled(device, (made.tokens, made.model.hidden_size), made.dtype).requires_grad_(True)
    return Built(module, inputs, list(module.parameters()))


def embedding(workload: Workload, device: Device) -> Built:
    """Token embedding of one micro-batch."""
    made = _made(workload, device)
    module = Embedding(made)
    return Built(module, _tokens(made, device), list(module.parameters()))


def head(workload: Workload, device: Device) -> Built:
    """Final norm, output layer and cross-entropy in fp32: a scalar."""
    made = _made(workload, device)
    module, labels = Head(made), _tokens(made, device)
    inputs = filled(device, (made.tokens, made.model.hidden_size), made.dtype).requires_grad_(True)
    return Built(lambda x: module(x, labels), inputs, list(module.parameters()))


def _made(workload: Workload, device: Device) -> Made:
    execution = resolve(workload, device.vendor, device.arch).execution
    return Made(workload, device.place, execution=execution)


def _tokens(made: Made, device: Device) -> Any:
    shape = (made.workload.recipe.micro_batch_size, made.length)
    return device.torch.randint(made.model.vocab_size, shape, device=device.place)
