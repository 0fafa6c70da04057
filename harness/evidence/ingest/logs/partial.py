"""What a log without its whole configuration is still worth: step time, rate, memory, loss, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.context import Context
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.settings import Stated, stated_by
from harness.evidence.ingest.steady import SteadyState
from projector.dataclass import dataclass
from projector.errors import InputError

_FLAGS = {"gpu": "--gpu NAME", "gpus": "--gpus N"}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Figures of the steady steps.

    ``scale``: seconds of a step for one unit of ``record.value`` (None: no batch is stated). ``tgs``: tokens/s/GPU;
    ``samples_per_s``: of the job; ``memory``: peak GiB by kind; ``loss``: the last one, at ``loss_iteration``.
    """

    stated: Stated
    scale: float | None
    step_seconds: float | None
    tgs: float | None
    samples_per_s: float | None
    tokens_per_step: int | None
    memory: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    loss_iteration: int | None = None

    def words(self, state: SteadyState | None) -> tuple[str, ...]:
        """Returns one text a figure, for a report."""
        texts = []
        if self.step_seconds is not None and state is not None and self.scale is not None:
            kept = f"median of {state.kept} steps" if state.kept > 1 else "one step"
            texts.append(f"step {self.step_seconds:.6g} s ({', '.join((kept, *interval(state, self.scale)))})")
        elif state is not None:
            texts.append(f"{state.kept} steady steps")
        if self.tgs is not None:
            texts.append(f"{self.tgs:.5g} tokens/s/GPU")
        if self.samples_per_s is not None:
            texts.append(f"{self.samples_per_s:.5g} samples/s")
        if self.tokens_per_step is not None:
            texts.append(f"{self.tokens_per_step:,} tokens a step")
        texts += [f"peak memory {gib:.5g} GiB ({kind})" for kind, gib in self.memory.items()]
        if self.loss is not None:
            texts.append(f"loss {self.loss:.4g} at step {self.loss_iteration}")
        return tuple(texts)


def interval(state: SteadyState, scale: float) -> tuple[str, ...]:
    """Returns the interval of the steady step in words; empty for fewer steps than have one."""
    if state.low is None or state.high is None:
        return ()
    return (f"90 % interval {state.low * scale:.6g} to {state.high * scale:.6g} s",)


def seconds_per_unit(record: Logged, batch: int | None, length: int | None, gpus: int | None) -> float | None:
    """Returns the seconds of a step for one unit of the record's values; None where what it takes is not known."""
    tokens = batch * length / gpus if batch and length and gpus else None
    return {"seconds": 1.0, "samples": batch, "tokens": tokens}[record.basis]


def read_without(
    record: Logged, state: SteadyState | None, dialect: str, context: Context, *, contradicted: bool = False
) -> Reading:
    """Returns the figures that follow from the steps and from what log and user state; with ``contradicted`` from the steps
    alone, as the statements about their work cannot be believed."""
    stated = stated_by(record, dialect, context)
    if contradicted:
        stated = replace(stated, gpus=None, global_batch_size=None, seq_length=None)
    batch, length, gpus = stated.global_batch_size, stated.seq_length, stated.gpus
    tokens = batch * length if batch and length else None
    scale = seconds_per_unit(record, batch, length, gpus)
    seconds = state.value * scale if state is not None and scale else None
    # Where the batch of a step is not known, nothing better is known than the rate that the log prints itself
    printed = {record.basis: 1 / state.value} if state is not None else {}
    rate = printed.get("tokens") or (steady_median(record.tokens, state) if state is not None else None)
    samples = printed.get("samples")
    known = np.flatnonzero(np.isfinite(record.loss))
    loss, iteration = (float(record.loss[known[-1]]), int(record.iteration[known[-1]])) if len(known) else (None, None)
    return Reading(
        stated=stated,
        scale=scale,
        step_seconds=seconds,
        tgs=tokens / seconds / gpus if tokens and seconds and gpus and record.basis != "tokens" else rate,
        samples_per_s=samples or (batch / seconds if batch and seconds else None),
        tokens_per_step=tokens,
        memory=dict(record.memory),
        loss=loss,
        loss_iteration=iteration,
    )


def steady_median(values: npt.NDArray[np.float32], state: SteadyState) -> float | None:
    """Returns the median of what the steady steps print of a figure; None where none prints it."""
    steady = values[state.reasons == 0]
    steady = steady[np.isfinite(steady)]
    return float(np.median(steady)) if len(steady) else None


def missing_of(why: InputError | None, gpu: str, gpus: int | None) -> tuple[str, ...]:
    """Returns the names of what is not stated: the keys of ``why``, the GPU and the number of GPUs."""
    named = [re.sub(r"^(line \d+: )?(recipe\.)?", "", problem.key) for problem in why.problems] if why else []
    unstated = [name for name, value in (("gpu", gpu), ("gpus", gpus)) if not value]
    return tuple(dict.fromkeys((*named, *unstated)))


def flag_for(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Returns (thing, the flag of ``harness ingest`` that states it) for each of ``names``."""
    return tuple((name, _FLAGS.get(name, "--recipe FILE")) for name in names)
