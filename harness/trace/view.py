"""Tabulates a study of a trace."""

from __future__ import annotations

from dataclasses import replace

from harness.report.spec import tabled
from harness.report.table import Report, Table, percent, signed
from harness.trace.compare import Beside, causes
from harness.trace.idle import REASONS
from harness.trace.owners import phases
from harness.trace.study import Study
from projector.io.rows import grouped
from projector.operators.types import Attention, Gemm

_MOST_UNKNOWN = 10
_NAME = 60  # characters of a kernel's name that are shown


def build(found: Study) -> Report:
    spent = phases(found.owners, found.part.kernels.seconds.tolist())
    unknown = [(name[:_NAME], seconds) for name, seconds in [*found.unknown.items()][:_MOST_UNKNOWN]]
    gaps = sorted(found.gaps.items(), key=lambda item: -item[1])
    tables = (
        _causes(found),
        tabled("trace_kinds", found.rows, planned=found.planned is not None),
        tabled("trace_idle", gaps, reason=REASONS.__getitem__),
        tabled("trace_phases", spent.items()),
        tabled("trace_marks", _marks(found)),
        tabled("trace_exchanges", found.exchanges),
        _shapes(found),
        tabled("trace_unknown", unknown),
    )
    lines = (_headline(found), *(f"Note: {note}." for note in found.notes))
    return Report.of(f"Trace of {_title(found)}", tables, lines)


def _title(study: Study) -> str:
    trace = study.trace
    rank = "" if trace.rank is None else f", rank {trace.rank}"
    world = "" if trace.world is None else f" of {trace.world}"
    where = "the host" if study.part.kernels.host else trace.gpu or "a device that is not named"
    return f"{where}{rank}{world}: {study.part.said}"


def _headline(study: Study) -> str:
    seconds, busy = study.account.seconds, study.account.busy
    text = (
        f"{_milliseconds(seconds)} ms, the device busy for {percent(busy / seconds)} of it; "
        f"{percent(study.unknown_share)} of the busy time is in kernels that no pattern names."
    )
    if study.planned is None or study.share is None:
        return text
    projected = sum(row.projected or 0.0 for row in study.rows)
    if study.share.whole:
        projected = study.planned.projection.step_seconds
    return f"{text} Projected {_milliseconds(projected)} ms: {signed(projected / seconds - 1.0)}."


def _causes(study: Study) -> Table:
    rows = [row for row in causes(study.rows) if row.exposed or row.projected]
    if study.planned is None:
        return tabled("trace_causes", rows, alone=True, share=lambda row: row.exposed / study.account.seconds)
    total = Beside("all", 0.0, sum(row.exposed for row in rows), 0, None, sum(row.projected or 0.0 for row in rows))

    def error(row: Beside) -> float | None:
        known = row is not total and row.exposed > 0 and row.projected
        return (row.projected or 0.0) / row.exposed - 1.0 if known else None

    return replace(tabled("trace_causes", [*rows, total], planned=True, error=error), total=True)


def _marks(study: Study) -> list[tuple[str, int, float]]:
    lengths = zip(study.owners, study.part.kernels.seconds.tolist(), strict=True)
    spent = grouped((owner.mark, length) for owner, length in lengths if owner.mark)
    rows = [(mark[:_NAME], len(times), sum(times)) for mark, times in spent.items()]
    return sorted(rows, key=lambda row: -row[2])


def _shapes(study: Study) -> Table:
    return tabled(
        "trace_shapes",
        (shape for shape in study.shapes if shape.seconds > 0),
        planned=study.planned is not None,
        shape=_shape,
        rate=lambda shape: shape.op.flops / shape.seconds / 1e12,
        error=lambda shape: shape.model / shape.seconds - 1.0,
    )


def _shape(op: Gemm | Attention) -> str:
    if isinstance(op, Gemm):
        batch = f"{op.batch} × " if op.batch > 1 else ""
        return f"{batch}{op.m} × {op.n} × {op.k} {op.layout}"
    way = "backward" if op.backward else "forward"
    dims = str(op.head_dim_qk) if op.head_dim_qk == op.head_dim_v else f"{op.head_dim_qk}/{op.head_dim_v}"
    return f"attention {way}, {op.batch} × {op.heads}/{op.kv_heads} heads of {dims}, {op.seq_q} × {op.seq_k}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
