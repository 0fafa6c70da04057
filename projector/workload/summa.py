"""What ``tensor_parallel_algorithm`` asks of a workload, and which strategies it goes with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from projector.workload.declared import Mistake
from projector.workload.layer_kinds import Attention, Dense
from projector.workload.model import Model
from projector.workload.recipe import Recipe


def problems(model: Model, recipe: Recipe) -> Iterator[Mistake]:
    """Yields every mistake of the second dimension of tensor parallelism."""
    how = recipe.tensor_parallel_algorithm or "1d"
    if how == "2d_sequence":
        yield from _sequence(recipe)
    if how != "summa":
        for key, harmless in (("tp2", 1), ("summa_panels", None)):
            if getattr(recipe, key) != harmless:
                yield f"recipe.{key}", f"{'1' if harmless else 'none'}: without tensor_parallel_algorithm: summa"
        return
    yield from _sizes(model, recipe)
    yield from _beside(model, recipe)


def _sequence(recipe: Recipe) -> Iterator[Mistake]:
    if recipe.cp_comm_type not in (None, "allgather"):
        yield "recipe.cp_comm_type", "allgather: 2d_sequence gathers keys and values"
    if recipe.sequence_parallel is False and recipe.tp > 1:
        yield "recipe.sequence_parallel", "on: 2d_sequence splits norms and residuals over tp"


def _sizes(model: Model, recipe: Recipe) -> Iterator[Mistake]:
    panels = recipe.panels
    sides = {
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "the width of all heads": model.num_attention_heads * model.kv_channels,
    }
    for name, of in sides.items():
        if of % recipe.tp2:
            yield "recipe.tp2", f"a divisor of {name} = {of}"
        if of % panels:
            yield "recipe.summa_panels", f"a divisor of {name} = {of}", panels
    if model.hidden_size % recipe.tp:
        yield "recipe.tp", f"a divisor of hidden_size = {model.hidden_size}"
    if panels % math.lcm(recipe.tp, recipe.tp2):
        expected = (
            f"a multiple of tp and of tp2 ({recipe.tp}, {recipe.tp2}): a panel has one owner in a row and a column"
        )
        yield "recipe.summa_panels", expected, panels
    parts = recipe.tp2 * (2 if model.causal else 1)
    if recipe.tp2 > 1 and recipe.seq_length % parts:
        expected = f"a divisor of seq_length = {recipe.seq_length} (in {'2·tp2' if model.causal else 'tp2'} parts)"
        yield "recipe.tp2", expected


def _beside(model: Model, recipe: Recipe) -> Iterator[Mistake]:
    """What no operator of SUMMA is written for."""
    softmax = all(
        isinstance(kind.mixer, Attention) and isinstance(kind.mlp, Dense) for kind in dict.fromkeys(model.layer_kinds)
    )
    others = (model.moe, model.mla, model.per_layer, model.mtp_num_layers or None, model.hyper_connections or None)
    around = model.altup_num_inputs or model.laurel_rank or model.hidden_size_per_layer_input
    if any(part is not None for part in others) or around or not softmax:
        expected = "1d unless every layer is plain attention and a dense MLP of the model's sizes, predicting one token"
        yield "recipe.tensor_parallel_algorithm", expected
    off_grid = recipe.sequence_parallel is False and recipe.tp > 1
    for key, wrong, expected in (
        ("cp", recipe.cp > 1, "1: under summa tp2 splits the sequence"),
        ("lora", recipe.lora is not None, "none under summa"),
        ("precision", recipe.precision not in ("bf16", "fp16", "fp32"), "bf16, fp16 or fp32 under summa"),
        ("tp_comm_overlap", recipe.tp_comm_overlap, "off: summa has its own overlap"),
        ("sequence_parallel", off_grid, "on: summa splits everything over the grid"),
    ):
        if wrong:
            yield f"recipe.{key}", expected
