"""Configurations and command lines of trainers that nothing here reads: named as what they are, so that nobody looks for a
slip of the pen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from projector.errors import Unsupported
from projector.intake import megatron_cli, same_question
from projector.intake.shell.unknown import Unknowns
from projector.intake.spelling import normal
from projector.intake.tables import table

_OURS = ("recipe", "modules")  # a case, a Primus experiment
_WAYS = "its run's log may be"


def _ways(tool: str, stated: Mapping[str, object]) -> str:
    return _WAYS if "reinforcement" in tool else f"{_WAYS}; {same_question.flags(stated)}"


def another_tool(program: str, words: Sequence[str], unknowns: Unknowns) -> str:
    """Why the command line ``words`` of ``program`` is not read, where another trainer takes it; else empty."""
    started = f"{program} {words[0] if words else ''}"
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    for name, marks in table("other_tools", "commands"):
        if any(re.fullmatch(marks, word) for word in options) or re.match(marks, started, re.IGNORECASE):
            return f"a command line of {name}: not read ({_ways(name, megatron_cli.parse(words, unknowns).args)})"
    return ""


def refuse_other_tools(content: Mapping[str, object], where: str) -> None:
    """Raises :class:`Unsupported` for the configuration of another trainer, with its name and what it builds on."""
    names = {normal(str(key)) for key in content}
    if any(name in names for name in _OURS) and "step_scheduler" not in names:
        return
    for key, inside in content.items():
        if isinstance(inside, Mapping):
            names |= {f"{normal(str(key))}.{normal(str(name))}" for name in inside}
    for name, marks in table("other_tools", "configurations"):
        if all(any(word in names for word in either.split("|")) for either in marks.split()):
            built_on = ", which extends files by its defaults" if content.get("defaults") else ""
            raise Unsupported(f"{where}: {name}{built_on}: not read ({_ways(name, content)})")
