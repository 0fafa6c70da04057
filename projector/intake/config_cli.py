"""Reads command lines of a configuration file and ``key=value`` words over it (MaxText; NeMo 1 over Hydra), and of
nanotron's file alone.

Which files they name: AI-Hypercomputer/maxtext@e591f30cb src/maxtext/configs/pyconfig.py (the first word); hydra.main
(``--config-path`` beside the program, ``--config-name``); NVIDIA/NeMo-Framework-Launcher launcher_scripts/main.py
(``training=group/file`` of its conf); huggingface/nanotron@2411b022a run_train.py.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from projector.errors import InputError, Problem, raise_all
from projector.intake import maxtext, nemo
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.script_files import flag, hydra, mapping_beside, text_beside, uncounted, values_of
from projector.intake.shell.launch import Launch, Way, ranks
from projector.intake.shell.unknown import is_known
from projector.intake.trainers import load_nanotron
from projector.intake.values import literal
from projector.workload.model import Model

_HYDRA = re.compile(r"\+*(?:trainer|model)\.\w+(?:\.\w+)*=")
_GROUP = re.compile(r"training=([\w./-]+)")
_NEMO_DECIDES = re.compile(r"trainer\.(num_nodes|devices|precision)|model\.(optim\.)?\w+")


def takes(launch: Launch) -> bool:
    """Returns whether this module reads the command line of ``launch``."""
    return (
        _is_maxtext(launch)
        or bool(_nanotron_file(launch))
        or any(_HYDRA.match(word) for word in launch.arguments)
        or bool(_group(launch))
    )


def load(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    """Returns the workload of ``launch``. Raises :class:`InputError` without the file, and for what only a run knows."""
    if _is_maxtext(launch):
        return _maxtext(launch, way, where, model)
    if _nanotron_file(launch):
        return _nanotron(launch, way, where, model, gpus_given)
    return _nemo(launch, way, where, model, gpus_given)


#: Modules of MaxText that take its base.yml where no file is named (pyconfig.py, _CONFIG_FILE_MAPPING).
_ON_BASE = re.compile(r"(?:maxtext|MaxText)\.(?:trainers\.pre_train\.)?train")


def _is_maxtext(launch: Launch) -> bool:
    first, *rest = launch.arguments or ("",)
    if _ON_BASE.fullmatch(launch.program):
        return True
    if not re.fullmatch(r".*\.ya?ml", first) or not re.search(r"train(\.py)?$", launch.program):
        return False
    words = {word.partition("=")[0] for word in rest}
    mine, other = (len(words & dialect(name).deciding) for name in ("maxtext", "llama_factory"))
    return "maxtext" in (launch.program + first).lower() or mine > other  # which starts on a file and words, too


def _maxtext(launch: Launch, way: Way, where: str, model: Model | None) -> Loaded:
    named = bool(re.match(r"[^=]+\.ya?ml$", launch.arguments[0] if launch.arguments else ""))
    name, words = (launch.arguments[0], launch.arguments[1:]) if named else ("base.yml", launch.arguments)
    is_base = text_beside(name, launch, way) is None and posixpath.basename(name) == "base.yml"
    stated = stated_words(words, way, where, lambda key: key in dialect("maxtext").deciding or "parallelism" in key)
    content = {"base_config": name} if is_base else mapping_beside(name, launch, way, where, launch.place)
    env = {name: way.unknowns.shown(value) for name, value in launch.environment.items()}
    loaded = maxtext.load(content, where, gpus=None, model=model, words=stated, env=env)
    return loaded if not is_base else replace(loaded, assumed=(f"{name}=base.yml as MaxText has it", *loaded.assumed))


def _nanotron_file(launch: Launch) -> str:
    named = posixpath.basename(launch.program) == "run_train.py"
    return next(iter(values_of(launch, "config_file")), "") if named else ""


def _nanotron(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    name = _nanotron_file(launch)
    shown, content = way.unknowns.shown(name), mapping_beside(name, launch, way, where, "config_file")
    if not dialect("nanotron").fits(content):
        raise InputError([Problem(where, "config_file", shown, "a nanotron configuration")])
    loaded = load_nanotron(content, where, model=model)
    count, how = ranks(launch, way)
    if is_known(count) and int(count) != loaded.gpus and not gpus_given:
        raise InputError([Problem(where, "gpus", f"{count} ({how})", f"{loaded.gpus}: the product in {shown}")])
    return loaded


def _group(launch: Launch) -> str:
    found = next((match[1] for word in launch.arguments if (match := _GROUP.fullmatch(word))), "")
    return found if posixpath.basename(launch.program) == "main.py" else ""


def _nemo(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> Loaded:
    folder, group = posixpath.dirname(launch.program), _group(launch)
    words = launch.arguments
    if group:
        words = tuple(re.sub(r"^(\+*)training\.", r"\1", word) for word in words if "training." in word)
        names = [f"{place}conf/training/{group}" for place in (f"{folder}/" if folder else "", "launcher_scripts/")]
    else:
        name = next(iter(values_of(launch, "config_name")), "")
        path = next(iter(values_of(launch, "config_path")), "")
        names = [posixpath.join(base, path, name) for base in (folder, "")] if name else []
    names = [name if name.endswith((".yaml", ".yml")) else f"{name}.yaml" for name in names]
    there = next((name for name in names if text_beside(name, launch, way) is not None), "")
    if not there:
        raise InputError([hydra(launch, way, where)])
    stated = stated_words(
        words, way, where, lambda key: bool(_NEMO_DECIDES.fullmatch(key)) and not (gpus_given and "num_" in key)
    )
    content = mapping_beside(there, launch, way, where, launch.place)
    stated = {key: value for key, value in stated.items() if not key.startswith("run.")}  # what it is called
    for key, value in stated.items():
        put(content, key.split("."), value)
    loaded = nemo.load(content, where, model=model)
    if loaded.gpus is None and not gpus_given:
        count, how = ranks(launch, way)
        if not is_known(count):
            raise InputError([uncounted(way.unknowns.within(count), where)])
        return replace(loaded, gpus=int(count), assumed=(f"gpus={count} ({how})", *loaded.assumed))
    return loaded


def put(content: dict[str, object], path: Sequence[str], value: object) -> None:
    """Sets ``value`` at the keys of ``path``, section in section."""
    inner = content.get(path[0])
    if len(path) == 1:
        content[path[0]] = value
        return
    content[path[0]] = section = dict(inner) if isinstance(inner, Mapping) else {}
    put(section, path[1:], value)


def stated_words(words: Sequence[str], way: Way, where: str, decides: Callable[[str], bool]) -> dict[str, object]:
    """Returns ``key=value`` words, and None for each key that ``~key`` takes away. A value that only the run knows is a
    problem if its key ``decides``, else left out. Raises :class:`InputError` for a word of no key and no option, too."""
    open_ = [item for word in words if "=" not in word for item in way.unknowns.within(word) if not item.unset]
    if open_:
        sources = "; ".join(dict.fromkeys(str(item) for item in open_[:3]))
        raise InputError([Problem(where, "", f"arguments from {sources}", flag(open_))])
    pairs = [word.lstrip("+").partition("=") for word in words if "=" in word and not word.startswith(("-", "~"))]
    gone = {word[1:].partition("=")[0]: None for word in words if word.startswith("~")}
    stray = [
        word
        for before, word in pairwise(("", *words))
        if re.fullmatch(r"[A-Za-z_][\w.]*", word) and not (before.startswith("-") and "=" not in before)
    ]
    if stray:
        raise InputError([Problem(where, "", " ".join(stray[:4]), "key=value")])
    problems = [
        Problem(where, key, "; ".join(str(item) for item in marks), flag(marks))
        for key, _, value in pairs
        if (marks := way.unknowns.within(value)) and decides(key)
    ]
    raise_all(problems)
    return {**gone, **{key: literal(value) for key, _, value in pairs if is_known(value) and is_known(key)}}
