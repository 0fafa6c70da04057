"""NeMo 2 by the names of its recipes: a command line and Python say the same; what they leave open; what is refused."""

from pathlib import Path

import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import InputError, Unsupported
from projector.intake import detect, nemo_recipes
from projector.intake.loaded import Loaded
from projector.intake.tables import table
from projector.workload import zoo
from projector.workload.validate import problems

FACTORIES = sorted(table("nemo_recipes", "pretrain"))


def script(folder: Path, words: str) -> Loaded:
    (folder / "run.sh").write_text(f"#!/bin/bash\nnemo llm {words}\n")
    return detect.load(folder / "run.sh")


def program(folder: Path, text: str) -> Loaded:
    return detect.load(put(folder / "run.py", f"from nemo.collections import llm\n{text}\n"))


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_recipe_is_of_a_model_of_the_zoo_and_runs_as_it_is(factory: str) -> None:
    args = nemo_recipes.arguments_of(factory)
    assert zoo.load(nemo_recipes.model_of(factory))
    assert set(table("nemo_recipes", "beside")) <= set(FACTORIES)
    assert args["global_batch_size"] % args["micro_batch_size"] == 0


SIZES = {"trainer.strategy.tensor_model_parallel_size": 2, "data.global_batch_size": 64, "data.seq_length": 2048}


@given(
    st.sampled_from(["llama3_8b", "qwen3_8b", "gemma_2b"]), st.sets(st.sampled_from(sorted(SIZES))), st.integers(1, 4)
)
def test_a_program_says_what_a_command_line_says(tmp_path_factory, factory: str, changed: set[str], nodes: int) -> None:
    folder = tmp_path_factory.mktemp("f")
    stated = {name: SIZES[name] for name in sorted(changed)}
    words = " ".join(f"{name}={value}" for name, value in stated.items())
    line = script(folder, f'pretrain --factory "{factory}(num_nodes={nodes})" {words}')
    body = "\n".join(f"recipe.{name} = {value}" for name, value in stated.items())
    python = program(folder, f"recipe = llm.{factory}.pretrain_recipe(num_nodes={nodes})\n{body}")
    assert (line.model, line.recipe, line.gpus) == (python.model, python.recipe, python.gpus)
    assert line.gpus == 8 * nodes
    recipe = nemo_recipes.arguments_of(factory)
    assert line.recipe.seq_length == stated.get("data.seq_length", recipe["seq_length"])
    assert line.recipe.tp == stated.get(
        "trainer.strategy.tensor_model_parallel_size", recipe["tensor_model_parallel_size"]
    )
    assert problems(line.workload()) == () or nodes == 3


def test_what_the_recipe_leaves_open_is_its_own(tmp_path: Path) -> None:
    loaded = script(tmp_path, "pretrain --factory qwen3_32b trainer.max_steps=10")
    assert (loaded.recipe.recompute_granularity, loaded.recipe.pp, loaded.gpus) == ("full", 2, 16)
    assert any("the rest of the recipe qwen3_32b" in text for text in loaded.assumed)
    assert "max_steps" in loaded.ignored


@pytest.mark.parametrize(
    ("words", "error", "named"),
    [
        ("pretrain --factory llama3_9b", InputError, "llama3_9b.*llama3_8b"),
        ("pretrain --factory llama3_8b trainer.strategy.tensor_model_parallel_size=zq", InputError, "zq"),
        ("finetune --factory llama3_8b", Unsupported, "fine-tuning"),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, words: str, error: type[Exception], named: str) -> None:
    refusal(script, tmp_path, words, match=named, kind=error)


def test_what_nobody_knows_or_only_a_run_settles_is_told(tmp_path: Path) -> None:
    assert "a_new_kernel=fast (unknown)" in script(
        tmp_path, "pretrain --factory llama3_8b model.config.a_new_kernel=fast performance_mode=True"
    ).unmodelled  # fmt: skip
    with pytest.raises(InputError, match="tensor_model_parallel_size"):
        program(
            tmp_path, "r = llm.llama3_8b.pretrain_recipe()\nr.trainer.strategy.tensor_model_parallel_size = sizes()"
        )
    with pytest.raises(InputError, match="2 recipes"):
        program(tmp_path, "a = llm.llama3_8b.pretrain_recipe()\nb = llm.qwen3_8b.pretrain_recipe()")
    told = script(tmp_path, "pretrain --factory llama3_8b performance_mode=True").unmodelled
    assert "performance_mode=True" in told
