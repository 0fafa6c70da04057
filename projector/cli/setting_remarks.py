"""Makes remarks on what a configuration holds beyond what is projected, and on what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from projector.cli.recipe_flags import flag_of
from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.frameworks import Resolved
from projector.frameworks.resolve import EXCHANGE
from projector.io.table import percent
from projector.kernels.settings import Settings
from projector.layers.lower import layer
from projector.mechanisms.attention_kernels import UNFUSED, choose
from projector.operators.types import Attention
from projector.projection import Projection, project
from projector.workload.fields import fields
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_MOST = 12  # settings in one line; all of them are in the JSON document


def unmodelled_remark(unmodelled: Sequence[str]) -> tuple[str, ...]:
    """Returns one remark that names what may change time or memory and is not modelled; none where there is nothing."""
    if not unmodelled:
        return ()
    more = f" and {len(unmodelled) - _MOST} more" if len(unmodelled) > _MOST else ""
    return (f"{', '.join(unmodelled[:_MOST])}{more}: not in the figures",)


def unpriced_dropout(resolved: Resolved) -> tuple[str, ...]:
    """Returns the dropout of attention where a flash kernel does it, which no model here prices."""
    share, unfused = resolved.workload.recipe.attention_dropout, resolved.execution.fusion.attention_materialised
    return (f"attention_dropout={share}",) if share and not unfused else ()


def ignored_remark(ignored: Sequence[str]) -> tuple[str, ...]:
    """Returns one remark that counts the settings that cannot change time or memory."""
    if not ignored:
        return ()
    plural = "s" * (len(ignored) > 1)
    return (f"{len(ignored)} setting{plural} that cannot change time or memory (named with --json)",)


def left_open(stated: Workload, resolved: Resolved, arch: str) -> Mapping[str, object]:
    """Returns, by field, what decides most of time and memory and nobody stated: the framework's own defaults; and
    ``attention_kernel``, ``framework_date``: the kernel that runs on ``arch`` then, and the month of the stack."""
    settled = resolved.workload
    recipe, unfused = settled.recipe, resolved.execution.fusion.attention_materialised
    relevant = {
        "recompute_granularity": True,
        "data_parallel_sharding": settled.dp > 1,
        "overlap_grad_reduce": settled.dp > 1,
        "defer_fsdp_grad_sync": resolved.execution.data_parallel.keeps_whole_gradients(settled),
        **dict.fromkeys(("grad_reduce_in_bf16", "optimizer", "use_precision_aware_optimizer"), True),
        "cross_entropy_fusion": True,
        "attention_dropout": unfused,
        "sequence_parallel": recipe.tp > 1,
        "tp_comm_overlap": recipe.tp > 1,
        "cp_comm_type": recipe.cp > 1,
        "fp8_recipe": recipe.precision == "fp8",
        "fp8_param_gather": recipe.quantised,
        "moe_token_dispatcher_type": recipe.ep > 1,
        "moe_grouped_gemm": bool(settled.model.moe),
    }
    unstated = [name for name, matters in relevant.items() if matters and getattr(stated.recipe, name) is None]
    defaults = {name: getattr(recipe, name) for name in unstated}
    if stated.recipe.attention_backend in (None, "auto") and (kernels := _kernels_of_attention(resolved, arch)):
        defaults["attention_kernel"] = kernels
    if not stated.framework_date:
        defaults["framework_date"] = "today"
    return defaults


_FURTHER_FLAGS = {"attention_kernel": "--attention-backend", "framework_date": "--framework-date"}
_DECIDES = 0.01  # of step or memory
_OTHERS = 2  # further choices of a field that are tried: each costs a projection of every cold start
_EARLIER = "2024-06"  # a stack that lacks what came since


def open_remark(left: Mapping[str, object], stated: Workload, made: Projection, settings: Settings) -> tuple[str, ...]:
    """Returns one remark on what is ``left`` open: by how much another value would change the step or the memory, the
    most first; settings that change neither by a per cent are only counted."""
    effects = {name: _effect(name, value, stated, made, settings) for name, value in left.items()}
    most = sorted((name for name in left if effects[name] >= _DECIDES), key=lambda name: -effects[name])
    names = _flag_names()
    # from ten times on as a factor
    sizes = {name: percent(x, 0) if x < 9.0 else f"× {x + 1.0:.0f}" for name, x in effects.items()}
    entries = ", ".join(f"{name}={left[name]} ({sizes[name]}, {names[name]})" for name in most)
    if not most:
        return (f"{len(left)} settings that move neither step nor memory by 1 % (named with --json)",) if left else ()
    rest = f"; neither by 1 %: {len(left) - len(most)} more (named with --json)" if len(most) < len(left) else ""
    return (f"{entries}. Per cent: how far another value moves the step or the memory{rest}",)


def _effect(name: str, value: object, stated: Workload, projection: Projection, settings: Settings) -> float:
    """Returns the largest relative change of the step or of the memory that another value of a field makes."""
    key = "attention_backend" if name == "attention_kernel" else name
    if key == "framework_date":
        workloads = [replace(stated, framework_date=_EARLIER)]
    else:
        choices: tuple[Any, ...] = next(known.choices for known in fields() if known.key == key) or (not value,)
        others = [other for other in choices if other not in (value, "auto")][:_OTHERS]
        changes: list[dict[str, Any]] = [{key: other} for other in others]
        workloads = [replace(stated, recipe=replace(stated.recipe, **change)) for change in changes]
    most = 0.0
    for workload in workloads:
        try:
            other = project(workload, projection.cluster, settings=settings)
        except (InputError, Unsupported):
            continue
        pairs = ((other.step_seconds, projection.step_seconds), (other.memory.device, projection.memory.device))
        most = max(most, *(abs(a / b - 1) for a, b in pairs))
    return most


def _flag_names() -> Mapping[str, str]:
    return {known.key: flag_of(known) for known in fields()} | _FURTHER_FLAGS


def refuse_assumed(workload: Workload, made: Projection, assumed: Sequence[str]) -> None:
    """Raises :class:`InputError` with a mistake for each value that nobody stated of ``workload``, and for each that
    its reader ``assumed``: what ``--strict`` does."""
    names = _flag_names()
    left = left_open(workload, made.resolved, made.cluster.gpu.arch)
    unsaid = {names[name]: f"a value; without --strict {value}" for name, value in left.items()}
    problems = [Problem(flag, "", "nothing", expected) for flag, expected in unsaid.items()]
    entries = (*assumed, *made.assumed)
    problems += [Problem("--strict", "", f"assumed {text}", "a value that is stated") for text in entries]
    raise_all(problems)


def moot_remark(stated: Recipe, settled: Recipe) -> tuple[str, ...]:
    """Returns one remark that names the stated switches that change nothing, since their group has one rank."""
    switches = ("sequence_parallel", "tp_comm_overlap", "overlap_p2p_comm", *EXCHANGE)
    names = [name for name in switches if getattr(stated, name) and getattr(stated, name) != getattr(settled, name)]
    return (f"{', '.join(names)}: of a group of one rank",) if names else ()


def _kernels_of_attention(resolved: Resolved, arch: str) -> str:
    """Returns the kernels of attention that the layers run, forward and backward; empty where no layer has attention."""
    blocks = [layer(kind, resolved) for kind in dict.fromkeys(resolved.workload.model.layer_kinds)]
    ops = [op for block in blocks for op in (*block.forward, *block.backward_input) if isinstance(op, Attention)]
    kernels = resolved.execution.kernels
    names = (choose(kernels.attention, kernels.built, arch, op)[0] if op.flash else UNFUSED for op in ops)
    return " + ".join(dict.fromkeys(names))
