"""Turns flags into a workload on a cluster. Every mistake of every file and flag is found in one pass."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING

from projector.cli.changes import ALL, USUAL, changed
from projector.cli.options import read_settings
from projector.cli.recipe_flags import Overrides, changed_model, read_overrides
from projector.cli.source import read_source
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest, or_none
from projector.expectation import Knowledge
from projector.frameworks import experts_follow
from projector.hardware import catalogue, user_files, what_if
from projector.hardware import primus as primus_hardware
from projector.hardware.architectures import precisions
from projector.hardware.catalogue import machine_of
from projector.hardware.types import Cluster
from projector.hardware.yaml_file import WHAT_IF
from projector.intake.loaded import Loaded
from projector.kernels.settings import DEFAULT, Settings
from projector.plan.usual import samples_per_step, tokens_per_step
from projector.settle import capable
from projector.workload import zoo
from projector.workload.fields import field_of
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import MONTH, Workload, is_month

if TYPE_CHECKING:
    from projector.projection import Projection


#: Architectures that stand for several GPUs here, and the one that Primus means by them (AMD-AGI/Primus@fd1eeabb
#: primus/core/projection, hardware profiles and their aliases).
_PRIMUS_ARCHITECTURES = {"gfx942": "mi300x", "gfx950": "mi355x"}
_HERE = "command line"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload on a cluster. ``assumed``, ``ignored``, ``unmodelled``, ``moot``: remarks of the file's loader;
    ``notes``: those on the cluster; ``changes``: what flags say over the file; ``known``: what expectations rest on."""

    config: str
    workload: Workload
    cluster: Cluster
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    moot: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Settings = DEFAULT
    known: Knowledge = field(default_factory=Knowledge, compare=False)


def read_case(options: argparse.Namespace) -> Case:
    """Reads the files that ``options`` name and applies its flags. Raises :class:`InputError` with every mistake."""
    problems: list[Problem] = []
    source = or_none(problems, lambda: read_source(options))
    loaded = source.loaded if source else None
    overrides = read_overrides(options, source.left if source else {}, problems)
    framework = or_none(problems, lambda: _framework(options, loaded))
    noted_cluster = or_none(problems, lambda: _with_what_ifs(_cluster(options, loaded), overrides, options))
    date = options.framework_date or ""
    if date and not is_month(date):
        problems.append(Problem("--framework-date", "", date, MONTH))
    recipe = or_none(problems, lambda: changed(loaded, options, overrides)) if loaded else None
    model = changed_model(loaded.model, overrides, problems) if loaded else None
    settings = or_none(problems, lambda: read_settings(options))
    if loaded is None or framework is None or noted_cluster is None or recipe is None or settings is None or problems:
        raise InputError(problems)
    cluster, notes, assumed = noted_cluster
    if loaded.ran and loaded.recipe:
        cluster, doubts = capable.cluster_as_run(loaded.recipe, cluster)
        assumed = (*assumed, *doubts)
    model = model or loaded.model
    abilities: tuple[str, ...] = ()
    if loaded.recipe is None:
        recipe, abilities = _able(model, recipe, cluster, overrides.flags)
    gpus, counted = _gpus(options, loaded, recipe, cluster)
    if "global_batch_size" not in overrides.flags and loaded.recipe:
        recipe = loaded.batched(recipe, gpus)
    elif "global_batch_size" not in overrides.flags:
        recipe = replace(recipe, global_batch_size=samples_per_step(model, recipe.seq_length, gpus))
    chosen = (*abilities, *_choices(model, recipe, overrides.flags)) if loaded.recipe is None else ()
    if model.family == model.name and not zoo.named(model.name):
        model = replace(model, family=zoo.family_of(model))
    workload = Workload(
        model=model, recipe=recipe, gpus=gpus, framework=framework, framework_date=date or loaded.framework_date
    )
    expert_sizes: tuple[str, ...] = ()
    if "etp" not in overrides.flags and not (loaded.recipe and loaded.etp_stated):
        workload, expert_sizes = experts_follow(workload, options.config or _HERE)
    options.overrides = overrides
    return Case(
        config=options.config or _HERE,
        workload=workload,
        cluster=cluster,
        assumed=(*_still_assumed(loaded.assumed, options), *chosen, *assumed, *counted, *expert_sizes),
        ignored=loaded.ignored,
        unmodelled=(*loaded.unmodelled, *loaded.model.unmodelled),
        moot=(*loaded.moot, *options.neutral),
        changes=overrides.texts if options.config else (),
        notes=notes,
        settings=settings,
    )


def _able(model: Model, recipe: Recipe, cluster: Cluster, flags: Mapping[str, str]) -> tuple[Recipe, tuple[str, ...]]:
    """Returns ``recipe`` with what the model and the GPU can where nothing is said, and remarks: as many tokens as the
    model has positions, 16 bits that the GPU multiplies. Raises :class:`InputError` for more than learned positions."""
    positions = model.max_position_embeddings
    if positions and recipe.seq_length > positions:
        if "seq_length" not in flags:
            recipe = replace(recipe, seq_length=positions)
        elif model.position_embedding_type == "learned_absolute":
            more = "--set model.max_position_embeddings=N"
            expected = f"at most {positions}, as many positions as {model.name} has learned: {more}"
            raise InputError([Problem(flags["seq_length"], "", recipe.seq_length, expected)])
    dtypes = precisions(cluster.gpu)
    if "precision" not in flags and "bf16" not in dtypes and "fp16" in dtypes:
        return replace(recipe, precision="fp16"), (f"chosen precision=fp16 ({cluster.gpu.name} has no bf16)",)
    return recipe, ()


def _choices(model: Model, recipe: Recipe, flags: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what an architecture alone leaves open and was chosen, with why; a choice is no doubt about a run."""
    tokens = recipe.global_batch_size * recipe.seq_length
    usual = "as usual for this size" if tokens < 1.5 * tokens_per_step(model) else "the least that keeps all hosts busy"
    reasons = {"global_batch_size": f" ({tokens / 1e6:.3g}M tokens a step, {usual})"}
    return tuple(f"chosen {name}={getattr(recipe, name)}{reasons.get(name, '')}" for name in USUAL if name not in flags)


def _still_assumed(assumed: tuple[str, ...], options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the assumptions of the file that no flag has settled."""
    where = options.cluster or options.gpu or os.environ.get("PRIMUS_GPU_ARCH")
    settled = {"framework=": options.framework, "framework_date=": options.framework_date}
    settled |= {"gpu=": where, "cluster=": where}
    return tuple(text for text in assumed if not any(flag and text.startswith(key) for key, flag in settled.items()))


@contextmanager
def naming_the_flag(options: argparse.Namespace) -> Iterator[None]:
    """Names the flag or the file in problems of a workload as a whole, which know neither."""
    try:
        yield
    except InputError as error:
        raise InputError([_blamed(problem, options) for problem in error.problems]) from None


def one_schedule(options: argparse.Namespace, instead: str) -> None:
    """Raises :class:`InputError` where all schedules are asked for; ``instead`` names the command that compares them."""
    if options.pipeline_schedule_algorithm == ALL:
        raise InputError([Problem("--pipeline-schedule-algorithm", "", ALL, f"one schedule; {instead}")])


def one_projection(options: argparse.Namespace, instead: str) -> tuple[Case, Projection]:
    """Returns the case of ``options``, laid out as ``projector performance`` does where no layout is stated, and its
    projection. Raises as :func:`read_case`, :func:`one_schedule` and ``project``."""
    from projector.cli.layout import with_layout
    from projector.projection import project

    one_schedule(options, instead)
    case = read_case(options)
    with naming_the_flag(options):
        case = with_layout(case, options)
        return case, project(case.workload, case.cluster, settings=case.settings)


def _blamed(problem: Problem, options: argparse.Namespace) -> Problem:
    flag = options.overrides.flags.get(problem.key.removeprefix("recipe."), "")
    if flag.startswith("--"):
        return replace(problem, where=flag, key="" if flag != "--set" else problem.key)
    field_at_fault = field_of(problem.key.removeprefix("recipe.")) if problem.key.startswith("recipe.") else None
    if field_at_fault and not options.config and not problem.where:
        return replace(problem, where=f"--{field_at_fault.names[0].replace('_', '-')}", key="")
    if problem.key == "gpus" and (options.gpus or options.target_nodes):
        return replace(problem, where="--gpus" if options.gpus else "--target-nodes", key="")
    whole = problem.where in ("", "pipeline", "pipeline layout")
    return replace(problem, where=options.config or _HERE) if whole else problem


def _framework(options: argparse.Namespace, loaded: Loaded | None) -> str:
    """Returns the framework of the flag, else of the file: a name or an alias, not any text that holds one."""
    from projector import frameworks

    text = options.framework or (loaded.framework if loaded else "megatron-lm")
    name = frameworks.named(text)
    if name is not None:
        return name
    from projector.intake.primus import check_trained

    check_trained(text)
    where, key = ("--framework", "") if options.framework else (options.config or _HERE, "framework")
    raise InputError([Problem(where, key, text, nearest(text, frameworks.names()))])


_NotedCluster = tuple[Cluster, tuple[str, ...], tuple[str, ...]]


def _cluster(options: argparse.Namespace, loaded: Loaded | None) -> _NotedCluster:
    """Returns (cluster, notes on it, what was assumed): by the flags, else by the file, else by Primus' variable."""
    assumed: tuple[str, ...] = ()
    environment = os.environ.get("PRIMUS_GPU_ARCH", "")
    is_assumed = loaded and any(text.startswith(("cluster=", "gpu=")) for text in loaded.assumed)
    if options.cluster:
        cluster = _cluster_named(options.cluster, "--cluster", "")
    elif options.gpu:
        return _with_network_figures(_usual_cluster(options.gpu, options.gpu_flag), options)
    elif loaded and loaded.cluster and not (environment and is_assumed):
        cluster = _cluster_named(loaded.cluster, options.config, "cluster")
    elif environment:
        cluster = _cluster_named(_gpu_of_architecture(environment, "PRIMUS_GPU_ARCH"), "PRIMUS_GPU_ARCH", "")
        assumed = (f"cluster={cluster.name} (PRIMUS_GPU_ARCH)",)
    elif loaded is None:  # the file may well have named one: its own mistakes come first
        cluster = catalogue.cluster(catalogue.cluster_names()[0])
    else:
        expected = "--cluster NAME|FILE or --gpu NAME|FILE (see: projector gpus)"
        raise InputError([Problem(_HERE, "cluster", "nothing", expected)])
    return _with_network_figures((cluster, (), assumed), options)


def _with_what_ifs(noted: _NotedCluster, overrides: Overrides, options: argparse.Namespace) -> _NotedCluster:
    """Returns the cluster with the figures that ``--set`` states; says which figures files state without a source."""
    cluster, notes, assumed = noted
    figures = overrides.hardware
    texts = ((key, f"{value:g}" if isinstance(value, (int, float)) else value) for key, value in figures.items())
    assumed = (*assumed, *(f"{key}={text} ({WHAT_IF})" for key, text in texts))
    if figures:
        first = next(iter(figures))
        if getattr(options, "profiling_mode", "simulate") != "simulate":
            expected = "--profiling-mode simulate: kernels were measured on the GPU as it is"
            raise InputError([Problem("--set", first, figures[first], expected)])
        return what_if.changed(cluster, figures, "--set"), notes, assumed
    lines = (line.partition(": ") for line in (*cluster.gpu.sources, *cluster.sources))
    return cluster, notes, (*assumed, *(f"{keys} ({WHAT_IF})" for keys, _, text in lines if WHAT_IF in text))


def _with_network_figures(noted_cluster: _NotedCluster, options: argparse.Namespace) -> _NotedCluster:
    """Returns the cluster with the network figures of ``--hardware-config`` over its own. A cluster file of the user's
    own that leaves the technology between its nodes open gets InfiniBand, as an assumption."""
    cluster, notes, assumed = noted_cluster
    if catalogue.is_path(options.cluster or options.gpu or "") and not cluster.inter.technology:
        assumed = (*assumed, "inter.technology=infiniband (not stated)")
    if not options.hardware_config:
        return cluster, notes, assumed
    applied = primus_hardware.read(options.hardware_config, cluster)
    return applied.cluster, (*notes, *applied.cluster.sources[len(cluster.sources) :]), assumed


def _usual_cluster(text: str, flag: str) -> _NotedCluster:
    """Returns the usual cluster of a GPU that ``--gpu`` names, or describes in a file."""
    if machine_of(text):
        return catalogue.cluster(text), (), ()
    if not catalogue.is_path(text):
        return _cluster_named(_gpu_of_architecture(text, flag), flag, ""), (), ()
    if user_files.is_cluster(text):
        return catalogue.cluster(text), (), ()
    placed = user_files.cluster_around(text)
    assumed = () if placed.stated else (f"cluster={placed.like} (its {placed.taken}, around {text})",)
    return placed.cluster, (), assumed


def _cluster_named(name: str, where: str, key: str) -> Cluster:
    try:
        return catalogue.cluster(name)
    except InputError as error:
        if catalogue.is_path(name):
            raise
        raise InputError([replace(problem, where=where, key=key) for problem in error.problems]) from None


def _gpu_of_architecture(text: str, where: str) -> str:
    """Returns the name of a GPU from its name, or from the name of its architecture where only one GPU has it."""
    lowered = text.strip().lower()
    known = catalogue.find_gpu(text) or _PRIMUS_ARCHITECTURES.get(lowered)
    if known is not None:
        return known
    gpus = [name for name in catalogue.gpu_names() if catalogue.gpu(name).arch == lowered]
    if len(gpus) == 1:
        return gpus[0]
    expected = f"one GPU of this architecture: {', '.join(gpus)}" if gpus else nearest(text, catalogue.gpu_names())
    expected = "one GPU; projector ask sets several side by side" if "," in text else expected
    raise InputError([Problem(where, "", text, expected)])


def _gpus(options: argparse.Namespace, loaded: Loaded, recipe: Recipe, cluster: Cluster) -> tuple[int, tuple[str, ...]]:
    """Returns (GPUs of the run, what was assumed): flags, the file, else the fewest whole hosts that hold all groups."""
    host = cluster.gpus_per_host
    if options.gpus:
        return options.gpus, ()
    nodes = options.target_nodes or (None if loaded.gpus else loaded.nodes)
    if nodes:
        return nodes * host, ()
    if loaded.gpus:
        return loaded.gpus, ()
    fewest = math.lcm(recipe.fewest_gpus(bool(loaded.model.moe)), host)
    return fewest, (f"gpus={fewest} (the fewest whole hosts that hold tp, pp, cp and ep)",)
