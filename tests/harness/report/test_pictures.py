"""Pictures: in several processes as in one, and drawn once for the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.report.pictures import Picture, drawn
from harness.report.plot import blank, plain
from projector.io import code, kept

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pd = pytest.importorskip("pandas")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PROJECTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_BEGAN", code.changed() + 1.0)
    for each in (kept._folder, kept._as_it_was):
        each.cache_clear()
    yield tmp_path / "cache"
    for each in (kept._folder, kept._as_it_was):
        each.cache_clear()


def _line(heights: list[float]) -> Figure:
    figure = blank(2.0, 1.5)
    axes = figure.add_subplot()
    axes.plot(heights)
    plain(axes)
    return figure


def _pictures() -> list[Picture]:
    both = Picture("one", "a line", lambda: _line([1.0, 2.0]), ("png", "svg"))
    return [both, Picture("none", "nothing", lambda: None), Picture("two", "another", lambda: _line([2.0, 1.0]))]


def test_in_several_processes_as_in_one() -> None:
    rows = pd.DataFrame({"error": [0.1], "seconds_to_project": [1.0]})
    one, two = drawn(_pictures(), rows), drawn(_pictures(), rows, jobs=2)
    assert one == two
    assert [sorted(found) for found in one] == [["png", "svg"], [], ["png"]]
    assert one[0]["png"] != one[2]["png"]
    assert drawn([], rows) == []


def test_the_same_rows_are_drawn_once(cache: Path) -> None:
    rows = pd.DataFrame({"error": [0.1], "seconds_to_project": [1.0]})
    first = drawn(_pictures(), rows)
    known = [Picture(p.stem, p.caption, lambda: pytest.fail("drawn again"), p.kinds) for p in _pictures()]
    assert drawn(known, rows.assign(seconds_to_project=2.0)) == first
    other = [Picture(p.stem, p.caption, lambda: _line([3.0, 1.0, 2.0]), p.kinds) for p in _pictures()]
    assert drawn(other, rows.assign(error=0.1 + 1e-16))[0] != first[0], "the next number"
    assert [drawn([p], rows)[0] == found for p, found in zip(known, first, strict=True)] == [True] * 3
