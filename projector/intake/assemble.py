"""Turns Megatron-LM arguments into a :class:`Loaded`: the part that all loaders of such arguments share."""

from __future__ import annotations

from collections.abc import Mapping

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.intake import known_settings
from projector.intake.asked import names_read
from projector.intake.loaded import Loaded
from projector.intake.megatron_model import model_fields
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.tables import table
from projector.intake.values import Reader
from projector.workload import tokenizers
from projector.workload.model import Model
from projector.workload.model_schema import merge, model_from_mapping
from projector.workload.schema import parse_recipe
from projector.workload.structure import to_mapping

#: A dump lists every argument that its Megatron-LM has: 139 in 2021 (v2.5), over 300 since 2023. One without all of these,
#: which came with flash attention and Transformer Engine in 2022-11 and later, is older.
_SINCE_FLASH = ("use_flash_attn", "transformer_impl", "attention_backend")
_BEFORE_FLASH = "2022-10"
_WHOLE = 100  # arguments
_ZERO_STAGES = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Says where arguments come from: ``where`` for messages, the model's ``name``, its architecture if known (``base``).

    ``written``: by a person, so that names may be misspelt; a trainer's own dump of its arguments is not.
    """

    where: str
    name: str
    base: Model | None = None
    framework: str = "megatron-lm"
    assumed: tuple[str, ...] = ()
    written: bool = True


def assemble(args: Mapping[str, object], origin: Origin) -> Loaded:
    """Returns the workload of Megatron-LM arguments by name. Raises :class:`InputError` with everything that does not fit.

    The stated ``args`` change a ``base`` model; without one Megatron-LM's defaults fill in what is absent.
    """
    named = None if origin.base else tokenizers.completed(args, (origin.name,))
    if named is not None:
        args = {**args, "vocab_size": named.size}
    unsaid = (
        {}
        if origin.base
        else {name: value for name, value in table("megatron", "model_defaults").items() if args.get(name) is None}
    )
    reader = Reader({**args, **unsaid})
    fields = model_fields(reader)
    layers = fields.get("num_layers")
    depth = layers if isinstance(layers, int) else origin.base.num_layers if origin.base else None
    stated = recipe_fields(reader, depth)
    stated |= _deepspeed(reader)
    gpus = _gpus(reader, stated)
    assumed = (*origin.assumed, *((str(named),) if named else ()))
    if _layout_without_mtp(stated) and (fields.get("mtp_num_layers") or (origin.base and origin.base.mtp_num_layers)):
        fields["mtp_num_layers"] = 0
        assumed = (*assumed, "mtp_num_layers=0 (the pipeline layout places none)")
    problems = [Problem(origin.where, key, value, expected) for key, value, expected in reader.problems]
    model, more = _model(fields, origin)
    if model is not None and model.moe is None:
        stated.pop("etp", None)  # of experts alone: Megatron-LM sets and prints it for dense models, too
    recipe, rest = parse_recipe(stated, origin.where, "")
    unread = {name: value for name, value in args.items() if name not in reader.used}
    unread |= {f"{key}.{name}": value for key, inner in reader.inner.items() for name, value in inner.unread.items()}
    left = known_settings.sort(unread, names_read(_READERS), origin.where, written=origin.written)
    problems += left.problems
    if model is None or recipe is None or problems:
        raise InputError([*problems, *more, *rest])
    if left.cutting and origin.written:
        raise Unsupported(f"{', '.join(left.cutting)}: cuts the run over GPUs in a way that is not known here")
    framework = "megatron-deepspeed" if reader.flag("deepspeed") else origin.framework
    old = not origin.written and len(args) >= _WHOLE and not any(name in args for name in _SINCE_FLASH)
    return Loaded(
        model=model,
        recipe=recipe,
        gpus=gpus,
        framework=framework,
        etp_stated=reader.has("expert_tensor_parallel_size"),
        framework_date=_BEFORE_FLASH if old else "",
        assumed=(*assumed, f"framework_date={_BEFORE_FLASH} (its arguments know of no flash attention)")
        if old
        else assumed,
        ignored=left.neutral,
        unmodelled=left.unmodelled,
        moot=_ignored_arguments(args) if origin.written and origin.base is None else (),
    )


def _ignored_arguments(args: Mapping[str, object]) -> tuple[str, ...]:
    """Returns arguments that Megatron-LM ignores (core_transformer_config_from_args in megatron/training/arguments.py)."""
    groups = args.get("num_query_groups")
    shared = args.get("group_query_attention") or groups in (None, 1, args.get("num_attention_heads"))
    why = "without group_query_attention each head has keys and values of its own"
    return () if shared else (f"num_query_groups={groups}: {why}",)


def _deepspeed(reader: Reader) -> dict[str, object]:
    stage = reader.integer("zero_stage")
    if stage == 0 and reader.flag("bf16"):
        stage = 1  # BF16_Optimizer shares weights in fp32 and moments (DeepSpeed@38327e07f runtime/bf16_optimizer.py)
    if stage in _ZERO_STAGES and reader.flag("deepspeed"):
        return {"data_parallel_sharding": _ZERO_STAGES[stage]}
    return {}


def _layout_without_mtp(stated: Mapping[str, object]) -> bool:
    """Returns whether the layout places no MTP layer: Megatron-LM builds only those that a layout places."""
    layout = stated.get("pipeline_model_parallel_layout")
    return isinstance(layout, str) and "m" not in layout


def _gpus(reader: Reader, stated: Mapping[str, object]) -> int | None:
    world = reader.count("world_size")
    if world is not None:
        return world
    ranks = reader.count("data_parallel_size")
    sizes = [stated.get(name, 1) for name in ("tp", "pp", "cp")]
    if ranks is None or not all(isinstance(size, int) for size in sizes):
        return None
    for size in sizes:
        ranks *= size  # type: ignore[operator]
    return ranks


_DEPTH = 32  # of any model: layers on a virtual stage are read where the depth is known
#: Everything here that reads arguments: what they ask for are the names that count.
_READERS = (model_fields, lambda reader: recipe_fields(reader, _DEPTH), _deepspeed, lambda reader: _gpus(reader, {}))


def _model(fields: Mapping[str, object], origin: Origin) -> tuple[Model | None, list[Problem]]:
    """Returns the base model changed by ``fields``, or a model of ``fields`` alone, and the problems found."""
    given = dict(fields)
    base: dict[str, object] = {}
    if origin.base is not None:
        base = to_mapping(origin.base)
        if "kv_channels" not in given and "mla" in base:
            base.pop("kv_channels", None)
    if given.get("mla") is False:
        given.pop("mla")
        base.pop("mla", None)
    if "unsupported" in given:
        given.pop("mla", None)  # its fields mean something else there; such a model is named, not projected
    moe = given.get("moe")
    if isinstance(moe, Mapping) and "num_experts" not in moe and "moe" not in base:
        given.pop("moe")  # Megatron-LM prints the defaults of experts for dense models, too
    named = {"name": origin.name, "family": origin.base.family if origin.base else origin.name}
    return model_from_mapping({**merge(base, given), **named}, origin.where, "")
