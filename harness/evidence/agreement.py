"""Derives step time and rate from each other, checks whether both can be figures of one run, and names slips of units
that would explain an unlikely figure: milliseconds for seconds, the job for one GPU, …

A slip is named only where the figure it leads to is usual; the words start with a colon, or are empty.
"""

from __future__ import annotations

from harness.contracts.runs import MeasuredRun

#: Relative difference between step time × rate and the tokens of a step that rounding by a source explains.
AGREE = 0.02


def both(step_seconds: float | None, tgs: float | None, tokens: float) -> tuple[float | None, float | None, str]:
    """Returns (seconds of a step, tokens/s/GPU, which one was derived) for ``tokens`` a step and GPU."""
    if step_seconds and not tgs:
        return step_seconds, tokens / step_seconds, "tgs from step_seconds"
    if tgs and not step_seconds:
        return tokens / tgs, tgs, "step_seconds from tgs"
    return step_seconds, tgs, ""


def contradiction(step_seconds: float, tgs: float, gpus: int, tokens: int) -> str:
    """Returns why a step time and a rate are not of one run, whose step has ``tokens`` on all GPUs; empty if they can be."""
    ratio = tgs * step_seconds * gpus / tokens
    deviation = abs(ratio - 1)
    if deviation <= AGREE or deviation <= AGREE + _rounding(tgs, step_seconds * 1000):
        return ""
    return (
        f"{tgs:.6g} tokens/s/GPU over {step_seconds:.6g} s and {gpus} GPUs are {ratio:.3g} times the {tokens:,} tokens of"
        f" global_batch_size x seq_length{product(ratio, gpus)}"
    )


def _rounding(*figures: float) -> float:
    """Returns the relative error that rounding to the printed digits may have made, summed over all ``figures``."""
    texts = [f"{value:.6g}" for value in figures]
    decimals = [0 if "e" in text else len(text.partition(".")[2]) for text in texts]
    return sum(0.5 * 10.0**-digits / value for digits, value in zip(decimals, figures, strict=True))


_USUAL_MFU = (0.02, 0.75)
_USUAL_SECONDS = (0.05, 300.0)
_CLOSE = 0.05  # a ratio that a slip explains to this is explained by it


def rate_is_stated(run: MeasuredRun) -> bool:
    """Says whether the source gives tokens/s, from which the step time follows."""
    return (
        any(text.startswith("step_seconds from tgs") for text in run.measured.derived) or not run.measured.step_seconds
    )


def utilisation(mfu: float, run: MeasuredRun) -> str:
    """Names the slip that would make an MFU usual: of the time's unit, or between the rate of all GPUs and that of one."""
    gpus, stated_rate = run.gpus, rate_is_stated(run)
    seconds, tgs = run.measured.step_seconds or 0.0, run.measured.tgs or 0.0
    times = (
        (1e-3, f"in seconds, taken for milliseconds? {seconds * 1e3:.4g} s would be"),
        (1e3, f"in milliseconds, taken for seconds? {seconds / 1e3:.4g} s would be"),
        (1e6, f"in microseconds, taken for seconds? {seconds / 1e6:.4g} s would be"),
    )
    shared = (
        (1 / gpus, f"the rate of all {gpus} GPUs, taken for that of one? {tgs / gpus:.5g} would be"),
        (float(gpus), f"the rate of one GPU, divided by {gpus} again? {tgs * gpus:.5g} would be"),
    )
    rates = (*(shared if gpus > 1 else ()), (1e3, f"in thousands of tokens? {tgs * 1e3:.5g} would be"))
    for factor, words in rates + times if stated_rate else times:
        if _USUAL_MFU[0] <= mfu * factor <= _USUAL_MFU[1]:
            return f": {words} {percent(mfu * factor)}"
    return ""


def percent(share: float) -> str:
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def long(seconds: float) -> str:
    for factor, unit in ((1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")):
        if _USUAL_SECONDS[0] <= seconds / factor <= _USUAL_SECONDS[1]:
            return f": {unit}? They would be {seconds / factor:.4g} s"
    return ""


def memory(peak: float, capacity: float, gpus: int, node: int) -> str:
    """Names the slip that explains a ``peak`` above the ``capacity`` (both GiB); ``node``: GPUs of a node."""
    if peak <= capacity * 1.08:
        return ": decimal GB, taken for GiB?"
    shared = [(node, f"of a node of {node} GPUs together"), (gpus, f"of all {gpus} GPUs together")]
    for divisor, words in [*shared, (1024, "in MiB"), (2**20, "in KiB"), (2**30, "in bytes")]:
        if divisor > 1 and 0.1 * capacity <= peak / divisor <= capacity:
            return f": {words}? {peak / divisor:.4g} GiB would fit"
    return ""


def product(ratio: float, gpus: int) -> str:
    """Names the slip that explains ``ratio``: tokens by rate and time over those of the batch."""
    slips = (
        (1e3, "milliseconds taken for seconds, or a rate in tokens per thousand seconds"),
        (1e-3, "seconds taken for milliseconds, or a rate in thousands"),
        (float(gpus), f"the rate of all {gpus} GPUs, taken for that of one"),
        (1 / gpus if gpus else 0.0, f"the rate of one GPU, divided by {gpus} again"),
    )
    for factor, words in slips:
        if factor and factor != 1 and abs(ratio / factor - 1) < _CLOSE:
            return f": {words}?"
    return ""
