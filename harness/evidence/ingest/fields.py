"""Framework and software date from the texts that people write."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from projector import frameworks
from projector.io.files import read_yaml

_TOLD = read_yaml(Path(__file__).with_name("software.yaml"))


def framework_slug(text: str) -> str:
    """Returns a framework's short name; an unknown one becomes a slug of its own text, an empty one stays empty."""
    if profile := frameworks.find(text):
        return profile
    known = next(
        (slug for pattern, slug in _TOLD["frameworks"].items() if re.search(pattern, text, re.IGNORECASE)), None
    )
    return known or re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _months_of(text: str) -> dict[str, str]:
    """Returns versions with their months, from ``version=month`` words."""
    return dict(word.split("=") for word in text.split())


_RELEASED = {pattern: _months_of(text) for pattern, text in _TOLD["releases"].items()}
_MLPERF = _months_of(_TOLD["mlperf"])
_NAMES = {name: number for number, name in enumerate(_TOLD["months"].split(), 1)}
_LEFT_STANDING = 14  # months; code of the round before the last one is still submitted (24.09 in v5.1, its Dockerfiles)


@lru_cache(maxsize=4096)
def software_date(*texts: str) -> str:
    """Returns ``YYYY-MM`` of the software, from the first text that states one (else empty).

    Understood: container releases (``25.09``, ``v26.2``, ``nv25.03``), ISO dates, ``Feb 2022``, Megatron-Core and PyTorch
    versions (month of their release), arXiv numbers; a year alone gives its January. A release much older than the MLPerf
    round beside it is a system description left standing (Oracle and Lenovo state 23.09 in rounds v5.0 and v5.1, for B200,
    where the Dockerfiles of the submissions start from 24.09 to 25.09): the round counts.
    """
    for text in texts:
        stated = (_container(text), *(_dated(text, way) for way in ("iso", "named")), _mlperf(text), _released(text))
        if month := next(filter(None, (*stated, *(_dated(text, way) for way in ("arxiv", "year")))), ""):
            due = _mlperf(text)
            return due if _months_since_zero(due) - _months_since_zero(month) > _LEFT_STANDING else month
    return ""


def _container(text: str) -> str:
    """Returns the month of the last container release in a text: it holds what is newest of the stack."""
    named = re.finditer(
        r"(?:nemo|release|nv|maxtext[-_ ]v?|pytorch[: ]|:v|image v|\bv|container)\s*(2\d)\.(\d\d?)\b", text, re.I
    )
    bare = re.fullmatch(r"\s*v?(2[2-9])\.(\d\d?)(?:\.\d+)?\s*", text)
    return max((_month(match[1], match[2]) for match in ([bare] if bare else named)), default="")


def _dated(text: str, way: str) -> str:
    """Returns the month of the first pattern of this way of writing dates that the text has."""
    date = next((match for pattern in _TOLD["dates"][way] if (match := re.search(pattern, text))), None)
    return _month(date["y"], date.groupdict().get("m") or "1") if date else ""


def _mlperf(text: str) -> str:
    match = re.search(r"(?:mlperf training v|training_results_v)(\d\.\d)", text, re.I)
    return _MLPERF.get(match[1], "") if match else ""


def _released(text: str) -> str:
    """Returns the release month of Megatron-Core, else PyTorch (of two versions the second), else Paddle."""
    for pattern, months in _RELEASED.items():
        if (match := re.search(pattern, text, re.I)) and (month := months.get(match[match.lastindex or 1])):
            return month
    return ""


def _months_since_zero(date: str) -> int:
    return int(date[:4]) * 12 + int(date[5:]) if date else 0


def _month(year: str, month: str) -> str:
    """Returns ``YYYY-MM`` of a year of two or four digits and a month or its name; empty where no calendar has it."""
    number = int(month) if month.isdigit() else _NAMES.get(month.lower(), 0)
    return f"{'20' if len(year) == 2 else ''}{year}-{number:02d}" if 1 <= number <= 12 else ""
