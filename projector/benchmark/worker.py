"""Runs one rank that :func:`projector.benchmark.processes.launch` started: it joins the others and does its task."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from projector.benchmark.device import open_device
from projector.benchmark.processes import end_with_parent, given, meet
from projector.io.files import write_whole, writing


def main() -> None:
    """Reads the job of the folder that is its argument, and runs its task between joining and leaving the group."""
    end_with_parent()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    job, task = given(folder)
    torch.set_num_threads(job.threads)
    kind = job.device.partition(":")[0]
    device = open_device(f"cuda:{rank}" if kind == "cuda" else kind)
    meet(kind, rank, job.ranks)

    def keep(result: Any) -> None:
        if rank == 0:
            with writing(folder / "result"):
                write_whole(folder / "result", json.dumps(result))

    gc.freeze()  # modules stay: collections between timings need not walk through all of torch
    keep(task(job.payload, device, keep))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
