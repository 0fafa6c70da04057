"""From flags to a workload on a cluster. Every mistake of every file and flag is found in one pass."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from projector.cli.changes import ALL, USUAL, changed
from projector.cli.options import read_settings
from projector.cli.recipe_flags import Said, changed_model, said
from projector.cli.source import read_source
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest
from projector.expectation import Knowledge
from projector.frameworks import experts_follow
from projector.hardware import catalogue, own, what_if
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

_T = TypeVar("_T")

#: Architectures that stand for several GPUs here, and the one that Primus means by them (AMD-AGI/Primus@fd1eeabb
#: primus/core/projection, hardware profiles and their aliases).
_PRIMUS_ARCHITECTURES = {"gfx942": "mi300x", "gfx950": "mi355x"}
_HERE = "command line"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is projected. ``assumed``, ``ignored``, ``unmodelled``, ``moot``: as the loader of the file says; ``notes``:
    on the cluster; ``changes``: what flags say over the file; ``known``: what expectations rest on."""

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
    source = collected(problems, lambda: read_source(options))
    loaded = source.loaded if source else None
    told = said(options, source.left if source else {}, problems)
    framework = collected(problems, lambda: _framework(options, loaded))
    found = collected(problems, lambda: _changed(_cluster(options, loaded), told, options))
    date = options.framework_date or ""
    if date and not is_month(date):
        problems.append(Problem("--framework-date", "", date, MONTH))
    recipe = collected(problems, lambda: changed(loaded, options, told)) if loaded else None
    model = changed_model(loaded.model, told, problems) if loaded else None
    settings = collected(problems, lambda: read_settings(options))
    if loaded is None or framework is None or found is None or recipe is None or settings is None or problems:
        raise InputError(problems)
    cluster, notes, assumed = found
    if loaded.ran and loaded.recipe:
        cluster, doubts = capable.shown_by(loaded.recipe, cluster)
        assumed = (*assumed, *doubts)
    taken: tuple[str, ...] = ()
    if loaded.recipe is None:
        recipe, taken = _able(model or loaded.model, recipe, cluster, told.flags)
    gpus, counted = _gpus(options, loaded, recipe, cluster)
    if "global_batch_size" not in told.flags:
        recipe = loaded.batched(recipe, gpus) if loaded.recipe else _batched(model or loaded.model, recipe, gpus)
    chosen = (*taken, *_chosen(model or loaded.model, recipe, told.flags)) if loaded.recipe is None else ()
    model = model or loaded.model
    if model.family == model.name and not zoo.named(model.name):
        model = replace(model, family=zoo.family_of(model))
    workload = Workload(
        model=model, recipe=recipe, gpus=gpus, framework=framework, framework_date=date or loaded.framework_date
    )
    split: tuple[str, ...] = ()
    if "etp" not in told.flags and not (loaded.recipe and loaded.etp_stated):
        workload, split = experts_follow(workload, options.config or _HERE)
    options.told = told
    return Case(
        config=options.config or _HERE,
        workload=workload,
        cluster=cluster,
        assumed=(*_still(loaded.assumed, options), *chosen, *assumed, *counted, *split),
        ignored=loaded.ignored,
        unmodelled=(*loaded.unmodelled, *loaded.model.unmodelled),
        moot=(*loaded.moot, *options.neutral),
        changes=told.texts if options.config else (),
        notes=notes,
        settings=settings,
    )


def _batched(model: Model, recipe: Recipe, gpus: int) -> Recipe:
    return replace(recipe, global_batch_size=samples_per_step(model, recipe.seq_length, gpus))


def _able(model: Model, recipe: Recipe, cluster: Cluster, flags: Mapping[str, str]) -> tuple[Recipe, tuple[str, ...]]:
    """``recipe`` with what the model and the GPU can where nothing is said: no more tokens than the model has learned
    positions for, 16 bits that the GPU multiplies. Raises :class:`InputError` for more tokens than it has positions."""
    learned = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else None
    if learned and recipe.seq_length > learned:
        if "seq_length" in flags:
            more = "--set model.max_position_embeddings=N"
            expected = f"at most {learned}, as many positions as {model.name} has learned: {more}"
            raise InputError([Problem(flags["seq_length"], "", recipe.seq_length, expected)])
        recipe = replace(recipe, seq_length=learned)
    able = precisions(cluster.gpu)
    if "precision" not in flags and "bf16" not in able and "fp16" in able:
        return replace(recipe, precision="fp16"), (f"chosen precision=fp16 ({cluster.gpu.name} has no bf16)",)
    return recipe, ()


def _chosen(model: Model, recipe: Recipe, flags: Mapping[str, str]) -> tuple[str, ...]:
    """What an architecture alone leaves open and was chosen, with why; a choice is no doubt about a run."""
    tokens = recipe.global_batch_size * recipe.seq_length
    usual = "as usual for this size" if tokens < 1.5 * tokens_per_step(model) else "the least that keeps all hosts busy"
    why = {"global_batch_size": f" ({tokens / 1e6:.3g}M tokens a step, {usual})"}
    return tuple(f"chosen {name}={getattr(recipe, name)}{why.get(name, '')}" for name in USUAL if name not in flags)


def _still(assumed: tuple[str, ...], options: argparse.Namespace) -> tuple[str, ...]:
    """What is still assumed where a flag has said otherwise."""
    where = options.cluster or options.gpu or os.environ.get("PRIMUS_GPU_ARCH")
    settled = {
        "framework=": options.framework,
        "framework_date=": options.framework_date,
        "gpu=": where,
        "cluster=": where,
    }
    return tuple(text for text in assumed if not any(flag and text.startswith(key) for key, flag in settled.items()))


@contextmanager
def blamed(options: argparse.Namespace) -> Iterator[None]:
    """Names the flag or the file in problems of a workload as a whole, which know neither."""
    try:
        yield
    except InputError as error:
        raise InputError([_placed(problem, options) for problem in error.problems]) from None


def one_schedule(options: argparse.Namespace, instead: str) -> None:
    """Raises :class:`InputError` where all schedules are asked for; ``instead``: what compares them."""
    if options.pipeline_schedule_algorithm == ALL:
        raise InputError([Problem("--pipeline-schedule-algorithm", "", ALL, f"one schedule; {instead}")])


def one_projection(options: argparse.Namespace, instead: str) -> tuple[Case, Projection]:
    """The case of ``options``, laid out as ``projector performance`` does where no layout is stated, and its projection.
    Raises as :func:`read_case`, :func:`one_schedule` and ``project``."""
    from projector.cli.layout import laid_out
    from projector.projection import project

    one_schedule(options, instead)
    case = read_case(options)
    with blamed(options):
        case = laid_out(case, options)
        return case, project(case.workload, case.cluster, settings=case.settings)


def _placed(problem: Problem, options: argparse.Namespace) -> Problem:
    flag = options.told.flags.get(problem.key.removeprefix("recipe."), "")
    if flag.startswith("--"):
        return replace(problem, where=flag, key="" if flag != "--set" else problem.key)
    own = field_of(problem.key.removeprefix("recipe.")) if problem.key.startswith("recipe.") else None
    if own and not options.config and not problem.where:
        return replace(problem, where=f"--{own.names[0].replace('_', '-')}", key="")
    if problem.key == "gpus" and (options.gpus or options.target_nodes):
        return replace(problem, where="--gpus" if options.gpus else "--target-nodes", key="")
    return (
        problem
        if problem.where not in ("", "pipeline", "pipeline layout")
        else replace(problem, where=options.config or _HERE)
    )


def collected(problems: list[Problem], read: Callable[[], _T]) -> _T | None:
    """Returns what ``read`` gives; None, and its mistakes among ``problems``, where it raises :class:`InputError`."""
    try:
        return read()
    except InputError as error:
        problems += error.problems
        return None


def _framework(options: argparse.Namespace, loaded: Loaded | None) -> str:
    """The framework of the flag, else of the file: a name or an alias, not just any text that holds one."""
    from projector import frameworks

    text = options.framework or (loaded.framework if loaded else "megatron-lm")
    name = frameworks.named(text)
    if name is not None:
        return name
    from projector.intake.primus import check_trained

    check_trained(text)
    where, key = ("--framework", "") if options.framework else (options.config or _HERE, "framework")
    raise InputError([Problem(where, key, text, nearest(text, frameworks.names()))])


_Found = tuple[Cluster, tuple[str, ...], tuple[str, ...]]


def _cluster(options: argparse.Namespace, loaded: Loaded | None) -> _Found:
    """(cluster, notes on it, what was assumed): by the flags, else by the file, else by Primus' variable."""
    assumed: tuple[str, ...] = ()
    environment = os.environ.get("PRIMUS_GPU_ARCH", "")
    if options.cluster:
        cluster = _named(options.cluster, "--cluster", "")
    elif options.gpu:
        return _noted(_of_gpu(options.gpu, options.gpu_flag), options)
    elif loaded and loaded.cluster and not (environment and _guessed(loaded)):
        cluster = _named(loaded.cluster, options.config, "cluster")
    elif environment:
        cluster = _named(_architecture(environment, "PRIMUS_GPU_ARCH"), "PRIMUS_GPU_ARCH", "")
        assumed = (f"cluster={cluster.name} (PRIMUS_GPU_ARCH)",)
    elif loaded is None:  # the file may well have named one: its own mistakes come first
        cluster = catalogue.cluster(catalogue.cluster_names()[0])
    else:
        expected = "--cluster NAME|FILE or --gpu NAME|FILE (see: projector gpus)"
        raise InputError([Problem(_HERE, "cluster", "nothing", expected)])
    return _noted((cluster, (), assumed), options)


def _changed(found: _Found, told: Said, options: argparse.Namespace) -> _Found:
    """With other figures of the hardware that ``--set`` states, and with what files state without a source."""
    cluster, notes, assumed = found
    shown = ((key, f"{value:g}" if isinstance(value, (int, float)) else value) for key, value in told.hardware.items())
    assumed = (*assumed, *(f"{key}={value} ({WHAT_IF})" for key, value in shown))
    if told.hardware:
        first = next(iter(told.hardware))
        if getattr(options, "profiling_mode", "simulate") != "simulate":
            expected = "--profiling-mode simulate: kernels were measured on the GPU as it is"
            raise InputError([Problem("--set", first, told.hardware[first], expected)])
        return what_if.changed(cluster, told.hardware, "--set"), notes, assumed
    lines = (line.partition(": ") for line in (*cluster.gpu.sources, *cluster.sources))
    return cluster, notes, (*assumed, *(f"{keys} ({WHAT_IF})" for keys, _, text in lines if WHAT_IF in text))


def _guessed(loaded: Loaded) -> bool:
    """Whether the loader assumed the cluster, so that who states one is right."""
    return any(text.startswith(("cluster=", "gpu=")) for text in loaded.assumed)


def _noted(found: _Found, options: argparse.Namespace) -> _Found:
    """With the network figures of ``--hardware-config`` over those of the cluster; a file that leaves open what its network
    is gets that of the library, and hears so."""
    cluster, notes, assumed = found
    if catalogue.is_path(options.cluster or options.gpu or "") and not cluster.inter.technology:
        assumed = (*assumed, "inter.technology=infiniband (not stated)")
    if not options.hardware_config:
        return cluster, notes, assumed
    applied = primus_hardware.read(options.hardware_config, cluster)
    return applied.cluster, (*notes, *applied.cluster.sources[len(cluster.sources) :]), assumed


def _of_gpu(text: str, flag: str) -> _Found:
    """The usual cluster of a GPU that ``--gpu`` names, or describes in a file."""
    if machine_of(text):
        return catalogue.cluster(text), (), ()
    if not catalogue.is_path(text):
        return _named(_architecture(text, flag), flag, ""), (), ()
    if own.is_cluster(text):
        return catalogue.cluster(text), (), ()
    made = own.around(text)
    return made.cluster, (), (() if made.stated else (f"cluster={made.like} (its {made.taken}, around {text})",))


def _named(name: str, where: str, key: str) -> Cluster:
    try:
        return catalogue.cluster(name)
    except InputError as error:
        if catalogue.is_path(name):
            raise
        raise InputError([replace(problem, where=where, key=key) for problem in error.problems]) from None


def _architecture(text: str, where: str) -> str:
    """A GPU by its name, or by the name of its architecture where that means one."""
    lowered = text.strip().lower()
    found = catalogue.find_gpu(text) or _PRIMUS_ARCHITECTURES.get(lowered)
    if found is not None:
        return found
    alike = [name for name in catalogue.gpu_names() if catalogue.gpu(name).arch == lowered]
    if len(alike) == 1:
        return alike[0]
    expected = f"one GPU of this architecture: {', '.join(alike)}" if alike else nearest(text, catalogue.gpu_names())
    raise InputError([Problem(where, "", text, expected)])


def _gpus(options: argparse.Namespace, loaded: Loaded, recipe: Recipe, cluster: Cluster) -> tuple[int, tuple[str, ...]]:
    """GPUs of the run: flags, the file, else the fewest whole hosts that hold the parallel groups (as Primus does)."""
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
