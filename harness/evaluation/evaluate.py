"""Cases × predictors × fits → result rows. The one loop of the harness; order is kept and nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from harness import predictors
from harness.calibrate import calibration, folds
from harness.calibrate.folds import Bench, Fold
from harness.contracts.estimates import Estimate, Factor, Observation
from harness.contracts.results import BASELINE, FITS, Evaluation, Row, RunFacts, parted
from harness.contracts.runs import BREAKDOWN, MeasuredRun, Prediction
from harness.contracts.sources import publisher
from harness.evaluation.facts import facts_of
from harness.evaluation.peaks import undecided
from harness.predictors.protocol import Predictor
from harness.predictors.remembered import Remembering
from projector import experience
from projector.io.kept import Shelf
from projector.kernels.settings import DEFAULT, Settings

__all__ = ["Evaluation", "Selected", "evaluate", "row_of", "tools_for"]

Progress = Callable[[int, int], None]

# Below this many projections a second process costs more than it saves.
MIN_PARALLEL = 64


@dataclass(frozen=True, slots=True)
class Selected:
    """A run as one suite selects it (``suite`` is empty for runs given by file)."""

    suite: str
    run: MeasuredRun


def evaluate(
    selected: Sequence[Selected],
    tools: Sequence[Predictor],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    evidence: Mapping[str, Sequence[Observation]] | None = None,
) -> Evaluation:
    """Project every selected run with every predictor, correct it by what was measured elsewhere, and return the rows.

    ``evidence``: what corrections and intervals are learnt from, by predictor; a predictor without any, or None: from the
    selected runs. A run that several suites select is projected once. ``progress(done, total)`` is called after each
    projection.
    """
    runs = {s.run.id: s.run for s in selected}
    facts = {run.id: facts_of(run) for run in runs.values()}
    tasks = [(tool, run) for run in runs.values() for tool in tools]
    made = _predict_all(tasks, jobs, progress)
    predictions = {(tool.name, run.id): p for (tool, run), p in zip(tasks, made, strict=True)}
    known = evidence or {}
    fitted = {
        tool.name: _fit(_observed(tool, runs.values(), facts, predictions), known.get(tool.name)) for tool in tools
    }
    rows = [
        row_of(s, tool.name, fit, predictions[tool.name, s.run.id], fitted[tool.name].by_fit[fit].get(s.run.id))
        for s in selected
        for tool in tools
        for fit in FITS
    ]
    held = {(name, run_id): f for name, fits in fitted.items() for run_id, f in fits.by_fit["heldout"].items()}
    sound, doubted = parted(rows)
    return Evaluation(
        rows=sound,
        doubted=doubted,
        facts=facts,
        factors={(name, key): f for name, fits in fitted.items() for key, f in fits.by_key.items()},
        fallbacks={place: estimate.key for place, estimate in held.items() if estimate.fallback},
        heldout=held,
        laws={name: fits.fold for name, fits in fitted.items()},
        observed={name: fits.seen for name, fits in fitted.items()},
    )


def without_profiles(runs: Sequence[MeasuredRun], own: Evaluation, name: str, *, jobs: int = 1) -> Evaluation:
    """``runs`` with one predictor, each as a code base that has no profile; corrected by what ``own`` observed elsewhere."""
    bare = [replace(run, stack=replace(run.stack, framework=experience.UNKNOWN)) for run in runs if run.measured.tgs]
    tools = [tool for tool in tools_for("simulate") if tool.name == name]
    return evaluate([Selected("", run) for run in bare], tools, jobs=jobs, evidence=own.observed)


@dataclass(frozen=True)
class _Fitted:
    """Of one predictor: what its projections teach, the fold that leaves nothing out, and estimates by fit and run id."""

    seen: tuple[Observation, ...]
    fold: Fold
    by_fit: Mapping[str, Mapping[str, Estimate]]

    @property
    def by_key(self) -> dict[str, Factor]:
        """The factor of each finest key, the mean over the cells of its rows, and the spread that it leaves."""
        rows: dict[str, list[Observation]] = {}
        for o in self.seen:
            if math.isfinite(o.log_ratio) and o.run_id in self.by_fit["shipped"]:
                rows.setdefault(o.levels[0], []).append(o)
        logs = self.by_fit["shipped"]
        return {key: calibration.mean_factor(some, [logs[o.run_id].log for o in some]) for key, some in rows.items()}


_SHELF = Shelf("fits", _Fitted)


def _fit(seen: Sequence[Observation], evidence: Sequence[Observation] | None) -> _Fitted:
    """A run of a source, or of a family, that the evidence does not know is estimated by all of it; of a device outside the
    catalogue it says nothing."""
    teaching = seen if evidence is None else evidence
    asked = seen if evidence is None else [o for o in seen if "vendor:" not in o.levels]
    content = repr((seen, evidence))
    if (known := _SHELF.recall(content)) is not None:
        return known
    benches = {"heldout": Bench.of(teaching, folds.by_source), "heldout-family": Bench.of(teaching, folds.by_family)}
    fold = benches["heldout"].fold(None)
    held = {fit: bench.held_out(asked=asked) for fit, bench in benches.items()}
    shipped = {o.run_id: fold.estimate(o) for o in asked}
    made = _Fitted(tuple(seen), fold, {"uncalibrated": {}, "shipped": shipped, **held})
    _SHELF.keep(content, made)
    return made


def _observed(
    tool: Predictor,
    runs: Iterable[MeasuredRun],
    facts: Mapping[str, RunFacts],
    predictions: Mapping[tuple[str, str], Prediction],
) -> list[Observation]:
    """What can be projected; cases (nothing measured) and doubted runs among it are estimated and teach nothing."""
    projected = [(run, predictions[tool.name, run.id]) for run in runs]
    return [_observation(tool, run, facts[run.id], p, p.step_seconds) for run, p in projected if p.step_seconds]


def _observation(tool: Predictor, run: MeasuredRun, facts: RunFacts, p: Prediction, step: float) -> Observation:
    return Observation(
        run_id=run.id,
        family=run.model.family if run.model else "",
        framework=run.stack.framework,
        levels=tool.levels(run, facts),
        log_ratio=math.log(_tgs(run, step) / run.measured.tgs) if run.measured.tgs and not run.doubt else math.nan,
        gpu=run.gpu,
        traits=experience.traits(step, p.breakdown, (*run.assumed, *p.assumed), run.recipe.cp if run.recipe else 1),
        source=publisher(facts.source),
    )


def row_of(selected: Selected, predictor: str, fit: str, prediction: Prediction, estimate: Estimate | None) -> Row:
    """The row of one prediction, its step time (and every part of it) as the estimate has it, with its interval."""
    run, p = selected.run, prediction
    factor = 1.0 if estimate is None else estimate.value
    step = None if p.step_seconds is None else p.step_seconds * factor
    tgs = None if step is None else _tgs(run, step)
    m = run.measured
    figures: dict[str, Any] = {name: p.breakdown[name] * factor for name in BREAKDOWN if name in p.breakdown}
    if estimate is not None and tgs is not None and math.isfinite(estimate.half):
        figures |= {"interval_low": tgs * math.exp(-estimate.half), "interval_high": tgs * math.exp(estimate.half)}
    return Row(
        run_id=run.id,
        suite=selected.suite,
        group=run.group,
        gpu=run.gpu,
        gpus=run.gpus,
        model=run.model_name or (run.model.name if run.model else ""),
        family=run.model.family if run.model else "",
        precision=run.recipe.precision if run.recipe else "",
        framework=run.stack.framework,
        predictor=predictor,
        fit=fit,
        status=p.status,
        reason=p.reason,
        assumed="; ".join(dict.fromkeys((*run.assumed, *p.assumed))),
        doubt=run.doubt,
        projected_step_seconds=step,
        measured_step_seconds=m.step_seconds,
        projected_tgs=tgs,
        measured_tgs=m.tgs,
        error=_relative(tgs, m.tgs),
        projected_memory_gib=p.memory_gib,
        measured_memory_gib=m.peak_memory_gib,
        memory_error=None if undecided((*run.assumed, *p.assumed)) else _relative(p.memory_gib, m.peak_memory_gib),
        measured_share=p.measured_share,
        seconds_to_project=p.seconds_to_project if p.step_seconds is not None else None,
        **figures,
    )


def _tgs(run: MeasuredRun, step_seconds: float) -> float:
    return run.workload.tokens_per_step / step_seconds / run.gpus


def _relative(projected: float | None, measured: float | None) -> float | None:
    return None if projected is None or not measured else projected / measured - 1.0


def _predict_all(
    tasks: Sequence[tuple[Predictor, MeasuredRun]], jobs: int, progress: Progress | None
) -> list[Prediction]:
    """In the order of ``tasks``; in further processes what costs, where there is enough of it to repay them."""
    made = [tool.recalled(run) if isinstance(tool, Remembering) else None for tool, run in tasks]
    missing = [task for task, known in zip(tasks, made, strict=True) if known is None]
    if jobs <= 1 or sum(tool.name != BASELINE for tool, _ in missing) < MIN_PARALLEL:
        return _filled(made, map(_predict_one, missing), progress)
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        chunk = max(1, len(missing) // (jobs * 16))
        return _filled(made, pool.map(_predict_one, missing, chunksize=chunk), progress)


def _predict_one(task: tuple[Predictor, MeasuredRun]) -> Prediction:
    tool, run = task
    return tool.predict(run)


def _filled(
    known: Sequence[Prediction | None], rest: Iterator[Prediction], progress: Progress | None
) -> list[Prediction]:
    """``known`` with the next of ``rest`` for each None."""
    kept: list[Prediction] = []
    for each in known:
        kept.append(next(rest) if each is None else each)
        if progress:
            progress(len(kept), len(known))
    return kept


def tools_for(mode: str, extra: Iterable[str] = (), settings: Settings = DEFAULT) -> tuple[Predictor, ...]:
    """The predictors of ``--mode`` (``simulate``, ``benchmark``, ``both``), those of ``--with``, and the baseline."""
    ours = predictors.MODES if mode == "both" else (mode,)
    return predictors.load((*ours, *extra, predictors.BASELINE), settings)
