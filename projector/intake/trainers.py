"""Reads configurations of torchtune, LitGPT, nanotron and LLM Foundry, as far as their ``dialects`` cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import Unsupported
from projector.intake import adapters, huggingface
from projector.intake.dialect import BUNDLES, dialect, loose
from projector.intake.loaded import Loaded
from projector.intake.named_models import OTHERS
from projector.intake.settings import Settings
from projector.intake.values import at, section
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.optimizers import named


def load_torchtune(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of a torchtune configuration, whose number of GPUs may come from elsewhere. Raises
    :class:`InputError` with everything that does not fit, :class:`Unsupported` for other trainings."""
    job = Settings(dialect("torchtune"), content, where)
    builder, loss = str(section(content, "model").get("_component_") or ""), job.class_name("loss._component_")
    _refuse_unsupported(job, builder)
    gpus = _sizes(job)
    on = job.args.flag("enable_fp8_training")
    scaling = job.args.word("fp8_recipe_name") or ("tensorwise" if on else None)
    job.fields["fp8_recipe"] = scaling.removesuffix("_with_gw_hp") if scaling else None
    job.fields["precision"] = "fp8" if on else job.fields.get("precision", "bf16")
    optimizer = job.class_name("optimizer._component_")
    job.fields["optimizer"] = named(optimizer.removeprefix("Paged")) if optimizer else None
    job.fields["cross_entropy_fusion"] = job.dialect.tables["losses"].get(loss)
    _adapters(job)
    inside = "dataset.packed=True (attention inside each document: counted over the whole sample)"
    job.doubts.append(inside if _packed(job, content) else loose(job.fields["seq_length"]))
    if loss not in ("LinearCrossEntropyLoss", "CrossEntropyLoss", ""):
        job.doubts.append(f"loss={loss}")
    if optimizer.startswith("Paged"):
        job.doubts.append(f"optimizer={optimizer} (pages on the device)")
    model = model or _published(builder, job.dialect.tables["without_window"])
    if model is None:
        job.args.problems.append(("model", builder or "nothing", OTHERS))
    return job.loaded(
        model,
        gpus=gpus,
        framework="torchtune",
        samples_per_rank=job.fields["global_batch_size"],
        assumed=(
            *((f"gpus={gpus} (the product of the dimensions)",) if gpus else ()),
            f"model={model.name if model else builder} ({builder.rpartition('.')[2]})",
        ),
    )


def _packed(job: Settings, content: Mapping[str, object]) -> bool:
    data = content.get("dataset")
    several = [each for each in (data if isinstance(data, list) else [data]) if isinstance(each, Mapping)]
    stated = [each.get("packed") for each in several]
    expected = "true or false"
    job.args.problems += [("dataset.packed", each, expected) for each in stated if each not in (None, True, False)]
    job.args.used |= {"dataset", "dataset.packed"}
    return bool(stated) and all(stated)


def _refuse_unsupported(job: Settings, builder: str) -> None:
    job.args.used |= {"model._component_"}
    reasons = {
        "a model that sees, or a classifier": re.search("vision|classifier", builder) is not None,
        "loss: preferences": "rlhf" in str(job.args.raw("loss._component_")),
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise Unsupported(f"{job.where}: a torchtune configuration with {reason}")


def _published(builder: str, without_window: list[str]) -> Model | None:
    """Returns the zoo's model of a builder: ``torchtune.models.qwen2_5.lora_qwen2_5_0_5b_instruct`` is Qwen2.5-0.5B."""
    *_, family, name = f".{builder}".split(".")
    size = re.sub("^q?lora_", "", name).removeprefix(family).strip("_")
    size = re.sub(r"(?<=\d)_(?=\d)", ".", re.sub(r"_(instruct|base)$", "", size)).replace("_", " ")
    found = zoo.named(f"{family.replace('_', '.')} {size}") if size else None
    if found and family in without_window:
        return replace(zoo.load(found), window_size=None)
    return zoo.load(found) if found else None


def _sizes(job: Settings) -> int | None:
    """Puts batch and sharding into the job's fields; returns the GPUs that the dimensions make (torchtune/training/
    _distributed.py ParallelDims), None where the shards take all ranks that are left."""
    args, fields = job.args, job.fields
    micro, steps = args.integer("batch_size"), args.integer("gradient_accumulation_steps") or 1
    replicas, shards = args.integer("data_parallel_replicate_dim") or 1, args.integer("data_parallel_shard_dim")
    if replicas > 1 and (shards or -1) < 1:
        args.problems.append(("data_parallel_shard_dim", shards, "a whole number: ranks that share one copy"))
    fields["global_batch_size"] = None if micro is None else micro * steps
    fields["data_parallel_sharding"] = "optim_grads_params"
    if shards is None or shards < 1:
        return None
    inside = (fields["cp"] or 1) * shards  # type: ignore[operator]
    fields["data_parallel_shard_size"] = inside
    return replicas * inside * (fields["tp"] or 1)  # type: ignore[operator]


def _adapters(job: Settings) -> None:
    args = job.args
    if args.raw("model.lora_rank") is None:
        return
    words = args.words("model.lora_attn_modules") or ()
    others = {"apply_lora_to_mlp": ("gate_proj", "down_proj"), "apply_lora_to_output": ("lm_head",)}
    chosen = [name for switch, names in others.items() if args.flag(f"model.{switch}") for name in names]
    # torchao's NF4Tensor keeps scales in 8 bits (meta-pytorch/torchtune@bd2a0fc7 modules/peft/lora.py, quantize_base)
    few = "qlora_" in str(args.raw("model._component_")) or args.flag("model.quantize_base")
    nested = {"quant_type": "nf4", "double_quant": True}
    adapters.put(job, args.raw("model.lora_rank"), (*words, *chosen), few=nested if few else None)
    if words and {"q_proj", "k_proj", "v_proj"} & set(words) != {"q_proj", "k_proj", "v_proj"}:
        job.doubts.append(f"lora_attn_modules={', '.join(words)} (one adapter for queries, keys and values)")


def load_litgpt(content: Mapping[str, object], where: str, *, model: Model | None, gpus: int | None = None) -> Loaded:
    """Returns the workload of a LitGPT configuration, on ``gpus`` in place of the stated devices. Raises :class:`InputError`
    with everything that does not fit, :class:`Unsupported` for pre-training on samples whose lengths nothing states."""
    of, tuned = dialect("litgpt"), content.get("checkpoint_dir") is not None and content.get("model_name") is None
    job = Settings(of, content, where, preset=of.tables["tuned"] if tuned else None)
    args, fields = job.args, job.fields
    kind = str(args.raw("data.class_path") or args.raw("data") or "TinyLlama").rpartition(".")[2]
    if not tuned and kind not in of.tables["whole"]:
        raise Unsupported(f"{where}: a LitGPT configuration with data={kind}: samples of lengths that nothing states")
    devices, nodes = (args.integer(name) if args.raw(name) != "auto" else None for name in ("devices", "num_nodes"))
    stated = None if devices is None else devices * (nodes or 1)
    named_by = "checkpoint_dir" if tuned else "model_name"
    name = args.text(named_by).rstrip("/")
    model = model or job.published(named_by)
    if model is not None and args.flag("tie_embeddings") and model.untie_embeddings_and_output_weights:
        expected = "a model whose output layer is its embedding: --model FILE"
        args.problems.append(("train.tie_embeddings", True, expected))
    if tuned and fields["seq_length"] is None:
        args.problems.append(("train.max_seq_length", "nothing", "tokens of a sample, or --seq N"))
    fields |= {
        "seq_length": fields["seq_length"] or (model.max_position_embeddings if model else None),
        "data_parallel_sharding": "optim_grads_params",  # HYBRID_SHARD: inside a node
        "data_parallel_shard_size": devices,
        "optimizer": named(job.class_name("optimizer.class_path", "optimizer")),
        "recompute_granularity": "none",
        "torch_compile": not tuned,
    }
    told = _tuned(job, gpus or stated) if tuned else ()
    counted = (f"gpus={stated} (devices × num_nodes)",) if stated else ()
    assumed = (*counted, "framework=pytorch", f"model={model.name if model else name} ({name})")
    return job.loaded(model, told=told, gpus=stated, framework="pytorch", assumed=assumed)


def _tuned(job: Settings, gpus: int | None) -> tuple[str, ...]:
    """Returns what a fine-tuning leaves unmodelled; puts adapters, sharding, recomputation into the job's fields: more than
    one rank shards all weights (over nodes, too) and recomputes every layer."""
    job.fields["data_parallel_shard_size"] = None
    job.fields |= BUNDLES["no recompute" if gpus == 1 else "full recompute"]
    if gpus == 1:
        job.fields["data_parallel_sharding"] = "no_shard"
    if any(name.startswith("lora_") for name in job.stated):
        parts = job.dialect.tables["adapted"].items()
        linears = [name for part, names in parts if job.args.flag(f"lora_{part}") for name in names]
        few = job.one_of("quantize", "few_bits") if job.args.has("quantize") else None
        adapters.put(job, job.args.integer("lora_r"), linears, few=few)
    return (loose(job.fields["seq_length"]),)


_FAMILIES = ("is_llama_config", "is_qwen2_config")
_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings", "tie_word_embeddings"),
)


def load_nanotron(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of a nanotron configuration. Raises :class:`InputError` with everything that does not fit,
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
    precision = fields["precision"]
    if args.flag("accumulate_grad_in_fp32"):
        fields |= {"main_grads_dtype": "fp32", "grad_reduce_in_bf16": False}
    elif precision in (
        "bf16",
        "fp16",
    ):  # without sums in fp32 there is no copy of the weights: the optimizer works on the model's own
        fields |= {key: precision if value == "bf16" else value for key, value in BUNDLES["bf16 alone"].items()}
    shape = {key: args.raw(key) for key in _SIZES}
    biased = args.flag("attention_bias") is True and bool(families[1])  # only nanotron's Qwen2 looks at it
    if model is None and not job.unread(written=True).problems:
        config = {**shape, "model_type": "llama", "attention_bias": biased}
        model = huggingface.from_mapping(config, where, name=Path(where).stem).model
    gpus = math.prod(args.integer(name) or 1 for name in ("dp", "tp", "pp", "context_parallel_size"))
    counted = f"gpus={gpus} (dp · tp · pp · context_parallel_size)"
    return job.loaded(model, gpus=gpus, framework="unknown", assumed=(counted,))


_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEPTH = 5  # references to references


def load_llm_foundry(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of an LLM Foundry configuration, whose number of GPUs comes from elsewhere. Raises
    :class:`InputError` with everything that does not fit, :class:`Unsupported` for adapters and offloading."""
    resolved = _resolved(content, content)
    settings = resolved if isinstance(resolved, Mapping) else content
    given, loader = section(settings, "model"), section(settings, "train_loader")
    if given.get("name") not in ("mpt_causal_lm", "hf_causal_lm"):
        what = f"{given.get('name')}: no causal language model of MPT or a hub"
        raise Unsupported(f"{where}: an LLM Foundry configuration of {what}")
    job = Settings(dialect("llm_foundry"), settings, where)
    if loader.get("name") == "finetuning" and not section(loader, "dataset").get("packing_ratio"):
        job.doubts.append(loose(job.fields["seq_length"]))
    args, fields = job.args, job.fields
    micro = args.raw("device_train_microbatch_size")
    if micro == "auto":
        expected = "a whole number: what fits is found on the device alone"
        args.problems.append(("device_train_microbatch_size", micro, expected))
    sharded = bool(settings.get("fsdp_config"))
    fields |= {
        "micro_batch_size": micro if micro != "auto" else None,
        "data_parallel_sharding": fields.get("data_parallel_sharding", "optim_grads_params") if sharded else "no_shard",
        "grad_reduce_in_bf16": fields.get("grad_reduce_in_bf16", False) if sharded else None,
        "torch_compile": settings.get("compile_config") is not None,
        "make_vocab_size_divisible_by": 1,
    }
    plain = ("gradient_clipping", "low_precision_layernorm")
    job.doubts += [f"algorithms.{key}" for key in section(settings, "algorithms") if key not in plain]
    args.used |= {"compile_config"}
    prefixes = (
        ("model.", "algorithms.") if given["name"] == "mpt_causal_lm" else ("algorithms.",)
    )  # whose loader accounts for them
    args.used |= {name for name in job.stated if name.startswith(prefixes)}
    if args.raw("train_loader.dataset.packing_ratio") != "auto":
        args.number("train_loader.dataset.packing_ratio")
    told: tuple[str, ...] = ()
    if model is None and given["name"] == "hf_causal_lm":
        model = job.published("model.pretrained_model_name_or_path")
    elif model is None and not (args.problems or job.unread(written=True).problems):
        neutral = {name.removeprefix("model.") for name in job.dialect.neutral if name.startswith("model.")}
        shape = {key: value for key, value in given.items() if key not in {*neutral, "name"}}
        base = huggingface.from_mapping({**job.dialect.tables["mpt"], **shape, "model_type": "mpt"}, where,
                                        name=Path(where).stem)  # fmt: skip
        model, told = base.model, base.unmodelled
    loaded = job.loaded(model, framework="llm-foundry")
    return replace(loaded, unmodelled=(*told, *loaded.unmodelled))


def _resolved(value: object, root: Mapping[str, object], depth: int = _DEPTH) -> object:
    """Returns ``value`` with each ``${path}`` replaced by the value at that path of ``root``."""
    if isinstance(value, Mapping):
        return {str(key): _resolved(inner, root, depth) for key, inner in value.items()}
    match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not depth:
        return value
    target = at(root, *match[1].split("."))
    return value if target is None else _resolved(target, root, depth - 1)
