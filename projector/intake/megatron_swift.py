"""Reads ``megatron sft`` and ``megatron pt`` of ms-swift: Megatron-LM arguments with values, over a published model.

Names and defaults: ``dialects/ms_swift.yaml``. How many processes it starts, and arguments in a YAML or JSON file as the
first word: modelscope/ms-swift@3602360a5 swift/cli/main.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.intake.assemble import Origin, assemble
from projector.intake.dialect import dialect, loose
from projector.intake.loaded import Loaded
from projector.intake.named_models import OTHERS, published
from projector.intake.script_files import mapping_beside, options, uncounted, unsettled
from projector.intake.settings import Settings
from projector.intake.shell.launch import Launch, Way, product
from projector.intake.shell.unknown import Unknown, Unknowns, is_known
from projector.intake.values import literal
from projector.workload.model import Model


def takes(launch: Launch) -> bool:
    """Returns whether ``launch`` starts ``megatron sft`` or ``megatron pt``."""
    return launch.program == "megatron" and launch.arguments[:1] in (("sft",), ("pt",))


def of_dump(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of an ``args.json``, which does not state the number of GPUs. Raises as :func:`load`."""
    stated = {key: value for key, value in content.items() if value not in (None, [], {})}
    words = [word for key, value in stated.items() for word in (f"--{key}", *_as_words(value))]
    launch = Launch("megatron", ("sft", *words), (), {}, where, 0, "")
    return load(launch, Way((), Unknowns(), {}), where, model, gpus_given=True)


def load(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """Returns the workload of ``launch``. Raises :class:`InputError` for what only the run knows, and
    :class:`Unsupported` for other trainings."""
    launch = _with_file(launch, way, where)
    given = options(launch.arguments[1:])
    args: dict[str, object] = {}
    unknown: dict[str, tuple[Unknown, ...]] = {}
    for name, values in given.items():
        text = " ".join(values)
        if is_known(text):
            args[name] = literal(text) if text else True
        else:
            unknown[name] = way.unknowns.within(text)
    method = f"{where}: megatron {launch.arguments[0]}"
    if "rlhf_type" in unknown or "teacher_model" in unknown:
        raise Unsupported(f"{method}: preference training or distillation")
    if args.get("freeze_vit") is False:
        raise Unsupported(f"{method} --freeze_vit false: weights of a vision tower are trained")
    job = Settings(dialect("ms_swift"), args, where)
    base = model or _published(args, unknown, where)
    settled = _arguments(job, base)
    problems = unsettled(settled, {name: marks for name, marks in unknown.items() if name in job.fields}, base, where)
    left = job.unread(written=True)
    problems += [*job.problems, *left.problems]
    tokens = settled.get("seq_length")
    if not isinstance(tokens, int):
        problems.append(Problem(where, "max_length", tokens or "nothing", "tokens of a sample, or --seq N"))
    number = product(way.unknowns, *(_processes(name, launch, way) for name in ("NPROC_PER_NODE", "NNODES")))
    if not is_known(number) and not gpus_given:
        problems.append(uncounted(way.unknowns.within(number), where))
    raise_all(problems)
    gpus = int(number) if is_known(number) and not gpus_given else None
    if gpus is not None:
        settled["world_size"] = gpus
    loaded = assemble(settled, Origin(where=where, name=base.name, base=base))
    counted = (f"gpus={gpus} (NNODES × NPROC_PER_NODE)",) if gpus is not None else ()
    # swift/dataset/packing.py: bins of whole samples, which nothing fills up (padding_free)
    packed = f"packing=True (at most {tokens} tokens of several documents: counted as one of so many)"
    full = packed if job.args.flag("packing") else loose(tokens)
    named = () if model else (f"model={base.name} ({_named(args)})",)
    return replace(
        loaded,
        assumed=(*counted, *named, *loaded.assumed),
        ignored=(*loaded.ignored, *left.neutral),
        unmodelled=(full, *job.doubtful(), *loaded.unmodelled, *left.unmodelled),
    )


def _with_file(launch: Launch, way: Way, where: str) -> Launch:
    """Returns ``launch`` with the file that its first word names: the file's arguments before those of the command line,
    the file's environment (``ENV``) under that of the launch."""
    method, *words = launch.arguments
    if not words or not re.fullmatch(r"[^-].*\.(?:ya?ml|json)", words[0]):
        return launch
    content = mapping_beside(words[0], launch, way, where, launch.place)
    environment = content.pop("ENV", None)
    stated = {str(k): str(v) for k, v in environment.items()} if isinstance(environment, Mapping) else {}
    before = [word for key, value in content.items() for word in (f"--{key}", *_as_words(value))]
    return replace(launch, arguments=(method, *before, *words[1:]), environment={**stated, **launch.environment})


def _as_words(value: object) -> list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    return [json.dumps(value) if isinstance(value, Mapping) else str(value)]


def _arguments(job: Settings, base: Model) -> dict[str, object]:
    args, tables = job.args, job.dialect.tables
    stated = {name: value for name, value in job.fields.items() if value is not None}
    settled = {**(tables["experts"] if base.moe else {}), **stated}
    if settled["recompute_granularity"] != "selective":
        settled.pop("recompute_modules", None)
    if settled.get("fp16"):
        settled["bf16"] = False
    if settled["tensor_model_parallel_size"] == 1:
        settled["sequence_parallel"] = False
    if "muon" in str(settled.get("optimizer")):
        settled["use_distributed_optimizer"] = False
    if "lora" in (job.stated.get("tuner_type"), job.stated.get("train_type")):
        targets = args.raw("target_modules")
        names = tables["adapted"] if targets == "all-linear" else str(targets).split()
        settled["lora"] = {"enabled": True, "dim": args.integer("lora_rank"), "target_modules": names}
    return settled


def _published(args: Mapping[str, object], unknown: Mapping[str, object], where: str) -> Model:
    """Returns the zoo's model that ``--model`` names, whatever the edition (Instruct, Base)."""
    text = "a variable that nothing sets" if "model" in unknown else _named(args)
    found = published(text)
    if found is None:
        raise InputError([Problem(where, "model", text or "nothing", OTHERS)])
    return found


def _named(args: Mapping[str, object]) -> str:
    return str(args.get("model") or args.get("mcore_model") or args.get("load") or "")


def _processes(name: str, launch: Launch, way: Way) -> str:
    """Returns the count ``name`` of the environment; 1 where neither count is set, since nothing then starts more."""
    if launch.environment.get(name):
        return launch.environment[name]
    other = {"NPROC_PER_NODE": "NNODES", "NNODES": "NPROC_PER_NODE"}[name]
    if name == "NNODES" or other not in launch.environment:
        return "1"
    return way.unknowns.mark(Unknown(f"{name} (not set)", f"--env {name}=…"))
