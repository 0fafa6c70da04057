"""Keeps a runner of GitHub Actions from reading input as commands: ids and file names come from outside. The runner
looks at every line of stdout and stderr (actions/runner, ``ActionCommand.TryParseV2`` and ``TryParse``): one that begins
with ``::`` after white space is a command, and so is ``##[`` anywhere. A line ends at a line feed or a carriage return."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO, cast


class Guarded:
    """A stream whose lines are no commands; all other methods are those of the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._blank = True  # nothing but white space since the line began
        self._colon = ""  # the first colon of a line, held back to see whether another follows

    def write(self, text: str) -> int:
        self.stream.write(self._without_commands(text))
        return len(text)

    def _without_commands(self, text: str) -> str:
        pieces = []
        for piece in re.split(r"([\r\n])", text.replace("##[", "## [")):
            if piece in ("\r", "\n"):
                pieces.append(self._colon + piece)
                self._blank, self._colon = True, ""
            elif piece:
                pieces.append(self._line(piece))
        return "".join(pieces)

    def _line(self, piece: str) -> str:
        """Returns a piece of one line in which no command begins."""
        if not self._blank:
            return piece
        whole = self._colon + piece
        self._colon = ""
        bare = whole.lstrip()
        if not bare:
            return whole
        if bare == ":":
            self._colon = whole
            return ""
        self._blank = False
        return whole.replace("::", ": :", 1) if bare.startswith("::") else whole

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return cast(object, getattr(self.stream, name))


@contextmanager
def commandless(environment: Mapping[str, str]) -> Iterator[None]:
    """Keeps stdout and stderr free of commands while the block runs, where a runner listens."""
    if environment.get("GITHUB_ACTIONS") != "true":
        yield
        return
    with redirect_stdout(cast(TextIO, Guarded(sys.stdout))), redirect_stderr(cast(TextIO, Guarded(sys.stderr))):
        yield


def unguarded(stream: TextIO) -> TextIO:
    """Returns the stream on which commands of our own can be written."""
    return stream.stream if isinstance(stream, Guarded) else stream
