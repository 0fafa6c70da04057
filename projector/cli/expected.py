"""What measured runs let expect of a projection, as commands show it: lines, a column of bars, columns, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from projector.cli.inputs import Case
from projector.io.table import Cell, Line, figure, number3
from projector.posterior import PARTS, Expectation, cause
from projector.projection import Projection

_SHOWN = 4  # causes that a line names
_BAR = 8  # characters of the longest bar


def expectation(case: Case, made: Projection) -> Expectation:
    return case.known.expect(made, case.assumed)


def as_document(found: Expectation) -> dict[str, Any]:
    """``level``, ``low``, ``middle``, ``high``; ``parts``: half width in ln by cause; ``rests_on``; ``unusual``: a
    sentence or null."""
    return asdict(found) | {"unusual": found.unusual or None}


def lines(case: Case, made: Projection) -> Iterator[Line]:
    """What to expect, where its uncertainty comes from, what it rests on, and whether it is unusual."""
    found, tokens = expectation(case, made), made.tgs * made.step_seconds
    yield Line(
        f"Expected: {found.middle:.3f} s, {100 * found.level:.0f} % between {found.low:.3f} and {found.high:.3f} s; "
        f"{tokens / found.middle:.1f} tokens/s/GPU ({tokens / found.high:.1f} to {tokens / found.low:.1f})"
    )
    yield Line(f"{sources(found)}. It rests on {found.rests_on}", "dim")
    if found.unusual:
        yield Line(f"Unusual: {found.unusual}", "bad")


def sources(found: Expectation) -> str:
    """``±22 %: host 15, kernels 9, the stack 8 (in squares)``: the half width and the causes that make most of it."""
    each = [(name, round(100 * width)) for name, width in found.parts.items()]
    named = [f"{name} {width}" for name, width in each[:_SHOWN] if width]
    return f"±{_percent(found.half_width)}" + (f": {', '.join(named)}" if named else "")


def bars(found: Expectation) -> dict[str, str]:
    """By row of a breakdown (``compute_s``), the half width in percent that it brings and a bar; ``step``: the whole."""
    widths: dict[str, float] = {}
    for part in PARTS:
        key = f"{part.removesuffix(' between nodes')}_s"
        widths[key] = (widths.get(key, 0.0) ** 2 + found.parts.get(cause(part), 0.0) ** 2) ** 0.5
    whole = found.half_width
    told = {
        key: f"{_percent(width)} {'█' * round(_BAR * width / whole)}".rstrip() for key, width in widths.items() if width
    }
    return told | {"step": _percent(whole)}


def columns(case: Case, of: str = "projection") -> tuple[Cell, Cell]:
    """Two columns for items whose attribute ``of`` is a projection or None: the expected step, and its interval."""

    def found(item: Any) -> Expectation | None:
        made = item[of] if isinstance(item, dict) else getattr(item, of)
        return None if made is None else expectation(case, made)

    return (
        figure("expected s", lambda item: (e := found(item)) and e.middle, number3, minor=1),
        figure("90 % interval", lambda item: (e := found(item)) and f"{e.low:.3f}–{e.high:.3f}", minor=2),
    )


def _percent(width: float) -> str:
    return f"{100 * width:.0f} %"
