"""Draws achieved rates over one dimension: the model in fine steps, so that its saw-teeth show, and measured points.
Model: shipped constants of the family that was measured. The functions ``…_lines`` choose the lines of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.kernels import model
from harness.kernels.fit import Array
from harness.kernels.schema import Row
from harness.report.kernel_plot import MARKS
from harness.report.plot import blank, plain, png
from projector.dataclass import dataclass
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load
from projector.kernels.tables import Measured
from projector.operators.types import Attention, Gemm, GroupedGemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS = {"m": "M (rows of the output)", "n": "N (columns of the output)", "k": "K (reduction)"}
_MOST = {"gemm": 3, "attention": 6, "grouped": 5}  # lines of a panel
FEWEST = 4  # measured points that make a line of a GEMM worth drawing

#: A line's text in the legend, and its rows in order of the dimension.
Line = tuple[str, tuple[Row, ...]]
Key = tuple[Any, ...]
Points = dict[Key, dict[int, Row]]


def gemm_lines(rows: Sequence[Row], name: str) -> list[Line]:
    """Returns for each operand type a line of rows that differ in ``name`` alone: the widest, fullest, largest."""
    others = [n for n in DIMENSIONS if n != name]
    by_key: Points = {}
    for row in rows:
        op = row.measured.op
        if isinstance(op, Gemm) and op.batch == 1:
            fixed = tuple(getattr(op, n) for n in others)
            key: Key = (row.dtype, row.scaling, row.measured.family, op.layout, op.accumulate, op.out_bytes, fixed)
            by_key.setdefault(key, {}).setdefault(getattr(op, name), row)
    best: dict[Key, tuple[float, Key]] = {}
    for key, points in by_key.items():
        span = np.log2(max(points) / min(points)) if len(points) >= FEWEST else 0.0
        # Decades above a hundred MFLOP put training sizes before those of decoding a token.
        decades = float(np.log10(np.median([row.flops for row in points.values()]))) - 8.0
        score = span * min(len(points), 12) * max(decades, 0.01)
        if score > best.get(key[:2], (0.0, ()))[0]:
            best[key[:2]] = (score, key)
    chosen = [key for _, key in sorted(best.values(), key=lambda item: (-item[0], repr(item[1])))[: _MOST["gemm"]]]
    return [_gemm_line(others, by_key[key]) for key in chosen]


def _gemm_line(others: Sequence[str], points: Mapping[int, Row]) -> Line:
    rows = _ordered(points)
    first, op = rows[0], rows[0].measured.op
    kind = f"{first.dtype} {first.scaling}" if first.scaling not in ("", first.dtype) else first.dtype
    at = ", ".join(f"{n.upper()}={getattr(op, n)}" for n in others)
    return f"{kind} {first.measured.family} {getattr(op, 'layout', '')}\n{at}", rows


def attention_lines(rows: Sequence[Row], backward: bool, causal: bool) -> list[Line]:
    """Returns for each family, type and head width of one pass and mask the head count with most sequence lengths."""
    by_key: Points = {}
    for row in rows:
        op = row.measured.op
        same_pass = isinstance(op, Attention) and (op.backward, op.causal) == (backward, causal)
        if same_pass and isinstance(op, Attention) and op.seq_q == op.seq_k:
            width = f"{op.head_dim_qk}" if op.head_dim_qk == op.head_dim_v else f"{op.head_dim_qk}/{op.head_dim_v}"
            key: Key = (row.measured.family, row.dtype, width, op.heads, op.kv_heads)
            by_key.setdefault(key, {}).setdefault(op.seq_q, row)
    by_family: dict[Key, Line] = {}
    for key in _fullest(by_key, least=3):
        family, dtype, width, heads, shared = key
        label = f"{family} {dtype} D={width} {heads}/{shared} heads"
        by_family.setdefault(key[:3], (label, _ordered(by_key[key])))
    return list(by_family.values())[: _MOST["attention"]]


def grouped_lines(rows: Sequence[Row], layout: str) -> list[Line]:
    """Returns for each set of experts of one pass the rows that differ in tokens alone."""
    by_key: Points = {}
    for row in rows:
        op = row.measured.op
        if isinstance(op, GroupedGemm) and op.layout == layout:
            key: Key = (op.groups, op.n, op.k, op.backend, row.measured.family, op.accumulate, op.out_bytes)
            by_key.setdefault(key, {}).setdefault(op.rows, row)
    lines = []
    for key in _fullest(by_key, least=2)[: _MOST["grouped"]]:
        groups, n, k, backend, family, accumulate, _ = key
        how = " ".join(dict.fromkeys((family, backend))) + (", accumulating" if accumulate else "")
        lines.append((f"{how}, {groups} experts\nN={n}, K={k}", _ordered(by_key[key])))
    return lines


def _fullest(by_key: Points, least: int) -> list[Key]:
    long = [key for key, points in by_key.items() if len(points) >= least]
    return sorted(long, key=lambda key: (-len(by_key[key]), repr(key)))


def _ordered(points: Mapping[int, Row]) -> tuple[Row, ...]:
    return tuple(points[value] for value in sorted(points))


STEPS = 400
FEWEST_OF_GPU = 3
PASSES = (("TN", "forward"), ("NN", "data gradient"), ("NT", "weight gradient"))


@dataclass(frozen=True)
class Panel:
    """A panel. ``values``: the abscissa of measured rows; ``curve``: the abscissa and the operators of the model's line."""

    title: str
    axis: str
    lines: Sequence[Line]
    values: Callable[[Sequence[Row]], Array]
    curve: Callable[[Sequence[Row]], tuple[Array, list[Any]]]


def drawn(rows: Sequence[Row]) -> Mapping[str, tuple[str, bytes]]:
    """Returns (caption, PNG) by file name, ``gemm-<gpu>``, ``attention-<gpu>``, ``grouped-<gpu>``, for GPUs with enough
    rows."""
    pictures: dict[str, tuple[str, bytes]] = {}
    for gpu in sorted({row.gpu for row in rows}):
        of_gpu = [row for row in rows if row.gpu == gpu]
        for kind in _MOST:
            of_kind = [row for row in of_gpu if row.kind == kind]
            shown = [panel for panel in _panels(kind, of_kind) if panel.lines] if len(of_kind) >= FEWEST_OF_GPU else []
            if shown:
                caption = f"{catalogue_gpu(gpu).title}: {kind} rates, measured and modelled"
                pictures[f"{kind}-{gpu}.png"] = (caption, png(_draw(gpu, kind, shown)))
    return pictures


def _panels(kind: str, rows: Sequence[Row]) -> Iterator[Panel]:
    if kind == "gemm":
        for name, words in DIMENSIONS.items():
            yield Panel("", words, gemm_lines(rows, name), _sizes(name), _along(name))
    elif kind == "grouped":
        per_expert = lambda rows: _sizes("rows")(rows) / _sizes("groups")(rows)  # noqa: E731
        for layout, words in PASSES:
            yield Panel(words, "tokens per expert", grouped_lines(rows, layout), per_expert, _tokens)
    else:
        for backward, causal in product((False, True), repeat=2):
            title = f"{'backward' if backward else 'forward'}, {'causal' if causal else 'full'}"
            lines = attention_lines(rows, backward, causal)
            yield Panel(title, "sequence length", lines, _sizes("seq_q"), _lengths)


def _sizes(name: str) -> Callable[[Sequence[Row]], Array]:
    return lambda rows: np.array([float(getattr(row.measured.op, name)) for row in rows])


def _along(name: str) -> Callable[[Sequence[Row]], tuple[Array, list[Any]]]:
    def curve(rows: Sequence[Row]) -> tuple[Array, list[Any]]:
        values = _sizes(name)(rows)
        fine = np.unique(np.geomspace(values.min(), values.max(), STEPS).round())
        return fine, [_resized(rows[0], **{name: int(v)}) for v in fine]

    return curve


def _lengths(rows: Sequence[Row]) -> tuple[Array, list[Any]]:
    """Returns the curve over sequence lengths, each with the batch of the nearest measured length, to keep its tokens."""
    values = _sizes("seq_q")(rows)
    fine = np.unique((np.geomspace(values.min(), values.max(), 150) / 64).round() * 64)
    near = [rows[int(np.argmin(np.abs(np.log(values / v))))] for v in fine]
    return fine, [_resized(row, seq_q=int(v), seq_k=int(v)) for row, v in zip(near, fine, strict=True)]


def _tokens(rows: Sequence[Row]) -> tuple[Array, list[Any]]:
    """Returns the curve from half the least tokens measured to twice the most."""
    values, experts = _sizes("rows")(rows), float(getattr(rows[0].measured.op, "groups", 1))
    fine = np.unique(np.geomspace(values.min() / 2, values.max() * 2, STEPS).round())
    return fine / experts, [_resized(rows[0], rows=int(v)) for v in fine]


def _resized(row: Row, **sizes: int) -> Any:
    """Returns the row's operator with other sizes."""
    op: Any = row.measured.op
    return replace(op, **sizes)


def _draw(gpu: str, kind: str, panels: Sequence[Panel]) -> Figure:
    across = 2 if len(panels) == 4 else len(panels)
    down = -(-len(panels) // across)
    figure = blank(4.6 * across + 0.6, 0.4 + 4.4 * down)
    for axes, panel in zip(figure.subplots(down, across, squeeze=False).flatten(), panels, strict=True):
        for mark, (label, rows) in zip(MARKS, panel.lines, strict=False):
            _line(axes, gpu, panel, rows, label, mark)
        axes.set_title(panel.title, fontsize=10)
        _label_axes(axes, panel.axis)
    name = catalogue_gpu(gpu).title.split(" (")[0]
    words = {"gemm": "GEMM", "grouped": "grouped GEMM"}.get(kind, kind)
    gap = "; " if across > 1 else "\n"
    figure.suptitle(f"{name}: {words} rate{gap}lines: model, points: measured", fontsize=11)
    return figure


def _line(axes: Any, gpu: str, panel: Panel, rows: Sequence[Row], label: str, mark: tuple[str, str]) -> None:
    colour, marker = mark
    fine, ops = panel.curve(rows)
    shown = [Row(gpu, Measured(op, rows[0].measured.family, 1.0, "", ""), "", rows[0].kind) for op in ops]
    rate = np.array([row.flops for row in shown]) / model.seconds(shown, load(gpu)) / 1e12
    axes.plot(fine, rate, color=colour, linewidth=1.1, label=label)
    measured = [row.flops / row.measured.seconds / 1e12 for row in rows]
    at = panel.values(rows)
    axes.scatter(at, measured, s=22, color=colour, marker=marker, edgecolors="white", linewidths=0.5, zorder=3)


def _label_axes(axes: Any, words: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("log", base=2)
    axes.set_xlabel(words, fontsize=9)
    axes.set_ylabel("TFLOP/s", fontsize=9)
    axes.set_ylim(bottom=0)
    plain(axes)
    thousands = lambda v, _: f"{v / 1024:g}k" if v >= 1024 and v % 512 == 0 else f"{v:g}"  # noqa: E731
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=7, frameon=False)
