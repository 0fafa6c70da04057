"""LLaMA-Factory's configurations of pre-training and fine-tuning on packed samples: what ``dialects/llama_factory.yaml``
cannot say."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem
from projector.intake import hf_trainer
from projector.intake.dialect import Settings, dialect
from projector.intake.loaded import Loaded
from projector.workload.model import Model


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings and samples of lengths that nothing states."""
    job = Settings(dialect("llama_factory"), content, where)
    args, fields = job.args, job.fields
    packing, neat = args.flag("packing"), args.flag("neat_packing")
    half = args.flag("bf16") or args.flag("pure_bf16")
    steps = args.integer("gradient_accumulation_steps") or 1
    fields |= {
        "precision": "bf16" if half else "fp16" if args.flag("fp16") else "fp32",
        "global_batch_size": (args.integer("per_device_train_batch_size") or 1) * steps,
        "data_parallel_sharding": "optim_grads_params" if args.raw("fsdp") else "no_shard",
    }
    if args.word("finetuning_type") == "lora":
        targets = args.words("lora_target") or ()
        fields |= hf_trainer.adapters(args.integer("lora_rank"), targets, "all" in targets)
    problems: list[Problem] = []
    loose = not (packing or neat) and (args.word("stage") == "sft" or packing is False)
    told = (hf_trainer.loose(fields["seq_length"]),) if loose else ()
    if args.raw("deepspeed") is not None:
        deep, more = hf_trainer.zero(job.stated["deepspeed"], where, problems)
        fields |= deep
        told = (*told, *more)
    if neat:
        told = ("neat_packing=True (attention inside each document: counted over the whole sample)", *told)
    return hf_trainer.finished(job, model, named="model_name_or_path", told=told, problems=problems)
