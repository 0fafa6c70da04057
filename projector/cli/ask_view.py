"""Shows the answer of ``projector ask``: a few sentences for one GPU, a table for several side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from projector.cli import expected, report
from projector.cli.ask import Answer
from projector.cli.parser import wrapped
from projector.cli.plan_view import lasting, tokens
from projector.cli.search_view import exactness, too_close, why_nothing_fits
from projector.cli.search_view import one as configuration
from projector.hardware.yaml_file import WHAT_IF
from projector.io.table import NONE, Column, Line, Table, factor, gib, percent
from projector.search.words import words


def as_page(answers: Sequence[Answer], options: argparse.Namespace) -> Iterator[Line | Table]:
    """Yields the answer for one GPU in at most 25 lines of 80 characters, for several side by side as a table."""
    if len(answers) > 1:
        yield _side_by_side(answers)
        fitting = [each for each in answers if each.found]
        for each in fitting:
            yield Line("")
            yield Line(f"{each.case.cluster.gpu.name}: {words(each.best.fields)}", "bold")
            yield from (Line(line) for line in wrapped(each.command))
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
    yield from _start_command(answer)


def _start_command(answer: Answer) -> Iterator[Line]:
    yield Line("Start from:", "bold")
    yield from (Line(line) for line in wrapped(answer.command))


def _whole_run(answer: Answer, options: argparse.Namespace) -> str:
    """Returns ``1.41T tokens (20 per parameter): 250 days (200 to 310), 385,000 GPU-hours, …``."""
    plan = answer.plan
    assert plan is not None
    forecast = plan.forecast
    rule = "" if options.tokens else " (20 per parameter in use)"
    cost = (
        f", cost {forecast.middle.cost:,.0f} ({forecast.low.cost:,.0f} to {forecast.high.cost:,.0f})"
        if forecast.middle.cost
        else "; --price adds cost"
    )
    return (
        f"{tokens(plan.tokens)} tokens{rule} take {lasting(plan)}, {forecast.middle.gpu_hours:,.0f} GPU-hours, "
        f"{forecast.middle.mwh:,.{0 if forecast.middle.mwh >= 1 else 2}f} MWh{cost}"
    )


def _side_by_side(answers: Sequence[Answer]) -> Table:
    work = answers[0].case.workload
    names = [each.case.cluster.gpu.name for each in answers]
    rows = zip(*(_column(each) for each in answers), strict=True)
    titles = (
        "GPUs",
        "memory",
        "GiB to spare",
        "step s",
        "tokens/s/GPU",
        "90 % from",
        "to",
        "MFU",
        "uncertain by",
        "days",
        "GPU-hours",
        "MWh",
        "cost",
    )
    columns = (Column("", numeric=False), *(Column(name, numeric=False) for name in names))
    lines = tuple((title, *row) for title, row in zip(titles, rows, strict=True))
    return Table(
        title=f"{work.model.name}, {work.recipe.seq_length:,}-token samples, {work.framework}",
        columns=columns,
        rows=tuple(line for line in lines if any(cell != NONE for cell in line[1:])),
        note="Steps, speeds and days as measured runs let expect them.",
    )


def _column(answer: Answer) -> tuple[str, ...]:
    if answer.found is None:
        return (str(answer.case.workload.gpus), "does not fit", *(NONE,) * 11)
    projection = answer.best.projection
    step = expected.expectation(answer.case, projection)
    tokens_per_step = projection.tgs * projection.step_seconds
    tokens_per_s = [tokens_per_step / seconds for seconds in (step.middle, step.high, step.low)]
    plan = answer.plan.forecast.middle if answer.plan else None
    return (
        f"{projection.resolved.workload.gpus:,}",
        projection.memory.status,
        f"{projection.memory.margin_bytes / 2**30:.1f}",
        f"{step.middle:.3f}",
        *(f"{each:,.0f}" for each in tokens_per_s),
        percent(projection.mfu * tokens_per_s[0] / projection.tgs),
        factor(step.half_width),
        f"{plan.days:,.1f}" if plan else NONE,
        f"{plan.gpu_hours:,.0f}" if plan else NONE,
        f"{plan.mwh:,.1f}" if plan else NONE,
        f"{plan.cost:,.0f}" if plan and plan.cost else NONE,
    )


def as_document(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the JSON document of ``answers``, one for each GPU in the order of the question."""
    return {"schema_version": 1, "command": "ask", "answers": [_values(each) for each in answers]}


def _values(answer: Answer) -> dict[str, Any]:
    work = answer.case.workload
    head = {
        "model": work.model.name,
        "cluster": answer.case.cluster.name,
        "framework": work.framework,
        "gpus": work.gpus,
        "assumed": list(answer.case.assumed),
    }
    if answer.found is None:
        assert answer.refused is not None
        return head | {"fits": False, "reasons": answer.refused.lines()}
    projection = answer.best.projection
    plan = answer.plan
    return head | {
        "fits": bool(projection.memory.fits),
        "margin": float(projection.memory.margin_bytes),
        **configuration(answer.case, answer.best),
        "gap": answer.found.gap,
        "gap_to_peak": answer.found.most,
        "run": plan
        and {"tokens": plan.tokens, **{n: asdict(getattr(plan.forecast, n)) for n in ("middle", "low", "high")}},
        "start": list(answer.command),
    }
