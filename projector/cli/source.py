"""Reads what the figures start from: a configuration file changed by ``KEY=VALUE`` arguments, or an architecture alone."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from projector.cli.recipe_flags import SIZES, pairs, read_overrides
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest, raise_all
from projector.hardware import catalogue
from projector.intake.architecture import load_architecture
from projector.intake.loaded import Loaded
from projector.intake.values import literal
from projector.workload.workload import Workload


@dataclass(frozen=True)
class Source:
    """A file or an architecture as ``loaded``, and ``left``: ``KEY=VALUE`` arguments that are recipe fields, for a file
    that is not changed in its own words. ``framework=NAME`` is none of them: it sets the framework of ``loaded``."""

    loaded: Loaded
    left: Mapping[str, object] = field(default_factory=dict)


def read_source(options: argparse.Namespace) -> Source:
    """Returns the file of ``--config``, or the architecture of ``--model``; a file in ``options.read`` is not read again.
    Raises :class:`InputError` with every mistake."""
    problems: list[Problem] = []
    changes = pairs(list(options.changes), "command line", problems)
    framework = changes.pop("framework", None)
    if options.config is None and options.model is None:
        expected = "--config FILE, or --model NAME|FILE with the flags of a recipe"
        problems.append(Problem("command line", "", "no configuration", expected))
    if options.config is None and options.configs is not None:
        problems.append(Problem("--configs", "", options.configs, "a Primus experiment to use it: --config FILE"))
    raise_all(problems)
    if options.config is None:
        architecture = replace(load_architecture(options.model), assumed=("framework=megatron-lm",))
        return Source(_with_framework(architecture, framework), changes)
    if options.config in options.read:
        return Source(_with_framework(options.read[options.config], framework), changes)
    from projector.intake import detect

    takes_overrides = detect.takes_overrides(options.config)
    typed = {key: literal(str(value)) for key, value in changes.items()}
    named = options.cluster or options.gpu
    try:
        node_gpus = catalogue.cluster(named).gpus_per_host if named else None
    except InputError:  # an unknown name, which others report
        node_gpus = None
    loaded = detect.load(
        options.config,
        configs=options.configs,
        model=options.model,
        overrides=typed if takes_overrides else None,
        args=_script_arguments(options.args),
        env=_environment(options.env),
        gpus_given=bool(options.gpus or options.target_nodes),
        gpus=options.gpus,
        node_gpus=node_gpus,
        said={name: value for name, value in read_overrides(options, {}, []).recipe.items() if name in SIZES},
    )
    return Source(_with_framework(loaded, framework), {} if takes_overrides else changes)


def _with_framework(loaded: Loaded, framework: object) -> Loaded:
    """Returns ``loaded`` with the framework that the command line names, if it names one."""
    if framework is None:
        return loaded
    assumed = tuple(each for each in loaded.assumed if not each.startswith("framework="))
    return replace(loaded, framework=str(framework), assumed=assumed)


def _script_arguments(words: Sequence[str]) -> list[str]:
    """Returns the words of ``--args``; one quoted text is split as a shell would (``--args "--tp 8"``)."""
    try:
        return shlex.split(words[0]) if len(words) == 1 else list(words)
    except ValueError as error:
        raise InputError([Problem("--args", "", words[0], f"words ({error})")]) from None


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Returns ``NAME=value`` words as a mapping."""
    malformed = [word for word in words if not re.fullmatch(r"[A-Za-z_]\w*=.*", word, re.DOTALL)]
    if malformed:
        raise InputError(Problem("--env", "", word, "NAME=VALUE") for word in malformed)
    return dict(word.split("=", 1) for word in words)


def workload(path: str) -> Workload:
    """Returns the workload of any configuration file; GPUs that it does not state are the fewest that hold its groups.
    Raises :class:`InputError` with every mistake."""
    from projector import frameworks
    from projector.intake import detect

    loaded = detect.load(path)
    framework = frameworks.find(loaded.framework)
    if framework is None:
        raise InputError([Problem(path, "framework", loaded.framework, nearest(loaded.framework, frameworks.names()))])
    recipe = loaded.recipe
    if recipe is None:
        raise InputError([Problem(path, "recipe", "nothing", "how the model is trained")])
    gpus = loaded.gpus or recipe.fewest_gpus(bool(loaded.model.moe))
    return Workload(
        model=loaded.model,
        recipe=loaded.batched(recipe, gpus),
        gpus=gpus,
        framework=framework,
        framework_date=loaded.framework_date,
    )
