"""``--anchor`` and ``--runs``: measured runs of the user's own, from which expectations are told."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli import evidence
from projector.cli.options import selection
from projector.cli.parser import parse, quantity
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
_SHARED = ("configs", "args", "env", "gemm_backend", "gpu_clock_mhz", "power_cap_watts")
_WHERE = "command line"


class _Anchor(argparse.Action):
    """``--anchor FILE`` and ``--anchor-step SECONDS`` as pairs, in either order; a step belongs to the file it stands
    beside."""

    def __call__(self, _: object, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        pairs: list[list[Any]] = [list(pair) for pair in namespace.anchors]
        place = 1 if option == "--anchor-step" else 0
        if not pairs or pairs[-1][place] is not None:
            pairs.append([None, None])
        pairs[-1][place] = value
        namespace.anchors = tuple(map(tuple, pairs))


@dataclass(frozen=True, kw_only=True)
class Own:
    """A measured run of the user's own: its name, its projection, and what it was measured to take, in seconds a step."""

    name: str
    made: Projection
    run: Run


@dataclass(frozen=True, kw_only=True)
class Taught:
    """The runs that teach, and of others of their files why they do not."""

    own: tuple[Own, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(each.run for each in self.own)

    def on(self, case: Case) -> Case:
        """``case`` with these runs beside what the package knows."""
        from projector.expectation import Knowledge

        return replace(case, known=Knowledge(runs=self.runs)) if self.own else case


def add_runs(parser: Any) -> None:
    """The flags that name measured runs, for a parser or one of its groups."""
    parser.add_argument(
        "--anchor",
        action=_Anchor,
        dest="anchors",
        default=(),
        metavar="FILE",
        help="a run of your own that was measured, a training log or any file that --config takes: what to expect is told "
        "from it; may be given again. Without --config and --model the first is the target, with the flags applied, which "
        "say of all what files leave open; a log without a configuration (W&B, TensorBoard) is of --config",
    )
    parser.add_argument(
        "--anchor-step",
        action=_Anchor,
        dest="anchors",
        default=(),
        type=quantity("seconds", 1e-6, 1e6),
        metavar="SECONDS",
        help="measured time of one optimizer step of the --anchor beside it, where its file does not tell it",
    )
    parser.add_argument(
        "--runs",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="tables (YAML, JSON, CSV) and logs of any number of measured runs of your own: all of them teach",
    )


def prepare(options: argparse.Namespace) -> None:
    """Reads anchors that tell their own step; the first one is the target where nothing else is. Raises
    :class:`InputError` for half an anchor and for a log that cannot be read."""
    problems = [
        Problem(_WHERE, "--anchor-step", "no --anchor", "a measured run: its file") for f, _ in options.anchors if not f
    ]
    timed = next((flag for flag in ("save_benchmark", "load_benchmark") if getattr(options, flag, None)), None)
    if options.anchors and timed:
        expected = f"no --{timed.replace('_', '-')}: the layers of the anchor are not timed"
        problems.append(Problem(_WHERE, "--anchor", options.anchors[0][0] or "", expected))
    raise_all(problems)
    pairs, options.read = [], {}
    for file, step in options.anchors:
        if step is None:
            (_, options.read[file], step) = _single(file, options)
        pairs.append((file, step))
    options.anchors = tuple(pairs)
    if pairs and getattr(options, "model", "") is None and options.config is None:
        options.config = pairs[0][0]


def _single(file: str, options: argparse.Namespace) -> tuple[str, Loaded, float]:
    found, left = _measured(file, options, "--anchor")
    if len(found) > 1:
        named = ", ".join(name for name, _, _ in found[:4])
        expected = "one measured run; --runs takes any number"
        raise InputError([Problem(file, "", f"{len(found)} runs ({named}, …)", expected)])
    if not found:
        raise InputError(left)
    return found[0]


def _measured(file: str, options: argparse.Namespace, flag: str) -> evidence.Measured:
    gpu, gpus, framework = (getattr(options, name, None) for name in ("gpu", "gpus", "framework"))
    config = Path(options.config) if options.config and options.config != file else None
    return evidence.measured(flag, Path(file), gpu, gpus, framework, config)


def taught(options: argparse.Namespace, mode: str = "simulate") -> Taught:
    """The runs of ``--anchor`` and ``--runs``, each projected. Raises :class:`InputError` and :class:`Unsupported` of
    an anchor, and where no run of a file can teach."""
    own = [_own(file, options, file, options.read.get(file), step, mode) for file, step in options.anchors]
    left: list[str] = []
    for file in options.runs:
        found, refused = _measured(file, options, "--runs")
        reasons = [f"{problem.key or file}: {problem.found}" for problem in refused]
        before = len(own)
        for name, loaded, step in found:
            try:
                own.append(_own(name, options, f"{file}:{name}", loaded, step, mode))
            except (InputError, Unsupported, NoMeasurement) as error:
                reasons.append(f"{name}: {error}".replace("\n", "; "))
        if len(own) == before:
            raise InputError(
                [Problem(file, "", "; ".join(reasons[:4]) or "no runs", "a measured run that can be projected")]
            )
        left += reasons
    return Taught(own=tuple(own), left=tuple(left))


def read(file: str | Path, gpu: str) -> tuple[Run, ...]:
    """The measured runs of one log or table, for Python; ``gpu``: of a run that names none. Raises :class:`InputError`."""
    options = selection().parse_args([])
    options.gpu, options.gpu_flag, options.anchors, options.runs = catalogue.find_gpu(gpu), "gpu", (), [str(file)]
    return taught(options).runs


def _own(name: str, options: argparse.Namespace, config: str, loaded: Loaded | None, seconds: float, mode: str) -> Own:
    """The run as its file has it, with the flags that say what the file does not."""
    from projector.cli.inputs import blamed, read_case
    from projector.cli.source import read_source
    from projector.expectation import Knowledge
    from projector.posterior import Run
    from projector.projection import project

    bare = parse(selection(), ["--config", config])
    for each in _SHARED:
        if hasattr(options, each):
            setattr(bare, each, getattr(options, each))
    bare.read = {config: loaded} if loaded else {}
    source = loaded or read_source(bare).loaded
    devices = () if source.cluster else ("cluster", "gpu", "gpu_flag", "hardware_config")
    count = () if source.gpus or source.nodes else ("gpus", "target_nodes")
    for each in (*devices, *count):
        setattr(bare, each, getattr(options, each, None))
    case = read_case(bare)
    try:
        with blamed(bare):
            made = project(case.workload, case.cluster, mode, settings=case.settings)
    except Unsupported as error:
        raise Unsupported(f"{config}: {error}") from None
    return Own(name=name, made=made, run=Run(facts=Knowledge().facts(made, case.assumed), measured_seconds=seconds))


def lines(known: Taught) -> Iterator[Line]:
    """Each run beside its projection and what runs of others let expect of it, and why further ones teach nothing."""
    from projector.expectation import Knowledge
    from projector.io.table import Line, seconds, signed

    for each in known.own[:8]:
        step, measured = each.made.step_seconds, each.run.measured_seconds
        usual = Knowledge().of(each.run.facts)
        normal = (
            f"{measured / usual.high:.2f} times the slowest of these" if measured > usual.high
            else f"{measured / usual.low:.2f} times the fastest of these" if measured < usual.low
            else "as fast as others"
        )  # fmt: skip
        yield Line(
            f"Own run {each.name}: {seconds(measured)} s measured, {seconds(step)} s projected "
            f"({signed(step / measured - 1)}); runs of others let expect {seconds(usual.low)} to {seconds(usual.high)} s: "
            f"{normal}"
        )
    if len(known.own) > 8:
        yield Line(f"and {len(known.own) - 8} further runs of your own", "dim")
    for reason in known.left:
        yield Line(f"Not used: {reason}", "dim")


def as_values(known: Taught) -> dict[str, object]:
    """``own_runs`` of a JSON document, where there are any: ``used``, each with what it was measured and projected to
    take; ``left``, why other runs of the files teach nothing."""
    if not known.own:
        return {}
    used = [
        {
            "name": each.name,
            "measured_step_seconds": each.run.measured_seconds,
            "projected_step_seconds": each.made.step_seconds,
        }
        for each in known.own
    ]
    return {"own_runs": {"used": used, "left": list(known.left)}}
