"""The iteration line of Megatron-LM and of the trainers built on it.

Shapes (facts of AMD-AGI/Primus' log formats, 2025-04 to 2026-08): plain; ``value/average`` pairs; memory as a ratio
(``mem usages``), or as ``hip mem usage/free/total/usage_ratio`` in GB or GiB anywhere in the line (both mean 2**30);
``throughput`` or ``compute per GPU``; ``tokens per GPU`` or ``tokens/s/GPU inst/harmonic mean``; Megatron-Bridge's
``seq_length``; Megatron-DeepSpeed's seconds, ``TFLOPs`` and ``samples per second``; torchtitan under Primus with
``memory usage/free/total``; ``key=value`` with underscores (Megatron-DeepSpeed of argonne-lcf). Any prefix. Of a pair
the first value counts: that of the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from harness.evidence.ingest.logs.events import Step
from harness.evidence.ingest.logs.numbers import LOSS, NUMBER, finite, measured, whole

#: Behind a number: at a line's end it may be broken off.
_GOES_ON = r"(?=\s{0,40}[^\s0-9.,])"
_NUMBERED = r"iteration(?:\s{1,40}|:\s{1,40}|=\s{0,40})([0-9]{1,18})\s{0,40}[/|]"
_ITERATION = re.compile(_NUMBERED)
#: A line with its time, from its start.
ITERATION = rf"^(?=.*elapsed(?: time per iteration|_time_per_iteration_ms=))(?:.*?){_NUMBERED}"
_ELAPSED = re.compile(rf"elapsed time per iteration\s?\((ms|s)\):\s{{0,20}}{NUMBER}")
_TFLOPS = re.compile(rf"TFLOPs?(?:/s/GPU\)?)?:\s{{0,20}}{NUMBER}")
_TOKENS = re.compile(
    rf"(?:tokens/s/GPU(?:\)|\s{{1,9}}inst/harmonic mean)|tokens per gpu per second \(tgs\)):\s{{0,20}}{NUMBER}"
    rf"{_GOES_ON}"
)
_SAMPLES = re.compile(rf"samples per second:\s{{0,20}}{NUMBER}")
_DEVICE = re.compile(rf"(?:hip|rocm) mem usage/free/total/usage_ratio:\s{{0,20}}{NUMBER}\s?Gi?B/")
_FULLEST = re.compile(rf"max mem usage/usage_ratio:\s{{0,20}}{NUMBER}\s?Gi?B/")
_RESERVED = re.compile(rf"memory usage/free/total:\s{{0,20}}{NUMBER}\s?GiB/")
_RATIO = re.compile(r"mem usages:\s{0,20}([0-9]*\.[0-9]+)")
_BATCH = re.compile(rf"(?:global|gloabl) batch size:\s{{0,20}}([0-9,]{{1,24}}){_GOES_ON}")
_SKIPPED = re.compile(r"number of skipped iterations:\s{0,20}([0-9]{1,18})")
_LENGTH = re.compile(rf"(?:\bseq_length|actual seqlen):\s{{0,20}}([0-9,]{{1,24}}){_GOES_ON}")


Span: TypeAlias = tuple[int, int]

_TOKEN = re.compile(r"( {1,20})?([0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?)")  # a number, spaces before it
_MOST_TOKENS, _LONGEST = 80, 4000  # numbers and characters of a line whose shape is kept
_MOST_SHAPES = 4  # of one log that are tried
_KEYED = "elapsed_time_per_iteration_ms="
#: Fields of the ``key=value`` shape, in the words of the other; its ``[DS]TFLOPs`` count what DeepSpeed's profiler does.
_SPELLED = (
    ("elapsed_time_per_iteration_ms=", "elapsed time per iteration (ms): "),
    ("global_batch_size=", "global batch size: "),
    ("actual_seqlen=", "actual seqlen: "),
    ("samples_per_second=", "samples per second: "),
    ("tokens_per_gpu_per_second_tgs=", "tokens/s/GPU): "),
    ("[DS]-TFLOPs=", ""),
    ("[DS]TFLOPs=", ""),
    ("TFLOPs=", "TFLOPs: "),
    ("number_of_skipped_iterations=", "number of skipped iterations: "),
)


def has_time(line: str) -> bool:
    """Returns whether the line may be an iteration line: the cheap question, asked of every line of a log."""
    return "elapsed" in line and ("elapsed time per iteration" in line or _KEYED in line)


class _Places(NamedTuple):
    """Where the figures of a line are: ``spans`` in the order of :func:`_step_of`, None for an absent figure.
    ``memory_kind`` is the kind of the memory figure, None for a share of the device."""

    spans: tuple[Span | None, ...]
    milliseconds: bool
    memory_kind: str | None


def step(line: str, number: int) -> Step | None:
    """Returns the step of a line; None for another line or one that was cut before its time."""
    line = _usual_spelling(line)
    places = _places(line)
    if places is None:
        return None
    return _step_of([None if span is None else line[slice(*span)] for span in places.spans], places, number)


class Steps:
    """Reads the iteration lines of one log. A line that differs from an earlier one only in numbers has its figures at the
    same places: a pattern made of the earlier line finds all of them at once."""

    def __init__(self) -> None:
        self._shapes: list[tuple[re.Pattern[str], Callable[[Sequence[str | None]], Sequence[str | None]], _Places]] = []
        self._left = _MOST_SHAPES

    def read(self, line: str, number: int) -> Step | None:
        """Returns the step of a line, as :func:`step` does."""
        for pattern, chosen, places in self._shapes:
            if (match := pattern.fullmatch(line)) is not None:
                return _step_of(chosen((*match.groups(), None)), places, number)
        if self._left and len(line) <= _LONGEST and _KEYED not in line:
            self._left -= 1
            self._learn(line)
        return step(line, number)

    def _learn(self, line: str) -> None:
        """Keeps the shape of a line, with the places of the figures among its numbers."""
        numbers, places = list(_TOKEN.finditer(line)), _places(line)
        if places is None or len(numbers) > _MOST_TOKENS:
            return
        index: dict[Span | None, int] = {match.span(2): order for order, match in enumerate(numbers)}
        index[None] = len(numbers)
        if any(span not in index for span in places.spans):
            return
        parts, end = [], 0
        for match in numbers:
            parts += [re.escape(line[end : match.start()]), " {1,20}" if match[1] else "", f"({_digits(match[2])})"]
            end = match.end()
        pattern = re.compile("".join([*parts, re.escape(line[end:])]))
        self._shapes.append((pattern, itemgetter(*(index[span] for span in places.spans)), places))


def _digits(text: str) -> str:
    """Returns a pattern for numbers that are written like ``text``."""
    mantissa, *exponent = re.split("[eE]", text)
    digits = r"[0-9]{1,18}\.[0-9]{1,18}" if "." in mantissa else "[0-9]{1,18}"
    return digits + ("[eE][+-]?[0-9]{1,3}" if exponent else "")


def _usual_spelling(line: str) -> str:
    if _KEYED in line:
        for theirs, ours in _SPELLED:
            line = line.replace(theirs, ours)
    return line


def _step_of(texts: Sequence[str | None], places: _Places, number: int) -> Step | None:
    iteration, elapsed, tokens, samples, tflops, batch, memory, length, skipped, loss = texts
    seconds = measured(elapsed or "")
    if not seconds or iteration is None:
        return None
    kind = places.memory_kind
    return Step(
        int(iteration),
        seconds / 1000 if places.milliseconds else seconds,
        number,
        None if tokens is None else finite(tokens),
        None if samples is None else measured(samples),
        None if tflops is None else finite(tflops),
        None if batch is None else whole(batch),
        measured(memory) if memory is not None and kind is not None else None,
        kind,
        finite(memory) if memory is not None and kind is None else None,
        None if length is None else whole(length),
        skipped is not None and skipped[0] != "0",
        None if loss is None else finite(loss),
    )


def _places(line: str) -> _Places | None:
    """Returns the places of a line's figures; None for another line or one that was cut before its time."""
    elapsed = _ELAPSED.search(line)
    if elapsed is None:
        return None
    iteration = _ITERATION.search(line, 0, elapsed.start())
    if iteration is None or not _whole_number(elapsed, line):
        return None
    rest = elapsed.end()
    memory, kind = _memory(line)
    others = (
        _TOKENS.search(line, rest),
        _SAMPLES.search(line, rest) if "samples per" in line else None,
        _TFLOPS.search(line, rest),
        _BATCH.search(line, rest),
        memory,
        _LENGTH.search(line, rest) if "seq" in line else None,
        _SKIPPED.search(line, rest),
        LOSS.search(line) if "loss" in line else None,
    )
    spans = (iteration.span(1), elapsed.span(2), *map(_span, others))
    return _Places(spans, elapsed[1] == "ms", kind)


def _span(match: re.Match[str] | None) -> Span | None:
    return None if match is None else match.span(1)


def _whole_number(elapsed: re.Match[str], line: str) -> bool:
    """Returns whether the time was printed to its end: a line cut in the middle of a number shows a smaller one. All shapes
    print decimals."""
    return bool(line[elapsed.end() :].strip()) or "." in elapsed[2][:-1]


def _memory(line: str) -> tuple[re.Match[str] | None, str | None]:
    """Returns (GiB, kind) of the memory that the line states; without a kind the figure is a share of the device."""
    if "mem" not in line:
        return None, None
    if (fullest := _FULLEST.search(line)) or (fullest := _DEVICE.search(line)):
        return fullest, "device"
    if reserved := _RESERVED.search(line):
        return reserved, "reserved"
    return _RATIO.search(line), None
