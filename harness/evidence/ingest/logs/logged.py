"""One run as its log has it: step columns in arrays (43 bytes a step), and what was said once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.logs.events import Arguments, Failure, Kernels
from projector.dataclass import dataclass

SKIPPED, AFTER_CHECKPOINT, AFTER_EVALUATION = 1, 2, 4  # bits of :attr:`Logged.flags`
#: The columns of a record, one entry a logged step, with their types.
COLUMNS: Mapping[str, type[np.generic]] = {
    "iteration": np.int64, "value": np.float64, "tokens": np.float32, "tflops": np.float32, "loss": np.float32,
    "batch": np.int32, "flags": np.uint8, "segment": np.int16, "config": np.int16, "clock": np.float64,
}  # fmt: skip


@dataclass
class Logged:
    """One run as its log has it. Arrays have one entry a logged step, in log order, each iteration of a start once.

    ``value`` is what ``basis`` says: ``seconds`` of a step, seconds per token of a GPU (``tokens``) or seconds per sample
    of the job (``samples``). ``segment`` counts starts, ``config`` the argument dumps that differ (-1 before any);
    ``clock`` is the time of day before its line, in seconds from some day (NaN: none).
    ``curves``: one value a step of what else a document holds. ``repeated``: lines that print a step again, ``conflicts``:
    those of them with another time. ``steady``: not the first
    step of a run alone.
    """

    name: str = ""
    basis: str = "seconds"
    iteration: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    value: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    tokens: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    tflops: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    loss: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    batch: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    flags: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    segment: npt.NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    config: npt.NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    clock: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    arguments: list[Arguments] = field(default_factory=list)
    facts: dict[str, str | int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    memory_ratio: float | None = None
    seq_length: int | None = None
    batch_line: int = 0
    timers: dict[str, tuple[float, int]] = field(default_factory=dict)
    curves: dict[str, tuple[float, ...]] = field(default_factory=dict)
    repeated: int = 0
    conflicts: int = 0
    steady: bool = True
    failure: Failure | None = None
    kernels: Kernels | None = None

    @property
    def steps(self) -> int:
        return len(self.value)

    @property
    def why_none(self) -> str:
        """Returns why a log without steps has none, as far as it is known."""
        return "; ".join(note for note in self.notes if note) or "no line with the time of a step"

    @property
    def stated(self) -> Arguments | None:
        """Returns the arguments of the last steps, None where there are none; of a log without steps the last ones."""
        if not self.arguments:
            return None
        last = self.arguments[max(int(self.config[-1]), 0) if self.steps else -1]
        return last if last.values else None
