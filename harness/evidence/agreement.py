"""A step time and a rate of one run: each from the other, and whether they can be figures of one run."""

from __future__ import annotations

from harness.evidence import slips

#: Relative difference between step time × rate and the tokens of a step that rounding by a source explains.
AGREE = 0.02


def both(step_seconds: float | None, tgs: float | None, tokens: float) -> tuple[float | None, float | None, str]:
    """(seconds of a step, tokens/s/GPU, which was made from the other), of ``tokens`` a step and GPU."""
    if step_seconds and not tgs:
        return step_seconds, tokens / step_seconds, "tgs from step_seconds"
    if tgs and not step_seconds:
        return tokens / tgs, tgs, "step_seconds from tgs"
    return step_seconds, tgs, ""


def contradiction(step_seconds: float, tgs: float, gpus: int, tokens: int) -> str:
    """Why a step time and a rate are not of one run, whose step has ``tokens`` on all GPUs; empty where they are."""
    ratio = tgs * step_seconds * gpus / tokens
    off = abs(ratio - 1)
    if off <= AGREE or off <= AGREE + _rounding(tgs, step_seconds * 1000):
        return ""
    return (
        f"{tgs:.6g} tokens/s/GPU over {step_seconds:.6g} s and {gpus} GPUs are {ratio:.3g} times the {tokens:,} tokens of"
        f" global_batch_size x seq_length{slips.product(ratio, gpus)}"
    )


def _rounding(*figures: float) -> float:
    """The relative error that printing with so few digits may have made, of all figures together."""
    return sum(0.5 * 10.0 ** -_decimals(value) / value for value in figures)


def _decimals(value: float) -> int:
    text = f"{value:.6g}"
    return len(text.partition(".")[2]) if "." in text and "e" not in text else 0
