"""A suite: a selection over measured runs, cases with nothing measured yet, and the gates they must pass.

:func:`load` reads strictly and reports every mistake of the file in one :class:`InputError`. Keys of the file:
``suite``, ``title``, ``select`` (:mod:`harness.evidence.selection`), ``cases`` (:mod:`harness.evidence.cases`),
``measure`` (trainings that are run here first: :mod:`harness.measure.spec`), ``gate`` (mode → threshold → limit).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from harness.contracts.runs import MeasuredRun
from harness.evidence import cases, selection, shelf
from harness.measure import spec
from harness.measure.spec import Plan
from harness.predictors import MODES
from harness.score.gate import parse_limits
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, collecting_into, nearest, raise_all
from projector.io.files import read_yaml

KEYS = ("suite", "title", "select", "cases", "measure", "gate")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A validated suite. ``runs``: selected runs, then cases, each id once. ``inputs``: the files that it was read from.

    ``plan``: trainings that make more of its runs when the suite is run.
    """

    name: str
    title: str
    path: Path
    runs: tuple[MeasuredRun, ...]
    gate: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    inputs: tuple[Path, ...] = ()
    plan: Plan = field(default_factory=Plan)


def load(path: Path, runs_folder: Path | None = None) -> Suite:
    """Reads the suite at ``path``; selects runs of ``runs_folder``, by default ``../measured/runs`` beside the suite."""
    where = str(path)
    document = read_yaml(path, "a suite file: a mapping with the key suite")
    if document is None:
        raise InputError([Problem(where, "", "an empty file", "a mapping with the key suite")])
    if not isinstance(document, Mapping):
        raise InputError([Problem(where, "", type(document).__name__, "a mapping with the key suite")])
    problems = [Problem(where, str(k), document[k], nearest(str(k), KEYS)) for k in document if k not in KEYS]
    problems += _text_problems(document, where)
    gate, wrong_gate = parse_gate(document.get("gate"), where)
    folder = runs_folder or Path(os.path.normpath(path.parent / ".." / "measured" / "runs"))
    selected, inputs, wrong_selection = selection.select(document.get("select"), where, path.parent, folder)
    case_runs, wrong_cases = cases.parse(document.get("cases"), where)
    plan, wrong_plan = spec.parse(document.get("measure"), where)
    problems += wrong_gate + wrong_selection + wrong_cases + wrong_plan + _repeated(selected, case_runs, plan, where)
    if not problems and not (selected or case_runs or plan.jobs):
        expected = "a select, cases or measure list with at least one entry"
        problems.append(Problem(where, "select", "nothing to project", expected))
    raise_all(problems)
    return Suite(
        name=str(document["suite"]),
        title=str(document.get("title", document["suite"])),
        path=path,
        runs=(*selected, *case_runs),
        gate=gate,
        inputs=(path, *inputs),
        plan=plan,
    )


def load_all(paths: list[Path], runs_folder: Path | None = None) -> list[Suite]:
    """Reads several suites, by file or by the name of one of the project's own (``moe``). Raises one :class:`InputError`
    with the mistakes of all; two suites of one name are a mistake."""
    suites: list[Suite] = []
    problems: list[Problem] = []
    for path in dict.fromkeys(paths):
        with collecting_into(problems):
            suites.append(load(shelf.suite(path), runs_folder))
    counts = Counter(s.name for s in suites)
    problems += [
        Problem(str(s.path), "suite", s.name, "a name that no other suite of this run has")
        for s in suites
        if counts[s.name] > 1
    ]
    raise_all(problems)
    return suites


def parse_gate(value: object, where: str) -> tuple[dict[str, dict[str, float]], list[Problem]]:
    """Returns the gate of a suite by mode, and what is wrong with the gate."""
    if value is None:
        return {}, []
    if not isinstance(value, Mapping):
        return {}, [Problem(where, "gate", value, "a mapping of modes: " + ", ".join(MODES))]
    gate: dict[str, dict[str, float]] = {}
    problems: list[Problem] = []
    for mode, limits in value.items():
        if mode not in MODES:
            problems.append(Problem(where, f"gate.{mode}", mode, nearest(str(mode), MODES)))
        thresholds, wrong = parse_limits(limits, where, f"gate.{mode}")
        problems += wrong
        if isinstance(limits, Mapping):
            gate[str(mode)] = thresholds
    return gate, problems


def _text_problems(document: Mapping[object, object], where: str) -> list[Problem]:
    problems = []
    name = document.get("suite")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        problems.append(Problem(where, "suite", name, "a name of letters, digits, dots, dashes and underscores"))
    if "title" in document and not isinstance(document["title"], str):
        problems.append(Problem(where, "title", document["title"], "text"))
    return problems


def _repeated(selected: list[MeasuredRun], case_runs: list[MeasuredRun], plan: Plan, where: str) -> list[Problem]:
    known = {run.id for run in selected}
    problems = [
        Problem(where, f"cases[{i}].id", run.id, "an id that no selected run has")
        for i, run in enumerate(case_runs)
        if run.id in known
    ]
    known |= {run.id for run in case_runs}
    return problems + [
        Problem(where, f"measure: {job.id}", job.id, "an id that no selected run and no case has")
        for job in plan.jobs
        if job.id in known
    ]
