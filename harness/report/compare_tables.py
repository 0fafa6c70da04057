"""The tables of a comparison: figures, stability, what differs, breakdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.compare.side import Side, stability
from harness.compare.significance import RATE, TIME, Ratio, interval
from harness.report.table import NONE, Column, Report, Table, number, percent, signed

_MOST_PARTS = 12


def report(sides: Sequence[Side], ratios: Mapping[str, Ratio], sentence: str) -> Report:
    """``ratios``: of each side but the first to the first, by name; ``sentence``: the verdict."""
    tables = (_figures(sides, ratios), _stability(sides), _breakdown(sides), _differences(sides), _notes(sides))
    return Report(title="Runs side by side", lines=(sentence,), tables=tuple(t for t in tables if t.rows))


def _figures(sides: Sequence[Side], ratios: Mapping[str, Ratio]) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("read from", numeric=False, minor=True),
        Column("GPUs"),
        Column("step, s"),
        Column("90 % interval"),
        Column("TGS"),
        Column("speed to the first"),
        Column("interval"),
        Column("significant", numeric=False),
        Column("memory, GiB"),
        Column("loss"),
    )
    rows = tuple((s.name, s.origin, *_times(s), *_relative(ratios.get(s.name)), _memory(s), _loss(s)) for s in sides)
    what = next((r.what for r in ratios.values()), "")
    speed = "tokens/s/GPU" if what == RATE else "steps/s (the same work or unstated)"
    note = f"Speed to the first: {speed} over that of {sides[0].name}, less one." if what else ""
    return Table(title="Figures", columns=columns, rows=rows, note=note)


def _times(side: Side) -> tuple[str, ...]:
    known = interval(side)
    seconds = side.step_seconds or 0.0
    around = NONE if known is None else f"{seconds * known[0]:.5g} to {seconds * known[1]:.5g}"
    step = side.status if side.status != "ok" else NONE if side.step_seconds is None else f"{side.step_seconds:.5g}"
    return (str(side.gpus or NONE), step, around, number(side.tgs, 1))


def _relative(found: Ratio | None) -> tuple[str, str, str]:
    if found is None:
        return (NONE, NONE, NONE)
    value, ends = found.value, (found.low, found.high)
    if found.what == TIME:
        value, ends = 1 / value, (found.high and 1 / found.high, found.low and 1 / found.low)
    if ends[0] is None or ends[1] is None:
        return (signed(value - 1), NONE, "cannot be stated")
    around = f"{signed(ends[0] - 1, 2)} to {signed(ends[1] - 1, 2)}"
    return (signed(value - 1), around, "yes" if found.significant else "no")


def _memory(side: Side) -> str:
    return ", ".join(f"{gib:.1f} {kind}" for kind, gib in side.memory.items()) or NONE


def _loss(side: Side) -> str:
    """First and last that the log prints."""
    if side.series is None:
        return NONE
    known = side.series.loss[side.series.loss == side.series.loss]
    return f"{known[0]:.3f} to {known[-1]:.3f}" if len(known) else NONE


def _stability(sides: Sequence[Side]) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("steps"),
        Column("kept"),
        Column("spread"),
        Column("outliers"),
        Column("spikes"),
        Column("time above the median"),
    )
    rows = []
    for side in sides:
        if side.series is not None:
            s = stability(side.series)
            kept = str(len(side.series.kept))
            counts = (str(s.outliers), str(s.spikes))
            rows.append((side.name, str(s.steps), kept, percent(s.spread, 2), *counts, percent(s.excess, 2)))
    note = (
        "After warm-up. Spread: robust standard deviation of a kept step. Spikes: 1.5 medians or more, for any reason."
    )
    return Table(title="Stability", columns=columns, rows=tuple(rows), note=note)


def _breakdown(sides: Sequence[Side]) -> Table:
    """Timers of the logs and parts of the projected steps; the two never in one row."""
    rows = [(f"timer {name}", *cells) for name, *cells in _parts([dict(s.timers) for s in sides])]
    rows += [(f"projected {name}", *cells) for name, *cells in _parts([dict(s.projected) for s in sides])]
    columns = (Column("seconds a step", numeric=False), *(Column(s.name) for s in sides))
    note = "Timers contain each other. Projected: simulate, uncalibrated, exposed seconds."
    return Table(title="Breakdown", columns=columns, rows=tuple(rows), note=note)


def _parts(found: Sequence[Mapping[str, float]]) -> list[tuple[str, ...]]:
    names = dict.fromkeys(name for parts in found for name in parts)
    largest = sorted(names, key=lambda name: -max(parts.get(name, 0.0) for parts in found))[:_MOST_PARTS]
    shown = [name for name in largest if any(parts.get(name, 0.0) >= 5e-5 for parts in found)]
    return [(name, *(f"{p[name]:.4f}" if name in p else NONE for p in found)) for name in shown]


def _differences(sides: Sequence[Side]) -> Table:
    """The configuration keys that are not the same in all of the runs that state any."""
    stated = [s for s in sides if s.differs]
    keys = dict.fromkeys(key for s in stated for key in s.differs)
    differing = [k for k in keys if len({s.differs.get(k, NONE) for s in stated}) > 1]
    columns = (Column("key", numeric=False), *(Column(s.name, numeric=False) for s in stated))
    rows = tuple((k, *(s.differs.get(k, NONE) for s in stated)) for k in differing)
    return Table(title="What differs", columns=columns, rows=rows)


def _notes(sides: Sequence[Side]) -> Table:
    columns = (Column("run", numeric=False), Column("doubt", numeric=False))
    rows = [(s.name, note) for s in sides for note in s.notes]
    rows += [(s.name, f"no projected breakdown: {s.unprojected}") for s in sides if s.unprojected and not s.timers]
    return Table(title="Doubts", columns=columns, rows=tuple(rows))
