"""Shared by the adapters of other projectors: finding the package, stating the workload, refusing in words. A peer gets
the same run as our projector, with what the source leaves out filled by the same framework defaults. A setting for which
it has no input is refused and lowers its coverage; nothing is left out in silence, and none of its figures changes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors.ours import cluster_of
from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

if TYPE_CHECKING:
    from projector.frameworks.types import Resolved
    from projector.hardware.types import Cluster

GIB = 2.0**30

T = TypeVar("T")


def absent(option: str, package: str, how: str) -> InputError:
    """Returns the error of ``--with option`` where its package cannot be imported; ``how``: how to install it."""
    return InputError([Problem("command line", "--with", option, f"{package} to be installed: {how}")])


def located(package: str, *inside: str) -> Path | None:
    """Returns the folder of an installed package that holds the files ``inside`` it, found without running its code."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if all((Path(folder) / part).exists() for part in inside):
            return Path(folder)
    return None


def require(module: str, error: InputError) -> ModuleType:
    """Imports ``module``; raises ``error`` (from the ImportError) where that fails."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise error from missing


def state(run: MeasuredRun) -> tuple[Resolved, Cluster]:
    """Returns the run with every recipe field stated, and its cluster, as our own projection reads them. Raises
    :class:`InputError` for a configuration that cannot run."""
    from projector.frameworks import resolve
    from projector.workload.validate import problems

    cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)

    resolved = resolve(run.workload, cluster.gpu.vendor, cluster.gpu.arch, cluster.host, published=run.measured.exists)
    # The framework decides whether layers may divide unevenly, and so whether the layout is valid.
    split = resolved.workload.recipe.allow_uneven_pipeline_split
    wrong = problems(replace(run.workload, recipe=replace(run.workload.recipe, allow_uneven_pipeline_split=split)))
    raise_all(wrong)
    return resolved, cluster


def refused(peer: str, call: Callable[[], T]) -> T:
    """Returns ``call()``; an assertion of a peer's own input checks is raised as a refusal with its message."""
    try:
        return call()
    except AssertionError as check:
        message = " ".join(str(check).split()) or "an input check of its own"
        raise Unsupported(f"refused by {peer}: {message}") from check


def stated_refusal(peer: str, reasons: Iterator[str]) -> None:
    """Raises :class:`Unsupported` with every reason why ``peer`` has no input for a run."""
    stated = list(dict.fromkeys(reasons))
    if stated:
        raise Unsupported("; ".join(f"{peer} has no {reason}" for reason in stated))


def told(
    peer: str, seconds: float, needed: float, capacity: float, breakdown: dict[str, float], assumed: Iterable[str]
) -> Prediction:
    """Returns ``peer``'s prediction for a step of ``seconds`` that needs ``needed`` of ``capacity`` bytes of a device."""
    gib, fits = needed / GIB, needed <= capacity
    return Prediction(
        status="ok" if fits else "out-of-memory",
        reason="" if fits else f"{peer}: needs {gib:.1f} GiB of {capacity / GIB:.4g} GiB",
        step_seconds=seconds,
        memory_gib=gib,
        measured_share=0.0,
        breakdown=breakdown,
        assumed=tuple(assumed),
    )


def plain_mlp(work: Workload, name: str) -> Iterator[str]:
    """Yields how a peer without gated units is told of one; ``name``: what it calls the width."""
    if work.model.gated_linear_unit:
        yield f"{name}=1.5·ffn_hidden_size (gated unit as a plain MLP of equal weights and FLOP)"


def plain_limits(work: Workload) -> Iterator[str]:
    """Yields the settings that llm-analysis and transformer-perf-estimates lack beyond :func:`limits`."""
    model, recipe = work.model, work.recipe
    if model.kv_channels * model.num_attention_heads != model.hidden_size:
        yield "head dimension other than hidden size / heads"
    if recipe.pp > 1 and recipe.vpp > 1:
        yield "interleaved schedule"
    if model.num_layers % recipe.pp:
        yield "uneven pipeline stages"
    if recipe.optimizer_cpu_offload:
        yield "optimizer offload"


def limits(work: Workload) -> Iterator[str]:
    """Yields the settings that neither calculon nor llm-analysis has, in words that follow "has no"."""
    model, recipe = work.model, work.recipe
    size, instances = recipe.data_parallel_shard_size, recipe.num_distributed_optimizer_instances or 1
    reasons = {
        "experts in its step time": model.moe is not None,
        "multi-head latent attention": model.mla is not None,
        "sliding-window attention": model.window_size is not None,
        "multi-token prediction": model.mtp_num_layers > 0,
        "low-rank adapters": recipe.lora is not None,
        "context parallelism": recipe.cp > 1,
        f"{recipe.precision} training": recipe.precision not in ("bf16", "fp16"),
        "hybrid sharding": (size is not None and size != work.dp * recipe.cp) or instances > 1,
        "activation offload of single layers": bool(recipe.cpu_offloading_num_layers),
        "uneven pipeline stages": _uneven_stages(recipe),
    }
    yield from (reason for reason, holds in reasons.items() if holds)
    if recompute_mode(work) is None:
        selective = recipe.recompute_granularity == "selective"
        what = ", ".join(recipe.recompute_modules or ()) if selective else "some layers only"
        yield f"recompute of {what}"
    if recipe.pp > 1 and recipe.pipeline_schedule not in (None, "1f1b", "interleaved"):
        yield f"{recipe.pipeline_schedule} schedule"


def _uneven_stages(recipe: Recipe) -> bool:
    placed = (
        recipe.pipeline_model_parallel_layout,
        recipe.decoder_first_pipeline_num_layers,
        recipe.decoder_last_pipeline_num_layers,
    )
    counted = recipe.account_for_embedding_in_pipeline_split or recipe.account_for_loss_in_pipeline_split
    return recipe.pp > 1 and (counted or any(p is not None for p in placed))


def recompute_mode(work: Workload) -> str | None:
    """Returns ``none``, ``attention`` (core attention of every layer) or ``full`` (every layer); None for anything
    between. The peers know the three of Korthikanti et al. (arXiv:2205.05198)."""
    recipe = work.recipe
    granularity = recipe.recompute_granularity or "none"
    if granularity == "selective":
        return "attention" if recipe.recompute_modules in (None, ("core_attn",)) else None
    per_chunk = work.model.num_layers / (recipe.pp * recipe.vpp)
    too_few = recipe.recompute_method == "block" and (recipe.recompute_num_layers or 0) < per_chunk
    partial = too_few or recipe.recompute_layer_ids is not None
    return None if granularity == "full" and partial else granularity
