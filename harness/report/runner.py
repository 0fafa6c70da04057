"""What a runner of GitHub Actions would read as a command, made text: ids and file names are not ours to trust.

The runner looks at every line of stdout and stderr (actions/runner, ``ActionCommand.TryParseV2`` and ``TryParse``): one that
begins with ``::`` after white space is a command, and so is ``##[`` anywhere. A line ends at a line feed or a carriage
return.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO, cast


class Guarded:
    """A stream whose lines are no commands; whatever else is asked of it the stream behind it answers."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._blank = True  # nothing but white space since the line began
        self._colon = ""  # the first colon of a line, held back to see whether another follows

    def write(self, text: str) -> int:
        self.stream.write(self._made(text))
        return len(text)

    def _made(self, text: str) -> str:
        made = []
        for piece in re.split(r"([\r\n])", text.replace("##[", "## [")):
            if piece in ("\r", "\n"):
                made.append(self._colon + piece)
                self._blank, self._colon = True, ""
            elif piece:
                made.append(self._line(piece))
        return "".join(made)

    def _line(self, piece: str) -> str:
        """A piece of one line."""
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

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> object:
        return cast(object, getattr(self.stream, name))


@contextmanager
def commandless(environment: Mapping[str, str]) -> Iterator[None]:
    """Stdout and stderr without commands while the block runs, where a runner listens."""
    if environment.get("GITHUB_ACTIONS") != "true":
        yield
        return
    with redirect_stdout(cast(TextIO, Guarded(sys.stdout))), redirect_stderr(cast(TextIO, Guarded(sys.stderr))):
        yield


def unguarded(stream: TextIO) -> TextIO:
    """The stream for commands of our own."""
    return stream.stream if isinstance(stream, Guarded) else stream
