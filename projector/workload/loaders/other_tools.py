"""Configurations of trainers that nothing here reads: named as what they are, so that nobody looks for a slip of the pen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from projector.errors import Unsupported
from projector.workload.loaders.spelling import normal

__all__ = ["refuse_other_tools"]

_Mark = Callable[[set[str], Mapping[str, object]], bool]


def _section(content: Mapping[str, object], name: str) -> set[str]:
    inside = content.get(name)
    return {str(key) for key in inside} if isinstance(inside, Mapping) else set()


def _nemo(keys: set[str], content: Mapping[str, object]) -> bool:
    model, trainer = _section(content, "model"), _section(content, "trainer")
    sizes = {"micro_batch_size", "tensor_model_parallel_size", "encoder_seq_length", "mcore_gpt"}
    return bool(sizes & model and (trainer or "run" in keys)) or bool({"devices", "num_nodes"} <= trainer)


def _neox(keys: set[str], _: Mapping[str, object]) -> bool:
    pipeline = {"pipe_parallel_size", "gpt_j_residual", "checkpoint_factor", "no_weight_tying"}
    return bool(pipeline & keys)


def _flagscale(keys: set[str], content: Mapping[str, object]) -> bool:
    runs = {"runner", "task"} <= _section(content, "experiment")
    return runs or ({"system", "model", "data"} <= keys and "tensor_model_parallel_size" in _section(content, "system"))


_TOOLS: tuple[tuple[str, _Mark], ...] = (
    ("a FlagScale configuration", _flagscale),
    ("a NeMo configuration", _nemo),
    ("a GPT-NeoX configuration", _neox),
    ("a nanotron configuration", lambda keys, c: {"parallelism", "tokens"} <= keys and bool(_section(c, "tokens"))),
    ("an LLM Foundry configuration", lambda keys, _: bool({"fsdp_config", "device_train_microbatch_size"} & keys)),
    ("an Axolotl configuration", lambda keys, _: "base_model" in keys and bool({"datasets", "adapter"} & keys)),
    ("a LLaMA-Factory configuration", lambda keys, _: {"model_name_or_path", "finetuning_type"} <= keys),
    ("a torchtune configuration", lambda _keys, c: "_component_" in _section(c, "model")),
    ("a DeepSpeed configuration", lambda keys, _: {"zero_optimization", "train_micro_batch_size_per_gpu"} <= keys),
    ("a LitGPT configuration", lambda keys, c: "train" in keys and "micro_batch_size" in _section(c, "train")),
)  # fmt: skip


def refuse_other_tools(content: Mapping[str, object], where: str) -> None:
    """Raises :class:`Unsupported` for the configuration of another trainer, with its name and what it builds on."""
    if "recipe" in content:
        return
    keys = {normal(str(key)) for key in content}
    name = next((tool for tool, mark in _TOOLS if mark(keys, content)), None)
    if name is None:
        return
    built_on = ", which extends files by its defaults" if content.get("defaults") else ""
    ways = "its run's log, the arguments of Megatron-LM, or a case say the same"
    raise Unsupported(f"{where}: {name}{built_on}: not read ({ways})")
