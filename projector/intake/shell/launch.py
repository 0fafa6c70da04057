"""Describes a launch (which program, with which arguments, through which launchers) and counts its processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from projector.dataclass import dataclass
from projector.intake.shell.scheduler import tasks_of_gpus
from projector.intake.shell.state import State
from projector.intake.shell.unknown import Unknown, Unknowns, is_known

if TYPE_CHECKING:
    from projector.intake.shell.files import Files

#: The way of counting a program that no launcher starts more than once.
ALONE = "one process"


@dataclass(frozen=True)
class Step:
    """One launcher on the way to the program (``srun``, ``mpirun``, ``torchrun``), with its options by name."""

    kind: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """A program that a script starts. ``program``: the script or module; ``arguments``: with marks where unknown;
    ``steps``: its launchers, outermost first; ``where``, ``line``: the script and its line (0: none) that start it."""

    program: str
    arguments: tuple[str, ...]
    steps: tuple[Step, ...]
    environment: Mapping[str, str]
    where: str
    line: int
    cwd: str

    @property
    def place(self) -> str:
        return f"{self.where}, line {self.line}" if self.line else self.where


@dataclass(frozen=True)
class Way:
    """One way through a script. ``taken``: how conditions that only a run settles were decided; ``ended``: why the script
    ended before its last line; ``absent``: scripts that it starts or sources and that are not there."""

    launches: tuple[Launch, ...]
    unknowns: Unknowns
    taken: Mapping[str, bool]
    ended: str = ""
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: Files | None = None
    unset: tuple[str, ...] = ()
    commands: int = 0


@dataclass(frozen=True)
class Evaluation:
    """All ways through a script; ``whole`` is False when some ways were not followed."""

    where: str
    paths: tuple[Way, ...]
    whole: bool = True


def ranks(launch: Launch, way: Way) -> tuple[str, str]:
    """Returns (processes of the job, how they are counted); the first holds marks where the script does not say."""
    unknowns, last = way.unknowns, launch.steps[-1] if launch.steps else Step("")
    for step in launch.steps:
        if step.kind == "submitter" and (nodes := _stated_nodes(step)) and _stated_nodes(last) != nodes:
            name = unknowns.shown(step.options["name"])
            if gpus := step.options.get("gpus"):
                shown = f"{unknowns.shown(nodes)} nodes × {unknowns.shown(gpus)} GPUs"
                return product(unknowns, nodes, gpus), f"{name}: {shown}"
            return unknowns.mark(Unknown(f"the processes of {nodes} nodes that {name} starts", "--gpus N")), name
    if count := _INNERMOST.get(last.kind):
        return count(last, launch, way)
    for step in reversed(launch.steps):
        if count := _AROUND.get(step.kind):
            return count(step, launch, way)
    other = next((step for step in launch.steps if step.kind == "other"), None)
    if other is not None:
        name = unknowns.shown(other.options["name"])
        return unknowns.mark(Unknown(f"the processes that {name} starts", "--gpus N")), name
    world = launch.environment.get("WORLD_SIZE", "")
    return (world, "WORLD_SIZE") if world and unknowns.as_shell(world) else ("1", ALONE)


def _stated_nodes(step: Step) -> str:
    """Returns the number of hosts that a launcher states; empty for one or none."""
    stated = next((step.options[name] for name in ("num_nodes", "nnodes", "nodes") if name in step.options), "1")
    return "" if stated == "1" else stated


def product(unknowns: Unknowns, *counts: str) -> str:
    """Returns the product of ``counts`` as text; the marks of everything unknown in them where any is unknown."""
    total = 1
    unknown_counts = ""
    for text in counts:
        if re.fullmatch(r"\d{1,9}", text.strip()):
            total *= int(text)
        elif is_known(text):
            unknown_counts += unknowns.mark(Unknown(f"{text!r} for a number"))
        else:
            unknown_counts += text
    return unknowns.mark(*unknowns.within(unknown_counts)) if unknown_counts else str(total)


def _torchrun(step: Step, launch: Launch, way: Way) -> tuple[str, str]:
    unknowns = way.unknowns
    told = launch.environment  # torch/distributed/argparse_util.py
    nodes = step.options.get("nnodes") or told.get("PET_NNODES", "1")
    per_node = step.options.get("nproc_per_node") or told.get("PET_NPROC_PER_NODE", "1")
    match = re.fullmatch(r"(\d+):(\d+)", nodes)
    if match:
        nodes = match[2] if match[1] == match[2] else unknowns.mark(Unknown(f"--nnodes {nodes} (elastic)", "--gpus N"))
    if per_node in ("gpu", "auto", "cuda"):
        per_node = visible(launch.environment, unknowns, f"--nproc_per_node {per_node}")
    shown = f"{unknowns.shown(nodes)} nodes × {unknowns.shown(per_node)} processes"
    return product(unknowns, nodes, per_node), shown


def listed(environment: Mapping[str, str]) -> str:
    """Returns how many GPUs ``CUDA_VISIBLE_DEVICES`` or a similar variable lists; empty where none lists any."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    lists = (named for name in names if re.fullmatch(r"\d+(,\d+)*", named := environment.get(name, "")))
    return next((str(named.count(",") + 1) for named in lists), "")


def visible(environment: Mapping[str, str], unknowns: Unknowns, asked: str) -> str:
    """Returns how many GPUs a process sees: those that the environment lists, else all of its machine."""
    return listed(environment) or unknowns.node(asked)


def _deepspeed(step: Step, launch: Launch, way: Way) -> tuple[str, str]:
    unknowns, option = way.unknowns, step.options
    nodes, gpus, file = option.get("num_nodes", ""), option.get("num_gpus", ""), option.get("hostfile", "")
    hosts = _hosts(file, launch, way)
    chosen = {name: option[name] for name in ("include", "exclude") if option.get(name)}
    slots = _chosen(hosts, chosen) if all(map(is_known, chosen.values())) else None
    if slots is not None and (hosts or chosen):
        slots = slots[: int(nodes)] if nodes.isdigit() else slots
        total = len(slots) * int(gpus) if gpus.isdigit() else sum(slots)
        how = " ".join(
            [*([f"the {len(slots)} hosts of {file}"] if hosts else []), *(f"--{k} {v}" for k, v in chosen.items())]
        )
        return str(total), how
    if file and not nodes:
        nodes = unknowns.mark(Unknown(f"the hosts of {unknowns.shown(file)}", "--gpus N"))
    if chosen:
        nodes = unknowns.mark(Unknown("; ".join(f"--{name} {value}" for name, value in chosen.items()), "--gpus N"))
    if not gpus:
        gpus = visible(launch.environment, unknowns, "deepspeed without --num_gpus")
    return product(unknowns, nodes or "1", gpus), f"{unknowns.shown(nodes or '1')} nodes × {unknowns.shown(gpus)} GPUs"


def _hosts(file: str, launch: Launch, way: Way) -> dict[str, int]:
    """Returns the slots of each host of a hostfile; none where the file is not at hand or a line says something else."""
    text = way.files.read(file, State(cwd=launch.cwd)) if way.files and file else None
    lines = [line for line in (text or "").splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [re.match(r"\s*(\S+)\s.*?\bslots=(\d{1,4})\b", line) for line in lines]
    return {match[1]: int(match[2]) for match in found if match} if all(found) else {}


def _chosen(hosts: Mapping[str, int], chosen: Mapping[str, str]) -> list[int] | None:
    """Returns the slots of each host that DeepSpeed's ``include`` or ``exclude`` (``HOST[:SLOT,…]@HOST``) leaves; None where
    that takes a host's slots that nothing states (deepspeed/launcher/runner.py ``parse_resource_filter``)."""
    left = dict(hosts) if "include" not in chosen else {}
    for name, text in chosen.items():
        for part in text.split("@"):
            host, colon, listed = part.strip().partition(":")
            if (colon and not re.fullmatch(r"\d+(,\d+)*", listed)) or (
                host not in hosts and not (colon and name == "include")
            ):
                return None
            slots = listed.count(",") + 1 if colon else hosts[host]
            left[host] = slots if name == "include" else left[host] - slots
    return [slots for slots in left.values() if slots]


def _accelerate(step: Step, launch: Launch, way: Way) -> tuple[str, str]:
    unknowns, count = way.unknowns, step.options.get("num_processes")
    if count:
        return product(unknowns, count), "--num_processes"
    nodes = step.options.get("num_machines", "1")
    if "config_file" not in step.options and nodes == "1":  # accelerate/commands/launch.py: what torch counts
        return visible(launch.environment, unknowns, "accelerate without --num_processes"), "the GPUs of a machine"
    return unknowns.mark(Unknown("the processes of accelerate's configuration", "--gpus N")), ""


def _srun(step: Step, launch: Launch, way: Way) -> tuple[str, str]:
    unknowns, option, environment = way.unknowns, step.options, launch.environment
    if option.get("ntasks"):
        return product(unknowns, option["ntasks"]), "srun --ntasks"
    if tasks := tasks_of_gpus({**option, "nodes": option.get("nodes") or environment.get("SLURM_NNODES", "")}):
        return str(tasks), "srun --ntasks-per-gpu"
    nodes = option.get("nodes") or environment.get("SLURM_NNODES") or environment.get("SLURM_JOB_NUM_NODES")
    per_node = option.get("ntasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE")
    if not option.get("nodes") and not option.get("ntasks-per-node") and environment.get("SLURM_NTASKS"):
        alone = not per_node and environment["SLURM_NTASKS"] == nodes
        return product(unknowns, environment["SLURM_NTASKS"]), "the job's tasks" + (
            _idle_note(nodes, step, launch) if alone else ""
        )
    if nodes is None:
        return unknowns.mark(Unknown("the nodes of srun's job", "--env SLURM_NNODES=…")), "srun"
    how = f"srun: {unknowns.shown(nodes)} nodes × {unknowns.shown(per_node or '1')}"
    return product(unknowns, nodes, per_node or "1"), how + ("" if per_node else _idle_note(nodes, step, launch))


def _idle_note(nodes: str | None, step: Step, launch: Launch) -> str:
    gpus = step.options.get("gpus-per-node") or launch.environment.get("SLURM_GPUS_ON_NODE", "")
    if not (nodes and nodes.isdigit() and gpus.isdigit() and int(gpus) > 1):
        return ""
    return f", one a node: {int(nodes) * (int(gpus) - 1)} GPUs of the job idle without --ntasks-per-node"


def _mpirun(step: Step, launch: Launch, way: Way) -> tuple[str, str]:
    unknowns, option = way.unknowns, step.options
    if option.get("np"):
        return product(unknowns, option["np"]), "mpirun -np"
    ppn, nodes = option.get("per_node"), option.get("nodes") or launch.environment.get("SLURM_NNODES")
    if ppn and nodes:
        return product(unknowns, nodes, ppn), f"{unknowns.shown(nodes)} nodes × {unknowns.shown(ppn)} processes"
    if slots := [int(slots) for slots in re.findall(r":(\d{1,4})\b", option.get("host", ""))]:
        return str(sum(slots)), f"mpirun --host {option['host']}"
    file = option.get("hostfile") or launch.environment.get("OMPI_MCA_orte_default_hostfile", "")
    if hosts := _hosts(file, launch, way):
        return str(sum(hosts.values())), f"the {len(hosts)} hosts of {file}"
    return unknowns.mark(Unknown("mpirun's processes (-np)", "--gpus N")), "mpirun"


def _msrun(step: Step, _launch: Launch, way: Way) -> tuple[str, str]:
    return product(way.unknowns, step.options.get("worker_num", "8")), "msrun --worker_num"


def _composer(step: Step, launch: Launch, way: Way) -> tuple[str, str]:
    stated = {**{key.lower(): value for key, value in launch.environment.items()}, **step.options}
    each = step.options.get("nproc") or stated.get("local_world_size")
    count = stated.get("world_size") or each or visible(launch.environment, way.unknowns, "composer without --nproc")
    return product(way.unknowns, count), "composer"  # mosaicml/composer@0231f2663e composer/cli/launcher.py


#: How the processes are counted that a launcher starts: one that starts the program itself, or one around that.
_INNERMOST = {
    "torchrun": _torchrun, "deepspeed": _deepspeed, "accelerate": _accelerate, "msrun": _msrun, "composer": _composer,
}  # fmt: skip
_AROUND = {"srun": _srun, "mpirun": _mpirun}
