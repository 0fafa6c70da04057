"""Reads arguments of trainers on Hugging Face's ``Trainer`` (LLaMA-Factory, ms-swift, Axolotl, TRL) from a file or a command
line, as far as ``dialects/{trainer,llama_factory,swift,axolotl,trl}.yaml`` cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.intake import adapters, script_files
from projector.intake.dialect import BUNDLES, dialect, loose
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.intake.shell.unknown import Unknowns
from projector.intake.values import Reader, section
from projector.io.documents import as_mapping, parse_yaml
from projector.io.files import read_text
from projector.workload.model import Model

#: huggingface/transformers v4.36.0 (December 2023): its models without another word call scaled_dot_product_attention.
_SINCE = "attention of transformers 4.36 and later (before it scores lie in memory: --attention-backend unfused)"
#: huggingface/transformers v5.0.0 (January 2026), integrations/moe.py: one grouped product without another word.
_EXPERTS = "experts of transformers 5 and later, grouped (before it they run in a loop: --moe-grouped-gemm loop)"
_WIDE_EXPERTS = "their weights in 16 bits (bitsandbytes quantises linear layers, such as experts in a loop)"
_WHOLE = "data_parallel_sharding=no_shard (neither FSDP nor DeepSpeed is stated; a file of accelerate's beside it may)"
#: huggingface/transformers v5.0.0, modeling_utils.py from_pretrained: a checkpoint's type without another word.
_FP32 = "weights of fp32, as transformers before 5 loads them (later ones keep the checkpoint's type: torch_dtype states it)"
#: Programs that load weights in fp32 where nothing states their type (TRL: trl/trainer/model_config.py, ``dtype``).
_LOADS_FP32 = ("trainer", "trl")
_PEFT = "adapters on the queries and values, as peft puts them for most decoders (lora_target states others)"
#: Keys by which programs of their own choose what is trained, as far as no tool's dialect has them.
_TUNING = re.compile(
    r"(?!(?:tuner|train)_type$|.*(?:path|dir|file|prefix)$)(?:\w+_)?"
    r"(?:[a-z]*tun(?:e|er|ing)|peft|adapters?|method|mode|training)(?:_\w+)?"
)
_UNSWITCHED = "adapters, since a rank or layers of theirs are stated and no switch (use_lora=false: none)"
_PREFERENCES = re.compile(r"(?<![a-z])(?:dpo|ppo|grpo|orpo|kto|rlhf|reward)(?![a-z])")
_EVERYWHERE = "over all ranks without --data-parallel-shard-size"
#: The stage in the name of a file of DeepSpeed's, and that it keeps states on the host (ds_z3_config, zero2_offload).
_STAGE = re.compile(r"(?:zero|(?<![a-z])z|stage)[-_]?(?:stage)?[-_]?([0-3])(?![\d/])[^/]*$", re.IGNORECASE)
_OFFLOAD = re.compile(r"^(?!.*no[-_]?off).*offload", re.IGNORECASE)
_BY_NAME = "read by its name"
_ABOVE = 4  # folders in which a path of the configuration is looked for


def _mapping(value: object, where: str, setting: str, problems: list[Problem]) -> dict[str, object]:
    """Returns ``value``, or the content of the JSON file so named beside ``where`` or in a folder above."""
    if isinstance(value, Mapping):
        return dict(value)
    if value is True:
        problems.append(Problem(where, setting, "a switch without a file", "the file with its configuration"))
        return {}
    folders = Path(where).resolve().parents[:_ABOVE]
    file = next((path for folder in folders if (path := folder / str(value)).is_file()), None)
    stage = _STAGE.search(str(value)) if setting == "deepspeed" else None
    if file is None and stage:
        off = {"offload_optimizer": {"device": "cpu"}} if _OFFLOAD.search(str(value)) else {}
        return {"zero_optimization": {"stage": int(stage[1]), **off}, _BY_NAME: value}
    if file is None:
        problems.append(Problem(where, setting, value, "that file beside the configuration"))
        return {}
    return dict(as_mapping(parse_yaml(read_text(file), str(file)), str(file), "a mapping"))


def with_files(content: Mapping[str, object], where: str) -> dict[str, object]:
    """Returns ``content`` with the files that ``fsdp_config`` and ``deepspeed`` name read in. Raises :class:`InputError`."""
    problems: list[Problem] = []
    named = {
        key: _mapping(content[key], where, key, problems) for key in ("fsdp_config", "deepspeed") if content.get(key)
    }
    raise_all(problems)
    return {**content, **named}


def _with_deepspeed_values(content: Mapping[str, object], where: str) -> dict[str, object]:
    """Returns ``content`` with batch and type of DeepSpeed's configuration where the arguments leave them open.

    Raises :class:`InputError` where the two contradict each other: transformers refuses to start then
    (huggingface/transformers v5.0.0, integrations/deepspeed.py, ``fill_match``).
    """
    held = section(content, "deepspeed")
    said = {
        "per_device_train_batch_size": held.get("train_micro_batch_size_per_gpu"),
        "gradient_accumulation_steps": held.get("gradient_accumulation_steps"),
    }
    said |= {key: True for key in ("bf16", "fp16") if section(held, key).get("enabled") is True}
    said = {key: value for key, value in said.items() if value not in (None, "auto")}
    problems = [
        Problem(where, key, content[key], f"{value}, as DeepSpeed's configuration says, or auto there")
        for key, value in said.items()
        if content.get(key) is not None and str(content[key]).lower() != str(value).lower()
    ]
    raise_all(problems)
    return {**content, **said}


def _zero(job: Settings) -> tuple[str, ...]:
    """Puts DeepSpeed's configuration into the job's fields; returns the settings that are not modelled."""
    held = dict(job.args.raw("deepspeed"))  # type: ignore[call-overload]
    name = held.pop(_BY_NAME, None)
    stated, _ = script_files.deepspeed_arguments(json.dumps(held), f"{job.where}: deepspeed", Unknowns())
    job.fields |= BUNDLES[f"zero {stated['zero_stage']}"]
    if "optimizer_cpu_offload" in stated:
        job.fields["optimizer_cpu_offload"] = stated["optimizer_cpu_offload"]
    aside = dialect("deepspeed").tables["aside"]
    told = [f"deepspeed {key}={inner}" for key, inner in stated.items() if "." in key or key in aside]
    unseen = f"what {name} says, which is not at hand, but for its name: ZeRO-{stated['zero_stage']}"
    return (*told, *((unseen,) if name else ()))


def _sharded(job: Settings) -> tuple[str, ...]:
    """Puts sharding by DeepSpeed or torch's FSDP 1 (``fsdp`` and words with a prefix) or 2 (``version``) into the job's
    fields; returns the settings that are not modelled."""
    if job.args.raw("deepspeed"):
        return _zero(job)
    stated = ("true",) if job.args.raw("fsdp") is True else job.args.words("fsdp") or ()
    words = [word.lower() for word in stated if word.lower() not in ("auto_wrap", "false", "")]
    strategy = job.args.raw("fsdp_config.sharding_strategy")
    named = [str(strategy).lower()] if strategy else [word for word in words if word not in ("offload", "true")]
    on = bool(words or strategy or any(key.startswith("fsdp_config.") for key in job.stated))
    known = job.dialect.tables["sharding"]
    wrong = [word for word in dict.fromkeys((*words, *named)) if word not in (*known, "offload", "true")]
    job.args.problems += [("fsdp", word, f"one of {', '.join(known)}") for word in wrong]
    job.fields |= BUNDLES["zero 3" if on else "zero 0"]
    for word in named:
        job.fields |= BUNDLES[known.get(word, "zero 3")]
    if "offload" in words:
        job.fields["optimizer_cpu_offload"] = True
    shared = [word for word in named if word in job.dialect.tables["hybrid"]]
    return tuple(f"fsdp={word} (shards inside a node; {_EVERYWHERE})" for word in shared)


def finished(job: Settings, model: Model | None, *, named: str, told: tuple[str, ...]) -> Loaded:
    """Returns the workload of a read job. ``named``: the setting that names the model; ``told``: more doubts.

    Raises :class:`InputError` with all that is wrong.
    """
    name = job.args.text(named)
    model = model or job.published(named)
    if model and model.vision:
        job.fields.setdefault("freeze_vision_model", job.args.flag("freeze_vision_tower"))
    framework = "deepspeed" if job.stated.get("deepspeed") else "pytorch"
    typed = job.fields["precision"] != "fp32" or job.args.has("bf16", "fp16", "pure_bf16")
    plain = () if typed else ("precision=fp32 (neither bf16 nor fp16 is stated)",)
    if job.fields["precision"] == "fp32" and job.args.flag("tf32"):
        told = (*told, "tf32=True (products of fp32 by fewer bits)")
    if job.fields.get("attention_backend") is None:
        plain = (*plain, _SINCE)
    whole = job.fields["data_parallel_sharding"] == "no_shard" and framework == "pytorch"
    loaded = framework == "pytorch" and (whole or job.fields.get("lora")) and not job.args.has("torch_dtype")
    if job.dialect.name in _LOADS_FP32 and loaded and job.fields["precision"] != "fp32":
        plain = (*plain, _FP32)
    if model and model.moe and framework == "pytorch" and job.fields.get("moe_grouped_gemm") is None:
        plain = (*plain, _EXPERTS, *((_WIDE_EXPERTS,) if adapters.quantised(job) else ()))
    if whole:
        plain = (*plain, _WHOLE)
    if job.fields.get("lora") and "use_lora" in job.stated and not job.stated.get("lora_target"):
        plain = (*plain, _PEFT)
    return job.loaded(
        model,
        told=told,
        framework=framework,
        samples_per_rank=job.fields["global_batch_size"],
        assumed=(f"framework={framework}", f"model={model.name if model else name} ({name})", *plain),
    )


def _with_chat_switches(content: Mapping[str, object]) -> Mapping[str, object]:
    """Returns ``content`` with the DeepSpeed configuration that switches make (deepspeedai/DeepSpeedExamples@45b4b715
    applications/DeepSpeed-Chat/training/step1_supervised_finetuning/main.py, dschat/utils/ds_utils.py)."""
    if content.get("deepspeed") is not True or "zero_stage" not in content:
        return content
    rest = {key: value for key, value in content.items() if key not in ("zero_stage", "offload", "dtype", "lora_dim")}
    off = {f"offload_{part}": {"device": "cpu"} for part in ("optimizer", "param") if content.get("offload")}
    rank = content.get("lora_dim") or 0
    adapters = (
        {"use_lora": True, "lora_rank": rank, "lora_target": "all-linear", "only_optimize_lora": False} if rank else {}
    )
    given = {"per_device_train_batch_size": 16, "max_seq_len": 512, str(content.get("dtype", "fp16")): True}
    return {**given, **adapters, **rest, "deepspeed": {"zero_optimization": {"stage": content["zero_stage"], **off}}}


def load_trainer(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of ``Trainer`` arguments, whose number of GPUs comes from elsewhere. Raises :class:`InputError`
    with everything that does not fit, :class:`Unsupported` for other trainings."""
    if dialect("llama_factory").fits(content):
        return load_llama_factory(content, where, model=model)
    whole = {"packing": True} if "block_size" in content else None  # run_clm.py, group_texts: joined, then cut
    chat = _with_chat_switches(content)
    said = _with_adapters(chat, where)
    job = Settings(dialect("trainer"), _with_deepspeed_values(with_files(said, where), where), where, preset=whole)
    loaded = _fine_tuned(job, model)
    inferred = "use_lora" in said.keys() - chat.keys() and "train_mode" not in said
    assumed = (*loaded.assumed, *((_UNSWITCHED,) if inferred else ()))
    return replace(loaded, assumed=assumed, unmodelled=(*loaded.unmodelled, *_of_folder(where)))


def _of_folder(where: str) -> tuple[str, ...]:
    """Returns the doubt about a program whose arguments do not say what it trains, where the script's name or folder does
    (deepspeedai/DeepSpeedExamples applications/DeepSpeed-Chat/training/step2_reward_model_finetuning)."""
    names = Path(where).parts[-5:]
    named = next((name for name in names[::-1] if _PREFERENCES.search(name.lower())), "")
    plain = not named or any(re.search(r"sft|supervised|pretrain", name.lower()) for name in names)
    return (
        () if plain else (f"preference training, as {named} names it: pairs of samples, a reward or a reference model",)
    )


def load_trl(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of TRL's ``sft``, whose number of GPUs comes from elsewhere. Raises as :func:`load_trainer`."""
    of, named = dialect("trl"), content.get("accelerate_config")
    presets = of.tables["presets"]
    if named is not None and named not in presets:
        expected = f"one of {', '.join(presets)}, or its file with accelerate launch --config_file"
        raise InputError([Problem(where, "accelerate_config", named, expected)])
    half = not content.get("fp16") if content.get("bf16") is None else content["bf16"]
    return _fine_tuned(
        Settings(of, with_files({**content, **presets.get(named, {}), "bf16": half}, where), where), model
    )


def _with_adapters(content: Mapping[str, object], where: str) -> Mapping[str, object]:
    """Returns ``content`` with the switch of adapters that a program of their own has none of: a stated mode
    (yangjianxin1/Firefly train.py, ``train_mode``; lora at another key that speaks of tuning), else a rank or layers. Raises
    :class:`InputError` for another mode, :class:`Unsupported` for other adapters."""
    ways = {"full": (False, False), "lora": (True, False), "qlora": (True, True)}
    if content.get("train_mode") is None:
        told = {key: str(value).lower() for key, value in content.items() if _TUNING.fullmatch(str(key))}
        if others := [f"{key}={told[key]}" for key in told if told[key] in dialect("trainer").tables["adapters"]]:
            raise Unsupported(f"{where}: {dialect('trainer').title} with {others[0]}: adapters of another kind")
        content = {"train_mode" if told.get(key) in ("lora", "qlora") else key: content[key] for key in content}
    mode = content.get("train_mode")
    mode = mode.lower() if isinstance(mode, str) else mode
    if mode not in (None, *ways):
        raise InputError([Problem(where, "train_mode", mode, f"one of {', '.join(ways)}")])
    today = dialect("trainer").today
    stated = {today(str(key)) for key, value in content.items() if value is not None and str(value) != "0"}
    on, few = ways[str(mode)] if mode else (bool(stated & {"lora_rank", "lora_target"}), False)
    switch = {} if stated & {"use_lora", "lora_enable", "use_qlora"} or not (on or mode) else {"use_lora": on}
    return {**content, **switch, **({"load_in_4bit": True} if few else {})}


def _fine_tuned(job: Settings, model: Model | None) -> Loaded:
    args = job.args
    if args.flag("use_lora"):
        adapters.put(job, args.integer("lora_rank"), args.words("lora_target") or ("q_proj", "v_proj"))
        if args.flag("only_optimize_lora") is False:
            job.doubts.append("only_optimize_lora=False (embeddings, norms and the output layer are trained, too)")
    told = () if args.flag("packing") else (loose(job.fields["seq_length"]),)
    return _trained(job, model, args.flag("bf16"), told)


def load_llama_factory(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of a LLaMA-Factory configuration without its GPUs. Raises as :func:`load_trainer`."""
    job = Settings(dialect("llama_factory"), _with_deepspeed_values(with_files(content, where), where), where)
    args = job.args
    if not args.flag("do_train") and (args.flag("do_predict") or args.flag("do_eval")):
        raise Unsupported(f"{where}: a LLaMA-Factory configuration without do_train: nothing is trained")
    packing, neat = args.flag("packing"), args.flag("neat_packing")
    if args.word("finetuning_type") == "lora":
        adapters.put(job, args.integer("lora_rank"), args.words("lora_target"))
    unpacked = not (packing or neat) and (args.word("stage") == "sft" or packing is False)
    told = (loose(job.fields["seq_length"]),) if unpacked else ()
    if neat:
        told = ("neat_packing=True (attention inside each document: counted over the whole sample)", *told)
    return _trained(job, model, args.flag("bf16") or args.flag("pure_bf16"), told)


def _trained(job: Settings, model: Model | None, half: bool | None, told: tuple[str, ...]) -> Loaded:
    """Puts types, batch and sharding of ``TrainingArguments`` into the job's fields and returns the workload."""
    args = job.args
    job.fields |= {
        "precision": "bf16" if half else "fp16" if args.flag("fp16") else "fp32",
        "global_batch_size": _accumulated(args, "per_device_train_batch_size"),
    }
    told = (*told, *_sharded(job))
    adapters.unpaired(job)
    _loaded_type(job, half)
    return finished(job, model, named="model_name_or_path", told=told)


def _loaded_type(job: Settings, half: bool | None) -> None:
    """Puts the effect of the loaded weights' type into the job's fields: the optimizer steps on weights of that type, except
    under DeepSpeed, which holds fp32 copies, and FSDP beside ``bf16``, where accelerate casts; adapters keep their type, and
    the frozen weights below them that of the file, except under DeepSpeed, which makes all of them 16 bits wide."""
    weights, lora = job.args.word("torch_dtype"), job.fields.get("lora")
    deepspeed, sharded = job.stated.get("deepspeed"), job.fields["data_parallel_sharding"] != "no_shard"
    if weights in (None, "auto", "fp32"):
        plain = weights == "fp32" or (weights is None and job.dialect.name in _LOADS_FP32)
        wide = plain and job.fields["precision"] != "fp32" and not deepspeed and not adapters.quantised(job)
        if wide and isinstance(lora, dict):
            lora["frozen_dtype"] = "fp32"
        return
    if weights != "bf16" or job.args.flag("fp16") or (half and sharded and not deepspeed) or (deepspeed and not half):
        job.doubts.append(f"torch_dtype={weights}")
    elif not deepspeed:
        job.fields |= {"precision": "bf16", **({} if job.fields.get("lora") else BUNDLES["bf16 alone"])}


def _accumulated(args: Reader, each: str) -> int:
    return (args.integer(each) or 1) * (args.integer("gradient_accumulation_steps") or 1)


def load_swift(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of ``swift sft`` or ``swift pt`` without its GPUs. Raises as :func:`load_trainer`."""
    of = dialect("swift")
    content = {**content, **of.tables["presets"].get(str(content.get("fsdp")), {})}
    if preset := re.fullmatch(r"zero([0-3])(_offload)?", str(content.get("deepspeed"))):
        parts = ("optimizer", "param") if preset[1] == "3" else ("optimizer",)
        off = {f"offload_{part}": {"device": "cpu"} for part in parts if preset[2]}
        content = {
            **content,
            "deepspeed": {"zero_optimization": {"stage": int(preset[1]), "overlap_comm": False, **off}},
        }
    half = content.get("torch_dtype") in (None, "bfloat16")  # a model's own type, which is bf16 for all of today's
    content = {**content, **({} if {"bf16", "fp16"} & {*content} else {"bf16" if half else "fp16": True})}
    job = Settings(of, with_files(content, where), where)
    if job.fields["seq_length"] is None:
        job.args.problems.append(("max_length", "nothing", "tokens of a sample: max_length, or --seq N"))
    if job.args.word("tuner_type") == "lora":
        adapters.put(job, job.args.integer("lora_rank"), job.args.words("target_modules"))
    told = () if job.args.flag("packing") else (loose(job.fields["seq_length"]),)
    return _trained(job, model, job.args.flag("bf16"), told)


def load_axolotl(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """Returns the workload of an Axolotl configuration without its GPUs. Raises as :func:`load_trainer`."""
    job = Settings(dialect("axolotl"), with_files(content, where), where)
    args, fields = job.args, job.fields
    packed = args.flag("sample_packing")
    if packed is None and args.raw("pretraining_dataset"):
        packed = True
    fields.setdefault("precision", "fp32")
    fields["global_batch_size"] = _accumulated(args, "micro_batch_size")
    replicas, shards = args.integer("dp_replicate_size") or 1, args.integer("dp_shard_size")
    if shards is not None and shards > 1:
        fields["data_parallel_shard_size"] = shards * (fields["cp"] or 1)  # type: ignore[operator]
    if args.word("adapter"):
        every = ("all-linear",) if args.flag("lora_target_linear") else ()
        adapters.put(job, args.integer("lora_r"), (*every, *(args.words("lora_target_modules") or ())))
    inside = "sample_packing=True (attention inside each document: counted over the whole sample)"
    filled = (inside,) if packed else () if args.flag("pad_to_sequence_len") else (loose(fields["seq_length"]),)
    told = (*filled, *_sharded(job))
    adapters.unpaired(job)
    # accelerate keeps weights in fp32 under the first FSDP beside bf16: huggingface/accelerate@16cb6eb8 accelerator.py
    # prepare_model; under the second Axolotl's own monkeypatch/accelerate/fsdp2.py leaves them as they are
    second = 2 in (args.integer("fsdp_version"), args.integer("fsdp_config.version"))
    pure = (
        "full" in (args.raw("bf16"), args.raw("bfloat16")) or fields["data_parallel_sharding"] == "no_shard" or second
    )
    if not args.raw("deepspeed") and fields["precision"] == "bf16" and pure:
        fields |= BUNDLES["bf16 alone"]
    if fields["data_parallel_sharding"] == "no_shard" and (shards or 1) > 1:
        args.problems.append(("dp_shard_size", shards, "fsdp_config beside it"))
    elif replicas > 1 and (shards or 1) == 1:
        told = (*told, f"dp_replicate_size={replicas} ({_EVERYWHERE})")
    return finished(job, model, named="base_model", told=told)
