"""Projects cases with every predictor and corrects them by every fit; the order is kept and nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness import predictors
from harness.calibrate import held_out
from harness.calibrate.conditioned import Conditioned
from harness.contracts.estimates import Estimate, Observation, publisher
from harness.contracts.results import BASELINE, FITS, Evaluation, Row, RunFacts, parted
from harness.contracts.runs import BREAKDOWN, MeasuredRun, Prediction
from harness.evaluation import observations
from harness.evaluation.facts import facts_of as run_facts
from harness.evaluation.peaks import undecided
from harness.predictors.protocol import Predictor, Remembering
from projector import posterior
from projector.dataclass import dataclass
from projector.hardware import catalogue
from projector.io.table import values
from projector.kernels.settings import DEFAULT, Settings
from projector.posterior import Posterior

__all__ = ["Evaluation", "Selected", "evaluate", "row_of", "tools_for"]

Progress = Callable[[int, int], None]

# Below this many projections a second process costs more than it saves.
MIN_PARALLEL = 64


@dataclass(frozen=True, slots=True)
class Selected:
    """A run as one suite selects it; ``suite`` is empty for runs given by file."""

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
    """Projects every selected run with every predictor and returns the rows, corrected by what was measured elsewhere.

    ``evidence``: the observations, by predictor, from which corrections and intervals are learnt; a predictor without
    any, or None: from the selected runs. A run that several suites select is projected once. ``progress(done, total)``
    is called after each projection.
    """
    runs = {s.run.id: s.run for s in selected}
    facts = {run.id: run_facts(run) for run in runs.values()}
    tasks = [(tool, run) for run in runs.values() for tool in tools]
    results = _predict_all(tasks, jobs, progress)
    predictions = {(tool.name, run.id): p for (tool, run), p in zip(tasks, results, strict=True)}
    observed = {tool.name: _observed(runs.values(), facts, predictions, tool.name) for tool in tools}
    by_fit = {name: _estimates(name, seen, (evidence or {}).get(name)) for name, seen in observed.items()}
    rows = [
        row_of(s, tool.name, fit, predictions[tool.name, s.run.id], by_fit[tool.name].get(fit, {}).get(s.run.id))
        for s in selected
        for tool in tools
        for fit in FITS
    ]
    sound, doubted = parted(rows)
    return Evaluation(rows=sound, doubted=doubted, facts=facts, observed=observed)


def _estimates(
    name: str, seen: Sequence[Observation], evidence: Sequence[Observation] | None
) -> dict[str, Mapping[str, Estimate]]:
    """Returns, by fit and run id, estimates by the evidence without a row's source, and by the packaged posterior."""
    teaching = [o for o in (seen if evidence is None else evidence) if math.isfinite(o.log_ratio)]
    if not teaching:
        return {}
    packaged = posterior.load()
    ours = name in predictors.MODES
    # The evidence says nothing of a device without a vendor in the catalogue, such as the CPU of this machine.
    known = [name for name in catalogue.gpu_names() if catalogue.gpu(name).vendor]
    asked = seen if evidence is None else [o for o in seen if o.facts.gpu in known]
    looks = [] if ours else [o for o in observations.looks() if math.isfinite(o.log_ratio)]
    conditioned = Conditioned.of(teaching, held_out.prior_of(packaged, () if ours else teaching, looks))
    shipped = {o.run_id: _shipped(packaged, o) for o in asked} if ours else held_out.all_in(conditioned, asked)
    return {"shipped": shipped, "heldout": held_out.estimates(conditioned, asked, packaged.tail[0] if ours else None)}


def _shipped(packaged: Posterior, row: Observation) -> Estimate:
    """Returns the estimate that a user of the package gets for this run, whose source the package does not know."""
    log, variance = packaged.log_ratio(replace(row.facts, source="own"))
    spread = math.sqrt(variance)
    return Estimate(log=log, deviation=spread, half=packaged.tail[0] * spread)


def _observed(
    runs: Iterable[MeasuredRun],
    facts: Mapping[str, RunFacts],
    predictions: Mapping[tuple[str, str], Prediction],
    name: str,
) -> tuple[Observation, ...]:
    """Returns the observations of all runs with a projected step, of which cases and doubted runs teach nothing."""
    law = posterior.load().law
    return tuple(
        observations.observation(run, publisher(facts[run.id].source), p, law)
        for run in runs
        if (p := predictions[name, run.id]).step_seconds
    )


#: Columns of a row that a run holds as they are.
_OF_RUN = """
run_id=id group gpu gpus framework=stack.framework doubt measured_step_seconds=measured.step_seconds
measured_tgs=measured.tgs measured_memory_gib=measured.peak_memory_gib
"""


def row_of(selected: Selected, predictor: str, fit: str, prediction: Prediction, estimate: Estimate | None) -> Row:
    """Returns the row of one prediction, its step time and parts multiplied by the estimate, with its interval."""
    run, p = selected.run, prediction
    factor = 1.0 if estimate is None else estimate.value
    step = None if p.step_seconds is None else p.step_seconds * factor
    tgs = None if step is None else run.workload.tokens_per_step / step / run.gpus
    m = run.measured
    figures: dict[str, Any] = {name: p.breakdown[name] * factor for name in BREAKDOWN if name in p.breakdown}
    if estimate is not None and tgs is not None and math.isfinite(estimate.half):
        figures |= {"interval_low": tgs * math.exp(-estimate.half), "interval_high": tgs * math.exp(estimate.half)}
    assumed = tuple(dict.fromkeys((*run.assumed, *p.assumed)))
    return Row(
        **values(run, _OF_RUN),
        **values(p, "status reason projected_memory_gib=memory_gib measured_share"),
        **figures,
        suite=selected.suite,
        model=run.model_name or (run.model.name if run.model else ""),
        family=run.model.family if run.model else "",
        precision=run.recipe.precision if run.recipe else "",
        predictor=predictor,
        fit=fit,
        assumed="; ".join(assumed),
        projected_step_seconds=step,
        projected_tgs=tgs,
        error=_relative(tgs, m.tgs),
        memory_error=None if undecided(assumed) else _relative(p.memory_gib, m.peak_memory_gib),
        seconds_to_project=p.seconds_to_project if p.step_seconds is not None else None,
        unread="; ".join(run.unread),
    )


def _relative(projected: float | None, measured: float | None) -> float | None:
    return None if projected is None or not measured else projected / measured - 1.0


def _predict_all(
    tasks: Sequence[tuple[Predictor, MeasuredRun]], jobs: int, progress: Progress | None
) -> list[Prediction]:
    """Returns the predictions in the order of ``tasks``, made in further processes where that is worth their start."""
    recalled = [tool.recalled(run) if isinstance(tool, Remembering) else None for tool, run in tasks]
    missing = [task for task, known in zip(tasks, recalled, strict=True) if known is None]
    if jobs <= 1 or sum(tool.name != BASELINE for tool, _ in missing) < MIN_PARALLEL:
        return _filled(recalled, map(_predict_one, missing), progress)
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(max_workers=jobs) as pool:
        chunk = max(1, len(missing) // (jobs * 16))
        return _filled(recalled, pool.map(_predict_one, missing, chunksize=chunk), progress)


def _predict_one(task: tuple[Predictor, MeasuredRun]) -> Prediction:
    tool, run = task
    return tool.predict(run)


def _filled(
    known: Sequence[Prediction | None], rest: Iterator[Prediction], progress: Progress | None
) -> list[Prediction]:
    """Returns ``known`` with each None replaced by the next of ``rest``."""
    predictions: list[Prediction] = []
    for prediction in known:
        predictions.append(next(rest) if prediction is None else prediction)
        if progress:
            progress(len(predictions), len(known))
    return predictions


def tools_for(mode: str, extra: Iterable[str] = (), settings: Settings = DEFAULT) -> tuple[Predictor, ...]:
    """Returns the predictors of ``--mode`` (``simulate``, ``benchmark``, ``both``) and ``--with``, and the baseline."""
    modes = predictors.MODES if mode == "both" else (mode,)
    return predictors.load((*modes, *extra, predictors.BASELINE), settings)
