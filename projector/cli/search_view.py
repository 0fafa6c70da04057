"""Shows the answer of a search: the best, what cannot be told from it, why the next loses, the front, what binds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from projector.cli import expected
from projector.cli.inputs import Case
from projector.errors import InputError
from projector.io.table import Line, Table, factor, figure, gib, number1, seconds, signed, table_of, text, values
from projector.search.axes import Option
from projector.search.first_run import FirstRun, first_run
from projector.search.found import Best, SearchResult
from projector.search.nodes import Candidate
from projector.search.words import words
from projector.workload.structure import to_mapping

_COUNTS = "combinations=points valid=enumerated out_of_memory unsupported bounded_away=bounded projected"
_MOVES = 4  # parts of the step in the sentence on the next layout


def as_page(case: Case, result: SearchResult, top: int, start: Sequence[str]) -> Iterator[Line | Table]:
    """Yields what ``projector search`` shows; ``start``: the lines of the command that goes on with the best."""
    first = result.best[0].projection
    sizes, recipe = sorted({best.workload.gpus for best in result.best}), first.resolved.workload.recipe
    gpus = " to ".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    yield Line(f"{case.workload.model.name} on {gpus} × {case.cluster.name}, {case.workload.framework}", "title")
    yield Line(f"sequence {recipe.seq_length}, global batch {recipe.global_batch_size}, {recipe.precision}")
    yield Line(counted(result))
    yield Line(exactness(result))
    axes = ", ".join((*result.space.axes(), "pipeline"))
    yield Line(f"Axes: {axes}. What is not among them stays as it is stated", "dim")
    yield _best_table(case, result, top)
    yield Line("")
    yield from expected.lines(case, first)
    if result.close is not None or first.memory.order:
        yield Line(too_close(result))
    yield Line(_told_apart_sentence(result))
    yield Line(surest(case, result))
    yield Line(_first_sentence(measure_first(case, result), first.resolved.workload.gpus))
    if result.next is not None:
        yield Line(_next_sentence(result))
    yield _front_table(result, case)
    yield _binding_table(result)
    yield Line("")
    yield Line("Start from:", "bold")
    yield from map(Line, start)


def counted(result: SearchResult) -> str:
    """Returns in a sentence what became of the combinations."""
    c = result.counts
    return (
        f"{c.points:,} combinations, {c.enumerated:,} valid: {c.out_of_memory:,} out of memory, {c.bounded:,} bounded away, "
        f"{c.unsupported:,} not modelled, {c.projected:,} projected in {result.seconds:.1f} CPU s"
    )


def exactness(result: SearchResult) -> str:
    """Returns in a sentence how far the best found can be from the best of all."""
    if result.gap is None:
        most = f"; none can be more than {_times(result.most)} as fast (all GPUs at peak rate)" if result.most else ""
        return f"The best layout found in {result.seconds:.1f} CPU s; not all were looked at{most}"
    if result.gap > 0:
        other = f"no other is more than {_times(result.gap)} as fast"
        return f"The best layout found in {result.seconds:.1f} CPU s; {other}"
    return f"Exact: none of {result.counts.points:,} combinations is better"


def _times(gap: float) -> str:
    return f"{1 / (1 - gap):.2f} times"


def why_nothing_fits(case: Case, refused: InputError) -> Iterator[Line]:
    """Yields what :func:`projector.search.unfit.unfit` says of a space of which nothing could be projected, in
    sentences."""
    work, gpu = case.workload, case.cluster.gpu
    heavy = any(each.key == "memory" for each in refused.problems)
    verdict = "Does not fit" if heavy else "Cannot be projected"
    yield Line(f"{verdict}: {work.model.name} on {work.gpus} × {gpu.title}, in any layout tried", "bad")
    for each in refused.problems:
        kind = each.key.partition(" ")[0]
        if each.where == "--budget":
            yield Line(f"Not all layouts were tried in {each.found}: a larger --budget may find one that fits")
        elif kind == "memory":
            yield Line(f"None of {each.found} needs {each.expected}")
        elif kind == "nearest":
            yield Line(f"The {each.key} needs {each.found}")
            changes = each.expected.split("; or ")
            yield Line("Any one of these makes this layout fit:" if len(changes) > 1 else "What makes this layout fit:")
            yield from (Line(f"  * {change}") for change in changes)
        else:
            yield Line(f"Ruled out, {each.found}: {each.expected}")
    if heavy:
        yield Line("projector ask --gpus min finds the fewest GPUs on which any layout fits")


def too_close(result: SearchResult) -> str:
    """Returns in a sentence what is faster and may fit, or that nothing surely fits."""
    if result.close is None:
        near = 100 * result.best[0].projection.memory.tolerance
        return f"Nothing fits by more than the {near:.0f} % that the memory model may be off: a trial says more."
    gain = signed(result.close.projection.tgs / result.best[0].projection.tgs - 1)
    return f"{gain} with {words(result.close.fields)}; whether that fits is {result.close.projection.memory.words}."


def _told_apart_sentence(result: SearchResult) -> str:
    shown = len(result.best)
    if result.alike == 1:
        return "The best is told apart from all others that are shown."
    return f"{result.alike} of the {shown} shown cannot be told apart: the interval of the ratio of their steps has 1 in it."


def surest(case: Case, result: SearchResult) -> str:
    """Returns in a sentence which of the best is the safest bet: the fastest at the slow end of its 90 % interval."""

    def slowest_step(each: Best) -> float:
        return expected.expectation(case, each.projection).high

    def slowest_rate(each: Best) -> float:
        return each.projection.tgs * each.projection.step_seconds / slowest_step(each)

    bet, best = result.surest(slowest_step), result.best[0]
    if bet is best:
        return f"It is the safest bet, too: {slowest_rate(best):,.0f} tokens/s/GPU at the slow end of its interval."
    rate = f"{slowest_rate(bet):,.0f} tokens/s/GPU at the slow end of its interval"
    return f"Safest bet: {words(bet.fields)}, {rate}; the best {slowest_rate(best):,.0f}."


def measure_first(case: Case, result: SearchResult) -> FirstRun:
    """Returns the measurement that would narrow most what is expected of the layouts shown."""
    return first_run(result.best, case.cluster, case.known, case.assumed, case.settings)


def _first_sentence(run: FirstRun, gpus: int) -> str:
    """Returns in a sentence which measurement to make first, and what it would be worth."""
    narrowed = f"narrow what is expected of them from {factor(run.before)} to {factor(run.after)}"
    sentence = f"A run of the best on {run.gpus} GPUs would {narrowed}"
    return sentence if run.gpus == gpus else f"{sentence}; on all {gpus}, to {factor(run.whole)}"


def _best_table(case: Case, result: SearchResult, top: int) -> Table:
    several = len({each.workload.gpus for each in result.best}) > 1
    columns = (
        text("configuration", lambda hit: (f"{hit.workload.gpus} GPUs, " if several else "") + words(hit.fields)),
        *expected.columns(case),
        expected.speed(case),
        figure("against best", lambda hit: signed(hit.gain[0]) if hit is not result.best[0] else None, minor=3),
        figure("from to", lambda hit: hit.gain[1:] if any(hit.gain) else None, _percents, minor=3),
        figure("to spare GiB", "projection.memory.margin_bytes", gib),
        text("memory", "projection.memory.status"),
    )
    note = "against best: as measured runs let expect the ratio of the two, with its 90 % interval"
    return table_of("Best configurations", result.best[:top], columns, note)


def _percents(ends: Sequence[float]) -> str:
    return "{:+.0f} to {:+.0f} %".format(*(100 * end for end in ends))


def _next_sentence(result: SearchResult) -> str:
    assert result.next is not None
    moves = [(name, value) for name, value in result.moved.items() if abs(value) > 0][:_MOVES]
    changes = ", ".join(f"{name.removesuffix('_s')} {value:+.3f} s" for name, value in moves)
    return f"The next layout ({words(result.next.fields)}) takes, for the tokens of one step of the best: {changes}."


def _front_table(result: SearchResult, case: Case) -> Table:
    tokens = case.workload.tokens_per_step

    def gpus(hit: Candidate) -> int:
        return int(hit.fields.get("gpus", case.workload.gpus))

    several = len({gpus(hit) for hit in result.front}) > 1
    hours = figure("GPU-hours of 10⁹ tokens", lambda hit: hit.seconds * gpus(hit) / tokens / 3.6e-6, number1)
    columns = (
        text("configuration", lambda hit: (f"{gpus(hit)} GPUs, " if several else "") + words(hit.fields)),
        figure("projected s", "seconds", seconds),
        *((hours,) if several else ()),
        figure("GiB", "memory", gib),
    )
    usable = gib(case.cluster.gpu.usable_memory_bytes)
    note = (
        f"of the {result.counts.projected:,} projected, {usable} GiB usable; what a bound sent away may need less memory: "
        "--objective memory finds the least"
    )
    what = "Time, GPU-hours (money and energy go with them) and memory" if several else "Time against memory"
    return table_of(f"{what}: of what was projected, no other is better in all", result.front, columns, note)


def _binding_table(result: SearchResult) -> Table:
    columns = (
        text("a tenth more of", "resource"),
        figure("gain", lambda each: signed(each.gain, 2)),
        text("with", lambda each: ", ".join(f"{name} {value}" for name, value in each.changes), minor=1),
    )
    return table_of("What binds the best", result.binding, columns, "host: by its share of the step")


def as_document(case: Case, result: SearchResult, objective: str, start: Sequence[str]) -> dict[str, Any]:
    """Returns the whole answer as JSON values."""
    return {
        "schema_version": 1,
        "command": "search",
        "model": case.workload.model.name,
        "cluster": case.cluster.name,
        "framework": case.workload.framework,
        "objective": objective,
        "space": {name: [_plain(value) for value in axis] for name, axis in result.space.axes().items()},
        "counts": values(result.counts, _COUNTS),
        "refused": [
            {"field": key, "expected": text, "combinations": n} for (key, text), n in result.refused.items() if n
        ],
        "unsupported": dict(result.reasons),
        **values(result, "gap gap_to_peak=most"),
        "start": list(start),
        **values(result, "seconds alike"),
        "safest": words(result.surest(lambda each: expected.expectation(case, each.projection).high).fields),
        "measure_first": asdict(measure_first(case, result)),
        "best": [one(case, each) for each in result.best],
        "too_close": None if result.close is None else one(case, result.close),
        "next_layout": {"fields": _fields(result.next.fields), "moved": dict(result.moved)} if result.next else None,
        "front": [
            {"fields": _fields(hit.fields), **values(hit, "step_seconds=seconds allocated=memory")}
            for hit in result.front
        ],
        "binding": [values(each, "resource gain") | {"changes": dict(each.changes)} for each in result.binding],
    }


def one(case: Case, layout: Best) -> dict[str, Any]:
    """Returns a configuration as JSON values."""
    projection = layout.projection
    return {
        "words": words(layout.fields),
        "fields": _fields(layout.fields),
        "recipe": to_mapping(layout.workload.recipe),
        "gpus": layout.workload.gpus,
        "objective": layout.value,
        "step_seconds": projection.step_seconds,
        "expected": expected.as_document(expected.expectation(case, projection)),
        **values(projection, "tgs mfu breakdown"),
        "memory": values(projection.memory, "allocated status") | {"margin": float(projection.memory.margin_bytes)},
        "gain": dict(zip(("middle", "low", "high"), layout.gain, strict=True)),
        "told_apart": not layout.alike,
    }


def _fields(fields: Option) -> dict[str, Any]:
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
