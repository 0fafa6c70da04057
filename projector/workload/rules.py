"""Lists what a workload must be, whatever runs it: sizes that divide, words that go together, patterns that fit.

A row of a table is a :class:`~projector.workload.rule.Rule`. Single values (types, ranges, words) are looked at before
(:mod:`projector.workload.validate`), so that a condition may divide by any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from projector.workload import fast_domain
from projector.workload.layer_kinds import (
    Attention,
    Dense,
    GatedDeltaNet,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    Parallel,
    PerLayer,
    SharedBlock,
)
from projector.workload.layer_pattern import MIXERS, MLPS, SIZES, expand, misread
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.rule import Rule
from projector.workload.sparse import BlockAttention
from projector.workload.workload import Workload

#: Forwards in a schedule: seconds and half a gigabyte to order; published ones have some thousands.
_MOST_STEPS = 1 << 19
_LETTERS = {"hybrid_layer_pattern": {**MIXERS, **MLPS}, "mixer_pattern": MIXERS}


class Dividend(NamedTuple):
    """A size that another must divide, and its name."""

    name: str
    size: int

    @property
    def divisors(self) -> str:
        """Returns all numbers that divide the size, where they are few enough to read."""
        size = self.size if self.size < 1024 else 0
        return ": " * (size > 0) + ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)


def undivided(size: int, by: int, name: str) -> list[Dividend]:
    """Returns ``size`` where ``by`` does not divide it."""
    return [Dividend(name, size)] if size % by else []


def _stated(item: Model, names: Iterable[str]) -> str:
    """Returns which of the fields ``names`` hold something."""
    return ", ".join(name for name in names if getattr(item, name))


def _whole(r: Recipe, w: Workload) -> bool:
    """Returns whether the GPUs are a whole number of replicas; else nothing can be said of data-parallel ranks."""
    return w.gpus % r.replica_ranks == 0


@lru_cache(maxsize=256)
def _split_sizes(model: Model) -> tuple[Dividend, ...]:
    """Returns the sizes that tensor parallelism splits in some layer, by name."""
    kinds = dict.fromkeys((*model.tower_kinds, *model.layer_kinds))
    sizes = (_split_in(model.within(kind), kind.mixer, kind.mlp) for kind in kinds)
    return tuple(dict.fromkeys(chain.from_iterable(sizes)))


def _split_in(model: Model, mixer: object, mlp: object) -> Iterator[Dividend]:
    if isinstance(mixer, SharedBlock):
        yield Dividend("ffn_hidden_size", model.ffn_hidden_size)
    if isinstance(mixer, Attention | BlockAttention | Parallel | SharedBlock):
        yield Dividend("num_attention_heads", model.num_attention_heads)
    if isinstance(mixer, Parallel | SharedBlock):
        mixer = mixer.mamba
    if isinstance(mixer, Mamba1):
        yield Dividend("mamba1.inner", mixer.inner)
    elif isinstance(mixer, Mamba2 | GatedDeltaNet):
        two = ("mamba_num_heads", "mamba_num_groups")
        names = two if isinstance(mixer, Mamba2) else ("linear_num_key_heads", "linear_num_value_heads")
        yield from (Dividend(name, getattr(mixer, name)) for name in names)
    elif isinstance(mixer, KimiDelta | Lightning):
        yield Dividend(f"{mixer.name}.num_heads", mixer.num_heads)
    if isinstance(mlp, Dense):
        yield Dividend("ffn_hidden_size", model.ffn_hidden_size)


def domain_mistakes(recipe: Recipe, dp: int, domain: int | None = None) -> Iterator[tuple[str, str]]:
    """Yields what is expected of the ``fast_domain`` of a recipe with ``dp`` data-parallel ranks, and what was
    found. ``domain``: how many ranks of a run lie in each domain (None: nobody knows)."""
    text = recipe.fast_domain or ""
    try:
        ranks = fast_domain.inside(text) or ()
    except ValueError as error:
        yield str(error), text
        return
    sizes = {"tp": recipe.tp, "tp2": recipe.tp2, "cp": recipe.cp, "dp": dp, "pp": recipe.pp}
    for name, near in zip(fast_domain.ORDER, ranks, strict=True):
        if sizes[name] % near:
            yield f"a divisor of {name} = {sizes[name]}", f"{name}{near}"
    if domain is not None and domain % math.prod(ranks):
        yield f"ranks whose product divides the {domain} of a domain", text
    if recipe.ep > 1 and ranks[fast_domain.ORDER.index("pp")] > 1:
        yield "one stage in a domain where experts are spread (ep)", f"pp{ranks[-1]}"
    copies = recipe.num_distributed_optimizer_instances or 1
    if copies > 1 or recipe.data_parallel_shard_size not in (None, dp * recipe.cp):
        yield "none with shards of a part of the data-parallel ranks", text


def _summa(r: Recipe) -> bool:
    return r.tensor_parallel_algorithm == "summa"


def _summa_sides(m: Model) -> tuple[Dividend, ...]:
    """Returns the sides of the matrices that SUMMA cuts."""
    heads = Dividend("the width of all heads", m.num_attention_heads * m.kv_channels)
    return Dividend("hidden_size", m.hidden_size), Dividend("ffn_hidden_size", m.ffn_hidden_size), heads


def _plain(m: Model) -> bool:
    """Returns whether every layer is attention with a softmax and a dense MLP."""
    kinds = dict.fromkeys(m.layer_kinds)
    return all(isinstance(kind.mixer, Attention) and isinstance(kind.mlp, Dense) for kind in kinds)


_NO_SUMMA = ("mtp_num_layers", "hyper_connections", "altup_num_inputs", "laurel_rank", "hidden_size_per_layer_input")
_NOT_GEMMA3N = (
    *("mla", "moe", "hyper_connections", "attn_res_block_size", "parallel_residual", "mtp_num_layers", "compressed"),
    *_LETTERS,
)
_NOT_SHARING = (
    *("mla", "share_q_dim", "attention_k_eq_v", *_LETTERS, "compressed", "per_layer", "full_attention"),
    "mtp_num_layers",
)


# fmt: off
def _only_without(name: str) -> Rule:
    """Returns the rule of a field of Gemma 3n, which is written for models without the fields of ``_NOT_GEMMA3N``."""
    return Rule(f"model.{name}", lambda m, r, w: getattr(m, name) and _stated(m, _NOT_GEMMA3N), "0 beside {0}")


def _letters(name: str, known: Mapping[str, str]) -> Rule:
    return Rule(f"model.{name}",
        lambda m, r, w: getattr(m, name) is not None and misread(getattr(m, name), known, m.num_layers), "{0}")


def _sized(letter: str, name: str) -> Rule:
    return Rule(f"model.{name}",
        lambda m, r, w: getattr(m, name) is None and letter in expand(m.hybrid_layer_pattern or m.mixer_pattern or ""),
        f"the sizes of {_LETTERS['hybrid_layer_pattern'][letter]}: {letter} stands in the pattern")


def _each_layer(name: str) -> Rule:
    return Rule(f"model.per_layer.{name}",
        lambda m, r, w: m.per_layer and (n := len(getattr(m.per_layer, name))) not in (0, m.num_layers) and n,
        "one entry a layer: {m.num_layers}", "{0} entries")


def _of_tower(name: str) -> Rule:
    expected = "nothing: {m.name} has no vision tower"
    return Rule(f"recipe.{name}", lambda m, r, w: m.vision is None and getattr(r, name), expected)


#: Rules of a model alone.
MODEL = (
    Rule("model.vision.num_attention_heads",
         lambda m, r, w: m.vision and m.vision.hidden_size % m.vision.num_attention_heads,
         "a divisor of {m.vision.hidden_size}"),
    Rule("model.vision.patch_size", lambda m, r, w: m.vision and m.vision.image_size % m.vision.patch_size,
         "a divisor of {m.vision.image_size}"),
    Rule("model.vision", lambda m, r, w: m.vision and m.encoder, "nothing beside an encoder", "a vision tower"),
    Rule("model.num_query_groups", lambda m, r, w: m.num_attention_heads % m.num_query_groups,
         "a divisor of num_attention_heads = {m.num_attention_heads}"),
    Rule("model.window_size", lambda m, r, w: not m.causal and m.window_size is not None,
         "none: a window without a causal mask"),
    Rule("model.mtp_num_layers", lambda m, r, w: not (m.causal and m.vocab_size) and m.mtp_num_layers,
         "0: nothing is predicted token by token"),
    Rule("model.cla_share_factor", lambda m, r, w: m.cla_share_factor > 1 and _stated(m, _NOT_SHARING),
         "1: layers do not share keys and values beside {0}"),
    Rule("model.altup_num_inputs", lambda m, r, w: m.altup_num_inputs == 1, "streams from 2 on, or 0"),
    Rule("model.hidden_size_per_layer_input",
         lambda m, r, w: bool(m.hidden_size_per_layer_input) != bool(m.vocab_size_per_layer_input),
         "vocab_size_per_layer_input beside it, and neither alone"),
    *map(_only_without, ("altup_num_inputs", "laurel_rank", "hidden_size_per_layer_input", "num_kv_shared_layers")),
    Rule("model.num_kv_shared_layers",
         lambda m, r, w: m.num_kv_shared_layers and (m.num_kv_shared_layers >= m.num_layers or m.cla_share_factor > 1),
         "less than num_layers = {m.num_layers}, and no cla_share_factor"),
    Rule("model.moe.moe_router_topk", lambda m, r, w: m.moe and m.moe.moe_router_topk > m.moe.num_experts,
         "at most {m.moe.num_experts} experts"),
    Rule("model.moe.moe_ffn_hidden_size",
         lambda m, r, w: m.moe and any(m.moe.moe_layer_freq) and not m.moe.moe_ffn_hidden_size, "the width of one expert"),
    Rule("model.moe.moe_router_num_groups",
         lambda m, r, w: m.moe and m.moe.moe_router_num_groups and m.moe.num_experts % m.moe.moe_router_num_groups,
         "a divisor of num_experts = {m.moe.num_experts}"),
)
#: Rules of what says which layers a model has; where one is broken nothing can be said of layers.
LAYERS = (
    Rule("model.moe.moe_layer_freq",
         lambda m, r, w: m.moe and not (len(m.moe.moe_layer_freq) == m.num_layers and {0, 1} >= {*m.moe.moe_layer_freq})
         and [len(m.moe.moe_layer_freq)],
         "one 0 or 1 per layer: {m.num_layers}", "{0} entries"),
    *(_letters(name, letters) for name, letters in _LETTERS.items()),
    *(_sized(letter, name) for letter, name in SIZES.items()),
    Rule("model.compressed.compress_ratios",
         lambda m, r, w: m.compressed and len(m.compressed.compress_ratios) - m.num_layers not in (0, 1)
         and [len(m.compressed.compress_ratios)],
         "one entry for each of {m.num_layers} layers, and one for multi-token prediction", "{0} entries"),
    *(_each_layer(field.name) for field in fields(PerLayer)),
)
#: Rules of what divides what.
DIVISIONS = (
    Rule("recipe.tp", lambda m, r, w: [each for each in _split_sizes(m) if each.size % r.tp],
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    Rule("recipe.ep", lambda m, r, w: m.moe and undivided(m.moe.num_experts, r.ep, "num_experts"),
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    Rule("recipe.etp", lambda m, r, w: m.moe and undivided(m.moe.moe_ffn_hidden_size, r.etp, "moe_ffn_hidden_size"),
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    Rule("recipe.tp",
         lambda m, r, w: m.moe and undivided(m.moe.moe_shared_expert_intermediate_size or 0, r.tp, "shared expert width"),
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    # a causal sequence is cut into 2·cp parts, two for each rank (Megatron-LM, TransformerEngine)
    Rule("recipe.cp", lambda m, r, w: m.causal and r.cp > 1 and r.seq_length % (2 * r.cp),
         "half of a divisor of seq_length = {r.seq_length}: each rank has two parts"),
    Rule("recipe.cp", lambda m, r, w: not m.causal and undivided(r.seq_length, r.cp, "seq_length"),
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    Rule("recipe.tp",
         lambda m, r, w: r.sequence_parallel and r.seq_length % r.cp == 0
         and undivided(r.seq_length // r.cp, r.tp, "seq_length / cp (sequence_parallel)"),
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    Rule("recipe.tp",
         lambda m, r, w: r.sequence_parallel and m.encoder and r.seq_length % r.cp == 0
         and undivided(r.encoder_seq_length or 0, r.tp, "encoder_seq_length (sequence_parallel)"),
         "a divisor of {0.name} = {0.size}{0.divisors}"),
    Rule("recipe.tp", lambda m, r, w: m.num_query_groups % r.tp and r.tp % m.num_query_groups,
         "a divisor or a multiple of num_query_groups = {m.num_query_groups}"),
    Rule("gpus", lambda m, r, w: r.tp2 == 1 and not _whole(r, w), "a multiple of tp · pp · cp = {r.replica_ranks}"),
    Rule("gpus", lambda m, r, w: r.tp2 > 1 and not _whole(r, w), "a multiple of tp · tp2 · pp · cp = {r.replica_ranks}"),
    Rule("gpus", lambda m, r, w: m.moe and _whole(r, w) and w.gpus % (r.etp * r.ep * r.pp) and r.etp * r.ep * r.pp,
         "a multiple of etp · ep · pp = {0}"),
    Rule("recipe.global_batch_size",
         lambda m, r, w: _whole(r, w) and r.global_batch_size % (r.micro_batch_size * w.dp) and r.micro_batch_size * w.dp,
         "a multiple of micro_batch_size · dp = {r.micro_batch_size} · {w.dp} = {0}"),
    Rule("recipe.global_batch_size", lambda m, r, w: _whole(r, w) and r.global_batch_size < r.micro_batch_size * w.dp
         and [r.global_batch_size // r.micro_batch_size * r.replica_ranks],
         "no more micro-batches: at most {0} GPUs are useful with this batch"),
    Rule("recipe.global_batch_size", lambda m, r, w: _whole(r, w) and w.num_microbatches * r.pp * r.vpp > _MOST_STEPS,
         f"at most {_MOST_STEPS:,} forwards of a chunk in a schedule, over all its ranks",
         "{r.global_batch_size:,} sequences: {w.num_microbatches:,} micro-batches a rank"),
    Rule("recipe.data_parallel_shard_size",
         lambda m, r, w: r.data_parallel_shard_size and _whole(r, w) and w.dp * r.cp % r.data_parallel_shard_size
         and w.dp * r.cp,
         "a divisor of the {0} data-parallel ranks"),
    Rule("recipe.num_distributed_optimizer_instances",
         lambda m, r, w: r.num_distributed_optimizer_instances and _whole(r, w)
         and (w.dp * r.cp % r.num_distributed_optimizer_instances or w.edp % r.num_distributed_optimizer_instances)
         and Dividend(str(w.dp * r.cp), w.edp),
         "a divisor of dp·cp = {0.name} and of edp = {0.size}"),
)
#: Rules of ``tensor_parallel_algorithm`` and its fields, and of what no operator of SUMMA is written for.
SUMMA = (
    Rule("recipe.cp_comm_type",
         lambda m, r, w: r.tensor_parallel_algorithm == "2d_sequence" and r.cp_comm_type not in (None, "allgather"),
         "allgather: 2d_sequence gathers keys and values"),
    Rule("recipe.sequence_parallel",
         lambda m, r, w: r.tensor_parallel_algorithm == "2d_sequence" and r.sequence_parallel is False and r.tp > 1,
         "on: 2d_sequence splits norms and residuals over tp"),
    Rule("recipe.tp2", lambda m, r, w: not _summa(r) and r.tp2 > 1, "1: without tensor_parallel_algorithm: summa"),
    Rule("recipe.summa_panels", lambda m, r, w: not _summa(r) and r.summa_panels is not None,
         "none: without tensor_parallel_algorithm: summa"),
    Rule("recipe.tp2", lambda m, r, w: _summa(r) and [each for each in _summa_sides(m) if each.size % r.tp2],
         "a divisor of {0.name} = {0.size}"),
    Rule("recipe.summa_panels", lambda m, r, w: _summa(r) and [each for each in _summa_sides(m) if each.size % r.panels],
         "a divisor of {0.name} = {0.size}", "{r.panels} panels"),
    Rule("recipe.tp", lambda m, r, w: _summa(r) and m.hidden_size % r.tp, "a divisor of hidden_size = {m.hidden_size}"),
    Rule("recipe.summa_panels", lambda m, r, w: _summa(r) and r.panels % math.lcm(r.tp, r.tp2),
         "a multiple of tp and of tp2 ({r.tp}, {r.tp2}): a panel has one owner in a row and a column", "{r.panels} panels"),
    Rule("recipe.tp2", lambda m, r, w: _summa(r) and r.tp2 > 1 and r.seq_length % (r.tp2 * (1 + m.causal)) and 1 + m.causal,
         "seq_length = {r.seq_length} to divide in {0} · tp2 parts"),
    Rule("recipe.tensor_parallel_algorithm",
         lambda m, r, w: _summa(r) and (not _plain(m) or m.moe is not None or m.mla is not None or m.per_layer is not None
                                        or _stated(m, _NO_SUMMA)),
         "1d unless every layer is plain attention and a dense MLP of the model's sizes, predicting one token"),
    Rule("recipe.cp", lambda m, r, w: _summa(r) and r.cp > 1, "1: under summa tp2 splits the sequence"),
    Rule("recipe.lora", lambda m, r, w: _summa(r) and r.lora is not None, "none under summa"),
    Rule("recipe.precision", lambda m, r, w: _summa(r) and r.precision not in ("bf16", "fp16", "fp32"),
         "bf16, fp16 or fp32 under summa"),
    Rule("recipe.tp_comm_overlap", lambda m, r, w: _summa(r) and r.tp_comm_overlap, "off: summa has its own overlap"),
    Rule("recipe.sequence_parallel", lambda m, r, w: _summa(r) and r.sequence_parallel is False and r.tp > 1,
         "on: summa splits everything over the grid"),
)
FAST_DOMAIN = Rule(
    "recipe.fast_domain",
    lambda m, r, w: r.fast_domain is not None and _whole(r, w) and list(domain_mistakes(r, w.dp)), "{0[0]}", "{0[1]}")
#: Rules of what goes together.
TOGETHER = (
    *(_of_tower(name)
      for name in ("images_per_sample", "freeze_language_model", "freeze_vision_model", "recompute_vision")),
    Rule("recipe.seq_length",
         lambda m, r, w: m.vision and r.images // r.sequences * m.vision.image_tokens > r.seq_length
         and r.images // r.sequences * m.vision.image_tokens,
         "at least {0}: the tokens of a sample's images stand among them"),
    # quantised weights are one tensor of packed codes, which nothing cuts between two of its rows
    Rule("recipe.lora.quant_type", lambda m, r, w: r.quant_type and r.tp * r.tp2 * r.pp > 1,
         "none: weights in few bits are cut by no tensor parallelism or pipeline (tp {r.tp}, pp {r.pp})"),
    Rule("recipe.lora.quant_type", lambda m, r, w: r.quant_type and r.quantised, "none: products run in {r.precision}"),
    # torch's FSDP shards floating point alone; hiyouga/LLaMA-Factory@ff6d4d12 model_utils/quantization.py:
    # "Only 4-bit quantized model can use fsdp+qlora"
    Rule("recipe.lora.quant_type",
         lambda m, r, w: r.quant_type == "int8" and r.data_parallel_sharding == "optim_grads_params",
         "nf4 or fp4: integers are not sharded (data_parallel_sharding)"),
    Rule("recipe.lora.quant_type",
         lambda m, r, w: m.moe and r.quant_type and r.data_parallel_sharding == "optim_grads_params"
         and r.moe_grouped_gemm != "loop",
         "none beside experts of 16 bits whose weights are shared (moe_grouped_gemm: loop, else data_parallel_sharding)"),
    Rule("recipe.lora.double_quant", lambda m, r, w: r.lora and r.lora.double_quant and r.quant_type in (None, "int8"),
         "off without blocks of 4-bit weights (quant_type nf4 or fp4)"),
    Rule("recipe.encoder_seq_length", lambda m, r, w: r.encoder_seq_length and m.encoder is None,
         "nothing: {m.name} has no encoder"),
    Rule("recipe.document_lengths",
         lambda m, r, w: r.document_lengths and (min(r.document_lengths) < 1 or sum(r.document_lengths) > r.seq_length),
         "lengths from 1 on, at most seq_length = {r.seq_length} in all"),
    Rule("recipe.cp", lambda m, r, w: r.dynamic_context_parallel and 2**40 % r.cp,
         "a power of two: documents run on one each (dynamic_context_parallel)"),
    Rule("recipe.vpp", lambda m, r, w: r.vpp > 1 and r.pp == 1, "pp > 1 for virtual stages"),
    Rule("recipe.transformer_impl", lambda m, r, w: r.transformer_impl == "local" and r.quantised,
         "transformer_engine: no other linears multiply in {r.precision}"),
    Rule("recipe.ep", lambda m, r, w: m.moe is None and r.ep > 1, "1: the model has no experts"),
    # Megatron-LM's default of etp is tp
    Rule("recipe.etp", lambda m, r, w: m.moe is None and r.etp > 1 and r.etp != r.tp, "1: the model has no experts"),
    Rule("recipe.recompute_num_layers",
         lambda m, r, w: r.recompute_granularity == "full" and r.recompute_method != "block"  # which takes all there are
         and (r.recompute_num_layers or 0) > m.num_layers,
         "at most num_layers = {m.num_layers}"),
    Rule("recipe.recompute_saved", lambda m, r, w: r.recompute_saved and r.recompute_granularity not in ("full", None),
         "recompute_granularity: full, whose replay these outputs are spared"),
    Rule("recipe.cpu_offloading_num_layers", lambda m, r, w: (r.cpu_offloading_num_layers or 0) >= m.num_layers,
         "less than num_layers = {m.num_layers}"),
    Rule("recipe.recompute_layer_ids",
         lambda m, r, w: any(not 0 <= layer < m.num_layers for layer in r.recompute_layer_ids or ()),
         "layer numbers from 0 on, below num_layers = {m.num_layers}"),
    FAST_DOMAIN,
)
# fmt: on
