"""Event files of TensorBoard as the history of a run: the scalars of a step are one JSON line of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import IO

from projector.errors import InputError, Problem

_MARK = "tfevents"  # in the names that TensorBoard's writers give
_CLOCK = "Wall time"  # as TensorBoard calls it in its exports


def read(path: Path) -> IO[bytes] | None:
    """The steps of an event file, or of a folder with some: a record each, its scalars by their tags, and seconds since
    1970. None for any other path. Raises :class:`InputError` where no package reads them, or none holds a scalar."""
    if not path.exists() or not (_MARK in path.name or (path.is_dir() and any(path.glob(f"*{_MARK}*")))):
        return None
    try:
        from tbparse import SummaryReader
    except ModuleNotFoundError:
        expected = "a package that reads it: pip install 'projector-harness[tensorboard]'"
        raise InputError([Problem(str(path), "", "an event file of TensorBoard", expected)]) from None
    scalars = SummaryReader(str(path), extra_columns={"wall_time"}).scalars
    if scalars.empty:
        raise InputError([Problem(str(path), "", "no scalars", "an event file with scalars of its steps")])
    steps: dict[int, dict[str, object]] = {}
    for step, tag, value, seconds in scalars[["step", "tag", "value", "wall_time"]].itertuples(index=False):
        steps.setdefault(int(step), {_CLOCK: seconds, "step": int(step)})[tag] = value
    return io.BytesIO("\n".join(json.dumps(record) for _, record in sorted(steps.items())).encode())
