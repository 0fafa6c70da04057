"""Measured runs beside the step that runs of others let expect: a verdict on each run, its parts, and the likeliest
explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report.said import LOOK, said
from harness.report.spec import tabled
from harness.report.table import Report, Table
from harness.score.run_verdict import NORMAL, SLOW, RunVerdict
from projector.card import PARTS
from projector.io.table import significant

_LEAST = 0.01  # least share of a step for which a part is shown


def build(every: Sequence[RunVerdict]) -> Report:
    """Returns the headline of each run, then tables."""
    known = [run for run in every if run.found is not None]
    lines = [line for run in every for line in _lines(run)]
    span = lambda found: f"{significant(found.low)}–{significant(found.high)}"  # noqa: E731
    many = tabled("judged", known, because=_because, significant_span=span)
    tables = [many] if len(known) > 1 else [_parts(run) for run in known]
    title = f"{every[0].name if len(every) == 1 else f'{len(every)} runs'}: measured beside expected"
    return Report.of(title, tables, lines)


def verdict(each: RunVerdict) -> str:
    """Returns a verdict such as ``Slow: 2.05 times the expected step, …``."""
    if each.found is None:
        return f"Cannot be judged: {each.refused}"
    word, because = each.verdict.capitalize(), _because(each) if each.verdict != NORMAL else ""
    return "".join(said("judged", {"run": each, "word": word, "because": because}))


def _because(run: RunVerdict) -> str:
    """Returns the timed part where one explains the gap, else the two largest causes; empty where nothing is to explain."""
    if run.verdict == NORMAL:
        return ""
    if run.gap is not None:
        span = run.gap
        return f"the {span.name}: {significant(span.measured)} s measured, {significant(span.expected)} s expected"
    largest = sorted(run.causes.items(), key=lambda item: -abs(item[1] - 1.0))[:2]
    return " and ".join(f"{name} (× {factor:.2f})" for name, factor in largest)


def _lines(run: RunVerdict) -> Iterator[str]:
    yield f"{run.name}: {verdict(run)}"
    if run.found is None:
        return
    for name in list(run.causes)[:2] if run.verdict == SLOW else ():
        if name in LOOK:
            yield f"Look at ({name}): {LOOK[name]}"
    yield f"It rests on {run.found.rests_on}"
    if run.found.unusual:
        yield f"Unusual: {run.found.unusual}"
    yield from (f"Doubtful: {doubt}" for doubt in run.doubts)
    assert run.run is not None
    if run.run.assumed:
        yield f"Assumed: {'; '.join(run.run.assumed)}"
    if run.run.unread:
        yield f"Unread: {'; '.join(run.run.unread)}"


def _parts(run: RunVerdict) -> Table:
    """Returns every part of the step as projected and expected; below them the timed parts, and the whole step."""
    assert run.made is not None
    assert run.found is not None
    scale = run.found.middle / run.made.step_seconds
    rows: list[tuple[str, float | None, float, float | None]] = [
        (PARTS[name], seconds, scale * seconds, None)
        for name, seconds in run.made.breakdown.items()
        if seconds > _LEAST * run.made.step_seconds
    ]
    rows += [(f"{span.name} (timers)", None, span.expected, span.measured) for span in run.spans]
    rows.append(("step", run.made.step_seconds, run.found.middle, run.seconds))
    ratio = lambda row: row[3] / row[2] if row[3] is not None and row[2] else None  # noqa: E731
    return tabled("judged_parts", rows, ratio=ratio, share=lambda row: row[2] / rows[-1][2], memory=_memory(run))


def _memory(judged: RunVerdict) -> str:
    from harness.predictors.ours import GIB, memory_gib

    assert judged.run is not None
    assert judged.made is not None
    measured = judged.run.measured
    if measured.peak_memory_gib is None:
        return ""
    projected = memory_gib(judged.made, judged.made.cluster, measured)
    item = {
        "kind": measured.memory_kind or "as the log counts it",
        "measured": measured.peak_memory_gib,
        "projected": projected,
        "error": projected / measured.peak_memory_gib - 1.0,
        "usable": judged.made.memory.usable / GIB,
    }
    return " " + said("judged_memory", item)[0]


def badge(every: Sequence[RunVerdict]) -> dict[str, object]:
    """Returns an endpoint of shields.io (schema version 1: label, message, color)."""
    slow = [run.ratio for run in every if run.verdict == SLOW]
    known = [run for run in every if run.verdict]
    message = f"slow × {max(slow):.2f}" if slow else f"normal ({len(known)})" if known else "not judged"
    return {
        "schemaVersion": 1,
        "label": "training speed",
        "message": message,
        "color": "red" if slow else "brightgreen" if known else "lightgrey",
    }
