"""Shows a projection in a few lines, as a card for a notebook, and as plain values: the answer without the details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from projector.errors import InputError, Problem
from projector.expectation import Knowledge
from projector.io.table import factor, percent, seconds
from projector.workload.structure import to_mapping

if TYPE_CHECKING:
    from projector.projection import Projection

#: The names of the parts of a breakdown on a card, by key.
PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "host_s": "host",
    "tp_s": "tensor-parallel communication",
    "ep_s": "expert-parallel communication",
    "cp_s": "context-parallel communication",
    "pp_s": "pipeline communication",
    "dp_s": "data-parallel communication",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
    "other_s": "other work of a step",
}
#: Middle tones, which both dark and light pages carry (Okabe and Ito's palette for all kinds of sight, and two greys).
_COLOURS = (
    *("#0072b2", "#999999", "#e69f00", "#cc79a7", "#56b4e9"),
    *("#009e73", "#d55e00", "#b0a030", "#666677", "#887766"),
)
_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp")
_LEAST = 0.002  # share of a step below which a part is not named


def text(p: Projection) -> str:
    """Returns five lines: model and GPUs, the layout, the verdict on memory, the step to expect, where the step goes."""
    return "\n".join((_title(p), _layout(p), p.memory.verdict, *_expected(p), _parts(p)))


def values(p: Projection) -> dict[str, Any]:
    """Returns the figures and the recipe as JSON values; seconds, bytes, tokens a second and GPU."""
    work, memory = p.resolved.workload, p.memory
    return {
        "model": work.model.name,
        "gpu": p.cluster.gpu.name,
        "gpus": work.gpus,
        "framework": work.framework,
        "recipe": to_mapping(work.recipe),
        "step_seconds": p.step_seconds,
        "tgs": p.tgs,
        "mfu": p.mfu,
        "bubble": p.bubble,
        "breakdown": dict(p.breakdown),
        "expected": asdict(Knowledge().expect(p)),
        "memory": {
            "status": memory.status,
            "fits": bool(memory.fits),
            **{name: float(getattr(memory, name)) for name in ("required", "device", "usable", "margin_bytes")},
        },
        "assumed": list(p.assumed),
    }


def html(p: Projection) -> str:
    """Returns the lines of :func:`text` with the breakdown as a bar. It suits dark pages, too: its ink is the page's."""
    from html import escape

    shares = _named_shares(p)
    bar = "".join(
        f'<span title="{_part(name, share)}" style="width:{100 * share:.2f}%;background:{colour}"></span>'
        for name, share, colour in shares
    )
    legend = "".join(
        f'<span style="white-space:nowrap"><span style="color:{colour}">■</span> {_part(name, share)}</span> &ensp; '
        for name, share, colour in shares
    )
    mark = ("#009e73", "#e69f00", "#d55e00")[p.memory.order]
    lines = "".join(f"<div>{escape(line)}</div>" for line in _expected(p))
    return (
        '<div style="max-width:44em;padding:.8em 1em;border:1px solid color-mix(in srgb,currentColor 25%,transparent);'
        'border-radius:6px;font:14px/1.5 system-ui,sans-serif">'
        f'<div style="font-weight:600">{escape(_title(p))}</div>'
        f'<div style="opacity:.75">{escape(_layout(p))}</div>'
        f'<div style="margin:.5em 0;padding-left:.6em;border-left:4px solid {mark};font-weight:600">'
        f"{escape(p.memory.verdict)}</div>{lines}"
        f'<div style="display:flex;height:14px;margin:.7em 0 .4em;border-radius:3px;overflow:hidden">{bar}</div>'
        f'<div style="font-size:12px">{legend}</div></div>'
    )


def _title(p: Projection) -> str:
    work = p.resolved.workload
    return f"{work.model.name} on {work.gpus:,} × {p.cluster.gpu.title}, {work.framework}"


def _layout(p: Projection) -> str:
    work = p.resolved.workload
    recipe = work.recipe
    sizes = [f"{name} {size}" for name in _SIZES if (size := getattr(recipe, name)) > 1]
    return " · ".join((
        *sizes, f"dp {work.dp}", f"micro-batch {recipe.micro_batch_size}", f"global batch {recipe.global_batch_size:,}",
        f"{recipe.seq_length:,} tokens", recipe.precision, p.timeline.compiled.schedule.name,
    ))  # fmt: skip


def _expected(p: Projection) -> Iterator[str]:
    """Yields the line of the step to expect; nothing for a run that does not fit."""
    if p.memory.order == 2:
        return
    expectation = Knowledge().expect(p)
    tokens = p.tgs * p.step_seconds
    ends = f"{seconds(expectation.low)} to {seconds(expectation.high)}, {factor(expectation.half_width)}"
    yield (
        f"Expected: {seconds(expectation.middle)} s a step ({ends}), "
        f"{tokens / expectation.middle:,.0f} tokens/s/GPU, MFU {percent(p.mfu * p.step_seconds / expectation.middle)}"
    )


def _part(name: str, share: float) -> str:
    return f"{PARTS[name]} {percent(share)}"


def _parts(p: Projection) -> str:
    largest = sorted(p.breakdown.items(), key=lambda part: -part[1])
    return "Step: " + ", ".join(
        _part(name, value / p.step_seconds) for name, value in largest if value > _LEAST * p.step_seconds
    )


def figure(p: Projection, what: str) -> Any:
    """Returns a matplotlib figure of ``what``: ``step``, ``timeline`` or ``memory``. Raises :class:`InputError` for
    others."""
    from projector.memory import draw as memory
    from projector.memory.timeline import memory_timeline
    from projector.pipeline import draw as pipeline

    if what == "timeline":
        return pipeline.drawn([p.timeline], titles=[_title(p)])
    if what == "memory":
        return memory.drawn(p.memory, memory_timeline(p.resolved, p.cluster.gpu, p.timeline), _title(p))
    if what != "step":
        raise InputError([Problem("plot()", "what", what, "step, timeline or memory")])
    return _bar(p)


def _named_shares(p: Projection) -> list[tuple[str, float, str]]:
    return [
        (name, p.breakdown[name] / p.step_seconds, colour)
        for name, colour in zip(PARTS, _COLOURS, strict=True)
        if p.breakdown[name] > _LEAST * p.step_seconds
    ]


def _bar(p: Projection) -> Any:
    from matplotlib.figure import Figure

    drawn, end = Figure(figsize=(9, 2.2), layout="constrained"), 0.0
    axes = drawn.subplots()
    for name, share, colour in _named_shares(p):
        axes.barh(0, share * p.step_seconds, left=end, color=colour, label=_part(name, share))
        end += share * p.step_seconds
    axes.set(yticks=[], xlabel="s", title=_title(p), xlim=(0, end))
    drawn.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return drawn
