"""Pictures of a search: time against memory, the axes of the best side by side, where their time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from projector.search.found import Found
from projector.search.looks import COLOURS, GREY, figure, tidy
from projector.search.words import brief

Figure = Any  # of matplotlib
_TEN = 10
_AXES = (
    *("gpus", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "pipeline_schedule", "recompute_granularity"),
    *("sequence_parallel", "precision", "data_parallel_sharding", "moe_flex_dispatcher_backend"),
)


def figures(found: Found, title: str) -> dict[str, Figure]:
    """``front``, ``axes`` and ``breakdown``; nothing where nothing fits."""
    if not found.best:
        return {}
    return {"front": _front(found, title), "axes": _parallel(found, title), "breakdown": _breakdown(found, title)}


def _front(found: Found, title: str) -> Figure:
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
    tidy(axes, "allocated on the fullest rank (GiB)", "step (s)", log=True)
    axes.legend(frameon=False)
    return picture


def _parallel(found: Found, title: str) -> Figure:
    """A line a configuration; of each axis only the values that were projected."""
    hits = sorted(found.hits, key=lambda hit: hit.value)[:200]
    values = {name: [str(hit.fields.get(name)) for hit in hits] for name in _AXES if name in hits[0].fields}
    shown = {name: _ordered(each) for name, each in values.items() if len(set(each)) > 1}
    picture, (axes,) = figure(f"{title}: what the best have in common", width=max(6.0, 1.5 * (len(shown) + 1)))
    speed = np.array([hit.value for hit in hits])
    gained = speed.min() / speed
    low = gained.min()
    for rank in reversed(range(len(hits))):
        at = [_place(shown[name], values[name][rank]) for name in shown]
        at.append((gained[rank] - low) / (1 - low) if low < 1 else 0.5)
        colour = COLOURS[1] if rank == 0 else COLOURS[0] if rank < _TEN else GREY
        axes.plot(at, color=colour, alpha=1.0 if rank < _TEN else 0.35, linewidth=2.2 if rank == 0 else 1.0)
    for x, order in enumerate(shown.values()):
        for word in order:
            axes.text(x + 0.04, _place(order, word), word, fontsize=8, va="bottom")
    for part in (0.0, 1.0):
        axes.text(len(shown) + 0.04, part, f"{100 * (low + part * (1 - low)):.0f} %", fontsize=8, va="bottom")
    names = [name.replace("_", "\n", 1).replace("_", " ") for name in shown]
    axes.set_xticks(range(len(shown) + 1), [*names, "against\nbest"], fontsize=8)
    axes.set_xlim(-0.15, len(shown) + 0.5)
    axes.set_yticks([])
    for x in range(len(shown) + 1):
        axes.axvline(x, color="#DDDDDD", linewidth=0.8, zorder=0)
    axes.spines[:].set_visible(False)
    return picture


def _ordered(values: Sequence[str]) -> list[str]:
    return sorted(set(values), key=lambda word: (not word.isdigit(), int(word) if word.isdigit() else 0, word))


def _place(order: Sequence[str], word: str) -> float:
    return order.index(word) / (len(order) - 1)


def _breakdown(found: Found, title: str) -> Figure:
    """Of the best ten, seconds by part for the tokens of one step of the best."""
    ten = found.best[:_TEN]
    first = ten[0].projection
    share = [first.tgs * first.step_seconds / (each.projection.tgs * each.projection.step_seconds) for each in ten]
    names = [name for name in first.breakdown if any(each.projection.breakdown[name] > 0 for each in ten)]
    picture, (axes,) = figure(f"{title}: where the time of the best goes", width=9.0, height=1.6 + 0.36 * len(ten))
    left = np.zeros(len(ten))
    for i, name in enumerate(names):
        seconds = np.array([each.projection.breakdown[name] * s for each, s in zip(ten, share, strict=True)])
        axes.barh(range(len(ten)), seconds, left=left, height=0.7, color=COLOURS[i % len(COLOURS)],
                  hatch="//" if i >= len(COLOURS) else None, label=name.removesuffix("_s").replace("_", " "))  # fmt: skip
        left += seconds
    axes.set_yticks(range(len(ten)), [brief(each.fields) for each in ten], fontsize=8)
    tidy(axes, "seconds for the tokens of one step of the best", "")
    axes.set_ylim(len(ten) - 0.5, -0.5)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return picture
