"""``experience.yaml`` as text: read strictly, written with one line a place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from projector.errors import InputError, Problem
from projector.experience import FEATURES, TERMS, Basis, Experience
from projector.io.files import parse_yaml

__all__ = ["parse", "text"]

_DIGITS = 4
_HEAD = """\
# Written by `python -m harness calibrate --out`: what measured runs say of simulated step times.
# ln(measured / projected step time) = sum over terms of share x (ground + stack); every term is [value, standard error].
# scatter: typical |ln| that is left. The 90 % interval is conformal: quantile x difficulty, on residuals of model
# families that no fit saw (harness/calibrate/intervals.py). rows: measured runs; cells: kinds of them (model family x GPU x
# framework).
"""


def parse(content: str, where: str) -> Experience:
    """The experience of a file's text. Raises :class:`InputError` naming the first thing that is not as expected."""
    data = parse_yaml(content, where)
    try:
        return Experience(
            law=str(data["law"]),
            level=_finite(data["level"]),
            quantile=_finite(data["quantile"]),
            least=_finite(data["least"]),
            coefficients=_in_order(data["coefficients"]),
            seen=_in_order(data["seen"]),
            grounds={str(key): _basis(one) for key, one in data["grounds"].items()},
            stacks={str(key): _basis(one) for key, one in data["stacks"].items()},
            unseen=_basis(data["unseen"]),
            evidence={str(key): str(value) for key, value in data["evidence"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        keys = f"law, level, quantile, least, coefficients and seen ({', '.join(FEATURES)}), grounds, stacks, unseen"
        raise InputError([Problem(where, "", f"{type(error).__name__}: {error}", f"{keys}, evidence")]) from error


def _finite(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number


def _in_order(named: Mapping[str, object]) -> tuple[float, ...]:
    return tuple(_finite(named[name]) for name in FEATURES)


def _basis(one: Mapping[str, Any]) -> Basis:
    pairs = [one.get(term, (0.0, 0.0)) for term in TERMS]
    return Basis(
        values=tuple(_finite(value) for value, _ in pairs),
        errors=tuple(_finite(error) for _, error in pairs),
        scatter=_finite(one["scatter"]),
        rows=int(_finite(one["rows"])),
        cells=int(_finite(one["cells"])),
    )


def text(known: Experience) -> str:
    """The file's text; terms that a law does not fit (value and error 0) are left out."""
    return _HEAD + "\n".join(_lines(known)) + "\n"


def _lines(known: Experience) -> Iterator[str]:
    yield "evidence:"
    yield from (f'  {key}: "{value}"' for key, value in known.evidence.items())
    yield f"law: {known.law}"
    yield from (f"{name}: {_number(getattr(known, name))}" for name in ("level", "quantile", "least"))
    yield from _named("coefficients", known.coefficients)
    yield from _named("seen", known.seen)
    for title, places in (("grounds", known.grounds), ("stacks", known.stacks)):
        yield f"{title}:"
        yield from (f'  "{key}": {_one(basis)}' for key, basis in sorted(places.items()))
    yield f"unseen: {_one(known.unseen)}"


def _named(title: str, values: Sequence[float]) -> Iterator[str]:
    yield f"{title}:"
    yield from (f"  {name}: {_number(value)}" for name, value in zip(FEATURES, values, strict=True))


def _one(basis: Basis) -> str:
    terms = [
        f"{term}: [{_number(value)}, {_number(error)}]"
        for term, value, error in zip(TERMS, basis.values, basis.errors, strict=True)
        if value or error
    ]
    counts = [f"scatter: {_number(basis.scatter)}", f"rows: {basis.rows}", f"cells: {basis.cells}"]
    return "{" + ", ".join((*terms, *counts)) + "}"


def _number(value: float) -> str:
    return f"{value:.{_DIGITS}f}"
