"""Loosely typed records of training runs → :class:`MeasuredRun`, with a report of every field of every row.

Nothing is guessed in silence: a value is mapped from a stated one, assumed (and listed in the run), or refused (the run
keeps its row with ``problem``). What no field can hold and yet distinguishes rows of one group is kept in ``switches``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from harness.contracts.runs import Measured, MeasuredRun, Source
from harness.evidence.ingest.architecture import architecture
from harness.evidence.ingest.configured import gpu_of, gpus_per_node, source_of, stack_of, stripped_note
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.recipe import group_sizes, partial_recipe, recipe_of, recipe_words
from harness.evidence.ingest.record import COLUMNS_OF_A_RUN, Record, known_key, one_line
from harness.evidence.ingest.report import Converted, RowReport
from harness.evidence.ingest.restated import says_nothing_new
from harness.evidence.ingest.settings import plain_key
from harness.evidence.ingest.throughput import measured
from harness.evidence.physics import judge
from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.frameworks import flops
from projector.hardware import catalogue
from projector.intake import nemo_recipes
from projector.intake.primus_bridge import recompute_of
from projector.memo import evolve
from projector.workload.workload import Workload

# The alternatives differ by 4 % (one MTP layer of DeepSeek-V3) to 33 % (recompute); printed figures by 0.5 % at most,
# an early BigScience estimate by 3 to 4 %.
_CLOSE = 0.05
_MTP = ("other.mtp_num_layers", "other.args.mtp_num_layers", "arch.mtp_layers", "other.mtp_layers")


def settle(record: Record, workload: Workload, measured: Measured) -> Workload:
    """Returns the workload with open questions answered by the source's own TFLOP/s, each answer listed as assumed.

    A framework trains multi-token prediction only when asked: without a statement or proof it is 0.
    """
    said = any(key in record.values for key in _MTP) or "mtp" in record.text("model").lower()
    mtp_open = workload.model.mtp_num_layers > 0 and not said
    stated = measured.tflops_per_gpu and measured.step_seconds and not any("TFLOP" in text for text in measured.derived)
    proof = _closest(_open_options(workload, mtp_open), measured) if stated else None
    if proof is None and mtp_open:
        record.assume("mtp_num_layers=0 (not stated)")
        return replace(workload, model=replace(workload.model, mtp_num_layers=0))
    if proof is None:
        return workload
    if proof.recipe != workload.recipe:
        record.assume("recompute_granularity=full (the printed TFLOP/s count it)")
    if proof.model != workload.model:
        record.assume(f"mtp_num_layers={proof.model.mtp_num_layers} (the printed TFLOP/s count them)")
    return proof


def _open_options(workload: Workload, mtp_open: bool) -> list[Workload]:
    models = [workload.model, *([replace(workload.model, mtp_num_layers=0)] if mtp_open else [])]
    recipes = [workload.recipe]
    if workload.recipe.recompute_granularity is None and workload.recipe.lora is None:
        recipes.append(replace(workload.recipe, recompute_granularity="full"))
    return [replace(workload, model=model, recipe=recipe) for model in models for recipe in recipes]


def _closest(options: list[Workload], measured: Measured) -> Workload | None:
    """Returns the option whose FLOP count is nearest to the printed one; None when none is near or all count the same."""
    printed, seconds = measured.tflops_per_gpu or 0.0, measured.step_seconds or 0.0
    try:
        off = [abs(flops.tflops_per_gpu(option, seconds) / printed - 1) for option in options]
    except Unsupported:
        return None
    best = min(range(len(options)), key=lambda i: off[i])
    return options[best] if off[best] < _CLOSE and max(off) - off[best] > 1e-6 else None


_RELEASE = re.compile(r"megatron-?bridge\W*v?(\d+\.\d+)", re.IGNORECASE)
_NEMO = re.compile(r"\bnemo\W*(?:framework\W*)?v?(?:2\.\d|2[5-9]\.\d\d)", re.IGNORECASE)  # 2, and images since 25.02
_LESS = 0.8  # of the memory without recompute
_MOST_CONFIGURATIONS = 1000  # of a table, kept at a time
_MOST_PROJECTIONS = 500  # of one import: a table of any length stays bounded
_GIB = 2.0**30


def _complete(record: Record, workload: Workload, measured: Measured, gpu: str) -> Workload:
    """Returns ``workload`` with the recompute of the release's recipe, listed as assumed, where a source leaves recompute
    open and names the release. The measured memory decides: a fifth or more below a projection without recompute, the run
    recomputed; where no memory was measured, the recipe is believed."""
    recipe, version = workload.recipe, record.text("framework_version")
    release, nemo = _RELEASE.search(version), _NEMO.search(f"{record.text('framework')} {version}")
    if not (release or nemo) or recipe.recompute_granularity is not None or recipe.lora is not None:
        return workload
    name = workload.model.name
    fields = recompute_of(name, release[1]) if release else nemo_recipes.recompute_of(name)
    if fields.get("recompute_granularity", "none") == "none":
        return workload
    which = f"the recipe of {name} in {f'Megatron-Bridge {release[1]}' if release else 'NeMo 2'}"
    peak, plain = measured.peak_memory_gib, _reserved_gib(workload, gpu) if measured.peak_memory_gib else None
    if peak and plain:
        share = 1 - peak / plain
        which += (
            f", where {peak:.1f} GiB are {abs(share):.0%} {'below' if share > 0 else 'above'} the {plain:.1f} without"
        )
        if peak > _LESS * plain:
            record.doubts.append(f"recompute not stated and taken for none, against {which}")
            return workload
    record.assume(f"{', '.join(f'{name}={value}' for name, value in fields.items())} ({which})")
    changed: Any = dict(fields)
    return replace(workload, recipe=replace(recipe, **changed))


@lru_cache(maxsize=4096)
def _reserved_gib(workload: Workload, gpu: str) -> float | None:
    """Projects the GiB that the fullest rank reserves; None where that is not modelled, or too many were asked for."""
    from projector.projection import project

    if _reserved_gib.cache_info().misses > _MOST_PROJECTIONS or not catalogue.knows_gpu(gpu):
        return None
    try:
        return float(project(workload, catalogue.default_cluster(gpu)).memory.reserved) / _GIB
    except (InputError, Unsupported):
        return None


def _configuration(record: Record, strip: tuple[str, ...]) -> tuple[MeasuredRun, Workload | None]:
    """Reads what a record says beside its figures (but what is not stated of its recipe may follow from them)."""
    gpu, stack = gpu_of(record), stack_of(record)
    model, name = architecture(record)
    words = recipe_words(record, stack, gpu)
    size = group_sizes(record, model, stack, words)
    recipe = recipe_of(record, gpu, model, size, words)
    told = {"moe_path": record.text("other.moe_path"), "phase": words.pop("phase", None)}
    switches = {key: value for key, value in told.items() if value}
    run = MeasuredRun(
        id="",
        source=Source(title=""),
        gpu=gpu,
        gpus=size.gpus or 0,
        stack=stack,
        model=model,
        recipe=recipe,
        measured=Measured(),
        model_name=name,
        gpus_per_node=gpus_per_node(record, gpu, size.gpus),
        cluster=record.text("cluster") or None,
        group=record.text("group"),
        switches=switches if recipe else {**partial_recipe(size, words), **switches},
        notes=stripped_note(record, strip),
    )
    return run, run.workload if model is not None and recipe is not None and size.gpus else None


class _Configurations:
    """The configurations of a table, each read once. What is read decides: rows with the same columns and the same values
    in those columns that any of them was read from have one configuration."""

    def __init__(self, known: ImportMap) -> None:
        self.known = known
        self._read: dict[tuple[str, ...], tuple[list[str], dict[str, tuple[MeasuredRun, Workload | None, Any]]]] = {}

    def of(self, record: Record) -> tuple[MeasuredRun, Workload | None]:
        """Returns the configuration of a record, on which it leaves what reading it would have left."""
        if len(self._read) > _MOST_CONFIGURATIONS:
            self._read.clear()
        columns, known = self._read.setdefault(tuple(record.values), ([], {}))
        before = repr((record.unread, record.assumed))
        found = known.get(f"{before}{[record.values[column] for column in columns]}")
        if found is not None:
            record.tell(found[2])
        else:
            found = (*_configuration(record, self.known.strip), record.told())
            if (more := record.used - set(columns)) or len(known) > _MOST_CONFIGURATIONS:
                columns += sorted(more)
                known.clear()
            known[f"{before}{[record.values[column] for column in columns]}"] = found
        return found[0], found[1]


def _convert_row(record: Record, index: int, configurations: _Configurations) -> MeasuredRun:
    """Reads every field of a record; what stops a projection is refused on the record and becomes the run's ``problem``."""
    known, run_id = configurations.known, one_line(record.values.get("id", "")) or f"row-{index}"
    assigned = known.assigned(run_id)
    if assumption := assigned.pop("assumed", None):
        record.assume(str(assumption))
    record.values.update({**known.usual, **record.values, **assigned})
    run, workload = configurations.of(record)
    record.used.add("id")
    figures = _figures(record, run, workload)
    if workload is not None:
        workload = _complete(record, settle(record, workload, figures), figures, run.gpu)
        run = evolve(run, model=workload.model, recipe=workload.recipe)
    row = evolve(
        run,
        id=run_id,
        source=source_of(record, known.strip),
        measured=figures,
        assumed=tuple(record.assumed),
        doubt=record.text("doubt") or known.doubt(run_id),
    )
    return _checked(record, row)


def unread_of(record: Record, run: MeasuredRun) -> dict[str, str]:
    """Returns what nothing reads of a record, by key: words of values, and whole values of keys that nobody looks at, unless
    they change nothing or say again what the run holds."""
    whole = {key: one_line(record.values[key]) for key in record.unused()}
    told = {key: text for key, text in whole.items() if not says_nothing_new(run, plain_key(key), text)}
    return {plain_key(key): words for key, words in (record.unread | told).items()}


def _checked(record: Record, run: MeasuredRun) -> MeasuredRun:
    """Returns the run after its physical check: what is impossible is refused on the record, what is unlikely is a doubt."""
    judgement = judge(run)
    for reason in judgement.refused:
        record.refuse(reason)
    record.doubts += judgement.doubts
    unread = tuple(f"{key}: {words.replace(';', ',')}" for key, words in unread_of(record, run).items())
    return evolve(run, problem="; ".join(record.refused), unread=unread)


def _figures(record: Record, run: MeasuredRun, workload: Workload | None) -> Measured:
    stated: Any = vars(run.recipe) if run.recipe else run.switches
    tokens = stated.get("global_batch_size", 0) * stated.get("seq_length", 0) or None

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

    _take_memory_of_gpu(record, run.gpu)
    return measured(record, run.gpus or None, tokens, run.stack.framework, invert)


def _take_memory_of_gpu(record: Record, gpu: str) -> None:
    """Takes the figure of a column "GPU memory" for a peak, but where it is the memory that the GPU has."""
    gib = record.number("metrics.gpu_memory_gb")
    if gib is not None and catalogue.knows_gpu(gpu) and gib == round(catalogue.gpu(gpu).memory_bytes / _GIB):
        record.doubts.append(f"GPU memory of {gib:g} GB is what {gpu} has, and no measured peak: left out")
    elif gib is not None:
        record.values.setdefault("metrics.memory_gb", gib)


def convert(records: Iterable[object], where: str, header_map: ImportMap | None = None) -> Converted:
    """Converts records (mappings, as YAML and JSON give them).

    ``where``: their file, for the report. Raises :class:`InputError` for a record that is no mapping, or repeats an id.
    """
    known = header_map or ImportMap()
    rows = list(records)
    problems = [
        Problem(where, f"[{index}]", data, "a record: columns and their values")
        for index, data in enumerate(rows)
        if not isinstance(data, Mapping)
    ]
    raise_all(problems[:_MOST_SHOWN])
    parsed = (Record(data, f"{where}[{index}]", known.columns) for index, data in enumerate(rows))  # type: ignore[arg-type]
    return gathered(converted(parsed, known), where)


def refuse_foreign(records: Iterable[object], where: str, header_map: ImportMap | None = None) -> None:
    """Raises :class:`InputError` for records none of which has a key that a run is read from."""
    columns = (header_map or ImportMap()).columns
    keys: dict[str, None] = {}
    for data in records:
        if isinstance(data, Mapping) and data:
            known = Record(data, where, columns).values
            if any(map(known_key, known)):
                return
            keys.update(dict.fromkeys(map(str, data)))
    if keys:
        raise InputError([Problem(where, "", ", ".join(keys)[:80], COLUMNS_OF_A_RUN)])


def gathered(pairs: Iterable[tuple[MeasuredRun, Record]], where: str) -> Converted:
    """Returns all rows of a table, with what sets rows of a group apart. Raises :class:`InputError` for a repeated id."""
    rows = list(pairs)
    first: dict[str, str] = {}
    problems = []
    groups = Groups()
    for run, record in rows:
        if run.id in first:
            expected = f"an id that {first[run.id]} does not have"
            problems.append(Problem(where, record.where.removeprefix(where) + ".id", run.id, expected))
        first.setdefault(run.id, record.where)
        groups.see(run, record)
    raise_all(problems[:_MOST_SHOWN])
    runs = tuple(groups.with_switches(run, record) for run, record in rows)
    return Converted(runs=runs, rows=tuple(report_of(run, record) for run, (_, record) in zip(runs, rows, strict=True)))


def converted(records: Iterable[Record], known: ImportMap) -> Iterator[tuple[MeasuredRun, Record]]:
    """Yields each record with its run, one after the other."""
    configurations = _Configurations(known)
    for index, record in enumerate(records):
        yield _convert_row(record, index, configurations), record


def report_of(run: MeasuredRun, record: Record) -> RowReport:
    return RowReport(
        where=record.where,
        id=run.id,
        mapped=tuple(record.mapped),
        assumed=tuple(record.assumed),
        refused=tuple(record.refused),
        doubts=tuple(record.doubts),
        unread=run.unread,
    )


class Groups:
    """Short values that differ within the rows of one group, at keys where a row has something unread: they tell rows apart
    and no field holds them. They are known when every row has been seen."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, set[str]]] = {}
        self._unread: dict[str, set[str]] = {}
        self._sizes: Counter[str] = Counter()

    def see(self, run: MeasuredRun, record: Record) -> None:
        if run.group:
            self._sizes[run.group] += 1
            self._unread.setdefault(run.group, set()).update(text.partition(": ")[0] for text in run.unread)
            values = self._values.setdefault(run.group, {})
            for key, value in _short_values(record):
                values.setdefault(key, set()).add(str(value))

    def with_switches(self, run: MeasuredRun, record: Record) -> MeasuredRun:
        unread = self._unread.get(run.group)
        if not unread:
            return run
        varied, most = self._values[run.group], max(3, self._sizes[run.group])
        switches = {key: value for key, value in _short_values(record) if key in unread and 1 < len(varied[key]) < most}
        return replace(run, switches={**run.switches, **switches}) if switches else run


_MOST_SHOWN = 20  # mistakes of one kind
_LONGEST = 60  # characters of a value that tells rows apart


def _short_values(record: Record) -> Iterator[tuple[str, object]]:
    """Yields the short values that only the section ``other`` has."""
    for key, value in record.values.items():
        is_plain = key.startswith("other.") and key.count(".") == 1 and isinstance(value, (str, int, float, bool))
        if is_plain and len(str(value)) <= _LONGEST:
            yield key.removeprefix("other."), value
