"""Learns the posterior that the projector carries from measured runs and their projections, and writes its text. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import learn, weights
from harness.contracts.estimates import Observation
from harness.contracts.runs import MeasuredRun
from harness.predictors.ours import cluster_of
from projector import reference_law
from projector.frameworks.flops import flops_per_token
from projector.posterior import Posterior

#: Weight of the prior that all coefficients of the law are zero, as a share of the weight of all runs.
_RIDGE = 0.02


def learnt(
    runs: Sequence[MeasuredRun], observed: Sequence[Observation], looks: Sequence[Observation]
) -> tuple[Posterior, list[Observation]]:
    """Returns the posterior of all measured rows, with variances from first ``looks``, and the rows that it rests on."""
    by_id = {run.id: run for run in runs}
    rows = [o for o in observed if math.isfinite(o.log_ratio)]
    law = _law([by_id[o.run_id] for o in rows], rows)
    rows = [replace(o, facts=replace(o.facts, law=_excess(by_id[o.run_id], o, law))) for o in rows]
    known = learn.learn(rows, looks, law)
    lines = sorted(f"{o.run_id} {o.log_ratio:.5f}" for o in rows)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    evidence = {
        "rows": str(len(rows)),
        "sources": str(len({o.source for o in rows})),
        "first looks": f"{len(looks)} rows of {len({o.source for o in looks})} sources",
        "digest": f"sha256 of the lines 'run id, ln(measured / projected)': {digest}",
    }
    return replace(known, evidence=evidence), rows


def _flops(run: MeasuredRun) -> float:
    return flops_per_token(run.workload, "megatron-2026-05") * run.workload.tokens_per_step


def _law(runs: Sequence[MeasuredRun], rows: Sequence[Observation]) -> dict[str, float]:
    """Returns the coefficients of the law by ridge regression of ln(MFU), every source weighing the same."""
    feature_rows = [
        reference_law.features(run.workload, cluster_of(run.cluster, run.gpu, run.gpus_per_node).gpu) for run in runs
    ]
    names = sorted({name for row in feature_rows for name in row})
    x = np.array([[row.get(name, 0.0) for name in names] for row in feature_rows])
    y = np.array([_log_mfu(run, o) for run, o in zip(runs, rows, strict=True)])
    weight = weights.by_cell(o.source for o in rows)
    gram = (x * weight[:, None]).T @ x + _RIDGE * weight.sum() * np.diag([float(name != "constant") for name in names])
    return dict(zip(names, np.linalg.solve(gram, (x * weight[:, None]).T @ y).tolist(), strict=True))


def _log_mfu(run: MeasuredRun, row: Observation) -> float:
    gpu = cluster_of(run.cluster, run.gpu, run.gpus_per_node).gpu
    measured = row.facts.step_seconds * math.exp(row.log_ratio)
    return math.log(_flops(run) / (measured * run.gpus * gpu.peak_of("bf16")))


def _excess(run: MeasuredRun, row: Observation, law: Mapping[str, float]) -> float:
    gpu = cluster_of(run.cluster, run.gpu, run.gpus_per_node).gpu
    by_law = reference_law.log_step(law, run.workload, gpu, _flops(run))
    return reference_law.excess(by_law, math.log(row.facts.step_seconds))


def text(known: Posterior) -> str:
    """Returns a posterior's file: a line an effect, its mean, and the lower triangle of the covariance to six digits."""
    head = {
        "evidence": dict(known.evidence),
        "tail": [round(width, 4) for width in known.tail],
        "deviations": {term: round(value, 4) for term, value in known.prior.deviations.items()},
        "scatter": {framework: round(value, 4) for framework, value in known.prior.scatter.items()},
        "law": {name: round(value, 5) for name, value in known.law.items()},
        "counts": {key: list(pair) for key, pair in known.counts.items()},
        "effects": [list(effect) for effect in known.effects],
        "mean": _digits(known.mean),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    rows = [json.dumps(_digits(known.covariance[i, : i + 1])) for i in range(len(known.effects))]
    return "{\n" + ",\n".join(lines) + ',\n "covariance": [\n' + ",\n".join(rows) + "\n]}\n"


def _digits(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]
