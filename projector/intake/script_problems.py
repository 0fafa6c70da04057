"""What a launch leaves open, said so that a user can settle it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from projector.errors import Problem
from projector.intake.megatron_cli import CommandLine
from projector.intake.megatron_model import model_fields
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.shell.launch import Launch, Way
from projector.intake.shell.unknown import Unknown
from projector.intake.values import Reader
from projector.workload.model import Model


def gathered(problems: list[Problem], marks: Sequence[Unknown], way: Way, where: str) -> list[Problem]:
    """One problem in place of many that have one cause: a script that is started without the arguments it takes."""
    positional = sorted({int(name) for name in way.unset if name.isdigit()})
    if len(problems) < 2 or not any(item.unset for item in marks):
        return problems
    missing = ", ".join(dict.fromkeys(item.key for item in problems[:6]))
    judged = [item for item in way.unknowns.judged if item.settle != "--args"]
    if judged and not (positional and len(problems) > 2):
        names = ", ".join(item.source for item in judged[:4])
        return [Problem(where, "", f"{names} not set, and {missing} depend on it", flag(judged[:4]))]
    if len(problems) < 3 or not positional:
        return problems
    found = f"none, and {missing} depend on them"
    return [
        Problem(
            where, f"arguments $1 to ${positional[-1]}", found, "--args, in the order in which the script takes them"
        )
    ]


def no_architecture(line: CommandLine, where: str) -> Problem:
    """Layers that no argument gives."""
    if line.unset:
        held = "; ".join(dict.fromkeys(str(item) for item in line.unset[:4]))
        return Problem(where, "num_layers", f"nothing, and {held} on the command line", flag(line.unset))
    return Problem(where, "num_layers", "nothing: only a checkpoint or a recipe knows it", "--model NAME|FILE")


def hydra(launch: Launch, way: Way, where: str) -> Problem:
    """Overrides of a configuration that lies elsewhere (NeMo)."""
    named = [word for word in launch.arguments if word.startswith(("--config-path", "--config-name"))]
    shown = way.unknowns.shown(" ".join(named) or posixpath.basename(launch.program))
    return Problem(
        where,
        launch.place,
        f"a NeMo command line over {shown}",
        "the run's whole configuration (its YAML) with --config",
    )


def uncounted(marks: Sequence[Unknown], where: str) -> Problem:
    """The number of GPUs, which only a run knows."""
    flags = [*dict.fromkeys(item.settle for item in marks if item.settle and "--gpus" not in item.settle), "--gpus N"]
    return Problem(where, "gpus", "; ".join(str(item) for item in marks), " or ".join(flags))


def flag(marks: Sequence[Unknown]) -> str:
    """The flags that settle ``marks``."""
    settle = list(dict.fromkeys(item.settle for item in marks if item.settle))
    return " ".join(settle) or "a script that states it"


def unsettled(
    args: Mapping[str, object], unknown: Mapping[str, tuple[Unknown, ...]], model: Model | None, where: str
) -> list[Problem]:
    """A problem for every argument that decides something and whose value only the run knows."""
    reader = Reader({**args, **dict.fromkeys(unknown)})
    recipe_fields(reader, None)
    if model is None:
        model_fields(reader)
    problems = []
    for name, marks in unknown.items():
        if name in ("vocab_size", "padded_vocab_size", "max_position_embeddings", "tokenizer_type", "tokenizer_model"):
            continue
        decides = ("zero_stage", "deepspeed_config", "num_key_value_heads", "checkpoint_activations")
        accumulated = name == "gradient_accumulation_steps" and not args.get("global_batch_size")
        if name in reader.used or name in decides or accumulated:
            problems.append(Problem(where, name, "; ".join(str(item) for item in marks), flag(marks)))
    return problems
