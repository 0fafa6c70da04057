"""Predictors by name. A new one is a file in this folder and one line in ``_REGISTERED``.

Targets are imported when they are asked for, so that listing the names costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from harness.contracts.results import BASELINE
from harness.predictors.protocol import Predictor
from projector.errors import InputError, Problem, nearest
from projector.kernels.settings import DEFAULT, Settings

__all__ = ["BASELINE", "MODES", "PEERS", "Predictor", "load", "names"]

MODES = ("simulate", "benchmark")

#: Projectors of others: each needs a package that this project does not install by itself.
PEERS = ("calculon", "llm-analysis")

# name: (module, class, arguments)
_REGISTERED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "simulate": ("harness.predictors.ours", "Ours", ("simulate",)),
    "benchmark": ("harness.predictors.ours", "Ours", ("benchmark",)),
    "constant-mfu": ("harness.predictors.constant_mfu", "ConstantMfu", ()),
    "calculon": ("harness.predictors.calculon", "Calculon", ()),
    "llm-analysis": ("harness.predictors.llm_analysis", "LlmAnalysis", ()),
}


def names() -> tuple[str, ...]:
    return tuple(_REGISTERED)


def load(wanted: Iterable[str], settings: Settings = DEFAULT) -> tuple[Predictor, ...]:
    """The named predictors, each once, in the order given.

    Unknown names and peers whose package is not installed raise :class:`InputError`, all at once.
    ``settings``: kernels and clocks of our own modes.
    """
    asked = tuple(dict.fromkeys(wanted))
    problems = [Problem("command line", "--with", n, nearest(n, names())) for n in asked if n not in _REGISTERED]
    made = []
    for name in asked:
        if name in _REGISTERED:
            try:
                made.append(_make(name, (settings,) if name in MODES else ()))
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(made)


def _make(name: str, extra: tuple[object, ...]) -> Predictor:
    module, attribute, arguments = _REGISTERED[name]
    made: Predictor = getattr(importlib.import_module(module), attribute)(*arguments, *extra)
    return made
