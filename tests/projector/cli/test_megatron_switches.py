"""Switches of Megatron-LM that are no field by themselves, on the command line of the projector."""

from argparse import Namespace

import pytest

from projector.cli.megatron_switches import take
from projector.errors import InputError
from tests.projector.cli.cli_command import projector


def _taken(rest: str, **stated: str) -> tuple[dict[str, str], list[str]]:
    parsed = Namespace(stated={key: (f"--{key}", text) for key, text in stated.items()})
    left = take(parsed, rest.split())
    return {key: text for key, (_, text) in parsed.stated.items()}, left


@pytest.mark.parametrize(
    ("rest", "stated", "fields"),
    [
        ("--bf16", {}, {"precision": "bf16"}),
        ("--use-distributed-optimizer", {}, {"data_parallel_sharding": "optim"}),
        ("--use-torch-fsdp2", {}, {"data_parallel_sharding": "optim_grads_params"}),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            {},
            {"data_parallel_sharding": "optim_grads"},
        ),
        ("--recompute-activations", {}, {"recompute_granularity": "selective"}),
        ("--bf16 --fp8-format hybrid", {}, {"precision": "fp8"}),
        ("--fp8-format=hybrid --bf16", {"fp8_recipe": "mxfp8"}, {"precision": "mxfp8", "fp8_recipe": "mxfp8"}),
    ],
)
def test_they_mean_what_a_script_that_gives_them_means(
    rest: str, stated: dict[str, str], fields: dict[str, str]
) -> None:
    assert _taken(rest, **stated) == (fields, [])


@pytest.mark.parametrize(
    "rest", ["--foo", "--swiglu", "--num-layers-per-virtual-pipeline-stage 4", "--lr 1e-4", "word"]
)
def test_what_decides_no_field_is_left_for_the_error(rest: str) -> None:
    assert _taken(rest) == ({}, rest.split())


def test_a_word_behind_a_switch_is_left_as_well() -> None:
    assert _taken("--bf16 maybe")[1] == ["maybe"]


@pytest.mark.parametrize(
    ("rest", "stated"),
    [
        ("--bf16", {"precision": "fp16"}),
        ("--bf16 --fp16", {}),
        ("--use-distributed-optimizer", {"data_parallel_sharding": "no_shard"}),
    ],
)
def test_a_contradiction_is_a_mistake(rest: str, stated: dict[str, str]) -> None:
    with pytest.raises(InputError, match=rest.split()[-1]):
        _taken(rest, **stated)


def test_on_the_command_line() -> None:
    job = "--model gpt2 --gpu h100 --gpus 8 --micro-batch-size 1 --global-batch-size 8 --seq-length 1024"
    done = projector(
        "performance", *job.split(), "--bf16", "--use-distributed-optimizer", "--tensor-model-parallel-size", "2"
    )
    assert "data-parallel sharding optim" in done.out
    assert done.code == 0


def test_a_switch_whose_field_has_more_words_may_stand_alone() -> None:
    run = ("performance", "--model", "qwen3_30b_a3b", "--gpu", "h100", "--gpus", "8", "--ep", "8", "--gbs", "64")
    alone, said = (
        projector(*run, "--mbs", "1", "--seq-length", "4096", "--moe-grouped-gemm", *word, "--json")
        for word in ((), ("te",))
    )
    assert alone.document["recipe"]["moe_grouped_gemm"] == "te"
    assert alone.document == said.document
