"""Finds whose layers are timed: plain torch, Megatron-Core's, torchtitan's or transformers' where installed, or others.

A source is found by name: ``torch``, ``megatron``, ``torchtitan``, ``transformers:config.json``, ``auto``
(Megatron-Core's on a GPU where they are installed and have such layers, else plain torch), or
``package.module:function`` with the signature of :data:`Maker`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module, util
from typing import Any, Protocol

import torch
from torch import nn

from projector.benchmark import layers_dtensor
from projector.benchmark.layers_decoder import DecoderLayer, Embedding, Head
from projector.benchmark.layers_parts import LayerSetup
from projector.benchmark.layers_whole import WholeSource
from projector.benchmark.processes import said
from projector.errors import InputError, Problem
from projector.workload.model import LayerKind

NAMES = ("auto", "torch", "megatron", "torchtitan", "transformers:config.json")


class Source(Protocol):
    """Makes the parts of a model on one rank. Hidden states are what a source's own layers pass on to each other."""

    name: str

    def embedding(self) -> nn.Module:
        """Maps token numbers [batch, length] to hidden states."""

    def layer(self, kind: LayerKind) -> nn.Module:
        """Maps hidden states to hidden states."""

    def head(self) -> nn.Module:
        """Maps hidden states and labels [batch, length] to the mean loss."""


Maker = Callable[[LayerSetup], Source]


class _Torch:
    """Makes the layers of this package."""

    name = "torch"

    def __init__(self, made: LayerSetup) -> None:
        self._split = layers_dtensor.used(made)
        self._whole, self._made = (layers_dtensor.whole(made) if self._split else made), made

    def embedding(self) -> nn.Module:
        return self._placed(Embedding(self._whole))

    def layer(self, kind: LayerKind) -> nn.Module:
        return self._placed(DecoderLayer(self._whole, kind))

    def head(self) -> nn.Module:
        return self._placed(Head(self._whole))

    def _placed(self, module: nn.Module) -> nn.Module:
        if not self._split:
            return module
        kind, group = self._made.place.partition(":")[0], self._made.ranks.tp.handle
        return layers_dtensor.split(module, layers_dtensor.mesh_of(kind, group))


def find(name: str, made: LayerSetup) -> Source:
    """Returns the source called ``name``. Raises :class:`InputError` for one that is unknown or not installed."""
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
        return TransformersSource(made, function)
    try:
        maker: Maker = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        expected = f"{', '.join(NAMES)} or package.module:function of a package that is installed"
        raise InputError([Problem("--layers", "", f"{name} ({error})", expected)]) from None
    return maker(made)


# Layers of Hugging Face's transformers by a ``config.json``, as large as one rank's part. Imported only when asked for.
#
# Names are those of huggingface/transformers 4.48 and later: ``AutoModel.from_config``, decoders with ``layers`` and
# ``rotary_emb``, layers that take ``position_embeddings``.
PREFIX = "transformers"
#: Sizes that a rank's part changes: field of the model, and its names in configurations.
_SIZES = {
    "num_layers": ("num_hidden_layers",),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "num_query_groups": ("num_key_value_heads",),
    "kv_channels": ("head_dim",),
}
_EXPERTS = {
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
}


class TransformersSource(WholeSource):
    """Decoder layers of transformers between this package's embedding and head."""

    name = PREFIX

    def __init__(self, made: LayerSetup, path: str) -> None:
        """``path`` is ``config.json`` or its folder. Raises :class:`InputError` where it or the library is missing."""
        if util.find_spec("transformers") is None:
            expected = "the library: pip install transformers, or --layers torch"
            raise InputError([Problem("--layers", "", "transformers is not installed", expected)])
        super().__init__(made)
        auto = import_module("transformers")
        try:
            config = auto.AutoConfig.from_pretrained(path.removesuffix("config.json") or ".", local_files_only=True)
        except (OSError, ValueError) as error:
            found = said(error)[:200]
            raise InputError([Problem("--layers", path, found, "a config.json that transformers reads")]) from None
        config = getattr(config, "text_config", config)
        model = made.model
        for part, sizes in ((model, _SIZES), (model.moe, _EXPERTS)):
            for ours, names in sizes.items() if part is not None else ():
                for name in (each for each in names if getattr(config, each, None) is not None):
                    setattr(config, name, getattr(part, ours))
        config._attn_implementation = "sdpa"
        with torch.device("meta"):  # a whole model that takes no memory
            self._decoder: Any = auto.AutoModel.from_config(config)
        self._rotary: Any = type(self._decoder.rotary_emb)(config=config).to(made.place)

    def layer(self, kind: LayerKind) -> nn.Module:
        made = self._made
        shape = (made.workload.recipe.micro_batch_size, made.length)
        positions = torch.arange(made.length, device=made.place).expand(shape)
        angles = self._rotary(torch.empty(*shape, 1, dtype=made.dtype, device=made.place), positions)

        def call(layer: nn.Module, hidden: torch.Tensor) -> Any:
            return layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=angles)

        return self.placed(deepcopy(self._decoder.layers[made.model.layer_kinds.index(kind)]), call)
