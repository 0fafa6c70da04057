"""What many tests do in one line: a file that holds something, what is wrong with an input by the call
that reads it, and what a text says."""

from collections.abc import Callable, Container
from pathlib import Path

import pytest

from projector.errors import InputError

__all__ = ["put", "refusal", "says"]


def put(path: Path, content: str | bytes) -> Path:
    """Returns ``path``, which then holds ``content``; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(call: Callable[..., object], *given: object, match: str | None = None, **more: object) -> InputError:
    """Returns the :class:`InputError` with which ``call`` refuses what it is given, in words that ``match``."""
    with pytest.raises(InputError, match=match) as caught:
        call(*given, **more)
    return caught.value


def says(text: Container[str], *pieces: str) -> None:
    """Asserts that each of ``pieces`` stands in ``text``."""
    missing = [piece for piece in pieces if piece not in text]
    assert not missing, (missing, text)
