"""``--anchor``: a projection relative to a run that was measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli import evidence
from projector.cli.live import asked
from projector.cli.options import quantity
from projector.errors import InputError, Problem, Unsupported
from projector.relative import Relative, relative

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.cli.made import Projections
    from projector.io.table import Line

#: What is asked of both runs alike, whatever it is: how files are read, and how kernels are priced.
_SHARED = ("configs", "args", "env", "read", "gemm_backend", "gpu_clock_mhz", "power_cap_watts")


@dataclass(frozen=True, kw_only=True)
class Anchored:
    """``measured``, ``projected``: step seconds of the anchor; ``kinds``: in which the target differs; ``found``: of the
    target."""

    config: str
    measured: float
    projected: float
    kinds: tuple[str, ...]
    found: Relative
    tokens: float

    @property
    def tgs(self) -> float:
        """Expected tokens per second and GPU."""
        return self.tokens / self.found.middle


def add_anchor(group: Any) -> None:
    group.add_argument(
        "--anchor",
        metavar="FILE",
        help="a run that was measured, a training log or any file that --config takes: what the target takes is told from "
        "it, with its interval; without --config and --model the target is this run with the flags applied, "
        "which say of both what FILE leaves open",
    )
    group.add_argument(
        "--anchor-step",
        type=quantity("seconds", 1e-6, 1e6),
        metavar="SECONDS",
        help="measured time of one optimizer step of the anchor, where it is no log",
    )


def prepare(options: argparse.Namespace) -> None:
    """The anchor's file is the target's, where nothing else is. Without a step time it is a log (or a table of one run) that
    tells it. Raises :class:`InputError` for half an anchor and for a log that cannot be read."""
    if options.anchor is None and options.anchor_step is not None:
        raise InputError([Problem("command line", "--anchor-step", "no --anchor", "a measured run: its file")])
    if options.anchor and asked(options):
        expected = "no --save-benchmark and no --load-benchmark: the anchor's layers are not timed"
        raise InputError([Problem("command line", "--anchor", options.anchor, expected)])
    if options.anchor and options.config is None and options.model is None:
        options.config = options.anchor
    if options.anchor and options.anchor_step is None:
        said = (options.gpu, options.gpus, options.framework)
        loaded, options.anchor_step = evidence.measured(Path(options.anchor), *said)
        options.read = {options.anchor: loaded}


def anchored(case: Case, options: argparse.Namespace, made: Projections, mode: str) -> Anchored:
    """The first projection that was ``made`` of ``case`` beside that of the anchor. Raises :class:`InputError` and
    :class:`Unsupported` of the anchor's own."""
    from projector.cli.inputs import blamed
    from projector.projection import project
    from projector.workload.kinds import between

    other, bare = _case(options)
    try:
        with blamed(bare):
            known = project(other.workload, other.cluster, mode, settings=other.settings)
    except Unsupported as error:
        raise Unsupported(f"--anchor {options.anchor}: {error}") from None
    kinds = between(_mapping(other), _mapping(case))
    if replace(other.workload.model, name="") != replace(case.workload.model, name=""):
        kinds |= {"model"}
    if made.compared:
        kinds |= {"schedule"}
    target = made.first
    return Anchored(
        config=options.anchor,
        measured=options.anchor_step,
        projected=known.step_seconds,
        kinds=tuple(sorted(kinds)),
        found=relative(options.anchor_step, known.step_seconds, target.step_seconds, kinds),
        tokens=target.tgs * target.step_seconds,
    )


def _case(options: argparse.Namespace) -> tuple[Case, argparse.Namespace]:
    """The anchor as its file has it, with the flags that say what the file does not."""
    from projector.cli.inputs import read_case
    from projector.cli.source import read_source

    bare = options.options.read(["--config", options.anchor])
    for name in _SHARED:
        setattr(bare, name, getattr(options, name))
    loaded = read_source(bare).loaded
    devices = () if loaded.cluster else ("cluster", "gpu", "gpu_flag", "hardware_config")
    count = () if loaded.gpus or loaded.nodes else ("gpus", "target_nodes")
    for name in (*devices, *count):
        setattr(bare, name, getattr(options, name, None))
    return read_case(bare), bare


def _mapping(case: Case) -> dict[str, object]:
    from projector.workload.schema import recipe_to_mapping

    work = case.workload
    run = {"gpu": case.cluster.gpu.name, "gpus": work.gpus, "framework": work.framework}
    return {**recipe_to_mapping(work.recipe), **run, "num_layers": work.model.num_layers}


def lines(of: Anchored) -> Iterator[Line]:
    from projector.io.table import Line

    found = of.found
    interval = ""
    if found.low is not None and found.high is not None and found.level is not None:
        interval = f"; {100 * found.level:.0f} % interval {found.low:.3f} to {found.high:.3f} s"
    yield Line(
        f"From the anchor: {of.measured:.3f} s measured × {found.ratio:.4f} = {found.middle:.3f} s, "
        f"{of.tgs:.1f} tokens/s/GPU{interval}"
    )
    changed = ", ".join(of.kinds) or "nothing"
    yield Line(
        f"(the anchor is projected at {of.projected:.3f} s; changed: {changed}; the interval is that of ratios between"
        " measured runs that differ so)",
        "dim",
    )


def as_document(of: Anchored) -> dict[str, object]:
    """``ratio``: projected target over projected anchor; the ends of the interval are null where nothing was learnt."""
    found = of.found
    return {
        "config": of.config,
        "measured_step_seconds": of.measured,
        "projected_step_seconds": of.projected,
        "changed": list(of.kinds),
        "ratio": found.ratio,
        "expected_step_seconds": found.middle,
        "expected_tgs": of.tgs,
        "interval": None if found.level is None else {"level": found.level, "low": found.low, "high": found.high},
    }
