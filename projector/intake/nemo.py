"""Turns NeMo 1 configurations of GPT-like models (``trainer:``, ``model:``) into Megatron-LM arguments, as far as
``dialects/nemo.yaml`` cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake.assemble import Origin, assemble
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.intake.values import section
from projector.workload.model import Model
from projector.workload.optimizers import named

_RECURRENT = re.compile(r"griffin|recurrentgemma|mamba|jamba|rwkv|hyena|evo2", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{\s*(?:(?:training\.)?model)?\.?([a-z_]+)\s*\}")
_PRODUCT = re.compile(r"\$\{\s*multiply\s*:\s*(\d+)\s*,\s*(\d+)\s*\}")
#: What an architecture in place of the file's says itself.
_ARCHITECTURE = ("normalization", "swiglu")


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of a whole configuration. Raises :class:`InputError` that names what other files would say,
    :class:`Unsupported` for models and trainings that are not those of a causal language model."""
    given = section(content, "model")
    resolved = {str(key): _resolved(value, given) for key, value in given.items()}
    job = Settings(dialect("nemo"), {**content, "model": resolved}, where)
    _trains(job)
    needed = job.dialect.tables["architecture"][3 if model else 0 :]
    source = "a file of its defaults" if content.get("defaults") else "the recipe or the checkpoint that it builds on"
    problems = [
        Problem(where, f"model.{key}", "nothing", f"it stated: {source} is not read")
        for key in needed
        if resolved.get(key) is None
    ]
    named_ = {name for names in job.dialect.names.values() for name in names}
    problems += [
        Problem(where, f"model.{key}", value, "a value: this reference is not resolved")
        for key, value in resolved.items()
        if key in named_ and isinstance(value, str) and "${" in value
    ]
    if problems or job.args.problems:
        raise InputError([*problems, *job.problems, *job.unread(written=True).problems])
    args = {**job.dialect.tables["arguments"], **_arguments(job, model)}
    name = job.args.text("run.name") or Path(where).stem
    origin = Origin(where=where, name=model.name if model else name, base=model, framework="nemo")
    loaded = assemble(args, origin)
    told = () if job.args.flag("megatron_amp_O2") is not False else ("megatron_amp_O2=False: weights in fp32",)
    left = job.unread(written=True)
    if left.problems or job.problems:
        raise InputError([*left.problems, *job.problems])
    doubts = (*loaded.unmodelled, *told, *job.doubtful(), *left.unmodelled)
    return replace(loaded, ignored=(*loaded.ignored, *left.neutral), unmodelled=doubts)


def _trains(job: Settings) -> None:
    """Raises :class:`Unsupported` where the file names a model of another kind."""
    args = job.args
    if "falcon" in args.text("name"):
        raise Unsupported(f"{job.where}: a NeMo configuration with attention and MLP side by side on one norm")
    names = [args.raw(key) for key in ("run.name", "name", "restore_from_path", "tokenizer.type")]
    if named_so := next((str(name) for name in names if _RECURRENT.search(str(name or ""))), None):
        raise Unsupported(f"{job.where}: a NeMo configuration of {named_so}: layers that this file does not describe")


def _resolved(value: object, model: Mapping[str, object], depth: int = 3) -> object:
    """Returns ``value`` with references to other fields of the model, and products with them, replaced by values."""
    if not isinstance(value, str) or "${" not in value or not depth:
        return value
    alone = _REFERENCE.fullmatch(value.strip())
    if alone:
        return _resolved(model.get(alone[1]), model, depth - 1)
    product = _PRODUCT.fullmatch(_REFERENCE.sub(lambda found: str(model.get(found[1])), value.strip()))
    return math.prod(int(factor) for factor in product.groups()) if product else value


def _arguments(job: Settings, model: Model | None) -> dict[str, object]:
    """Returns the Megatron-LM arguments that the file states. ``model``: in place of the architecture in the file."""
    args = job.args
    found = {**job.fields, **_optimizer(job)}
    if found.get("fp8") and args.flag("fp8_e4m3"):
        found["fp8"] = "e4m3"
    flash, core = args.flag("use_flash_attention"), args.flag("mcore_gpt")
    if flash and not core and "transformer_impl" in found:  # NeMo's own layers alone look at it
        found["attention_backend"] = "flash"
    if args.flag("cpu_offloading"):
        found["cpu_offloading_num_layers"] = args.raw("cpu_offloading_num_layers")
    shared = args.flag("share_embeddings_and_output_weights")
    if model is None:
        found |= {
            "untie_embeddings_and_output_weights": shared is False,
            "add_bias_linear": args.flag("bias") is not False,
            "group_query_attention": found.get("num_query_groups") is not None,
            **_tokenizer(job),
        }
    else:
        found = {name: value for name, value in found.items() if name not in _ARCHITECTURE}
    nodes, each = args.raw("trainer.num_nodes"), args.raw("trainer.devices")
    if type(nodes) is int and type(each) is int and nodes > 0 and each > 0:
        found["world_size"] = nodes * each
    if isinstance(position := found.get("position_embedding_type"), str):
        found["position_embedding_type"] = position.lower()
    return {name: value for name, value in found.items() if value is not None}


def _tokenizer(job: Settings) -> dict[str, object]:
    library, *others = (f"tokenizer.{name}" for name in ("library", "type", "model", "vocab_file", "merge_file"))
    name, model, vocabulary, merges = map(job.args.raw, others)
    kind = None if job.args.raw(library) is None else job.one_of(library, "libraries")
    if kind is not None:
        return {"tokenizer_type": kind, "tokenizer_model": name if kind == "HuggingFaceTokenizer" else model}
    return {"tokenizer_type": name, "vocab_file": vocabulary, "merge_file": merges}


def _optimizer(job: Settings) -> dict[str, object]:
    name = job.args.text("optim.name")
    gradients, parameters = (job.args.flag(f"optim.overlap_{kind}_sync") for kind in ("grad", "param"))
    sharded = name in job.dialect.tables["sharded"]
    return {
        "optimizer": named(name) if name else "adam",
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": gradients if sharded else None,
        "overlap_param_gather": parameters if sharded else None,
    }
