"""Launch scripts of Megatron-LM itself: GPUs, layout and model that their text says, read by hand, or the true refusal."""

from pathlib import Path

import pytest
import yaml
from asked import put, refusal
from tabled import tabled

from projector.errors import Unsupported
from projector.intake import detect
from projector.intake.loaded import Loaded
from projector.intake.scripts import load

#: gpus, tp, pp, vpp, micro-batch, global batch, sequence, layers, hidden size, recompute, sharding.
READ = tabled("readers", "megatron_scripts_read")
#: What each refusal must name.
REFUSED = tabled("readers", "megatron_scripts_refused")
OTHER = tabled("readers", "megatron_scripts_other")


@pytest.fixture
def scripts(shared: Path) -> Path:
    folder = shared / "inputs" / "megatron-lm" / "examples"
    if not folder.is_dir():
        pytest.skip("Megatron-LM's launch scripts (../shared/inputs) are not on this machine")
    return folder


def test_every_script_is_read_or_refused_here(scripts: Path) -> None:
    there = {str(file.relative_to(scripts)) for file in scripts.rglob("*.sh")}
    assert there == {*READ, *REFUSED, *OTHER}


@pytest.mark.parametrize("name", READ)
def test_what_the_text_says(scripts: Path, name: str) -> None:
    loaded = detect.load(scripts / name)
    recipe, model = loaded.recipe, loaded.model
    found = (loaded.gpus, recipe.tp, recipe.pp, recipe.vpp, recipe.micro_batch_size, recipe.global_batch_size)
    found += (recipe.seq_length, model.num_layers, model.hidden_size)
    assert (*found, recipe.recompute_granularity, recipe.data_parallel_sharding) == READ[name]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_for_what_is_missing(scripts: Path, name: str) -> None:
    refusal(detect.load, scripts / name, match=REFUSED[name])


@pytest.mark.parametrize("name", OTHER)
def test_other_trainings_are_named(scripts: Path, name: str) -> None:
    refusal(detect.load, scripts / name, match=OTHER[name], kind=Unsupported)


def test_the_environment_completes_a_batch_job(scripts: Path) -> None:
    file = scripts / "megatron_fsdp" / "sbatch_mfsdp_deepseek_v3.sh"
    loaded = detect.load(file, env={"SLURM_NNODES": "32", "SLURM_NTASKS_PER_NODE": "8", "EP": "16"})
    recipe = loaded.recipe
    assert (loaded.gpus, recipe.ep, recipe.micro_batch_size, recipe.global_batch_size) == (256, 16, 4, 2048)
    assert recipe.recompute_modules == ("mlp", "moe", "mla_up_proj", "layernorm")
    assert (loaded.model.vocab_size, recipe.make_vocab_size_divisible_by) == (128815, 3232)


def test_a_size_is_chosen_in_the_text(scripts: Path, tmp_path: Path) -> None:
    folder = scripts / "academic_paper_scripts" / "sc21"
    for file in folder.glob("*.sh"):
        (tmp_path / file.name).write_text(file.read_text().replace("MODEL_SIZE=1.7B", "MODEL_SIZE=530B"))
    loaded = detect.load(tmp_path / "run_table_1.sh")
    recipe = loaded.recipe
    assert (loaded.gpus, recipe.tp, recipe.pp, recipe.vpp, recipe.global_batch_size) == (2520, 8, 35, 3, 2520)
    assert (loaded.model.num_layers, loaded.model.hidden_size) == (105, 20480)


# The GPUs of a machine, where a script asks its machine: those that the cluster says a node has, said and used.


_ARGUMENTS = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --bf16 --vocab-size 32000"
    " --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64\n"
)
_TORCH = "import torch; print(torch.cuda.device_count())"


def _loaded(folder: Path, text: str, node: int | None) -> Loaded:
    return load(put(folder / "train.sh", text + _ARGUMENTS), node_gpus=node)


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
def test_what_a_machine_is_asked_the_cluster_answers(tmp_path, lines: str, nodes: int, asks: str, node: int) -> None:
    found = _loaded(tmp_path, lines, node)
    assert found.gpus == nodes * node
    assert any(text.startswith(f"gpus_per_node={node}") and asks in text for text in found.assumed)
    refusal(_loaded, tmp_path, lines, None, match=r"--gpu NAME|known only when it runs")


def test_what_a_script_lists_itself_counts(tmp_path: Path) -> None:
    found = _loaded(
        tmp_path, f'export CUDA_VISIBLE_DEVICES=0,1\nN=$(python -c "{_TORCH}")\ntorchrun --nproc_per_node $N ', 8
    )
    assert found.gpus == 2
    assert not any("gpus_per_node" in text for text in found.assumed)
    assert _loaded(tmp_path, "torchrun --nproc_per_node 2 ", 8).gpus == 2


@pytest.mark.parametrize("sizes", ["-N 4 -n 16", "-N4 -n16 -g1 -o mpibind=off", "--nodes=4 --tasks-per-node=4"])
def test_flux_starts_tasks_as_srun_does(tmp_path: Path, sizes: str) -> None:
    assert _loaded(tmp_path, f"flux run {sizes} python ", 4).gpus == 16
    refusal(_loaded, tmp_path, "flux run python ", 4, match="--gpus N")


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


# The month of the stack, by the container image that a script or a manifest names.


_TRAINS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --max-position-embeddings 4096"
)


def _load(folder: Path, before: str) -> Loaded:
    (folder / "run.sh").write_text(f"#!/bin/bash\n{before} {_TRAINS}\n")
    return detect.load(folder / "run.sh")


@pytest.mark.parametrize(("before", "month"), tabled("readers", "the_image_of_a_script_says_its_month"))
def test_the_image_of_a_script_says_its_month(tmp_path: Path, before: str, month: str) -> None:
    loaded = _load(tmp_path, before)
    assert (loaded.framework_date, loaded.gpus) == (month, 8)
    assert any(note.startswith(f"framework_date={month} (") for note in loaded.assumed) == bool(month)


def test_the_image_of_a_manifest_does_as_well(tmp_path: Path) -> None:
    container = {"name": "main", "image": "nvcr.io/nvidia/pytorch:24.10-py3", "command": ["bash", "-c", _TRAINS]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}
    assert detect.load(put(tmp_path / "job.yaml", yaml.safe_dump(job))).framework_date == "2024-10"


SIZES = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"


def test_ranks_that_nothing_counts_are_asked_for(tmp_path: Path) -> None:
    """A variable of mpirun's without its value is no switch; a local rank of torchrun's takes none."""
    each = f"{SIZES} --vocab-size 64 --micro-batch-size 1 --global-batch-size 8"
    of_mpi = put(
        tmp_path / "m.sh", f"python pretrain_gpt.py --world-size ${{OMPI_COMM_WORLD_SIZE}} --rank $RANK {each}\n"
    )
    refusal(load, of_mpi, match="gpus.*--gpus N")
    assert load(of_mpi, gpus_given=True).gpus is None
    virtual = put(tmp_path / "v.sh", f"torchrun --nproc_per_node 4 --virtual-local-rank pretrain_gpt.py {each}\n")
    assert load(virtual).gpus == 4
