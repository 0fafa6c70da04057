"""JSON as logs hold it: a mapping in a line, or the elements of one array inside a document of any size, decoded one
after the other from a text stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

_CHUNK = 2**20  # characters read at a time
_LARGEST = 8 * 2**20  # characters of one element: more is a broken document
_MOST_REPAIRS = 100  # broken elements that are skipped before reading ends
_BETWEEN = " \t\r\n,"


def mapping_of(text: str) -> dict[str, Any] | None:
    """Returns the mapping that a text is as JSON; None for any other text."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def elements(text: IO[str], key: str) -> Iterator[Any]:
    """Yields the elements of the array at ``"key"`` (or of the document, where it is an array), up to a cut or broken part.

    Raises nothing for broken text; errors of the stream itself (a truncated gzip) pass through.
    """
    buffer = _array_start(text, key)
    if buffer is None:
        return
    decoder = json.JSONDecoder()
    position, repairs, ended = 0, 0, False
    while True:
        while position < len(buffer) and buffer[position] in _BETWEEN:
            position += 1
        if position < len(buffer):
            if buffer[position] == "]":
                return
            try:
                element, position = decoder.raw_decode(buffer, position)
            except (ValueError, RecursionError):
                pass
            else:
                yield element
                continue
        if not ended and len(buffer) - position < _LARGEST:
            more = text.read(_CHUNK)
            ended = not more
            buffer, position = buffer[position:] + more, 0
            continue
        repairs += 1
        position = buffer.find("{", position + 1)
        if position < 0 or repairs > _MOST_REPAIRS:
            return


def _array_start(text: IO[str], key: str) -> str | None:
    """Returns the text from the first element on; None when the array is not there."""
    buffer = text.read(_CHUNK)
    if buffer.lstrip()[:1] == "[":
        return buffer.lstrip()[1:]
    wanted = f'"{key}"'
    while True:
        at = buffer.find(wanted)
        start = buffer.find("[", at) if at >= 0 else -1
        if start >= 0:
            return buffer[start + 1 :]
        more = text.read(_CHUNK)
        if not more:
            return None
        buffer = (buffer[at:] if at >= 0 else buffer[-len(wanted) :]) + more
        if len(buffer) > _LARGEST:
            return None
