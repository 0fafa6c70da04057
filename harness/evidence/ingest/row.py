"""One record → one measured run: its configuration, then its figures, then what they prove."""

from __future__ import annotations

from dataclasses import replace

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evidence.ingest.configured import Configured, Memory, configure
from harness.evidence.ingest.evidence import settle
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.parallel import Sizes
from harness.evidence.ingest.recipe import partial_recipe
from harness.evidence.ingest.record import Record, one_line
from harness.evidence.ingest.released import completed
from harness.evidence.ingest.settings import plain_key
from harness.evidence.ingest.throughput import measured
from harness.evidence.ingest.vocabulary import changes_nothing
from harness.evidence.physics import judge
from projector.errors import Unsupported
from projector.frameworks import flops
from projector.workload.workload import Workload


def convert_row(record: Record, index: int, known: ImportMap, memory: Memory | None = None) -> MeasuredRun:
    """Read every field; what stops a projection is refused on the record and becomes the run's ``problem``.

    ``memory``: configurations that were read before, for tables that repeat them.
    """
    run_id = record.text("id") or f"row-{index}"
    assigned = known.assigned(run_id)
    if assumption := assigned.pop("assumed", None):
        record.assume(str(assumption))
    record.values.update(assigned)
    special = bool(assigned or assumption)
    read = configure(record, known) if memory is None or special else memory.configured(record, known)
    model, recipe, workload = read.model, read.recipe, read.workload
    figures = _figures(record, read.stack, workload, read.size)
    if workload is not None:
        workload = completed(record, settle(record, workload, figures, read.mtp_stated), figures, read.gpu)
        model, recipe = workload.model, workload.recipe
    partial = dict(read.switches) if recipe else {**partial_recipe(read.size, read.words), **read.switches}
    run = MeasuredRun(
        id=run_id,
        source=read.source if read.place == record.where else _moved(read, record.where),
        gpu=read.gpu,
        gpus=read.size.gpus or 0,
        stack=read.stack,
        model=model,
        recipe=recipe,
        measured=figures,
        model_name=read.name,
        gpus_per_node=read.gpus_per_node,
        cluster=read.cluster,
        group=read.group,
        switches=partial,
        assumed=tuple(record.assumed),
        doubt=record.text("doubt") or known.doubt(run_id),
        notes=read.note,
    )
    return _judged(record, run)


def unread_of(record: Record) -> dict[str, str]:
    """What nothing reads of a record, by its keys: words of values, and whole values of keys that nobody looks at."""
    whole = {key: one_line(record.values[key]) for key in record.unused()}
    return record.unread | {key: text for key, text in whole.items() if not changes_nothing(plain_key(key), text)}


def _moved(read: Configured, place: str) -> Source:
    source = read.source
    if source.title != read.place:
        return source
    return Source(title=place, revision=source.revision, licence=source.licence, kind=source.kind)


def _judged(record: Record, run: MeasuredRun) -> MeasuredRun:
    """The run after its physical check: what is impossible is refused on the record, what is unlikely is a doubt."""
    found = judge(run)
    for reason in found.refused:
        record.refuse(reason)
    record.doubts += found.doubts
    unread = tuple(f"{plain_key(key)}: {words.replace(';', ',')}" for key, words in unread_of(record).items())
    return replace(run, problem="; ".join(record.refused), unread=unread)


def _figures(record: Record, stack: Stack, workload: Workload | None, size: Sizes) -> Measured:
    tokens = size.global_batch_size * size.seq_length if size.global_batch_size and size.seq_length else None

    def invert(tflops: float) -> tuple[float, str] | None:
        if workload is None:
            return None
        try:
            stated = record.text("other.flop_formula")  # where a source says how it counts
            formula = stated or flops.formula_for(workload.framework, workload.framework_date)
        except Unsupported as why:
            record.refuse(str(why))
            return None
        return flops.step_seconds(workload, tflops, formula), formula

    return measured(record, size.gpus, tokens, stack.framework, invert)
