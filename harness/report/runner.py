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
    """A stream whose lines are no commands; all other methods are those of the stream behind it. What has no end of a line
    yet is held back until it has one, or until it is flushed and can be no command any more."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.unfinished = ""

    def write(self, text: str) -> int:
        *lines, self.unfinished = re.split(r"(?<=[\r\n])", self.unfinished + text)
        self.stream.write("".join(map(_no_command, lines)))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.unfinished.strip() not in ("", ":"):
            self.stream.write(_no_command(self.unfinished))
            self.unfinished = ""
        self.stream.flush()

    def __getattr__(self, name: str) -> object:
        return cast(object, getattr(self.stream, name))


def _no_command(line: str) -> str:
    return re.sub(r"^(\s*):(?=:)", r"\1: ", line.replace("##[", "## ["))


@contextmanager
def commandless(environment: Mapping[str, str]) -> Iterator[None]:
    """Keeps stdout and stderr free of commands while the block runs, where a runner listens."""
    if environment.get("GITHUB_ACTIONS") != "true":
        yield
        return
    streams = Guarded(sys.stdout), Guarded(sys.stderr)
    with redirect_stdout(cast(TextIO, streams[0])), redirect_stderr(cast(TextIO, streams[1])):
        try:
            yield
        finally:
            for stream in streams:
                stream.write("\n" if stream.unfinished else "")


def unguarded(stream: TextIO) -> TextIO:
    """Returns the stream on which commands of our own can be written."""
    return stream.stream if isinstance(stream, Guarded) else stream
