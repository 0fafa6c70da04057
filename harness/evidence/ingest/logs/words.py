"""Other frameworks' names for what Megatron-LM's arguments say: those that recipe fields declare, and ``words.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from projector.intake.aliases import renamings
from projector.intake.dialect import words
from projector.io.files import read_yaml


def same(*names: str) -> dict[str, str]:
    """Names that a framework and Megatron-LM have both."""
    return {name: name for name in names}


def one_of(names: Iterable[str]) -> str:
    """A regular expression, one group, of any of these names; of two that begin alike the longer."""
    return f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"


_TOLD = read_yaml(Path(__file__).with_name("words.yaml"))
#: Arguments that every Llama has.
LLAMA: Mapping[str, object] = _TOLD.pop("llama")
#: Framework → its own name → Megatron-LM's.
WORDS: Mapping[str, Mapping[str, str]] = {
    framework: {**renamings(framework), **same(*words(told.pop("same", ""))), **told}
    for framework, told in _TOLD.items()
}
