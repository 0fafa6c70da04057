"""``import projector``: projections, searches and sweeps from words, as people write them in Python.

Arguments are those of the command line without dashes: ``model``, ``gpu`` (or ``cluster``), ``gpus``, ``framework``,
and every recipe field by Megatron-LM's name for its argument or the short one (``tensor_model_parallel_size`` or
``tp``). What is left out is chosen as the command line chooses it, and is among what a projection has assumed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector import projection
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, or_none
from projector.expectation import Knowledge
from projector.intake.values import literal
from projector.io.rows import Rows
from projector.plan.usual import BUDGET, SEQ_LENGTH, samples_per_step, tokens_per_step
from projector.posterior import Expectation, Run
from projector.projection import Projection
from projector.workload.fields import field_of

if TYPE_CHECKING:
    import argparse

    from projector.cli.inputs import Case
    from projector.hardware.types import Cluster
    from projector.search.found import SearchResult
    from projector.search.sweep.grid import Grid
    from projector.workload.workload import Workload

_GIB = 2.0**30
_FLAG = re.compile(r"--([a-z][a-z-]*)( [A-Z]+(?:\|[A-Z]+)*)?")


def project(
    workload: Workload | str | None = None, cluster: Cluster | str | None = None, mode: str = "simulate", **words: Any
) -> Projection:
    """Returns the projection of one training step: of a typed ``workload`` on a ``cluster``
    (:func:`projector.projection.project`), or of words.

    >>> project(model="llama3_70b", gpu="h100", gpus=512, tp=8, pp=4, seq_length=8192)

    Raises :class:`InputError` with every word that is unknown or wrong.
    """
    if isinstance(workload, str):
        given = f"{workload!r} without a name"
        raise InputError(
            [Problem("project()", "", given, 'words: model="llama3.1_8b", gpu="h100", or config="run.sh"')]
        )
    if workload is not None:
        return projection.project(workload, cluster, mode, **words)  # type: ignore[arg-type]
    if cluster is not None:
        words["cluster"] = cluster
    communication = words.pop("communication", False)
    from projector.cli.layout import with_layout

    with _read(words, "project") as (case, options):
        case = with_layout(case, options)
        projected = projection.project(
            case.workload, case.cluster, mode, settings=case.settings, communication=communication
        )
    return replace(projected, assumed=(*case.assumed, *projected.assumed))


def search(
    *, budget: float | None = BUDGET, top: int = 10, objective: str = "tgs", memory_margin: float = 0.0, **words: Any
) -> SearchResult:
    """Returns the best configurations; recipe fields among the words are held. ``budget``: CPU seconds (None: until no
    other is better). Raises :class:`InputError` where nothing fits, with changes that would fit."""
    from projector.cli.layout import searched
    from projector.search.objective import OBJECTIVES, Objective
    from projector.search.unfit import unfit

    if objective not in set(OBJECTIVES) - {"cost"}:
        raise InputError([Problem("search()", "objective", objective, "one of step, tgs, energy, memory")])
    if not (budget is None or (isinstance(budget, (int, float)) and budget >= 0)):
        raise InputError([Problem("search()", "budget", budget, "CPU seconds as a number, or None")])
    with _read(words, "search") as (case, options):
        aim = Objective(name=objective, watts=case.cluster.gpu.tdp_watts)
        found = searched(case, options, aim, top=top, seconds=budget, margin=memory_margin)
        if not found.best:
            raise unfit(found, case.cluster, memory_margin, case.settings)
    return found


def sweep(**words: Any) -> Sweep:
    """Returns a projection for every combination of words that have several values in a list.

    >>> sweep(model="llama3_8b", gpu=["h100", "mi300x"], gpus=64, tp=[1, 2, 4], global_batch_size=512).to_pandas()

    Raises :class:`InputError` with every word that is unknown or wrong; a combination that cannot run is a row with its
    reason.
    """
    from projector.search.sweep.grid import parsed

    words = {name: value for name, value in words.items() if value is not None}
    content: dict[str, Any] = {name: words.pop(name) for name in ("model", "framework") if name in words}
    content |= {"system": words.pop("gpu", words.pop("cluster", None)), "gpus": words.pop("gpus", None)}
    recipe = {known.key: _as_list(value) for name, value in words.items() if (known := field_of(name)) is not None}
    problems: list[Problem] = []
    switches = _flags({name: value for name, value in words.items() if field_of(name) is None}, problems)
    if problems:
        raise InputError([_blamed_on_argument(problem, "sweep") for problem in problems])
    recipe |= {name: literal(str(value)) for name, (_, value) in switches.stated.items()}
    recipe = {"micro_batch_size": 1, "seq_length": int(SEQ_LENGTH)} | recipe
    sizes = (*_several(recipe["seq_length"]), *_several(content["gpus"]))
    if (
        "global_batch_size" not in recipe
        and content.get("model")
        and all(type(each) is int and each > 0 for each in sizes)
    ):
        recipe["global_batch_size"] = _samples(content, recipe["seq_length"])
    content = {name: _as_list(value) for name, value in content.items()}
    try:
        return Sweep(grid=parsed({**content, "recipe": recipe}, "sweep()", Path()))
    except InputError as error:
        batch = "recipe.global_batch_size"  # derived from model and GPUs: no mistake of its own without these
        remaining = [
            each for each in error.problems if each.key != batch or each.found != "nothing" or len(error.problems) == 1
        ]
        raise InputError(replace(each, key="gpu") if each.key == "system" else each for each in remaining) from None


def expect(
    made: Projection,
    runs: str | Path | Iterable[str | Path | tuple[Projection, float]] = (),
    assumed: Collection[str] = (),
) -> Expectation:
    """Returns the step to expect of a projection, in seconds, with its 90 % interval.

    >>> expect(p, runs="train.log")

    ``runs``: the user's own measured runs, which add to what the package carries: training logs and tables of runs by
    their paths (the GPU of ``made`` where they name none), or projections, each with the seconds that one of its steps
    was measured to take. ``assumed``: what the reader of the configuration had to assume, beyond what the projection
    assumes itself. Raises :class:`InputError` for a file that cannot be read.
    """
    from projector.cli.runs import read

    if not hasattr(made, "resolved"):
        raise InputError([Problem("expect()", "", made, "a projection: expect(project(model=…, gpu=…))")])
    if not isinstance(runs, (str, Path)) and not hasattr(runs, "__iter__"):
        raise InputError([Problem("expect()", "runs", runs, "a file, or measured steps: [(projection, seconds), …]")])
    known, user_runs = Knowledge(), list[Run]()
    for each in (runs,) if isinstance(runs, (str, Path)) else runs:
        if isinstance(each, tuple):
            user_runs.append(Run(facts=known.facts(each[0]), measured_seconds=each[1]))
        else:
            user_runs += read(each, made.cluster.gpu.name)
    return Knowledge(runs=tuple(user_runs)).expect(made, assumed)


@dataclass(frozen=True, eq=False)
class Sweep(Rows):
    """The rows of a sweep, which are projected when first asked for."""

    grid: Grid

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Returns plain values: model, gpu, gpus, the fields that vary, ``status`` with its ``reason``,
        ``step_seconds`` and the expected step (``low``, ``expected``, ``high``), ``tgs``, ``memory_gib``."""
        from projector.search.sweep import points

        knowledge, rows = Knowledge(), []
        many = list(self.grid.points())
        for point, row in zip(many, points.rows(many), strict=True):
            step: dict[str, Any] = dict.fromkeys(("low", "middle", "high"))
            if row["status"] == "ok":
                expected = points.expected(point, row | points.explained(point), knowledge)
                step = {name: expected[f"expected.{name}"] for name in step}
            fields = {name: row[f"recipe.{name}"] for name, values in self.grid.inner.items() if len(values) > 1}
            rows.append(
                {"model": row["model"], "gpu": row["system"], "gpus": row["gpus"], **fields}
                | {"status": row["status"], "reason": row["reason"], "step_seconds": row["step_seconds"]}
                | {"low": step["low"], "expected": step["middle"], "high": step["high"], "tgs": row["tgs"]}
                | {"memory_gib": row["memory"] and row["memory"] / _GIB}
            )
        return rows

    def __len__(self) -> int:
        return len(self.grid)

    def plot(self) -> Any:
        """Returns a matplotlib figure: tokens/s/GPU against memory, a dot a point, by GPU."""
        from projector.search.figure_style import COLOURS, figure, tidy

        picture, (axes,) = figure("speed against memory")
        for colour, gpu in zip(COLOURS * len(self), dict.fromkeys(row["gpu"] for row in self.rows), strict=False):
            ok = [row for row in self.rows if row["gpu"] == gpu and row["status"] == "ok"]
            axes.scatter([row["memory_gib"] for row in ok], [row["tgs"] for row in ok], color=colour, label=gpu)
        tidy(axes, "allocated on the fullest rank (GiB)", "tokens/s/GPU")
        axes.legend(frameon=False)
        return picture

    def __repr__(self) -> str:
        best = max((row for row in self.rows if row["status"] == "ok"), key=lambda row: row["tgs"], default=None)
        if best is None:
            return f"Sweep of {len(self):,} points; none fits"
        where = ", ".join(
            f"{name} {value}" for name, value in takewhile(lambda item: item[0] != "status", best.items())
        )
        return f"Sweep of {len(self):,} points; the fastest: {where}: {best['expected']:.3f} s a step expected"


def _samples(content: Mapping[str, Any], seq_length: Any) -> int:
    """Returns one batch for all points, by the largest model and the most GPUs."""
    from projector.intake.architecture import load_architecture

    models = [load_architecture(str(name)).model for name in _several(content["model"])]
    most = max(models, key=tokens_per_step)
    return samples_per_step(most, max(_several(seq_length)), max(_several(content["gpus"])))


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, (range, tuple)) else value


@contextmanager
def _read(words: Mapping[str, Any], function: str) -> Iterator[tuple[Case, argparse.Namespace]]:
    """Yields the case of ``words`` as the command line reads it; later mistakes, too, are blamed on the words."""
    from projector.cli.inputs import naming_the_flag, read_case

    problems: list[Problem] = []
    given = {name: value for name, value in words.items() if value is not None}
    if type(given.get("gpus", 1)) is not int or given.get("gpus", 1) < 1:
        problems.append(Problem("--gpus", "", given.pop("gpus"), "a whole number above 0"))
    several = given.pop("set", ())
    fields = {name for name in given if field_of(name) is not None}
    options = _flags({name: value for name, value in given.items() if name not in fields}, problems)
    options.set += [f"{name}={_text(given[name])}" for name in given if name in fields]
    options.set += [several] if isinstance(several, str) else list(several)
    try:
        case = or_none(problems, lambda: read_case(options))
        if case is None or problems:
            raise InputError(problems)
        with naming_the_flag(options):
            yield case, options
    except InputError as error:
        raise InputError([_blamed_on_argument(problem, function) for problem in error.problems]) from None


def _flags(words: Mapping[str, Any], problems: list[Problem]) -> argparse.Namespace:
    """Returns the options of words that are flags of the command line and no fields, among them switches of Megatron-LM
    that set several fields."""
    from projector.cli.options import selection
    from projector.cli.parser import parse

    parser = selection()
    options, defaults = parser.parse_args([]), vars(parser.parse_args([]))
    for name, value in words.items():
        flags = [f"--{name.replace('_', '-')}", *([] if value is True else [_text(value)])]
        parsed = or_none(problems, lambda flags=flags: parse(parser, flags))  # type: ignore[misc]
        for key, each in vars(parsed).items() if parsed else ():
            if each != defaults.get(key):
                setattr(options, key, {**options.stated, **each} if key == "stated" else each)
    return options


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple, range)) else str(value)


def _blamed_on_argument(problem: Problem, function: str) -> Problem:
    here = f"{function}()"
    if problem.where == "--set":
        return replace(problem, where=here)
    expected = _FLAG.sub(lambda found: found[1].replace("-", "_") + ("=…" if found[2] else ""), problem.expected)
    if problem.where == "command line" and str(problem.found).startswith("--"):
        expected = expected.replace("a flag", "an argument").replace(", set", "")
        return Problem(here, _argument(str(problem.found)), "an unknown name", expected)
    return replace(problem, where=here, key=_argument(problem.key or problem.where), expected=expected)


def _argument(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")
