"""What a log's arguments, its lines and its user say against each other.

Refused are contradictions after which nobody knows what a step did: another batch, sequence or number of ranks, parallel
sizes that do not make up the ranks, a batch that its micro-batches do not divide; a derived step time or rate that is not
what the log prints or its clock says. Beside the row stand as doubts small differences of rates, and those of TFLOP/s:
frameworks count FLOP in their own ways and average over windows of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.context import Context
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.steady import SteadyState
from projector.errors import Problem, Unsupported
from projector.frameworks import flops
from projector.intake import megatron_forks
from projector.workload.validate import problems

_CLOCK = 0.10  # the same of the time of day before the lines, in which everything between two steps is
_BLOCK = 20.0  # seconds of the time of day whose whole seconds are good to a twentieth
_LEAST = 3  # such blocks: fewer are a coincidence
_CONFLICT = 0.05  # more is none
_AGREE = 0.03  # relative difference between a printed rate and that of the step time that averaging explains
_COUNTS = 0.10  # the same of TFLOP/s, over what any release of any framework counts (padded vocabularies, MoE terms)
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def place(key: str, line: int) -> str:
    return f"line {line}: {key}" if line else key


def last_batch(record: Logged) -> int:
    """Returns the global batch of the last line that prints one; 0 where none does."""
    logged = record.batch[record.batch > 0]
    return int(logged[-1]) if len(logged) else 0


def refusals(
    values: Mapping[str, object], stated: Mapping[str, object], context: Context, record: Logged, where: str, line: int
) -> list[Problem]:
    """Returns what refuses a run. ``values``: arguments by Megatron-LM's names; ``stated``: the recipe that they make."""
    problems = [*_lines(stated, context, record, where, line), *_against_user(stated, context, where, line)]
    problems += _check_ranks(values, where, line)
    if megatron_forks.unstated_lengths(values):  # a rate by the longest sample would be too high
        expected = "samples of seq_length, padded or packed: nothing states how long these are"
        problems.append(Problem(where, place("no_pad_to_seq_lengths", line), True, expected))
    return problems


def _lines(stated: Mapping[str, object], context: Context, record: Logged, where: str, line: int) -> Iterator[Problem]:
    """Reports a global batch or a sequence length that differs from what the lines print."""
    checks = (
        ("global_batch_size", "global batch size", last_batch(record), record.batch_line),
        ("seq_length", "seq_length", record.seq_length, record.batch_line),
    )
    for name, key, logged, at in checks:
        for said, source in ((context.stated, "the recipe file says"), (stated, f"the arguments of line {line} say")):
            expected = said.get(name)
            if logged and expected is not None and expected != logged:
                yield Problem(where, place(key, at), logged, f"{expected}, as {source}")
                break


def _against_user(stated: Mapping[str, object], context: Context, where: str, line: int) -> Iterator[Problem]:
    """Reports values of the user that the log's arguments contradict."""
    for name in ("tp", "pp", "cp", "ep", "micro_batch_size"):
        by_user, by_log = context.stated.get(name), stated.get(name)
        if by_user is not None and by_log is not None and by_user != by_log:
            yield Problem(where, place(name, line), by_log, f"{by_user}, as the recipe file says")


def _check_ranks(values: Mapping[str, object], where: str, line: int) -> Iterator[Problem]:
    """Checks Megatron-LM's rules (arguments.py, validate_args): world = dp x tp x pp x cp, batch = n x micro-batch x dp."""
    sizes = [_positive_int(values.get(name, 1)) for name in _SIZES]
    world, ranks = _positive_int(values.get("world_size")), _positive_int(values.get("data_parallel_size"))
    if not all(sizes):
        return
    model = math.prod(size or 1 for size in sizes)
    words = f"tp x pp x cp = {' x '.join(map(str, sizes))} = {model}"
    if world and world % model:
        yield Problem(where, place("world_size", line), world, f"a multiple of {words}")
        return
    if world and ranks and ranks * model != world:
        expected = f"{world // model}: world_size {world} over {words}"
        yield Problem(where, place("data_parallel_size", line), ranks, expected)
        return
    ranks = ranks or (world // model if world else None)
    batch, micro = _positive_int(values.get("global_batch_size")), _positive_int(values.get("micro_batch_size"))
    if ranks and batch and micro and batch % (micro * ranks):
        expected = f"a multiple of micro_batch_size x data-parallel ranks = {micro} x {ranks}"
        yield Problem(where, place("global_batch_size", line), batch, expected)


def _positive_int(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def derived(
    run: MeasuredRun, record: Logged, state: SteadyState, tokens: float | None, where: str
) -> Iterator[Problem]:
    """Yields contradictions of derived figures: printed tokens/s/GPU (``tokens``) against step time, batch and GPUs; a step
    time derived from these against the time of day before the lines."""
    m, clocked = run.measured, clocked_seconds(record, state)
    if tokens and m.tgs and abs(tokens / m.tgs - 1) > _CONFLICT:
        yield _printed_rate(tokens, m.tgs, where)
    if record.basis != "seconds" and clocked and m.step_seconds and abs(clocked / m.step_seconds - 1) > _CLOCK:
        expected = f"{clocked:.4g}, as the time of day before the lines goes on"
        yield Problem(where, f"step_seconds from {record.basis} a second", float(f"{m.step_seconds:.4g}"), expected)


def clocked_seconds(record: Logged, state: SteadyState) -> float | None:
    """Returns the median seconds of a steady step by the time of day before consecutive lines, over blocks that are long
    enough for clocks of whole seconds; None for too few blocks."""
    after = np.flatnonzero(
        (state.reasons[1:] == 0)
        & (np.diff(record.segment) == 0)
        & (np.diff(record.config) == 0)
        & (np.diff(record.iteration) > 0)
        & (np.diff(record.clock) >= 0)
    )
    seconds, steps = np.diff(record.clock)[after], np.diff(record.iteration)[after]
    block = (np.cumsum(seconds) // _BLOCK).astype(int)
    block_means = np.bincount(block, seconds) / np.maximum(np.bincount(block, steps), 1) if len(block) else np.empty(0)
    full_blocks = block_means[:-1][block_means[:-1] > 0]  # the last block is a part
    return float(np.median(full_blocks)) if len(full_blocks) >= _LEAST else None


def _printed_rate(tokens: float, tgs: float, where: str) -> Problem:
    expected = f"{tgs:.6g}, by global_batch_size x seq_length over step time and GPUs"
    return Problem(where, "tokens/s/GPU", float(f"{tokens:.6g}"), expected)


def rates(run: MeasuredRun, record: Logged, state: SteadyState, tokens: float | None) -> Iterator[Problem]:
    """Yields doubts: printed tokens/s/GPU (``tokens``) and TFLOP/s/GPU against step time, batch and GPUs; a printed step
    time against the time of day before the lines, which includes what a trainer does not time."""
    m, clocked = run.measured, clocked_seconds(record, state)
    if record.basis == "seconds" and clocked and m.step_seconds and abs(clocked / m.step_seconds - 1) > _CLOCK:
        yield Problem("", "step time", float(f"{m.step_seconds:.4g}"), f"{clocked:.4g} s, as the time of day goes on")
    if tokens and m.tgs and abs(tokens / m.tgs - 1) > _AGREE:
        yield _printed_rate(tokens, m.tgs, "")
    if m.tflops_per_gpu and m.step_seconds and run.gpus and run.recipe and run.model and run.recipe.lora is None:
        low, high = _tflops_range(run, m.step_seconds)
        if low and not low * (1 - _COUNTS) <= m.tflops_per_gpu <= high * (1 + _COUNTS):
            expected = f"{low:.4g} to {high:.4g}, by step time, model and batch, as frameworks count FLOP"
            yield Problem("", "TFLOP/s/GPU", m.tflops_per_gpu, expected)


def _tflops_range(run: MeasuredRun, seconds: float) -> tuple[float, float]:
    """Returns the least and the most TFLOP/s that any framework's formula gives; zeros where none covers the model, or where
    it is no model (zero heads in a damaged log), which is refused elsewhere."""
    if problems(run.workload):
        return 0.0, 0.0
    tflops = []
    for formula in flops.formulas():
        with suppress(Unsupported):
            tflops.append(flops.tflops_per_gpu(run.workload, seconds, formula))
    return min(tflops, default=0.0), max(tflops, default=0.0)
