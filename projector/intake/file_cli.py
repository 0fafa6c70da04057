"""Reads command lines of trainers that name configuration files and put words over them.

Which words name the files: EleutherAI/gpt-neox@ea7aefd8 megatron/neox_arguments/arguments.py, ``consume_deepy_args`` (a
program, then files of ``--conf_dir``; a key may stand in one of them alone); meta-pytorch/torchtune@bd2a0fc7 torchtune/_cli/
run.py (torchrun's options, a recipe, ``--config FILE key=value``); Lightning-AI/litgpt@26857050 litgpt/__main__.py (a model,
``--config FILE``, ``--section.key value``); hiyouga/LLaMA-Factory@ff6d4d12e src/llamafactory/hparams/parser.py (a file,
``key=value``); axolotl-ai-cloud/axolotl@067b021c8 src/axolotl/cli/main.py and modelscope/ms-swift@3602360a5
swift/cli/main.py (a file, ``--key value``); mosaicml/llm-foundry@8c8dd48f7 scripts/train/train.py (a file, ``key=value``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, collecting_into, raise_all
from projector.intake import config_cli, gpt_neox
from projector.intake.dialect import Dialect, dialect
from projector.intake.hf_trainer import load_axolotl, load_llama_factory, load_swift, load_trainer, load_trl
from projector.intake.loaded import Loaded
from projector.intake.script_files import mapping_beside, options, text_beside, uncounted, values_of
from projector.intake.settings import Settings
from projector.intake.shell.launch import ALONE, Launch, Step, Way, listed, product, ranks, visible
from projector.intake.shell.launchers import launched
from projector.intake.shell.unknown import is_known
from projector.intake.trainers import load_litgpt, load_llm_foundry, load_torchtune
from projector.intake.values import literal, section
from projector.workload.model import Model

_COUNTS = ("num_processes", "num_machines")
_FILES = ("deepspeed", "fsdp_config", "fsdp")  # of its own, which a script may write or stand beside after a cd
_MODEL = {"--model_name_or_path", "--model_name", "--model_id", "--model_path"}
_ASIDE = re.compile(r"(?!model_).*(dir|path|files?|logger|seed|name|project|log_\w+)$")  # words that only name things


def takes(launch: Launch) -> bool:
    """Returns whether this module reads the command line of ``launch``."""
    return _tool(launch) is not None


def dialect_of_options(launch: Launch) -> str:
    """Returns the name of the dialect whose settings are the options of ``launch``; empty for other command lines."""
    tool = _tool(launch)
    return tool.dialect if tool and tool.dialect in ("swift", "trainer", "trl") else ""


def load(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """Returns the workload of ``launch``. Raises :class:`InputError` for a file that is not at hand, a key that two files
    state, and values that only a run knows."""
    tool = _tool(launch)
    assert tool is not None
    launch, beside, doubts = _handed_on(launch, way)
    content = _content(tool.files(launch), launch, way, where)
    decides = partial(_decides, dialect(tool.dialect))
    said = tool.words(launch)
    files = dict(word.split("=", 1) for word in said if word.startswith(tuple(f"{name}=" for name in _FILES)))
    files = {key: name for key, name in files.items() if text_beside(name, launch, way) is not None}
    said = [word for word in said if word.partition("=")[0] not in files]
    for key, value in config_cli.stated_words(said, way, where, decides).items():
        config_cli.put(content, key.split("."), value)
    content = {**beside, **content, **files}
    if not content:
        raise InputError([Problem(where, launch.place, "no file", f"a configuration for {launch.program}")])
    for key in _FILES:
        if isinstance(name := content.get(key), str) and text_beside(name, launch, way) is not None:
            held = mapping_beside(name, launch, way, where, key)
            content |= held if key == "fsdp" else {key: held}  # ms-swift's file of fsdp and fsdp_config
    loaded = tool.load(content, where, model=model)
    loaded = replace(loaded, unmodelled=(*loaded.unmodelled, *doubts))
    count = "" if gpus_given else tool.gpus(launch, content, way)
    if not count:
        return loaded
    if not is_known(count):
        raise InputError([uncounted(way.unknowns.within(count), where)])
    alone = () if launch.steps or count != "1" else (f"gpus=1 ({ALONE})",)
    return replace(loaded, gpus=int(count), assumed=(*alone, *loaded.assumed))


def _decides(of: Dialect, key: str) -> bool:
    """Returns whether ``key`` may change the training: it is neither neutral nor an unknown word that only names things."""
    key = of.today(key)
    return key in of.deciding or not (_ASIDE.match(key) or any(fnmatchcase(key, each) for each in of.neutral))


def _handed_on(launch: Launch, way: Way) -> tuple[Launch, dict[str, object], tuple[str, ...]]:
    """Returns ``launch`` with the process counts of accelerate's file, the arguments that accelerate hands on to the trainer
    (types, DeepSpeed's configuration, FSDP's), and what nothing models; without accelerate ``launch`` is unchanged.

    Raises :class:`InputError` for a file that is not at hand and for values that are none, :class:`Unsupported` for a run
    that accelerate cuts by other means.
    """
    at = next((number for number, step in enumerate(launch.steps) if step.kind == "accelerate"), None)
    if at is None:
        return launch, {}, ()
    options = dict(launch.steps[at].options)
    name = options.pop("config_file", "")
    stated = mapping_beside(name, launch, way, launch.place, "config_file") if name else {}
    said = {key: literal(value) for key, value in options.items() if key not in _COUNTS}
    where = way.unknowns.shown(name) or launch.place
    job = Settings(dialect("accelerate"), {**stated, **said}, where)
    given = {key: value for key, value in job.fields.items() if value is not None}
    optional = {key for key in job.stated if key.startswith("fsdp_config.")}
    shards = {**section(stated, "fsdp_config"), **{key.partition(".")[2]: job.stated[key] for key in optional}}
    if shards:
        given = {"fsdp": "full_shard", **given, "fsdp_config": shards}
    if "deepspeed" not in given and (job.args.raw("distributed_type") == "DEEPSPEED" or job.args.flag("use_deepspeed")):
        # DeepSpeed's configuration that accelerate makes of its own words; without a stage its own default, the
        # second.
        devices = {part: job.args.word(f"deepspeed_config.offload_{part}_device") for part in ("optimizer", "param")}
        offloads = {f"offload_{part}": {"device": device} for part, device in devices.items() if device}
        stage = job.args.raw("deepspeed_config.zero_stage")
        given["deepspeed"] = {"zero_optimization": {"stage": 2 if stage is None else stage, **offloads}}
    job.args.used |= {*_COUNTS, "fsdp_config", *optional}
    left = job.unread(written=False)
    for key in _COUNTS:
        if is_known(str(stated.get(key))):
            job.args.count(key)
    raise_all(job.problems)
    if name:
        counts = {key: str(stated[key]) for key in _COUNTS if stated.get(key) is not None}
        steps = [*launch.steps]
        steps[at] = Step("accelerate", {**counts, **options})
        launch = replace(launch, steps=tuple(steps))
    return launch, given, left.unmodelled


def _content(names: list[str], launch: Launch, way: Way, where: str) -> dict[str, object]:
    content: dict[str, object] = {}
    problems: list[Problem] = []
    for name in names:
        with collecting_into(problems):
            stated = mapping_beside(name, launch, way, where, launch.place)
            shown = way.unknowns.shown(name)
            problems += [Problem(shown, key, "stated in two files", "one of them") for key in stated if key in content]
            content |= stated
    raise_all(problems)
    return content


def _tool(launch: Launch) -> _Tool | None:
    composed = "composer " if any(step.kind == "composer" for step in launch.steps) else ""
    started = f"{composed}{launch.program} {launch.arguments[0] if launch.arguments else ''}"
    tool_found = next((tool for tool in _TOOLS if re.match(tool.named, started)), None)
    named = {word.partition("=")[0] for word in launch.arguments}
    if tool_found is None and re.search(r"(?<![a-z])sft\.py$", launch.program) and _trl_file(launch):
        return _TRL_TOOL
    batched = "--per_device_train_batch_size" in named or launch.program.endswith("run_clm.py")
    return tool_found or (_TRAINER_TOOL if batched and named & _MODEL and launch.program.endswith(".py") else None)


def _neox_files(launch: Launch) -> list[str]:
    words = list(launch.arguments[1:])
    folder = ""
    for option in ("-d", "--conf_dir"):
        if option in words[:-1]:
            at = words.index(option)
            folder = words[at + 1]
            del words[at : at + 2]
    if not folder:
        folder = next(iter(values_of(launch, "conf_dir")), "")
    named = [word for word in words if not word.startswith("-")]
    whole = [word if re.search(r"\.(ya?ml|json)$", word) else f"{word}.yml" for word in named]
    return [posixpath.join(folder, word) for word in whole]


def _neox_gpus(_launch: Launch, content: Mapping[str, object], way: Way) -> str:
    stated = content.get("global_num_gpus")
    counts = [content.get("num_nodes"), content.get("num_gpus")] if stated is None else [stated]
    return product(way.unknowns, *map(str, counts)) if all(type(count) is int and count > 0 for count in counts) else ""


def _assignments(launch: Launch) -> list[str]:
    """Returns the words behind the file: that of ``--config``, or the word behind the command."""
    words = launch.arguments
    alone = next((at for at, word in enumerate(words, 1) if _configuration_files([word])), 2)
    at = next((at + 2 - ("=" in word) for at, word in enumerate(words) if re.match(r"--config(=|$)", word)), alone)
    return [word for word in words[at:] if not word.startswith("-")]


def _tune_gpus(launch: Launch, _content: Mapping[str, object], way: Way) -> str:
    """Returns the GPUs that torchrun's options before the recipe start; one process without options."""
    found = launched("torchrun", ["torchrun", *launch.arguments[1:]])
    options = found[0].options if found and found[0] else {}
    return product(way.unknowns, options.get("nnodes", "1"), options.get("nproc_per_node", "1"))


def _litgpt_words(launch: Launch) -> list[str]:
    """Returns ``key=value`` words of ``pretrain MODEL --train.micro_batch_size 4``."""
    words = list(launch.arguments)
    if words[0] not in ("pretrain", "finetune", "finetune_full", "finetune_lora"):
        raise Unsupported(f"litgpt {words[0]}: adapters of another kind")
    place = "model_name" if words[0] == "pretrain" else "checkpoint_dir"
    adapters = ["lora_r=8"] if words[0] in ("finetune", "finetune_lora") and not values_of(launch, "config") else []
    return [*adapters, *(f"{place}={word}" for word in words[1:2] if not word.startswith("-")), *_options(words)]


def _options(words: Sequence[str], own: Sequence[str] = ("config", "launcher")) -> list[str]:
    """Returns ``--key value``, ``--key=value`` and lone switches as ``key=value``, several values in one text, without the
    options ``own`` of the tool itself."""
    given = {name: values for name, values in options(words).items() if name not in own}
    return [f"{name.replace('-', '_')}={' '.join(values) if values else 'true'}" for name, values in given.items()]


def _configuration_files(words: Sequence[str]) -> list[str]:
    return [word for word in words if re.search(r"\.(ya?ml|json)$", word)]


def _first_file(launch: Launch) -> list[str]:
    """Returns the configuration file that is the first word behind the command, if it is one."""
    first = 1 if launch.arguments[0] in ("train", "sft", "pt") else 0
    return _configuration_files(launch.arguments[first : first + 1])


def _lone_file(launch: Launch) -> list[str]:
    before = ("", *launch.arguments)
    alone = [word for last, word in zip(before, launch.arguments, strict=False) if not last.startswith("--")]
    return _configuration_files(alone)[:1]


def _axolotl_words(launch: Launch) -> list[str]:
    words = list(launch.arguments)
    return _options(words[: words.index("--")] if "--" in words else words)


def _started_gpus(launch: Launch, _content: Mapping[str, object], way: Way) -> str:
    """Returns the GPUs that a launcher before the program starts, or the environment that LLaMA-Factory reads states."""
    if any(step.kind != "other" for step in launch.steps):
        return ranks(launch, way)[0]
    each, nodes = (launch.environment.get(name, "") for name in ("NPROC_PER_NODE", "NNODES"))
    return product(way.unknowns, each, nodes or "1") if each else ""


def _single_gpu(launch: Launch, content: Mapping[str, object], way: Way) -> str:
    """Returns the GPUs that a launcher starts, else one. Raises :class:`Unsupported` where one process sees several."""
    count, seen = _started_gpus(launch, content, way), listed(launch.environment)
    if count or launch.steps:
        return count
    if seen not in ("", "1"):
        raise Unsupported(
            f"{launch.place}: one process over {seen} GPUs (torch's DataParallel, or layers cut over them)"
        )
    return "1"


def _all_gpus(launch: Launch, content: Mapping[str, object], way: Way) -> str:
    """Returns the GPUs that a launcher starts; without one the program starts itself on all visible GPUs of each node
    unless NPROC_PER_NODE says how many (src/llamafactory/launcher.py; accelerate launch under axolotl and trl)."""
    if "." in posixpath.basename(launch.program):  # a module or a script, which starts none
        return _single_gpu(launch, content, way)
    count, nodes = _started_gpus(launch, content, way), launch.environment.get("NNODES", "")
    if count or any(step.kind != "other" for step in launch.steps):
        return count
    if not nodes:
        return listed(launch.environment)
    return product(way.unknowns, visible(launch.environment, way.unknowns, "llamafactory-cli train"), nodes)


def _swift_gpus(launch: Launch, content: Mapping[str, object], way: Way) -> str:
    """Counts GPUs as for LLaMA-Factory; the environment may stand in ``ENV`` of ms-swift's file.

    Raises :class:`Unsupported` where one process sees several GPUs and cuts the layers over them.
    """
    file_environment = {str(key): str(value) for key, value in section(content, "ENV").items()}
    launch = replace(launch, environment={**file_environment, **launch.environment})
    count, seen = _started_gpus(launch, content, way), launch.environment.get("CUDA_VISIBLE_DEVICES", "")
    if seen and is_known(seen) and not any(step.kind != "other" for step in launch.steps):
        each = launch.environment.get("NPROC_PER_NODE", "1")
        if each.isdigit() and int(each) < seen.count(",") + 1:
            raise Unsupported(
                f"ms-swift: {each} of NPROC_PER_NODE over GPUs {seen}: layers cut over those of a process"
            )
        return count or "1"
    return count


def _trl_file(launch: Launch) -> list[str]:
    """Returns TRL's configuration file: that of ``--config``, or the first that does not follow an option."""
    return _config_file(launch) or _lone_file(launch)


def _trl_gpus(launch: Launch, content: Mapping[str, object], way: Way) -> str:
    """Returns ``--num_processes`` of TRL's own command line, else the GPUs on which a launcher starts the program."""
    return next(iter(values_of(launch, "num_processes")), "") or _all_gpus(launch, content, way)


def _config_file(launch: Launch) -> list[str]:
    return values_of(launch, "config")[:1]


def _every_option(launch: Launch) -> list[str]:
    return _options(launch.arguments, ())


@dataclass(frozen=True)
class _Tool:
    """Says how one tool's command line is read. ``named``: matches the program with its first word; ``dialect``: has the
    settings of its words; ``files``: the files a launch names, in order; ``words``: ``key=value`` over the files;
    ``gpus``: the number of GPUs as text, empty where neither words nor files state it."""

    named: str
    dialect: str
    load: Callable[..., Loaded]
    files: Callable[[Launch], list[str]] = _config_file
    words: Callable[[Launch], list[str]] = lambda launch: _options(launch.arguments)
    gpus: Callable[[Launch, Mapping[str, object], Way], str] = _all_gpus


_SWIFT = r"(?:.*/)?swift (?:sft|pt)|(?:.*/)?swift[./]cli[./](?:sft|pt)(?:\.py)? "
_FACTORY = r"(?:.*/)?llamafactory-cli train|(?:.*/)?src/train(?:_bash)?\.py \S+\.(?:ya?ml|json)$"
_TRL = r"(?:.*/)?trl sft|(?:.*/)?trl/(?:examples/)?scripts/\w*sft\w*\.py "
_TRL_TOOL = _Tool(_TRL, "trl", load_trl, files=_trl_file, gpus=_trl_gpus)
_TOOLS = (
    _TRL_TOOL,
    _Tool(r"(?:.*/)?deepy\.py ", "gpt_neox", gpt_neox.load, files=_neox_files, words=lambda _: [], gpus=_neox_gpus),
    _Tool(r"(?:.*/)?tune run", "torchtune", load_torchtune, words=_assignments, gpus=_tune_gpus),
    _Tool(r"(?:.*/)?litgpt (?:pretrain|finetune)", "litgpt", load_litgpt, words=_litgpt_words, gpus=lambda *_: ""),
    _Tool(
        _FACTORY,
        "llama_factory",
        load_llama_factory,
        files=_first_file,
        words=lambda launch: _assignments(launch) if _first_file(launch) else _every_option(launch),
    ),
    _Tool(
        r"(?:.*/)?axolotl train|axolotl\.cli\.train ", "axolotl", load_axolotl, files=_lone_file, words=_axolotl_words
    ),
    _Tool(r"composer \S+\.py \S+\.ya?ml$", "llm_foundry", load_llm_foundry, files=_first_file, words=_assignments),
    _Tool(_SWIFT, "swift", load_swift, files=_first_file, words=_every_option, gpus=_swift_gpus),
)
#: Any program with the arguments of transformers' Trainer (``HfArgumentParser``), such as LLaMA-Factory's before its CLI.
_TRAINER_TOOL = _Tool("", "trainer", load_trainer, files=lambda _: [], words=_every_option, gpus=_single_gpu)
