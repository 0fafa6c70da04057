"""Reads a Primus experiment (``modules.pre_trainer`` with its presets) by the framework that Primus launches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import maxtext, primus_bridge, primus_megatron, torchtitan
from projector.intake.loaded import Loaded
from projector.intake.primus_experiment import Experiment, read_experiment
from projector.intake.tables import table

_FRAMEWORKS: Mapping[str, Callable[[Experiment], Loaded]] = {
    "megatron": primus_megatron.load,
    "torchtitan": torchtitan.of_experiment,
    "maxtext": maxtext.of_experiment,
    "megatron_bridge": primus_bridge.load,
}


def load(
    path: str | Path,
    *,
    configs: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    gpus: int | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Reads an experiment file. Raises :class:`InputError` with every mistake in the file and its presets, and
    :class:`Unsupported` for an experiment that does not train a language model.

    ``configs``: Primus' folder of presets (default: that of the checkout in which the file lies). ``env``: variables
    for ``${NAME:default}`` (default: the process environment); NNODES and GPUS_PER_NODE in it give the number of GPUs
    unless ``gpus`` does. ``overrides``: Primus' ``key=value`` arguments of the command line.
    """
    problems: list[Problem] = []
    experiment = read_experiment(Path(path), configs, os.environ if env is None else env, overrides or {}, problems)
    check_trained(experiment.framework)
    loader = _FRAMEWORKS.get(experiment.framework)
    if loader is None:
        expected = f"one of {', '.join(_FRAMEWORKS)}"
        key = f"modules.{experiment.trainer}.framework"
        problems.append(Problem(experiment.where, key, experiment.framework, expected))
    if not experiment.whole:
        problems += primus_megatron.unknown_model(experiment)
    if problems or loader is None:
        raise InputError(problems)
    if gpus is not None:
        experiment = replace(experiment, gpus=gpus)
    return _finished(loader(experiment), experiment)


def check_trained(framework: str) -> None:
    """Raises :class:`Unsupported` for a framework that Primus launches for something else than a language model."""
    kind = table("primus", "others").get(framework)
    if kind is not None:
        raise Unsupported(f"not a language model: framework {framework} trains {kind}")


def _finished(loaded: Loaded, experiment: Experiment) -> Loaded:
    """Returns ``loaded`` with what an experiment of any framework states: the GPU, and keys where Primus reads none."""
    assumed = [*experiment.assumed, *loaded.assumed]
    if not experiment.whole and experiment.framework != "megatron":
        assumed.append("Primus presets: this project's defaults")
    if experiment.outside:
        assumed.append(f"{', '.join(experiment.outside)}: beside modules, where Primus reads nothing")
    return replace(
        loaded,
        cluster=experiment.cluster,
        assumed=tuple(assumed),
        ignored=tuple(sorted({*loaded.ignored, *experiment.outside})),
    )
