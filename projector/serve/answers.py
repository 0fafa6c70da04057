"""Answers questions, which are words of a query, with documents: those of the command line's ``--json``, and the page's.

A question names models, GPUs and frameworks of the catalogues, never a file: nothing is read from disk for it.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from projector.errors import InputError, Problem, nearest, raise_all
from projector.intake.values import literal
from projector.io.rows import evenly
from projector.io.table import values
from projector.workload.fields import field_of, fields

if TYPE_CHECKING:
    from projector.projection import Projection

#: The commands that are answered, and ``view``, which is all that the page shows.
COMMANDS: Mapping[str, str] = {
    "ask": "does it fit, in which layout, how fast, how sure is that, how long does the whole run take",
    "performance": "step, throughput, breakdown, memory verdict",
    "memory": "peak memory of every pipeline rank, by component",
    "search": "the best configurations, and what binds them",
    "layers": "every operator of a layer: FLOP, bytes, seconds, what binds it",
    "view": "what the page shows: performance, timeline, sensitivities, and the command that says the same",
}
#: Numbers beside the recipe: (least, most, commands that take them).
NUMBERS: Mapping[str, tuple[float, float, tuple[str, ...]]] = {
    "gpus": (1, 1 << 17, tuple(COMMANDS)),
    "budget": (0.0, 10, ("ask", "search")),
    "tokens": (1e6, 1e15, ("ask",)),
    "price": (0.001, 1000, ("ask",)),
    "top": (1, 50, ("search",)),
}
_SIDE_BY_SIDE = 8  # GPUs that one answer compares
_ACTIONS = 6000  # actions of a timeline above which ranks are left out
_HARDWARE = ("gpu.", "cluster.")


def answer(command: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the document of ``command`` (see :data:`COMMANDS`). Raises :class:`InputError` with every mistake of
    ``query``."""
    argv = words(command, query)
    return _view(argv, query) if command == "view" else _document_of_command([command, *argv, "--json"])


def words(command: str, query: Mapping[str, str]) -> list[str]:
    """Returns the question as words of the command line. Raises :class:`InputError` with every word that is unknown or
    wrong."""
    problems: list[Problem] = []
    argv: list[str] = []
    others: dict[str, str] = {}
    if command not in COMMANDS:
        raise InputError([Problem("", "command", command, nearest(command, tuple(COMMANDS)))])
    for name, value in query.items():
        known = field_of(name)
        if (names := names_of(name)) is not None:
            several = value.split(",") if (command, name) == ("ask", "gpu") else [value]
            found = [each if each in names else _name_in_catalogue(name, each) for each in several]
            wrong = [each for each, word in zip(several, found, strict=True) if word not in names]
            problems += [Problem("", name, each, nearest(each, names)) for each in wrong]
            if len(several) > _SIDE_BY_SIDE:
                problems.append(Problem("", name, value, f"at most {_SIDE_BY_SIDE} GPUs"))
            argv += [f"--{name}", ",".join(map(str, found))]
        elif (command, name, value) == ("ask", "gpus", "min"):
            argv += ["--gpus", "min"]
        elif name in NUMBERS and command in NUMBERS[name][2]:
            low, high, _ = NUMBERS[name]
            number = literal(value)
            whole = isinstance(low, int)
            if type(number) not in (int, *(() if whole else (float,))) or not low <= float(str(number)) <= high:
                kind = "whole number" if whole else "number"
                problems.append(Problem("", name, value, f"a {kind} from {low:g} to {high:g}"))
            argv += [f"--{name}", value]
        elif known is not None or (name.startswith(_HARDWARE) and isinstance(literal(value), (int, float))):
            argv += ["--set", f"{known.key if known else name}={value}"]
        else:
            others[name] = value
    meant, unknown = _meant_by_switches(others)
    argv += meant
    known_names = ("model", "gpu", "cluster", "gpus", "framework", *(each.key for each in fields()))
    problems += [Problem("", name, others[name], nearest(name, known_names)) for name in unknown]
    missing = [name for name in ("model", "gpu") if name not in query and not (name == "gpu" and "cluster" in query)]
    problems += [Problem("", name, "nothing", f"a {name} of the catalogue: /v1/catalogue") for name in missing]
    raise_all(problems)
    if command == "search" and "budget" not in query:
        argv += ["--budget", "1"]
    return argv


def _meant_by_switches(query: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Returns the settings that switches of Megatron-LM mean (``use_distributed_optimizer``), as words of the command
    line, and the names of ``query`` that are none."""
    from argparse import Namespace

    from projector.cli.megatron_switches import take

    found = Namespace(stated={}, neutral=())
    flags = {name: [f"--{name}", *([] if value == "true" else [value])] for name, value in query.items()}
    left = take(found, [word for each in flags.values() for word in each])
    meant = [word for key, (_, text) in found.stated.items() for word in ("--set", f"{key}={text}")]
    return meant, [name for name, each in flags.items() if each[-1] in left]


def names_of(word: str) -> tuple[str, ...] | None:
    """Returns the names that ``model``, ``gpu``, ``cluster`` or ``framework`` may have; None for another word."""
    from projector import frameworks
    from projector.hardware import catalogue
    from projector.workload import zoo

    if word == "model":
        return tuple(name for name in zoo.names() if not zoo.is_template(name))
    if word == "gpu":
        return tuple(name for name in catalogue.gpu_names() if name in catalogue.cluster_names())
    if word == "cluster":
        return catalogue.cluster_names()
    return tuple(frameworks.names()) if word == "framework" else None


def _name_in_catalogue(word: str, value: str) -> str | None:
    """Returns the name in the catalogue that another spelling means: ``h100``, ``Qwen/Qwen3-8B``."""
    from projector.hardware import catalogue
    from projector.workload import zoo

    known = {"gpu": catalogue.find_gpu, "model": zoo.named}
    return known[word](value) if word in known else None


def known() -> dict[str, Any]:
    """Returns the catalogue: names, and the fields of a recipe with their values."""
    named = {f"{word}s": list(names_of(word) or ()) for word in ("model", "gpu", "cluster", "framework")}
    about = "name=key names help essential type=kind.__name__ choices several=many"
    return {"schema_version": 1, **named, "fields": [values(each, about) for each in fields()]}


def _document_of_command(argv: list[str]) -> dict[str, Any]:
    from projector.cli import called

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        called(argv)
    document: dict[str, Any] = json.loads(output.getvalue())
    return document


def _view(argv: list[str], query: Mapping[str, str]) -> dict[str, Any]:
    from projector.cli import command, document, expected, report
    from projector.cli.inputs import one_projection
    from projector.cli.options import selection
    from projector.cli.parser import parse, wrapped
    from projector.cli.performance import Projections
    from projector.search.binding import bindings

    options = parse(selection(), argv)
    case, projection = one_projection(options, "projector schedules compares them all")
    expectation = expected.expectation(case, projection)
    performance = document.performance(case, Projections(by_mode={"simulate": projection}, refused={}))
    gains = bindings(projection, case.workload, case.cluster, case.settings, ())
    return {
        **document.memory(case, projection),
        **performance,
        "command": "view",
        "title": next(report.head(case, projection)).text,
        "verdict": report.verdict(case, projection).text,
        "order": projection.memory.order,
        "uncertain": expected.sources(expectation),
        "peak_flops": case.cluster.gpu.peak_of("bf16"),
        "timeline": _timeline(projection),
        "sensitivities": [values(each, "resource gain") for each in gains if each.resource != "memory capacity"],
        "shell": "\n".join(wrapped(command.words(case, case.workload, options))),
        "python": _python_call(query),
    }


def _timeline(projection: Projection) -> dict[str, Any]:
    """Returns the actions of each rank as ``[kind, micro-batch, start, end]`` in seconds, and what follows the
    pipeline; only evenly chosen ranks where all have too many actions."""
    plan, schedule = projection.timeline.compiled, projection.timeline.compiled.schedule
    start, end = (times.tolist() for times in projection.timeline.shown)
    actions_of_rank = max(plan.size // schedule.pp, 1)
    ranks = []
    for rank in evenly(schedule.pp, max(_ACTIONS // actions_of_rank, 2)):
        own = plan.own(rank).tolist()[:_ACTIONS]
        actions = [[int(plan.kind[i]), int(plan.microbatch[i]), round(start[i], 6), round(end[i], 6)] for i in own]
        spans = [[s.name, round(s.start, 6), round(s.end, 6)] for s in projection.spans if s.rank == rank]
        ranks.append({"rank": rank, "actions": actions, "spans": spans})
    return {"schedule": schedule.name, "ranks": ranks, "of": schedule.pp, "seconds": projection.step_seconds}


def _python_call(query: Mapping[str, str]) -> str:
    plain = {name: literal(value) for name, value in query.items() if not name.startswith(_HARDWARE)}
    arguments = [f"{name}={value!r}" for name, value in plain.items()]
    if what_if := [f"{name}={value}" for name, value in query.items() if name.startswith(_HARDWARE)]:
        arguments.append(f"set={what_if!r}")
    return f"import projector as pj\n\npj.project({', '.join(arguments)})"
