"""torchtitan's command line: a TOML file and ``--section.key value`` over it.

The file itself: :mod:`projector.intake.torchtitan`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from projector.errors import InputError, Problem
from projector.intake import torchtitan
from projector.intake.loaded import Loaded
from projector.intake.named_models import flat
from projector.intake.shell.unknown import Unknowns, is_known
from projector.intake.values import literal
from projector.workload.model import Model

CONFIG_FILE = "job.config_file"


def is_torchtitan(program: str, words: Sequence[str]) -> bool:
    """Whether a launch is one of torchtitan: by its module or its options."""
    return "torchtitan" in program or any(word.partition("=")[0] == f"--{CONFIG_FILE}" for word in words)


def load(
    words: Sequence[str], unknowns: Unknowns, where: str, *, text: str | None, gpus: int | None, model: Model | None
) -> Loaded:
    """The workload of a command line whose TOML file holds ``text`` (None: not at hand).

    Raises :class:`InputError` with everything that does not fit or is not known.
    """
    stated = _options(words)
    if text is None:
        named = stated.get(CONFIG_FILE) or " ".join(
            f"--{key} {stated[key]}" for key in ("module", "config") if key in stated
        )
        found = unknowns.shown(str(named or "no --job.config_file"))
        expected = (
            "that TOML file beside the script (of a configuration in Python: its settings as TOML, or its run's log)"
        )
        raise InputError([Problem(where, "the job's configuration", found, expected)])
    content = torchtitan.parse(text, where, str(stated.get(CONFIG_FILE)))
    settings = {**flat(content), **stated}
    open_ = {key: value for key, value in settings.items() if isinstance(value, str) and not is_known(value)}
    problems = [
        Problem(where, key, "; ".join(str(item) for item in unknowns.within(value)), "--env or --args for it")
        for key, value in open_.items()
        if re.match(r"training\.(local_|global_)?(batch|seq)|parallelism|model\.|activation|compile", key)
    ]
    if problems:
        raise InputError(problems)
    known = {key: value for key, value in settings.items() if key not in open_}
    return torchtitan.load(known, where, gpus=gpus, model=model)


def _options(words: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and at < len(words) and not words[at].startswith("--"):
            value, equals = words[at], "="
            at += 1
        found[name.replace("-", "_")] = literal(value) if equals and is_known(value) else value if equals else True
    return found
