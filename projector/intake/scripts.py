"""Reads the training that a launch script starts, as a :class:`Loaded`.

The script is evaluated, not run (:mod:`projector.intake.shell`). A value that only a run knows and that decides something
is refused by name, with the flag that settles it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.intake import environment, file_cli
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.other_tools import another_tool, of_another_kind
from projector.intake.script_launch import TOOLS, loaded_of
from projector.intake.shell.control import TooLong, Unreadable
from projector.intake.shell.launch import Evaluation, Launch, Way
from projector.intake.shell.unknown import MARK
from projector.io.files import read_text
from projector.workload.model import Model

_TRAINS = re.compile(r"pretrain|train|finetune|fine_tune|sft|main|run_clm|posttrain", re.IGNORECASE)
_NOT = re.compile(
    r"preprocess|convert|analyz|create_|checkpoint_util|tokeniz|download|generat|infer|server|eval|merge_datasets|clean|prepare|"
    r"benchmark_comm|download|upload|split|build_index|monitor|plot|parse_log|test_|hf_to|hf2|mcore2|get_|wait|setup",
    re.IGNORECASE,
)
#: Options that only a training of a transformer has; one of them makes a program a trainer.
_TELLS = (
    *("num_layers", "hidden_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size"),
    *("global_batch_size", "deepspeed_config", "job.config_file", "model_parallel_size", "recompute_granularity"),
)
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|da|k)?sh\b")
_LAUNCHERS = re.compile(
    r"^\s*[^#\n]*\b(?:torchrun|python3?|deepspeed|accelerate|srun|sbatch|mpirun|bash|sh)\s", re.MULTILINE
)
#: NVIDIA's images are named by year and month (NVIDIA Deep Learning Frameworks support matrix), AMD's training images
#: as well (ROCm documentation, version history of the training images: ``v25.10``).
_NVIDIA = (
    r"(?:nvcr\.io[/#+][\w/+-]*?|nvidia[/+])?\b(?:pytorch|nemo|jax|maxtext)[:_+]v?(?P<ny>[12]\d)\.(?P<nm>0[1-9]|1[0-2])"
)
_AMD = r"rocm/(?:megatron-lm|primus|pytorch-training|jax-training):(?:[a-z]+-)?v(?P<y>2\d)\.(?P<m>1[0-2]|0?[1-9])"
_IMAGE = re.compile(rf"(?:{_AMD}|{_NVIDIA})(?!\d)[\w.-]*")


@dataclass(frozen=True)
class _Found:
    """Holds the result of one launch: a workload, or why there is none."""

    launch: Launch
    path: Way
    loaded: Loaded | None = None
    problems: tuple[Problem, ...] = ()
    unsupported: str = ""

    @property
    def matters(self) -> object:
        """Returns the key by which two results count as the same training or the same refusal."""
        if self.loaded is None:
            return self.unsupported or tuple((item.key, item.expected) for item in self.problems)
        return self.loaded.model, self.loaded.recipe, self.loaded.gpus


def is_script(text: str, name: str) -> bool:
    """Returns whether a file is a shell script by its first line, its suffix, or commands that start programs."""
    if _SHEBANG.match(text) or re.search(r"\.(sh|bash|slurm|sbatch|sub|pbs|lsf|job)$", name):
        return True
    return _LAUNCHERS.search(text) is not None


def load(
    path: str | Path, *, args: Sequence[str] = (), env: Mapping[str, str] | None = None, model: Model | None = None,
    gpus_given: bool = False, text: str | None = None, node_gpus: int | None = None,
    said: Mapping[str, object] | None = None,
) -> Loaded:  # fmt: skip
    """Returns the workload that the script at ``path`` (or the shell ``text`` in that file) launches with ``args`` and
    ``env``.

    ``model`` stands in for the architecture; ``gpus_given``: the number of GPUs comes from elsewhere;
    ``node_gpus``: those of a machine, where they are known; ``said``: recipe fields that count where the script leaves them
    open. Raises :class:`InputError` with what is missing and the flag that gives it, :class:`Unsupported` for other
    trainings.
    """
    where = str(path)
    evaluation = _evaluated(Path(path), args, env, text, node_gpus)
    results = [
        _read(_completed(launch, said or {}), way, where, model, gpus_given)
        for way in evaluation.paths
        for launch in way.launches
        if _trains(launch, way)
    ]
    if not results:
        for way in evaluation.paths:
            for launch in way.launches:
                if tool := another_tool(launch.program, launch.arguments, way.unknowns):
                    raise Unsupported(f"{where}: {tool}")
        raise InputError([_why_no_training(where, evaluation.paths)])
    distinct: dict[object, _Found] = {}
    for item in results:
        distinct.setdefault(item.matters, item)
    conditions = list(evaluation.paths[0].taken)
    if not evaluation.whole and (len(distinct) > 1 or len(evaluation.paths) <= len(conditions)):
        found = f"too many conditions that only a run settles: {', '.join(conditions[:4])}"
        raise InputError([Problem(where, "", found, "--env or --args for them")])
    if len(distinct) == 1:
        loaded = _loaded_or_raise(results[0], env or {})
        alike = (
            f"{len(evaluation.paths)} ways through {', '.join(conditions[:4])}, … start this training; others may not"
        )
        return loaded if evaluation.whole else replace(loaded, assumed=(*loaded.assumed, alike))
    raise InputError(_different_trainings(where, list(distinct.values())))


def _evaluated(
    path: Path, args: Sequence[str], env: Mapping[str, str] | None, text: str | None, node_gpus: int | None
) -> Evaluation:
    from projector.intake.shell.evaluate import commands

    try:
        return commands(path, args, env, text=text, node_gpus=node_gpus, read=read_text)
    except Unreadable as error:
        expected = error.expected or "a launch script, or a case, a Primus experiment or Megatron-LM arguments in YAML"
        place = f"line {error.line}" if error.where == path.name else f"{error.where}, line {error.line}"
        raise InputError([Problem(str(path), place, error.text, expected)]) from None
    except TooLong as error:
        raise InputError([Problem(str(path), "", str(error), "a script that ends")]) from None


def _loaded_or_raise(item: _Found, env: Mapping[str, str]) -> Loaded:
    if item.unsupported:
        raise Unsupported(item.unsupported)
    if item.loaded is None:
        raise InputError(item.problems)
    notes = [f"launch={item.launch.place}"]
    if env:
        notes.append("environment=" + " ".join(f"{name}={value}" for name, value in sorted(env.items())))
    if asked := item.path.unknowns.counted:
        notes.append(f"gpus_per_node={item.path.unknowns.node_gpus} (of the cluster, for {', '.join(asked)})")
    if item.path.files:
        notes += [f"{name}={place}" for name, place in item.path.files.moved.items()]
    return replace(item.loaded, assumed=(*notes, *item.path.notes, *item.loaded.assumed))


def _different_trainings(where: str, items: list[_Found]) -> list[Problem]:
    """Returns the problem of launches that differ in what matters: what tells them apart, and which flags choose."""
    settled = [f"[ {text} ]" for text in items[0].path.taken if len({item.path.taken.get(text) for item in items}) > 1]
    listed = [f"{item.launch.place}: {_summary(item)}" for item in items[:6]]
    expected = "one: choose with --args or --env"
    if settled:
        expected = f"--args or --env that settle {', '.join(settled[:3])}"
    return [Problem(where, "", f"{len(items)} different trainings ({'; '.join(listed)})", expected)]


def _summary(item: _Found) -> str:
    if item.loaded is None or item.loaded.recipe is None:
        return item.unsupported or "; ".join(f"{p.key} {p.found}" for p in item.problems[:2])
    recipe, model = item.loaded.recipe, item.loaded.model
    return (
        f"{model.num_layers} layers of {model.hidden_size}, tp {recipe.tp}, pp {recipe.pp}, micro-batch "
        f"{recipe.micro_batch_size} of {recipe.global_batch_size}, {recipe.seq_length} tokens, {item.loaded.gpus} GPUs"
    )


def _why_no_training(where: str, paths: Sequence[Way]) -> Problem:
    expected = "a command that trains a language model (torchrun, srun, deepspeed, python … with a trainer's options)"
    absent = list(dict.fromkeys(name for way in paths for name in way.absent))
    programs = ((way.unknowns, launch.program) for way in paths for launch in way.launches if launch.program)
    started = list(dict.fromkeys(posixpath.basename(unknowns.shown(program)) for unknowns, program in programs))
    ended = next((way.ended for way in paths if way.ended), "")
    if ended:
        unset = list(dict.fromkeys(name for way in paths if way.ended for name in way.unset))
        asked = [f"--env {name}=…" for name in unset if not name.isdigit()][-4:]
        asked += ["--args"] if any(name.isdigit() for name in unset) or not asked else []
        return Problem(where, "", f"a script that ends before it launches anything ({ended})", " or ".join(asked))
    if absent:
        return Problem(
            where,
            "",
            f"a script that needs {', '.join(absent[:3])}, not found beside it",
            "that file beside it, or the script that trains",
        )
    if not any(way.launches for way in paths):
        return Problem(where, "", "a script that starts no Python program", expected)
    if started:
        return Problem(where, "", f"a script that starts {', '.join(started[:4])}, no trainer that is read", expected)
    return Problem(where, "", "nothing that states a run", expected)


def _trains(launch: Launch, way: Way) -> bool:
    program = posixpath.basename(MARK.sub("", launch.program))
    if not program or (_NOT.search(program) and not re.search(r"pretrain|finetune", program)):
        return False
    if "torchtitan.train" in launch.program or any(tool.takes(launch) for tool in TOOLS):
        return True
    names = _options(launch)
    if names & set(_TELLS):
        return True
    held = [item for word in launch.arguments for item in way.unknowns.within(word)]
    return bool(_TRAINS.search(program)) and bool(names or held)


def _completed(launch: Launch, said: Mapping[str, object]) -> Launch:
    """Returns ``launch`` with an option for each field of ``said`` that it leaves open: options of Megatron-LM,
    transformers' Trainer or ms-swift."""
    names = _options(launch)
    if dialect_name := file_cli.dialect_of_options(launch):
        said = dialect(dialect_name).completed(dict.fromkeys(names, True), said)
    elif not {"num_layers", "hidden_size"} & names:
        return launch
    more = [word for name, value in said.items() if name not in names for word in (f"--{name}", str(value))]
    return replace(launch, arguments=(*launch.arguments, *more))


def _options(launch: Launch) -> set[str]:
    return {word.lstrip("-").partition("=")[0].replace("-", "_") for word in launch.arguments if word.startswith("--")}


def _read(launch: Launch, way: Way, where: str, model: Model | None, gpus_given: bool) -> _Found:
    program = posixpath.basename(MARK.sub("", launch.program))
    starters = (step.options["name"] for step in launch.steps if step.kind == "other")
    told = (another_tool(name, launch.arguments, way.unknowns) for name in (*starters, launch.program))
    if not file_cli.takes(launch) and (tool := next(filter(None, told), "")):
        return _Found(launch, way, unsupported=f"{where}: {tool}")
    if what := of_another_kind(program):
        return _Found(launch, way, unsupported=what)
    try:
        read = loaded_of(launch, way, where, model, gpus_given)
        return _Found(launch, way, loaded=environment.within(read, launch.environment))
    except InputError as error:
        return _Found(launch, way, problems=error.problems)
    except Unsupported as error:
        return _Found(launch, way, unsupported=str(error))


def dated(loaded: Loaded, text: str) -> Loaded:
    """Returns ``loaded`` dated by the image that ``text`` names outside comments; unchanged without an image, or with images
    of several months."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#") or "#SBATCH" in line)
    images = {
        f"20{match['y'] or match['ny']}-{int(match['m'] or match['nm']):02d}": match[0]
        for match in _IMAGE.finditer("\n".join(lines))
    }
    if loaded.framework_date or len(images) != 1:
        return loaded
    ((month, image),) = images.items()
    return replace(loaded, framework_date=month, assumed=(f"framework_date={month} ({image})", *loaded.assumed))
