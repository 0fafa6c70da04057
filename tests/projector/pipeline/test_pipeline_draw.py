"""Pictures of a timeline: written, of the right kind, and refused in words."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from projector import pipeline
from projector.errors import InputError
from projector.pipeline import draw


def line(name="zbv", vpp=2, m=6):
    compiled = pipeline.compile(name, 3, vpp, m)
    return pipeline.evaluate(compiled, *np.full((3, 3 * vpp), 1e-3), 1e-4)


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_formats(tmp_path, ending, begins):
    target = draw.save([line(), line("1f1b", 1)], tmp_path / f"step{ending}", bytes_per_stage=np.full(6, 1e9))
    assert target.read_bytes().startswith(begins)


def test_both_bubbles_and_every_rank_are_named(tmp_path):
    import re

    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = draw.save([line()], tmp_path / "step.svg").read_text()
    for words in ("rank 0", "rank 2", "idle of makespan / of span", "weight gradient", "zbv, pp 3, vpp 2"):
        assert words in text
    timeline = line()
    for rank in range(3):
        first, second = (100 * share[rank] for share in (timeline.bubble_of_makespan, timeline.bubble_of_span))
        assert re.search(rf"{first:.1f} % / {second:.1f} %", text)


def test_what_is_refused_all_at_once(tmp_path):
    with pytest.raises(InputError) as caught:
        draw.save([], tmp_path / "no" / "step.bmp")
    assert len(caught.value.problems) == 3
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="a file that can be written"):
        draw.save([line()], tmp_path / "folder.png")


def test_matplotlib_and_scipy_come_only_when_used():
    code = "import projector.pipeline, projector.pipeline.draw, projector.pipeline.optimal, sys; " \
           "sys.exit(any(name in sys.modules for name in ('matplotlib', 'scipy', 'torch', 'pandas')))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
