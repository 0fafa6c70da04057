"""nanotron's configurations of dense decoders, a code base without a profile: what ``dialects/nanotron.yaml`` cannot say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from projector.errors import InputError, Unsupported
from projector.intake import huggingface
from projector.intake.dialect import BUNDLES, Settings, dialect
from projector.intake.loaded import Loaded
from projector.workload.model import Model

_FAMILIES = ("is_llama_config", "is_qwen2_config")
_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings", "tie_word_embeddings"),
)


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a whole configuration. Raises :class:`InputError` with everything that does not fit,
    :class:`Unsupported` for layers that are not a Llama's."""
    job = Settings(dialect("nanotron"), content, where)
    args, fields = job.args, job.fields
    families = [args.flag(family) for family in _FAMILIES]
    if not any(families):
        kinds = [key for key in job.stated if key.startswith("is_") and key.endswith("_config")]
        raise Unsupported(
            f"{where}: a nanotron configuration of {', '.join(kinds) or 'no family'}: only {_FAMILIES} are read"
        )
    counts = [args.integer(name) for name in ("micro_batch_size", "batch_accumulation_per_replica", "dp")]
    fields["global_batch_size"] = None if None in counts else math.prod(count or 0 for count in counts)
    if (fields["tp"] or 1) == 1:
        fields["sequence_parallel"] = False
    if fields["pp"] == 1:
        fields.pop("pipeline_schedule", None)
    own = fields["precision"]
    if args.flag("accumulate_grad_in_fp32"):
        fields |= {"main_grads_dtype": "fp32", "grad_reduce_in_bf16": False}
    elif own in (
        "bf16",
        "fp16",
    ):  # without sums in fp32 there is no copy of the weights: the optimizer works on the model's own
        fields |= {key: own if value == "bf16" else value for key, value in BUNDLES["bf16 alone"].items()}
    shape = {key: args.raw(key) for key in _SIZES}
    biased = args.flag("attention_bias") is True and bool(families[1])  # only nanotron's Qwen2 looks at it
    if model is None and not job.unread(written=True).problems:
        config = {**shape, "model_type": "llama", "attention_bias": biased}
        model = huggingface.from_mapping(config, where, name=Path(where).stem).model
    gpus = math.prod(args.integer(name) or 1 for name in ("dp", "tp", "pp", "context_parallel_size"))
    if model is None:
        raise InputError(job.unread(written=True).problems)
    counted = f"gpus={gpus} (dp · tp · pp · context_parallel_size)"
    return job.loaded(model, gpus=gpus, framework="unknown", assumed=(counted,))
