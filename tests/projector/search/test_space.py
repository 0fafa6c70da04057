"""What a space holds: nothing that would be refused, nothing twice, each layout whole."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asked import refusal
from tabled import tabled

from projector import project_many
from projector.frameworks.resolve import EXCHANGE
from projector.hardware import catalogue
from projector.search.axes import layouts, written
from projector.search.branch_and_bound import BranchAndBound
from projector.search.objective import Objective
from projector.search.space import space, with_fields
from projector.search.tree import Tree
from projector.search.words import words
from projector.settle import arguments, launch
from projector.workload import zoo
from projector.workload.layout import chunks
from tests.searched import H100, SEEDS, base, brute, every_layout, small


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_proposed_that_would_be_refused(seed: int) -> None:
    made, _ = small(seed)
    every, many = brute(seed)
    assert "invalid" not in many.status
    for fields in every:
        load = with_fields(made.base, fields)
        assert not arguments.workload_problems(load)
        assert not launch.problems(load)


@pytest.mark.parametrize("seed", SEEDS)
def test_combinations_are_valid_or_refused(seed: int) -> None:
    tree = Tree(small(seed)[0])
    valid = sum(len(once) for branch in tree.branches() for once in branch.step_options)
    assert valid + sum(tree.refused.values()) == tree.space.points


REFUSED = tabled("workloads", "refused")  # fmt: skip


@pytest.mark.parametrize(("stated", "key"), REFUSED)
def test_a_rule_of_the_framework_refuses(stated: dict[str, Any], key: str) -> None:
    load = base("llama3_8b", 8)
    assert not launch.problems(load)
    wrong = launch.problems(replace(load, recipe=replace(load.recipe, **stated)))
    assert [problem.key for problem in wrong] == [f"recipe.{key}"]


@pytest.mark.parametrize(
    ("framework", "etp", "wrong"), [("torchtitan", 1, 1), ("torchtitan", 2, 0), ("megatron-lm", 1, 0)]
)
def test_torchtitan_cuts_experts_without_a_group_as_it_cuts_the_rest(framework: str, etp: int, wrong: int) -> None:
    load = base("deepseek_v3_16b", 8, framework)
    told = launch.problems(replace(load, recipe=replace(load.recipe, tp=2, ep=1, etp=etp)))
    assert [problem.key for problem in told] == ["recipe.etp"] * wrong


def test_groups_are_what_framework_and_device_have() -> None:
    """Numbers and offload are searched where they are asked for, by brute force alike; a rule refuses what excludes."""
    only = {"tp": (2,), "pp": (1, 2), "cp": (1,), "micro_batch_size": (1,), "vpp": (1,), "tp_comm_overlap": (False,)}
    only |= {"recompute_granularity": ("none",), "sequence_parallel": (True,), "data_parallel_sharding": ("optim",)}
    only |= {"overlap_grad_reduce": (False,)}
    made = space(base("llama3_8b", 16), H100, only=only, vary={"precision": (), "offload": ()})
    assert made.axes()["precision"] == ("bf16", "fp8")
    every = every_layout(Tree(made))
    assert {bool(each["optimizer_cpu_offload"]) for each in every} == {True, False}
    assert not [each for each in every if each["cpu_offloading_num_layers"] and each["pp"] > 1]
    many = project_many([with_fields(made.base, each) for each in every], H100, best=1)
    solver = BranchAndBound(Tree(made), H100, Objective(), top=1)
    solver.run()
    assert 1 / solver.leaders[0].value == pytest.approx(np.nanmax(many.tgs), rel=1e-9)
    ampere = catalogue.default_cluster("a100_sxm_80gb")
    refusal(space, base("llama3_8b", 8), ampere, vary={"precision": ()}, match="nothing to choose")


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(61, 16, 1), (78, 8, 1), (32, 2, 1), (32, 3, 2), (126, 16, 2)])
def test_ends_are_lighter_and_laid_out(layers: int, pp: int, vpp: int) -> None:
    load = base("llama3_8b", 48)
    load = replace(load, model=replace(load.model, num_layers=layers))
    ends = [each for each in layouts(load, pp, vpp) if "decoder_last_pipeline_num_layers" in each]
    assert ends
    for each in ends:
        made = chunks(load.model, replace(load.recipe, pp=pp, vpp=vpp, **each))
        counts = [sum(len(chunk.layers) for chunk in made if chunk.rank == rank) for rank in range(pp)]
        assert sum(counts) == layers
        assert counts[-1] <= counts[0] <= max(counts)
        assert max(counts) - min(counts) <= 2 * vpp


def test_torchtitan_has_no_switch_for_what_fsdp_does() -> None:
    made = space(base("llama3_8b", 8, "torchtitan"), H100)
    assert not {"overlap_grad_reduce", "overlap_param_gather"} & set(made.axes())


@pytest.mark.parametrize(("layers", "mtp", "stages"), [(61, 1, 16), (61, 1, 8), (80, 0, 12), (32, 0, 7), (5, 2, 4)])
def test_a_layout_that_is_written_is_one(layers: int, mtp: int, stages: int) -> None:
    text = written(layers, mtp, stages)
    assert text is not None
    model = replace(zoo.load("llama3_8b"), num_layers=layers, mtp_num_layers=mtp)
    recipe = replace(base("llama3_8b", 8).recipe, pp=stages, pipeline_model_parallel_layout=text)
    made = chunks(model, recipe)
    assert len(made) == stages
    assert sum(len(chunk.layers) for chunk in made) == layers
    weights = [len(c.layers) + c.embedding + c.head + c.mtp for c in made]
    assert max(weights) - min(weights) <= 1 + mtp


@pytest.mark.parametrize("framework", ["megatron-lm", "pytorch", "deepspeed"])
def test_no_two_layouts_are_told_in_the_same_words(framework: str) -> None:
    made = space(base("mixtral_8x7b", 64, framework, seq_length=8192), catalogue.cluster("h100_sxm"))
    sizes = {**made.stated, "tp": 2, "pp": 1, "micro_batch_size": 1}
    told = [words({**sizes, **layers, **once}) for layers in made.layer_options for once in made.step_options]
    assert len(set(told)) == len(told)


@pytest.mark.parametrize("model", ["llama3.1_8b", "mixtral_8x7b"])
def test_no_switch_of_a_group_of_one_rank_is_set(model: str) -> None:
    made = Tree(space(base(model, 1), H100))
    branch = next(made.branches())
    told = made.fields(branch.shape, branch.pipe, branch.layers[0], branch.step_options[0][0])
    assert not {"data_parallel_sharding", "overlap_grad_reduce", "overlap_param_gather", *EXCHANGE} & told.keys()
    assert words(told) == "one GPU, mbs 1"


def test_one_gpu_may_keep_its_optimizer_on_the_host() -> None:
    every = every_layout(Tree(space(base("llama3.1_8b", 1), H100, vary={"offload": ()})))
    assert {bool(each.get("optimizer_cpu_offload")) for each in every} == {True, False}


@pytest.mark.parametrize(
    ("model", "gpus", "sizes", "alone"),
    [
        ("llama3.1_8b", 1, {}, True),
        ("llama3.1_8b", 8, {"tp": 4, "pp": 2}, True),
        ("llama3.1_8b", 8, {"tp": 4}, False),
        ("llama3.1_8b", 8, {"tp": 4, "cp": 2}, False),
        ("mixtral_8x7b", 4, {"tp": 4, "etp": 1, "ep": 4}, True),
        ("mixtral_8x7b", 4, {"tp": 4, "etp": 1, "ep": 2}, False),  # two ranks hold the same experts
    ],
)
def test_a_rank_is_alone_where_no_other_holds_its_weights(
    model: str, gpus: int, sizes: dict[str, int], alone: bool
) -> None:
    assert base(model, gpus, **sizes).alone is alone
