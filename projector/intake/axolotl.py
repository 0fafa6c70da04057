"""Axolotl's configurations of pre-training and fine-tuning on packed samples: what ``dialects/axolotl.yaml`` cannot say."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem, Unsupported
from projector.intake import hf_trainer
from projector.intake.dialect import BUNDLES, Settings, dialect
from projector.intake.loaded import Loaded
from projector.workload.model import Model


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings and samples of lengths that nothing states."""
    job = Settings(dialect("axolotl"), content, where)
    args, fields = job.args, job.fields
    packed = args.flag("sample_packing")
    if not packed and not (args.raw("pretraining_dataset") and packed is None):
        what = "sample_packing not true: samples of lengths that nothing states"
        raise Unsupported(f"{where}: an Axolotl configuration with {what}")
    fields.setdefault("precision", "fp32")
    steps = args.integer("gradient_accumulation_steps") or 1
    fields["global_batch_size"] = (args.integer("micro_batch_size") or 1) * steps
    replicas, shards = args.integer("dp_replicate_size") or 1, args.integer("dp_shard_size")
    fields["data_parallel_shard_size"] = shards if replicas > 1 else None
    if args.word("adapter") == "lora":
        every, linears = args.flag("lora_target_linear") is True, args.words("lora_target_modules")
        fields |= hf_trainer.adapters(args.integer("lora_r"), linears, every)
    problems: list[Problem] = []
    told: tuple[str, ...] = ()
    if deepspeed := args.raw("deepspeed"):
        deep, told = hf_trainer.zero(deepspeed, where, problems)
        fields |= deep
    else:
        _fsdp(job)
        fields |= BUNDLES["bf16 alone"] if fields["precision"] == "bf16" else {}
    told = ("sample_packing=True (attention inside each document: counted over the whole sample)", *told)
    return hf_trainer.finished(job, model, named="base_model", told=told, problems=problems)


def _fsdp(job: Settings) -> None:
    """torch's FSDP, the first (``fsdp`` and words with a prefix) or the second (``fsdp_version``)."""
    words = job.args.words("fsdp") or ()
    sharded = words or any(key.startswith("fsdp_config.") for key in job.stated)
    if words and "fsdp_config.sharding_strategy" not in job.stated:
        word = words[0].lower()
        shards = job.dialect.values["fsdp_config.sharding_strategy"]
        if word not in shards:
            job.args.problems.append(("fsdp", word, f"one of {', '.join(map(str, shards))}"))
        job.fields |= shards.get(word, {})
    job.fields.setdefault("data_parallel_sharding", "optim_grads_params" if sharded else "no_shard")
