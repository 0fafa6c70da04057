"""Platforms side by side: the utilisation of each row, the rate that it should reach, and which rows may be compared.

A peak is the best measured row of a device and a model. FLOP of a token are 6 for each parameter that a token meets
(forward, and backward twice that), without attention, as comparisons of platforms usually count. Utilisation is against
the dense peak of the row's precision, whatever its source divided by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.contracts.runs import Measured, MeasuredRun
from harness.predictors import Predictor
from harness.score.ranking import NOISE
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.io.rows import grouped
from projector.workload.parameters import count

#: Share of its projection below which a row is marked: no model here errs by so much on a run that is set up well.
SLOW = 0.4
#: Least utilisation of the dense peak of each grade, best first (TPrimat's README: 30 to 40 % good, 15 to 25 % average).
GRADES = {"good": 0.3, "average": 0.15, "poor": 0.0}
#: Architectures whose data sheets also print a peak for products with two zeros of four: twice the dense one.
_SPARSE = ("ampere", "ada", "hopper", "blackwell", "blackwell_ultra", "gfx942", "gfx950")
_CLOSE = 0.03  # relative difference of a stated and a computed utilisation that is rounding
#: Recipe fields that make a strategy; rows of one job in which these are the same are repeats.
_LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "etp", "data_parallel_sharding", "recompute_granularity", "micro_batch_size")
_TOLD = 1.05  # ratio of projected rates of strategies that a measurement would tell apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """One measured row. ``tflops``: of one GPU; ``dense``: peak of one GPU in the row's precision, TFLOP/s; ``sparse``:
    the larger peak that data sheets print, None where there is none; ``stated``: utilisation as the source says it;
    ``projected``: tokens/s/GPU, or the reason why not (``reason``)."""

    run: MeasuredRun
    tgs: float
    tflops: float | None = None
    dense: float | None = None
    sparse: float | None = None
    stated: float | None = None
    projected: float | None = None
    reason: str = ""

    @property
    def tokens(self) -> float:
        """Returns the tokens/s of all GPUs together."""
        return self.tgs * self.run.gpus

    @property
    def key(self) -> tuple[str, str]:
        return self.run.gpu, self.model

    @property
    def model(self) -> str:
        return self.run.model_name or (self.run.model.name if self.run.model else "?")

    @property
    def strategy(self) -> str:
        """Returns the strategy's name where the row has one, else its parallel sizes."""
        named = self.run.switches.get("strategy")
        if named:
            return str(named)
        recipe = self.run.recipe
        return f"tp{recipe.tp} pp{recipe.pp}" if recipe else "?"

    @property
    def step_seconds(self) -> float | None:
        """Returns the step time as stated, else as rate and batch give it."""
        recipe = self.run.recipe
        derived = recipe.global_batch_size * recipe.seq_length / self.tokens if recipe else None
        return self.run.measured.step_seconds or derived

    @property
    def utilisation(self) -> float | None:
        return self.tflops / self.dense if self.tflops and self.dense else None

    @property
    def all_tflops(self) -> float | None:
        return self.tflops * self.run.gpus if self.tflops else None

    @property
    def of_sparse(self) -> float | None:
        """Returns the share of the larger peak; None where there is none."""
        return self.tflops / self.sparse if self.tflops and self.sparse else None

    @property
    def grade(self) -> str:
        """Returns the grade of the row's utilisation; empty where the utilisation is not known."""
        used = self.utilisation
        return "" if used is None else next(word for word, least in GRADES.items() if used >= least)

    @property
    def against_sparse(self) -> bool:
        """Tells whether the source divided by the larger peak, that of sparse products."""
        return bool(self.stated and self.of_sparse and abs(self.stated / self.of_sparse - 1.0) < _CLOSE)

    @property
    def share(self) -> float | None:
        """Returns measured over projected tokens/s/GPU; None without a projection."""
        return self.tgs / self.projected if self.projected else None

    @property
    def slow(self) -> bool:
        return self.share is not None and self.share < SLOW


def rated(
    runs: Iterable[MeasuredRun], predictor: Predictor, parameters: Mapping[str, float] | None = None
) -> list[Rated]:
    """Returns every run that has a rate, with its projection; ``parameters``: active parameters by model, if known."""
    return [_rated(run, predictor, parameters or {}) for run in runs if run.measured.tgs and run.gpus]


def _rated(run: MeasuredRun, predictor: Predictor, parameters: Mapping[str, float]) -> Rated:
    row = Rated(run=run, tgs=run.measured.tgs or 0.0)
    flops = _flops(run, parameters.get(row.model))
    dense, sparse = _peaks(run)
    stated = run.switches.get("utilisation")
    projected, reason = None, run.problem or "configuration not stated"
    if run.recipe and run.model:
        prediction = predictor.predict(run)
        projected, reason = None, prediction.reason
        if prediction.step_seconds:
            projected, reason = run.workload.tokens_per_step / run.gpus / prediction.step_seconds, ""
    return replace(
        row,
        tflops=flops * row.tgs / 1e12 if flops else None,
        dense=dense,
        sparse=sparse,
        stated=float(stated) if isinstance(stated, int | float) else None,
        projected=projected,
        reason=reason,
    )


def _flops(run: MeasuredRun, parameters: float | None) -> float | None:
    """Returns the FLOP of a token: two thirds of the usual with frozen weights; None for models not counted here."""
    if parameters is None and run.model is not None and not run.model.unsupported:
        parameters = count(run.model).active
    frozen = run.recipe is not None and run.recipe.lora is not None
    return None if parameters is None else (4.0 if frozen else 6.0) * parameters


def _peaks(run: MeasuredRun) -> tuple[float | None, float | None]:
    if not catalogue.knows_gpu(run.gpu):
        return None, None
    gpu = catalogue.gpu(run.gpu)
    try:
        dense = gpu.peak_of(run.recipe.precision if run.recipe else "bf16") / 1e12
    except Unsupported:
        return None, None
    return dense, 2.0 * dense if gpu.arch in _SPARSE else None


def peaks(rows: Iterable[Rated]) -> list[Rated]:
    """Returns the row with the highest rate for every device and model, highest rate first."""
    best: dict[tuple[str, str], Rated] = {}
    for row in rows:
        if row.key not in best or row.tokens > best[row.key].tokens:
            best[row.key] = row
    return sorted(best.values(), key=lambda row: -row.tokens)


def best_of_gpus(best: Sequence[Rated]) -> list[Rated]:
    """Returns the best of each device among ``best`` rows, which stand in order of their rates."""
    return [rows[0] for rows in grouped((row.run.gpu, row) for row in best).values()]


def unfair(first: Rated, other: Rated) -> tuple[str, ...]:
    """Returns why two rows must not be called faster and slower, in words; empty where they did the same work."""
    reasons = [] if first.model == other.model else [f"model {first.model} against {other.model}"]
    if first.run.gpus != other.run.gpus:
        reasons.append(f"{first.run.gpus} against {other.run.gpus} GPUs")
    ours, theirs = first.run.recipe, other.run.recipe
    if ours is None or theirs is None:
        return (*reasons, "a configuration is not stated")
    fields = {"seq_length": "sequence", "global_batch_size": "batch", "precision": "precision"}
    return (*reasons, *(f"{word} {getattr(ours, name)} against {getattr(theirs, name)}" for name, word in fields.items()
                      if getattr(ours, name) != getattr(theirs, name)))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Rows of one job by different strategies that lie within noise of each other. ``spread``: highest over lowest rate
    less 1; ``projected``: the same of their projections, None without."""

    rows: tuple[Rated, ...]
    spread: float
    projected: float | None

    @property
    def not_applied(self) -> bool:
        """Tells whether the projections of these strategies differ so much that a measurement would tell them apart."""
        return self.projected is not None and 1.0 + self.projected > _TOLD


def alike(rows: Iterable[Rated]) -> list[Alike]:
    """Returns, for each job, the largest sets of rows by different strategies whose rates lie within noise."""
    groups = []
    for job in grouped((_job(row), row) for row in rows).values():
        ordered = sorted(job, key=lambda row: row.tgs)
        start = 0
        while start < len(ordered):
            end = start
            while end + 1 < len(ordered) and ordered[end + 1].tgs <= ordered[start].tgs * (1.0 + NOISE):
                end += 1
            together = ordered[start : end + 1]
            if len({_layout(row) for row in together}) > 1:
                projected = [row.projected for row in together if row.projected]
                told = max(projected) / min(projected) - 1.0 if len(projected) == len(together) else None
                spread = together[-1].tgs / together[0].tgs - 1.0
                groups.append(Alike(rows=tuple(together), spread=spread, projected=told))
            start = end + 1
    return groups


def _job(row: Rated) -> tuple[object, ...]:
    recipe = row.run.recipe
    work = (recipe.global_batch_size, recipe.seq_length, recipe.precision) if recipe else ("?",)
    return (*row.key, row.run.gpus, row.run.stack.framework, *work)


def _layout(row: Rated) -> tuple[object, ...]:
    recipe = row.run.recipe
    sizes = tuple(getattr(recipe, name) for name in _LAYOUT) if recipe else ()
    return (row.run.switches.get("strategy"), *sizes)


def scaled(row: Rated, predictor: Predictor, times: Sequence[int] = (1, 2, 4, 8)) -> list[dict[str, Any]]:
    """Returns ``row`` on ``times`` as many GPUs with the same samples for each GPU. ``linear``: tokens/s in proportion;
    ``projected``: the measured rate times the projections' ratio, None without."""
    sizes = []
    for factor in times:
        projected = row.tokens if factor == 1 else None
        if factor > 1 and row.run.recipe and row.projected:
            recipe = replace(row.run.recipe, global_batch_size=factor * row.run.recipe.global_batch_size)
            run = replace(row.run, gpus=factor * row.run.gpus, recipe=recipe, measured=Measured())
            step_seconds = predictor.predict(run).step_seconds
            if step_seconds:
                tgs = recipe.global_batch_size * recipe.seq_length / run.gpus / step_seconds
                projected = factor * row.tokens * tgs / row.projected
        linear = factor * row.tokens
        share = {"efficiency": projected / linear if projected else None, "rate": projected or linear}
        sizes.append(
            {"times": factor, "gpus": factor * row.run.gpus, "linear": linear, "projected": projected, **share}
        )
    return sizes
