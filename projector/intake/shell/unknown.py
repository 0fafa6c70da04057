"""Represents what a script does not say by itself as marks inside the text of its values.

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
    """A value that a script does not say. ``source``: as written (``$NNODES``, ``$(nproc)``); ``settle``: the flag for it.

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
    """Holds the marks of one evaluation. ``node_gpus``: GPUs of each machine, None where the caller does not know them;
    ``counted``: what in the script asked for this number; ``judged``: unset values that conditions compared."""

    def __init__(self, node_gpus: int | None = None) -> None:
        self.node_gpus = node_gpus
        self.counted: dict[str, None] = {}
        self._items: list[tuple[Unknown, ...]] = []
        self._index: dict[tuple[Unknown, ...], int] = {}
        self.judged: dict[Unknown, None] = {}

    def mark(self, *unknown: Unknown) -> str:
        """Returns the text that stands for a value which ``unknown`` decide."""
        key = tuple(dict.fromkeys(unknown))
        if key not in self._index:
            self._index[key] = len(self._items)
            self._items.append(key)
        return f"{_OPEN}{self._index[key]}{_CLOSE}"

    def node(self, asked: str) -> str:
        """Returns the number of GPUs of a machine, which ``asked`` in the script asks for; a mark where it is not known."""
        if self.node_gpus is None:
            settle = "--gpu NAME or --cluster NAME (which say how many a node has), --env CUDA_VISIBLE_DEVICES=0,1,…"
            return self.mark(Unknown(f"{asked} (the GPUs of a machine)", f"{settle} or --gpus N"))
        self.counted[asked] = None
        return str(self.node_gpus)

    def within(self, text: str) -> tuple[Unknown, ...]:
        """Returns the unknowns that the marks in ``text`` stand for, each once."""
        unknowns = [item for index in MARK.findall(text) for item in self._items[int(index)]]
        return tuple(dict.fromkeys(unknowns))

    def judge(self, text: str) -> str:
        """Returns ``text`` as a shell compares it, and remembers unset values in it, since they choose a branch."""
        self.judged |= dict.fromkeys(item for item in self.within(text) if item.unset)
        return self.as_shell(text)

    def as_shell(self, text: str) -> str:
        """Returns ``text`` without the marks of unset values, which a shell expands to nothing; other marks stay."""
        return MARK.sub(lambda match: "" if self._unset(match[1]) else match[0], text)

    def shown(self, text: str) -> str:
        """Returns ``text`` for people: marks appear as the script writes their sources."""
        return MARK.sub(lambda match: " and ".join(item.source for item in self._items[int(match[1])]), text)

    def _unset(self, index: str) -> bool:
        return all(item.unset for item in self._items[int(index)])


def is_known(text: str) -> bool:
    """Says whether ``text`` holds no mark."""
    return _OPEN not in text


def clean(text: str) -> str:
    """Replaces characters of a file's ``text`` that could pass for marks."""
    return _PRIVATE.sub("\ufffd", text)


def word_set(text: str) -> frozenset[str]:
    """Returns the set of words of ``text``."""
    return frozenset(text.split())


def listed(name: str) -> frozenset[str]:
    """Returns the words of the list ``name`` in ``lists.txt``; none for a list that is not there."""
    match = re.search(rf"^{name}:((?:.*\n)(?: .*\n)*)", Path(__file__).with_name("lists.txt").read_text(), re.MULTILINE)
    return word_set(match[1] if match else "")
