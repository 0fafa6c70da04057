"""Writes tables and lines as one JSON document, for commands whose figures have no document of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.io.table import Line, Table


def aside(json_wanted: bool) -> AbstractContextManager[object]:
    """Returns a context in which prints go to stderr where stdout is to hold a JSON document, and to stdout elsewhere."""
    return redirect_stdout(sys.stderr) if json_wanted else nullcontext()


def tell(wanted: bool, document: Callable[[], Mapping[str, Any]], page: Callable[[], Iterable[Line | Table]]) -> None:
    """Writes the ``document`` where it is ``wanted``, else shows the ``page``."""
    from projector.io.terminal import show

    if wanted:
        write(document())
    else:
        show(page())


def write(content: Mapping[str, Any]) -> None:
    """Writes one document to stdout; figures that are no number in JSON (infinity, NaN) become null."""
    json.dump(plain(content), sys.stdout, indent=2, allow_nan=False, default=str)
    sys.stdout.write("\n")


def plain(value: Any) -> Any:
    """Returns ``value`` as JSON can hold it: sets, tuples as lists, NumPy numbers as Python's, infinity and NaN as None."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
