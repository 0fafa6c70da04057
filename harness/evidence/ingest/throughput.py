"""The measured figures: step time and TGS from each other or from TFLOP/s, memory with its kind, out-of-memory rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean, stdev

from harness.contracts.runs import Measured
from harness.evidence.agreement import AGREE, both, contradiction
from harness.evidence.ingest.record import Record, number

_NO_MEMORY = re.compile(r"oom\b|out[- ]of[- ]memory", re.IGNORECASE)
_PERCENT_OF = re.compile(r"(?:metrics|other)\.memory_pct_of_(\d+)")


def out_of_memory(record: Record) -> bool:
    """Returns whether the source says that the run failed for lack of memory."""
    if record.get("other.oom_alloc_gib") is not None:
        return True
    texts = record.text("other.result", "metrics.status"), str(record.values.get("note", ""))
    return any(map(_NO_MEMORY.match, texts))


def measured(
    record: Record,
    gpus: int | None,
    tokens: int | None,
    framework: str,
    from_tflops: Callable[[float], tuple[float, str] | None],
) -> Measured:
    """Returns the figures of one record. ``tokens``: of a step on all GPUs; ``from_tflops``: TFLOP/s/GPU → seconds, formula.

    Refuses a record with no figure to compare, and one whose step time and tokens/s contradict each other.
    """
    tflops = record.positive("metrics.tflops_per_gpu")
    peak, kind = _peak_memory(record, framework)
    if out_of_memory(record):
        asked = re.match(r"\d+(?:\.\d+)?(?=$| ?GiB)", record.text("other.oom_alloc_gib"))
        return Measured(status="out-of-memory", failed_allocation_gib=float(asked[0]) if asked else None)
    rates = {name: value for name in _RATES if (value := record.number(f"metrics.{name}")) is not None}
    seq = record.integer("seq_length")
    step, tgs, derived = _stated_rates(record, rates, gpus, seq)
    if step is None and tgs is None and tflops and (inverted := from_tflops(tflops)):
        step = inverted[0]
        derived.append(f"step_seconds from TFLOP/s ({inverted[1]})")
    if tokens and gpus:
        step, tgs, how = both(step, tgs, tokens / gpus)
        derived += [how] if how else []
    if step is None and tgs is None:
        alone = [word for name, word in _OF_ALL.items() if rates.get(name)] + (["TFLOP/s"] if tflops else [])
        why = f"only {' and '.join(alone)}, configuration too incomplete to invert"
        record.refuse(why if alone else "no throughput stated")
    if step and tgs and gpus and tokens:
        if words := contradiction(step, tgs, gpus, tokens):
            record.refuse(words)
        record.map("step_seconds", f"{step:.6g}")
    samples = record.integer("metrics.samples")
    if samples is None:
        samples = record.integer("other.step_count_in_log", "other.iterations")
    if gpus:
        record.doubts += _disagreements(record, rates, step, tgs, (seq or 0) / gpus, gpus)
    return Measured(
        step_seconds=step,
        tgs=tgs,
        tflops_per_gpu=tflops,
        peak_memory_gib=peak,
        memory_kind=kind,
        # submissions log what their first rank allocated
        memory_rank=0 if framework == "mlperf" and kind == "allocated" else None,
        samples=samples,
        rel_std=_relative_deviation(record, step),
        derived=tuple(derived),
    )


#: Rates of all GPUs together, in words.
_OF_ALL = {"tokens_per_s": "tokens/s of all GPUs", "samples_per_s": "samples/s"}
_RATES = ("iteration_ms", "step_seconds", "steps_per_s", "tokens_per_s_per_gpu", *_OF_ALL)


def _stated_rates(
    record: Record, rates: Mapping[str, float], gpus: int | None, seq: int | None
) -> tuple[float | None, float | None, list[str]]:
    """Returns step seconds and TGS as stated, in whichever of their units; what the notes call derived stays listed."""
    derived: list[str] = []
    ms, per_second, total, samples = map(rates.get, ("iteration_ms", "steps_per_s", *_OF_ALL))
    step = rates.get("step_seconds") or (ms / 1000 if ms else 1 / per_second if per_second else None)
    tgs = rates.get("tokens_per_s_per_gpu")
    if tgs is None and total and gpus:
        tgs = total / gpus
        derived.append("tgs from tokens_per_s / gpus")
    if step is None and tgs is None and samples and gpus and seq:
        tgs = samples * seq / gpus
        derived.append("tgs from samples_per_s")
    for name, value in (("step_seconds", step), ("tgs", tgs)):
        if value is not None and value <= 0:
            record.refuse(f"{name} = {value} is not positive")
    note = str(record.values.get("note", "")).lower()
    if "iteration_ms derived" in note:
        derived.append("step_seconds from tgs (by the source's reader)")
    if re.search(r"tokens(_per_s_per_gpu|/s/gpu)?\b[^.;]*\bderived", note):
        derived.append("tgs from step_seconds (by the source's reader)")
    return (step if step and step > 0 else None), (tgs if tgs and tgs > 0 else None), derived


def _disagreements(
    record: Record, rates: Mapping[str, float], step: float | None, tgs: float | None, sample: float, gpus: int
) -> Iterator[str]:
    """Yields the rates of a record that say another step time, or another TGS, than the one that counts. ``sample``: the
    tokens of one sample for each GPU."""
    said = (
        ("iteration_ms", step, rates.get("iteration_ms", 0) / 1000),
        ("steps_per_s", step, 1 / (rates.get("steps_per_s") or math.inf)),
        ("tokens_per_s", tgs, rates.get("tokens_per_s", 0) / gpus),
        ("samples_per_s", tgs, rates.get("samples_per_s", 0) * sample),
    )
    for name, counts, value in said:
        if counts and value > 0 and abs(value / counts - 1) > AGREE:
            stated = record.text(f"metrics.{name}")
            yield f"{name} = {stated} is {value / counts:.3g} times what the row's other figures give"


_KINDS = ("allocated", "reserved", "device")


def _peak_memory(record: Record, framework: str) -> tuple[float | None, str | None]:
    """Returns peak memory in GiB and what the number counts, from the note or from what the framework prints.

    Logs call GiB "GB" (bytes / 2**30): torchtitan, Megatron (MB = 2**20), Primus and nvidia-smi all do.
    """
    peak = record.positive("metrics.memory_gb")
    if peak is None and (mib := record.positive("metrics.memory_mib")):
        peak = mib / 1024
    if peak is None and (share := _memory_of_share(record)):
        return share, "device"
    stated = record.text("metrics.memory_kind").lower()
    note = f"{record.values.get('note', '')} {record.values.get('source', '')}".lower()
    if peak is None:
        return None, None
    if "not a measured peak" in note or "compiled total" in note:
        record.doubts.append("memory_gb is no measured peak: left out")
        return None, None
    if stated in _KINDS:
        return peak, stated
    if re.search(r"max[_ ](memory[_ ])?allocated|alloc gib", note):
        return peak, "allocated"
    # used of all, as the tools print it
    if re.search(r"nvidia-smi|rocm-smi|\bgib of \d+\b", note) or framework == "primus":
        return peak, "device"
    if framework.startswith(("torchtitan", "torchtune")):
        return peak, "reserved"
    # logs of submissions print the maximum that torch allocated: the same to five digits on machines of many makers
    return peak, "allocated" if framework == "mlperf" else None


def _memory_of_share(record: Record) -> float | None:
    """Computes GiB from a percentage of a stated capacity (``memory_pct_of_288``: of the 288 GiB that the tools report)."""
    for key in record.values:
        if "memory_pct_of_" in key and (match := _PERCENT_OF.fullmatch(key)):
            percent = record.positive(key)
            return round(percent / 100 * int(match[1]), 3) if percent else None
    return None


def _relative_deviation(record: Record, step: float | None) -> float | None:
    """Returns the relative standard deviation between repeated runs, where the source gives the median of each."""
    stated = record.number("metrics.rel_std")
    if stated is not None:
        return stated
    medians = record.get("other.step_time_s_median_by_run")
    if not isinstance(medians, list) or len(medians) < 3 or not step:
        return None
    values = [value for item in medians if (value := number(item)) is not None and value > 0]
    return round(stdev(values) / fmean(values), 5) if len(values) > 2 else None
