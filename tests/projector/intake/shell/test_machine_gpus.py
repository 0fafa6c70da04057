"""The GPUs of a machine, where a script asks its machine: those that the cluster says a node has, said and used."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.errors import InputError
from projector.intake.loaded import Loaded
from projector.intake.scripts import load

_ARGUMENTS = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --bf16 --vocab-size 32000"
    " --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64\n"
)
_TORCH = "import torch; print(torch.cuda.device_count())"


def _loaded(folder: Path, text: str, node: int | None) -> Loaded:
    script = folder / "train.sh"
    script.write_text(text + _ARGUMENTS)
    return load(script, node_gpus=node)


@pytest.mark.parametrize(
    ("lines", "nodes", "asks"),
    [
        (f'N=$(python -c "{_TORCH}")\ntorchrun --nproc_per_node $N ', 1, "torch.cuda.device_count()"),
        (f"N=`python3 -c '{_TORCH}'`\ntorchrun --nnodes 2 --nproc_per_node $N ", 2, "torch.cuda.device_count()"),
        ("N=$(nvidia-smi --list-gpus | wc -l)\ntorchrun --nnodes 2 --nproc_per_node $N ", 2, "nvidia-smi --list-gpus"),
        (f"N=$(python -c '{_TORCH.replace('; ', chr(10))}')\ntorchrun --nproc_per_node $N ", 1, "device_count()"),
        ("N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node $N ", 1, "nvidia-smi -L"),
        ("N=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)\ntorchrun --nproc_per_node $N ", 1, "--query-gpu"),
        ("deepspeed ", 1, "deepspeed without --num_gpus"),
        ("deepspeed --num_nodes 3 --hostfile h ", 3, "deepspeed without --num_gpus"),
        ("torchrun --nproc_per_node gpu ", 1, "--nproc_per_node gpu"),
        ("accelerate launch ", 1, "accelerate without --num_processes"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("node", [4, 8])
def test_what_a_machine_is_asked_the_cluster_answers(
    tmp_path: Path, lines: str, nodes: int, asks: str, node: int
) -> None:
    found = _loaded(tmp_path, lines, node)
    assert found.gpus == nodes * node
    assert any(text.startswith(f"gpus_per_node={node}") and asks in text for text in found.assumed)
    with pytest.raises(InputError, match=r"--gpu NAME|known only when it runs"):
        _loaded(tmp_path, lines, None)


def test_what_a_script_lists_itself_counts(tmp_path: Path) -> None:
    found = _loaded(
        tmp_path, f'export CUDA_VISIBLE_DEVICES=0,1\nN=$(python -c "{_TORCH}")\ntorchrun --nproc_per_node $N ', 8
    )
    assert found.gpus == 2
    assert not any("gpus_per_node" in text for text in found.assumed)
    assert _loaded(tmp_path, "torchrun --nproc_per_node 2 ", 8).gpus == 2


@pytest.mark.parametrize(
    "how", ["#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python ", "srun --nodes=4 --gpus-per-node=8 python "]
)
def test_gpus_without_a_task_are_said_to_idle(tmp_path: Path, how: str) -> None:
    found = _loaded(tmp_path, f"#!/bin/bash\n{how}", 8)
    assert found.gpus == 4
    assert any("28 GPUs of the job idle" in text for text in found.assumed)
    busy = _loaded(tmp_path, f"#!/bin/bash\n{how.replace('python', '--ntasks-per-node=8 python')}", 8)
    assert busy.gpus == 32
    assert not any("idle" in text for text in busy.assumed)
