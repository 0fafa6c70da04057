"""LitGPT's configurations of pre-training (``model_name``, ``train``, ``data``): FSDP of a compiled model.

Words and defaults: Lightning-AI/litgpt@26857050 litgpt/pretrain.py ``setup``, litgpt/args.py ``TrainArgs``; which data sets
fill every sample: litgpt/data.
"""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import InputError, Problem, Unsupported
from projector.intake import known_settings
from projector.intake.loaded import Loaded
from projector.intake.shell.lists import word_set
from projector.intake.values import Reader, section
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe

#: Data sets that are cut into blocks of ``max_seq_length`` tokens.
_WHOLE = ("TinyLlama", "MicroLlama", "OpenWebText", "TextFiles", "TinyStories", "LitData")
_PRECISIONS = {"bf16-mixed": "bf16", "bf16-true": "bf16", "32-true": "fp32"}
_TYPES = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_MICRO, _GLOBAL = 4, 512  # samples
#: What changes neither seconds nor bytes.
_NEUTRAL = word_set(
    """
    model_name model_config out_dir precision initial_checkpoint_dir resume data eval log optimizer devices num_nodes
    tokenizer_dir logger_name seed save_interval log_interval lr_warmup_steps lr_warmup_fraction epochs max_tokens
    max_steps max_time max_norm min_lr train
    """
)


def is_litgpt(content: Mapping[str, object]) -> bool:
    """Whether ``content`` states a training of LitGPT's."""
    names = {"micro_batch_size", "global_batch_size", "lr_warmup_steps"}
    return bool({"model_name", "checkpoint_dir"} & set(content)) and bool(names & set(section(content, "train")))


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration. Raises :class:`InputError` with everything that does not fit, :class:`Unsupported`
    for fine-tuning, whose samples have lengths that nothing states."""
    _supported(content, where)
    settings = {**{key: value for key, value in content.items() if key != "train"}, **section(content, "train")}
    args = Reader(settings)
    counts = [args.integer(name) if type(content.get(name)) is int else None for name in ("devices", "num_nodes")]
    gpus = None if counts[0] is None else counts[0] * (counts[1] or 1)
    name = str(content.get("model_name") or "")
    if model is None and (found := zoo.named(name)):
        model = zoo.load(found)
    fields = _recipe(args, counts[0], model)
    recipe, problems = parse_recipe({key: value for key, value in fields.items() if value is not None}, where, "")
    if model is None:
        problems.append(
            Problem(where, "model_name", name or "nothing", "--model NAME|FILE: a model of the zoo, or its config.json")
        )
    known = args.used | _NEUTRAL
    left = known_settings.sort(
        {key: value for key, value in settings.items() if key not in known}, frozenset(known), where
    )
    problems += [Problem(where, key, value, expected) for key, value, expected in args.problems] + list(left.problems)
    if model is None or recipe is None or problems:
        raise InputError(problems)
    counted = (f"gpus={gpus} (devices × num_nodes)",) if gpus else ()
    return Loaded(
        model=model,
        recipe=recipe,
        gpus=gpus,
        framework="pytorch",
        assumed=(*counted, "framework=pytorch", f"model={model.name} ({name})"),
        ignored=left.neutral,
        unmodelled=left.unmodelled,
    )


def _supported(content: Mapping[str, object], where: str) -> None:
    data = content.get("data", "TinyLlama")
    kind = str(data.get("class_path") if isinstance(data, Mapping) else data or "TinyLlama").rpartition(".")[2]
    reasons = {
        "checkpoint_dir: a fine-tuning, on samples of lengths that nothing states": "checkpoint_dir" in content,
        f"data={kind}: samples of lengths that nothing states": kind not in _WHOLE,
        "model_config: an architecture of its own": bool(content.get("model_config")),
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise Unsupported(f"{where}: a LitGPT configuration with {reason}")


def _recipe(args: Reader, devices: int | None, model: Model | None) -> dict[str, object]:
    word = args.word("precision") or "bf16-mixed"
    if word not in _PRECISIONS:
        args.problems.append(("precision", word, f"one of {', '.join(_PRECISIONS)}"))
    optimizer = args.raw("optimizer")
    called = optimizer.get("class_path") if isinstance(optimizer, Mapping) else optimizer
    if model is not None and args.flag("tie_embeddings") is True and model.untie_embeddings_and_output_weights:
        args.problems.append(
            ("train.tie_embeddings", True, "a model whose output layer is its embedding: --model FILE")
        )
    kept: dict[str, object] = {}
    if word == "bf16-true":  # weights, gradients and moments are of the model's type
        kept = {"grad_reduce_in_bf16": True, "use_precision_aware_optimizer": True, **dict.fromkeys(_TYPES, "bf16")}
    return {
        "micro_batch_size": args.integer("micro_batch_size") or _MICRO,
        "global_batch_size": args.integer("global_batch_size") or _GLOBAL,
        "seq_length": args.integer("max_seq_length") or (model.max_position_embeddings if model else None),
        "precision": _PRECISIONS.get(word),
        "data_parallel_sharding": "optim_grads_params",  # HYBRID_SHARD: inside a node
        "data_parallel_shard_size": devices,
        "optimizer": named(str(called or "AdamW").rpartition(".")[2]),
        "recompute_granularity": "none",
        "torch_compile": True,
        **kept,
    }
