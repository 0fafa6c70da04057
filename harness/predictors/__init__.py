"""Predictors by name. A new one is a file in this folder and one line in ``_REGISTERED``, or a file of the user's that
is named as ``module:Class``. A predictor is imported when it is asked for, so that listing the names costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from harness.contracts.results import BASELINE
from harness.predictors.protocol import Predictor
from projector.errors import InputError, Problem, collecting_into, nearest, raise_all
from projector.kernels.settings import DEFAULT, Settings

__all__ = ["BASELINE", "MODES", "PEERS", "Predictor", "load", "names"]

MODES = ("simulate", "benchmark")

#: Projectors of others. The first two need a package that this project does not install by itself; the laws of ``tpe``
#: are implemented here.
PEERS = ("calculon", "llm-analysis", "tpe")

# name: (module, class, arguments)
_REGISTERED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "simulate": ("harness.predictors.ours", "Ours", ("simulate",)),
    "benchmark": ("harness.predictors.ours", "Ours", ("benchmark",)),
    "constant-mfu": ("harness.predictors.constant_mfu", "ConstantMfu", ()),
    "calculon": ("harness.predictors.calculon", "Calculon", ()),
    "llm-analysis": ("harness.predictors.llm_analysis", "LlmAnalysis", ()),
    "tpe": ("harness.predictors.tpe.predictor", "Tpe", ()),
}


def names() -> tuple[str, ...]:
    return tuple(_REGISTERED)


def load(wanted: Iterable[str], settings: Settings = DEFAULT) -> tuple[Predictor, ...]:
    """Returns the named predictors, each once, in the order given; ``module:Class`` is one of the user's. Unknown names
    and peers whose package is not installed raise :class:`InputError`, all at once. ``settings``: kernels and clocks of
    our own modes."""
    by_name: dict[str, Predictor] = {}
    problems: list[Problem] = []
    for word in dict.fromkeys(wanted):
        with collecting_into(problems):
            predictor = _of_user(word) if ":" in word else _make(word, (settings,) if word in MODES else ())
            if predictor.name in by_name or (":" in word and predictor.name in _REGISTERED):
                problems.append(
                    Problem("command line", "--with", word, f"a predictor of another name than {predictor.name}")
                )
            by_name[predictor.name] = predictor
    raise_all(problems)
    return tuple(by_name.values())


def _make(name: str, extra: tuple[object, ...]) -> Predictor:
    if name not in _REGISTERED:
        raise InputError([Problem("command line", "--with", name, f"{nearest(name, names())}; or module:Class")])
    module, attribute, arguments = _REGISTERED[name]
    predictor: Predictor = getattr(importlib.import_module(module), attribute)(*arguments, *extra)
    return predictor


def _of_user(word: str) -> Predictor:
    """Returns a user's predictor, made without arguments from a module on the path or in the working directory."""
    module, _, attribute = word.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        predictor = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        expected = f"module:Class that can be imported and made ({type(error).__name__}: {error})"
        raise InputError([Problem("command line", "--with", word, expected)]) from None
    if not isinstance(predictor, Predictor):
        raise InputError([Problem("command line", "--with", word, "a class with name and predict")])
    return predictor
