"""torchtune's configurations of fine-tuning on packed samples: what ``dialects/torchtune.yaml`` cannot say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import Problem, Unsupported
from projector.intake.dialect import Settings, dialect
from projector.intake.loaded import Loaded
from projector.intake.named_models import OTHERS
from projector.intake.values import section
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.optimizers import named


def is_torchtune(content: Mapping[str, object]) -> bool:
    """Whether ``content`` names a builder of torchtune's as its model."""
    return str(section(content, "model").get("_component_") or "").startswith("torchtune.")


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings and samples of lengths that nothing states."""
    job = Settings(dialect("torchtune"), content, where)
    builder, loss = str(section(content, "model")["_component_"]), _last(job, "loss._component_")
    _supported(job, content, builder)
    problems = []
    if job.args.raw("tokenizer.max_seq_len") is None:
        problems.append(Problem(where, "tokenizer.max_seq_len", "nothing", "a whole number: tokens of a packed sample"))
    gpus = _sizes(job)
    _precision(job)
    optimizer = _last(job, "optimizer._component_")
    job.fields["optimizer"] = named(optimizer.removeprefix("Paged")) if optimizer else None
    job.fields["cross_entropy_fusion"] = job.dialect.tables["losses"].get(loss)
    _adapters(job)
    job.doubts.append("dataset.packed=True (attention inside each document: counted over the whole sample)")
    if loss not in ("LinearCrossEntropyLoss", "CrossEntropyLoss", ""):
        job.doubts.append(f"loss={loss}")
    if optimizer.startswith("Paged"):
        job.doubts.append(f"optimizer={optimizer} (pages on the device)")
    model = model or _published(builder, job.dialect.tables["without_window"])
    if model is None:
        problems.append(Problem(where, "model", builder, OTHERS))
    return job.loaded(
        model,
        problems=problems,
        gpus=gpus,
        framework="torchtune",
        samples_per_rank=job.fields["global_batch_size"],
        assumed=(
            *((f"gpus={gpus} (the product of the dimensions)",) if gpus else ()),
            f"model={model.name if model else builder} ({builder.rpartition('.')[2]})",
        ),
    )


def _last(job: Settings, setting: str) -> str:
    """The class that a path of modules ends in."""
    return str(job.args.raw(setting) or "").rpartition(".")[2]


def _supported(job: Settings, content: Mapping[str, object], builder: str) -> None:
    data = content.get("dataset")
    several = data if isinstance(data, list) else [data]
    packed = all(isinstance(item, Mapping) and item.get("packed") is True for item in several)
    job.args.used |= {"dataset", "dataset.packed", "model._component_"}
    reasons = {
        "a model that sees, or a classifier": re.search("vision|classifier", builder) is not None,
        "weights in 4 bits": "qlora" in builder,
        "loss: preferences": "rlhf" in str(job.args.raw("loss._component_")),
        "dataset.packed not True: samples of lengths that nothing states": not packed,
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise Unsupported(f"{job.where}: a torchtune configuration with {reason}")


def _published(builder: str, without_window: list[str]) -> Model | None:
    """The zoo's model that a builder makes: ``torchtune.models.qwen2_5.lora_qwen2_5_0_5b_instruct`` is Qwen2.5-0.5B."""
    *_, family, name = builder.split(".")
    size = name.removeprefix("lora_").removeprefix(family).strip("_")
    size = re.sub(r"(?<=\d)_(?=\d)", ".", re.sub(r"_(instruct|base)$", "", size)).replace("_", " ")
    found = zoo.named(f"{family.replace('_', '.')} {size}") if size else None
    if found and family in without_window:
        return replace(zoo.load(found), window_size=None)
    return zoo.load(found) if found else None


def _sizes(job: Settings) -> int | None:
    """The GPUs that the dimensions make (torchtune/training/_distributed.py ParallelDims), None where the shards are all
    that is left."""
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


def _precision(job: Settings) -> None:
    on = job.args.flag("enable_fp8_training")
    scaling = job.args.word("fp8_recipe_name") or ("tensorwise" if on else None)
    job.fields["fp8_recipe"] = scaling.removesuffix("_with_gw_hp") if scaling else None
    job.fields["precision"] = "fp8" if on else job.fields.get("precision", "bf16")


def _adapters(job: Settings) -> None:
    args = job.args
    rank = args.raw("model.lora_rank")
    if rank is None:
        return
    words = args.words("model.lora_attn_modules") or ()
    adapted = job.dialect.tables["adapted"]
    linears = [adapted[word] for word in words if word in adapted]
    job.doubts += [f"lora_attn_modules={word}" for word in words if word not in adapted]
    linears += ["linear_fc1", "linear_fc2"] if args.flag("model.apply_lora_to_mlp") else []
    linears += ["output_layer"] if args.flag("model.apply_lora_to_output") else []
    job.fields["lora"] = {"dim": rank, "targets": list(dict.fromkeys(linears))}
    if words and {"q_proj", "k_proj", "v_proj"} & set(words) != {"q_proj", "k_proj", "v_proj"}:
        job.doubts.append(f"lora_attn_modules={', '.join(words)} (one adapter for queries, keys and values)")
