"""What dates a stack: the name of a container image, the options that a Megatron-LM no longer takes.

NVIDIA's images are named by year and month (NVIDIA Deep Learning Frameworks support matrix), AMD's training images as well
(ROCm documentation, version history of the training images: ``v25.10``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from projector.intake.loaded import Loaded
from projector.intake.tables import table

_NVIDIA = (
    r"(?:nvcr\.io[/#+][\w/+-]*?|nvidia[/+])?\b(?:pytorch|nemo|jax|maxtext)[:_+]v?(?P<ny>[12]\d)\.(?P<nm>0[1-9]|1[0-2])"
)
_AMD = r"rocm/(?:megatron-lm|primus|pytorch-training|jax-training):(?:[a-z]+-)?v(?P<y>2\d)\.(?P<m>1[0-2]|0?[1-9])"
_MONTHS_LAST, _MONTHS_FIRST = (
    {name: month for month, names in table("megatron", key).items() for name in names.split()}
    for key in ("last", "first")
)
_IMAGE = re.compile(rf"(?:{_AMD}|{_NVIDIA})(?!\d)[\w.-]*")


def dated(loaded: Loaded, text: str) -> Loaded:
    """``loaded`` of the month of the one image that ``text`` names outside comments; as it is where it names none, or
    images of several months."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#") or "#SBATCH" in line)
    found = {
        f"20{match['y'] or match['ny']}-{int(match['m'] or match['nm']):02d}": match[0]
        for match in _IMAGE.finditer("\n".join(lines))
    }
    if loaded.framework_date or len(found) != 1:
        return loaded
    ((month, image),) = found.items()
    return replace(loaded, framework_date=month, assumed=(f"framework_date={month} ({image})", *loaded.assumed))


def era(words: Iterable[str]) -> tuple[str, str]:
    """(the last month of a Megatron-LM that takes all the options in ``words``, the option that says so); empty where none
    does, and where another is newer, as in forks that keep old options."""
    named = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    month, name = min(((_MONTHS_LAST[name], name) for name in named if name in _MONTHS_LAST), default=("", ""))
    first = max((_MONTHS_FIRST[name] for name in named if name in _MONTHS_FIRST), default="")
    return (month, f"--{name.replace('_', '-')}") if first <= month else ("", "")
