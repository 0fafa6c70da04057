"""Checks single values by what their fields declare: numbers out of range, words nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from projector.errors import Problem, nearest
from projector.pipeline import schedules
from projector.workload.field_facts import About, about_of
from projector.workload.lora import LoRA
from projector.workload.model import MLA, Model, MoE
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_DECLARED: Mapping[str, About] = MappingProxyType(
    {name: told for kind in (Workload, Recipe, LoRA, Model, MoE, MLA) for name, told in about_of(kind).items()}
)
#: The words that a field may hold; a schedule names itself.
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: told.choices for name, told in _DECLARED.items() if told.choices} | {"pipeline_schedule": schedules.words()}
)
#: The largest number that a field may hold.
LIMITS: Mapping[str, int] = MappingProxyType({name: told.most for name, told in _DECLARED.items()})
_ANY = About()


def range_problems(values: Mapping[str, object], where: str, prefix: str) -> list[Problem]:
    """Returns one :class:`Problem` per number in ``values`` that is out of range: sizes from 1 (some from 0), factors above
    0, to what their fields declare; also inside mappings. Values of another type are left to checks of types."""
    problems: list[Problem] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            problems += range_problems(value, where, f"{prefix}{name}.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        about = _DECLARED.get(name, _ANY)
        least, most = about.least, about.most
        if isinstance(value, float):
            zero = least == 0
            if not (0.0 < value <= most or (zero and value == 0.0)):
                expected = f"a number from 0 to {most}" if zero else f"a number above 0, at most {most}"
                problems.append(Problem(where, prefix + name, value, expected))
            continue
        if not least <= value <= most:
            problems.append(Problem(where, prefix + name, value, f"a number from {least} to {most}"))
    return problems


def unreported(found: list[Problem], before: list[Problem]) -> list[Problem]:
    """Returns the problems ``found`` whose key no problem of ``before`` names: one value is reported once."""
    named = {problem.key for problem in before}
    return [problem for problem in found if problem.key not in named]


def word_problems(values: Mapping[str, object], where: str, prefix: str) -> list[Problem]:
    """Returns one :class:`Problem` per word in ``values`` (field name to value, or mappings of them) that no choice knows.

    Values of another type than text or a list are left to checks of types. Schedules may have ``_`` for ``-``.
    """
    problems: list[Problem] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            problems += word_problems(value, where, f"{prefix}{name}.")
        known = CHOICES.get(name)
        if known is None:
            continue
        for word in value if isinstance(value, (list, tuple)) else (value,):
            spelled = word.lower().replace("_", "-") if isinstance(word, str) and name == "pipeline_schedule" else word
            if isinstance(word, str) and spelled not in known:
                _, _, close = nearest(word, known).partition("; ")
                expected = f"one of {', '.join(known)}{f' ({close})' if close else ''}"
                problems.append(Problem(where, f"{prefix}{name}", word, expected))
    return problems
