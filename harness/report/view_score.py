"""Measured runs beside what runs of others let expect of them: a verdict a run, its parts, what most likely explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report.spec import tabled
from harness.report.table import Report, Table, signed
from harness.score.judged import NORMAL, SLOW, Judged
from projector.card import PARTS
from projector.io.table import significant
from projector.posterior import Expectation

#: Where to look, by cause.
_LOOK = {
    "kernels": "clocks, the power cap, fused kernels (projector layers says what each operator should take)",
    "host": "launch gaps: CUDA graphs, the CPU's governor, the data loader",
    "the stack": "versions of the framework and its libraries",
    "the framework": "versions of the framework and its libraries",
    "the configuration": "switches that the log does not print",
    "gradient exchange between nodes": "rails, NIC binding, overlap (projector network reads what nccl-tests print)",
    "expert exchange between nodes": "the dispatcher, rails, the balance of experts",
    "the run itself": "another job on the nodes, a slow node, storage",
}
_LEAST = 0.01  # of a step, for a part or a cause to be named


def build(every: Sequence[Judged]) -> Report:
    """The headline of each run, then tables."""
    known = [each for each in every if each.found is not None]
    lines = [line for each in every for line in _lines(each)]
    many = tabled("judged", known, because=_because, significant_span=_ends)
    tables = [many] if len(known) > 1 else [_parts(each) for each in known]
    title = f"{every[0].name if len(every) == 1 else f'{len(every)} runs'}: measured beside expected"
    return Report.of(title, tables, lines)


def verdict(each: Judged) -> str:
    """``Slow: 2.05 times the expected step, …``."""
    if each.found is None:
        return f"Cannot be judged: {each.refused}"
    found = each.found
    said = (
        f"{each.verdict.capitalize()}: {significant(each.seconds)} s a step measured, {significant(found.middle)} s "
        f"expected (90 % {significant(found.low)} to {significant(found.high)} s), {each.ratio:.2f} times the expected step"
    )
    return said if each.verdict == NORMAL else f"{said}; most likely because of {_because(each)}"


def _ends(found: Expectation) -> str:
    return f"{significant(found.low)}–{significant(found.high)}"


def _because(each: Judged) -> str:
    """The timed part where one explains it, else the causes that explain most of it; empty where nothing is to explain."""
    if each.verdict == NORMAL:
        return ""
    if each.gap is not None:
        span = each.gap
        return f"the {span.name}: {significant(span.measured)} s measured, {significant(span.expected)} s expected"
    largest = sorted(each.causes.items(), key=lambda item: -abs(item[1] - 1.0))[:2]
    return " and ".join(f"{name} (× {factor:.2f})" for name, factor in largest)


def _lines(each: Judged) -> Iterator[str]:
    yield f"{each.name}: {verdict(each)}"
    if each.found is None:
        return
    for name in list(each.causes)[:2] if each.verdict == SLOW else ():
        if name in _LOOK:
            yield f"Look at ({name}): {_LOOK[name]}"
    yield f"It rests on {each.found.rests_on}"
    if each.found.unusual:
        yield f"Unusual: {each.found.unusual}"
    yield from (f"Doubtful: {doubt}" for doubt in each.doubts)
    assert each.run is not None
    if each.run.assumed:
        yield f"Assumed: {'; '.join(each.run.assumed)}"
    if each.run.unread:
        yield f"Unread: {'; '.join(each.run.unread)}"


def _parts(each: Judged) -> Table:
    """Every part of the step as projected and expected; below them what the log timed, and the whole step."""
    assert each.made is not None
    assert each.found is not None
    scale = each.found.middle / each.made.step_seconds
    rows: list[tuple[str, float | None, float, float | None]] = [
        (PARTS[name], seconds, scale * seconds, None)
        for name, seconds in each.made.breakdown.items()
        if seconds > _LEAST * each.made.step_seconds
    ]
    rows += [(f"{span.name} (timers)", None, span.expected, span.measured) for span in each.spans]
    rows.append(("step", each.made.step_seconds, each.found.middle, each.seconds))
    ratio = lambda row: row[3] / row[2] if row[3] is not None and row[2] else None  # noqa: E731
    return tabled("judged_parts", rows, ratio=ratio, share=lambda row: row[2] / rows[-1][2], memory=_memory(each))


def _memory(each: Judged) -> str:
    from harness.predictors.ours import GIB, memory_gib

    assert each.run is not None
    assert each.made is not None
    measured = each.run.measured
    if measured.peak_memory_gib is None:
        return ""
    projected = memory_gib(each.made, each.made.cluster, measured)
    return (
        f" Peak memory ({measured.memory_kind or 'as the log counts it'}): {measured.peak_memory_gib:.2f} GiB measured, "
        f"{projected:.2f} GiB projected ({signed(projected / measured.peak_memory_gib - 1.0)}), of "
        f"{each.made.memory.usable / GIB:.2f} GiB usable."
    )


def badge(every: Sequence[Judged]) -> dict[str, object]:
    """An endpoint of shields.io (schema version 1: label, message, color)."""
    slow = [each.ratio for each in every if each.verdict == SLOW]
    known = [each for each in every if each.verdict]
    message = f"slow × {max(slow):.2f}" if slow else f"normal ({len(known)})" if known else "not judged"
    return {
        "schemaVersion": 1,
        "label": "training speed",
        "message": message,
        "color": "red" if slow else "brightgreen" if known else "lightgrey",
    }
