"""Framework and software date from the texts that people write."""

from __future__ import annotations

import re

from projector import frameworks

# Where no framework file knows the text. First match wins: the launcher's name (Primus, NeMo) says less than the trainer
# behind it, but where both run Megatron the product that sets the defaults is meant.
_FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (r"primus.*max\s*text|max\s*text", "maxtext"),
    (r"torch\s*titan", "torchtitan"),
    (r"megatron[- ]?deepspeed", "megatron-deepspeed"),
    (r"auto\s*model", "automodel"),
    (r"mlperf|training_results_v\d", "mlperf"),
    (r"megatron[- ]?bridge", "megatron-bridge"),
    (r"primus", "primus"),
    (r"nemo", "nemo"),
    (r"foundry|composer", "llm-foundry"),
    (r"megatron|mcore", "megatron-lm"),
    (r"deepspeed|axolotl", "deepspeed"),
    (r"torchtune|pytorch|olmo|hugging\s*face|transformers|fsdp", "pytorch"),
)


def framework_slug(text: str) -> str:
    """A framework's short name; an unknown one becomes a slug of its own text, an empty one stays empty."""
    if known := frameworks.find(text):
        return known
    for pattern, slug in _FRAMEWORKS:
        if re.search(pattern, text, re.IGNORECASE):
            return slug
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def _months_of(text: str) -> dict[str, str]:
    """Versions with their months, from ``version=month`` words."""
    return dict(word.split("=") for word in text.split())


# Months of release: Megatron-Core (NVIDIA/Megatron-LM releases) and PyTorch (pytorch/pytorch releases).
_MCORE = _months_of(
    """
    0.5=2024-03 0.6=2024-04 0.7=2024-06 0.8=2024-08 0.9=2024-10 0.10=2025-02 0.11=2025-03 0.12=2025-05
    0.13=2025-07 0.14=2025-10 0.15=2025-12 0.16=2026-02
    """
)
_TORCH = _months_of(
    """
    1.13=2022-10 2.0=2023-03 2.1=2023-10 2.2=2024-01 2.3=2024-04 2.4=2024-07 2.5=2024-10 2.6=2025-01
    2.7=2025-04 2.8=2025-08 2.9=2025-10 2.10=2026-01
    """
)


# PaddlePaddle/Paddle releases.
_PADDLE = {"2.5.0": "2023-06", "2.5.1": "2023-07", "2.5.2": "2023-11", "2.6.0": "2024-01"}
# Months in which the results of an MLPerf Training round were due (mlcommons/training_results_v*).
_MLPERF = {"3.0": "2023-05", "3.1": "2023-10", "4.0": "2024-05", "4.1": "2024-10", "5.0": "2025-05", "5.1": "2025-10"}
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
    for pattern, months in (
        (r"(?:megatron|mcore|core)\D{0,8}?[rv]?(0\.\d+)", _MCORE),
        (r"torch\s*(\d\.\d+)(?:\.\d+)?(?:-(\d\.\d+))?", _TORCH),
        (r"paddle\s*(\d\.\d+(?:\.\d+)?)", _PADDLE),
    ):
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
