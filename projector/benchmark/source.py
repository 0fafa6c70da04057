"""Whose layers are timed: plain torch, those of Megatron-Core, torchtitan or transformers where installed, or others.

A source is found by name: ``torch``, ``megatron``, ``torchtitan``, ``transformers:config.json``, ``auto`` (Megatron-Core's
on a GPU where they are installed and have such layers, else plain torch), or ``package.module:function`` with the signature
of :data:`Maker`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

from torch import nn

from projector.benchmark import layers_dtensor
from projector.benchmark.layers_decoder import DecoderLayer, Embedding, Head
from projector.benchmark.layers_parts import Made
from projector.errors import InputError, Problem
from projector.workload.model import LayerKind

NAMES = ("auto", "torch", "megatron", "torchtitan", "transformers:config.json")


class Source(Protocol):
    """Makes the parts of a model on one rank. Hidden states are what its own layers pass on to each other."""

    name: str

    def embedding(self) -> nn.Module:
        """Maps token numbers [batch, length] to hidden states."""

    def layer(self, kind: LayerKind) -> nn.Module:
        """Maps hidden states to hidden states."""

    def head(self) -> nn.Module:
        """Maps hidden states and labels [batch, length] to the mean loss."""


Maker = Callable[[Made], Source]


class _Torch:
    """The layers of this package."""

    name = "torch"

    def __init__(self, made: Made) -> None:
        self._split = layers_dtensor.used(made)
        self._whole, self._made = (layers_dtensor.whole(made) if self._split else made), made

    def embedding(self) -> nn.Module:
        return self._placed(Embedding(self._whole))

    def layer(self, kind: LayerKind) -> nn.Module:
        return self._placed(DecoderLayer(self._whole, kind))

    def head(self) -> nn.Module:
        return self._placed(Head(self._whole))

    def _placed(self, module: nn.Module) -> nn.Module:
        return layers_dtensor.split(module, layers_dtensor.mesh_of(self._made)) if self._split else module


def find(name: str, made: Made) -> Source:
    """The source called ``name``. Raises :class:`InputError` for an unknown one, and for one that is not installed."""
    if name == "torch":
        return _Torch(made)
    if name in ("megatron", "auto"):
        from projector.benchmark import layers_megatron

        if name == "megatron":
            return layers_megatron.source(made)
        if not (made.place.startswith("cuda") and layers_megatron.installed()):
            return _Torch(made)
        return layers_megatron.runnable(made) or _Torch(made)
    if name == "torchtitan":
        from projector.benchmark.layers_torchtitan import TorchtitanSource

        return TorchtitanSource(made)
    module, _, function = name.partition(":")
    if module == "transformers":
        from projector.benchmark.layers_transformers import TransformersSource

        return TransformersSource(made, function)
    try:
        maker: Maker = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        expected = f"{', '.join(NAMES)} or package.module:function of a package that is installed"
        raise InputError([Problem("--layers", "", f"{name} ({error})", expected)]) from None
    return maker(made)
