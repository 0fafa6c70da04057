"""Records of logs from arrays of step times."""

from typing import Any

import numpy as np

from harness.evidence.ingest.logs.logged import AFTER_CHECKPOINT, AFTER_EVALUATION, SKIPPED, Logged
from harness.evidence.ingest.steady import SteadyState, state_of


def steady_state(
    values: np.ndarray, skipped: Any = 0, saved: Any = 0, evaluated: Any = 0, **columns: Any
) -> SteadyState:
    """The steady state of steps from 1 on, with nothing logged beside their times but ``columns``."""
    flags = np.zeros(len(values), np.uint8)
    for bit, where in ((SKIPPED, skipped), (AFTER_CHECKPOINT, saved), (AFTER_EVALUATION, evaluated)):
        flags |= (bit * np.asarray(where)).astype(np.uint8)
    zeros = dict.fromkeys(("segment", "config", "batch"), np.zeros(len(values), np.int32))
    state = state_of(Logged(value=values, iteration=np.arange(1, len(values) + 1), flags=flags, **{**zeros, **columns}))
    assert state is not None
    return state
