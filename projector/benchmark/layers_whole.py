"""Whole blocks of other libraries, on one rank, between this package's embedding and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from projector.benchmark.layers_decoder import Embedding, Head
from projector.benchmark.layers_parts import DEVIATION, LayerSetup
from projector.errors import Unsupported


class WholeSource:
    """The common part of sources that take a library's whole blocks; ``name``: that of the library."""

    name = ""

    def __init__(self, made: LayerSetup) -> None:
        """Raises :class:`Unsupported` for layers that several ranks would share."""
        if made.ranks.tp.size * made.ranks.ep.size > 1:
            raise Unsupported(f"layers of {self.name} on several ranks of tp or ep: try --benchmark-gpus 1")
        self._made = made

    def embedding(self) -> nn.Module:
        return Embedding(self._made)

    def head(self) -> nn.Module:
        return Head(self._made)

    def placed(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> nn.Module:
        """Returns ``layer``, which was made without memory, as a layer on [tokens, hidden]; ``call`` runs it on [batch,
        length, hidden]."""
        layer.to_empty(device=self._made.place).to(self._made.weight_dtype)
        for weight in layer.parameters():
            nn.init.normal_(weight, std=DEVIATION)
        for buffer in layer.buffers():
            buffer.zero_()
        return _Layer(layer, call, self._made)


class _Layer(nn.Module):
    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Any], made: LayerSetup) -> None:
        super().__init__()
        self.layer, self.call, self.length = layer, call, made.length
        self.cast = made.dtype if made.weight_dtype != made.dtype else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.view(-1, self.length, x.shape[-1])
        with torch.autocast(x.device.type, dtype=self.cast, enabled=self.cast is not None):
            out = self.call(self.layer, hidden)
        hidden_out: Tensor = out[0] if isinstance(out, tuple) else out
        return hidden_out.to(x.dtype).flatten(0, 1)
