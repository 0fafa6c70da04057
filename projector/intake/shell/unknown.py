"""What a script does not say by itself, as marks inside the text of its values.

A mark is a private-use character pair round an index; text operations (joining, splitting, quoting, evaluating again)
carry it along, so a value that came from an unset variable or a command is recognised wherever it ends up.
"""

from __future__ import annotations

import re
from pathlib import Path

from projector.dataclass import dataclass

_OPEN, _CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_PRIVATE = re.compile("[\ue000-\ue003]")


@dataclass(frozen=True, slots=True)
class Unknown:
    """``source`` as the script has it (``$NNODES``, ``$(nproc)``); ``settle``: the flag that gives it.

    ``unset``: a variable or argument that is simply not set, which a shell expands to nothing. ``plain``: a word or a
    path (a date, a host's name) that holds no options and no counts. ``filled``: never empty.
    """

    source: str
    settle: str = ""
    unset: bool = False
    plain: bool = False
    filled: bool = False

    def __str__(self) -> str:
        return f"{self.source} ({'not set' if self.unset else 'known only when it runs'})"


class Unknowns:
    """The marks of one evaluation. ``node_gpus``: GPUs of every machine that it runs on, where whoever asks knows them;
    ``counted``: what of the script asked for them."""

    def __init__(self, node_gpus: int | None = None) -> None:
        self.node_gpus = node_gpus
        self.counted: dict[str, None] = {}
        self._items: list[tuple[Unknown, ...]] = []
        self._index: dict[tuple[Unknown, ...], int] = {}
        self.judged: dict[Unknown, None] = {}

    def mark(self, *unknown: Unknown) -> str:
        """Text that stands for a value which ``unknown`` decide."""
        key = tuple(dict.fromkeys(unknown))
        if key not in self._index:
            self._index[key] = len(self._items)
            self._items.append(key)
        return f"{_OPEN}{self._index[key]}{_CLOSE}"

    def node(self, asked: str) -> str:
        """The GPUs of a machine, for which ``asked`` of the script asks; a mark where nobody knows them."""
        if self.node_gpus is None:
            settle = "--gpu NAME or --cluster NAME (which say how many a node has), --env CUDA_VISIBLE_DEVICES=0,1,…"
            return self.mark(Unknown(f"{asked} (the GPUs of a machine)", f"{settle} or --gpus N"))
        self.counted[asked] = None
        return str(self.node_gpus)

    def within(self, text: str) -> tuple[Unknown, ...]:
        """What the marks in ``text`` stand for, each once."""
        found = [item for index in MARK.findall(text) for item in self._items[int(index)]]
        return tuple(dict.fromkeys(found))

    def judge(self, text: str) -> str:
        """``text`` as a shell compares it; what is not set in it is remembered, for it chose a branch."""
        self.judged |= dict.fromkeys(item for item in self.within(text) if item.unset)
        return self.as_shell(text)

    def as_shell(self, text: str) -> str:
        """``text`` as a shell would have it where unset means nothing; marks of other kinds stay."""
        return MARK.sub(lambda match: "" if self._unset(match[1]) else match[0], text)

    def shown(self, text: str) -> str:
        """``text`` for people: marks as the script writes them."""
        return MARK.sub(lambda match: " and ".join(item.source for item in self._items[int(match[1])]), text)

    def _unset(self, index: str) -> bool:
        return all(item.unset for item in self._items[int(index)])


def is_known(text: str) -> bool:
    """Whether ``text`` holds no mark."""
    return _OPEN not in text


def clean(text: str) -> str:
    """``text`` of a file, without characters that could pass for marks."""
    return _PRIVATE.sub("\ufffd", text)


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def listed(name: str) -> frozenset[str]:
    """The words of a list in ``lists.txt``."""
    found = re.search(rf"^{name}:((?:.*\n)(?: .*\n)*)", Path(__file__).with_name("lists.txt").read_text(), re.MULTILINE)
    return word_set(found[1] if found else "")
