"""Shows what measured runs let expect of a projection: as lines, as a column of bars, as columns of a table, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from projector.cli.inputs import Case
from projector.effects import PARTS
from projector.io.table import Cell, Line, factor, figure, number1, percent, seconds
from projector.posterior import Expectation, cause
from projector.projection import Projection

_SHOWN = 4  # causes that a line names
_LEAST = 0.005  # half width in ln of the least of them
_EXACT = 5e-4  # half width in ln that no figure shows
_BAR = 8  # characters of the longest bar


def expectation(case: Case, projection: Projection) -> Expectation:
    return case.known.expect(projection, case.assumed)


def as_document(estimate: Expectation) -> dict[str, Any]:
    """Returns ``level``, ``low``, ``middle``, ``high``; ``parts``: half width in ln by cause; ``rests_on``, ``grade``;
    ``unusual``: a sentence or null."""
    return asdict(estimate) | {"unusual": estimate.unusual or None}


def lines(case: Case, projection: Projection) -> Iterator[Line]:
    """Yields what to expect, where its uncertainty comes from, what it rests on, and whether it is unusual."""
    estimate = expectation(case, projection)
    yield from (Line(text) for text in told(estimate, projection))
    yield Line(f"{sources(estimate)}. Evidence: {estimate.grade}. It rests on {estimate.rests_on}", "dim")
    if estimate.unusual:
        yield Line(f"Unusual: {estimate.unusual}", "bad")


def told(found: Expectation, projection: Projection) -> tuple[str, ...]:
    """Returns the sentences on the expected step, its throughput and MFU, and on the ends of their interval."""
    rates = [(each, projection.tgs * projection.step_seconds / each) for each in (found.middle, found.high, found.low)]
    (middle, tokens), (high, least), (low, most) = rates
    mfu = [percent(projection.mfu * rate / projection.tgs, n) for rate, n in ((tokens, 1), (least, 0), (most, 0))]
    usual = projection.resolved.workload.recipe.precision in ("bf16", "fp16")
    of = "" if usual else " of the bf16 peak"  # which fewer bits may exceed
    step = f"Expected: {seconds(middle)} s a step, {tokens:,.1f} tokens/s/GPU, MFU {mfu[0]}{of}"
    if found.half_width < _EXACT:
        return (step,)
    return (
        step,
        f"{percent(found.level, 0)} between {seconds(low)} and {seconds(high)} s: {least:,.0f} to {most:,.0f} "
        f"tokens/s/GPU, MFU {mfu[1].removesuffix(' %')} to {mfu[2]}",
    )


def sources(estimate: Expectation) -> str:
    """Returns ``Uncertain by × 1.22: host 1.15, kernels 1.09``: the factor of the step, and its largest causes."""
    if estimate.half_width < _EXACT:
        return "Exact: it is the measured run itself"
    causes = [f"{name} {math.exp(width):.2f}" for name, width in estimate.parts.items() if width >= _LEAST][:_SHOWN]
    return f"Uncertain by {factor(estimate.half_width)}" + (f": {', '.join(causes)}" if causes else "")


def bars(estimate: Expectation) -> dict[str, str]:
    """Returns, by row of a breakdown (``compute_s``), the factor by which that row makes the step uncertain and a bar;
    ``step`` has the factor of the whole step."""
    widths: dict[str, float] = {}
    for part in PARTS:
        key = f"{part.removesuffix(' between nodes')}_s"
        widths[key] = (widths.get(key, 0.0) ** 2 + estimate.parts.get(cause(part), 0.0) ** 2) ** 0.5
    whole = estimate.half_width
    cells = {
        key: f"{factor(width)} {'█' * round(_BAR * width / whole)}".rstrip() for key, width in widths.items() if width
    }
    return cells | {"step": factor(whole)}


def columns(case: Case, of: str = "projection") -> tuple[Cell, Cell]:
    """Returns two columns for items whose attribute ``of`` is a projection or None: expected step and its interval."""

    def estimate(item: Any) -> Expectation | None:
        projection = item[of] if isinstance(item, dict) else getattr(item, of)
        return None if projection is None else expectation(case, projection)

    return (
        figure("expected s", lambda item: (e := estimate(item)) and e.middle, seconds, minor=1),
        figure("90 % interval", lambda item: (e := estimate(item)) and f"{e.low:.3f}–{e.high:.3f}", minor=2),
    )


def speed(case: Case) -> Cell:
    """Returns a column for items that have a projection: the throughput of the expected step."""

    def tokens_per_s(item: Any) -> float:
        projection: Projection = item.projection
        return projection.tgs * projection.step_seconds / expectation(case, projection).middle

    return figure("tokens/s/GPU", tokens_per_s, number1, minor=3)
