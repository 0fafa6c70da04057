"""What all measured runs teach, as the file that the projector carries (see :mod:`projector.experience`). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.calibrate import intervals, observe
from harness.calibrate.folds import Fold
from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.contracts.sources import publisher
from harness.score.figures import Figures
from projector import experience_file
from projector.experience import Basis, Experience

if TYPE_CHECKING:
    import pandas as pd


def text(evaluation: Evaluation, predictor: str = "simulate") -> str | None:
    """The YAML text; None where the runs are of too few sources for an interval."""
    made = learnt(evaluation, predictor)
    return None if made is None else experience_file.text(made)


def learnt(evaluation: Evaluation, predictor: str = "simulate") -> Experience | None:
    """The law fitted on all rows of a predictor, with its interval; None where there is no interval."""
    fold = evaluation.laws.get(predictor)
    if not isinstance(fold, Fold) or fold.learnt is None:
        return None
    rows = frame.part(evaluation.once, predictor=predictor, fit="uncalibrated")
    known = rows[rows["error"].notna()]
    return Experience(
        law=fold.law,
        level=intervals.LEVEL,
        quantile=fold.learnt.quantile,
        least=fold.learnt.least,
        coefficients=fold.learnt.coefficients,
        seen=fold.learnt.seen,
        grounds=_grounds(fold, known),
        stacks={name: fold.stack(name) for name in sorted({*known["framework"]} - {""})},
        unseen=fold.stack(""),
        evidence=_evidence(evaluation, predictor, known),
    )


def _grounds(fold: Fold, known: pd.DataFrame) -> dict[str, Basis]:
    """Every GPU with runs, and for GPUs without: their architecture, their vendor, and all."""
    found: dict[str, Basis] = {}
    for o in observe.of_rows(known):
        for place, key in enumerate(o.levels):
            if key not in found:
                found[key] = fold.ground((*[""] * place, *o.levels[place:]))
    return found


def _evidence(evaluation: Evaluation, predictor: str, known: pd.DataFrame) -> dict[str, str]:
    held = Figures(frame.part(evaluation.once, predictor=predictor), evaluation.once).held
    lines = sorted(f"{run} {tgs:.6g}" for run, tgs in zip(known["run_id"], known["measured_tgs"], strict=True))
    figures = (("macro", held.macro_mape), ("plain", held.mape))
    error = ", ".join(f"{100 * value:.1f} % {name}" for name, value in figures if value is not None)
    return {
        "rows": str(len(known)),
        "cells": str(known["cell"].nunique()),
        "sources": str(known["source"].map(publisher).nunique()),
        "digest": f"sha256 of the lines 'run id, measured tokens/s/GPU': {_digest(lines)}",
        "held_out": error,
    }


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
