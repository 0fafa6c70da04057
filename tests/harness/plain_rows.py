"""Rows by hand."""

from typing import Any

from harness.contracts.results import Row


def row(run_id: str, measured: float | None = 100.0, projected: float | None = 100.0, **more: Any) -> Row:
    """A held-out row of ``simulate``; ``error`` follows from the two throughputs."""
    error = projected / measured - 1 if projected is not None and measured is not None else None
    values: dict[str, Any] = {
        "suite": "s", "group": "g", "gpu": "h100_sxm", "gpus": 8, "model": "m", "family": "f", "precision": "bf16",
        "framework": "megatron-lm", "predictor": "simulate", "fit": "heldout",
        "status": "ok" if projected is not None else "unsupported", "projected_tgs": projected,
        "projected_step_seconds": None if projected is None else 1.0 / projected, "measured_tgs": measured,
        "error": error,
    }  # fmt: skip
    return Row(run_id=run_id, **{**values, **more})


def alone(run_id: str, measured: float, projected: float | None, **more: Any) -> Row:
    """One of no group, as nothing has corrected it."""
    return row(run_id, measured, projected, **{"group": "", "fit": "uncalibrated", "status": "ok"} | more)
