"""What the figures start from: a configuration file changed by ``KEY=VALUE`` arguments, or an architecture alone."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from projector.cli.recipe_flags import SIZES, pairs, said
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest, raise_all
from projector.hardware import catalogue
from projector.intake.architecture import load_architecture
from projector.intake.loaded import Loaded
from projector.intake.values import literal
from projector.workload.workload import Workload


@dataclass(frozen=True)
class Source:
    """``left``: ``KEY=VALUE`` arguments that are recipe fields, for a file that is not changed in its own words;
    ``framework=NAME`` is of none, and says the framework of ``loaded``."""

    loaded: Loaded
    left: Mapping[str, object] = field(default_factory=dict)


def read_source(options: argparse.Namespace) -> Source:
    """Returns the file of ``--config``, or the architecture of ``--model``; a file among ``options.read`` is not read
    again. Raises :class:`InputError` with every mistake."""
    problems: list[Problem] = []
    given = pairs(list(options.changes), "command line", problems)
    framework = given.pop("framework", None)
    if options.config is None and options.model is None:
        expected = "--config FILE, or --model NAME|FILE with the flags of a recipe"
        problems.append(Problem("command line", "", "no configuration", expected))
    if options.config is None and options.configs is not None:
        problems.append(Problem("--configs", "", options.configs, "a Primus experiment to use it: --config FILE"))
    raise_all(problems)
    if options.config is None:
        alone = replace(load_architecture(options.model), assumed=("framework=megatron-lm",))
        return Source(_executed(alone, framework), given)
    if options.config in options.read:
        return Source(_executed(options.read[options.config], framework), given)
    from projector.intake import detect

    own_words = detect.takes_overrides(options.config)
    typed = {key: literal(str(value)) for key, value in given.items()}
    loaded = detect.load(
        options.config,
        configs=options.configs,
        model=options.model,
        overrides=typed if own_words else None,
        args=_words(options.args),
        env=_environment(options.env),
        gpus_given=bool(options.gpus or options.target_nodes),
        gpus=options.gpus,
        node_gpus=_node_gpus(options.cluster or options.gpu),
        said={name: value for name, value in said(options, {}, []).recipe.items() if name in SIZES},
    )
    return Source(_executed(loaded, framework), {} if own_words else given)


def _executed(loaded: Loaded, framework: object) -> Loaded:
    """``loaded`` by the framework that the command line names, if any."""
    if framework is None:
        return loaded
    known = tuple(each for each in loaded.assumed if not each.startswith("framework="))
    return replace(loaded, framework=str(framework), assumed=known)


def _node_gpus(name: str | None) -> int | None:
    """GPUs of a machine of the cluster or GPU of that name; None where there is none (which is said where it is needed)."""
    try:
        return catalogue.cluster(name).gpus_per_host if name else None
    except InputError:
        return None


def _words(given: Sequence[str]) -> list[str]:
    """The words of ``--args``; one quoted text of them is taken apart as a shell would (``--args "--tp 8"``)."""
    try:
        return shlex.split(given[0]) if len(given) == 1 else list(given)
    except ValueError as error:
        raise InputError([Problem("--args", "", given[0], f"words ({error})")]) from None


def _environment(words: Sequence[str]) -> dict[str, str]:
    """``NAME=value`` words as a mapping."""
    wrong = [word for word in words if not re.fullmatch(r"[A-Za-z_]\w*=.*", word, re.DOTALL)]
    if wrong:
        raise InputError(Problem("--env", "", word, "NAME=VALUE") for word in wrong)
    return dict(word.split("=", 1) for word in words)


def workload(path: str) -> Workload:
    """Returns the workload of any configuration file; devices that it does not state are the fewest that hold its
    groups.

    Raises :class:`InputError` with every mistake.
    """
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
