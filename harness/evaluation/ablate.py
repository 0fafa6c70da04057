"""Projects measured runs with one mechanism switched off at a time.

What can be switched off is what the projector declares: parameters of its framework profiles, conditions of their rules,
algorithms of collectives, and functions under :func:`projector.mechanism.mechanism`. Each runs in processes of
its own, forked before anything is remembered. A run that a changed profile settles as before is not projected again.
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
from projector.settle.workload import settled

_ROOM = Path(projector.__file__).parent
Outcome = tuple[Resolved | None, Prediction]
"""What a run was settled to (None where it was refused), and what is said of it."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """``name``: what is switched off; ``kind``: what declares it; ``off``: switches it off in this process; ``lines``: of
    the file that holds it, or lines of the projector that name it. ``settles``: it acts before a workload is settled, and
    nowhere else."""

    name: str
    kind: str
    off: Callable[[], None]
    lines: int
    settles: bool = False


def declared() -> list[Ablation]:
    """Everything that can be switched off, by kind and name."""
    import projector.projection  # noqa: F401  (a function is declared once its module is there)

    found = [*_parameters(), *_conditions(), *_algorithms(), *map(_function, DECLARED)]
    return sorted(found, key=lambda each: (each.kind, each.name))


def projected(
    runs: Sequence[MeasuredRun], ablation: Ablation | None, jobs: int, before: Mapping[str, Outcome]
) -> dict[str, Outcome]:
    """Outcomes by run id. ``before``: those with everything on, empty for their own making."""
    known = before if ablation is not None and ablation.settles else {}
    with multiprocessing.get_context("fork").Pool(jobs, _begin, (runs, ablation, known)) as pool:
        made = pool.map(_outcome, range(len(runs)), chunksize=max(1, len(runs) // (jobs * 8)))
    return {run.id: known[run.id] if each is None else each for run, each in zip(runs, made, strict=True)}


_RUNS: list[MeasuredRun] = []
_KNOWN: dict[str, Outcome] = {}


def _begin(runs: Sequence[MeasuredRun], ablation: Ablation | None, known: Mapping[str, Outcome]) -> None:
    """In a new process: nothing is remembered, and ``ablation`` is off."""
    memo.forget_all()
    _RUNS[:] = runs
    _KNOWN.update(known)
    if ablation is not None:
        ablation.off()


def _outcome(index: int) -> Outcome | None:
    """What one run comes to; None where it is settled as it was with everything on."""
    run = _RUNS[index]
    tool = predictors.load(("simulate",))[0]
    assert isinstance(tool, Ours)
    if run.id in _KNOWN:
        try:
            cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
            same = settled(as_run(run), cluster, published=run.measured.exists) == _KNOWN[run.id][0]
        except Exception:  # refused, or not a projection any more: asked again below, where it says why
            same = False
        if same:
            return None
    resolved: list[Resolved] = []

    def project() -> Prediction:
        made = tool.projection(run)
        resolved.append(made.resolved)
        return prediction_of(made, run, made.cluster)

    prediction = guarded(run, project)
    return (resolved[0] if resolved else None), prediction


def _profiles(change: Callable[[Framework], Framework]) -> None:
    """Every framework as ``change`` makes it."""
    load = profiles_io.load
    _in_place_of(load, cache(lambda name: change(load(name))))


def _in_place_of(old: object, new: object) -> None:
    """``new`` for ``old`` under every name that a module of the projector has for it."""
    for module in [each for name, each in sys.modules.items() if name.startswith("projector")]:
        for name in [name for name, value in vars(module).items() if value is old]:
            setattr(module, name, new)


def _parameters() -> Iterator[Ablation]:
    """One for each parameter that a profile states (the value of its strategy holds then), one for all of a mechanism."""
    by_place: dict[str, set[str]] = {}
    for framework in map(profiles_io.load, profiles_io.names()):
        for part in (framework.execution, *(rule.get("execution", {}) for rule in framework.rules)):
            for place, stated in part.items():
                by_place.setdefault(place, set()).update(set(stated) - {STRATEGY})
    for place, names in by_place.items():
        for name in names:
            yield _of_profiles(f"{place}.{name}", "parameter", _less(place, [name]), [name])
        if len(names) > 1:
            yield _of_profiles(f"{place}.*", "parameters", _less(place, names), names)


def _of_profiles(name: str, kind: str, change: Callable[[Framework], Framework], words: Iterable[str]) -> Ablation:
    lines = sum(_naming()[word] for word in words)
    return Ablation(name=name, kind=kind, off=lambda: _profiles(change), lines=lines, settles=True)


def _less(place: str, names: Iterable[str]) -> Callable[[Framework], Framework]:
    """A framework that does not state parameters ``names`` of ``place``."""
    gone = frozenset(names)

    def without(execution: Mapping[str, Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
        kept = {name: value for name, value in execution.get(place, {}).items() if name not in gone}
        return {**execution, place: kept} if place in execution else dict(execution)

    def change(framework: Framework) -> Framework:
        rules = tuple({**rule, "execution": without(rule.get("execution", {}))} for rule in framework.rules)
        return replace(framework, execution=without(framework.execution), rules=rules)

    return change


def _conditions() -> Iterator[Ablation]:
    """One for each word under ``when`` of a rule: no rule that asks for it holds."""
    rules = [rule for name in profiles_io.names() for rule in profiles_io.load(name).rules]
    for word in sorted({word for rule in rules for word in rule["when"]}):

        def change(framework: Framework, word: str = word) -> Framework:
            return replace(framework, rules=tuple(rule for rule in framework.rules if word not in rule["when"]))

        yield _of_profiles(f"when {word}", "rules", change, [word])


def _algorithms() -> Iterator[Ablation]:
    """One for each file of algorithms of collectives without which every kind that it offers still has one."""
    offered = algorithms.ALGORITHMS
    for module in sorted({each.__module__ for those in offered.values() for each in those}):
        left = {kind: tuple(a for a in those if a.__module__ != module) for kind, those in offered.items()}
        if all(left.values()):
            off = partial(_in_place_of, offered, left)
            yield Ablation(name=module.rpartition(".")[2], kind="collective", off=off, lines=_lines(module))


def _function(found: Declared) -> Ablation:
    def off() -> None:
        answer = found.off if callable(found.off) else lambda *_, **__: found.off
        _in_place_of(getattr(sys.modules[found.module], found.name), answer)

    name = f"{found.module.removeprefix('projector.')}.{found.name}"
    return Ablation(name=name, kind="mechanism", off=off, lines=_lines(found.module))


def _lines(module: str) -> int:
    path = Path(str(sys.modules[module].__file__))
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def _naming() -> Counter[str]:
    """Lines of the projector's code and profiles by the words in them."""
    found: Counter[str] = Counter()
    for path in (*_ROOM.rglob("*.py"), *(_ROOM / "frameworks").rglob("*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found.update(set(re.findall(r"\w+", line)))
    return found
