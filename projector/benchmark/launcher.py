"""Tells how this process was started: alone, or as one rank by torchrun, srun or mpirun, on one node or on several.

Variables: torchrun's environment (pytorch/pytorch torch/distributed/run.py, "Environment Variables"), of a Slurm step
(srun(1), "OUTPUT ENVIRONMENT VARIABLES": those with STEP exist only under srun), of Open MPI (FAQ, "What environment
variables are set"), of Hydra and Intel MPI (PMI_*, MPI_LOCAL*), of MVAPICH2 (MV2_COMM_WORLD_*).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all

#: (launcher, rank, size, local rank, local size); without the first two nobody started ranks.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    *(
        ("mpirun", *(f"{by}_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
        for by in ("OMPI", "MV2")
    ),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_PORT, _PORTS = 29500, 1000  # torchrun's, and how many jobs of one node get one of their own
_NODES = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")


@dataclass(frozen=True)
class Launched:
    """One of ``size`` ranks, ``local`` of the ``local_size`` on its node of ``nodes``; ``by``: their launcher."""

    by: str
    rank: int
    size: int
    local: int
    local_size: int
    nodes: int


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Returns this process' place among those started together; None where it was started by itself (or as the only
    task of a Slurm or MPI job, which may be a shell). Raises :class:`InputError` for ranks that no launcher gives."""
    for by, *names in _LAUNCHERS:
        rank, size = names[:2]
        if rank in environment and size in environment and ("MASTER_ADDR" in environment or by != "torchrun"):
            job = _read(by, environment, names)
            return job if job.size > 1 or by == "torchrun" else None
    return None


def first() -> bool:
    """Returns whether this process prints and writes files: the only one, or rank 0 of several."""
    job = launched()
    return job is None or job.rank == 0


def place() -> str:
    """Returns whom a problem of one device is blamed on: this rank, which reports it though others print."""
    job = launched()
    return "--device" if job is None else f"rank {job.rank}"


def _read(by: str, environment: Mapping[str, str], names: list[str]) -> Launched:
    rank, size, local, per_host = names
    bad = [name for name in (rank, size, local) if not environment.get(name, "0").isdecimal()]
    wrong = [Problem(by, name, environment[name], "a whole number") for name in bad]
    if not wrong and not 0 <= int(environment[rank]) < int(environment[size]):
        wrong = [Problem(by, rank, environment[rank], f"0 to {size} - 1 = {int(environment[size]) - 1}")]
    raise_all(wrong)
    number, total = int(environment[rank]), int(environment[size])
    stated = re.match(r"[0-9]+", environment.get(per_host, ""))  # Slurm writes 8(x2)
    known = () if by == "mpirun" else _NODES  # of a Slurm job, inside which mpirun may have started fewer
    nodes = next((int(environment[name]) for name in known if environment.get(name, "").isdecimal()), 0)
    per_node = int(stated.group()) if stated else -(-total // nodes) if nodes else total
    per_node = min(max(per_node, 1), total)
    place = int(environment.get(local) or number % per_node)
    return Launched(by, number, total, place, per_node, nodes or -(-total // per_node))


def meeting(job: Launched, environment: Mapping[str, str] = os.environ) -> str:
    """Returns ``tcp://host:port`` where ranks meet: MASTER_ADDR and MASTER_PORT, else the first node of the Slurm step,
    else this host where all are on it. Raises :class:`InputError` for several nodes of which none is known."""
    address = environment.get("MASTER_ADDR") or _first_host(environment.get("SLURM_STEP_NODELIST", ""))
    if job.local_size == job.size:
        address = address or "127.0.0.1"
    if not address:
        expected = "the name of rank 0's node: mpirun does not tell it to its ranks"
        raise InputError([Problem(job.by, "MASTER_ADDR", None, expected)])
    slurm_job = re.sub(r"\D", "", environment.get("SLURM_JOB_ID", "")) or "0"
    return f"tcp://{address}:{environment.get('MASTER_PORT') or _PORT + int(slurm_job) % _PORTS}"


def _first_host(nodes: str) -> str:
    """Returns the first host of Slurm's list: ``gpu-[003-007,9]-ib,login1`` gives ``gpu-003-ib``."""
    head = re.match(r"([^,\[]*)(?:\[([0-9]+)[^\]]*\])?([^,\[]*)", nodes.strip())
    return "".join(part or "" for part in head.groups()) if head else ""
