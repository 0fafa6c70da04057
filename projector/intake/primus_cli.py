"""Reads command lines of ``primus-cli`` and of the program that it starts: a Primus experiment and words over it.

AMD-AGI/Primus runner/primus-cli-{slurm,direct,container}.sh (``slurm [srun|sbatch] FLAGS -- ENTRY -- …``, ``direct --env
NAME=VALUE -- …``; NNODES is 1 and GPUS_PER_NODE 8 where nothing states them) and primus/cli/main.py (``train pretrain
--config FILE --key value``).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from itertools import pairwise

from projector.errors import InputError, Problem
from projector.intake import primus
from projector.intake.config_cli import stated_words
from projector.intake.loaded import Loaded
from projector.intake.script_files import options, uncounted
from projector.intake.shell import scheduler
from projector.intake.shell.launch import Launch, Way, product, ranks
from projector.intake.shell.state import State
from projector.intake.shell.unknown import is_known
from projector.intake.tables import words
from projector.workload.model import Model


def takes(launch: Launch) -> bool:
    """Returns whether this module reads the command line of ``launch``."""
    named = re.search(r"(?:^|/)primus-cli$|primus[./]cli[./]main(?:\.py)?$", launch.program)
    return bool(named) and _split(launch)[1][:1] == ["train"]


def load(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """Returns the workload of ``launch``. Raises :class:`InputError` without the file, and for what only a run knows."""
    head, tail = _split(launch)
    stated = {name: values or ["true"] for name, values in options(tail).items()}
    given = {name: next(filter(is_known, values[::-1]), values[-1]) for name, values in stated.items()}
    aside = [word for name, values in stated.items() for word in values if not is_known(word) and word != given[name]]
    name = given.pop("config", given.pop("exp", ""))
    file = way.files.find(name, State(cwd=launch.cwd)) if way.files and name else None
    if file is None:
        shown = way.unknowns.shown(name) or "no --config"
        raise InputError([Problem(where, launch.place, shown, "that experiment beside the script")])
    pairs = [f"{key}={value}" for key, value in given.items()] + [word for word in tail if re.match(r"[a-z]\w*=", word)]
    deciding = words("megatron", "values") | words("megatron", "flags")
    overrides = stated_words(pairs, way, where, deciding.__contains__)
    said = dict(value.partition("=")[::2] for option, value in pairwise(head) if option == "--env" and "=" in value)
    held = {**launch.environment, **said}
    at = next((place for place, word in enumerate(head) if word in ("srun", "sbatch", "slurm")), len(head))
    asked = scheduler.options([word for word in head[at:] if word not in ("srun", "sbatch", "slurm")])[0]
    nodes = asked.get("nodes") or held.get("NNODES") or held.get("SLURM_NNODES") or "1"
    counted = any(step.kind == "torchrun" for step in launch.steps)
    count = ranks(launch, way)[0] if counted else product(way.unknowns, nodes, held.get("GPUS_PER_NODE") or "8")
    if not is_known(count) and not gpus_given:
        raise InputError([uncounted(way.unknowns.within(count), where)])
    known = {key: value for key, value in held.items() if is_known(value)}
    gpus = None if gpus_given else int(count)
    loaded = primus.load(file, env=known, gpus=gpus, overrides=overrides)
    open_ = tuple(f"{way.unknowns.shown(word)}: words behind the experiment that only a run knows" for word in aside)
    return replace(loaded, model=model or loaded.model, unmodelled=(*loaded.unmodelled, *open_))


def _split(launch: Launch) -> tuple[list[str], list[str]]:
    """Returns the words of the launcher and those of Primus' own program, which follow the last ``--``."""
    given = list(launch.arguments)
    if posixpath.basename(launch.program) != "primus-cli":
        return [], given
    at = len(given) - given[::-1].index("--") if "--" in given else len(given)
    return given[:at], given[at:]
