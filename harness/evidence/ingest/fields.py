"""Framework and software date from the texts that people write."""

from __future__ import annotations

import re
from pathlib import Path

from projector import frameworks
from projector.io.files import read_yaml

_TOLD = read_yaml(Path(__file__).with_name("software.yaml"))


def framework_slug(text: str) -> str:
    """A framework's short name; an unknown one becomes a slug of its own text, an empty one stays empty."""
    if profile := frameworks.find(text):
        return profile
    known = next(
        (slug for pattern, slug in _TOLD["frameworks"].items() if re.search(pattern, text, re.IGNORECASE)), None
    )
    return known or re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def _months_of(text: str) -> dict[str, str]:
    """Versions with their months, from ``version=month`` words."""
    return dict(word.split("=") for word in text.split())


_RELEASED = {pattern: _months_of(text) for pattern, text in _TOLD["releases"].items()}
_MLPERF = _months_of(_TOLD["mlperf"])
_LEFT_STANDING = 14  # months; code of the round before the last one is still submitted (24.09 in v5.1, its Dockerfiles)


def software_date(*texts: str) -> str:
    """``YYYY-MM`` of the software, from the first text that states one (else empty).

    Understood: container releases (``25.09``, ``v26.2``, ``nv25.03``), ISO dates, ``Feb 2022``, Megatron-Core and
    PyTorch versions (month of their release), arXiv numbers; a year alone gives its January. A release much older
    than the MLPerf round beside it is a system description left standing (Oracle and Lenovo state 23.09 in rounds v5.0 and
    v5.1, for B200, where the Dockerfiles of the submissions start from 24.09 to 25.09): the round counts.
    """
    for text in texts:
        for read in (_container, _iso, _month_year, _mlperf, _released, _arxiv, _year):
            if found := read(text):
                due = _mlperf(text)
                return due if _months(due) - _months(found) > _LEFT_STANDING else found
    return ""


def _container(text: str) -> str:
    """Of several releases the last: it holds what is newest of the stack."""
    named = re.finditer(
        r"(?:nemo|release|nv|maxtext[-_ ]v?|pytorch[: ]|:v|image v|\bv|container)\s*(2\d)\.(\d\d?)\b", text, re.I
    )
    bare = re.fullmatch(r"\s*v?(2[2-9])\.(\d\d?)(?:\.\d+)?\s*", text)
    return max((_month(f"20{found[1]}", found[2]) for found in ([bare] if bare else named)), default="")


def _iso(text: str) -> str:
    found = re.search(r"\b(20[12]\d)-(\d\d)(?:-\d\d)?\b", text) or re.search(
        r"(?:dev|\b)(20[12]\d)([01]\d)[0-3]\d\b", text
    )
    found = found or re.search(r"\b(20[12]\d)\.([01]\d)\.[0-3]\d\b", text)
    return _month(found[1], found[2]) if found else ""


def _month_year(text: str) -> str:
    found = re.search(r"\b([A-Z][a-z]{2})[a-z]*\.?,? (20[12]\d)\b", text)
    known = found is not None and found[1].lower() in _MONTHS
    return f"{found[2]}-{_MONTHS.index(found[1].lower()) + 1:02d}" if found and known else ""


def _mlperf(text: str) -> str:
    found = re.search(r"(?:mlperf training v|training_results_v)(\d\.\d)", text, re.I)
    return _MLPERF.get(found[1], "") if found else ""


def _released(text: str) -> str:
    """Of Megatron-Core, else PyTorch (of two versions the second), else Paddle."""
    for pattern, months in _RELEASED.items():
        if (found := re.search(pattern, text, re.I)) and (month := months.get(found[found.lastindex or 1])):
            return month
    return ""


def _arxiv(text: str) -> str:
    found = re.search(r"arXiv:(\d\d)(\d\d)\.\d+", text)
    return _month(f"20{found[1]}", found[2]) if found else ""


def _year(text: str) -> str:
    found = re.search(r"(?<![-\d.])(20[12]\d)(?![-\d])", text)
    return f"{found[1]}-01" if found else ""


def _months(date: str) -> int:
    return int(date[:4]) * 12 + int(date[5:]) if date else 0


def _month(year: str, month: str) -> str:
    return f"{year}-{int(month):02d}" if 1 <= int(month) <= 12 else ""
