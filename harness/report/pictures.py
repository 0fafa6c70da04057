"""Pictures of rows: their file names and their bytes. Several are drawn at once; a picture that the same code drew of
the same rows before is not drawn again, and matplotlib is not imported then."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from harness.disk_cache import CachedValues
from projector.dataclass import dataclass
from projector.io.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150  # resolution of a PNG

_SHELF = CachedValues("picture", dict[str, bytes])
_RUN_OWN = "seconds_to_project"  # differs from one run to the next, and no picture shows it


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot that is not drawn yet, and the kinds of file that it becomes. ``stem``: its name, unique among the rows'."""

    stem: str
    caption: str
    draw: Callable[[], Figure | None]
    kinds: tuple[str, ...] = ("png",)

    @property
    def dark(self) -> bool:
        return self.stem.endswith("-dark")

    def file(self, kind: str) -> str:
        return f"{self.stem}.{kind}"

    def drawn(self, dots_per_inch: int = DOTS_PER_INCH) -> dict[str, bytes]:
        """Returns the bytes by kind; nothing where there is nothing to draw."""
        from harness.report import plot

        figure = self.draw()
        writers = {"png": lambda f: plot.png(f, dots_per_inch), "svg": plot.svg}
        return {} if figure is None else {kind: writers[kind](figure) for kind in self.kinds}


def written(
    folder: Path, pictures: Sequence[Picture], rows: pd.DataFrame, jobs: int = 1, dots_per_inch: int = DOTS_PER_INCH
) -> list[Picture]:
    """Writes the files of each picture, as :func:`drawn`, and returns the pictures that have something to show."""
    shown = []
    for picture, images in zip(pictures, drawn(pictures, rows, jobs, dots_per_inch), strict=True):
        for kind, data in images.items():
            write_whole(folder / picture.file(kind), data)
        shown += [picture] if images else []
    return shown


def drawn(
    pictures: Sequence[Picture], rows: pd.DataFrame, jobs: int = 1, dots_per_inch: int = DOTS_PER_INCH
) -> list[dict[str, bytes]]:
    """Returns :meth:`Picture.drawn` of each, in order. ``rows``: all that they show; ``jobs``: number drawn at once."""
    if not pictures:
        return []
    columns = (rows[name].tolist() for name in rows.columns if name != _RUN_OWN)
    shown = hashlib.sha256(repr([list(rows.columns), *columns]).encode("utf-8", errors="replace")).hexdigest()
    contents = [f"{p.stem} {p.kinds} {dots_per_inch} {shown}" for p in pictures]
    known = {content: drawing for content in contents if (drawing := _SHELF.recall(content)) is not None}
    missing = [i for i, content in enumerate(contents) if content not in known]
    for i, drawing in zip(missing, _drawn([pictures[i] for i in missing], jobs, dots_per_inch), strict=True):
        _SHELF.keep(contents[i], drawing)
        known[contents[i]] = drawing
    return [known[content] for content in contents]


def _drawn(pictures: Sequence[Picture], jobs: int, dots_per_inch: int) -> list[dict[str, bytes]]:
    if min(jobs, len(pictures)) < 2 or sys.platform != "linux":  # functions that draw reach only a forked process
        return [picture.drawn(dots_per_inch) for picture in pictures]
    from concurrent.futures import ProcessPoolExecutor

    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401  (once, for all copies)

    _PICTURES[:] = pictures
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        return list(pool.map(_drawn_at, range(len(pictures)), repeat(dots_per_inch)))


_PICTURES: list[Picture] = []  # what a forked process finds


def _drawn_at(place: int, dots_per_inch: int) -> dict[str, bytes]:
    return _PICTURES[place].drawn(dots_per_inch)
