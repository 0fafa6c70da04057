"""Shows the answer of ``projector ask``: a few sentences for one GPU, a table for several side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from projector.cli import expected, report
from projector.cli.ask import Answer
from projector.cli.parser import wrapped
from projector.cli.plan_view import lasting, tokens, triple
from projector.cli.search_view import exactness, too_close, why_nothing_fits
from projector.cli.search_view import one as configuration
from projector.cli.tables import tabled
from projector.hardware.yaml_file import WHAT_IF
from projector.io.table import Cell, Column, Line, Table, gib, percent, values
from projector.io.terminal import plain
from projector.search.words import brief, words

_LINES, _WIDTH = 25, 80  # of an answer


def as_page(answers: Sequence[Answer], options: argparse.Namespace) -> Iterator[Line | Table]:
    """Yields the answer in at most 25 lines of 80 characters: for one GPU in sentences, for several as a table and as many
    of the commands as have room."""
    if len(answers) > 1:
        yield from _side_by_side(answers)
        return
    (answer,) = answers
    case = answer.case
    if answer.found is None:
        assert answer.refused is not None
        yield from why_nothing_fits(case, answer.refused)
        return
    best = answer.best
    projection, memory = best.projection, best.projection.memory
    yield next(report.head(case, projection))
    yield Line(f"{memory.verdict}, of {gib(memory.usable)}", report.verdict(case, projection).style)
    yield Line(f"Layout: {words(best.fields)}")
    yield Line(f"{exactness(answer.found)}.", "dim")
    if answer.found.close is not None:
        yield Line(too_close(answer.found))
    yield from expected.lines(case, projection)
    if answer.plan is not None:
        yield Line(f"Whole run: {_whole_run(answer, options)}")
    chosen = (text.removeprefix("chosen ") for text in case.assumed if text.startswith("chosen "))
    if defaults := ", ".join(text for text in chosen if text.partition("=")[0] not in answer.found.space.axes()):
        yield Line(f"Chosen: {defaults}", "dim")
    yield from (Line(f"Assumed: {text}") for text in case.assumed if WHAT_IF in text)
    yield Line("Start from:", "bold")
    yield from map(Line, wrapped(answer.command))


def _whole_run(answer: Answer, options: argparse.Namespace) -> str:
    """Returns ``1.41T tokens (20 per parameter): 250 days (200 to 310), 385,000 GPU-hours, …``."""
    plan = answer.plan
    assert plan is not None
    forecast = plan.forecast
    rule = "" if options.tokens else " (20 per parameter in use)"
    middle, cost = forecast.middle, "; --price adds cost"
    if middle.cost:
        cost = f", cost {middle.cost:,.0f} ({forecast.low.cost:,.0f} to {forecast.high.cost:,.0f})"
    spent = f"{middle.gpu_hours:,.0f} GPU-hours, {middle.mwh:,.{0 if middle.mwh >= 1 else 2}f} MWh{cost}"
    return f"{tokens(plan.tokens)} tokens{rule} take {lasting(plan)}, {spent}"


def _side_by_side(answers: Sequence[Answer]) -> Iterator[Line | Table]:
    work, cells = answers[0].case.workload, [_cells(each) for each in answers]
    names = [each.case.cluster.gpu.name for each in answers]
    titles = dict.fromkeys(title for of_gpu in cells for title in of_gpu)
    gpus = [_of_gpu(name, of_gpu) for name, of_gpu in zip(names, cells, strict=True)]
    subject = values(work, "model=model.name length=recipe.seq_length framework")
    table = tabled("side_by_side", titles, gpus=gpus, front=_front(answers), **subject)
    yield table
    room, left = _LINES - sum(1 for _ in plain([table], _WIDTH)), []
    for name, answer in zip(names, answers, strict=True):
        lines = wrapped(answer.command) if answer.found else []
        room -= len(lines)
        if room > 0:
            yield from map(Line, lines)
        elif lines:
            left.append(name)
    if left:
        yield Line(f"What starts it on {', '.join(left)}: --gpu with that name alone, or --json", "dim")


def _of_gpu(name: str, cells: dict[str, str]) -> Cell:
    return Cell(Column(name, numeric=False, least=13), cells.get)  # its longest word is an interval


def _front(answers: Sequence[Answer]) -> str:
    """Returns in a sentence which GPUs no other is better than in time, energy and, where there is a price, money."""
    runs = {each.case.cluster.gpu.name: each.plan.forecast.middle for each in answers if each.plan}
    priced = all(run.cost for run in runs.values())
    spent = {name: (run.days, run.mwh, run.cost if priced else 0.0) for name, run in runs.items()}
    front = [
        name
        for name, own in spent.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in spent.values())
    ]
    what = "days, MWh and cost" if priced else "days and MWh"
    return f"; none beats {', '.join(front)} in {what}" if len(spent) > 1 else ""


def _cells(answer: Answer) -> dict[str, str]:
    """Returns the figures of one GPU by their titles; those that it lacks are left out."""
    if answer.found is None:
        return {"GPUs": str(answer.case.workload.gpus), "memory": "does not fit"}
    projection = answer.best.projection
    step = expected.expectation(answer.case, projection)
    tokens_per_step = projection.tgs * projection.step_seconds
    low, high = (f"{tokens_per_step / each:,.0f}" for each in (step.high, step.low))
    cells = {
        "GPUs": f"{projection.resolved.workload.gpus:,}",
        "memory": projection.memory.status,
        "GiB to spare": f"{projection.memory.margin_bytes / 2**30:.1f}",
        "layout": brief(answer.best.fields),
        "step s": f"{step.middle:.3f}",
        "tokens/s/GPU": f"{tokens_per_step / step.middle:,.0f}",
        "90 %": f"{low}–{high}",
        "MFU": percent(projection.mfu * projection.step_seconds / step.middle),
    }
    if answer.plan:
        run = answer.plan.forecast.middle
        cells |= {"days": f"{run.days:,.1f}", "GPU-hours": f"{run.gpu_hours:,.0f}", "MWh": f"{run.mwh:,.1f}"}
        cells |= {"cost": f"{run.cost:,.0f}"} if run.cost else {}
    return cells


def as_document(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the JSON document of ``answers``, one for each GPU in the order of the question."""
    return {"schema_version": 1, "command": "ask", "answers": [_values(each) for each in answers]}


def _values(answer: Answer) -> dict[str, Any]:
    named = "model=workload.model.name cluster=cluster.name framework=workload.framework gpus=workload.gpus assumed"
    head = values(answer.case, named)
    if answer.found is None:
        assert answer.refused is not None
        return head | {"fits": False, "reasons": answer.refused.lines()}
    projection = answer.best.projection
    plan = answer.plan
    return head | {
        "fits": bool(projection.memory.fits),
        "margin": float(projection.memory.margin_bytes),
        **configuration(answer.case, answer.best),
        **values(answer.found, "gap gap_to_peak=most"),
        "run": plan and {"tokens": plan.tokens, **triple(plan.forecast)},
        "start": list(answer.command),
    }
