"""What configurations of trainers on Hugging Face's ``Trainer`` have in common: ZeRO, adapters, types, the model's name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from projector.errors import InputError, Problem
from projector.intake import deepspeed_config, known_settings
from projector.intake.loaded import Loaded
from projector.intake.shell.unknown import Unknowns
from projector.intake.values import Reader
from projector.io.files import read_text
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.schema import parse_recipe

_SHARDING = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
#: Linear layers of a decoder by the names of its modules.
_LINEARS = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "qkv_proj": "linear_qkv",
    "o_proj": "linear_proj", "gate_proj": "linear_fc1", "up_proj": "linear_fc1", "gate_up_proj": "linear_fc1",
    "down_proj": "linear_fc2",
    "lm_head": "output_layer",
}  # fmt: skip
ALL_LINEARS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
ATTENTION = {
    "fa2": "fa2", "flash_attention_2": "fa2", "fa3": "fa3", "flash_attention_3": "fa3", "eager": "materialised",
    "disabled": "materialised",
}  # fmt: skip
#: Weights, gradients and moments of the model's own type: nothing keeps them in fp32.
IN_BF16: Mapping[str, object] = {
    "use_precision_aware_optimizer": True,
    "grad_reduce_in_bf16": True,
    **dict.fromkeys(("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), "bf16"),
}
_ABOVE = 4  # folders in which a path of the configuration is looked for


def zero(value: object, where: str, problems: list[Problem]) -> tuple[dict[str, object], tuple[str, ...]]:
    """(recipe fields, what is not modelled) of DeepSpeed's configuration, or of the file of that name beside ``where`` or in
    a folder above."""
    if isinstance(value, Mapping):
        text: str | None = json.dumps(value)
    else:
        folders = Path(where).resolve().parents[:_ABOVE]
        file = next((path for folder in folders if (path := folder / str(value)).is_file()), None)
        text = read_text(file) if file else None
    if text is None:
        problems.append(Problem(where, "deepspeed", value, "that file beside the configuration"))
        return {}, ()
    stated, _ = deepspeed_config.arguments(text, str(value), Unknowns())
    fields = {
        "data_parallel_sharding": _SHARDING.get(stated.get("zero_stage", 0)),  # type: ignore[call-overload]
        "optimizer_cpu_offload": stated.get("optimizer_cpu_offload"),
    }
    told = [f"deepspeed {key}={inner}" for key, inner in stated.items() if "." in key or key in deepspeed_config.ASIDE]
    return fields, tuple(told)


def adapters(rank: object, targets: object, every: bool) -> dict[str, object]:
    """Low-rank adapters of ``rank`` on the linear layers that ``targets`` names (``every``: on all of the decoder's)."""
    named = targets if isinstance(targets, (list, tuple)) else str(targets or "").split(",")
    found: Iterable[str] = (_LINEARS[str(name).strip()] for name in named if str(name).strip() in _LINEARS)
    linears = [*ALL_LINEARS, *found] if every else list(found)
    return {"lora": {"dim": rank, "targets": list(dict.fromkeys(linears))}}


def published(name: str, where: str, key: str, problems: list[Problem]) -> Model | None:
    """The zoo's model of a hub's ``name``; a problem where it has none."""
    if found := zoo.named(name):
        return zoo.load(found)
    problems.append(Problem(where, key, name or "nothing", "--model NAME|FILE: a model of the zoo, or its config.json"))
    return None


def loaded(
    args: Reader,
    content: Mapping[str, object],
    where: str,
    *,
    named: str,
    model: Model | None,
    fields: Mapping[str, object],
    others: frozenset[str],
    unmodelled: Mapping[str, object],
    told: tuple[str, ...],
    problems: list[Problem],
) -> Loaded:
    """The workload of ``fields`` of a recipe (None: not stated). ``named``: the setting that names the model; ``others``:
    settings that need no reader; ``unmodelled``: those that are told, and the value that changes nothing.

    Raises :class:`InputError` with all that is wrong.
    """
    name = str(content[named])
    model = model or published(name, where, named, problems)
    recipe, wrong = parse_recipe({key: value for key, value in fields.items() if value is not None}, where, "")
    known = frozenset(args.used | others | set(unmodelled))
    left = known_settings.sort({key: value for key, value in content.items() if key not in known}, known, where)
    problems += [Problem(where, key, value, expected) for key, value, expected in args.problems] + list(left.problems)
    if model is None or recipe is None or problems:
        raise InputError([*problems, *wrong])
    framework = "deepspeed" if content.get("deepspeed") else "pytorch"
    mine = [f"{key}={content[key]}" for key, off in unmodelled.items() if content.get(key, off) not in (off, None)]
    return Loaded(
        model=model,
        recipe=recipe,
        framework=framework,
        samples_per_rank=recipe.global_batch_size,
        assumed=(f"framework={framework}", f"model={model.name} ({name})"),
        ignored=left.neutral,
        unmodelled=(*mine, *told, *left.unmodelled),
    )
