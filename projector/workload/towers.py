"""Describes stacks of layers before the model's own on the first pipeline stage, with tokens and sizes of their own."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, ClassVar

from projector.dataclass import dataclass
from projector.workload.field_facts import about
from projector.workload.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Layers of the decoder's widths that mask nothing; every layer of the decoder attends to their output (T5,
    arXiv:1910.10683; NVIDIA/Megatron-LM@00caa53a megatron/core/models/T5/t5_model.py)."""

    num_layers: int = field(metadata=about(most=10_000))

    name: ClassVar[str] = "encoder"

    def differs(self) -> dict[str, object]:
        """Returns the fields of the model that have other values in its layers."""
        return {"causal": False}

    def seen(self, recipe: Recipe) -> Recipe:
        """Returns ``recipe`` with the tokens that its layers see."""
        return replace(recipe, seq_length=recipe.encoder_seq_length or recipe.seq_length)

    def recomputes(self, _: Recipe) -> bool:
        """Returns whether recompute reaches its layers."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A vision transformer (arXiv:2010.11929) on every image of a sample, and a projector of two linears from its output to
    the language model's embeddings (LLaVA-1.5, arXiv:2310.03744). Defaults: CLIP's, as NVIDIA/Megatron-LM@00caa53a
    megatron/core/models/vision/clip_vit_model.py builds it.

    ``class_token``: one more token, which the projector does not see; ``pre_norm``, ``post_norm``: before the first layer,
    after the last; ``spatial_merge_size`` m: m × m neighbours become one token m² as wide; ``projector_hidden_size``:
    between its linears; ``output_size``: of a projected token (None: the language model's hidden size).
    """

    num_layers: int = field(metadata=about(most=10_000))
    hidden_size: int = field(metadata=about(most=1_000_000))
    ffn_hidden_size: int = field(metadata=about(most=10_000_000))
    num_attention_heads: int = field(metadata=about(most=10_000))
    projector_hidden_size: int = field(metadata=about(most=10_000_000))
    image_size: int = field(metadata=about(most=100_000))
    patch_size: int = field(metadata=about(most=10_000))
    patch_bias: bool = False
    class_token: bool = True
    pre_norm: bool = True
    post_norm: bool = False
    spatial_merge_size: int = field(default=1, metadata=about(most=64))
    output_size: int | None = None

    name: ClassVar[str] = "vision"

    @property
    def patches(self) -> int:
        """Returns how many patches one image is cut into."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_elements(self) -> int:
        """Returns the elements of a patch: three channels of a square."""
        return 3 * self.patch_size**2

    @property
    def tokens(self) -> int:
        """Returns how many tokens one image is in the layers of the tower."""
        return self.patches + self.class_token

    @property
    def image_tokens(self) -> int:
        """Returns how many tokens one image is in the sequence of the language model."""
        return self.patches // self.spatial_merge_size**2

    @property
    def merged(self) -> int:
        """Returns the width of a token at the projector."""
        return self.hidden_size * self.spatial_merge_size**2

    def differs(self) -> dict[str, object]:
        """Returns nothing: no field of the language model holds in its layers, which have their own (:meth:`sizes`)."""
        return {}

    def sizes(self) -> dict[str, Any]:
        """Returns the fields of a model of its layers alone."""
        same = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
        return {
            **{name: getattr(self, name) for name in same},
            "num_query_groups": self.num_attention_heads,
            "kv_channels": self.hidden_size // self.num_attention_heads,
            "vocab_size": 0,
            "gated_linear_unit": False,
            "causal": False,
            "normalization": "LayerNorm",
            "position_embedding_type": "none",
            "add_bias_linear": True,
        }

    def seen(self, recipe: Recipe) -> Recipe:
        """Returns ``recipe`` with the images that its layers see, without sequence parallelism (NVIDIA/Megatron-LM@00c2c0ad
        examples/multimodal/model.py)."""
        images = recipe.images
        return replace(
            recipe,
            seq_length=self.tokens,
            micro_batch_size=recipe.micro_batch_size * images,
            global_batch_size=recipe.global_batch_size * images,
            sequence_parallel=False,
            tp_comm_overlap=False,
            freeze_language_model=recipe.freeze_vision_model,
            recompute_granularity=recipe.recompute_granularity if self.recomputes(recipe) else "none",
        )

    def recomputes(self, recipe: Recipe) -> bool:
        """Returns whether recompute reaches its layers: where ``recompute_vision`` says so, and never frozen ones,
        which save nothing."""
        return bool(recipe.recompute_vision) and not recipe.freeze_vision_model

    @property
    def entry(self) -> int:
        """Returns the parameters before its layers: of patches, of the class token, of positions, of the norm."""
        patches = self.hidden_size * (self.patch_elements + self.patch_bias)
        return patches + self.hidden_size * (self.class_token + self.tokens + 2 * self.pre_norm)

    def exit(self, hidden_size: int) -> int:
        """Returns the parameters after its layers: of the norm and of both linears of the projector, with biases."""
        wide = self.projector_hidden_size
        return 2 * self.hidden_size * self.post_norm + (self.merged + 1) * wide + (wide + 1) * hidden_size
