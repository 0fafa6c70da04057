"""The configuration of a logged run: what the log prints, what the user says beside it, and where the two disagree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path

from harness.evidence.ingest.context import Context
from harness.evidence.ingest.logs import foreign, megatron, torchtitan
from harness.evidence.ingest.logs.consistency import last_batch, place, refusals
from harness.evidence.ingest.logs.events import Arguments
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.numbers import whole
from harness.evidence.ingest.logs.translate import translate
from projector import frameworks
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.frameworks import UNKNOWN
from projector.hardware import catalogue
from projector.intake import gpt_neox, megatron_args
from projector.intake.loaded import Loaded
from projector.intake.values import literal
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.schema import REQUIRED, parse_recipe
from projector.workload.structure import to_mapping

_MATTER = re.compile(
    r"parallel|shard|fsdp|zero|compil|quanti[sz]|float8|fp8|fp4|mxfp|int8|recompute|remat|checkpoint_?(?:activ|layer|num)"
    r"|activation_?checkpoint|offload|overlap|async|attention|kernel|fus(?:ed|ion)|graph|precision|dtype|lora|peft|dispatch"
    r"|accumulat|packing|log$",
    re.IGNORECASE,
)
_IDLE = re.compile(
    r"(?:^|[._])(?:path|dir|file|folder|timeout|logg(?:er|ing)|wandb|tensorboard|profil\w*|seed|dropout|init\w*|eval\w*|save\w*)"
    r"(?:$|[._])",
    re.IGNORECASE,
)
_OFF: tuple[object, ...] = (None, False, 0, 1, -1, "", "none", "default", "auto", [], {}, ())
_LONGEST = 60  # characters of one


def may_matter(found: Arguments, values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns ``name: value`` of each unread argument that may change a step; names in ``values`` were read elsewhere."""
    named = (f"{name}: {value}" for name, value in found.unread if _may_matter(name, value) and name not in values)
    return tuple(dict.fromkeys(text[:_LONGEST].replace(";", ",") for text in named))


def _may_matter(name: str, value: str) -> bool:
    if not _MATTER.search(name) or _IDLE.search(name):
        return False
    plain = literal(value.strip("'\""))
    if isinstance(plain, Mapping):
        return plain.get("enabled", plain.get("enable")) is not False
    plain = plain.lower() if isinstance(plain, str) else plain
    return not any(plain == off and type(plain) is type(off) for off in _OFF)


_ARCHITECTURE = ("num_layers", "hidden_size", "num_attention_heads")
#: What may differ between a zoo model and the same model in a log.
_NAMING = ("name", "family", "source", "unmodelled", "vocab_size", "max_position_embeddings")
_PADDED = 0.02  # relative: a vocabulary is padded to a multiple of some hundreds
_DEFAULTS = ("tp", "pp", "cp", "precision")
#: Dialects that many trainers write: those of benchmarks of Megatron-LM's kind, and those of anyone's.
_BENCHMARKS = ("mllog", "tprimat")
_ANYONES = ("trace", "tinygrad", "iteration-table", "history")
#: Dialects that print Megatron-LM's arguments, the number of ranks among them.
_DUMPED = ("megatron", "megatron-bridge", "megatron-deepspeed")
_LANGUAGE = "the training of a causal language model"
_EXPECTED = "arguments in the log that say it, or a file that does, with --recipe"


class Incomplete(InputError):
    """The log and what stands beside it do not make a whole configuration; nothing that they say is wrong."""


class OtherTask(InputError):
    """The log is of a training, but not of a causal language model."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a log and the user say of the work of a step where the configuration is not whole; None: not said."""

    model_name: str
    gpu: str
    gpus: int | None
    global_batch_size: int | None
    seq_length: int | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole configuration of a logged run. ``gpu``: a catalogue name or empty. ``date``: the month that the arguments
    tell. ``dumped``: how many arguments the log printed. ``unread``: ``name: value`` of arguments that may change a step and
    that nothing reads."""

    model: Model
    recipe: Recipe
    gpus: int | None
    gpu: str
    framework: str
    date: str = ""
    dumped: int = 0
    line: int = 0
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    doubts: tuple[str, ...] = field(default=())


def settings(record: Logged, dialect: str, where: str, context: Context) -> Settings:
    """Returns the whole configuration of a run from the log and the user's ``context``. Raises :class:`InputError` with
    everything that is missing, wrong or contradictory; :class:`Incomplete` where it is only missing."""
    _refuse_other_tasks(record, where)
    printed = record.stated
    line = printed.line if printed else 0
    values, named = translate(printed.values, dialect) if printed else ({}, None)
    _note_own_trainer(record, values)
    if "vocab_size" in record.facts and values.get("vocab_size") is None and values:
        values["vocab_size"] = record.facts["vocab_size"]
    if "gpus" in record.facts and dialect not in _DUMPED and values:
        values["world_size"] = record.facts["gpus"]  # counted by the trainer, where it otherwise follows from the batch
    benchmark = record.facts.get("model")
    zoo_name = named or (zoo.find(str(benchmark)) if benchmark else None)
    context = context.on(_gpu_counts(values, None, record, context)[0])
    if dialect == megatron.NEOX:
        loaded = _load_neox(printed, record, where)
    else:
        loaded = _load_workload(values, zoo_name, where, line, context)
    model = context.model or (loaded.model if loaded else None) or (zoo.load(zoo_name) if zoo_name else None)
    if model is not None and context.model is None:
        model = _trainer_named(_zoo_named(model, zoo_name), values)
    stated, problems = _recipe_fields(values, loaded, record, model, where, line)
    said = {**_batch_from_tokens(printed, context), **stated, **context.stated}
    problems += refusals(values, stated, context, record, where, line)
    missing = [name for name in REQUIRED if said.get(name) is None]
    if model is None:
        called = printed.values.get("model_name") if printed else None
        problems.append(Problem(where, "model", str(called or "nothing")[:80], _EXPECTED))
    if missing:
        batch = "gpus" if context.file is not None and context.file.counts_ranks else "recipe.global_batch_size"
        keys = (batch if name == "global_batch_size" else f"recipe.{name}" for name in missing)
        problems += [Problem(where, key, "nothing", _EXPECTED) for key in keys]
    beside = context.file.assumed if context.file else ()
    assumed = (*(loaded.assumed if loaded else ()), *beside, *_defaults(said, record, dialect, context, loaded))
    sources = [source for source in (loaded, context.file) if source is not None]
    ignored = tuple(text.replace("=", ": ", 1).replace(";", ",") for source in sources for text in source.unmodelled)
    if printed is not None and dialect != megatron.NEOX:
        ignored += may_matter(printed, values)
    recipe, wrong = parse_recipe(said, where, "recipe.") if not missing else (None, [])
    gpus, world = _gpu_counts(values, loaded, record, context)
    others = ((record.facts.get("gpus"), "the log's lines say"), (context.gpus, "--gpus or the recipe says"))
    denied = (f"{other}, as {who}" for other, who in others if world and other and other != world)
    problems += [Problem(where, place("world_size", line), world, expected) for expected in islice(denied, 1)]
    problems += wrong
    framework, unread = _framework(record, values, dialect, context, loaded)
    if problems or model is None or recipe is None:
        incomplete = all(problem.expected == _EXPECTED for problem in problems)
        if incomplete and not (record.steps and record.steady) and record.failure is None and record.kernels is None:
            problems = [Problem(where, "steps", record.why_none, "the time of a step, or a rate, after the first")]
            incomplete = False
        raise (Incomplete if incomplete else InputError)(problems)
    return Settings(
        model=model,
        recipe=recipe,
        gpus=gpus,
        gpu=_catalogue_gpu(record, context),
        framework=framework,
        date=loaded.framework_date if loaded else "",
        dumped=printed.stated or len(printed.values) if printed else 0,
        line=line,
        assumed=(*assumed, *unread, *_expert_precision(dialect, model, recipe, printed)),
        unread=ignored,
        doubts=tuple(overruled(record, context)),
    )


def _batch_from_tokens(printed: Arguments | None, context: Context) -> dict[str, object]:
    """Returns the global batch in sequences where the log states tokens and the user the sequence length."""
    tokens, length = printed.values.get("tokens") if printed else None, context.stated.get("seq_length")
    if isinstance(tokens, int) and isinstance(length, int) and length > 0 and tokens > 0 and tokens % length == 0:
        return {"global_batch_size": tokens // length}
    return {}


#: Of the trainer of this project (:mod:`harness.measure`), beside Megatron-LM's arguments: argument → fact of a log.
_FACTS = {"trainer_framework": "framework", "trainer_device": "gpu", "trainer_version": "version"}


def _note_own_trainer(record: Logged, values: Mapping[str, object]) -> None:
    """Adds framework, device and version to the log's facts where the arguments are those of this project's trainer."""
    if values.get("trainer_framework") in frameworks.names():
        for name, fact in _FACTS.items():
            if isinstance(value := values.get(name), str):
                record.facts.setdefault(fact, value)


def _trainer_named(model: Model, values: Mapping[str, object]) -> Model:
    """Returns the model under the name and family that the trainer printed: a dump of Megatron-LM has neither."""
    name, family = values.get("trainer_model"), values.get("trainer_family")
    return replace(model, name=name, family=family) if isinstance(name, str) and isinstance(family, str) else model


def overruled(record: Logged, context: Context) -> Iterator[str]:
    """Yields a doubt for each value where user and log differ (the user's counts), and for an unknown GPU of the log."""
    device = str(record.facts.get("gpu", ""))
    gpu = catalogue.find_gpu(device)
    if device and not gpu and not context.gpu:
        yield f"GPU {device} by the log, of no name in the catalogue"
    framework = context.framework, record.facts.get("framework")
    for name, by_user, by_log in (("GPU", context.gpu, gpu or device), ("framework", *framework)):
        if by_user and by_log and by_user != by_log:
            yield f"{name} {by_user}, as the user says; {by_log} by the log"


def _expert_precision(dialect: str, model: Model, recipe: Recipe, printed: Arguments | None) -> tuple[str, ...]:
    """Says that experts are taken to run in reduced precision: torchtitan's lines say it of linear layers only."""
    converted = printed is not None and any("MoE" in text or "GroupedExperts" in text for _, text in printed.unread)
    if dialect != torchtitan.NAME or model.moe is None or recipe.precision in ("bf16", "fp16", "fp32") or converted:
        return ()
    return (f"precision={recipe.precision} of the experts, too (there bf16)",)


def _refuse_other_tasks(record: Logged, where: str) -> None:
    name = str(record.facts.get("model", ""))
    if what := foreign.benchmark(name):
        raise OtherTask([Problem(where, "benchmark", f"{name}, {what}", _LANGUAGE)])
    if task := record.facts.get(foreign.TASK):
        raise OtherTask([Problem(where, "training", task, _LANGUAGE)])


def stated_by(record: Logged, dialect: str, context: Context) -> Stated:
    """Returns the model, GPU, batch and sequence length that a log without a whole configuration and the user state."""
    printed = record.stated
    values, named = translate(printed.values, dialect) if printed else ({}, None)
    gpus = _gpu_counts(values, None, record, context)[0]
    said = {**_batch_from_tokens(printed, context), **values, **context.on(gpus).stated}
    batch, length = said.get("global_batch_size") or last_batch(record), said.get("seq_length") or record.seq_length
    return Stated(
        model_name=named or str(record.facts.get("model", "")),
        gpu=_catalogue_gpu(record, context),
        gpus=gpus,
        global_batch_size=batch if type(batch) is int and batch > 0 else None,
        seq_length=length if type(length) is int and length > 0 else None,
    )


def _load_neox(printed: Arguments | None, record: Logged, where: str) -> Loaded | None:
    """Reads GPT-NeoX's dump, with GPUs and vocabulary from other lines; None for unsupported layers."""
    if printed is None:
        return None
    try:
        loaded = gpt_neox.load(megatron.configuration(printed), where, model=None, written=False)
    except Unsupported as why:
        record.notes.append(str(why).partition(": ")[2])
        return None
    size, world = record.facts.get("vocab_size"), printed.values.get("world_size")
    model = replace(loaded.model, vocab_size=size) if isinstance(size, int) else loaded.model
    return replace(loaded, model=model, gpus=whole(str(world)))


def _load_workload(
    values: Mapping[str, object], zoo_name: str | None, where: str, line: int, context: Context
) -> Loaded | None:
    """Reads the whole workload of a dump; returns None where the dump does not suffice for one."""
    if not values:
        return None
    whole = all(values.get(name) is not None for name in _ARCHITECTURE)
    if (not whole and zoo_name is None) or any(values.get(name) is None for name in REQUIRED):
        return None
    name = context.id or Path(where).name.partition(".")[0]
    try:
        return megatron_args.from_mapping(values, where, model=None if whole else zoo_name, name=name, written=False)
    except InputError as error:
        if context.model is not None:
            return None
        raise InputError(
            Problem(problem.where, place(problem.key, line), problem.found, problem.expected)
            for problem in error.problems
        ) from None


def _zoo_named(model: Model, said: str | None) -> Model:
    """Names the model after the zoo model of the same architecture (a dump names none, and may pad its vocabulary); of
    several, after the one that the log names as ``said``."""
    if model.name in zoo.names():
        return model
    size = attrgetter(*_ARCHITECTURE)
    candidates = [
        known
        for known in map(zoo.load, zoo.names())
        if size(known) == size(model) and replace(model, **{name: getattr(known, name) for name in _NAMING}) == known
    ]
    if not candidates:
        return model
    best = min(candidates, key=lambda known: (known.name != said, *_distance(model, known)))
    return replace(model, name=best.name, family=best.family)


def _distance(model: Model, known: Model) -> tuple[bool, bool, bool]:
    """Ranks how far two models of one architecture differ in what a dump pads or cuts: vocabulary, positions."""
    padding = model.vocab_size / known.vocab_size - 1
    return padding != 0, not 0 <= padding <= _PADDED, known.max_position_embeddings != model.max_position_embeddings


def _recipe_fields(
    values: Mapping[str, object], loaded: Loaded | None, record: Logged, model: Model | None, where: str, line: int
) -> tuple[dict[str, object], list[Problem]]:
    """Collects the recipe fields that the log states; iteration lines may supply the batch and the sequence length."""
    problems: list[Problem] = []
    if loaded is not None and loaded.recipe is not None:
        fields = to_mapping(loaded.recipe)
    else:
        fields, misfits = megatron_args.partial_recipe(values, model.num_layers if model else None)
        problems = [Problem(where, place(key, line), value, expected) for key, value, expected in misfits]
    if record.seq_length:
        fields.setdefault("seq_length", record.seq_length)
    if batch := last_batch(record):
        fields.setdefault("global_batch_size", batch)
    if values.get("torch_compile") is True:
        fields["torch_compile"] = True
    rank = values.get("lora_rank")
    if type(rank) is int and rank > 0:
        fields["lora"] = {"dim": rank}
    return fields, problems


def _defaults(
    said: Mapping[str, object], record: Logged, dialect: str, context: Context, loaded: Loaded | None
) -> list[str]:
    """Lists the defaults that fill what neither a whole dump nor a whole recipe states."""
    silent = () if loaded is not None or context.recipe is not None else _DEFAULTS
    texts = [f"{name}={getattr(Recipe, name)} (not stated)" for name in silent if said.get(name) is None]
    if not context.framework and "framework" not in record.facts and dialect in _BENCHMARKS:
        texts.append("framework=megatron-lm (not stated)")
    return texts


def _gpu_counts(
    values: Mapping[str, object], loaded: Loaded | None, record: Logged, context: Context
) -> tuple[int | None, int | None]:
    """Returns (GPUs, GPUs by the log alone)."""
    counts = (loaded.gpus if loaded else None, values.get("world_size"), record.facts.get("gpus"))
    world = next((count for count in counts if type(count) is int and count > 0), None)
    return context.gpus or world, world


def _catalogue_gpu(record: Logged, context: Context) -> str:
    said = context.gpu or record.facts.get("gpu")
    return (catalogue.find_gpu(str(said)) or "") if said else ""


def _framework(
    record: Logged, values: Mapping[str, object], dialect: str, context: Context, loaded: Loaded | None
) -> tuple[str, tuple[str, ...]]:
    """Returns (profile, what is assumed of it). A trainer without a profile is one whose code nobody here has read."""
    if context.framework:
        return context.framework, ()
    name = str(record.facts.get("framework", ""))
    if name in frameworks.names():
        return name, ()
    if name or (dialect in _ANYONES and loaded is None):
        return UNKNOWN, (f"framework={UNKNOWN} ({name or 'not stated'}: no profile, a wider interval)",)
    if "deepspeed_config" in values:
        return "megatron-deepspeed", ()
    return loaded.framework if loaded else "megatron-lm", ()
