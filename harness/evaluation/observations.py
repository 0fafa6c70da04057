"""The file of what the runs of ``measured/`` teach of each predictor. Corrections and intervals of any run are learnt
from the whole file less what is held out, never from the runs that happen to be evaluated with it.

``harness figures --out`` writes the file: one line for each measured run and predictor, with ln(measured / projected
step time) and the fields of :class:`projector.effects.Facts`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from harness.contracts.estimates import Observation
from harness.contracts.runs import MeasuredRun, Prediction
from harness.evidence import csvcell, shelf
from harness.predictors.ours import cluster_of
from projector.effects import ASSUMPTIONS, PARTS, Facts
from projector.errors import InputError, Problem, raise_all
from projector.expectation import facts_of
from projector.io import csv_file
from projector.io.files import read_text

FILE = "observations.csv"
LOOKS = "first_look.csv"
#: The reports' folders of a checkout, and of an installed package (pyproject.toml, force-include).
_FOLDERS = (shelf.PACKAGED.parent / "reports", shelf.PACKAGED / "reports")
_WORDS = ("predictor", "run_id", "source", "family", "model", "framework", "gpu", "assumed")
_FIGURES = ("log_ratio", "step_seconds", "tokens", "law", *PARTS)
_BETWEEN = "|"


def observation(run: MeasuredRun, source: str, p: Prediction, law: Mapping[str, float]) -> Observation:
    """Returns the observation that the projection ``p`` of ``run`` gives. ``law``: coefficients of
    :mod:`projector.reference_law`. Its ``log_ratio`` is NaN where the run was not measured, or its source doubts it."""
    step = p.step_seconds or math.nan
    workload = run.workload
    facts = facts_of(
        workload,
        cluster_of(run.cluster, run.gpu, run.gpus_per_node),
        step,
        p.breakdown,
        tuple(dict.fromkeys((*run.assumed, *p.assumed))),
        law,
        unread=run.unread,
        source=source,
    )
    log_ratio = (
        math.log(workload.tokens_per_step / step / run.gpus / run.measured.tgs)
        if run.measured.tgs and not run.doubt
        else math.nan
    )
    return Observation(run_id=run.id, facts=facts, log_ratio=log_ratio)


def text(observed: Mapping[str, Sequence[Observation]]) -> str:
    """Returns the text of the file: for every predictor the observations that teach, figures to six significant digits."""
    rows: list[tuple[object, ...]] = [(*_WORDS, *_FIGURES)]
    for predictor, seen in observed.items():
        for o in seen:
            if math.isfinite(o.log_ratio):
                f = o.facts
                assumed = _BETWEEN.join(sorted(f.assumed))
                words = (predictor, o.run_id, f.source, f.family, f.model, f.framework, f.gpu, assumed)
                figures = (o.log_ratio, f.step_seconds, f.tokens, f.law, *(f.shares.get(part, 0.0) for part in PARTS))
                rows.append((*map(csvcell.shielded, words), *(f"{value:.6g}" for value in figures)))
    return csv_file.text(*rows)


def parse(content: str, where: str) -> dict[str, tuple[Observation, ...]]:
    """Returns the observations of a file's text by predictor. Raises :class:`InputError` with every line that is none."""
    reader = csv.reader(io.StringIO(content))
    head = tuple(next(reader, ()))
    if head != (*_WORDS, *_FIGURES):
        raise InputError([Problem(where, "", ",".join(head), ",".join((*_WORDS, *_FIGURES)))])
    by_predictor: dict[str, list[Observation]] = {}
    problems: list[Problem] = []
    for number, cells in enumerate(reader, start=2):
        try:
            predictor, seen = _observation(cells)
        except ValueError:
            problems.append(Problem(where, f"line {number}", ",".join(cells), "words, then finite figures"))
        else:
            by_predictor.setdefault(predictor, []).append(seen)
    raise_all(problems)
    return {predictor: tuple(rows) for predictor, rows in by_predictor.items()}


def _observation(cells: Sequence[str]) -> tuple[str, Observation]:
    predictor, run_id, source, family, model, framework, gpu, assumed = map(csvcell.plain, cells[: len(_WORDS)])
    log_ratio, step_seconds, tokens, law, *shares = map(float, cells[len(_WORDS) :])
    kinds = frozenset(filter(None, assumed.split(_BETWEEN)))
    if (
        len(shares) != len(PARTS)
        or not kinds <= set(ASSUMPTIONS)
        or not math.isfinite(log_ratio + step_seconds + tokens + law)
    ):
        raise ValueError(cells)
    facts = Facts(
        step_seconds=step_seconds,
        tokens=tokens,
        shares={part: share for part, share in zip(PARTS, shares, strict=True) if share > 0.0},
        gpu=gpu,
        framework=framework,
        family=family,
        model=model,
        source=source,
        assumed=kinds,
        law=law,
    )
    return predictor, Observation(run_id=run_id, facts=facts, log_ratio=log_ratio)


@cache
def packaged() -> dict[str, tuple[Observation, ...]] | None:
    """Returns the observations of the project's own measured runs by predictor, from a checkout or an installed package;
    None where there is no such file."""
    path = _packaged(FILE)
    return None if path is None else parse(read_text(path, "what measured runs teach"), str(path))


def looks(path: Path | None = None) -> list[Observation]:
    """Returns first looks as observations, of the projections that were looked at, from ``path`` or the package's file."""
    from harness.evaluation import first_look

    path = path or _packaged(LOOKS)
    return [] if path is None else [o for look in first_look.read(path) if (o := look.observation) is not None]


def _packaged(name: str) -> Path | None:
    return next((folder / name for folder in _FOLDERS if (folder / name).is_file()), None)
