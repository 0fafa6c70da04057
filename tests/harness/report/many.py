"""Rows for tests of the page: many, with refused ones, swapped and tied ones, long names and texts that look like HTML."""

from typing import Any

from harness.contracts.results import Evaluation, Row, RunFacts

RUNS = 1500
GPUS = ("mi355x", "b200", "h100_sxm_96gb_500w", "a100_sxm_80gb")
NASTY = '</script><img src=x onerror=alert(1)> & "quoted" _under_'


def many_rows() -> Evaluation:
    """1500 runs under two predictors, the same every time."""
    rows: list[Row] = []
    facts: dict[str, RunFacts] = {}
    for i in range(RUNS):
        run = f"run-{i:04d}"
        refused = i % 10 == 9
        # Inside a group of five: the first two swapped, the next two projected equal, the last one refused in every other.
        measured = (1000.0 + i // 5) * (1.0, 1.1, 1.2, 1.3, 1.4)[i % 5]
        projected_at = (1000.0 + i // 5) * (1.0, 0.9, 1.3, 1.3, 1.8)[i % 5]
        facts[run] = RunFacts(
            run_id=run,
            source=NASTY if i == 3 else f"table {i % 7}",
            memory_kind=("allocated", "reserved", None)[i % 3],
            differs={"tp": str(2 ** (i % 4)), "pp": str(1 + i % 2), "note": f"value {i % 5}"},
        )
        for predictor in ("simulate", "constant-mfu"):
            for fit, scale in (("uncalibrated", 1.2), ("heldout", 1.0)):
                twice = 2.0 if predictor == "constant-mfu" else 1.0
                projected = None if refused else projected_at * scale * twice
                rows.append(_row(run, i, predictor, fit, measured, projected))
    return Evaluation(rows=tuple(rows), facts=facts)


def _row(run: str, i: int, predictor: str, fit: str, measured: float, projected: float | None) -> Row:
    known: dict[str, Any] = {}
    if projected is not None:
        step = 1e6 / projected
        held = {"interval_low": 0.8 * projected, "interval_high": 1.25 * projected} if fit == "heldout" else {}
        known = {
            "projected_tgs": projected, "projected_step_seconds": step, "error": projected / measured - 1.0,
            "projected_memory_gib": 50.0, "measured_memory_gib": 48.0 + i % 9, "compute_s": 0.7 * step,
            "tp_s": 0.3 * step, **held,
        }  # fmt: skip
    return Row(
        run_id=run, suite="s", group=f"group-{i // 5}", gpu=GPUS[i % 4], gpus=8,
        model=NASTY if i % 50 == 0 else f"model_{i % 6}", family=f"family_{i % 3}", precision="bf16",
        framework=("primus", "megatron-lm")[i % 2], predictor=predictor, fit=fit,
        status="unsupported" if projected is None else "ok",
        reason=f"not modelled: thing {i % 3}; also this" if projected is None else "", measured_tgs=measured, **known,
    )  # fmt: skip
