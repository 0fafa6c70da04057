"""Dialects of lines as data: a YAML file each under ``dialects/`` says what a trainer's lines look like and mean.

A pattern may use ``$number``, ``$scaled`` (``4.71K``), ``$loss`` (a number, NaN or infinity), ``$step``, ``$clock``,
``$stamp``, ``$iteration`` (a line of Megatron-LM's with its time), ``$configuration`` (a line ``key: value``) and ``$words``
(any key of ``words`` and ``same``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.evidence.ingest.logs.clock import CLOCK, SHORTEST, STAMP
from harness.evidence.ingest.logs.dumps import CONFIGURATION
from harness.evidence.ingest.logs.events import Event, Lines
from harness.evidence.ingest.logs.iteration_line import ITERATION
from harness.evidence.ingest.logs.numbers import NUMBER, SCALED
from projector.dataclass import dataclass
from projector.errors import InputError
from projector.intake.aliases import renamings
from projector.intake.dialect import words
from projector.io.files import read_yaml
from projector.workload.structure import parse_dataclass


def same(*names: str) -> dict[str, str]:
    """Returns a mapping of names that a framework shares with Megatron-LM."""
    return {name: name for name in names}


def one_of(names: Iterable[str]) -> str:
    """Returns a regular expression, one group, of any of these names; of two that begin alike the longer matches."""
    return f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"


_TOLD = read_yaml(Path(__file__).with_name("words.yaml"))
#: Arguments that every Llama has.
LLAMA: Mapping[str, object] = _TOLD.pop("llama")
#: Framework → its own name → Megatron-LM's.
WORDS: Mapping[str, Mapping[str, str]] = {
    framework: {**renamings(framework), **same(*words(told.pop("same", ""))), **told}
    for framework, told in _TOLD.items()
}


#: What :meth:`Dialect.weigh` answers for a line with a step; 1 for another line of this trainer, 0 for foreign ones.
STEP = 2
FOLDER = Path(__file__).parent / "dialects"
_MACROS = {
    "number": NUMBER,
    "scaled": SCALED,
    "loss": rf"(?:{NUMBER}|-?(?:nan|inf))",
    "step": r"(?P<step>[0-9]{1,15})",
    "clock": CLOCK,
    "stamp": STAMP,
    "iteration": ITERATION,
    "configuration": CONFIGURATION.pattern,
}
_MACRO = re.compile(rf"\$({'|'.join((*_MACROS, 'words'))})")
#: A word that a pattern begins with: found by its letters first, and then by what stands before, it costs a fifth.
_WORD_FIRST = re.compile(r"^\\b(\w{2,40}:)(?![?*+{])")
_NOTHING = re.compile(r"(?!)")

Patterns = Mapping[str, re.Pattern[str]]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What the lines of a trainer look like. All patterns are texts here, and compiled when a line may need them.

    ``about``: what it is, and where the meaning of its figures stands in its code. ``framework``: whether the trainer is
    one, and not run by any. ``steps``: text of a line → the pattern that tells a step by it; its groups ``step``, ``s``
    (``minutes`` before it) or ``ms`` are the step's number and its time, a ``$clock`` or a ``$stamp`` in it (or
    ``clock_s``, ``clock_ms``) the time so far, at least ``shortest`` seconds of it; others are figures. ``heads``: a line
    with the ``step`` of those that follow it without one. ``hints``: texts of other lines of this trainer. ``quotient``: two
    patterns whose figures, the first over the second, are the mean seconds of a step. ``figures``:
    fields of a step beside number and time → pattern with the number as its first group; ``allocated_mib``,
    ``reserved_bytes`` and the like are memory. ``memory``: the same of lines of their own; ``gpus``: their number.
    ``settings``: pattern of a line with a key and a value, ``words``: key → Megatron-LM's name (``tokens``: the batch in
    tokens; ``a x b``: a product of two), ``same``: keys that are Megatron-LM's, ``megatron_words``: with all that
    Megatron-Core's configuration has; fewer than ``least`` of them are a coincidence. ``checkpoint``, ``evaluation``:
    patterns of lines that tell one. ``hook``: ``module:Class`` of a :class:`Trainer` that reads what YAML cannot say, or
    ``module:function`` from the lines to their events; ``late``: it tells steps when it has read on. ``rank``: where a line
    is of two, the lower one counts.
    """

    name: str
    about: str = ""
    framework: bool = True
    steps: Mapping[str, str] = field(default_factory=dict)
    heads: str = ""
    hints: tuple[str, ...] = ()
    quotient: tuple[str, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, str] = field(default_factory=dict)
    gpus: str = ""
    settings: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    megatron_words: bool = False
    least: int = 2
    shortest: float = SHORTEST
    checkpoint: str = ""
    evaluation: str = ""
    hook: str = "trainer:Trainer"
    late: bool = False
    rank: int = 0

    @property
    def marks(self) -> tuple[str, ...]:
        """Returns texts of which every line of this dialect holds at least one."""
        return (*self.steps, *self.hints)

    @cached_property
    def known(self) -> Mapping[str, str]:
        """Maps each key of a setting to Megatron-LM's name."""
        return {**(WORDS["megatron"] if self.megatron_words else {}), **self.words, **same(*self.same)}

    @cached_property
    def step_patterns(self) -> Patterns:
        return {text: self.compiled(pattern) for text, pattern in self.steps.items()}

    @cached_property
    def figure_patterns(self) -> Patterns:
        return {name: self.compiled(pattern) for name, pattern in self.figures.items()}

    def compiled(self, pattern: str) -> re.Pattern[str]:
        """Compiles ``pattern`` with its macros expanded; an empty one never matches."""
        macros = {**_MACROS, "words": one_of(self.known)}
        led = _WORD_FIRST.sub(r"\1(?<=\\b\1)", pattern, count=1)
        return re.compile(_MACRO.sub(lambda match: macros[match[1]], led)) if pattern else _NOTHING

    def weigh(self, line: str) -> int:
        """Returns 0 for a line of another dialect, 1 for a line of this one, 2 (:data:`STEP`) for a step."""
        if any(text in line and self.step_patterns[text].search(line) for text in self.steps):
            return STEP
        return int(any(text in line for text in self.hints))

    def events(self, lines: Lines) -> Iterator[Event]:
        """Yields events in the order of the log. Never raises for any text."""
        module, _, name = self.hook.partition(":")
        reader: Any = getattr(import_module(f"harness.evidence.ingest.logs.{module}"), name)
        stream: Iterator[Event] = reader(self).read(lines) if isinstance(reader, type) else reader(lines)
        return stream


def read(path: Path) -> Dialect:
    """Returns the dialect of a file, named after the file. Raises :class:`InputError` for a key that no dialect has."""
    content = read_yaml(path, "a mapping that says what the lines of a trainer look like")
    named = {**content, "name": path.stem} if isinstance(content, Mapping) else content
    parsed, wrong = parse_dataclass(Dialect, named, str(path), "")
    if parsed is None:
        raise InputError(wrong)
    return parsed


def read_all(folder: Path = FOLDER) -> tuple[Dialect, ...]:
    """Returns every dialect of a folder, by rank and name."""
    return tuple(sorted(map(read, folder.glob("*.yaml")), key=lambda dialect: (dialect.rank, dialect.name)))
