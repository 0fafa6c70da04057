"""Layers of Hugging Face's transformers by a ``config.json``, as large as one rank's part. Imported only when asked for.

Names are those of huggingface/transformers 4.48 and later: ``AutoModel.from_config``, decoders with ``layers`` and
``rotary_emb``, layers that take ``position_embeddings``.
"""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module, util
from typing import Any

import torch
from torch import nn

from projector.benchmark.layers_parts import Made
from projector.benchmark.layers_whole import WholeSource
from projector.errors import InputError, Problem
from projector.workload.model import LayerKind

PREFIX = "transformers"
#: What a rank's part changes, by the names that configurations give it: field of the model, names there.
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
    """Its decoder layers between this package's embedding and head."""

    name = PREFIX

    def __init__(self, made: Made, path: str) -> None:
        """``path``: of ``config.json`` or its folder. Raises :class:`InputError` where it or the library is missing."""
        if util.find_spec("transformers") is None:
            expected = "the library: pip install transformers, or --layers torch"
            raise InputError([Problem("--layers", "", "transformers is not installed", expected)])
        super().__init__(made)
        auto = import_module("transformers")
        try:
            config = auto.AutoConfig.from_pretrained(path.removesuffix("config.json") or ".", local_files_only=True)
        except (OSError, ValueError) as error:
            found = (str(error).strip().splitlines() or [""])[0][:200]
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
