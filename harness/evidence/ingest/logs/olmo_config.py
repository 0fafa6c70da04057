"""The configuration that OLMo prints in one line: ``TrainConfig(…, model=ModelConfig(d_model=2048, …), …)``.

Facts: allenai/OLMo olmo/config.py (names), olmo/model.py (widths: a gate takes half of ``mlp_hidden_size``, which is
``mlp_ratio`` hidden sizes where it is not stated), olmo/checkpoint.py and train.py (strategies).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from harness.evidence.ingest.logs.dialect import WORDS
from harness.evidence.ingest.logs.events import Arguments, Event, Fact
from harness.evidence.ingest.logs.trainer import Trainer
from projector.intake.values import literal

_HEAD = "TrainConfig("
_LONGEST = 100_000  # characters: its lists of data files are long
_SETTING = re.compile(r"\b([a-z][a-z_]{2,40})=('[^']{0,80}'|<[\w.]{1,60}: [0-9]{1,3}>|[\w.+-]{1,40})(?=[,)(])")
_SHARDED = {"FULL_SHARD": "optim_grads_params", "SHARD_GRAD_OP": "optim_grads", "NO_SHARD": "no_shard"}
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16"}
_HALVED = ("swiglu", "geglu")


class Olmo(Trainer):
    """Reads OLMo's lines; the configuration stands in one line."""

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        values, unread = arguments(line)
        if not values:
            return None
        notes = [Fact("note", f"{name}={value} is not read") for name, value in unread]
        return [Arguments(values, number, len(values), unread), *notes]


def arguments(line: str) -> tuple[dict[str, object], tuple[tuple[str, str], ...]]:
    """Returns (Megatron-LM's arguments of the line, settings without such a name that may matter); empty for other lines."""
    if _HEAD not in line or len(line) > _LONGEST:
        return {}, ()
    said: dict[str, object] = {}
    for name, text in _SETTING.findall(line):
        said.setdefault(name, literal(text))  # the model's stands before what repeats it
    batch, of_device = said.get("global_train_batch_size"), said.get("device_train_batch_size")
    values: dict[str, object] = {
        "global_batch_size": batch,
        "micro_batch_size": said.get("device_train_microbatch_size"),
        "seq_length": said.get("max_sequence_length"),
        **_architecture(said),
    }
    if type(batch) is int and type(of_device) is int and of_device > 0 and batch % of_device == 0:
        values["world_size"] = batch // of_device
    unread = []
    for name, setting in (("precision", _precision(said)), ("distributed_strategy", _sharding(said)),
                        ("activation_checkpointing", _recompute(said))):  # fmt: skip
        if setting is None:
            unread.append((name, str(said.get(name))))
            del values["micro_batch_size"]  # without it nobody knows what a step did
            break
        values |= setting
    if said.get("compile") is not None:
        values["torch_compile"] = True
    return {name: value for name, value in values.items() if value is not None}, tuple(unread)


def _architecture(said: Mapping[str, object]) -> dict[str, object]:
    """Returns the sizes of a sequential decoder with rotary positions; empty for another architecture."""
    hidden, ratio, width = (said.get(name) for name in ("d_model", "mlp_ratio", "mlp_hidden_size"))
    inner = width if type(width) is int else hidden * ratio if type(hidden) is int and type(ratio) is int else None
    norm = {"default": "LayerNorm", "low_precision": "LayerNorm", "rms": "RMSNorm"}.get(
        str(said.get("layer_norm_type"))
    )
    usual = said.get("block_type") == "sequential" and said.get("rope") is True and said.get("alibi") is not True
    if not usual or type(inner) is not int or norm is None:
        return {}
    if norm == "LayerNorm" and said.get("layer_norm_with_affine") is False:
        norm = "NonParametricLayerNorm"
    gated = said.get("activation_type") in _HALVED
    groups = 1 if said.get("multi_query_attention") is True else said.get("n_kv_heads")
    return {
        **{ours: said.get(theirs) for theirs, ours in WORDS["olmo"].items()},
        "ffn_hidden_size": inner // 2 if gated else inner,
        "swiglu": gated,
        "normalization": norm,
        "position_embedding_type": "rope",
        "untie_embeddings_and_output_weights": said.get("weight_tying") is not True,
        **({"num_query_groups": groups, "group_query_attention": True} if groups is not None else {}),
    }


def _precision(said: Mapping[str, object]) -> dict[str, object] | None:
    name = _PRECISIONS.get(str(said.get("precision")))
    return {name: True} if name else {} if said.get("precision") == "fp32" else None


def _sharding(said: Mapping[str, object]) -> dict[str, object] | None:
    """Returns how states are sharded over ranks; None for a strategy that nobody reads."""
    strategy = said.get("distributed_strategy")
    if strategy in ("ddp", "single"):
        return {"data_parallel_sharding": "no_shard"}
    kind = str(said.get("sharding_strategy")).partition(":")[0].rpartition(".")[2]
    return {"data_parallel_sharding": _SHARDED[kind]} if strategy == "fsdp" and kind in _SHARDED else None


def _recompute(said: Mapping[str, object]) -> dict[str, object] | None:
    kind = said.get("activation_checkpointing")
    if kind is None:
        return {}
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return whole if kind == "whole_layer" else None
