"""Reads a configuration file of any kind; the content of the file, not its name, decides how it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, nearest
from projector.intake import case
from projector.intake.architecture import load_architecture
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.megatron_args import joined
from projector.intake.other_tools import of_another_kind, refuse_other_tools
from projector.intake.yaml_files import read
from projector.io.documents import parse_yaml
from projector.io.files import read_text
from projector.workload.model import Model

#: What :func:`load` understands, in words for messages.
KINDS = (
    "a Primus experiment (modules: …), a case (model: …, recipe: …), a torchtitan job (TOML), "
    "a MaxText, NeMo 1, NeMo AutoModel, nanotron, LLM Foundry, GPT-NeoX, torchtune, LitGPT, Axolotl or LLaMA-Factory "
    "configuration, arguments of transformers' Trainer or of ms-swift (JSON), a program with a NeMo 2 recipe, "
    "or Megatron-LM arguments (a log, a mapping, a launch script)"
)


#: Dialects whose configurations are a workload by themselves, as they are tried in turn; ``reader`` of each is what reads
#: it, as ``file.function`` here: a file is imported when a configuration is of its kind.
_KINDS = (
    *("torchtitan", "maxtext", "nemo", "nanotron", "llm_foundry", "llama_factory", "ms_swift", "swift", "trainer"),
    *("axolotl", "torchtune", "litgpt", "gpt_neox", "automodel"),
)
_PRIMUS = ("modules", "work_group")
_HUGGINGFACE = ("model_type", "architectures", "text_config")
#: Any of these makes a mapping one of Megatron-LM arguments.
_MEGATRON = (
    *("num_layers", "hidden_size", "seq_length", "micro_batch_size", "global_batch_size"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "MODEL_ARGS", "args"),
)
_MAPPING_LINE = re.compile(r"\s*(?:(?:#.*|---.*)?\n\s*)*(?:\{|[\"']?[A-Za-z_][\w-]*[\"']?\s*:(?:\s|$))")
_TOML = re.compile(r"\s*(?:#.*\n\s*)*\[(?:job|model|training|parallelism|profiling|metrics)\]\s*(?:#.*)?\n")
#: A variable of whoever starts the program, as files that ``envsubst`` fills in have it.
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
#: Begins a comment in a file of any kind: ``key=value`` words of what such files do not say.
ABOVE = "# projector: "
_OF_RUN, _OF_MODEL = ("cluster", "gpus", "framework", "framework_date"), ("name", "family")
_YAML_SUFFIXES = (".yaml", ".yml", ".json")


def load(
    path: str | Path,
    *,
    configs: str | Path | None = None,
    model: str | None = None,
    overrides: Mapping[str, object] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    gpus_given: bool = False,
    gpus: int | None = None,
    node_gpus: int | None = None,
    said: Mapping[str, object] | None = None,
) -> Loaded:
    """Returns the workload of a configuration file of any kind.

    ``configs``: the configs folder of Primus, for its presets. ``model``: a zoo name or a Hugging Face ``config.json``
    that stands in for the architecture of the file. ``overrides``: arguments over those of a file that is made of them
    (see :func:`takes_overrides`). ``args``, ``env``: arguments and environment with which a launch script is started;
    ``gpus_given``: its number of GPUs comes from elsewhere; ``gpus``: that number, where it is known; ``node_gpus``: those
    of a machine; ``said``: recipe fields that count where the file leaves them open. Raises :class:`InputError` with every
    mistake of the file, also for an architecture alone, which says nothing about how it is trained.
    """
    file = Path(path)
    if file.is_dir() and (file / "config.json").is_file():
        file = file / "config.json"
    text = read_text(file)
    stated = said_above(text, str(file))
    asked = _Asked(
        architecture=load_architecture(name) if (name := model or stated.get("model")) else None, configs=configs,
        overrides=overrides or {}, args=args, env=env or {}, gpus_given=gpus_given or "gpus" in stated,
        gpus=gpus or stated.get("gpus"), node_gpus=node_gpus, said=said or {},
    )  # fmt: skip
    loaded = _load(file, text, asked)
    still = tuple(each for each in loaded.assumed if each.partition("=")[0] not in stated)
    named = replace(loaded.model, **{key: stated[key] for key in _OF_MODEL if key in stated})
    return replace(loaded, model=named, assumed=still, **{key: stated[key] for key in _OF_RUN if key in stated})


def said_above(text: str, where: str) -> dict[str, Any]:
    """Returns what the comment ``# projector: key=value …`` in the first three lines of ``text`` states of the run.

    Raises :class:`InputError` for an unknown key and for ``gpus`` that is no whole number of at least 1.
    """
    above = next((line for line in text.splitlines()[:3] if line.startswith(ABOVE)), ABOVE).removeprefix(ABOVE)
    stated: dict[str, Any] = dict(word.partition("=")[::2] for word in above.split())
    known = ("model", *_OF_RUN, *_OF_MODEL)
    if wrong := [key for key in stated if key not in known]:
        raise InputError([Problem(where, ABOVE.strip(), wrong[0], nearest(wrong[0], known))])
    if "gpus" in stated:
        if not stated["gpus"].isdecimal() or not int(stated["gpus"]):
            raise InputError([Problem(where, "gpus", stated["gpus"], "a whole number of at least 1")])
        stated["gpus"] = int(stated["gpus"])
    return stated


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Holds what :func:`load` is asked of a file, with what the file's own comment says."""

    architecture: Loaded | None
    configs: str | Path | None
    overrides: Mapping[str, object]
    args: Sequence[str]
    env: Mapping[str, str]
    gpus_given: bool
    gpus: int | None
    node_gpus: int | None
    said: Mapping[str, object]

    @property
    def model(self) -> Model | None:
        return self.architecture.model if self.architecture else None


def _load(file: Path, text: str, asked: _Asked) -> Loaded:
    from projector.intake import manifests

    manifest = manifests.read(text, str(file))
    if file.suffix == ".py" and not manifest:
        from projector.intake import nemo_recipes, torchtitan_cli

        if nemo_recipes.is_recipe(text):
            return nemo_recipes.of_python(text, str(file), asked.model)
        if torchtitan_cli.is_registry(text):
            return torchtitan_cli.of_registry(text, file, asked.args, asked.gpus, asked.model)
    filled = _REFERENCE.sub(lambda word: asked.env.get(word[1], word[0]), text)
    mapping = None if manifest else _mapping(filled, file)
    kind = "script" if manifest or (mapping is None and _is_script(text, file)) else _checked_kind(mapping, file)
    if (asked.args or asked.env) and kind != "script" and (asked.args or kind == "primus" or filled == text):
        flag = "--args" if asked.args else "--env"
        expected = "a shell script to start with it" if asked.args else "a shell script, or ${NAME} in the file"
        raise InputError([Problem(str(file), "", f"{flag}, and no launch script", expected)])
    if asked.configs is not None and kind != "primus":
        found = f"{asked.configs} as the configs folder"
        raise InputError([Problem(str(file), "", found, "a Primus experiment to use it")])
    if kind == "script":
        from projector.intake import scripts

        loaded = scripts.load(
            file, args=asked.args, env=asked.env, model=asked.model, gpus_given=asked.gpus_given,
            text=manifest.script if manifest else text, node_gpus=asked.node_gpus, said=asked.said,
        )  # fmt: skip
        return scripts.dated(manifest.placed(loaded) if manifest else loaded, text)
    try:
        return _of_mapping(mapping, kind, file, asked) or _megatron(filled, mapping, file, asked)
    except InputError as error:
        if kind != "megatron":
            raise
        raise InputError(_with_env_flag(problem) for problem in error.problems) from None


def _checked_kind(mapping: Mapping[str, object] | None, file: Path) -> str:
    """Returns :func:`kind_of` of a file that is no script. Raises :class:`Unsupported` for another tool's, and
    :class:`InputError` for a model beside words that no case has."""
    from projector.intake import manifests

    if mapping is None:
        return "megatron"
    extended = "extends" in mapping  # with other files, which make it a Primus experiment
    kind = "primus" if extended and kind_of(read(file, os.environ, [])) == "primus" else kind_of(mapping)
    if kind in ("case", "huggingface", "megatron"):
        refuse_other_tools(mapping, str(file))
    if kind == "megatron" and (what := of_another_kind(manifests.program_beside(file))):
        raise Unsupported(f"{file}: {what}")
    if kind == "case" and "recipe" not in mapping and set(mapping) - set(case.KEYS):
        raise _unknown(mapping, file)
    return kind


def _of_mapping(mapping: Mapping[str, object] | None, kind: str, file: Path, asked: _Asked) -> Loaded | None:
    """Returns the workload of a mapping of any kind but Megatron-LM's arguments, for which it returns None."""
    if mapping is None or kind == "megatron":
        return None
    if kind == "primus":
        from projector.intake import primus

        loaded, other = primus.load(file, configs=asked.configs, overrides=asked.overrides), asked.architecture
        return (
            replace(loaded, model=other.model, unmodelled=(*other.unmodelled, *loaded.unmodelled)) if other else loaded
        )
    if kind == "case":
        return case.from_mapping(mapping, file, model=asked.architecture)
    if kind == "huggingface":
        expected = f"a training configuration: give one with --config, and this file with --model {file}"
        raise InputError([Problem(str(file), "recipe", "nothing: an architecture alone", expected)])
    module, _, function = dialect(kind).tables["reader"].partition(".")
    reader = import_module(f"projector.intake.{module}")
    more: dict[str, object] = {"gpus": asked.gpus} if kind in ("torchtitan", "litgpt", "maxtext") else {}
    more |= {"words": asked.overrides} if kind == "maxtext" else {}
    completed = getattr(reader, "completed", dialect(kind).completed)
    whole: Loaded = getattr(reader, function)(completed(mapping, asked.said), str(file), model=asked.model, **more)
    return whole


def _with_env_flag(problem: Problem) -> Problem:
    """Returns ``problem`` with the flag that gives the variable it found, if it found ``${NAME}``."""
    name = _REFERENCE.fullmatch(str(problem.found))
    return replace(problem, expected=f"{problem.expected}: --env {name[1]}=…") if name else problem


def takes_overrides(path: str | Path) -> bool:
    """Returns whether ``path`` holds arguments by name, which further arguments may replace (a case has fields of its own,
    a launch script variables)."""
    from projector.intake import manifests

    file = Path(path)
    if file.is_dir():
        return False
    text = read_text(file)
    if manifests.read(text, str(file)):
        return False
    mapping = _mapping(text, file)
    script = mapping is None and _is_script(text, file)
    return not script and kind_of(mapping) in ("primus", "megatron", "maxtext")


def _is_script(text: str, file: Path) -> bool:
    from projector.intake import megatron_args, scripts

    return not megatron_args.parse(text) and scripts.is_script(text, file.name)


def kind_of(mapping: Mapping[str, object] | None) -> str:
    """Returns ``primus``, ``case``, ``huggingface``, ``megatron`` or a dialect of ``_KINDS`` by the keys of a file (None:
    the file holds no mapping)."""
    if mapping is None:
        return "megatron"
    if ("recipe" not in mapping and "modules" not in mapping) or "step_scheduler" in mapping:
        from projector.intake.maxtext import is_maxtext

        for kind in _KINDS:
            if is_maxtext(mapping) if kind == "maxtext" else dialect(kind).fits(mapping):
                return kind
    for kind, keys in (("primus", _PRIMUS), ("huggingface", _HUGGINGFACE), ("case", ("recipe",))):
        if any(key in mapping for key in keys):
            return kind
    return "case" if "model" in mapping and not _argument_names(mapping) & set(_MEGATRON) else "megatron"


def _argument_names(mapping: Mapping[str, object]) -> set[str]:
    return {key.lstrip("-").replace("-", "_") for key, value in mapping.items() if value is not None}


def _mapping(text: str, file: Path) -> dict[str, object] | None:
    """Parses YAML or JSON into a mapping; None for other text, an error if the suffix says YAML or JSON."""
    if file.suffix.lower() == ".toml" or _TOML.match(text):
        return _toml(text, file)
    named = file.suffix.lower() in _YAML_SUFFIXES
    if not named and not _MAPPING_LINE.match(text):
        return None
    try:
        content = parse_yaml(text, str(file))
    except InputError:
        if named:
            raise
        return None
    if isinstance(content, Mapping):
        return joined(content)
    if named:
        found = "an empty file" if content is None else type(content).__name__
        raise InputError([Problem(str(file), "", found, f"a mapping: {KINDS}")])
    return None


def _toml(text: str, file: Path) -> dict[str, object] | None:
    """Parses TOML into sections. With suffix ``.toml``, text that is no torchtitan job is an error, else None."""
    from projector.intake import other_tools
    from projector.intake.torchtitan import parse

    named = file.suffix.lower() == ".toml"
    try:
        content = parse(text, str(file))
    except InputError:
        if named:
            raise
        return None
    if named and not dialect("torchtitan").fits(content):
        refuse_other_tools(content, str(file))
        found = ", ".join(list(content)[:6]) or "an empty file"
        expected = f"the sections of a torchtitan job: model.flavor, training, …; {other_tools.flags(content)}"
        raise InputError([Problem(str(file), "", found, expected)])
    return content


def _unknown(mapping: Mapping[str, object], file: Path) -> InputError:
    from projector.intake import other_tools

    return InputError(
        [Problem(str(file), "", ", ".join(list(mapping)[:6]) or "no keys", f"{KINDS}; {other_tools.flags(mapping)}")]
    )


def _megatron(text: str, mapping: Mapping[str, object] | None, file: Path, asked: _Asked) -> Loaded:
    from projector.intake import megatron_args, megatron_forks, other_tools
    from projector.intake.assemble import Origin, assemble
    from projector.intake.megatron_cli import todays_words

    stated = megatron_args.parse(text)
    if not _argument_names(stated if mapping is None else mapping) & set(_MEGATRON):
        if mapping is not None:
            raise _unknown(mapping, file)
        if what := other_tools.of_program(text) if file.suffix == ".py" else "":
            raise Unsupported(f"{file}: {what}")
        found = "a Python program, which is not run" if file.suffix == ".py" else "nothing that states a run"
        raise InputError([Problem(str(file), "", found, f"{KINDS}; {other_tools.of_text(text)}")])
    ran = megatron_args.is_dump(text)
    args = {**stated, **asked.overrides}
    if not ran and (what := megatron_forks.another_task(args)):
        raise Unsupported(f"{file}: a run that {what}")
    args = todays_words(args) if ran else megatron_forks.in_own_words(args)
    if asked.model is None:
        loaded = megatron_args.from_mapping(args, str(file), name=file.stem, written=not ran)
    else:
        loaded = assemble(args, Origin(where=str(file), name=asked.model.name, base=asked.model, written=not ran))
    return replace(loaded, ran=ran)
