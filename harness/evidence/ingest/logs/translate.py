"""Arguments of any framework, as its log prints them, to Megatron-LM's names and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from harness.evidence.ingest.logs.numbers import whole
from projector.intake.megatron_cli import todays_words
from projector.intake.values import literal
from projector.workload import zoo

Values = dict[str, Any]
_ACCUMULATION = ("num_microbatches_in_minibatch", "gradient_accumulation_steps")
_LONGEST = 4000  # characters of a value that is read; a longer one (a data path list) stays text


def translate(values: Mapping[str, object], dialect: str) -> tuple[Values, str | None]:
    """Returns (arguments by Megatron-LM's names, zoo name of the model that the log names).

    Texts are read as literals (:func:`projector.intake.values.literal`), never evaluated.
    """
    read = {name: _value(value) for name, value in values.items() if value is not None}
    special = _SPECIAL.get(dialect)
    if special is not None:
        special(read)
    name = read.pop("model_name", None)
    read.pop("parameter_count", None)
    return read, zoo.find(name) if isinstance(name, str) else None


def _value(value: object) -> object:
    if not isinstance(value, str) or len(value) > _LONGEST:
        return value
    count = whole(value) if "," in value else None
    return literal(value) if count is None else count


def _torchtitan(values: Values) -> None:
    """Reads torchtitan's words: FSDP2 shards everything, recompute is named by its mode, bf16 is the default."""
    shards, copies = values.pop("data_parallel_shard_degree", None), values.pop("data_parallel_replicate_degree", None)
    if isinstance(shards, int) and shards != 1:
        values["data_parallel_sharding"] = "optim_grads_params"
    elif isinstance(copies, int) and copies > 1:
        values["data_parallel_sharding"] = "no_shard"
    if values.get("global_batch_size") == -1:  # what the local batches make up
        del values["global_batch_size"]
    mode = values.pop("activation_checkpoint_mode", None)
    if mode in ("full", "selective", "none"):
        values["recompute_granularity"] = mode
    flavour = values.pop("model_flavor", None)
    if flavour is not None and "model_name" in values:
        values["model_name"] = f"{values['model_name']} {flavour}"
    values.setdefault("bf16", True)


def _maxtext(values: Values) -> None:
    """Counts ranks: ``per_device_batch_size`` is per device, the global batch is of all devices."""
    micro, batch = values.get("micro_batch_size"), values.get("global_batch_size")
    if _positive(micro) and _positive(batch):
        values.setdefault("world_size", int(batch / micro))
    quantization = values.pop("quantization", None)
    if isinstance(quantization, str) and "fp8" in quantization:
        values["fp8"] = "hybrid"
    policy = values.pop("remat_policy", None)
    if policy == "full":
        values |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    values.pop("hardware", None)
    if values.get("num_experts") == 1:
        values.pop("num_experts")
        values.pop("moe_router_topk", None)
    unset = [name for name, value in values.items() if value == -1]
    for name in unset:
        del values[name]
    values |= {"bf16": True, "data_parallel_sharding": "optim_grads_params"}


def _nemo(values: Values) -> None:
    _ranks_of_nodes(values, None)
    activation = values.pop("activation", None)
    if isinstance(activation, str):
        values["swiglu"] = "swiglu" in activation
    _precision(values)
    _shared_embeddings(values)


def _megatron(values: Values) -> None:
    """Replaces words of other years and forks by today's."""
    stated = todays_words(values)
    values.clear()
    values |= stated
    _shared_embeddings(values)
    _batch_from_accumulation(values)


def _batch_from_accumulation(values: Values) -> None:
    """Computes the batch of releases that state accumulation steps: ``gas`` of DeepSpeed's pipelines,
    ``num_microbatches_in_minibatch`` of Megatron-LM of 2020."""
    steps = [values.pop(name, None) for name in _ACCUMULATION]
    micro, ranks = values.get("micro_batch_size"), values.get("world_size")
    if not _positive(micro) or values.get("global_batch_size") is not None:
        return
    sizes = [values.get(f"{kind}_model_parallel_size", 1) for kind in ("tensor", "pipeline")]
    if _positive(ranks) and all(map(_positive, sizes)) and ranks % math.prod(sizes) == 0:
        values["global_batch_size"] = micro * next(filter(_positive, steps), 1) * ranks // math.prod(sizes)


def _gpt_neox(values: Values) -> None:
    """Reads a pipeline of 0 as none. GPT-NeoX's own loader reads the rest of the dump."""
    values["pipeline_model_parallel_size"] = values.get("pipeline_model_parallel_size") or 1


def _shared_embeddings(values: Values) -> None:
    shared = values.pop("share_embeddings_and_output_weights", None)
    if isinstance(shared, bool):
        values["untie_embeddings_and_output_weights"] = not shared
    if isinstance(norm := values.get("normalization"), str):
        values["normalization"] = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(norm.lower(), norm)
    if "num_query_groups" in values and values["num_query_groups"] != values.get("num_attention_heads"):
        values["group_query_attention"] = True


def _precision(values: Values) -> None:
    word = str(values.pop("precision", "")).lower()
    meant = (("fp4", "fp4", word), ("fp8", "fp8", "hybrid"), ("bf16", "bf16", True), ("16", "fp16", True))
    for mark, name, value in meant:
        if mark in word:
            values[name] = value
            if "mx" in word and name == "fp8":
                values["fp8_recipe"] = "mxfp8"
            return


def _mllog(values: Values) -> None:
    """Computes the missing one of micro-batch and GPUs: batch = micro-batch x accumulation steps x data-parallel ranks."""
    _precision(values)
    steps = values.pop("gradient_accumulation_steps", None)
    batch, micro, world = (values.get(name) for name in ("global_batch_size", "micro_batch_size", "world_size"))
    names = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")
    sizes = [values.get(f"{name}_size", 1) for name in names]
    if not (_positive(steps) and _positive(batch) and all(map(_positive, sizes))):
        return
    model = math.prod(map(float, sizes))
    if _positive(micro):
        ranks = batch / micro / steps * model
        if ranks >= 1 and ranks == int(ranks):
            values.setdefault("world_size", int(ranks))
    elif _positive(world) and "tensor_model_parallel_size" in values:
        micro = batch / (world / model) / steps
        if micro >= 1 and micro == int(micro):
            values["micro_batch_size"] = int(micro)


def _huggingface(values: Values) -> None:
    """Counts devices, or the batch where they are stated: batch = batch of a device x accumulation steps x devices, as the
    Trainer has no other axes."""
    values.pop("train_iters", None)
    steps, ranks = values.pop("gradient_accumulation_steps", None), values.get("world_size")
    batch, one = values.get("global_batch_size"), values.get("micro_batch_size")
    if _positive(steps) and _positive(batch) and _positive(one) and batch % (one * steps) == 0:
        values.setdefault("world_size", int(batch / one / steps))
    elif batch is None and _positive(steps) and _positive(one) and _positive(ranks):
        values["global_batch_size"] = int(one * steps * ranks)


def _ranks_of_nodes(values: Values, usual: int | None = 1) -> None:
    """Counts ranks by nodes and devices of a node; ``usual``: the nodes where none are stated."""
    nodes, devices = values.pop("num_nodes", usual), values.pop("devices", None)
    if _positive(nodes) and _positive(devices):
        values.setdefault("world_size", int(nodes * devices))


def _drop_accumulation(values: Values) -> None:
    """Drops accumulation steps, which the batch includes already, and a size without a name here."""
    values.pop("gradient_accumulation_steps", None)
    values.pop("sequence_parallel_size", None)


def _positive(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12


_SPECIAL: Mapping[str, Callable[[Values], None]] = {
    "torchtitan": _torchtitan,
    "maxtext": _maxtext,
    "nemo": _nemo,
    "megatron": _megatron,
    "megatron-bridge": _shared_embeddings,
    "megatron-deepspeed": _megatron,
    "mllog": _mllog,
    "hf-trainer": _huggingface,
    "litgpt": _ranks_of_nodes,
    "gpt-neox": _gpt_neox,
    "nanotron": _drop_accumulation,
    "xtuner": _drop_accumulation,
}
