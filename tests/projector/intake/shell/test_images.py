"""The month of the stack, by the container image that a script or a manifest names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from projector.intake import detect
from projector.intake.loaded import Loaded

_TRAINS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --max-position-embeddings 4096"
)


def _load(folder: Path, before: str) -> Loaded:
    (folder / "run.sh").write_text(f"#!/bin/bash\n{before} {_TRAINS}\n")
    return detect.load(folder / "run.sh")


@pytest.mark.parametrize(
    ("before", "month"),
    [
        ("srun --container-image=nvcr.io#nvidia/pytorch:24.07-py3", "2024-07"),
        ("docker run --gpus all nvcr.io/nvidia/nemo:25.04.01", "2025-04"),
        ("IMAGE=nvcr.io/nvidia/nemo:24.09\ndocker run $IMAGE", "2024-09"),
        ("srun --container-image=/images/nvidia+pytorch+23.10-py3.sqsh", "2023-10"),
        ("singularity exec --nv pytorch_24.05-py3.sif", "2024-05"),
        ("docker run rocm/megatron-lm:v25.10", "2025-10"),
        ("docker run rocm/primus:v26.2_gfx950", "2026-02"),
        ("docker run docker.io/rocm/jax-training:maxtext-v25.5", "2025-05"),
        ("#SBATCH --container-image=nvcr.io/nvidia/pytorch:24.03-py3\n", "2024-03"),
        ("# was nvcr.io/nvidia/pytorch:23.01-py3\ndocker run nvcr.io/nvidia/pytorch:24.01-py3", "2024-01"),
        ("A=nvcr.io/nvidia/pytorch:24.01-py3 B=rocm/primus:v25.9\n", ""),
        ("docker run rocm/pytorch:rocm6.4_ubuntu22.04_py3.10_pytorch_release-2.6.0", ""),
        ("docker run pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", ""),
        ("docker run nvcr.io/nvidia/cuda:12.4.1-devel-ubuntu22.04", ""),
        ("", ""),
    ],
)
def test_the_image_of_a_script_says_its_month(tmp_path: Path, before: str, month: str) -> None:
    loaded = _load(tmp_path, before)
    assert (loaded.framework_date, loaded.gpus) == (month, 8)
    assert any(note.startswith(f"framework_date={month} (") for note in loaded.assumed) == bool(month)


def test_the_image_of_a_manifest_does_as_well(tmp_path: Path) -> None:
    container = {"name": "main", "image": "nvcr.io/nvidia/pytorch:24.10-py3", "command": ["bash", "-c", _TRAINS]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert detect.load(tmp_path / "job.yaml").framework_date == "2024-10"
