"""Draws the pictures of a search: time against memory, and where the time of the best goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from projector.search.figure_style import COLOURS, GREY, figure, tidy
from projector.search.found import SearchResult
from projector.search.words import brief


def figures(found: SearchResult, title: str) -> dict[str, Any]:
    """Returns the figures ``front`` and ``breakdown`` of a search that found something, by name."""
    return {"front": _front(found, title), "breakdown": _breakdown(found, title)}


def _front(found: SearchResult, title: str) -> Any:
    picture, (axes,) = figure(f"{title}: time against memory")
    axes.scatter([hit.memory / 2**30 for hit in found.hits], [hit.seconds for hit in found.hits], s=12, color=GREY,
                 label=f"{len(found.hits)} projected")  # fmt: skip
    steps = [(hit.memory / 2**30, hit.seconds) for hit in reversed(found.front)]
    axes.step(
        *np.array(steps).T, where="post", color=COLOURS[0], marker="o", label="no other projected is better in both"
    )
    best = found.best[0]
    axes.plot(best.projection.memory.allocated / 2**30, best.projection.step_seconds, "*", ms=13, color=COLOURS[1],
              label="best")  # fmt: skip
    tidy(axes, "allocated on the fullest rank (GiB)", "projected step (s)", log=True)
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return picture


def _breakdown(found: SearchResult, title: str) -> Any:
    ten = found.best[:10]
    first = ten[0].projection
    share = [first.tgs * first.step_seconds / (each.projection.tgs * each.projection.step_seconds) for each in ten]
    names = [name for name in first.breakdown if any(each.projection.breakdown[name] > 0 for each in ten)]
    picture, (axes,) = figure(f"{title}: where the time of the best goes", width=9.0, height=1.6 + 0.36 * len(ten))
    starts = np.zeros(len(ten))
    for i, name in enumerate(names):
        seconds = np.array([each.projection.breakdown[name] * s for each, s in zip(ten, share, strict=True)])
        axes.barh(range(len(ten)), seconds, left=starts, height=0.7, color=COLOURS[i % len(COLOURS)],
                  hatch="//" if i >= len(COLOURS) else None, label=name.removesuffix("_s").replace("_", " "))  # fmt: skip
        starts += seconds
    axes.set_yticks(range(len(ten)), [brief(each.fields) for each in ten], fontsize=8)
    tidy(axes, "seconds for the tokens of one step of the best", "")
    axes.set_ylim(len(ten) - 0.5, -0.5)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return picture
