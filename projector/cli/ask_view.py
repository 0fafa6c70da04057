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
from projector.io.table import Line, Table, factor, gib, percent, text, values
from projector.search.words import words


def as_page(answers: Sequence[Answer], options: argparse.Namespace) -> Iterator[Line | Table]:
    """Yields the answer for one GPU in at most 25 lines of 80 characters, for several side by side as a table."""
    if len(answers) > 1:
        yield _side_by_side(answers)
        fitting = [each for each in answers if each.found]
        for each in fitting:
            yield Line("")
            yield Line(f"{each.case.cluster.gpu.name}: {words(each.best.fields)}", "bold")
            yield from map(Line, wrapped(each.command))
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


def _side_by_side(answers: Sequence[Answer]) -> Table:
    work, cells = answers[0].case.workload, [_cells(each) for each in answers]
    names = [each.case.cluster.gpu.name for each in answers]
    titles = dict.fromkeys(title for of_gpu in cells for title in of_gpu)
    gpus = [text(name, of_gpu.get) for name, of_gpu in zip(names, cells, strict=True)]
    subject = values(work, "model=model.name length=recipe.seq_length framework")
    return tabled("side_by_side", titles, gpus=gpus, front=_front(answers), **subject)


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
    return f" In {what} together no other is better than {', '.join(front)}." if len(spent) > 1 else ""


def _cells(answer: Answer) -> dict[str, str]:
    """Returns the figures of one GPU by their titles; those that it lacks are left out."""
    if answer.found is None:
        return {"GPUs": str(answer.case.workload.gpus), "memory": "does not fit"}
    projection = answer.best.projection
    step = expected.expectation(answer.case, projection)
    tokens_per_step = projection.tgs * projection.step_seconds
    cells = {
        "GPUs": f"{projection.resolved.workload.gpus:,}",
        "memory": projection.memory.status,
        "GiB to spare": f"{projection.memory.margin_bytes / 2**30:.1f}",
        "step s": f"{step.middle:.3f}",
        "tokens/s/GPU": f"{tokens_per_step / step.middle:,.0f}",
        "90 % from": f"{tokens_per_step / step.high:,.0f}",
        "to": f"{tokens_per_step / step.low:,.0f}",
        "MFU": percent(projection.mfu * projection.step_seconds / step.middle),
        "uncertain by": factor(step.half_width),
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
