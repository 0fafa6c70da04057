"""What many tests do in one line: a file that holds something, what is wrong with an input by the call
that reads it, and what a text says."""

from collections.abc import Callable, Container
from pathlib import Path
from typing import TypeVar

import pytest

from projector.errors import InputError

__all__ = ["LOGS", "ROOT", "put", "refusal", "says"]

Refusal = TypeVar("Refusal", bound=Exception)
ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests" / "data" / "logs"


def put(path: Path, content: str | bytes | bytearray) -> Path:
    """Returns ``path``, which then holds ``content``; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(
    call: Callable[..., object],
    *given: object,
    match: str | None = None,
    kind: type[Refusal] = InputError,
    **more: object,
) -> Refusal:
    """Returns the error of this ``kind`` with which ``call`` refuses what it is given, in words that ``match``."""
    with pytest.raises(kind, match=match) as caught:
        call(*given, **more)
    return caught.value


def says(text: Container[str], *pieces: str) -> None:
    """Asserts that each of ``pieces`` stands in ``text``."""
    missing = [piece for piece in pieces if piece not in text]
    assert not missing, (missing, text)
