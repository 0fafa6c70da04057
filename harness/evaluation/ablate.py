"""Projects measured runs with one mechanism switched off at a time.

Four kinds of thing, all declared by the projector, can be switched off: parameters of its framework profiles, conditions
of their rules, algorithms of collectives, and functions under :func:`projector.mechanism.mechanism`. Each ablation runs
in processes of its own, forked before anything is remembered. A run that a changed profile settles as before is not
projected again.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import projector
from harness import predictors
from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors.ours import Ours, as_run, cluster_of, prediction_of
from harness.predictors.protocol import guarded
from projector import memo
from projector.collectives import algorithms
from projector.dataclass import dataclass
from projector.frameworks import profiles_io
from projector.frameworks.types import Framework, Resolved
from projector.mechanism import DECLARED, Declared
from projector.mechanisms.strategy import STRATEGY
from projector.settle.workload import settle_checked

_ROOM = Path(projector.__file__).parent
Outcome = tuple[Resolved | None, Prediction]
"""The settled workload of a run (None where it was refused), and its prediction."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One thing that can be switched off. ``name``: its name; ``kind``: the kind of declaration; ``off``: switches it
    off in this process; ``lines``: lines of the file that holds it, or lines of the projector that name it. ``settles``:
    it acts before a workload is settled, and nowhere else."""

    name: str
    kind: str
    off: Callable[[], None]
    lines: int
    settles: bool = False


def declared() -> list[Ablation]:
    """Returns everything that can be switched off, sorted by kind and name."""
    import projector.projection  # noqa: F401  (a function is declared once its module is there)

    ablations = [*_parameters(), *_conditions(), *_algorithms(), *map(_function_ablation, DECLARED)]
    return sorted(ablations, key=lambda ablation: (ablation.kind, ablation.name))


def projected(
    runs: Sequence[MeasuredRun], ablation: Ablation | None, jobs: int, before: Mapping[str, Outcome]
) -> dict[str, Outcome]:
    """Returns the outcomes of ``runs`` by run id, with ``ablation`` switched off, in ``jobs`` processes. ``before``: the
    outcomes with everything on; empty when those are made."""
    known = before if ablation is not None and ablation.settles else {}
    with multiprocessing.get_context("fork").Pool(jobs, _begin, (runs, ablation, known)) as pool:
        outcomes = pool.map(_outcome, range(len(runs)), chunksize=max(1, len(runs) // (jobs * 8)))
    return {run.id: known[run.id] if outcome is None else outcome for run, outcome in zip(runs, outcomes, strict=True)}


_RUNS: list[MeasuredRun] = []
_KNOWN: dict[str, Outcome] = {}


def _begin(runs: Sequence[MeasuredRun], ablation: Ablation | None, known: Mapping[str, Outcome]) -> None:
    """Begins a worker process: forgets everything remembered and switches ``ablation`` off."""
    memo.clear_all_caches()
    _RUNS[:] = runs
    _KNOWN.update(known)
    if ablation is not None:
        ablation.off()


def _outcome(index: int) -> Outcome | None:
    """Returns the outcome of one run; None where it is settled as it was with everything on."""
    run = _RUNS[index]
    tool = predictors.load(("simulate",))[0]
    assert isinstance(tool, Ours)
    if run.id in _KNOWN:
        try:
            cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
            same = settle_checked(as_run(run), cluster, published=run.measured.exists) == _KNOWN[run.id][0]
        except Exception:  # refused, or not a projection any more: asked again below, where it says why
            same = False
        if same:
            return None
    resolved: list[Resolved] = []

    def project() -> Prediction:
        projection = tool.projection(run)
        resolved.append(projection.resolved)
        return prediction_of(projection, run, projection.cluster)

    prediction = guarded(run, project)
    return (resolved[0] if resolved else None), prediction


def _change_profiles(change: Callable[[Framework], Framework]) -> None:
    """Replaces every framework profile by what ``change`` makes of it."""
    load = profiles_io.load
    _replace_everywhere(load, cache(lambda name: change(load(name))))


def _replace_everywhere(old: object, new: object) -> None:
    """Puts ``new`` in the place of ``old`` under every name that a module of the projector has for it."""
    for module in [module for name, module in sys.modules.items() if name.startswith("projector")]:
        for name in [name for name, value in vars(module).items() if value is old]:
            setattr(module, name, new)


def _parameters() -> Iterator[Ablation]:
    """Yields one ablation for each parameter that a profile states (the value of its strategy holds then), and one for
    all parameters of a mechanism together. A factor is 1 where it is off, since a strategy's value is not its absence."""
    by_place: dict[str, set[str]] = {}
    for framework in map(profiles_io.load, profiles_io.names()):
        for part in (framework.execution, *(rule.get("execution", {}) for rule in framework.rules)):
            for place, stated in part.items():
                by_place.setdefault(place, set()).update(set(stated) - {STRATEGY})
    for place, names in by_place.items():
        for name in names:
            yield _profile_ablation(f"{place}.{name}", "parameter", _without_parameters(place, [name]), [name])
        if len(names) > 1:
            yield _profile_ablation(f"{place}.*", "parameters", _without_parameters(place, names), names)


def _profile_ablation(name: str, kind: str, change: Callable[[Framework], Framework], words: Iterable[str]) -> Ablation:
    lines = sum(_lines_by_word()[word] for word in words)
    return Ablation(name=name, kind=kind, off=lambda: _change_profiles(change), lines=lines, settles=True)


def _without_parameters(place: str, names: Iterable[str]) -> Callable[[Framework], Framework]:
    """Returns a function that removes parameters ``names`` of ``place`` from a framework."""
    removed = frozenset(names)

    def without(execution: Mapping[str, Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
        others = {name: value for name, value in execution.get(place, {}).items() if name not in removed}
        others |= {name: 1.0 for name in removed if name.endswith("_factor")}
        return {**execution, place: others} if place in execution else dict(execution)

    def change(framework: Framework) -> Framework:
        rules = tuple({**rule, "execution": without(rule.get("execution", {}))} for rule in framework.rules)
        return replace(framework, execution=without(framework.execution), rules=rules)

    return change


def _conditions() -> Iterator[Ablation]:
    """Yields one ablation for each word under ``when`` of a rule: no rule that asks for it holds."""
    rules = [rule for name in profiles_io.names() for rule in profiles_io.load(name).rules]
    for word in sorted({word for rule in rules for word in rule["when"]}):

        def change(framework: Framework, word: str = word) -> Framework:
            return replace(framework, rules=tuple(rule for rule in framework.rules if word not in rule["when"]))

        yield _profile_ablation(f"when {word}", "rules", change, [word])


def _algorithms() -> Iterator[Ablation]:
    """Yields one ablation for each file of collective algorithms without which every kind still has an algorithm."""
    offered = algorithms.ALGORITHMS
    for module in sorted({algorithm.__module__ for choices in offered.values() for algorithm in choices}):
        others = {kind: tuple(a for a in those if a.__module__ != module) for kind, those in offered.items()}
        if all(others.values()):
            off = partial(_replace_everywhere, offered, others)
            yield Ablation(name=module.rpartition(".")[2], kind="collective", off=off, lines=_lines_of_module(module))


def _function_ablation(mechanism: Declared) -> Ablation:
    def off() -> None:
        answer = mechanism.off if callable(mechanism.off) else lambda *_, **__: mechanism.off
        _replace_everywhere(getattr(sys.modules[mechanism.module], mechanism.name), answer)

    name = f"{mechanism.module.removeprefix('projector.')}.{mechanism.name}"
    return Ablation(name=name, kind="mechanism", off=off, lines=_lines_of_module(mechanism.module))


def _lines_of_module(module: str) -> int:
    path = Path(str(sys.modules[module].__file__))
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def _lines_by_word() -> Counter[str]:
    """Returns, for each word in the projector's code and profiles, the number of lines that contain it."""
    counts: Counter[str] = Counter()
    for path in (*_ROOM.rglob("*.py"), *(_ROOM / "frameworks").rglob("*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            counts.update(set(re.findall(r"\w+", line)))
    return counts
