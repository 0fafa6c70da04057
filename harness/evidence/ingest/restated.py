"""Keys of a table that say again what another one says of the run: unread where they say something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.record import boolean, number
from harness.evidence.ingest.vocabulary import changes_nothing
from projector.workload.field_facts import about_of
from projector.workload.model import MLA, Model, MoE
from projector.workload.moe_layer_freq import expand
from projector.workload.recipe import Recipe

_OF_MODEL: Mapping[str, Callable[[Model], object]] = {
    "swiglu": lambda model: model.gated_linear_unit,
    "disable_bias_linear": lambda model: not model.add_bias_linear,
    **dict.fromkeys(("mla", "multi_latent_attention"), lambda model: model.mla is not None),
    "group_query_attention": lambda model: model.num_query_groups != model.num_attention_heads,
    "topk": lambda model: model.moe and model.moe.moe_router_topk,
    "norm": lambda model: model.normalization,
    "qk_layernorm": lambda model: model.qk_layernorm or model.mla is not None,  # there of the latents
}
_OF_RECIPE: Mapping[str, Callable[[Recipe], object]] = {
    "bf16": lambda recipe: recipe.precision not in ("fp16", "fp32"),
    **dict.fromkeys(("fp8", "fp8_format"), lambda recipe: "fp8" in recipe.precision),
    **dict.fromkeys(("fp4", "fp4_recipe"), lambda recipe: "fp4" in recipe.precision),
}
_FORMATS = ("e4m3", "hybrid", "e2m1", "nvfp4")  # of narrow types that a switch names
_OF_ANY: Mapping[str, object] = {"packed": True, "sample_packing": True, "power_limited": False}


def says_nothing_new(run: MeasuredRun, key: str, text: str) -> bool:
    """Returns whether ``text`` at ``key`` says what the run holds, or where it holds no such thing changes nothing."""
    held = list(_held(run, key.rpartition(".")[2]))
    return any(_same(each, text) for each in held) if held else changes_nothing(key, text)


def _held(run: MeasuredRun, name: str) -> Iterator[object]:
    if name in _OF_ANY:
        yield _OF_ANY[name]
    if run.model is not None and name in _OF_MODEL:
        yield _OF_MODEL[name](run.model)
    if run.recipe is not None and name in _OF_RECIPE:
        yield _OF_RECIPE[name](run.recipe)
    model = run.model
    for part in (model, model and model.moe, model and model.mla, run.recipe):
        if part is not None and (field := _NAMES[type(part)].get(name)):
            yield getattr(part, field)


_NAMES: Mapping[type, Mapping[str, str]] = {
    kind: {
        name: field
        for field, told in about_of(kind).items()
        for name in (field, *(name for names in told.names.values() for name in names))
    }
    for kind in (Model, MoE, MLA, Recipe)
}
"""Every name of a field, and the field."""


def _same(held: object, text: str) -> bool:
    if held is None:
        return text.lower() in ("none", "null", "0") or boolean(text) is False
    if isinstance(held, bool):
        return (text in _FORMATS or boolean(text)) is held
    if isinstance(held, tuple):
        return expand(text, len(held))[0] == held
    if isinstance(held, (int, float)):
        return number(text) == held
    return str(held).lower() == text.lower()
