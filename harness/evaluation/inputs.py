"""Projects every experiment in a folder and says of each what came out, or why it was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm
from pathlib import Path

from harness.predictors.ours import cluster_of
from harness.report.markdown import table_lines
from harness.report.spec import tabled
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.hardware.types import Cluster
from projector.intake import primus
from projector.intake.detect import kind_of
from projector.intake.loaded import Loaded
from projector.intake.yaml_files import read
from projector.projection import Projection, project

_GIB = 1 << 30
_PRESETS = "primus/configs/"
_VERDICTS = {"fits": "fits", "tight": "may not fit", "too-close": "too close to tell"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """The outcome of one experiment. ``reason`` is empty where it was projected; ``wrong``: it was refused because its
    file is wrong, not because the projector does not model it."""

    backend: str
    file: str
    model: str = ""
    gpus: str = ""
    step_seconds: float | None = None
    tgs: float | None = None
    memory_gib: float | None = None
    verdict: str = ""
    reason: str = ""
    wrong: bool = False


def experiments(folder: Path) -> list[Path]:
    """Returns the Primus experiments below ``folder``, sorted by path. Raises :class:`InputError` where there is none.
    Presets are no experiments, nor are files that name neither modules nor a file to extend."""
    if not folder.is_dir():
        raise InputError(
            [Problem(str(folder), "", "no such folder", "a folder with experiments, as in a Primus checkout")]
        )
    files = (path for path in sorted(folder.rglob("*.yaml")) if _PRESETS not in path.as_posix())
    chosen = [path for path in files if kind_of(read(path, {}, [])) == "primus"]
    if not chosen:
        raise InputError([Problem(str(folder), "", "no experiment", "YAML files with modules: of Primus below it")])
    return chosen


def lines(folder: Path, files: Sequence[Path], gpu: str | None = None) -> Iterator[Line]:
    """Yields one :class:`Line` for each file, in order; neither the environment nor the place of ``folder`` shows in it.
    ``gpu``: the GPU where neither the folder nor the platform of an experiment names one."""
    for path in files:
        name = path.relative_to(folder).as_posix()
        backend = _backend(path)
        try:
            loaded = primus.load(path, env={})
            if (place := loaded.cluster or gpu) is None:
                expected = "a GPU: in the folder's name, the platform, or with --gpu"
                raise InputError([Problem(str(path), "cluster", "nothing", expected)])
            cluster = cluster_of(place, "", None)
            projection = project(loaded.workload(_gpus(loaded, cluster)), cluster)
        except Unsupported as error:
            yield Line(backend=backend, file=name, reason=str(error))
        except InputError as error:
            reason = "; ".join(_relative(problem, folder) for problem in error.problems[:2])
            yield Line(backend=backend, file=name, reason=reason, wrong=True)
        else:
            yield _line(backend, name, projection, cluster)


def _line(backend: str, name: str, projection: Projection, cluster: Cluster) -> Line:
    workload = projection.resolved.workload
    return Line(
        backend=backend,
        file=name,
        model=workload.model.name,
        gpus=f"{workload.gpus} × {cluster.gpu.name}",
        step_seconds=projection.step_seconds,
        tgs=projection.tgs,
        memory_gib=projection.memory.device / _GIB,
        verdict=_VERDICTS.get(projection.memory.status, "out of memory"),
    )


def _backend(path: Path) -> str:
    content = read(path, {}, [])
    modules = content.get("modules")
    if isinstance(modules, dict):
        for module in modules.values():
            if isinstance(module, dict):
                return str(module.get("framework", "megatron"))
    return "megatron"


def _gpus(loaded: Loaded, cluster: Cluster) -> int:
    """Returns the GPUs of the fewest whole hosts that hold the parallel groups, as the command line chooses them."""
    recipe = loaded.recipe
    if recipe is None:
        return cluster.gpus_per_host
    return lcm(recipe.fewest_gpus(bool(loaded.model.moe)), cluster.gpus_per_host)


def _relative(problem: Problem, folder: Path) -> str:
    """Returns the problem with its file named relative to ``folder``, where it lies inside."""
    place, root = Path(problem.where).resolve(), folder.resolve()
    return str(replace(problem, where=place.relative_to(root).as_posix()) if place.is_relative_to(root) else problem)


def markdown(made: Sequence[Line]) -> str:
    """Returns the report as Markdown: totals for each backend, reasons of refusals, then a table for each backend."""
    backends = sorted({line.backend for line in made})
    counted = Counter(line.reason for line in made if line.reason and not line.wrong)
    refused = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    totals = []
    for name in (*backends, "all"):
        of = [line for line in made if name in ("all", line.backend)]
        done, wrong = [line for line in of if not line.reason], sum(line.wrong for line in of)
        fits = sum(line.verdict == "fits" for line in done)
        totals.append((name, len(of), len(done), fits, len(of) - len(done) - wrong, wrong))
    parts = ["# Experiments as they are shipped", "", *_INTRODUCTION, "", *table_lines(tabled("inputs", totals)), ""]
    parts += [*table_lines(tabled("inputs_refused", refused)), ""]
    for backend in backends:
        lines = tabled(
            "inputs_lines",
            [line for line in made if line.backend == backend],
            said=lambda line: line.verdict or line.reason,
        )
        parts += [f"## {backend}", "", *table_lines(lines), ""]
    return "\n".join(parts).rstrip() + "\n"


_INTRODUCTION = (
    "Made by `python -m harness inputs FOLDER --out reports/inputs.md`. Every experiment of a Primus checkout is projected",
    "as it stands (`python -m projector performance --config FILE`): presets from beside it, the GPU of its folder, the",
    "fewest whole hosts that hold its parallel groups. Memory is what the fullest device is expected to show.",
)
