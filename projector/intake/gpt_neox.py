"""Reads GPT-NeoX configurations of decoders without experts (a mapping of GPT-NeoX's and DeepSpeed's names), as far as
``dialects/gpt_neox.yaml`` cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from projector.errors import Problem, Unsupported
from projector.intake.dialect import BUNDLES, dialect
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.intake.values import Reader
from projector.workload import tokenizers
from projector.workload.model import Model
from projector.workload.model_schema import model_from_mapping

_LLAMA_MULTIPLE = 256


def load(content: Mapping[str, object], where: str, *, model: Model | None, written: bool = True) -> Loaded:
    """Returns the workload of a whole configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError`
    with everything that does not fit, :class:`Unsupported` for other trainings and layers. ``written``: a person wrote
    the configuration, the trainer did not print it."""
    job = Settings(dialect("gpt_neox"), content, where)
    args, stated = job.args, job.stated
    typed = () if "precision" in job.fields else ("precision=fp32 (neither bf16 nor fp16 is stated)",)
    _recipe(job)
    shape = _architecture(job)
    _doubts(job)
    words = tokenizers.vocabulary(
        str(args.raw("tokenizer_type")), vocab_file=str(args.raw("vocab_file") or "") or None, names=(Path(where).stem,)
    ) or tokenizers.Vocabulary(int(tokenizers.DEFAULT_SIZE), tokenizers.UNNAMED, sure=False)
    assumed: tuple[str, ...] = ()
    problems: list[Problem] = []
    if model is None:
        named = {"name": Path(where).stem, "family": "gpt_neox", "source": where, "vocab_size": words.size, **shape}
        model, problems = model_from_mapping({k: value for k, value in named.items() if value is not None}, where, "")
        width = f"ffn_hidden_size={shape['ffn_hidden_size']} (a third of intermediate_size, rounded up)"
        assumed = (str(words), *((width,) if shape["gated_linear_unit"] else ()))
    each, steps = args.integer("train_micro_batch_size_per_gpu"), args.integer("gradient_accumulation_steps") or 1
    samples = None if each is None or "train_batch_size" in stated else each * steps
    job.fields["global_batch_size"] = job.fields["global_batch_size"] or samples
    return job.loaded(
        model,
        problems=problems,
        written=written,
        framework="megatron-deepspeed",
        samples_per_rank=samples,
        assumed=("framework=megatron-deepspeed (GPT-NeoX has its engine)", *typed, *assumed),
    )


def _recipe(job: Settings) -> None:
    args, fields = job.args, job.fields
    fields.setdefault("precision", "fp32")
    fields.setdefault("optimizer_cpu_offload", False)
    fields["pp"] = args.integer("pipe_parallel_size") or 1
    layers = args.integer("checkpoint_num_layers")
    full = {**BUNDLES["full recompute"], "recompute_num_layers": layers}
    fields |= full if args.flag("checkpoint_activations") else BUNDLES["no recompute"]
    kinds = set(re.findall(r"[a-z_]+", str(args.raw("attention_config")).lower())) - {
        "all"
    }  # such as [[["global", "flash"], 6]]
    attention = job.dialect.tables["attention"]
    if kinds - set(attention) or len(kinds) > 1:
        shown = ", ".join(sorted(kinds))
        raise Unsupported(f"{job.where}: a GPT-NeoX configuration with attention_config={shown}")
    fields["attention_backend"] = attention.get(next(iter(kinds), "global"))
    if args.word("mlp_type") == "llama" and args.raw("intermediate_size") is not None:
        raise Unsupported(f"{job.where}: a GPT-NeoX configuration with mlp_type=llama")


def _doubts(job: Settings) -> None:
    args, doubts = job.args, job.doubts
    if args.flag("gpt_j_residual"):
        how = "attention and MLP one after the other, each with an all-reduce of its own"
        doubts.append(f"gpt_j_residual=True ({how})")
    if args.flag("partition_activations") and args.integer("model_parallel_size") != 1:
        doubts.append("partition_activations=True")
    attention, mlp = (args.flag(f"use_bias_in_{part}") is not False for part in ("attn_linear", "mlp"))
    if attention != mlp:
        doubts.append(f"use_bias_in_attn_linear={attention} (as in the MLP)")


def _architecture(job: Settings) -> dict[str, object]:
    args = job.args
    llama = args.word("mlp_type") == "llama"
    gated = llama or job.one_of("activation", "activations") is True
    return {
        **{name: args.integer(name) for name in ("num_layers", "hidden_size", "num_attention_heads")},
        "max_position_embeddings": args.integer("max_position_embeddings"),
        "num_query_groups": args.integer("num_kv_heads") or None,
        "ffn_hidden_size": _llama_width(args) if llama else _width(args, gated),
        "gated_linear_unit": gated,
        "normalization": job.one_of("norm", "norms"),
        "add_bias_linear": args.flag("use_bias_in_mlp") is not False and not llama,
        "qk_layernorm": args.flag("use_qk_layernorm") or False,
        "position_embedding_type": job.one_of("pos_emb", "positions"),
        "untie_embeddings_and_output_weights": args.flag("no_weight_tying") or False,
        "window_size": args.integer("sliding_window_width"),
    }


def _width(args: Reader, gated: bool) -> int | None:
    """Returns the width of the MLP; with a gate, two thirds of the stated width are gate and up together."""
    hidden, factor = args.integer("hidden_size"), args.number("expansion_factor")
    width, multiple = args.integer("intermediate_size"), args.integer("mlp_multiple_of") or 1
    if width is None and hidden is not None:
        width = int((factor or 4) * hidden)
    if width is None:
        return None
    half = int(width * 2 / 3) // 2 if gated else width
    return -(-half // multiple) * multiple


def _llama_width(args: Reader) -> int | None:
    """Returns the width of 2023's ``LLaMAParallelMLP``: two thirds of 4·H, rounded up to a multiple of 256."""
    hidden = args.integer("hidden_size")
    return None if hidden is None else -(-int(2 * hidden * 4 / 3) // _LLAMA_MULTIPLE) * _LLAMA_MULTIPLE
