"""A study of a trace as tables."""

from __future__ import annotations

from harness.report.table import NONE, Column, Report, Table, figure, listed, number, percent, signed, text
from harness.trace.compare import Beside, causes
from harness.trace.idle import REASONS
from harness.trace.owners import phases
from harness.trace.study import Study
from projector.operators.types import Attention, Gemm

_MOST_UNKNOWN = 10
_NAME = 60  # characters of a kernel's name that are shown


def build(found: Study) -> Report:
    tables = (
        _causes(found),
        _kinds(found),
        _gaps(found),
        _phases(found),
        _marks(found),
        _exchanges(found),
        _shapes(found),
        _unknown(found),
    )
    return Report(
        title=f"Trace of {_whose(found)}",
        lines=(_headline(found), *(f"Note: {note}." for note in found.notes)),
        tables=tuple(table for table in tables if table.rows),
    )


def _whose(found: Study) -> str:
    trace = found.trace
    rank = "" if trace.rank is None else f", rank {trace.rank}"
    world = "" if trace.world is None else f" of {trace.world}"
    where = "the host" if found.part.kernels.host else trace.gpu or "a device that is not named"
    return f"{where}{rank}{world}: {found.part.said}"


def _headline(found: Study) -> str:
    seconds, busy = found.account.seconds, found.account.busy
    text = (
        f"{_ms(seconds)} ms, the device busy for {percent(busy / seconds)} of it; "
        f"{percent(found.unknown_share)} of the busy time is in kernels that no pattern names."
    )
    if found.planned is None or found.share is None:
        return text
    projected = sum(row.projected or 0.0 for row in found.rows)
    if found.share.whole:
        projected = found.planned.projection.step_seconds
    return f"{text} Projected {_ms(projected)} ms: {signed(projected / seconds - 1.0)}."


def _causes(found: Study) -> Table:
    title = "Why it takes so long: exposed milliseconds by cause, the largest excess first"
    note = "Every moment counts once: for what computes in it, else for what communicates, else for a copy, else idle."
    rows = [row for row in causes(found.rows) if row.exposed or row.projected]
    if found.planned is None:
        shares = [(row.kind, _ms(row.exposed), percent(row.exposed / found.account.seconds)) for row in rows]
        return Table(title=title, columns=_columns("cause", "ms", "share"), rows=tuple(shares), note=note)
    made = [(row.kind, _ms(row.exposed), _ms(row.projected), _ms(row.excess, sign=True), _error(row)) for row in rows]
    total = (
        "all",
        _ms(sum(row.exposed for row in rows)),
        _ms(sum(row.projected or 0.0 for row in rows)),
        _ms(sum(row.excess or 0.0 for row in rows), sign=True),
        NONE,
    )
    columns = _columns("cause", "ms", "projected ms", "excess ms", "projected against measured")
    return Table(title=title, columns=columns, rows=(*made, total), note=note, total=True)


def _error(row: Beside) -> str:
    return signed(row.projected / row.exposed - 1.0) if row.exposed > 0 and row.projected else NONE


def _kinds(found: Study) -> Table:
    rows = []
    for row in found.rows:
        line = [row.kind, str(row.calls), _ms(row.busy), _ms(row.exposed)]
        if found.planned is not None:
            line += [number(row.projected_calls, 0), _ms(row.projected_busy), _ms(row.projected)]
        rows.append(tuple(line))
    titles = ["kind", "kernels", "busy ms", "exposed ms"]
    if found.planned is not None:
        titles += ["projected kernels", "projected busy ms", "projected exposed ms"]
    return Table(title="By kind of kernel", columns=_columns(*titles), rows=tuple(rows))


def _gaps(found: Study) -> Table:
    rows = sorted(found.gaps.items(), key=lambda item: -item[1])
    made = tuple((reason, _ms(seconds), REASONS[reason]) for reason, seconds in rows)
    columns = (Column("idle because", False), Column("ms"), Column("how it is known", False))
    return Table(title="Why the device had nothing to do", columns=columns, rows=made)


def _phases(found: Study) -> Table:
    kernels = found.part.kernels
    spent = phases(found.owners, (kernels.end - kernels.start).tolist())
    made = tuple((phase, str(number), _ms(seconds)) for phase, (seconds, number) in spent.items())
    note = "Kernel time, streams added up; by the operator and the annotations around each launch."
    return Table(title="By phase", columns=_columns("phase", "kernels", "ms"), rows=made, note=note)


def _marks(found: Study) -> Table:
    kernels = found.part.kernels
    spent: dict[str, list[float]] = {}
    for owner, length in zip(found.owners, (kernels.end - kernels.start).tolist(), strict=True):
        row = spent.setdefault(owner.mark, [0.0, 0.0])
        row[0] += 1
        row[1] += length
    rows = sorted(((mark, row) for mark, row in spent.items() if mark), key=lambda item: -item[1][1])
    made = tuple((mark[:_NAME], f"{row[0]:.0f}", _ms(row[1])) for mark, row in rows)
    return Table(title="By annotation", columns=_columns("annotation", "kernels", "ms"), rows=made)


def _exchanges(found: Study) -> Table:
    made = (
        text("exchange", "op"),
        text("group", "group"),
        figure("ranks", lambda each: each.ranks or None),
        figure("elements", lambda each: each.elements or None, minor=2),
        text("type", lambda each: each.dtype or None, minor=2),
        figure("count", "count"),
        figure("ms", "seconds", _ms),
        figure("transfer ms", "transfer", _ms),
        figure("waiting ms", "waiting", _ms),
    )
    note = "Transfer: as long as on the fastest rank, or, of one rank, as the fastest of its like; the rest is waiting."
    return listed("Exchanges with other ranks", found.exchanges, made, note)


def _shapes(found: Study) -> Table:
    made = tuple(
        (
            _shape(each.op),
            each.op.dtype,
            str(each.calls),
            f"{1e6 * each.seconds:.1f}",
            f"{each.op.flops / each.seconds / 1e12:.2f}",
            *(() if each.model is None else (f"{1e6 * each.model:.1f}", signed(each.model / each.seconds - 1.0))),
        )
        for each in found.shapes
        if each.seconds > 0
    )
    more = () if found.planned is None else ("projected µs", "error")
    columns = _columns("shape", "type", "calls", "µs", "TFLOP/s", *more)
    note = "Of operators whose inputs the profiler recorded (record_shapes); the median of its calls."
    return Table(title="Products and attention by shape", columns=columns, rows=made, note=note)


def _shape(op: Gemm | Attention) -> str:
    if isinstance(op, Gemm):
        batch = f"{op.batch} × " if op.batch > 1 else ""
        return f"{batch}{op.m} × {op.n} × {op.k} {op.layout}"
    way = "backward" if op.backward else "forward"
    dims = str(op.head_dim_qk) if op.head_dim_qk == op.head_dim_v else f"{op.head_dim_qk}/{op.head_dim_v}"
    return f"attention {way}, {op.batch} × {op.heads}/{op.kv_heads} heads of {dims}, {op.seq_q} × {op.seq_k}"


def _unknown(found: Study) -> Table:
    rows = list(found.unknown.items())[:_MOST_UNKNOWN]
    made = tuple((name[:_NAME], _ms(seconds)) for name, seconds in rows)
    return Table(title="Kernels that no pattern names", columns=_columns("kernel", "ms"), rows=made)


def _columns(first: str, *rest: str) -> tuple[Column, ...]:
    return (Column(first, False), *(Column(title) for title in rest))


def _ms(seconds: float | None, *, sign: bool = False) -> str:
    if seconds is None:
        return NONE
    return f"{1e3 * seconds:+.2f}" if sign else f"{1e3 * seconds:.2f}"
