"""Programs on Hugging Face's ``Trainer``, by their arguments as a file or a command line: what ``dialects/trainer.yaml``
cannot say."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem
from projector.intake import hf_trainer
from projector.intake.dialect import Settings, dialect
from projector.intake.loaded import Loaded
from projector.workload.model import Model


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of the arguments, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for other trainings."""
    job = Settings(dialect("trainer"), content, where)
    args, fields = job.args, job.fields
    problems: list[Problem] = []
    if not args.integer("max_seq_length"):
        expected = "tokens of a sample: max_seq_length, max_length, model_max_length, block_size or cutoff_len"
        problems.append(Problem(where, "max_seq_length", "nothing", expected))
        fields["seq_length"] = 1
    steps = args.integer("gradient_accumulation_steps") or 1
    fields |= {
        "precision": "bf16" if args.flag("bf16") else "fp16" if args.flag("fp16") else "fp32",
        "global_batch_size": (args.integer("per_device_train_batch_size") or 1) * steps,
        "data_parallel_sharding": "optim_grads_params" if args.raw("fsdp") else "no_shard",
    }
    if args.flag("use_lora"):
        targets = args.words("lora_target") or ("q_proj", "v_proj")
        fields |= hf_trainer.adapters(args.integer("lora_rank"), targets, "all-linear" in targets)
    told = () if args.flag("packing") else (hf_trainer.loose(fields["seq_length"]),)
    if args.raw("deepspeed") is not None:
        deep, more = hf_trainer.zero(job.stated["deepspeed"], where, problems)
        fields |= deep
        told = (*told, *more)
    return hf_trainer.finished(job, model, named="model_name_or_path", told=told, problems=problems)
