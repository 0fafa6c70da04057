"""Makes a device of the catalogue of what a probe found: its figures, and efficiency parameters that explain the times.

The peak of a type is its best measured product over :data:`BEST_SHARE`, so that the share of the peak which the fit
gives to a product's main loop has room above the best product (fill, drain and output traffic are priced apart). The
memory rate is the best of all streams. Shares of streams follow from their own times; the loops of products and of
attention give the least median error of the kernel models over the timed shapes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from projector.benchmark.probe import Probed, TimedKernel
from projector.dataclass import dataclass
from projector.hardware import efficiency
from projector.hardware.efficiency_file import priors
from projector.hardware.types import Efficiency, Gpu
from projector.io.rows import grouped
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, Stream
from projector.parameter import Parameter

#: assumed: share of its peak that the best product of a library reaches (0.9-0.95 in public tables of tuned products).
BEST_SHARE = 0.9
_LANES = 128  # fp32 multiply-adds a clock of a compute unit of current GPUs (CUDA C++ programming guide; CDNA3 ISA)
_GRID = np.linspace(0.02, 1.0, 50)
_LEAST_FILL = 1e-7
_PLAIN = ("copy", "elementwise", "reduce", "fill")  # streams that touch every byte that they count once, in order


@dataclass(frozen=True)
class Entry:
    """A device for the catalogue. ``gpu`` and its ``parameters``; ``origins``: kind and words for every figure;
    ``errors``: median absolute error of the kernel models with this entry, by kind of kernel, over the timed shapes."""

    gpu: Gpu
    parameters: Mapping[str, Parameter]
    origins: Mapping[str, Parameter]
    errors: Mapping[str, float]


def entry(probed: Probed, name: str) -> Entry:
    """Returns the catalogue entry of a probed device. Raises ``ValueError`` where nothing could be timed, or too
    slowly."""
    if not probed.gemms or not probed.streams:
        raise ValueError("no product and no stream could be timed")
    gpu, origins = _gpu(probed, name)
    fixed = _streams(probed, gpu.memory_bandwidth)
    parameters = _loops(probed, gpu, fixed)
    model = _model(gpu, parameters)
    errors = {}
    for kind, kernels in (("gemm", probed.gemms), ("attention", probed.attentions), ("stream", probed.streams)):
        if kernels:
            measured = [each.timing.median for each in kernels]
            modelled = model.times([each.op for each in kernels]).seconds
            errors[kind] = float(np.median(np.abs(modelled / measured - 1.0)))
    return Entry(gpu, parameters, origins, errors)


def _gpu(probed: Probed, name: str) -> tuple[Gpu, dict[str, Parameter]]:
    facts = probed.facts
    device, units, clock = probed.device, int(facts["compute_units"].value), facts["clock_mhz"].value
    peak = {dtype: kernel.flop_rate / BEST_SHARE for dtype, kernel in _best(probed.gemms).items()}
    on_cpu = device.type == "cpu"
    vector = peak.get("fp32", max(peak.values())) if on_cpu else 2.0 * _LANES * units * clock * 1e6
    rates = {dtype: rate / (units * clock * 1e6) for dtype, rate in peak.items()}
    if max(rates.values()) < 1.0:
        raise ValueError("less than one operation a clock: a device that others use, or too small a --largest")
    rates = {dtype: rate for dtype, rate in rates.items() if rate >= 1.0}  # what the format takes
    plain = [kernel for kernel in probed.streams if getattr(kernel.op, "kind", "") in _PLAIN] or probed.streams
    bandwidth = max(_byte_rate(kernel, probed.launch.median) for kernel in plain)
    exponentials = max(probed.exponentials / (units * clock * 1e6), 0.1)
    gpu = Gpu(
        name=name,
        title=device.title,
        vendor=device.vendor,
        arch=device.arch,
        compute_units=units,
        boost_clock_mhz=clock,
        peak_clock_mhz=clock,
        peak=peak,
        vector_flops=vector,
        exp_per_clock_per_cu=exponentials,
        memory_bytes=facts["memory_bytes"].value,
        usable_memory_bytes=facts["usable_bytes"].value,
        memory_bandwidth=bandwidth,
        l2_bytes=facts["l2_bytes"].value,
        llc_bytes=0.0,
        shared_memory_per_cu=facts["shared_bytes"].value,
        dies=1,
        tdp_watts=facts["tdp_watts"].value,
        flops_per_clock=rates,
    )
    return gpu, _origins(probed)


def _origins(probed: Probed) -> dict[str, Parameter]:
    facts, cpu = probed.facts, probed.device.type == "cpu"
    best = ", ".join(f"{dtype} {kernel.flop_rate / 1e12:.4g} TFLOP/s" for dtype, kernel in _best(probed.gemms).items())
    peak = f"best products here ({best}; torch) over the share {BEST_SHARE} of a peak, assumed"
    kind, how = ("measured", "as fp32 products") if cpu else ("assumed", f"{_LANES} multiply-adds a clock")
    like = "as others of its architecture in the catalogue, or what data in the cache showed"
    exponentials = "exponentials of data in the cache, over units and clock" if cpu else like
    return {
        "compute_units": facts["compute_units"],
        "boost_clock_mhz": facts["clock_mhz"],
        "peak_clock_mhz": facts["clock_mhz"],
        "flops_per_clock": Parameter(0, "derived", "peak over units and clock"),
        "peak_tflops": Parameter(0, "measured", peak),
        "vector_tflops": Parameter(0, kind, how),
        "exp_per_clock_per_cu": Parameter(0, kind, exponentials),
        "memory_gib": facts["memory_bytes"],
        "usable_memory_gib": facts["usable_bytes"],
        "memory_bandwidth_tbs": Parameter(0, "measured", "fastest stream here, bytes read and written (torch)"),
        "l2_mib": facts["l2_bytes"],
        "llc_mib": Parameter(0, "assumed", "no cache behind the one stated as L2"),
        "shared_memory_kib_per_cu": facts["shared_bytes"],
        "dies": Parameter(0, "assumed", "one"),
        "tdp_watts": facts["tdp_watts"],
    }


def _best(kernels: Iterable[TimedKernel]) -> dict[str, TimedKernel]:
    best: dict[str, TimedKernel] = {}
    for kernel in kernels:
        dtype = str(getattr(kernel.op, "dtype", ""))
        if dtype not in best or kernel.flop_rate > best[dtype].flop_rate:
            best[dtype] = kernel
    return best


def _byte_rate(taken: TimedKernel, fill: float) -> float:
    """Returns the rate of the bytes that count: those of one direction weigh less (:mod:`projector.kernels.stream`)."""
    op = taken.op
    assert isinstance(op, Stream)
    one_way = priors()["stream.one_way"].value
    effective = (1.0 - one_way) * op.bytes + 2.0 * one_way * min(op.read, op.write)
    return effective / max(taken.timing.median - op.launches * fill, taken.timing.median / 2)


def _streams(probed: Probed, bandwidth: float) -> dict[str, Parameter]:
    """Returns the share of the memory rate by kind, as the mean of its passes in time per byte, after one launch."""
    fill = max(probed.launch.median, _LEAST_FILL)
    spread = probed.launch.spread
    parameters = {
        "stream.fill_us": _measured(fill * 1e6, spread, "shortest kernel here"),
        "gemm.launch_us": _measured(fill * 1e6, spread, "shortest kernel here"),
        "stream.device": Parameter(1.0, "derived", "shares are this device's own"),
        "stream.one_way": priors()["stream.one_way"],
    }
    kinds = grouped((str(getattr(taken.op, "kind", "")), taken) for taken in probed.streams)
    for kind, kernels in kinds.items():
        shares = [min(_byte_rate(taken, fill) / bandwidth, 1.0) for taken in kernels]
        mean = len(shares) / sum(1.0 / share for share in shares)
        widest = max(taken.timing.spread for taken in kernels)
        names = ", ".join(f"{taken.name} {share:.2f}" for taken, share in zip(kernels, shares, strict=True))
        parameters[f"stream.{kind}"] = _measured(mean, widest, names, most=1.0)
    copy = parameters.get("stream.copy")
    if copy is not None:
        parameters["stream"] = copy.said(f"as {copy.source}")
        parameters["gemm.memory"] = copy.said(f"as {copy.source}")
    return parameters


def _loops(probed: Probed, gpu: Gpu, fixed: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Returns the parameters with a fitted loop share for every type of product and both passes of attention."""
    parameters = dict(fixed)
    # the peak is what was reached at the clock that was held: no further share for power
    parameters["clock.matrix"] = Parameter(1.0, "measured", "the peak is that of the clock that products ran at")
    parameters["gemm.burst"] = Parameter(0.0, "measured", "times are taken as those of a step")
    for dtype in _best(probed.gemms):
        kernels = [taken for taken in probed.gemms if isinstance(taken.op, Gemm) and taken.op.dtype == dtype]
        parameters[f"gemm.loop.{dtype}"] = _fitted(f"gemm.loop.{dtype}", kernels, gpu, parameters)
    if "bf16" in _best(probed.gemms):
        parameters["gemm.loop"] = parameters["gemm.loop.bf16"].said("as bf16 products")
    for backward in (False, True):
        key = f"attention.{'backward' if backward else 'forward'}.loop"
        kernels = [
            each for each in probed.attentions if isinstance(each.op, Attention) and each.op.backward == backward
        ]
        if kernels:
            parameters[key] = _fitted(key, kernels, gpu, parameters)
    return parameters


def _fitted(key: str, taken: Sequence[TimedKernel], gpu: Gpu, others: Mapping[str, Parameter]) -> Parameter:
    """Returns the share with the least error, each shape weighed with the root of its time: steps consist of long ones."""
    weights = np.sqrt([each.timing.median for each in taken])
    measured = np.log([each.timing.median for each in taken])
    ops = [each.op for each in taken]
    losses = []
    for share in _GRID:
        model = _model(gpu, {**others, key: Parameter(float(share), "fitted", "trial")})
        losses.append(float((weights * np.abs(np.log(model.times(ops).seconds) - measured)).sum()))
    best = float(_GRID[int(np.argmin(losses))])
    source = f"least error over {len(taken)} shapes timed here, torch"
    return _measured(best, statistics.median(each.timing.spread for each in taken), source, most=1.0, kind="fitted")


def _measured(value: float, spread: float, source: str, most: float = math.inf, kind: str = "measured") -> Parameter:
    words = f"{source}; spread {spread:.1%}"
    return Parameter(value, kind, words, low=value / (1.0 + spread), high=min(value * (1.0 + spread), most))


def _model(gpu: Gpu, parameters: Mapping[str, Parameter]) -> Simulated:
    merged = {**efficiency.of(gpu).parameters, **parameters}
    return Simulated(gpu, Efficiency(gpu=gpu.name, parameters=merged), Execution())
