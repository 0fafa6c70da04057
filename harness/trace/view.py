"""A study of a trace as tables."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.report.spec import number0
from harness.report.table import Report, Table, figure, listed, percent, signed, text
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
    return Report.of(
        f"Trace of {_whose(found)}", tables, (_headline(found), *(f"Note: {note}." for note in found.notes))
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
        share = figure("share", lambda row: percent(row.exposed / found.account.seconds))
        return listed(title, rows, (text("cause", "kind"), figure("ms", "exposed", _ms), share), note)
    total = Beside("all", 0.0, sum(row.exposed for row in rows), 0, None, sum(row.projected or 0.0 for row in rows))
    made = (
        text("cause", "kind"),
        figure("ms", "exposed", _ms),
        figure("projected ms", "projected", _ms),
        figure("excess ms", "excess", partial(_ms, sign=True)),
        figure("projected against measured", lambda row: None if row is total else _error(row)),
    )
    return replace(listed(title, [*rows, total], made, note), total=True)


def _error(row: Beside) -> str | None:
    return signed(row.projected / row.exposed - 1.0) if row.exposed > 0 and row.projected else None


def _kinds(found: Study) -> Table:
    made = (
        text("kind", "kind"),
        figure("kernels", "calls"),
        figure("busy ms", "busy", _ms),
        figure("exposed ms", "exposed", _ms),
    )
    projected = (
        figure("projected kernels", "projected_calls", number0),
        figure("projected busy ms", "projected_busy", _ms),
        figure("projected exposed ms", "projected", _ms),
    )
    return listed("By kind of kernel", found.rows, made if found.planned is None else (*made, *projected))


def _gaps(found: Study) -> Table:
    made = (text("idle because", 0), figure("ms", 1, _ms), text("how it is known", 0, REASONS.__getitem__))
    return listed("Why the device had nothing to do", sorted(found.gaps.items(), key=lambda item: -item[1]), made)


def _phases(found: Study) -> Table:
    kernels = found.part.kernels
    spent = phases(found.owners, (kernels.end - kernels.start).tolist())
    made = (text("phase", 0), figure("kernels", lambda item: item[1][1]), figure("ms", lambda item: _ms(item[1][0])))
    note = "Kernel time, streams added up; by the operator and the annotations around each launch."
    return listed("By phase", spent.items(), made, note)


def _marks(found: Study) -> Table:
    kernels = found.part.kernels
    spent: dict[str, list[float]] = {}
    for owner, length in zip(found.owners, (kernels.end - kernels.start).tolist(), strict=True):
        if owner.mark:
            spent.setdefault(owner.mark, []).append(length)
    rows = [(mark[:_NAME], len(times), sum(times)) for mark, times in spent.items()]
    made = (text("annotation", 0), figure("kernels", 1), figure("ms", 2, _ms))
    return listed("By annotation", sorted(rows, key=lambda row: -row[2]), made)


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
    made = (
        text("shape", "op", _shape),
        figure("type", "op.dtype"),
        figure("calls", "calls"),
        figure("µs", lambda each: f"{1e6 * each.seconds:.1f}"),
        figure("TFLOP/s", lambda each: f"{each.op.flops / each.seconds / 1e12:.2f}"),
    )
    projected = (
        figure("projected µs", lambda each: f"{1e6 * each.model:.1f}"),
        figure("error", lambda each: signed(each.model / each.seconds - 1.0)),
    )
    rows = (each for each in found.shapes if each.seconds > 0)
    note = "Of operators whose inputs the profiler recorded (record_shapes); the median of its calls."
    return listed("Products and attention by shape", rows, made if found.planned is None else (*made, *projected), note)


def _shape(op: Gemm | Attention) -> str:
    if isinstance(op, Gemm):
        batch = f"{op.batch} × " if op.batch > 1 else ""
        return f"{batch}{op.m} × {op.n} × {op.k} {op.layout}"
    way = "backward" if op.backward else "forward"
    dims = str(op.head_dim_qk) if op.head_dim_qk == op.head_dim_v else f"{op.head_dim_qk}/{op.head_dim_v}"
    return f"attention {way}, {op.batch} × {op.heads}/{op.kv_heads} heads of {dims}, {op.seq_q} × {op.seq_k}"


def _unknown(found: Study) -> Table:
    made = (text("kernel", 0, lambda name: name[:_NAME]), figure("ms", 1, _ms))
    return listed("Kernels that no pattern names", list(found.unknown.items())[:_MOST_UNKNOWN], made)


def _ms(seconds: float, *, sign: bool = False) -> str:
    return f"{1e3 * seconds:+.2f}" if sign else f"{1e3 * seconds:.2f}"
