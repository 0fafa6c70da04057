"""Checks the arguments of :func:`projector.project`: types, ranges, what does not go together; all mistakes at once."""

from __future__ import annotations

from projector.collectives.placement import ranks_per_node
from projector.errors import InputError, Problem, raise_all
from projector.frameworks import load as load_framework
from projector.hardware.check import problems as cluster_problems
from projector.hardware.types import Cluster, Efficiency
from projector.io.typed import of_type
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.settle import launch, scheduling
from projector.workload.rules import domain_mistakes
from projector.workload.validate import known, problems, remember, together
from projector.workload.workload import Workload

MODES = ("simulate", "benchmark")


def check(
    workload: Workload,
    cluster: Cluster,
    mode: str = MODES[0],
    settings: Settings = kernel_settings.DEFAULT,
    efficiency: Efficiency | None = None,
) -> None:
    """Raises :class:`InputError` with everything that is wrong with the arguments of :func:`project`."""
    wrong = [*argument_problems(cluster, mode, settings, efficiency), *workload_problems(workload)]
    if not wrong and workload.recipe.fast_domain is not None:
        domain = ranks_per_node(workload.gpus, cluster)
        expected = domain_mistakes(workload.recipe, workload.dp, domain)
        wrong += [Problem("", "recipe.fast_domain", found, text) for text, found in expected]
    raise_all(wrong)


def argument_problems(
    cluster: Cluster, mode: str, settings: Settings, efficiency: Efficiency | None = None
) -> list[Problem]:
    """Returns every problem of the arguments other than the workload."""
    wrong = [*cluster_problems(cluster), *of_type(settings, Settings, "", "settings.")]
    if settings is not kernel_settings.DEFAULT and not wrong:
        try:
            settings.check("gemm_backend")
        except InputError as error:
            wrong += error.problems
    if efficiency is not None:
        wrong += of_type(efficiency, Efficiency, "", "efficiency.")
    if mode not in MODES:
        wrong.append(Problem("", "mode", mode, f"one of {', '.join(MODES)}"))
    return wrong


def workload_problems(workload: Workload) -> list[Problem]:
    """Returns every problem of a workload, by the rules of its framework and of its schedule, too."""
    checked_before = known(workload)
    typed = [] if checked_before else of_type(workload, Workload, "")
    wrong = list(problems(workload, split=None if typed else _allows_uneven_split(workload.framework)))
    if not (checked_before or wrong):
        remember(workload)
    if not (typed or wrong):
        wrong += launch.problems(workload, launch.GRID[-1:])
    return wrong if typed else [*wrong, *scheduling.problems(workload)]


def has_conflicts(workload: Workload) -> bool:
    """Returns whether values of ``workload``, each right by itself, clash; its sizes may be columns."""
    return bool(
        together(workload, split=_allows_uneven_split(workload.framework))
        or launch.problems(workload, launch.GRID[-1:])
        or scheduling.problems(workload)
    )


def _allows_uneven_split(framework: str) -> bool:
    return bool(load_framework(framework).defaults.get("allow_uneven_pipeline_split"))
