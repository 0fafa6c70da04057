"""Logs of llm.c: ``step   61/74 | loss 3.2 (+1.1z)| norm 1.48 (+nanz)| lr 3e-04 | 44.57 ms | 29.5% bf16 MFU | 91886 tok/s``.

The time is of the step, evaluation and sampling left out. ``tok/s`` and MFU are not taken: the first is a running average
over all GPUs. The head is a table ``| name | value |``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, finite
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "llm.c"

_STEP = re.compile(
    rf"^\s{{0,9}}step\s{{1,9}}([0-9]{{1,15}})/[0-9]{{1,15}} \| (?:train )?loss (?:{NUMBER}|-?nan|-?inf)\b.{{0,160}}?"
    rf"\| {NUMBER} ms \|.{{0,80}}? tok/s"
)
_SETTING = re.compile(
    r"^\|\s(micro batch size B|sequence length T|total batch size|num_processes)\s{1,40}\|\s([0-9]{1,12})\s{1,60}\|"
)
_WORDS = {
    "micro batch size B": "micro_batch_size",
    "sequence length T": "seq_length",
    "total batch size": "tokens",
    "num_processes": "world_size",
}


def weigh(line: str) -> int:
    if "tok/s" in line and _STEP.match(line):
        return STEP
    return int(line.startswith("| micro batch size B "))


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    config = KeyedDump(_SETTING, _WORDS, least=2)
    for number, line in lines:
        if "tok/s" in line and (match := _STEP.match(line)) is not None:
            if "framework" not in seen:
                seen.add("framework")
                yield Fact("framework", NAME, number)
                yield from _head(config)
            if milliseconds := finite(match[3]):
                found = finite(match[2] or "")
                yield Step(iteration=int(match[1]), seconds=milliseconds / 1000, line=number, loss=found)
        elif not config.feed(line, number) and (event := shared(line, number, seen)) is not None:
            yield event
    yield from _head(config)


def _head(config: KeyedDump) -> Iterator[Event]:
    """The arguments; the batch is stated in tokens."""
    arguments = config.take()
    if arguments is None:
        return
    values = {name: int(str(value)) for name, value in arguments.values.items()}
    tokens, length = values.pop("tokens", 0), values.get("seq_length", 0)
    if length and tokens and tokens % length == 0:
        values["global_batch_size"] = tokens // length
    yield arguments._replace(values=values)
