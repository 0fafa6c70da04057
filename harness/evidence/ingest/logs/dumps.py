"""Arguments printed at the head of a log, collected line by line: dotted (Megatron-LM, DeepSpeed), or ``key: value``.

Values stay texts until :func:`projector.intake.values.literal` reads them: nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.evidence.ingest.logs.events import Arguments
from projector.intake.megatron_args import dumped

#: A line of a printed YAML configuration, behind the prefix of a rank (``0: ``, ``[rank0]: ``, ``job/0 ``).
CONFIGURATION = re.compile(
    r"^(?:[^\s{]{0,40}(?::|/[0-9]{1,6})\s)?\s{0,40}([a-z_][a-z0-9_]{1,60}):\s{1,9}([^\s|{\[&*!][^|]{0,200})$"
)
_LEAST = 8  # arguments of a dump: fewer are a coincidence (Megatron-LM prints some 300)
_LONGEST = 4000  # characters of an argument's line; lists of data files are longer, and say nothing of time
_MOST = 5000  # arguments kept of one dump


class DottedDump:
    """Collects lines ``name ....... value`` behind any prefix; the first value of a name counts (ranks may repeat it)."""

    def __init__(self, least: int = _LEAST) -> None:
        self._least = least
        self._found: dict[str, object] = {}
        self._line = 0
        self._extra: dict[str, object] = {}
        self._begun = self._ended = False

    def feed(self, line: str, number: int) -> bool:
        """Takes one line; returns whether the line was an argument."""
        argument = dumped(line) if len(line) <= _LONGEST and not self._ended else None
        if argument is None or len(self._found) >= _MOST:
            return False
        if not self._found:
            self._line = number
        self._found.setdefault(*argument)
        return True

    def add(self, settings: Mapping[str, object], number: int) -> None:
        """Adds settings that the trainer prints in another form."""
        self._line = self._line or number
        self._found = {**settings, **self._found}

    def ends(self) -> bool:
        """Marks the dump's last line; returns whether all of the dump was seen. The rest of one that begins before the log
        is dropped: arguments that the rest lacks would be taken for not set."""
        self._ended = complete = self._begun or not self._found
        if not complete:
            self._found.clear()
        return complete

    def begins(self) -> None:
        self._begun, self._ended = True, False

    def note(self, name: str, value: object) -> None:
        """Adds an argument that another line states."""
        self._extra.setdefault(name, value)

    def take(self) -> tuple[Arguments, ...]:
        """Returns the dump so far and starts anew; none for fewer lines than a dump has."""
        if not self._found:
            return ()
        values, line, extra = self._found, self._line, self._extra
        self._found, self._extra, self._begun = {}, {}, False
        if len(values) < self._least:
            return ()
        missing = {name: value for name, value in extra.items() if values.get(name) in (None, "None")}
        return (Arguments({**values, **missing}, line, len(values)),)


def renamed(found: Arguments, words: Mapping[str, str]) -> Arguments:
    """Returns a dump under the names of ``words`` (name in the dump → Megatron-LM's)."""
    known = {ours: found.values[theirs] for theirs, ours in words.items() if theirs in found.values}
    others = tuple((name, str(value)) for name, value in found.values.items() if name not in words)
    return found._replace(values=known, unread=others)


class KeyedDump:
    """Collects keys and values of lines of one pattern, under the names that ``known`` translates (others are counted).

    A key may stand again with another value (a configuration that is printed as it is put together): the last counts.
    """

    def __init__(self, pattern: re.Pattern[str], known: Mapping[str, str], least: int = 3) -> None:
        self._pattern, self._known, self._least = pattern, known, least
        self.found: dict[str, object] = {}
        self._others: dict[str, str] = {}
        self._stated = 0
        self._line = 0

    def feed(self, line: str, number: int) -> bool:
        known = False
        for match in self._pattern.finditer(line) if len(line) <= _LONGEST else ():
            self._stated += 1
            name = self._known.get(match[1])
            if name is not None:
                known, self._line = True, self._line or number
                self.found[name] = match[2].strip().strip("'\"")
            elif len(self._others) < _MOST:
                self._others[match[1]] = match[2].strip()
        return known

    def take(self) -> tuple[Arguments, ...]:
        """Returns the dump so far and starts anew; none for fewer keys than a dump has."""
        values, others, line, stated = self.found, self._others, self._line, self._stated
        self.found, self._others, self._line, self._stated = {}, {}, 0, 0
        return (Arguments(values, line, stated, tuple(others.items())),) if len(values) >= self._least else ()
