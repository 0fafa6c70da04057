"""Cases × predictors × fits → result rows. The one loop of the harness; order is kept and nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness import predictors
from harness.calibrate import calibration, folds, observe
from harness.calibrate.calibration import Observation
from harness.calibrate.folds import Fold
from harness.contracts.estimates import Estimate, Factor
from harness.contracts.results import FITS, Evaluation, Row, RunFacts
from harness.contracts.runs import BREAKDOWN, MeasuredRun, Prediction
from harness.evaluation.facts import facts_of
from harness.predictors.protocol import Predictor
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
    selected: Sequence[Selected], tools: Sequence[Predictor], *, jobs: int = 1, progress: Progress | None = None
) -> Evaluation:
    """Project every selected run with every predictor, fit the factors on all of them, and return the rows.

    A run that several suites select is projected once. ``progress(done, total)`` is called after each projection.
    """
    runs = {s.run.id: s.run for s in selected}
    facts = {run.id: facts_of(run) for run in runs.values()}
    tasks = [(tool, run) for run in runs.values() for tool in tools]
    made = _predict_all(tasks, jobs, progress)
    predictions = {(tool.name, run.id): p for (tool, run), p in zip(tasks, made, strict=True)}
    fitted = {tool.name: _fit(tool, runs.values(), facts, predictions) for tool in tools}
    rows = [
        row_of(s, tool.name, fit, predictions[tool.name, s.run.id], fitted[tool.name].estimate(fit, s.run.id))
        for s in selected
        for tool in tools
        for fit in FITS
    ]
    held = {(name, run_id): f for name, fits in fitted.items() for run_id, f in fits.heldout.items()}
    return Evaluation(
        rows=tuple(rows),
        facts=facts,
        factors={(name, key): f for name, fits in fitted.items() for key, f in fits.by_key.items()},
        fallbacks={
            (name, run_id): f.key for name, fits in fitted.items() for run_id, f in fits.heldout.items() if f.fallback
        },
        heldout=held,
        laws={name: fits.fold for name, fits in fitted.items()},
    )


@dataclass(frozen=True)
class _Fitted:
    by_key: Mapping[str, Factor]
    fold: Fold
    calibrated: Mapping[str, Estimate]
    heldout: Mapping[str, Estimate]

    def estimate(self, fit: str, run_id: str) -> Estimate | None:
        fitted = {"calibrated": self.calibrated, "heldout": self.heldout}.get(fit, {})
        return fitted.get(run_id)


def _fit(
    tool: Predictor,
    runs: Iterable[MeasuredRun],
    facts: Mapping[str, RunFacts],
    predictions: Mapping[tuple[str, str], Prediction],
) -> _Fitted:
    """What is fitted for one predictor. Runs with nothing measured (cases) get estimates too: they teach nothing."""
    seen = []
    for run in runs:
        p = predictions[tool.name, run.id]
        if p.step_seconds:
            seen.append(_observation(tool, run, facts[run.id], p, p.step_seconds))
    fold, heldout = folds.judge(seen)
    calibrated = {o.run_id: fold.estimate(o) for o in seen}
    return _Fitted(by_key=_factors(seen, calibrated), fold=fold, calibrated=calibrated, heldout=heldout)


def _observation(tool: Predictor, run: MeasuredRun, facts: RunFacts, p: Prediction, step: float) -> Observation:
    return Observation(
        run_id=run.id,
        family=run.model.family if run.model else "",
        framework=run.stack.framework,
        levels=tool.levels(run, facts),
        log_ratio=math.log(_tgs(run, step) / run.measured.tgs) if run.measured.tgs else math.nan,
        gpu=run.gpu,
        shares=observe.shares_of(p.breakdown, step, run.recipe.precision if run.recipe else ""),
        assumed=len(dict.fromkeys((*run.assumed, *p.assumed))),
    )


def _factors(seen: Iterable[Observation], calibrated: Mapping[str, Estimate]) -> dict[str, Factor]:
    """The calibrated factor of each finest key, the mean over the cells of its rows, and the spread that it leaves."""
    by_key: dict[str, list[Observation]] = {}
    for o in seen:
        if math.isfinite(o.log_ratio):
            by_key.setdefault(o.levels[0], []).append(o)
    return {
        key: calibration.mean_factor(rows, [calibrated[o.run_id].log for o in rows]) for key, rows in by_key.items()
    }


def row_of(selected: Selected, predictor: str, fit: str, prediction: Prediction, estimate: Estimate | None) -> Row:
    """The row of one prediction, its step time (and every part of it) as the estimate has it; held out: with interval."""
    run, p = selected.run, prediction
    factor = 1.0 if estimate is None else estimate.value
    step = None if p.step_seconds is None else p.step_seconds * factor
    tgs = None if step is None else _tgs(run, step)
    m = run.measured
    figures: dict[str, Any] = {name: p.breakdown[name] * factor for name in BREAKDOWN if name in p.breakdown}
    if estimate is not None and fit == "heldout" and tgs is not None and math.isfinite(estimate.half):
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
        projected_step_seconds=step,
        measured_step_seconds=m.step_seconds,
        projected_tgs=tgs,
        measured_tgs=m.tgs,
        error=_relative(tgs, m.tgs),
        projected_memory_gib=p.memory_gib,
        measured_memory_gib=m.peak_memory_gib,
        memory_error=_relative(p.memory_gib, m.peak_memory_gib),
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
    total = len(tasks)
    if jobs <= 1 or total < MIN_PARALLEL:
        return _collect((tool.predict(run) for tool, run in tasks), total, progress)
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        chunk = max(1, total // (jobs * 16))
        return _collect(pool.map(_predict_one, tasks, chunksize=chunk), total, progress)


def _predict_one(task: tuple[Predictor, MeasuredRun]) -> Prediction:
    tool, run = task
    return tool.predict(run)


def _collect(made: Iterable[Prediction], total: int, progress: Progress | None) -> list[Prediction]:
    kept: list[Prediction] = []
    for prediction in made:
        kept.append(prediction)
        if progress:
            progress(len(kept), total)
    return kept


def tools_for(mode: str, extra: Iterable[str] = (), settings: Settings = DEFAULT) -> tuple[Predictor, ...]:
    """The predictors of ``--mode`` (``simulate``, ``benchmark``, ``both``), those of ``--with``, and the baseline."""
    ours = predictors.MODES if mode == "both" else (mode,)
    return predictors.load((*ours, *extra, predictors.BASELINE), settings)
