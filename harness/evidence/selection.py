"""Reads the ``select`` list of a suite, which says which measured runs the suite takes.

Each entry adds the runs that match *all* of its keys; a key holds a name, a glob, or a list of them (any of which may
match). ``runs`` names files of the runs folder (without suffix) or a path relative to the suite; the other keys look
into the runs.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness.contracts.runs import MeasuredRun
from harness.evidence import dataset
from harness.evidence.runs_of import repeated, runs_of
from projector import frameworks
from projector.errors import InputError, Problem, collecting_into, nearest
from projector.hardware import catalogue, user_files
from projector.workload import zoo

FIELDS: dict[str, Callable[[MeasuredRun], str]] = {
    "id": lambda run: run.id,
    "model": lambda run: run.model.name if run.model else run.model_name,
    "family": lambda run: run.model.family if run.model else "",
    "gpu": lambda run: run.gpu,
    "framework": lambda run: run.stack.framework,
    "precision": lambda run: run.recipe.precision if run.recipe else "",
    "group": lambda run: run.group,
}
#: The names that a key of an entry may have, whatever runs there are.
_KNOWN: dict[str, Callable[[], Iterable[str]]] = {
    "gpu": catalogue.gpu_names,
    "model": zoo.names,
    "framework": frameworks.names,
}
LOG_KEYS = ("log", "cluster", "recipe")
KEYS = ("runs", *FIELDS, *LOG_KEYS)

Selection = tuple[list[MeasuredRun], list[Path], list[Problem]]


def select(value: object, where: str, base: Path, folder: Path) -> Selection:
    """Returns the runs (each id once, in order of selection), the files they came from, and every mistake."""
    if value is None:
        return [], [], []
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [], [], [Problem(where, "select", value, "a list of entries such as {model: [mixtral*], gpu: [mi300x]}")]
    chosen: dict[str, MeasuredRun] = {}
    files: dict[Path, None] = {}
    problems: list[Problem] = []
    for i, entry in enumerate(value):
        key = f"select[{i}]"
        wrong = _entry_problems(entry, where, key)
        if wrong:
            problems += wrong
            continue
        read = _select_log if "log" in entry else _select_runs
        runs, used, wrong = read(entry, where, key, base, folder)
        problems += [p for p in wrong if p not in problems]
        files.update(dict.fromkeys(used))
        for run in runs:
            chosen.setdefault(run.id, run)
    return list(chosen.values()), list(files), problems


def _entry_problems(entry: object, where: str, key: str) -> list[Problem]:
    if not isinstance(entry, Mapping) or not entry:
        return [Problem(where, key, entry, "a mapping with one or more of " + ", ".join(KEYS))]
    problems = []
    for name, value in entry.items():
        if name not in KEYS:
            problems.append(Problem(where, f"{key}.{name}", value, nearest(str(name), KEYS)))
        elif name in LOG_KEYS and not (isinstance(value, str) and value):
            problems.append(Problem(where, f"{key}.{name}", value, "text"))
        elif not _patterns(value):
            problems.append(Problem(where, f"{key}.{name}", value, "a name, a glob, or a list of them"))
        elif (name in LOG_KEYS) != ("log" in entry):
            problems.append(Problem(where, f"{key}.{name}", value, f"only {', '.join(LOG_KEYS)} beside log"))
    return problems


def _patterns(value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(item, str) and item for item in items):
        return ()
    return tuple(items)


def _select_runs(entry: Mapping[str, object], where: str, key: str, base: Path, folder: Path) -> Selection:
    files, problems = _files(entry.get("runs"), where, key, base, folder)
    runs, wrong = read_all(files)
    problems += wrong
    if problems:
        return [], files, problems
    wanted = {name: _patterns(entry[name]) for name in FIELDS if name in entry}
    for name, patterns in wanted.items():
        problems += _unmatched(name, patterns, runs, where, f"{key}.{name}")
    matching = [
        run
        for run in runs
        if all(any(fnmatch.fnmatchcase(FIELDS[name](run), each) for each in wanted[name]) for name in wanted)
    ]
    if not matching and not problems:
        problems.append(Problem(where, key, dict(entry), "a selection that at least one measured run matches"))
    return matching, files, problems


def _select_log(entry: Mapping[str, str], where: str, key: str, base: Path, _: Path) -> Selection:
    """Reads the runs of a log beside the suite. ``cluster``: where it ran; ``recipe``: what the log does not say."""
    from harness.evidence.ingest.context import read_context

    path = base / entry["log"]
    name = user_files.beside(entry["cluster"], where) if "cluster" in entry else None
    if name is not None and not catalogue.knows_cluster(name):
        return [], [], [Problem(where, f"{key}.cluster", name, nearest(name, tuple(catalogue.cluster_names())))]
    try:
        gpu = catalogue.cluster(name).gpu.name if name is not None else None
        runs = runs_of(path, read_context(base / entry["recipe"] if "recipe" in entry else None, gpu))
    except InputError as error:
        return [], [], list(error.problems)
    if name is not None:
        gpu = name if catalogue.is_path(name) else gpu
        runs = tuple(replace(run, gpu=gpu or run.gpu, cluster=name) for run in runs)
    return list(runs), [path], []


def _unmatched(name: str, patterns: Iterable[str], runs: Sequence[MeasuredRun], where: str, key: str) -> list[Problem]:
    """Reports patterns that match neither a run nor a known name: a typing slip would narrow a suite silently."""
    present = {FIELDS[name](run) for run in runs} - {""}
    known = tuple(present.union(_KNOWN[name]() if name in _KNOWN else ()))
    return [
        Problem(where, key, pattern, nearest(pattern, known) if known else "a value that some run has")
        for pattern in patterns
        if not fnmatch.filter(known, pattern)
    ]


def _files(value: object, where: str, key: str, base: Path, folder: Path) -> tuple[list[Path], list[Problem]]:
    """Returns the files that ``runs`` names (all of the folder where it is absent), and every mistake."""
    stored = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if value is None:
        if stored:
            return list(stored.values()), []
        expected = "a folder of measured runs, as --measured FOLDER may name one"
        return [], [Problem(where, key, f"no *.yaml in {folder}", expected)]
    files: list[Path] = []
    problems: list[Problem] = []
    for pattern in _patterns(value):
        beside = base / pattern
        matching = [path for stem, path in stored.items() if fnmatch.fnmatchcase(stem, pattern)]
        if not matching and pattern.endswith((".yaml", ".yml")) and beside.is_file():
            matching = [beside]
        if not matching:
            expected = nearest(pattern, tuple(stored)) if stored else f"a file of {folder}, or a path from the suite"
            problems.append(Problem(where, f"{key}.runs", pattern, expected))
        files += matching
    return list(dict.fromkeys(files)), problems


def read_all(files: Iterable[Path]) -> tuple[list[MeasuredRun], list[Problem]]:
    """Returns the runs of several files in order, and every mistake, ids that two files have included."""
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    origin: dict[str, Path] = {}
    for path in files:
        with collecting_into(problems):
            read = read_runs(path)
            problems += repeated(read, path, origin)
            runs += read
    return runs, problems


@cache
def read_runs(path: Path) -> tuple[MeasuredRun, ...]:
    """Reads the runs of one strict file once per process; the gate reports models that the zoo lacks."""
    return tuple(dataset.read(path, lenient=True))


def of(run: MeasuredRun) -> str:
    """Returns a run's strategy in the spelling that is compared (``maximum_performance``); empty where it names none."""
    return _plain(str(run.switches.get("strategy", "")))


def chosen(runs: Sequence[MeasuredRun], names: Sequence[str]) -> list[MeasuredRun]:
    """Returns the runs of these strategies; all without ``names``. Raises :class:`InputError` for names that no run has."""
    if not names:
        return list(runs)
    known = sorted({of(run) for run in runs} - {""})
    unknown = [name for name in names if _plain(name) not in known]
    if unknown:
        expected = "rows that name a strategy: there are none"
        raise InputError(
            Problem("command line", "--strategy", name, nearest(_plain(name), known) if known else expected)
            for name in unknown
        )
    wanted = {_plain(name) for name in names}
    return [run for run in runs if of(run) in wanted]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")
