"""The environment of a launch: what it sets is set, what it changes and nobody models is named, all else says nothing."""

from pathlib import Path

import pytest

from projector.intake import environment, scripts
from projector.intake.loaded import Loaded
from projector.workload import zoo
from projector.workload.recipe import Recipe

COMPILED = Loaded(
    model=zoo.load("llama3_8b"),
    recipe=Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096, torch_compile=True),
)
SCRIPT = """{exports}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 128 --bf16 --vocab-size 32000 \\
 --tokenizer-type NullTokenizer
"""


@pytest.mark.parametrize(
    ("name", "changes", "keeps"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "0"), ("NCCL_IB_DISABLE", "1", "0"), ("NCCL_NET", "Socket", "IB"),
        ("NCCL_NET_GDR_LEVEL", "LOC", "SYS"), ("NCCL_IB_HCA", "mlx5_0:1", "mlx5"), ("NCCL_ALGO", "Ring", ""),
        ("HSA_OVERRIDE_GFX_VERSION", "9.4.2", ""), ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "INFO"),
        ("NCCL_BLOCKING_WAIT", "1", "0"), ("NCCL_NVLS_ENABLE", "0", "1"), ("NCCL_DEBUG", None, "INFO"),
    ],
)  # fmt: skip
def test_a_variable_that_changes_speed_is_named_where_its_value_does(
    name: str, changes: str | None, keeps: str
) -> None:
    assert environment.within(COMPILED, {name: keeps}) == COMPILED
    if changes is not None:
        (told,) = environment.within(COMPILED, {name: f" {changes}"}).unmodelled
        assert told.startswith(f"{name}={changes}: ")


def test_a_variable_that_is_a_setting_sets_it_and_says_so() -> None:
    found = environment.within(COMPILED, {"TORCHDYNAMO_DISABLE": "1"})
    assert found.recipe.torch_compile is False
    assert found.assumed == ("torch_compile=False (TORCHDYNAMO_DISABLE=1)",)
    assert environment.within(found, {"TORCHDYNAMO_DISABLE": "1"}) == found


def test_a_script_tells_what_it_exports_and_not_what_it_keeps_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(exports="export CUDA_LAUNCH_BLOCKING=1\nNCCL_P2P_DISABLE=1\nexport NCCL_ALGO=$UNSET"))
    named = [text.partition("=")[0] for text in scripts.load(path).unmodelled]
    assert "CUDA_LAUNCH_BLOCKING" in named
    assert not {"NCCL_P2P_DISABLE", "NCCL_ALGO"} & set(named)
