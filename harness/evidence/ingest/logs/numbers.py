"""Numbers as logs print them: thousands separated by commas, exponents, units; a broken one is None, never an error.

A comma is never a decimal point here: ``6000,5`` is no number, and ``6,123`` is one only where nothing but a count can
stand (:func:`finite`), never as a time (:func:`measured`).
"""

from __future__ import annotations

import math
import re

#: What stands behind no number: more of it, by whichever point or comma.
_WHOLE = r"(?![0-9]|[.,][0-9])"
#: A positive number in a regular expression, as one group.
NUMBER = rf"([0-9][0-9,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{{1,3}})?{_WHOLE})"
#: The same with a unit of thousands behind it, for :func:`scaled`.
SCALED = rf"([0-9][0-9,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{{1,3}}|[KMGBT](?![A-Za-z]))?{_WHOLE})"
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
#: Auxiliary losses (``load_balancing_loss``, ``mtp_1 loss``) stand beside the one of the language model.
_BEFORE = r"(?:(?<=lm loss)|(?<=reduced_train_loss)|(?<=\s\sloss)|(?<=[|,;]\sloss))"
LOSS = re.compile(rf"loss{_BEFORE}[:=]\s{{0,9}}{NUMBER}")
_COMMAS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_MOST = 1e18  # of a number of a document
_MOST_DIGITS = 18  # of an iteration or a batch: more is no count


def finite(text: str) -> float | None:
    """Reads a finite number, else None; commas separate thousands, and one behind the number is none of it."""
    try:
        value = float(_ungrouped(text) if "," in text else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def measured(text: str) -> float | None:
    """Reads a time, a size or another number with decimals as :func:`finite` does, but returns None for a comma without a
    point, which may be another locale's decimal one."""
    return None if "," in text.rstrip(",") and "." not in text else finite(text)


def _ungrouped(text: str) -> str:
    bare = text.rstrip(",")
    return bare.replace(",", "") if _COMMAS.match(bare) else bare


def real(value: object, least: float = -_MOST) -> float | None:
    """Returns a number of a JSON document, at least ``least`` and no larger than a count can be; None for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < _MOST
    return float(value) if good else None  # type: ignore[arg-type]


def positive(value: object) -> float | None:
    """Returns a number of a JSON document above zero; None for anything else."""
    return real(value, 0.0) or None


def group(match: re.Match[str] | None) -> float | None:
    """Reads the first group of a match as a number; None without a match."""
    return finite(match[1]) if match else None


def count(match: re.Match[str] | None) -> int | None:
    """Reads the first group of a match as a count; None without a match."""
    return whole(match[1]) if match else None


def measure(match: re.Match[str] | None, index: int = 1) -> float | None:
    """Reads a group of a match as a time, by :func:`measured`; None without a match."""
    return measured(match[index]) if match else None


def loss(line: str) -> float | None:
    """Returns the loss of the language model that a step's line prints; None where it prints none, or NaN."""
    return group(LOSS.search(line)) if "loss" in line else None


def counted(text: str) -> int | None:
    """Reads a count that may be printed as a float (``1.01e+3``); None where it is no whole number."""
    value = finite(text)
    return int(value) if value is not None and 0 <= value < 10**_MOST_DIGITS and value == int(value) else None


def scaled(text: str) -> float | None:
    """Reads a number with a unit of thousands (``4.71K``, ``26.2M``, ``1.1B``), as some trainers shorten theirs."""
    factor = _SCALES.get(text[-1:].upper(), 1.0)
    value = finite(text) if factor == 1.0 else measured(text[:-1])
    return None if value is None else value * factor


def whole(text: str) -> int | None:
    """Reads a count; None where the text is none, or has more digits than any count."""
    bare = _ungrouped(text)
    return int(bare) if bare.isdecimal() and len(bare) <= _MOST_DIGITS else None
