"""Arguments of any framework, as its log prints them, to Megatron-LM's names and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from projector.workload import zoo
from projector.workload.loaders.values import literal

__all__ = ["translate"]

Values = dict[str, object]
_LONGEST = 4000  # characters of a value that is read; a longer one (a data path list) stays text


def translate(values: Mapping[str, object], dialect: str) -> tuple[Values, str | None]:
    """(arguments by Megatron-LM's names, zoo name of the model that the log names).

    Texts are read as literals (:func:`projector.workload.loaders.values.literal`), never evaluated.
    """
    read = {name: _value(value) for name, value in values.items() if value is not None}
    special = _SPECIAL.get(dialect)
    if special is not None:
        special(read)
    name = read.pop("model_name", None)
    read.pop("parameter_count", None)
    return read, zoo.find(name) if isinstance(name, str) else None


def _value(value: object) -> object:
    return literal(value) if isinstance(value, str) and len(value) <= _LONGEST else value


def _torchtitan(values: Values) -> None:
    """FSDP2 shards everything; recomputation is named by its mode; bf16 is its mixed-precision default."""
    shards, copies = values.pop("data_parallel_shard_degree", None), values.pop("data_parallel_replicate_degree", None)
    if isinstance(shards, int) and shards != 1:
        values["data_parallel_sharding"] = "optim_grads_params"
    elif isinstance(copies, int) and copies > 1:
        values["data_parallel_sharding"] = "no_shard"
    mode = values.pop("activation_checkpoint_mode", None)
    if mode in ("full", "selective", "none"):
        values["recompute_granularity"] = mode
    flavour = values.pop("model_flavor", None)
    if flavour is not None and "model_name" in values:
        values["model_name"] = f"{values['model_name']} {flavour}"
    values.setdefault("bf16", True)


def _maxtext(values: Values) -> None:
    """``per_device_batch_size`` counts per device, the global batch is all devices' together."""
    each, batch = values.get("micro_batch_size"), values.get("global_batch_size")
    if _positive(each) and _positive(batch):
        values.setdefault("world_size", int(batch / each))  # type: ignore[operator]
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
    for name in [name for name, value in values.items() if value == -1]:
        del values[name]
    values |= {"bf16": True, "data_parallel_sharding": "optim_grads_params"}


def _nemo(values: Values) -> None:
    nodes, devices = values.pop("num_nodes", None), values.pop("devices", None)
    if _positive(nodes) and _positive(devices):
        values.setdefault("world_size", int(nodes * devices))  # type: ignore[operator]
    activation = values.pop("activation", None)
    if isinstance(activation, str):
        values["swiglu"] = "swiglu" in activation
    _precision(values)
    _shared_embeddings(values)


def _bridge(values: Values) -> None:
    _shared_embeddings(values)


def _shared_embeddings(values: Values) -> None:
    shared = values.pop("share_embeddings_and_output_weights", None)
    if isinstance(shared, bool):
        values["untie_embeddings_and_output_weights"] = not shared
    for name, spelling in (("normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}),):
        value = values.get(name)
        if isinstance(value, str):
            values[name] = spelling.get(value.lower(), value)
    if "num_query_groups" in values and values["num_query_groups"] != values.get("num_attention_heads"):
        values["group_query_attention"] = True


def _precision(values: Values) -> None:
    word = str(values.pop("precision", "")).lower()
    for mark, name, value in (
        ("fp4", "fp4", word),
        ("fp8", "fp8", "hybrid"),
        ("bf16", "bf16", True),
        ("16", "fp16", True),
    ):
        if mark in word:
            values[name] = value
            if "mx" in word and name == "fp8":
                values["fp8_recipe"] = "mxfp8"
            return


def _mllog(values: Values) -> None:
    """The accumulation steps give the data-parallel ranks, with these and the parallel sizes the GPUs."""
    _precision(values)
    steps = values.pop("gradient_accumulation_steps", None)
    batch, each = values.get("global_batch_size"), values.get("micro_batch_size")
    if _positive(steps) and _positive(batch) and _positive(each):
        ranks = batch / each / steps  # type: ignore[operator]
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
            size = values.get(name, 1)
            ranks = ranks * size if _positive(size) else 0
        if ranks >= 1 and ranks == int(ranks):
            values.setdefault("world_size", int(ranks))


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12


_SPECIAL: Mapping[str, Callable[[Values], None]] = {
    "torchtitan": _torchtitan,
    "maxtext": _maxtext,
    "nemo": _nemo,
    "megatron-bridge": _bridge,
    "mllog": _mllog,
}
