"""Checks whether the figures of a run can be physically true, whatever the row was read from. Pure functions.

*Refused* is what no machine does: a throughput above the dense peak of the precision, more memory than the device has, a
precision that it has no matrix rate for, figures beyond any training, figures of one row that contradict each other, a
day that no calendar has. *Doubted* is what a machine can do and hardly anyone means. The reasons name the figures, and the
slip of units that would explain them where one does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import lru_cache

from harness.contracts.runs import MeasuredRun
from harness.evidence import agreement
from harness.evidence.agreement import AGREE, contradiction
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.frameworks import flops
from projector.hardware import catalogue
from projector.hardware.types import Gpu
from projector.workload import validate
from projector.workload.workload import Workload

# Share of the matrix products left where weights are frozen: forward and data gradient, no weight gradient.
_FROZEN_SHARE = 2.0 / 3.0
_COMMON_FORMULA = "megatron-2025-04"


def flops_per_token(run: MeasuredRun, seconds_per_flop: float, believed: tuple[float, float]) -> tuple[float, float]:
    """Returns (least, most) FLOP a token over all formulas; by one formula alone where its MFU lies in ``believed``: then
    the least of all is not above ``believed``, nor the most below. ``seconds_per_flop`` turns FLOP a token into an MFU."""
    low, high = believed
    with suppress(Unsupported, ArithmeticError):
        common = flops.flops_per_token(run.workload, _COMMON_FORMULA)
        if low <= common * seconds_per_flop <= high:
            return common, common
    return _all_counts(run.workload)


@lru_cache(maxsize=4096)
def _all_counts(workload: Workload) -> tuple[float, float]:
    """Returns (least, most) FLOP a token over all formulas; zeros where none covers the model or the workload is invalid."""
    if workload.model.unsupported or validate.problems(workload):
        return 0.0, 0.0
    counts: list[float] = []
    for formula in flops.formulas():
        with suppress(Unsupported):
            counts.append(flops.flops_per_token(workload, formula))
    if not counts:
        return 0.0, 0.0
    return min(counts) * (_FROZEN_SHARE if workload.recipe.lora else 1.0), max(counts)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of figures, both ends included: a figure that is not possible is refused, an unusual one is doubted.

    MFU is of the dense peak. No published training of a language model reaches 0.75 of it or runs whole steps below 0.005;
    the largest clusters have some 200,000 GPUs; the longest published steps take minutes.
    """

    mfu: tuple[float, float] = (0.005, 1.0)
    gpus: tuple[int, int] = (1_000_000, 10_000_000)
    step_seconds: tuple[float, float] = (3_600.0, 86_400.0)
    shortest_seconds: float = 1e-5
    memory: tuple[float, float] = (1.0, 1.08)
    agreement: float = AGREE
    years: tuple[int, int] = (2017, 2100)


BOUNDS = Bounds()

# The names under which a data sheet rates the operands of a precision. FP32 products may run as TF32.
_RATES = {"mxfp4": ("mxfp4", "fp4"), "nvfp4": ("nvfp4", "fp4"), "fp32": ("tf32", "fp32")}
_GIB = 2.0**30
_NOMINAL = ("cpu",)  # stands for whatever processor is at hand: its figures bound no other


@dataclass(frozen=True)
class Judgement:
    """The reasons, in words, why a row cannot be true (``refused``) and why it is doubtful (``doubts``)."""

    refused: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def judge(run: MeasuredRun) -> Judgement:
    """Checks one run physically. A run without figures, a model or a known GPU is judged by what it states."""
    refused, doubts = list[str](), list[str]()
    for hard, text in _findings(run):
        (refused if hard else doubts).append(text)
    return Judgement(tuple(refused), tuple(doubts))


def marked(run: MeasuredRun) -> tuple[MeasuredRun, Judgement]:
    """Returns the run, with its impossible figures added to its ``problem``, and the judgement."""
    judgement = judge(run)
    reasons = [text for text in judgement.refused if text not in run.problem]
    return (replace(run, problem="; ".join(filter(None, (run.problem, *reasons)))) if reasons else run), judgement


Finding = tuple[bool, str]


def _findings(run: MeasuredRun) -> Iterator[Finding]:
    """Yields (impossible, why) for each finding, in the order in which a reader wants them."""
    invalid = list(_numbers(run))
    yield from invalid
    yield from _date_findings(run.stack.date)
    if invalid:
        return
    yield from _unusual(run)
    gpu = catalogue.gpu(run.gpu) if catalogue.knows_gpu(run.gpu) and run.gpu not in _NOMINAL else None
    if gpu is not None:
        yield from _precision(run, gpu)
        yield from _memory(run, gpu)
    durations = list(_durations(run))
    yield from durations
    if not any(hard for hard, _ in durations):
        contradictions = list(_contradiction(run))
        yield from contradictions
        if contradictions:
            return  # which of the figures is wrong nobody knows
        yield from _utilisation(run, gpu)


def _numbers(run: MeasuredRun) -> Iterator[Finding]:
    """Finds figures that are no valid numbers, or with which nothing further can be computed."""
    m = run.measured
    for name in ("step_seconds", "tgs", "tflops_per_gpu", "peak_memory_gib"):
        value = getattr(m, name)
        if value is not None and not 0 < value < math.inf:
            yield True, f"{name} = {value} is no positive number"
    if m.samples is not None and m.samples < 1:
        yield True, f"{m.samples} samples are no measurement"
    most = BOUNDS.gpus[1]
    if run.gpus > most:
        yield True, f"10^{math.log10(run.gpus):.1f} GPUs are more than the {most:,} that a training could use"


def _unusual(run: MeasuredRun) -> Iterator[Finding]:
    usual = BOUNDS.gpus[0]
    if run.gpus > usual:
        yield False, f"{run.gpus:,} GPUs are more than any training has used ({usual:,} at most are usual)"
    spread = run.measured.rel_std
    if spread is not None and not 0 <= spread <= 1:
        yield not spread > 1, f"a relative spread of {spread:.3g} (rel_std) is outside 0 to 1"


def _date_findings(text: str) -> Iterator[Finding]:
    """Finds a date that is not ``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD``, or outside the years of such trainings."""
    if not text:
        return
    match = re.fullmatch(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?:[T ].*)?", text)
    if match is None:
        yield True, f"the date {text[:40]!r} is none (expected YYYY-MM or YYYY-MM-DD)"
        return
    try:
        date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    except ValueError:
        yield True, f"the date {text[:40]} is on no calendar"
        return
    first, last = BOUNDS.years
    if not first <= int(match[1]) <= last:
        yield True, f"the date {text[:40]} is not from {first} to {last}"


def _precision(run: MeasuredRun, gpu: Gpu) -> Iterator[Finding]:
    """Finds a precision without a matrix rate of its own: it ran in emulation, at a rate that no data sheet gives."""
    if run.recipe is None or _rate(gpu, run.recipe.precision):
        return
    rated = ", ".join(gpu.peak)
    stated = not any(text.startswith("precision=") for text in run.assumed)
    words = f"{gpu.name} has no matrix rate for {run.recipe.precision} (it has {rated})"
    if run.source.kind == "log" and run.recipe.precision in ("bf16", "fp16"):
        yield False, f"{words}; the run printed it, so it was emulated"
    else:
        yield stated, words if stated else f"{words}; the precision is assumed, not stated"


def _rate(gpu: Gpu, precision: str) -> float:
    """Returns the dense peak in FLOP/s for a precision's operands; 0 where the device has no matrix rate for it."""
    return float(max((gpu.peak[name] for name in _RATES.get(precision, (precision,)) if name in gpu.peak), default=0.0))


def _memory(run: MeasuredRun, gpu: Gpu) -> Iterator[Finding]:
    peak, capacity = run.measured.peak_memory_gib, gpu.memory_bytes / _GIB
    usual, possible = BOUNDS.memory
    if peak and not peak <= capacity * usual:
        why = agreement.memory(peak, capacity, run.gpus, run.gpus_per_node or 8)
        yield peak > capacity * possible, f"{peak:.5g} GiB is more than the {capacity:.4g} GiB of {gpu.name}{why}"


def _durations(run: MeasuredRun) -> Iterator[Finding]:
    seconds = run.measured.step_seconds
    usual, possible = BOUNDS.step_seconds
    if seconds is None:
        return
    if not seconds >= BOUNDS.shortest_seconds:
        yield True, f"a step of {seconds:.3g} s is shorter than a kernel launch"
    elif seconds > possible:
        yield True, f"a step of {seconds:.3g} s is longer than a day{agreement.long(seconds)}"
    elif seconds > usual and not (run.model and catalogue.knows_gpu(run.gpu)):
        yield False, f"a step of {seconds:.5g} s is longer than an hour{agreement.long(seconds)}"


def _contradiction(run: MeasuredRun) -> Iterator[Finding]:
    """Finds a step time and a TGS whose product with the GPUs is not the tokens of a step."""
    m = run.measured
    if not (m.step_seconds and m.tgs and run.recipe and run.gpus):
        return
    tokens = run.recipe.global_batch_size * run.recipe.seq_length
    if tokens > 0 and (words := contradiction(m.step_seconds, m.tgs, run.gpus, tokens)):
        yield True, words


def _utilisation(run: MeasuredRun, gpu: Gpu | None) -> Iterator[Finding]:
    """Finds an impossible or unusual MFU by the least and the most FLOP that any framework counts, so that no way of
    counting alone makes the finding; for a run whose GPU is not stated, one that is impossible on every known GPU."""
    tgs = run.measured.tgs
    if not tgs or run.model is None or run.recipe is None or (gpu is None and run.gpu):
        return
    precision = run.recipe.precision
    known = (gpu,) if gpu else map(catalogue.gpu, catalogue.gpu_names())
    rate, name = max((_rate(each, precision), each.name) for each in known)
    if not rate:
        return
    least, most = flops_per_token(run, tgs / rate, BOUNDS.mfu)
    low, high = least * tgs / rate, most * tgs / rate
    lowest, highest = BOUNDS.mfu
    peak = f"of the {precision} peak of {'' if gpu else 'the fastest GPU known, '}{name} ({rate / 1e12:.4g} TFLOP/s)"
    if low > highest:
        yield True, f"{_stated_figure(run)} means {agreement.percent(low)} {peak}{agreement.utilisation(low, run)}"
    elif gpu and 0 < high < lowest:
        yield False, f"{_stated_figure(run)} means {agreement.percent(high)} {peak}{agreement.utilisation(high, run)}"


def _stated_figure(run: MeasuredRun) -> str:
    m = run.measured
    if m.step_seconds and not agreement.rate_is_stated(run):
        return f"{m.step_seconds:.4g} s a step"
    return f"{m.tgs:.6g} tokens/s/GPU"
