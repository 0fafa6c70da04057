"""Holds sizes of learned-sparse and compressed attention, with the names of Megatron-LM and of published ``config.json``."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from projector.dataclass import dataclass
from projector.workload.field_facts import about


class LayerPart:
    """The base of mixers and MLPs: with the model's sizes, or its own in the fields of the model that it ``restates``."""

    __slots__ = ()
    restates: ClassVar[tuple[str, ...]] = ()

    def differs(self) -> dict[str, Any]:
        """Returns the fields of the model that have other values in this layer."""
        return {name: value for name in self.restates if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """DeepSeek sparse attention (arXiv:2512.02556): ``index_topk`` keys of each query. ``trained``: by a loss of its own."""

    index_n_heads: int
    index_head_dim: int
    index_topk: int
    trained: bool = False

    def parameters(self, hidden: int, q_rank: int) -> int:
        """Returns the projections of queries, of the one key head and of the heads' weights, the norm of keys."""
        width = self.index_n_heads * self.index_head_dim
        return q_rank * width + hidden * (self.index_head_dim + self.index_n_heads) + self.index_head_dim

    def keys(self, seq: int) -> float:
        """Returns the keys that a query of a causal sequence sees on average."""
        most = min(self.index_topk, seq)
        return most - most * (most - 1) / (2 * seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAttention(LayerPart):
    """Attention to ``block_counts`` blocks of ``block_size`` keys that each query chooses, its own among them: MoBA
    (arXiv:2502.13189); with ``compressed`` also to pooled blocks and to a window of ``window_size``, each through a gate of
    every head: NSA (arXiv:2502.11089). Names are those of fla-org/flash-linear-attention fla/layers/nsa.py."""

    block_size: int = 64
    block_counts: int = 16
    window_size: int = 512
    compressed: bool = False

    @property
    def name(self) -> str:
        return "nsa" if self.compressed else "moba"

    def parameters(self, hidden: int, heads: int) -> int:
        """Returns the parameters beyond those of grouped queries: three gates of every head."""
        return 3 * heads * hidden if self.compressed else 0

    def keys(self, seq: int) -> float:
        """Returns the mean keys of a query of a causal sequence: all before it, or whole blocks and half of its own."""
        most = min(float(self.block_counts * self.block_size), float(seq))
        return most - most * most / (2 * seq) - (self.block_size / 2 if most < seq else 0.0) * (1 - most / seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention(LayerPart):
    """Sizes in which layers of full attention differ from those with a window (Gemma 4, Step-3.5, MiMo-V2); None: no
    difference. ``attention_k_eq_v``: values are the keys before their rotation, without a product of their own."""

    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    kv_channels: int | None = None
    attention_k_eq_v: bool | None = None

    restates: ClassVar[tuple[str, ...]] = ("num_attention_heads", "num_query_groups", "kv_channels", "attention_k_eq_v")


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """Attention of DeepSeek-V4. ``compress_ratios``: tokens of a compressed entry, one number a decoder layer and one for
    the depths of multi-token prediction: 0 is a window of ``attn_sliding_window`` raw tokens alone; the smallest other one
    (4) adds entries that an indexer chooses; a larger one (128) adds all entries. ``trained``: the indexer learns what
    attention would choose (``v4_indexer_distill_loss_coeff`` of Primus above 0); else it is frozen."""

    q_lora_rank: int
    qk_pos_emb_head_dim: int
    o_groups: int
    o_lora_rank: int
    attn_sliding_window: int
    compress_ratios: tuple[int, ...] = field(metadata=about(least=0))
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 512
    trained: bool = False

    @property
    def indexer(self) -> Indexer:
        names = ("index_n_heads", "index_head_dim", "index_topk", "trained")
        return Indexer(**{name: getattr(self, name) for name in names})

    @property
    def chosen(self) -> int:
        """Returns the ratio whose entries an indexer chooses."""
        return min((ratio for ratio in self.compress_ratios if ratio), default=0)

    def parameters(self, ratio: int, hidden: int, heads: int, width: int) -> int:
        """Counts queries, shared head, sinks, output, compressors, indexer of a layer: ``heads`` heads of ``width``."""
        rank, query = self.q_lora_rank, heads * width
        total = hidden * rank + rank + rank * query + hidden * width + width + heads
        total += query * self.o_lora_rank + self.o_groups * self.o_lora_rank * hidden
        if ratio:
            total += _compressor(ratio, hidden, width)
        if ratio and ratio == self.chosen:
            width = self.index_n_heads * self.index_head_dim
            total += rank * width + hidden * self.index_n_heads + _compressor(ratio, hidden, self.index_head_dim)
        return total

    def keys(self, ratio: int, seq: int, ranks: int = 1) -> float:
        """Returns the keys that a query sees on average: the window, and entries before it; ``ranks``: for the last of so
        many equal parts of the sequence, whose queries see most."""
        queries = seq / ranks
        in_window = _mean_keys(min(self.attn_sliding_window, seq), seq, queries, 1)
        if not ratio:
            return in_window
        entries = seq / ratio
        most = min(float(self.index_topk), entries) if ratio == self.chosen else entries
        return in_window + _mean_keys(most, entries, entries / ranks, 0)

    def boundary(self, ratio: int) -> int:
        """Returns the tokens before its own that a part of the sequence needs: a window's, or a shared block's."""
        block = 0 if not ratio else 2 * ratio if ratio < OVERLAPPING else ratio
        return max(self.attn_sliding_window, block)


def _mean_keys(most: float, all_keys: float, own: float, self_too: int) -> float:
    """Returns the mean keys of the last ``own`` of ``all_keys`` positions, of which position i has min(i, ``most``)."""
    start = all_keys - own
    few = max(0.0, most - start)  # positions that have fewer than ``most``
    return most - few * (few - self_too) / (2 * own)


def _compressor(ratio: int, hidden: int, width: int) -> int:
    """Counts values and gates, positions in a block, a norm; blocks of ratios below :data:`OVERLAPPING` overlap."""
    wide = width * (2 if ratio < OVERLAPPING else 1)
    return 2 * hidden * wide + ratio * wide + width


OVERLAPPING = 128
"""Ratio below which every token is taken into two blocks (4 in DeepSeek-V4: blocks of 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(LayerPart):
    """The mixer of one layer with compressed attention; sizes are the model's."""

    ratio: int

    @property
    def name(self) -> str:
        return f"compressed{self.ratio}"
