"""Reads measured runs of the user's own, from which expectations are told: ``--anchor`` and ``--runs``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli import evidence
from projector.cli.options import selection
from projector.cli.parser import parse
from projector.dataclass import dataclass
from projector.errors import InputError, NoMeasurement, Problem, Unsupported, raise_all
from projector.hardware import catalogue

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.intake.loaded import Loaded
    from projector.io.table import Line
    from projector.posterior import Run
    from projector.projection import Projection

#: What is asked of all runs alike, whatever they are: how files are read, and how kernels are priced.
_SHARED_OPTIONS = ("configs", "args", "env", "gemm_backend", "gpu_clock_mhz", "power_cap_watts")
_HERE = "command line"


class _Anchor(argparse.Action):
    """Collects ``--anchor FILE`` and ``--anchor-step SECONDS`` as pairs, in either order; a step belongs to the file it
    stands beside."""

    def __call__(self, _: object, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        pairs: list[list[Any]] = [list(pair) for pair in namespace.anchors]
        place = 1 if option == "--anchor-step" else 0
        if not pairs or pairs[-1][place] is not None:
            pairs.append([None, None])
        pairs[-1][place] = value
        namespace.anchors = tuple(map(tuple, pairs))


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A measured run of the user's own: its name, its projection, and its measured seconds a step."""

    name: str
    projection: Projection
    run: Run


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The runs from which expectations are told, and why other runs of their files are not used."""

    measured: tuple[MeasuredRun, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(each.run for each in self.measured)

    def applied_to(self, case: Case) -> Case:
        """Returns ``case`` with these runs beside what the package knows."""
        from projector.expectation import Knowledge

        return replace(case, known=Knowledge(runs=self.runs)) if self.measured else case


#: What the table of flags does not know of those that name measured runs.
FLAGS = {"anchor": _Anchor, "--anchor": {"default": ()}, "--anchor-step": {"default": ()}}


def prepare(options: argparse.Namespace) -> None:
    """Reads the anchors that tell their own step, and makes the first one the target where nothing else is. Raises
    :class:`InputError` for half an anchor and for a log that cannot be read."""
    problems = [
        Problem(_HERE, "--anchor-step", "no --anchor", "a measured run: its file") for f, _ in options.anchors if not f
    ]
    timing_flag = next((flag for flag in ("save_benchmark", "load_benchmark") if getattr(options, flag, None)), None)
    if options.anchors and timing_flag:
        expected = f"no --{timing_flag.replace('_', '-')}: the layers of the anchor are not timed"
        problems.append(Problem(_HERE, "--anchor", options.anchors[0][0] or "", expected))
    raise_all(problems)
    pairs, options.read = [], {}
    for file, step in options.anchors:
        if step is None:
            (_, options.read[file], step) = _only_run(file, options)
        pairs.append((file, step))
    options.anchors = tuple(pairs)
    if pairs and getattr(options, "model", "") is None and options.config is None:
        options.config = pairs[0][0]


def _only_run(file: str, options: argparse.Namespace) -> tuple[str, Loaded, float]:
    runs, problems = _read_runs(file, options, "--anchor")
    if len(runs) > 1:
        names = ", ".join(name for name, _, _ in runs[:4])
        expected = "one measured run; --runs takes any number"
        raise InputError([Problem(file, "", f"{len(runs)} runs ({names}, …)", expected)])
    if not runs:
        raise InputError(problems)
    return runs[0]


def _read_runs(file: str, options: argparse.Namespace, flag: str) -> evidence.Measured:
    gpu, gpus, framework = (getattr(options, name, None) for name in ("gpu", "gpus", "framework"))
    config = Path(options.config) if options.config and options.config != file else None
    return evidence.measured(flag, Path(file), gpu, gpus, framework, config)


def read_own(options: argparse.Namespace, mode: str = "simulate") -> OwnRuns:
    """Returns the runs of ``--anchor`` and ``--runs``, each projected. Raises :class:`InputError` and
    :class:`Unsupported` of an anchor, and where no run of a file can be projected."""
    measured = [_projected(file, options, file, options.read.get(file), step, mode) for file, step in options.anchors]
    unused: list[str] = []
    for file in options.runs:
        runs, refused = _read_runs(file, options, "--runs")
        reasons = [f"{problem.key or file}: {problem.found}" for problem in refused]
        earlier = len(measured)
        for name, loaded, step in runs:
            try:
                measured.append(_projected(name, options, f"{file}:{name}", loaded, step, mode))
            except (InputError, Unsupported, NoMeasurement) as error:
                reasons.append(f"{name}: {error}".replace("\n", "; "))
        if len(measured) == earlier:
            found = "; ".join(reasons[:4]) or "no runs"
            raise InputError([Problem(file, "", found, "a measured run that can be projected")])
        unused += reasons
    return OwnRuns(measured=tuple(measured), unused=tuple(unused))


def read(file: str | Path, gpu: str) -> tuple[Run, ...]:
    """Reads the measured runs of a log or table; ``gpu``: that of a run that names none. Raises :class:`InputError`."""
    options = selection().parse_args([])
    options.gpu, options.gpu_flag, options.anchors, options.runs = catalogue.find_gpu(gpu), "gpu", (), [str(file)]
    return read_own(options).runs


def _projected(
    name: str, options: argparse.Namespace, config: str, loaded: Loaded | None, seconds: float, mode: str
) -> MeasuredRun:
    """Projects a run as its file states it, with the flags that say what the file does not."""
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.cli.source import read_source
    from projector.expectation import Knowledge
    from projector.posterior import Run
    from projector.projection import project

    run_options = parse(selection(), ["--config", config])
    for option in _SHARED_OPTIONS:
        if hasattr(options, option):
            setattr(run_options, option, getattr(options, option))
    run_options.read = {config: loaded} if loaded else {}
    source = loaded or read_source(run_options).loaded
    device_flags = () if source.cluster else ("cluster", "gpu", "gpu_flag", "hardware_config")
    count_flags = () if source.gpus or source.nodes else ("gpus", "target_nodes")
    for option in (*device_flags, *count_flags):
        setattr(run_options, option, getattr(options, option, None))
    case = read_case(run_options)
    try:
        with naming_the_flag(run_options):
            projection = project(case.workload, case.cluster, mode, settings=case.settings)
    except Unsupported as error:
        raise Unsupported(f"{config}: {error}") from None
    facts = Knowledge().facts(projection, case.assumed)
    return MeasuredRun(name=name, projection=projection, run=Run(facts=facts, measured_seconds=seconds))


def lines(known: OwnRuns) -> Iterator[Line]:
    """Yields each run beside its projection and what runs of others let expect of it, and why others are not used."""
    from projector.expectation import Knowledge
    from projector.io.table import Line, seconds, signed

    for run in known.measured[:8]:
        step, measured = run.projection.step_seconds, run.run.measured_seconds
        usual = Knowledge().of(run.run.facts)
        normal = (
            f"{measured / usual.high:.2f} times the slowest of these" if measured > usual.high
            else f"{measured / usual.low:.2f} times the fastest of these" if measured < usual.low
            else "as fast as others"
        )  # fmt: skip
        yield Line(
            f"Own run {run.name}: {seconds(measured)} s measured, {seconds(step)} s projected "
            f"({signed(step / measured - 1)}); runs of others let expect {seconds(usual.low)} to {seconds(usual.high)} s: "
            f"{normal}"
        )
    if len(known.measured) > 8:
        yield Line(f"and {len(known.measured) - 8} further runs of your own", "dim")
    for reason in known.unused:
        yield Line(f"Not used: {reason}", "dim")


def as_values(known: OwnRuns) -> dict[str, object]:
    """Returns ``own_runs`` of a JSON document, where there are any: ``used``, each with its measured and projected
    step; ``left``, why other runs of the files are not used."""
    from projector.io.table import values

    steps = "name measured_step_seconds=run.measured_seconds projected_step_seconds=projection.step_seconds"
    used = [values(run, steps) for run in known.measured]
    return {"own_runs": {"used": used, "left": list(known.unused)}} if used else {}
