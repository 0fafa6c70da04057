"""Reads a configuration file of any kind; the content of the file, not its name, decides how it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

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


#: Configurations that are a workload by themselves: by kind, what tells them, if more than the marks of the dialect of that
#: name do, and what reads them, as ``file.function`` here, since a file is imported when a configuration may be one of its
#: kind.
_WHOLE = {
    "torchtitan": ("torchtitan.is_job", "torchtitan.load"),
    "maxtext": ("maxtext.is_maxtext", "maxtext.load"),
    "nemo": ("nemo.is_nemo", "nemo.load"),
    "nanotron": ("", "trainers.load_nanotron"),
    "llm-foundry": ("trainers.is_llm_foundry", "trainers.load_llm_foundry"),
    "llama-factory": ("", "hf_trainer.load_llama_factory"),
    "ms-swift": ("megatron_swift.is_dump", "megatron_swift.of_dump"),
    "swift": ("", "hf_trainer.load_swift"),
    "trainer": ("", "hf_trainer.load_trainer"),
    "axolotl": ("", "hf_trainer.load_axolotl"),
    "torchtune": ("trainers.is_torchtune", "trainers.load_torchtune"),
    "litgpt": ("", "trainers.load_litgpt"),
    "gpt-neox": ("gpt_neox.is_gpt_neox", "gpt_neox.load"),
    "automodel": ("", "automodel.load"),
}


def _imported(place: str) -> Any:
    file, _, function = place.partition(".")
    return getattr(import_module(f"projector.intake.{file}"), function)


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
    loaded = _load(
        file,
        text,
        configs=configs,
        model=model or stated.get("model"),
        overrides=overrides,
        args=args,
        env=env,
        gpus_given=gpus_given or "gpus" in stated,
        gpus=gpus or stated.get("gpus"),
        node_gpus=node_gpus,
        said=said or {},
    )
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


def _load(
    file: Path,
    text: str,
    *,
    configs: str | Path | None,
    model: str | None,
    overrides: Mapping[str, object] | None,
    args: Sequence[str],
    env: Mapping[str, str] | None,
    gpus_given: bool,
    gpus: int | None,
    node_gpus: int | None,
    said: Mapping[str, object],
) -> Loaded:
    from projector.intake import manifests

    architecture = load_architecture(model) if model else None
    chosen = architecture.model if architecture else None
    manifest = manifests.read(text, str(file))
    if file.suffix == ".py" and not manifest:
        from projector.intake import nemo_recipes, torchtitan_cli

        if nemo_recipes.is_recipe(text):
            return nemo_recipes.of_python(text, str(file), chosen)
        if torchtitan_cli.is_registry(text):
            return torchtitan_cli.of_registry(text, file, args, gpus, chosen)
    filled = _REFERENCE.sub(lambda word: (env or {}).get(word[1], word[0]), text)
    mapping = None if manifest else _mapping(filled, file)
    kind = "primus" if mapping is not None and _extends(mapping, file) else kind_of(mapping)
    if mapping is not None and kind in ("case", "huggingface", "megatron"):
        refuse_other_tools(mapping, str(file))
    if kind == "megatron" and mapping is not None and (what := of_another_kind(manifests.program_beside(file))):
        raise Unsupported(f"{file}: {what}")
    if mapping is not None and kind == "case" and "recipe" not in mapping and set(mapping) - set(case.KEYS):
        raise _unknown(mapping, file)  # a model, and words that no case has: another tool's
    if manifest or (mapping is None and _is_script(text, file)):
        kind = "script"
    if (args or env) and kind != "script" and (args or kind == "primus" or filled == text):
        flag = "--args" if args else "--env"
        expected = "a shell script to start with it" if args else "a shell script, or ${NAME} in the file"
        raise InputError([Problem(str(file), "", f"{flag}, and no launch script", expected)])
    if configs is not None and kind != "primus":
        raise InputError([Problem(str(file), "", f"{configs} as the configs folder", "a Primus experiment to use it")])
    if kind == "primus":
        from projector.intake import primus

        loaded = primus.load(file, configs=configs, overrides=overrides)
        if architecture is None:
            return loaded
        return replace(loaded, model=architecture.model, unmodelled=(*architecture.unmodelled, *loaded.unmodelled))
    if kind == "case" and mapping is not None:
        return case.from_mapping(mapping, file, model=architecture)
    if kind == "huggingface":
        expected = f"a training configuration: give one with --config, and this file with --model {file}"
        raise InputError([Problem(str(file), "recipe", "nothing: an architecture alone", expected)])
    if kind in _WHOLE and mapping is not None:
        counted: dict[str, Any] = {"gpus": gpus}
        kinds = {"torchtitan": counted, "litgpt": counted, "maxtext": {**counted, "words": overrides}}
        more = kinds.get(kind, {})
        complete = _imported("maxtext.completed") if kind == "maxtext" else dialect(kind.replace("-", "_")).completed
        mapping = complete(mapping, said)
        whole: Loaded = _imported(_WHOLE[kind][1])(mapping, str(file), model=chosen, **more)
        return whole
    if kind == "script":
        from projector.intake import scripts

        shell = manifest.script if manifest else text
        loaded = scripts.load(
            file, args=args, env=env, model=chosen, gpus_given=gpus_given, text=shell, node_gpus=node_gpus, said=said
        )
        return scripts.dated(manifest.placed(loaded) if manifest else loaded, text)
    try:
        return _megatron(filled, mapping, file, chosen, overrides or {})
    except InputError as error:
        raise InputError(_with_env_flag(problem) for problem in error.problems) from None


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
    """Returns ``primus``, ``case``, ``huggingface``, ``megatron`` or a kind of ``_WHOLE`` by the top-level keys of a file
    (None: the file holds no mapping)."""
    if mapping is None:
        return "megatron"
    if ("recipe" not in mapping and "modules" not in mapping) or "step_scheduler" in mapping:
        for kind, (test, _) in _WHOLE.items():
            if _imported(test)(mapping) if test else dialect(kind.replace("-", "_")).fits(mapping):
                return kind
    for kind, keys in (("primus", _PRIMUS), ("huggingface", _HUGGINGFACE), ("case", ("recipe",))):
        if any(key in mapping for key in keys):
            return kind
    return "case" if "model" in mapping and not _argument_names(mapping) & set(_MEGATRON) else "megatron"


def _extends(mapping: Mapping[str, object], file: Path) -> bool:
    """Returns whether ``file`` extends other files that make it a Primus experiment."""
    return "extends" in mapping and kind_of(read(file, os.environ, [])) == "primus"


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
    from projector.intake import other_tools, torchtitan

    named = file.suffix.lower() == ".toml"
    try:
        content = torchtitan.parse(text, str(file))
    except InputError:
        if named:
            raise
        return None
    if named and not torchtitan.is_job(content):
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


def _megatron(
    text: str, mapping: Mapping[str, object] | None, file: Path, model: Model | None, overrides: Mapping[str, object]
) -> Loaded:
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
    args = {**stated, **overrides}
    if not ran and (what := megatron_forks.another_task(args)):
        raise Unsupported(f"{file}: a run that {what}")
    args = todays_words(args) if ran else megatron_forks.in_own_words(args)
    if model is None:
        loaded = megatron_args.from_mapping(args, str(file), name=file.stem, written=not ran)
    else:
        loaded = assemble(args, Origin(where=str(file), name=model.name, base=model, written=not ran))
    return replace(loaded, ran=ran)
