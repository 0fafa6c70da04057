"""``megatron sft`` and ``megatron pt`` of ms-swift: Megatron-LM's arguments with a value each, over a published model.

What is not given: modelscope/ms-swift@3602360a5 swift/megatron/arguments/megatron_args.py; how many processes it starts:
swift/cli/main.py there; so are the arguments that stand in a YAML or JSON file as the first word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.script_files import text_beside
from projector.intake.script_problems import uncounted, unsettled
from projector.intake.shell import Launch
from projector.intake.shell.evaluate import Way
from projector.intake.shell.launch import product
from projector.intake.shell.unknown import Unknown, Unknowns, is_known
from projector.intake.values import literal
from projector.io.files import as_mapping, parse_yaml
from projector.workload import zoo
from projector.workload.model import Model

_DEFAULTS: Mapping[str, object] = {
    "micro_batch_size": 1, "global_batch_size": 16, "recompute_granularity": "selective", "recompute_modules": "core_attn",
    **{f"{name}_parallel_size": 1 for name in ("tensor_model", "pipeline_model", "context", "expert_model")},
    "bf16": True, "sequence_parallel": False, "use_distributed_optimizer": True, "cross_entropy_loss_fusion": True,
    "overlap_grad_reduce": False, "overlap_param_gather": False, "tp_comm_overlap": False, "mtp_num_layers": 0,
    "optimizer_cpu_offload": False, "use_precision_aware_optimizer": False,
}  # fmt: skip
_OF_EXPERTS = {"moe_grouped_gemm": True, "moe_permute_fusion": False, "moe_token_dispatcher_type": "alltoall"}
#: Taken as Megatron-LM has them.
_SAME = {
    *(_DEFAULTS.keys() | _OF_EXPERTS.keys()),
    *("recompute_method", "recompute_num_layers", "optimizer", "moe_enable_deepep", "moe_shared_expert_overlap"),
    *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "moe_layer_recompute"),
    *("virtual_pipeline_model_parallel_size", "microbatch_group_size_per_vp_stage", "pipeline_model_parallel_layout"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "cp_comm_type", "main_grads_dtype"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "use_megatron_fsdp"),
    "expert_tensor_parallel_size",
    *("data_parallel_sharding_strategy", "fp8_recipe", "fp8_param_gather", "main_params_dtype", "exp_avg_dtype"),
    *("exp_avg_sq_dtype", "optimizer_offload_fraction", "overlap_p2p_comm", "fp16", "manual_gc", "manual_gc_steps"),
}  # fmt: skip
_REFUSED = {
    "rlhf_type": "preference training", "teacher_model": "distillation", "fp4_format": "FP4", "freeze_llm": "frozen weights",
    "freeze_parameters": "frozen weights", "freeze_parameters_ratio": "frozen weights",
}  # fmt: skip
_ADAPTED = [f"linear_{name}" for name in ("qkv", "proj", "fc1", "fc2", "q_proj", "q_down_proj", "q_up_proj", "kv_down_proj",
                                          "kv_up_proj")]  # fmt: skip


def takes(launch: Launch) -> bool:
    """Whether ``launch`` is one of them."""
    return launch.program == "megatron" and launch.arguments[:1] in (("sft",), ("pt",))


def is_dump(content: Mapping[str, object]) -> bool:
    """Whether ``content`` is the ``args.json`` that a run writes beside its checkpoints."""
    return {"model", "template", "max_length", "micro_batch_size", "tensor_model_parallel_size"} <= set(content)


def of_dump(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of an ``args.json``, which does not say on how many GPUs it ran. Raises as :func:`load`."""
    stated = {key: value for key, value in content.items() if value not in (None, [], {})}
    words = [word for key, value in stated.items() for word in (f"--{key}", *_words(value))]
    launch = Launch("megatron", ("sft", *words), (), {}, where, 0, "")
    return load(launch, Way((), Unknowns(), {}), where, model, gpus_given=True)


def load(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """The workload of ``launch``. Raises :class:`InputError` for what only the run knows, :class:`Unsupported` for other
    trainings, and for samples that are not packed: how many tokens they have nothing says."""
    launch = _with_file(launch, way, where)
    given = _options(launch.arguments[1:])
    args: dict[str, object] = {}
    unknown: dict[str, tuple[Unknown, ...]] = {}
    for name, values in given.items():
        text = " ".join(values)
        if is_known(text):
            args[name] = literal(text) if text else True
        else:
            unknown[name] = way.unknowns.within(text)
    for name, what in _REFUSED.items():
        if args.get(name) not in (None, False, 0, 0.0, "") or name in unknown:
            raise Unsupported(f"megatron {launch.arguments[0]} --{name}: {what}")
    tuner = args.get("tuner_type", args.get("train_type", "full"))
    if tuner not in ("full", "lora") or args.get("freeze_vit") is False:
        raise Unsupported(f"megatron {launch.arguments[0]} --tuner_type {tuner}: weights of a vision tower are trained")
    if args.get("task_type", "causal_lm") != "causal_lm":
        raise Unsupported(f"megatron {launch.arguments[0]} --task_type {args['task_type']}: no causal language model")
    if args.get("packing") is not True:
        raise Unsupported(
            f"megatron {launch.arguments[0]} without --packing true: samples of lengths that nothing states"
        )
    base = model or _published(args, unknown, where)
    settled = _arguments(args, base)
    problems = unsettled(settled, {name: marks for name, marks in unknown.items() if name in _SAME}, base, where)
    if not isinstance(args.get("max_length"), int):
        problems.append(Problem(where, "max_length", args.get("max_length", "nothing"), "tokens of a packed sample"))
    number = product(way.unknowns, *(_processes(name, launch, way) for name in ("NPROC_PER_NODE", "NNODES")))
    if not is_known(number) and not gpus_given:
        problems.append(uncounted(way.unknowns.within(number), where))
    if problems:
        raise InputError(problems)
    gpus = int(number) if is_known(number) and not gpus_given else None
    if gpus is not None:
        settled["world_size"] = gpus
    loaded = assemble(settled, Origin(where=where, name=base.name, base=base))
    counted = (f"gpus={gpus} (NNODES × NPROC_PER_NODE)",) if gpus is not None else ()
    named = () if model else (f"model={base.name} ({args['model']})",)
    return replace(loaded, assumed=(*counted, *named, *loaded.assumed))


def _with_file(launch: Launch, way: Way, where: str) -> Launch:
    """``launch`` with what the file of its first word says: arguments before those of the command line, an environment
    (``ENV``) under its own."""
    method, *words = launch.arguments
    if not words or not re.fullmatch(r"[^-].*\.(?:ya?ml|json)", words[0]):
        return launch
    text = text_beside(words[0], launch, way)
    if text is None:
        shown = way.unknowns.shown(words[0])
        raise InputError([Problem(where, launch.place, f"megatron {method} {shown}", "that file beside the script")])
    content = dict(as_mapping(parse_yaml(text, words[0]), words[0], "a mapping"))
    environment = content.pop("ENV", None)
    stated = {str(k): str(v) for k, v in environment.items()} if isinstance(environment, Mapping) else {}
    before = [word for key, value in content.items() for word in (f"--{key}", *_words(value))]
    return replace(launch, arguments=(method, *before, *words[1:]), environment={**stated, **launch.environment})


def _words(value: object) -> list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    return [json.dumps(value) if isinstance(value, Mapping) else str(value)]


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return found


def _arguments(args: Mapping[str, object], base: Model) -> dict[str, object]:
    """Megatron-LM's, with ms-swift's defaults."""
    settled = {**_DEFAULTS, **(_OF_EXPERTS if base.moe else {})} | {key: args[key] for key in args if key in _SAME}
    if settled["recompute_granularity"] != "selective":
        settled.pop("recompute_modules")
    if settled.get("fp16"):
        settled["bf16"] = False
    if settled["tensor_model_parallel_size"] == 1:
        settled["sequence_parallel"] = False
    if "muon" in str(settled.get("optimizer")):
        settled["use_distributed_optimizer"] = False
    if "fp8_format" in args:
        settled["fp8"] = args["fp8_format"]
    if args.get("tuner_type", args.get("train_type", "full")) == "lora":
        targets = args.get("target_modules", "all-linear")
        names = _ADAPTED if targets == "all-linear" else str(targets).split()
        settled["lora"] = {"enabled": True, "dim": args.get("lora_rank", 8), "target_modules": names}
    return {**settled, "seq_length": args.get("max_length")}


def _published(args: Mapping[str, object], unknown: Mapping[str, object], where: str) -> Model:
    """The model of the zoo whose name or alias is all that ``--model`` says, but for the edition."""
    text = str(args.get("model") or args.get("mcore_model") or args.get("load") or "")
    if found := zoo.named(text):
        return zoo.load(found)
    shown = "a variable that nothing sets" if "model" in unknown else text or "nothing"
    raise InputError([Problem(where, "model", shown, "--model NAME|FILE: a model of the zoo, or its config.json")])


def _processes(name: str, launch: Launch, way: Way) -> str:
    """A count of the environment; one where neither of the two is set, since nothing then starts more."""
    if launch.environment.get(name):
        return launch.environment[name]
    other = {"NPROC_PER_NODE": "NNODES", "NNODES": "NPROC_PER_NODE"}[name]
    if name == "NNODES" or other not in launch.environment:
        return "1"
    return way.unknowns.mark(Unknown(f"{name} (not set)", f"--env {name}=…"))
