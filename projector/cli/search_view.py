"""What ``projector search`` shows: the best, what cannot be told from it, why the next loses, the front, what binds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projector.cli import expected
from projector.cli.inputs import Case
from projector.io.table import Line, Table, figure, listed, number1, number3, signed, text
from projector.search.axes import Option
from projector.search.found import Best, Found
from projector.search.words import words
from projector.workload.schema import recipe_to_mapping

_GB = 1e9
_MOVES = 4  # parts of the step in the sentence on the next layout


def as_page(case: Case, found: Found, top: int) -> Iterator[Line | Table]:
    yield Line(f"{case.workload.model.name} on {case.cluster.name}, {case.workload.framework}", "title")
    yield Line(_counted(found))
    yield Line(_exactness(found))
    if not found.best:
        yield Line("Nothing that fits was found so far: a larger --budget looks on.", "bad")
        return
    first = found.best[0].projection
    if (gpus := found.best[0].workload.gpus) < case.workload.gpus and "gpus" not in found.space.axes():
        yield Line(f"On {gpus:,} GPUs: on half of them nothing fits")
    yield _best(case, found, top)
    yield Line("")
    yield from expected.lines(case, found.best[0].projection)
    if found.close is not None or first.memory.order:
        yield Line(_too_close(found))
    yield Line(_told_apart(found))
    if found.next is not None:
        yield Line(_why(found))
    yield _front(found, case)
    yield _binding(found)


def _counted(found: Found) -> str:
    c = found.counts
    return (
        f"{c.points:,} combinations, {c.enumerated:,} valid: {c.out_of_memory:,} out of memory, {c.bounded:,} bounded away, "
        f"{c.unsupported:,} not modelled, {c.projected:,} projected in {found.seconds:.1f} s"
    )


def _exactness(found: Found) -> str:
    if found.gap is None or not found.best:
        return "Stopped before everything was bounded: how far the best can be off is not known"
    if found.gap > 0:
        return f"Stopped: nothing that was left out is more than {100 * found.gap:.1f} % better than the best"
    axes = ", ".join((*found.space.axes(), "pipeline"))
    return f"Exact: no other combination of {axes} is better; what is not among these stays as it is stated"


def _too_close(found: Found) -> str:
    if found.close is None:
        near = 100 * found.best[0].projection.memory.tolerance
        return f"Nothing fits by more than the {near:.0f} % that the memory model may be off: a trial says more."
    gain = signed(found.close.projection.tgs / found.best[0].projection.tgs - 1)
    return f"{gain} with {words(found.close.fields)}, but memory is {found.close.projection.memory.words}."


def _told_apart(found: Found) -> str:
    if found.alike == 1:
        return "The best is told apart from all others."
    all_of_them = found.whole or found.alike < len(found.best)
    text = f"{found.alike} cannot be told apart: their steps are within the interval of a projected ratio."
    return text if all_of_them else f"At least {text} --alike finds all of them."


def _best(case: Case, found: Found, top: int) -> Table:
    first, several = found.best[0], len({each.workload.gpus for each in found.best}) > 1
    made = (
        figure("", 0),
        text("configuration", lambda hit: (f"{hit[1].workload.gpus} GPUs, " if several else "") + words(hit[1].fields)),
        figure("tokens/s/GPU", lambda hit: number1(hit[1].projection.tgs)),
        figure("against best", lambda hit: signed(hit[1].projection.tgs / first.projection.tgs - 1)),
        figure("step (s)", lambda hit: number3(hit[1].projection.step_seconds), minor=1),
        figure("expected s", lambda hit: number3(expected.expectation(case, hit[1].projection).middle), minor=1),
        figure("GB", lambda hit: number1(hit[1].projection.memory.allocated / _GB), minor=2),
        text("told apart", lambda hit: "" if hit[1] is first else "no" if hit[1].alike else "yes", minor=3),
    )
    return listed("Best configurations", enumerate(found.best if found.whole else found.best[:top], start=1), made)


def _why(found: Found) -> str:
    assert found.next is not None
    moves = [(name, value) for name, value in found.moved.items() if abs(value) > 0][:_MOVES]
    told = ", ".join(f"{name.removesuffix('_s')} {value:+.3f} s" for name, value in moves)
    return f"The next layout ({words(found.next.fields)}) takes, for the tokens of one step of the best: {told}."


def _front(found: Found, case: Case) -> Table:
    made = (
        text("configuration", "fields", words),
        figure("step (s)", "seconds", number3),
        figure("GB", lambda hit: number1(hit.memory / _GB)),
    )
    usable = case.cluster.gpu.usable_memory_bytes / _GB
    note = (
        f"of the {found.counts.projected:,} projected, {usable:.1f} GB usable; what a bound sent away may need less memory: "
        "--objective memory finds the least"
    )
    return listed("Time against memory: of what was projected, no other is better in both", found.front, made, note)


def _binding(found: Found) -> Table:
    made = (
        text("a tenth more of", "resource"),
        figure("gain", lambda each: signed(each.gain, 2)),
        text("with", lambda each: ", ".join(f"{name} {value}" for name, value in each.changes), minor=1),
    )
    return listed("What binds the best", found.binding, made, "host: by its share of the step")


def as_document(case: Case, found: Found, objective: str) -> dict[str, Any]:
    """The whole of it as JSON values."""
    c = found.counts
    return {
        "schema_version": 1,
        "command": "search",
        "model": case.workload.model.name,
        "cluster": case.cluster.name,
        "framework": case.workload.framework,
        "objective": objective,
        "space": {name: [_plain(value) for value in values] for name, values in found.space.axes().items()},
        "counts": {
            "combinations": c.points,
            "valid": c.enumerated,
            "out_of_memory": c.out_of_memory,
            "unsupported": c.unsupported,
            "bounded_away": c.bounded,
            "projected": c.projected,
        },
        "refused": [
            {"field": key, "expected": text, "combinations": n} for (key, text), n in found.refused.items() if n
        ],
        "unsupported": dict(found.reasons),
        "gap": found.gap,
        "seconds": found.seconds,
        "alike": found.alike,
        "best": [_one(case, each) for each in found.best],
        "too_close": None if found.close is None else _one(case, found.close),
        "next_layout": {"fields": _fields(found.next.fields), "moved": dict(found.moved)} if found.next else None,
        "front": [
            {"fields": _fields(hit.fields), "step_seconds": hit.seconds, "allocated": hit.memory} for hit in found.front
        ],
        "binding": [
            {"resource": each.resource, "gain": each.gain, "changes": dict(each.changes)} for each in found.binding
        ],
    }


def _one(case: Case, each: Best) -> dict[str, Any]:
    made = each.projection
    return {
        "fields": _fields(each.fields),
        "recipe": recipe_to_mapping(each.workload.recipe),
        "gpus": each.workload.gpus,
        "objective": each.value,
        "step_seconds": made.step_seconds,
        "expected": expected.as_document(expected.expectation(case, made)),
        "tgs": made.tgs,
        "mfu": made.mfu,
        "breakdown": dict(made.breakdown),
        "memory": {"allocated": made.memory.allocated, "status": made.memory.status},
        "told_apart": not each.alike,
    }


def _fields(fields: Option) -> dict[str, Any]:
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
