"""Reads a Primus experiment and its presets, merged as Primus merges them, for any framework.

Order (AMD-AGI/Primus@fd1eeabb primus/core/launcher/parser.py): the module preset named by ``config``; the model preset
named by ``model``, only keys that are not there yet; then ``overrides``; then ``key=value`` of the command line.
Presets stand in ``primus/configs`` of a checkout, which is found above the file or by $PRIMUS_PATH or $PRIMUS_ROOT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from projector.dataclass import dataclass
from projector.errors import Problem
from projector.intake.yaml_files import deep_merge, read
from projector.io.files import resolved

_REQUIRED = ("work_group", "user_name", "exp_name", "workspace", "modules")
_TRAINERS = ("pre_trainer", "sft_trainer", "post_trainer")
_OF_MODULE = ("framework", "config", "model", "overrides")
#: Keys beside ``modules`` that Primus reads (primus/core/launcher/config.py); ``env`` sets variables of the launch.
_OF_EXPERIMENT = (*_REQUIRED, "platform", "env", "extends", "includes", "bases", "hooks", "meta")
_ROOTS = ("PRIMUS_PATH", "PRIMUS_ROOT")
_ARCHITECTURE = "PRIMUS_GPU_ARCH"
_GPU = re.compile(r"(?<![A-Za-z0-9])(MI\d{3}[AX]?)(?![A-Za-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Holds a merged experiment. ``settings``: keys of the trainer. ``whole``: presets were read, so absent settings have
    defaults of Primus or its framework. ``gpus``: NNODES · GPUS_PER_NODE, None where the environment states none.
    ``outside``: keys that stand where Primus reads none.
    """

    where: str
    framework: str
    model_name: str
    trainer: str
    settings: Mapping[str, object]
    overrides: Mapping[str, object]
    env: Mapping[str, str]
    whole: bool = False
    gpus: int | None = None
    cluster: str | None = None
    assumed: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        each = self.env.get("GPUS_PER_NODE", "")
        return int(each) if each.isdigit() and int(each) else 8

    def named(self, *keys: str) -> object:
        """Returns the value at the path ``keys`` of nested mappings, None where a key is absent."""
        value: object = self.settings
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_experiment(
    path: Path,
    configs: str | Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, object],
    problems: list[Problem],
) -> Experiment:
    """Reads the experiment in ``path``; adds all mistakes in the experiment or its presets to ``problems``."""
    where = str(path)
    content = read(path, env, problems)
    trainer, module = _module(content, where, problems)
    framework = str(module.get("framework", "megatron"))
    changes = module.get("overrides") or {}
    if not isinstance(changes, Mapping):
        problems.append(Problem(where, f"modules.{trainer}.overrides", changes, "a mapping"))
        changes = {}
    folder = Path(configs) if configs is not None else presets_of(path, env)
    presets = _presets(folder, framework, module, env, problems) if folder is not None else {}
    beside = {key: value for key, value in module.items() if key not in _OF_MODULE}  # a flattened export stands here
    stated = {str(key): value for key, value in deep_merge(changes, overrides).items()}
    section = content.get("env")
    nodes, each = env.get("NNODES", ""), env.get("GPUS_PER_NODE", "8")
    experiment = Experiment(
        where=where,
        framework=framework,
        model_name=Path(str(module.get("model") or "")).name.removesuffix(".yaml").removesuffix(".yml"),
        trainer=trainer,
        settings=deep_merge({**beside, **presets}, stated),
        overrides=stated,
        env={**env, **{str(k): str(v) for k, v in section.items()}} if isinstance(section, Mapping) else env,
        whole=folder is not None,
        gpus=int(nodes) * int(each) if nodes.isdigit() and each.isdigit() else None,
        outside=tuple(sorted(set(content) - set(_OF_EXPERIMENT))),
    )
    gpu = None if env.get(_ARCHITECTURE) else _gpu(path, content.get("platform"))  # the user's word goes before a name
    return experiment if gpu is None else replace(experiment, cluster=gpu[0], assumed=(f"cluster={gpu[0]} ({gpu[1]})",))


def _module(experiment: Mapping[str, object], where: str, problems: list[Problem]) -> tuple[str, Mapping[str, object]]:
    """Returns the trainer's name and its mapping under ``modules``."""
    if not experiment:
        return _TRAINERS[0], {}
    missing = [key for key in _REQUIRED if key not in experiment]
    problems += [Problem(where, key, "nothing", "this key of every Primus experiment") for key in missing]
    if "modules" in missing:
        return _TRAINERS[0], {}
    modules = experiment.get("modules")
    trainers = [name for name in _TRAINERS if isinstance(modules, Mapping) and name in modules]
    if not trainers and isinstance(modules, Mapping):  # a trainer by another name says what it trains with
        trainers = [str(name) for name, given in modules.items() if isinstance(given, Mapping) and "framework" in given]
    module = modules.get(trainers[0]) if trainers and isinstance(modules, Mapping) else None
    if not isinstance(module, Mapping):
        problems.append(Problem(where, "modules.pre_trainer", module, "a mapping with framework, config and model"))
        return _TRAINERS[0], {}
    if "model" not in module:
        problems.append(Problem(where, f"modules.{trainers[0]}.model", "nothing", "the file of a model preset"))
    return trainers[0], module


def presets_of(path: Path, env: Mapping[str, str]) -> Path | None:
    """Returns Primus' folder of presets in the checkout around ``path``, else in the one that ``env`` names."""
    roots = (*path.resolve().parents, *(Path(env[name]) for name in _ROOTS if env.get(name)))
    return next((root / "primus/configs" for root in roots if (root / "primus/configs/modules").is_dir()), None)


def _presets(
    folder: Path, framework: str, module: Mapping[str, object], env: Mapping[str, str], problems: list[Problem]
) -> dict[str, object]:
    trainer = _preset(folder / "modules" / framework, module.get("config"), env, problems)
    model = _preset(folder / "models" / framework, module.get("model"), env, problems)
    return {**model, **trainer}


def _preset(folder: Path, name: object, env: Mapping[str, str], problems: list[Problem]) -> dict[str, object]:
    if not name:
        return {}
    file = str(name) if str(name).endswith((".yaml", ".yml")) else f"{name}.yaml"
    return read(resolved(folder / file), env, problems)


def _gpu(path: Path, platform: object) -> tuple[str, str] | None:
    """Returns (GPU, what names it) from the experiment's platform, or the nearest folder above the experiment."""
    for word in _texts(platform):
        if match := _GPU.search(word):
            return match[1].lower(), f"platform {word}"
    for part in path.resolve().parent.parts[::-1]:
        if match := _GPU.fullmatch(part):
            return match[1].lower(), f"the folder {part}"
    return None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
