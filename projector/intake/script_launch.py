"""Turns one launch of a script into a workload: the trainer's arguments, the files they name, the number of GPUs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.intake import (
    config_cli,
    file_cli,
    megatron_cli,
    megatron_forks,
    megatron_swift,
    nemo_recipes,
    other_tools,
    primus_cli,
    torchtitan_cli,
)
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.script_files import (
    flag,
    from_files,
    gathered,
    no_architecture,
    of_deepspeed,
    text_beside,
    uncounted,
    unsettled,
    values_of,
)
from projector.intake.shell.launch import ALONE, Launch, Way, ranks
from projector.intake.shell.unknown import is_known
from projector.intake.tables import table
from projector.workload.model import Model

#: What reads a command line as it stands, by its program.
TOOLS = (primus_cli, nemo_recipes, config_cli, file_cli, megatron_swift)
#: Switches of Transformer Engine's attention, all on unless one says otherwise, and what those that are on leave.
_SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
_BACKENDS: Mapping[tuple[str, ...], str] = {("0", "1"): "fused", ("1", "0"): "flash", ("0", "0"): "unfused"}
_T5 = re.compile(r"(?<![a-z])t5[^/]*$", re.IGNORECASE)
#: Words of BERT's large vocabularies, google-bert/bert-large-uncased and -cased vocab.txt.
_BERT_UNCASED, _BERT_CASED = 30522, 28996
#: The last and the first month of a Megatron-LM that takes an option.
_MONTHS_LAST, _MONTHS_FIRST = (
    {name: month for month, names in table("megatron", key).items() for name in names.split()}
    for key in ("last", "first")
)


def loaded_of(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """Returns the workload of one launch. Raises :class:`InputError` with what is missing, :class:`Unsupported`."""
    if tool := next((each for each in TOOLS if each.takes(launch)), None):
        read: Loaded = tool.load(launch, way, where, model, gpus_given)
        return read
    line = megatron_cli.parse(launch.arguments, way.unknowns)
    if torchtitan_cli.is_torchtitan(launch.program, launch.arguments):
        return _torchtitan(launch, way, where, model, gpus_given)
    if line.open:
        sources = "; ".join(dict.fromkeys(str(item) for item in line.open[:3]))
        raise InputError([Problem(where, "", f"arguments from {sources}", flag(line.open))])
    args, unknown = dict(line.args), dict(line.unknown)
    recognised = set(table("megatron", "ours").split()) & (set(args) | set(unknown)) or "pretrain" in launch.program
    if not recognised and not line.unset:
        found = f"{posixpath.basename(launch.program)} with none of Megatron-LM's arguments"
        same = other_tools.flags(other_tools.unambiguous(args, launch.arguments))
        expected = f"a trainer that is read; of another its run's log, or {same}"
        raise InputError([Problem(where, launch.place, found, expected)])
    if line.stray:
        raise InputError(
            [Problem(where, launch.place, " ".join(line.stray[:4]), "an option that takes it: argparse stops at it")]
        )
    files = {name: args.get(name) for name in ("yaml_cfg", "args_file", "config_file")}
    if _T5.search(launch.program):
        args = _encoder_decoder(args, launch, where)
    if task := megatron_forks.another_task(args):
        raise Unsupported(f"{posixpath.basename(launch.program)} {task}")
    args = from_files(files, args, launch, way, where)
    deepspeed = of_deepspeed(args, unknown, launch, way, where)
    other = megatron_forks.another_model(args)
    if other and model is None:
        raise Unsupported(f"{posixpath.basename(launch.program)} trains a model with {', '.join(other)}")
    switched = _attention(args, launch.environment)
    contradictions = _broken_rules({**args, **dict.fromkeys(unknown, "?")})
    args = megatron_cli.with_defaults(args)
    count, how = ranks(launch, way)
    problems = unsettled(args, unknown, model, where)
    problems += [Problem(where, *item) for item in contradictions if item[0] not in unknown]
    if how == ALONE and not gpus_given and _one_of_many({**args, **dict.fromkeys(unknown)}, launch):
        found = f"{posixpath.basename(launch.program)} started once, for more than one GPU"
        problems.append(Problem(where, "gpus", found, "--gpus N, or the script that starts this one on every GPU"))
    if not is_known(count) and not gpus_given:
        problems.append(uncounted(way.unknowns.within(count), where))
    if model is None and not args.get("num_layers") and "num_layers" not in unknown:
        problems.append(no_architecture(line, where))
    if problems:
        raise InputError(
            gathered(problems, [*line.unset, *(item for marks in unknown.values() for item in marks)], way, where)
        )
    gpus = int(count) if is_known(count) else None
    gpus = None if gpus_given else gpus
    each = _put_default_batch(args, gpus, where)
    if gpus is not None:
        args["world_size"] = gpus
    if args.get("moe_expert_model_parallelism") and args.get("num_experts"):
        raise Unsupported(
            "megablocks' expert parallelism over all data-parallel ranks (--moe-expert-model-parallelism)"
        )
    if args.get("deepspeed") and args.get("num_experts"):
        args = {"moe_router_topk": 1, "moe_layer_freq": 2, **args}  # Megatron-DeepSpeed's defaults
    origin = Origin(where=where, name=model.name if model else Path(where).stem, base=model)
    loaded = assemble(args, origin)
    counted = (f"gpus={gpus} ({how})",) if gpus is not None else ()
    month, told = _era(launch.arguments) if loaded.framework == "megatron-lm" else ("", "")
    dated = (f"framework_date={month} (the last that took {told})",) if month else ()
    assumed = (*counted, *dated, *switched, *deepspeed, *loaded.assumed)
    return replace(loaded, samples_per_rank=each, framework_date=month or loaded.framework_date, assumed=assumed)


def _broken_rules(args: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    """Yields ``(argument, value, expected)`` for each rule of Megatron-LM (``rules`` of ``tables/megatron.yaml``) that a
    command line breaks; :mod:`projector.workload.validate` checks sizes that do not divide."""
    method = args.get("recompute_method", args.get("activations_checkpoint_method"))
    args = {**args, "recompute_method": method}
    for rule in table("megatron", "rules"):
        if megatron_forks.applies(rule, args):
            yield rule["of"], rule.get("found", args[rule["of"]]), rule["expected"]
    stated = [name for name in table("megatron", "stages").split() if args.get(name) is not None]
    if len(stated) > 1:
        yield stated[1], args[stated[1]], f"one way of giving stages: {stated[0]} is given, too"
    layers, each = args.get("num_layers"), args.get("num_layers_per_virtual_pipeline_stage")
    counted = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    if type(each) is int and type(layers) is int:
        whole = layers + sum(bool(args.get(name)) for name in counted)
        a_stage, left = divmod(whole, max(1, megatron_forks.size_or_one(args, "pipeline_model_parallel_size")))
        if each < 1 or (not left and a_stage % each):
            yield "num_layers_per_virtual_pipeline_stage", each, f"a divisor of the {a_stage} layers of a stage"
    sequence, positions = args.get("seq_length"), args.get("max_position_embeddings")
    if type(sequence) is int and type(positions) is int and positions < sequence:
        yield "max_position_embeddings", positions, f"at least seq_length = {sequence}"


def _encoder_decoder(args: dict[str, object], launch: Launch, where: str) -> dict[str, object]:
    """Completes arguments of ``pretrain_t5.py`` as Megatron-LM does (NVIDIA/Megatron-LM@00caa53a megatron/training/
    arguments.py, ``validate_args``): layers and tokens of the encoder are those of the model; the vocabulary is that of
    BERT's tokenizer and ``--vocab-extra-ids``."""
    if not args.get("decoder_seq_length"):
        what = f"{posixpath.basename(launch.program)} without --decoder-seq-length"
        raise InputError([Problem(where, "decoder_seq_length", what, "tokens of a sample in the decoder")])
    of_encoder = {"num_layers": "encoder_num_layers", "seq_length": "encoder_seq_length"}
    args |= {name: args[other] for name, other in of_encoder.items() if not args.get(name) and args.get(other)}
    extra, kind = args.pop("vocab_extra_ids", 0), str(args.get("tokenizer_type") or "BertWordPieceLowerCase")
    if kind.startswith("BertWordPiece"):
        words = _BERT_UNCASED if "Lower" in kind else _BERT_CASED
        args.setdefault("vocab_size", words + (extra if type(extra) is int else 0))
        args.pop("tokenizer_type", None)
    return args


def _attention(args: dict[str, object], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Puts into ``args`` the attention backend that Transformer Engine's switches leave, where no argument names one
    (NVIDIA/TransformerEngine docs/envvars.rst); returns what was assumed."""
    said = {name: environment[name] for name in _SWITCHES if environment.get(name) in ("0", "1")}
    backend = _BACKENDS.get(tuple(said.get(name, "1") for name in _SWITCHES))
    named = args.get("attention_backend", "auto") != "auto" or args.get("use_flash_attn")
    if backend is None or named or args.get("transformer_impl") == "local":
        return ()
    args["attention_backend"] = backend
    return (f"attention_backend={backend} ({', '.join(f'{name}={value}' for name, value in said.items())})",)


def _torchtitan(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    count, how = ranks(launch, way)
    if not is_known(count) and not gpus_given:
        raise InputError([uncounted(way.unknowns.within(count), where)])
    gpus = int(count) if is_known(count) else None
    name = next(iter(values_of(launch, torchtitan_cli.CONFIG_FILE)), None)
    text = text_beside(name, launch, way) if name else None
    beside = torchtitan_cli.registries(launch.arguments)
    made = None if text else next(filter(None, (text_beside(each, launch, way) for each in beside)), None)
    loaded = torchtitan_cli.load(
        launch.arguments, way.unknowns, where, text=text, gpus=gpus, model=model, registry=made
    )
    return replace(loaded, assumed=((f"gpus={gpus} ({how})",) if gpus else ()) + loaded.assumed)


def _one_of_many(args: Mapping[str, object], launch: Launch) -> bool:
    parallel = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel", "expert_model_parallel")
    sizes = [f"{name}_size" for name in parallel]
    named = {"world_size", "rank", "local_rank", "dist_url"} & set(args)
    told = "MASTER_ADDR" in launch.environment or launch.environment.get("WORLD_SIZE", "1") != "1"
    return any(args.get(name, 1) != 1 for name in sizes) or bool(named) or told


def _put_default_batch(args: dict[str, object], gpus: int | None, where: str) -> int | None:
    """Puts Megatron-LM's default global batch into ``args``: one micro-batch a rank, or as many as are accumulated.
    Returns the samples of a rank where the number of ranks is unknown, else None."""
    problems = [
        Problem(where, name, "nothing", f"the script to state it, or --{name.replace('_', '-')} N")
        for name in ("micro_batch_size", "seq_length")
        if not args.get(name)
    ]
    raise_all(problems)
    micro, steps = args["micro_batch_size"], args.pop("gradient_accumulation_steps", 1)
    if args.get("global_batch_size") or type(micro) is not int:
        return None
    each = micro * steps if type(steps) is int and steps > 0 else micro
    parallel = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    ranks_ = gpus or 0
    for size in (args.get(name, 1) for name in parallel):
        ranks_ = ranks_ // size if type(size) is int and size > 0 else 0
    args["global_batch_size"] = each * max(1, ranks_)
    return each if not gpus else None


def _era(words: Iterable[str]) -> tuple[str, str]:
    """Returns (last month of a Megatron-LM that takes all options in ``words``, the option that tells it); empty texts where
    no option tells it, and where another option is newer, as in forks that keep old options."""
    named = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    month, name = min(((_MONTHS_LAST[name], name) for name in named if name in _MONTHS_LAST), default=("", ""))
    first = max((_MONTHS_FIRST[name] for name in named if name in _MONTHS_FIRST), default="")
    return (month, f"--{name.replace('_', '-')}") if first <= month else ("", "")
