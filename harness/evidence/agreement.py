"""Whether a step time and a rate are figures of one run."""

from __future__ import annotations

from harness.evidence import slips

#: Relative difference between step time × rate and the tokens of a step that rounding by a source explains.
AGREE = 0.02


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
