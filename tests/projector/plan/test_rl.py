"""A step of reinforcement learning: sums, limits and closed forms of its parts, and the command."""

import json
from dataclasses import replace

import pytest

from projector.cli import run
from projector.hardware.catalogue import cluster
from projector.plan.rl import RlStep, Rollout, forward_seconds, rl_step
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

ROLLOUT = Rollout(prompts=64, samples=4, prompt=1024, response=3072, rate=1000.0, gpus=16)
RECIPE = Recipe(micro_batch_size=1, global_batch_size=1, seq_length=1, data_parallel_sharding="optim", tp=2)
WORK = Workload(model=zoo.load("llama3.1_8b"), recipe=RECIPE, gpus=16, framework="megatron-lm")
HERE = cluster("h100_sxm")
WORDS = (
    "rl --model llama3.1_8b --gpu h100 --gpus 16 --tp 2 --mbs 1 --data-parallel-sharding optim --prompts 64 --samples 4 "
    "--prompt-length 1024 --response-length 3072 --rollout-rate 1000"
)
COMMAND = WORDS.split()


def step(work: Workload = WORK, updates: int = 1, **changes: object) -> RlStep:
    return rl_step(work, HERE, replace(ROLLOUT, **changes), updates)


def test_a_step_is_the_sum_of_its_parts_and_ahead_the_longer_side() -> None:
    turns = step()
    assert turns.seconds == pytest.approx(sum(turns.parts.values()))
    apart = step(apart=True, ahead=True)
    rest = apart.parts["log-probabilities"] + apart.parts["reference"] + apart.parts["training"]
    assert apart.seconds == pytest.approx(max(apart.parts["generation"], rest) + apart.parts["weights"])
    even = step(apart=True, ahead=True, gpus=round(apart.even))
    assert even.parts["generation"] == pytest.approx(rest, rel=1 / apart.even)


def test_generation_is_tokens_over_the_given_rate() -> None:
    assert step().parts["generation"] == pytest.approx(64 * 4 * 3072 / (1000 * 16))
    assert step(rate=2000.0).parts["generation"] == pytest.approx(step().parts["generation"] / 2)


def test_updates_add_steps_of_the_optimizer_and_nothing_else() -> None:
    one, four = step(), step(updates=4)
    assert four.parts["training"] > one.parts["training"]
    assert four.parts["log-probabilities"] == pytest.approx(one.parts["log-probabilities"], rel=1e-9)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (4, 2)])
def test_a_forward_lies_between_its_work_and_a_step(pp: int, vpp: int) -> None:
    made = step(replace(WORK, recipe=replace(RECIPE, pp=pp, vpp=vpp))).made
    forward = [seconds for seconds, _ in made.stage_seconds]
    passes = made.resolved.workload.num_microbatches
    assert passes * sum(forward) / pp <= forward_seconds(made) * (1 + 1e-9)
    assert forward_seconds(made) < made.step_seconds / 2
    if pp == 1:
        assert forward_seconds(made) == pytest.approx(passes * sum(forward))


def test_weights_are_never_faster_than_the_links() -> None:
    bound = 2 * count(WORK.model).total * 15 / 16 / (HERE.intra.bandwidth)
    assert step().parts["weights"] > bound
    assert step(apart=True).parts["weights"] >= step().parts["weights"]


def test_the_command_says_its_parts(capsys) -> None:
    assert run([*COMMAND, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_seconds"] == pytest.approx(sum(found["parts"].values()))
    assert (found["recipe"]["global_batch_size"], found["recipe"]["seq_length"]) == (256, 4096)
    assert run(COMMAND) == 0
    assert "the rate that was given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--gbs", "64"], "--gbs: found '64', expected none: 256 follow from the answers"),
        (["--updates", "3"], "--updates: found 3, expected a divisor of 256 answers (prompts × samples)"),
        (["--ahead"], "--ahead: found 'no --rollout-gpus', expected GPUs of their own that generate meanwhile"),
    ],
)
def test_what_contradicts_the_answers_is_refused(more: list[str], words: str, capsys) -> None:
    assert run([*COMMAND, *more]) == 2
    assert capsys.readouterr().err.strip() == words
