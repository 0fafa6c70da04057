"""What configurations of trainers on Hugging Face's ``Trainer`` have in common: ZeRO, adapters, types, the model's name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from projector.errors import Problem
from projector.intake import deepspeed_config
from projector.intake.dialect import BUNDLES, Settings, dialect
from projector.intake.loaded import Loaded
from projector.intake.shell.unknown import Unknowns
from projector.io.files import read_text
from projector.workload import zoo
from projector.workload.model import Model

#: Linear layers of a decoder by the names of its modules.
_LINEARS = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "qkv_proj": "linear_qkv",
    "o_proj": "linear_proj", "gate_proj": "linear_fc1", "up_proj": "linear_fc1", "gate_up_proj": "linear_fc1",
    "down_proj": "linear_fc2",
    "lm_head": "output_layer",
}  # fmt: skip
ALL_LINEARS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
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
    fields = dict(BUNDLES[f"zero {stated['zero_stage']}"])
    if "optimizer_cpu_offload" in stated:
        fields["optimizer_cpu_offload"] = stated["optimizer_cpu_offload"]
    told = [
        f"deepspeed {key}={inner}"
        for key, inner in stated.items()
        if "." in key or key in dialect("deepspeed").tables["aside"]
    ]
    return fields, tuple(told)


def adapters(rank: object, targets: object, every: bool) -> dict[str, object]:
    """Low-rank adapters of ``rank`` on the linear layers that ``targets`` names (``every``: on all of the decoder's)."""
    named = targets if isinstance(targets, (list, tuple)) else str(targets or "").split(",")
    found: Iterable[str] = (_LINEARS[str(name).strip()] for name in named if str(name).strip() in _LINEARS)
    linears = [*ALL_LINEARS, *found] if every else list(found)
    return {"lora": {"dim": rank, "targets": list(dict.fromkeys(linears))}}


def loose(tokens: object) -> str:
    """What to tell of samples that are not packed, whose lengths nothing states: the longest decide the memory."""
    return f"samples shorter than {tokens} tokens (all are counted as that long)"


def published(name: str, where: str, key: str, problems: list[Problem]) -> Model | None:
    """The zoo's model of a hub's ``name``; a problem where it has none."""
    if found := zoo.named(name):
        return zoo.load(found)
    problems.append(Problem(where, key, name or "nothing", "--model NAME|FILE: a model of the zoo, or its config.json"))
    return None


def finished(
    job: Settings, model: Model | None, *, named: str, told: tuple[str, ...], problems: list[Problem]
) -> Loaded:
    """The workload of all that was read. ``named``: the setting that names the model; ``told``: doubts beside the job's own.

    Raises :class:`InputError` with all that is wrong.
    """
    name = str(job.args.raw(named) or "")
    model = model or published(name, job.where, named, problems)
    framework = "deepspeed" if job.stated.get("deepspeed") else "pytorch"
    return job.loaded(
        model,
        told=told,
        problems=problems,
        framework=framework,
        samples_per_rank=job.fields["global_batch_size"],
        assumed=(f"framework={framework}", f"model={model.name if model else name} ({name})"),
    )
