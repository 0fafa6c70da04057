"""Logs of GPT-NeoX: Megatron-LM's line behind ``samples/sec: …``, and a dump of its own words.

Facts: EleutherAI/gpt-neox@ea7aefd8 megatron/logging.py (the line), megatron/neox_arguments/neox_args.py (the dump).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.evidence.ingest.logs import megatron
from harness.evidence.ingest.logs.dumps import renamed
from harness.evidence.ingest.logs.events import Arguments, Event
from harness.evidence.ingest.logs.protocol import Lines
from harness.evidence.ingest.logs.words import WORDS
from projector.intake.values import literal

NAME = "gpt-neox"

_SAID = re.compile(r"\.{0,3}(?:updated|default)$")


def events(lines: Lines) -> Iterator[Event]:
    for event in megatron.events(lines):
        yield _named(event) if isinstance(event, Arguments) else event


def _named(found: Arguments) -> Arguments:
    """The dump under Megatron-LM's names. Its launcher prints a world of its own, of one: that is none of the job's."""
    values = {name: _SAID.sub("", str(value)) for name, value in found.values.items()}
    return renamed(found._replace(values=values), WORDS[NAME])


def configuration(found: Arguments) -> Mapping[str, object]:
    """All that was dumped and set, under its own names."""
    own = ((theirs, found.values[ours]) for theirs, ours in WORDS[NAME].items() if ours in found.values)
    read = ((name, literal(value)) for name, value in (*own, *found.unread))
    return {name: value for name, value in read if value is not None}
