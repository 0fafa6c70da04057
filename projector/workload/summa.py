"""What ``tensor_parallel_algorithm`` asks of a workload, and which strategies it goes with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from projector.errors import Problem
from projector.workload.layer_kinds import Attention, Dense
from projector.workload.model import Model
from projector.workload.recipe import Recipe


def problems(model: Model, recipe: Recipe, where: str = "") -> Iterator[Problem]:
    """Every mistake of the second dimension of tensor parallelism."""
    how = recipe.tensor_parallel_algorithm or "1d"
    if how == "2d_sequence":
        yield from _sequence(recipe, where)
    if how != "summa":
        for key, harmless in (("tp2", 1), ("summa_panels", None)):
            if getattr(recipe, key) != harmless:
                expected = f"{'1' if harmless else 'none'}: without tensor_parallel_algorithm: summa"
                yield Problem(where, f"recipe.{key}", getattr(recipe, key), expected)
        return
    yield from _sizes(model, recipe, where)
    yield from _beside(model, recipe, where)


def _sequence(recipe: Recipe, where: str) -> Iterator[Problem]:
    if recipe.cp_comm_type not in (None, "allgather"):
        expected = "allgather: 2d_sequence gathers keys and values"
        yield Problem(where, "recipe.cp_comm_type", recipe.cp_comm_type, expected)
    if recipe.sequence_parallel is False and recipe.tp > 1:
        yield Problem(where, "recipe.sequence_parallel", False, "on: 2d_sequence splits norms and residuals over tp")


def _sizes(model: Model, recipe: Recipe, where: str) -> Iterator[Problem]:
    panels = recipe.panels
    sides = {
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "the width of all heads": model.num_attention_heads * model.kv_channels,
    }
    for name, of in sides.items():
        if of % recipe.tp2:
            yield Problem(where, "recipe.tp2", recipe.tp2, f"a divisor of {name} = {of}")
        if of % panels:
            yield Problem(where, "recipe.summa_panels", panels, f"a divisor of {name} = {of}")
    if model.hidden_size % recipe.tp:
        yield Problem(where, "recipe.tp", recipe.tp, f"a divisor of hidden_size = {model.hidden_size}")
    if panels % math.lcm(recipe.tp, recipe.tp2):
        expected = (
            f"a multiple of tp and of tp2 ({recipe.tp}, {recipe.tp2}): a panel has one owner in a row and a column"
        )
        yield Problem(where, "recipe.summa_panels", panels, expected)
    parts = recipe.tp2 * (2 if model.causal else 1)
    if recipe.tp2 > 1 and recipe.seq_length % parts:
        expected = f"a divisor of seq_length = {recipe.seq_length} (in {'2·tp2' if model.causal else 'tp2'} parts)"
        yield Problem(where, "recipe.tp2", recipe.tp2, expected)


def _beside(model: Model, recipe: Recipe, where: str) -> Iterator[Problem]:
    """What no operator of SUMMA is written for."""
    softmax = all(
        isinstance(kind.mixer, Attention) and isinstance(kind.mlp, Dense) for kind in dict.fromkeys(model.layer_kinds)
    )
    others = (model.moe, model.mla, model.per_layer, model.mtp_num_layers or None, model.hyper_connections or None)
    around = model.altup_num_inputs or model.laurel_rank or model.hidden_size_per_layer_input
    if any(part is not None for part in others) or around or not softmax:
        expected = "1d unless every layer is plain attention and a dense MLP of the model's sizes, predicting one token"
        yield Problem(where, "recipe.tensor_parallel_algorithm", "summa", expected)
    refused = {
        "cp": recipe.cp > 1,
        "lora": recipe.lora is not None,
        "precision": recipe.precision not in ("bf16", "fp16", "fp32"),
        "tp_comm_overlap": bool(recipe.tp_comm_overlap),
        "sequence_parallel": recipe.sequence_parallel is False and recipe.tp > 1,
    }
    for key, wrong in refused.items():
        if wrong:
            yield Problem(where, f"recipe.{key}", getattr(recipe, key), _EXPECTED[key])


_EXPECTED = {
    "cp": "1: under summa tp2 splits the sequence",
    "lora": "none under summa",
    "precision": "bf16, fp16 or fp32 under summa",
    "tp_comm_overlap": "off: summa has its own overlap",
    "sequence_parallel": "on: summa splits everything over the grid",
}
