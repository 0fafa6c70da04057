"""Loads the sides that the command line names: ids of measured runs, tables of runs, logs and benchmark files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.compare.side import Series, Side
from harness.contracts.runs import MeasuredRun
from harness.evaluation.facts import facts_of
from harness.evidence.ingest import command
from harness.evidence.ingest.context import Context
from harness.evidence.ingest.dialects import read_records_of_log
from harness.evidence.ingest.logs import tprimat
from harness.evidence.ingest.logs.build import build, step_doubts, timers_of
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.partial import read_without
from harness.evidence.ingest.logs.settings import Incomplete
from harness.evidence.ingest.logs.source import open_source
from harness.evidence.ingest.report import LogRun
from harness.evidence.ingest.steady import REASONS, SteadyState, state_of
from harness.evidence.physics import judge
from harness.predictors.ours import Ours
from projector.errors import NO_FILE, InputError, Problem, collecting_into, nearest, raise_all
from projector.hardware import catalogue
from projector.io.table import values
from projector.workload import zoo

MOST = 8  # most colours that readers can distinguish
_STATED = "gpu gpus model=model_name global_batch_size seq_length"
_NO_PROPERTY = frozenset(("other configuration", "other batch size", "warm-up"))  # cuts outside the steady run

Known = Callable[[], Sequence[MeasuredRun]]


def sides(
    named: Sequence[str], known: Known, context: Context, unread: Mapping[str, list[Problem]] | None = None
) -> list[Side]:
    """Returns the sides in the order of ``named``: of a file all its runs, called by its folder as well where several
    have its name. ``known``: returns the measured runs in which ids are sought, called only when one is named;
    ``context``: the user's statements on logs without a configuration; ``unread``: the lists that take the mistakes of
    those that are wanted only where they can be read.

    Raises :class:`InputError` for files that cannot be read or contradict themselves, unknown ids, fewer than two sides
    or more than :data:`MOST`.
    """
    loaded: list[Side] = []
    problems: list[Problem] = []
    wanted = [text for text in dict.fromkeys(named) if not _is_file(text)]
    runs = {run.id: run for run in known()} if wanted else {}
    files = Counter(Path(text).name for text in dict.fromkeys(named))
    for text in dict.fromkeys(named):
        with collecting_into((unread or {}).get(text, problems)):
            if _is_file(text):
                inside = f"{Path(text).parent.name}/" if files[Path(text).name] > 1 else ""
                loaded += [replace(side, name=inside + side.name) for side in _of_file(Path(text), context)]
            elif text in runs:
                loaded.append(_of_run(runs[text], "measured run"))
            else:
                expected = f"an existing file, or {nearest(text, tuple(runs))}"
                problems.append(Problem("command line", "RUN", text, expected))
    if not problems and not 2 <= len(loaded) <= MOST:
        listed = ", ".join(side.name for side in loaded[:MOST])
        problems.append(
            Problem("command line", "RUN", f"{len(loaded)} runs ({listed})", f"2 to {MOST} runs to compare")
        )
    raise_all(problems)
    return _with_unique_names(loaded)


def benchmark_files(folder: Path) -> list[Path]:
    """Returns the benchmark files of TPrimat in a folder, by name; else its tables of runs; else the benchmark files of
    the folders in it (``output-00`` to ``output-04`` of ``run_all_configs.sh``). Raises :class:`InputError` where there
    are none."""
    whole, inside = (
        [path for path in sorted(folder.glob(files)) if path.match("benchmark_*") or _is_benchmark(path)]
        for files in ("*.json", "*/*.json")
    )
    files_found = whole or sorted(folder.glob("*.yaml")) or inside
    if not files_found:
        content = "none of them" if folder.is_dir() else NO_FILE
        raise InputError([Problem(str(folder), "", content, "benchmark_*.json, or tables of runs (*.yaml)")])
    return files_found


def _is_benchmark(path: Path) -> bool:
    return tprimat.recognises(open_source(path).head())


def _is_file(text: str) -> bool:
    return text == "-" or Path(text).exists()


def _of_file(path: Path, context: Context) -> list[Side]:
    if command.is_table(path):
        return [_of_run(run, f"{path.name}: {run.source.kind}") for run in command.load(path).runs]
    dialect, records = read_records_of_log(path)
    from_log: list[Side] = []
    problems: list[Problem] = []
    for record in records:
        try:
            from_log.append(_of_log(build(record, dialect, str(path), context)))
        except Incomplete as error:
            from_log.append(_of_record(record, dialect, path, context, error))
        except InputError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    raise_all(problems)
    return from_log


def _of_run(run: MeasuredRun, origin: str) -> Side:
    """Returns a stated run: one figure, and its spread where the source says it."""
    m = run.measured
    prediction = Ours("simulate").predict(run)
    judged, facts = judge(run), facts_of(run)
    return Side(
        name=run.id,
        origin=origin,
        gpu=run.gpu,
        gpus=run.gpus or None,
        tokens_per_step=run.recipe.global_batch_size * run.recipe.seq_length if run.recipe else None,
        step_seconds=m.step_seconds,
        tgs=m.tgs,
        rel_std=m.rel_std,
        memory={m.memory_kind or "not stated": m.peak_memory_gib} if m.peak_memory_gib else {},
        capacity_gib=_capacity(run.gpu),
        projected=dict(prediction.breakdown),
        unprojected="" if prediction.breakdown else prediction.reason,
        differs=facts.differs,
        tflops=m.tgs * facts.flops_per_token / 1e12 if m.tgs and facts.flops_per_token else None,
        status=m.status,
        notes=(*((run.problem,) if run.problem else ()), *judged.doubts),
        impossible="; ".join(judged.refused),
        architecture=_architecture(run),
    )


def _architecture(run: MeasuredRun) -> str:
    """Returns the name of a model of the zoo, and the sizes of any other, since a log's model is called by its file."""
    model = run.model
    if model is None or model.name in zoo.names():
        return model.name if model is not None else ""
    words = f"{model.num_layers} layers of {model.hidden_size}, {model.num_attention_heads} heads"
    experts = f", {model.moe.num_experts} experts of {model.moe.moe_ffn_hidden_size}" if model.moe else ""
    return f"{words}, MLP {model.ffn_hidden_size}{experts}, vocabulary {model.vocab_size}"


def _of_log(log: LogRun) -> Side:
    """Returns a log with its whole configuration."""
    side = _of_run(log.run, f"log ({log.dialect})")
    return replace(
        side,
        rel_std=None,
        series=_series(log.record, log.state, log.scale),
        memory=dict(log.record.memory) or side.memory,
        timers=timers_of(log.record),
        notes=tuple(dict.fromkeys((*side.notes, *log.row.doubts))),
    )


def _of_record(record: Logged, dialect: str, path: Path, context: Context, why: InputError) -> Side:
    """Returns a log that does not say its whole configuration: its steps, and the work that it states of them."""
    state = state_of(record)
    read = read_without(record, state, dialect, context)
    stated, missing = read.stated, ", ".join(problem.key for problem in why.problems)
    return Side(
        name=path.name if not record.name else f"{path.name} {record.name}",
        origin=f"log ({dialect})",
        gpu=stated.gpu,
        gpus=stated.gpus,
        tokens_per_step=read.tokens_per_step,
        step_seconds=read.step_seconds,
        tgs=read.tgs,
        series=_series(record, state, read.scale or float("nan")),
        memory=dict(record.memory),
        capacity_gib=_capacity(stated.gpu),
        timers=timers_of(record),
        unprojected=f"the log does not say {missing}",
        differs={name: str(value) for name, value in values(stated, _STATED).items() if value},
        status=record.failure.kind if record.failure is not None and state is None else "ok",
        notes=tuple(step_doubts(record, state)),
    )


def _series(record: Logged, state: SteadyState | None, scale: float) -> Series | None:
    if state is None or not scale > 0:
        return None
    return Series(
        iteration=record.iteration,
        seconds=record.value * scale,
        reasons=state.reasons,
        names=REASONS,
        loss=record.loss.astype(np.float64),
        first=_NO_PROPERTY,
        curves={name: np.asarray(values) for name, values in record.curves.items() if len(values) == record.steps},
    )


def _capacity(gpu: str) -> float | None:
    return catalogue.gpu(gpu).memory_bytes / 2**30 if catalogue.knows_gpu(gpu) else None


def _with_unique_names(sides: Iterable[Side]) -> list[Side]:
    """Returns the sides with a number behind repeated names."""
    counts: dict[str, int] = {}
    numbered = []
    for side in sides:
        counts[side.name] = counts.get(side.name, 0) + 1
        numbered.append(side if counts[side.name] == 1 else replace(side, name=f"{side.name} ({counts[side.name]})"))
    return numbered
