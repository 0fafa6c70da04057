"""``experience.yaml`` as text: read strictly, written with one line a place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from projector.errors import InputError, Problem
from projector.experience import FEATURES, Basis, Experience
from projector.io.files import parse_yaml

_DIGITS = 4
_HEAD = """\
# Written by `python -m harness calibrate --out`: what measured runs say of simulated step times.
# ln(measured / projected step time) = ground + stack, each [value, standard error]; zero where no correction helps sources
# that it has not seen. The 90 % interval is conformal over sources: quantile x difficulty, on residuals of sources that no
# fit saw (harness/calibrate/intervals.py). sources: publishers that measured the place; cells: kinds of runs (model family
# x GPU x framework).
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
    value, error = one["step"]
    return Basis(
        value=_finite(value),
        error=_finite(error),
        sources=int(_finite(one["sources"])),
        cells=int(_finite(one["cells"])),
    )


def text(known: Experience) -> str:
    """The file's text."""
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
    step = f"step: [{_number(basis.value)}, {_number(basis.error)}]"
    return f"{{{step}, sources: {basis.sources}, cells: {basis.cells}}}"


def _number(value: float) -> str:
    return f"{value:.{_DIGITS}f}"
