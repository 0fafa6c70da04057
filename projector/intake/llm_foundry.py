"""llm-foundry's configurations of MPT and of models of a hub: what ``dialects/llm_foundry.yaml`` cannot say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import huggingface
from projector.intake.dialect import Settings, dialect
from projector.intake.loaded import Loaded
from projector.intake.named_models import published
from projector.intake.values import section
from projector.workload.model import Model

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEPTH = 5  # references to references


def is_llm_foundry(content: Mapping[str, object]) -> bool:
    """Whether ``content`` has the sections that every training of llm-foundry states."""
    return dialect("llm_foundry").fits(content) and isinstance(content["train_loader"], Mapping)


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration, whose number of GPUs comes from elsewhere. Raises :class:`InputError` with everything
    that does not fit, :class:`Unsupported` for adapters, offloading and samples of lengths that nothing states."""
    resolved = _resolved(content, content)
    settings = resolved if isinstance(resolved, Mapping) else content
    given, loader = section(settings, "model"), section(settings, "train_loader")
    if given.get("name") not in ("mpt_causal_lm", "hf_causal_lm"):
        what = f"{given.get('name')}: no causal language model of MPT or a hub"
        raise Unsupported(f"{where}: an LLM Foundry configuration of {what}")
    job = Settings(dialect("llm_foundry"), settings, where)
    if loader.get("name") == "finetuning" and not section(loader, "dataset").get("packing_ratio"):
        what = "train_loader finetuning without a packing_ratio: samples of lengths that nothing states"
        raise Unsupported(f"{where}: an LLM Foundry configuration with {what}")
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
    own = (
        ("model.", "algorithms.") if given["name"] == "mpt_causal_lm" else ("algorithms.",)
    )  # whose loader accounts for them
    args.used |= {name for name in job.stated if name.startswith(own)}
    if args.raw("train_loader.dataset.packing_ratio") != "auto":
        args.number("train_loader.dataset.packing_ratio")
    hub = args.text("model.pretrained_model_name_or_path")
    problems: list[Problem] = []
    told: tuple[str, ...] = ()
    of_hub = given["name"] == "hf_causal_lm"
    if model is None and of_hub:
        model = published(hub, where, "model", problems)
    elif model is None and not (args.problems or job.unread(written=True).problems):
        neutral = {name.removeprefix("model.") for name in job.dialect.neutral if name.startswith("model.")}
        shape = {key: value for key, value in given.items() if key not in {*neutral, "name"}}
        base = huggingface.from_mapping({**job.dialect.tables["mpt"], **shape, "model_type": "mpt"}, where,
                                        name=Path(where).stem)  # fmt: skip
        model, told = base.model, base.unmodelled
    if model is None:
        raise InputError([*problems, *job.problems, *job.unread(written=True).problems])
    made = job.loaded(model, problems=problems, framework="llm-foundry")
    return replace(made, unmodelled=(*told, *made.unmodelled))


def _resolved(value: object, root: Mapping[str, object], depth: int = _DEPTH) -> object:
    """``value`` with references to other places of the file replaced by what stands there."""
    if isinstance(value, Mapping):
        return {str(key): _resolved(inner, root, depth) for key, inner in value.items()}
    match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not depth:
        return value
    found: object = root
    for step in match[1].split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return value if found is None else _resolved(found, root, depth - 1)
