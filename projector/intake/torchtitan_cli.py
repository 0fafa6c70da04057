"""torchtitan's command line: a TOML file and ``--section.key value`` over it.

The file itself: :mod:`projector.intake.torchtitan`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem
from projector.intake import torchtitan, torchtitan_registry
from projector.intake.loaded import Loaded
from projector.intake.named_models import flat
from projector.intake.script_files import options
from projector.intake.shell.unknown import Unknowns, is_known
from projector.intake.values import literal
from projector.workload.model import Model

CONFIG_FILE = "job.config_file"


def is_torchtitan(program: str, words: Sequence[str]) -> bool:
    """Whether a launch is one of torchtitan: by its module or its options."""
    return "torchtitan" in program or any(word.partition("=")[0] == f"--{CONFIG_FILE}" for word in words)


def load(
    words: Sequence[str],
    unknowns: Unknowns,
    where: str,
    *,
    text: str | None,
    gpus: int | None,
    model: Model | None,
    registry: str | None = None,
) -> Loaded:
    """The workload of a command line whose TOML file holds ``text``, or its registry in Python (None: not at hand).

    Raises :class:`InputError` with everything that does not fit or is not known.
    """
    stated = _options(words)
    program = _registered(stated) if text is None else None
    if text is None and program is None and registry is None:
        found = unknowns.shown(str(stated.get(CONFIG_FILE) or "no --job.config_file"))
        expected = "that TOML file beside the script, or --module NAME --config NAME_FLAVOR of a registry in Python"
        raise InputError([Problem(where, "the job's configuration", found, expected)])
    content = program if text is None else torchtitan.parse(text, where, str(stated.get(CONFIG_FILE)))
    told: tuple[str, ...] = ()
    if text is None and registry is not None:
        made, told = torchtitan_registry.settings(registry, str(stated.get("config", "")), where)
        program = content = {"model.name": str(stated.get("module", "")).rpartition(".")[2], **made}
    settings = {**flat(content or {}), **stated}
    open_ = {key: value for key, value in settings.items() if isinstance(value, str) and not is_known(value)}
    problems = [
        Problem(where, key, "; ".join(str(item) for item in unknowns.within(value)), "--env or --args for it")
        for key, value in open_.items()
        if re.match(r"training\.(local_|global_)?(batch|seq)|parallelism|model\.|activation|compile", key)
    ]
    if problems:
        raise InputError(problems)
    known = {key: value for key, value in settings.items() if key not in open_}
    if not program:
        return torchtitan.load(known, where, gpus=gpus, model=model)
    known.pop("module"), known.pop("config")
    loaded = torchtitan.load(known, where, gpus=gpus, model=model)
    if registry is None:
        told = (f"what --config {stated['config']} states in Python beside the line (torchtitan's defaults stand in)",)
    return replace(loaded, unmodelled=(*told, *loaded.unmodelled))


def registries(words: Sequence[str]) -> tuple[str, ...]:
    """Where the registry of ``--module`` may lie: in torchtitan's tree, or beside the script."""
    module = str(_options(words).get("module", "")).replace(".", "/")
    folders = (module, f"torchtitan/models/{module}", f"torchtitan/experiments/{module}", ".") if module else ()
    return tuple(f"{folder}/config_registry.py" for folder in folders)


def of_registry(text: str, file: Path, args: Sequence[str], gpus: int | None, model: Model | None) -> Loaded:
    """The workload of a registry's function, which ``args`` name (``--config NAME --section.key value``). Raises as
    :func:`load`."""
    if "config" not in _options(args):
        torchtitan_registry.settings(text, "", str(file))
    words = ("--module", file.resolve().parent.name, *args)
    return load(words, Unknowns(), str(file), text=None, gpus=gpus, model=model, registry=text)


def _registered(stated: Mapping[str, object]) -> dict[str, object] | None:
    """The model and its flavor that a registry's function is named after: ``--module torchtitan.models.deepseek_v3 --config
    deepseek_v3_671b`` (pytorch/torchtitan torchtitan/config/manager.py: ``MODULE.config_registry.CONFIG``). None where the
    line names none."""
    module, config = str(stated.get("module", "")).rpartition(".")[2], str(stated.get("config", ""))
    flavor = config.removeprefix(f"{module}_")
    if not module or flavor == config:
        return None
    return {"model.name": module, "model.flavor": flavor.upper() if flavor[:1].isdigit() else flavor}


def _options(words: Sequence[str]) -> dict[str, object]:
    named = {name.replace("-", "_"): values for name, values in options(words).items()}
    return {
        name: True if not values else literal(values[0]) if is_known(values[0]) else values[0]
        for name, values in named.items()
    }
