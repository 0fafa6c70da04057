"""Reads what a batch script asks of its scheduler, and derives the variables that the scheduler sets.

Slurm: sbatch(1), srun(1), "OUTPUT ENVIRONMENT VARIABLES". PBS Professional: qsub(1B), -l select. LSF: bsub(1).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field

from projector.dataclass import dataclass
from projector.intake.shell.unknown import listed
from projector.intake.tables import table

_SLURM_FLAGS = listed("slurm_flags")
_RUNTIME = listed("slurm_runtime")
_SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-c": "cpus-per-task", "--tasks-per-node": "ntasks-per-node"}


@dataclass(frozen=True)
class Request:
    """A job's options by long name (``nodes``, ``ntasks``, …), as text. ``kind``: the scheduler, empty for no request."""

    kind: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.kind)

    def over(self, other: Request) -> Request:
        """Returns this request, completed by the options of ``other`` that this one lacks."""
        return Request(self.kind or other.kind, {**other.values, **self.values})


def directives(text: str) -> Request:
    """Reads the ``#SBATCH``, ``#PBS``, ``#BSUB`` and ``#PJM`` lines at the head of a script."""
    values: dict[str, str] = {}
    kind = ""
    for line in text.splitlines()[:400]:
        bare = line.strip()
        match = re.match(r"#(SBATCH|PBS|BSUB|PJM)\s+(.*)", bare)
        if not match:
            if bare and not bare.startswith("#"):
                break
            continue
        kind = kind or match[1]
        try:
            parts = shlex.split(match[2], comments=True)
        except ValueError:
            parts = match[2].split()
        if match[1] == "SBATCH":
            while parts:
                stated, parts = options(parts)
                values |= stated
                parts = parts[1:]
        else:
            text = " ".join(parts)
            values |= {
                name: option[1]
                for name, pattern in table("launchers", match[1])
                if (option := re.search(pattern, text))
            }
    return Request({"SBATCH": "slurm"}.get(kind, kind.lower()), values)


def options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns Slurm's options at the head of ``words`` by long name, and the command behind the options."""
    values: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or len(word) < 2:
            break
        name, equals, value = word.partition("=")
        at += 1
        if name in _SLURM_FLAGS:
            continue
        if not name.startswith("--") and len(name) > 2 and not equals:
            name, value, equals = word[:2], word[2:], "="
            if name in _SLURM_FLAGS:
                continue
        elif not name.startswith("--") and equals:
            name, value = word[:2], word[2:].lstrip("=")
        if not equals and at < len(words):
            value = words[at]
            at += 1
        values[_SHORT.get(name, name.lstrip("-"))] = value
    return values, list(words[at:])


def _count(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,7})(?:-\1)?", text or "")  # from 4 to 4 nodes
    return int(match[1]) if match else None


def tasks_of_gpus(values: Mapping[str, str]) -> int | None:
    """Returns how many tasks ``--ntasks-per-gpu`` starts on the GPUs that a job or a step asks for."""
    each, gpus, nodes = (_count(values.get(name)) for name in ("ntasks-per-gpu", "gpus", "nodes"))
    on_node = per_node(values)
    total = gpus or (on_node * nodes if on_node and nodes else None)
    return each * total if each and total else None


def per_node(values: Mapping[str, str]) -> int | None:
    """Returns how many GPUs of a node a job asks for; None where its options do not say."""
    for name in ("gpus-per-node", "gres", "gpus-per-task", "gpus"):
        text = values.get(name, "")
        match = (
            re.search(r"(?:gpu[^,=]*[:=])?(\d+)$", text.split(",")[0])
            if name != "gres"
            else re.search(r"gpu(?::[\w.-]+)?[:=](\d+)", text)
        )
        if not match:
            continue
        count = int(match[1])
        if name == "gpus-per-task":
            return count * (_count(values.get("ntasks-per-node")) or 1)
        if name == "gpus":
            nodes = _count(values.get("nodes"))
            return count // nodes if nodes and count % nodes == 0 else None
        return count
    return None


def variables(request: Request) -> dict[str, str | None]:
    """Returns the variables that Slurm sets in a job; None stands for a value that only the run knows."""
    values = request.values
    if request.kind != "slurm":
        return {}
    nodes, tasks, each = (_count(values.get(name)) for name in ("nodes", "ntasks", "ntasks-per-node"))
    nodes = nodes or (math.ceil(tasks / each) if tasks and each else None)
    tasks = tasks or tasks_of_gpus(values) or (nodes * each if nodes and each else None)
    each = each or (tasks // nodes if tasks and nodes and tasks % nodes == 0 else None)
    gpus, whole = per_node(values), values.get("gpus", "")
    told: tuple[tuple[object, object, str], ...] = (
        (nodes or values.get("nodes") or not tasks, nodes, "NNODES JOB_NUM_NODES"),
        (tasks or nodes or "ntasks" in values, tasks or ("ntasks" not in values and nodes), "NTASKS NPROCS"),
        (each or "ntasks-per-node" in values, each, "NTASKS_PER_NODE TASKS_PER_NODE"),
        (gpus or {"gres", "gpus-per-node", "gpus"} & {*values}, gpus, "GPUS_ON_NODE GPUS_PER_NODE"),
        (whole, whole.isdigit() and whole, "GPUS"),
        ("cpus-per-task" in values, values.get("cpus-per-task"), "CPUS_PER_TASK"),
    )
    slurm: dict[str, str | None] = dict.fromkeys(_RUNTIME)
    for there, value, names in told:
        slurm |= {f"SLURM_{name}": str(value) if value else None for name in names.split() if there}
    return slurm
