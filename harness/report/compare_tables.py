"""Tabulates a comparison: figures, stability, configurations that differ, breakdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.compare.side import Side, stability
from harness.compare.verdict import RATE, TIME, Ratio, interval
from harness.report.spec import tabled
from harness.report.table import NONE, Column, Report, Table, signed, table_of, text

_MOST_PARTS = 12


def report(sides: Sequence[Side], ratios: Mapping[str, Ratio], sentence: str) -> Report:
    """Returns the tables. ``ratios``: of each other side to the first, by name; ``sentence``: the verdict."""
    steady = [(s.name, len(s.series.kept), stability(s.series)) for s in sides if s.series is not None]
    doubts = [(s.name, note) for s in sides for note in s.notes]
    doubts += [(s.name, f"no projected breakdown: {s.unprojected}") for s in sides if s.unprojected and not s.timers]
    tables = (
        _figures(sides, ratios),
        tabled("stability", steady),
        _breakdown(sides),
        _differences(sides),
        tabled("doubts", doubts),
    )
    return Report.of("Runs side by side", tables, (sentence,))


def _figures(sides: Sequence[Side], ratios: Mapping[str, Ratio]) -> Table:
    relative = {name: _relative(ratio) for name, ratio in ratios.items()}
    what = next((r.what for r in ratios.values()), "")
    speed = "tokens/s/GPU" if what == RATE else "steps/s (the same work or unstated)"
    return tabled(
        "compared",
        ({"side": side, "relative": relative.get(side.name)} for side in sides),
        step=lambda row: _step(row["side"]),
        interval=lambda row: _interval(row["side"]),
        gib=lambda row: ", ".join(f"{gib:.1f} {kind}" for kind, gib in row["side"].memory.items()) or None,
        loss=lambda row: _loss(row["side"]),
        note=f"Speed to the first: {speed} over that of {sides[0].name}, less one." if what else "",
    )


def _step(side: Side) -> str | None:
    return side.status if side.status != "ok" else None if side.step_seconds is None else f"{side.step_seconds:.5g}"


def _interval(side: Side) -> str | None:
    known, seconds = interval(side), side.step_seconds or 0.0
    return None if known is None else f"{seconds * known[0]:.5g} to {seconds * known[1]:.5g}"


def _relative(ratio: Ratio) -> tuple[str, str, str]:
    value, ends = ratio.value, (ratio.low, ratio.high)
    if ratio.what == TIME:
        value, ends = 1 / value, (ratio.high and 1 / ratio.high, ratio.low and 1 / ratio.low)
    if ends[0] is None or ends[1] is None:
        return (signed(value - 1), NONE, "cannot be stated")
    around = f"{signed(ends[0] - 1, 2)} to {signed(ends[1] - 1, 2)}"
    return (signed(value - 1), around, "yes" if ratio.significant else "no")


def _loss(side: Side) -> str | None:
    """Returns the first and the last loss that the log prints."""
    if side.series is None:
        return None
    known = side.series.loss[side.series.loss == side.series.loss]
    return f"{known[0]:.3f} to {known[-1]:.3f}" if len(known) else None


def _breakdown(sides: Sequence[Side]) -> Table:
    """Returns the timers of the logs and the parts of the projected steps; no row mixes the two."""
    rows = [(f"timer {name}", *cells) for name, *cells in _parts([dict(s.timers) for s in sides])]
    rows += [(f"projected {name}", *cells) for name, *cells in _parts([dict(s.projected) for s in sides])]
    columns = (Column("seconds a step", numeric=False), *(Column(s.name) for s in sides))
    note = "Timers contain each other. Projected: simulate, uncalibrated, exposed seconds."
    return Table(title="Breakdown", columns=columns, rows=tuple(rows), note=note)


def _parts(breakdowns: Sequence[Mapping[str, float]]) -> list[tuple[str, ...]]:
    names = dict.fromkeys(name for parts in breakdowns for name in parts)
    largest = sorted(names, key=lambda name: -max(parts.get(name, 0.0) for parts in breakdowns))[:_MOST_PARTS]
    shown = [name for name in largest if any(parts.get(name, 0.0) >= 5e-5 for parts in breakdowns)]
    return [(name, *(f"{p[name]:.4f}" if name in p else NONE for p in breakdowns)) for name in shown]


def _differences(sides: Sequence[Side]) -> Table:
    """Returns the configuration keys that differ between the runs that state a configuration."""
    stated = [s for s in sides if s.differs]
    keys = dict.fromkeys(key for s in stated for key in s.differs)
    differing = [k for k in keys if len({s.differs.get(k, NONE) for s in stated}) > 1]
    return table_of("What differs", differing, (text("key", str), *(text(s.name, s.differs.get) for s in stated)))
