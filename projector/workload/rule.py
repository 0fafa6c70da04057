"""Defines a rule that a workload keeps, as a plain value: when it is broken, what is to blame, what is expected there.

A condition is Python over the fields of a model ``m``, its recipe ``r`` and their workload ``w``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from types import CodeType, FunctionType
from typing import cast

from projector.dataclass import dataclass
from projector.errors import Problem
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

Condition = Callable[[Model, Recipe, Workload], object]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``key`` is the field to blame (``recipe.tp``). ``broken`` returns something true where a workload
    breaks the rule: one case of it, or a list of cases. ``expected`` and ``found`` are format strings over ``m``,
    ``r``, ``w`` and the case, which is ``{0}``; an empty ``found`` stands for the value of the key."""

    key: str
    broken: Condition
    expected: str
    found: str = ""

    def problems(self, workload: Workload, where: str = "") -> list[Problem]:
        """Returns a :class:`Problem` for each case in which ``workload`` breaks the rule."""
        model, recipe = workload.model, workload.recipe
        given = {"m": model, "r": recipe, "w": workload}
        cases = self.broken(model, recipe, workload) or []
        return [
            Problem(
                where,
                self.key,
                self.found.format(case, **given) if self.found else attrgetter(self.key)(workload),
                self.expected.format(case, **given),
            )
            for case in (cases if isinstance(cases, list) else [cases])
        ]

    @property
    def reads(self) -> frozenset[str]:
        """Returns the fields of a recipe on which the rule depends; ``microbatches``: on their number, too."""
        names = frozenset(_names(cast(FunctionType, self.broken)))
        return (names & _FIELDS) | {self.key.removeprefix("recipe.")}


_FIELDS = frozenset({*(each.name for each in fields(Recipe)), "gpus", "microbatches"})


def _names(condition: FunctionType) -> Iterator[str]:
    """Yields the names in a function, in the functions of modules that it calls, and in the properties that it reads."""
    pending, seen = [(condition.__code__, condition.__globals__)], set[CodeType]()
    while pending:
        code, known = pending.pop()
        pending += [(constant, known) for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            if name == "num_microbatches":
                yield "microbatches"
                continue
            yield name
            attribute = getattr(Recipe, name, None) or getattr(Workload, name, None)
            called = attribute.fget if isinstance(attribute, property) else known.get(name)
            if isinstance(called, FunctionType) and called.__code__ not in seen:
                seen.add(called.__code__)
                pending.append((called.__code__, called.__globals__))


def problems(rules: Iterable[Rule], workload: Workload, where: str = "") -> list[Problem]:
    """Returns every mistake of ``workload`` by these rules."""
    model, recipe = workload.model, workload.recipe
    mistakes: list[Problem] = []
    for rule in rules:
        if rule.broken(model, recipe, workload):
            mistakes += rule.problems(workload, where)
    return mistakes
