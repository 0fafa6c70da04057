"""What a batch script asks of its scheduler, and the variables that the scheduler sets from it.

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
_SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-c": "cpus-per-task"}


@dataclass(frozen=True)
class Request:
    """Options of a job by long name (``nodes``, ``ntasks``, …), their values as text; ``kind`` of scheduler."""

    kind: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.kind)

    def over(self, other: Request) -> Request:
        """This request, completed by ``other``."""
        return Request(self.kind or other.kind, {**other.values, **self.values})


def directives(text: str) -> Request:
    """The ``#SBATCH``, ``#PBS``, ``#BSUB`` and ``#PJM`` lines at the head of a script."""
    found: dict[str, str] = {}
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
                given, parts = options(parts)
                found |= given
                parts = parts[1:]
        else:
            text = " ".join(parts)
            found |= {
                name: asked[1] for name, pattern in table("launchers", match[1]) if (asked := re.search(pattern, text))
            }
    return Request({"SBATCH": "slurm"}.get(kind, kind.lower()), found)


def options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Slurm's options at the head of ``words`` by long name, and the command behind them."""
    found: dict[str, str] = {}
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
        found[_SHORT.get(name, name.lstrip("-"))] = value
    return found, list(words[at:])


def _count(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,7}", text) else None


def per_node(values: Mapping[str, str]) -> int | None:
    """GPUs of a node that a job asks for."""
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
    """Variables of the job; None: set, to something only the run knows."""
    values = request.values
    if request.kind != "slurm":
        return {}
    nodes, tasks, each = (_count(values.get(name)) for name in ("nodes", "ntasks", "ntasks-per-node"))
    if nodes is None and tasks and each:
        nodes = math.ceil(tasks / each)
    stated_nodes = values.get("nodes")
    found: dict[str, str | None] = dict.fromkeys(_RUNTIME)
    known_nodes = str(nodes) if nodes else None
    if nodes or stated_nodes or not tasks:
        found |= {"SLURM_NNODES": known_nodes, "SLURM_JOB_NUM_NODES": known_nodes}
    if tasks is None and each and nodes:
        tasks = nodes * each
    if each is None and tasks and nodes and tasks % nodes == 0:
        each = tasks // nodes
    if tasks or "ntasks" in values:
        found |= {"SLURM_NTASKS": str(tasks) if tasks else None, "SLURM_NPROCS": str(tasks) if tasks else None}
    elif nodes:
        found |= {"SLURM_NTASKS": str(nodes), "SLURM_NPROCS": str(nodes)}
    if each or "ntasks-per-node" in values:
        found["SLURM_NTASKS_PER_NODE"] = str(each) if each else None
        found["SLURM_TASKS_PER_NODE"] = str(each) if each else None
    gpus = per_node(values)
    if gpus or any(name in values for name in ("gres", "gpus-per-node", "gpus")):
        text = str(gpus) if gpus else None
        found |= {"SLURM_GPUS_ON_NODE": text, "SLURM_GPUS_PER_NODE": text}
        if "gpus" in values:
            found["SLURM_GPUS"] = values["gpus"] if values["gpus"].isdigit() else None
    if "cpus-per-task" in values:
        found["SLURM_CPUS_PER_TASK"] = values["cpus-per-task"]
    return found
