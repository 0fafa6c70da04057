"""A whole run: failures against saves, laws of the four figures, published interruptions, prices, the command."""

import re
from dataclasses import replace
from itertools import pairwise

import command_line
import numpy as np
import pytest
from asked import put, refusal, says
from tabled import tabled

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.hardware.catalogue import cluster
from projector.parameter import Parameter
from projector.plan import goodput
from projector.plan.assumptions import ASSUMPTIONS, WORDS, assumed, ends
from projector.plan.forecast import Run, figures, forecast
from projector.plan.price import Price, read_price
from projector.plan.rl import RlStep, Rollout, forward_seconds, rl_step
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

HOUR, DAY = 3600.0, 86400.0
MIDDLE = {name: each.value for name, each in ASSUMPTIONS.items()} | {"step_seconds": 20.0}
RUN = Run(tokens=15e12, tokens_per_step=2**24, gpus=16_384, watts=700.0)


def test_the_best_interval_is_a_minimum_and_young_and_daly_approach_it() -> None:
    for save, mean in ((5.0, 3 * HOUR), (60.0, 3.09 * HOUR), (300.0, HOUR), (4 * HOUR, HOUR)):
        best = goodput.interval(save, mean)
        at = goodput.stretch(best, save, 600.0, mean)
        around = goodput.stretch(best * np.array([0.9, 0.99, 1.01, 1.1]), save, 600.0, mean)
        assert (around > at).all()
        assert best <= mean
    mean = 1e6
    errors = [abs(law(save, mean) / goodput.interval(save, mean) - 1) for law in (goodput.young, goodput.daly)
              for save in (100.0, 1.0)]  # fmt: skip
    assert errors[0] > errors[1] > 0  # Young: first order
    assert errors[2] < errors[0] / 100  # Daly: two orders more
    assert max(errors) < 0.01
    assert goodput.daly(5 * HOUR, HOUR) == HOUR


def test_worked_figures_of_llama_3() -> None:
    """A failure every 3.09 h, 10 minutes to restart: saves of 60 s give about 0.85, of 5 s about 0.92."""
    mean = 3.09 * HOUR
    assert goodput.interval(60.0, mean) / 60 == pytest.approx(19.0, abs=0.5)
    shares = [1 / goodput.stretch(goodput.interval(c, mean), c, 600.0, mean) for c in (60.0, 5.0)]
    assert shares == pytest.approx([0.85, 0.92], abs=0.01)


@pytest.mark.parametrize(
    ("save", "restart", "mean"), [(60.0, 600.0, 3 * HOUR), (300.0, 1200.0, HOUR), (5.0, 60.0, DAY)]
)
def test_simulated_runs_agree_with_the_law(save: float, restart: float, mean: float) -> None:
    work = goodput.interval(save, mean)
    made = goodput.simulate(30 * DAY, work, save, restart, mean, seed=1, runs=400)
    law = 1 / goodput.stretch(work, save, restart, mean)
    assert made.goodput == pytest.approx(law, rel=0.004)
    assert made.low < law < made.high
    assert made.failures == pytest.approx(30 * DAY / law / mean, rel=0.02)
    assert made == goodput.simulate(30 * DAY, work, save, restart, mean, seed=1, runs=400)


def test_no_failures_leave_saves_alone_and_many_stop_a_run() -> None:
    assert goodput.stretch(3600.0, 36.0, 600.0, 1e15) == pytest.approx(1.01)
    ranges = {**ASSUMPTIONS, "step_seconds": Parameter(20.0), "failures_per_node_day": Parameter(1e4)}
    refusal(forecast, RUN, ranges, match="gets nowhere", kind=Unsupported)


def test_laws_of_the_figures() -> None:
    first = figures(RUN, MIDDLE)
    assert first.cost is None
    twice = figures(replace(RUN, tokens=2 * RUN.tokens), MIDDLE)
    assert (twice.days, twice.mwh) == pytest.approx((2 * first.days, 2 * first.mwh))
    assert first.gpu_hours == pytest.approx(24 * first.days * RUN.gpus)
    assert first.mwh == pytest.approx(first.kilowatts * first.days * 24 / 1e3)
    more = figures(replace(RUN, gpus=2 * RUN.gpus), MIDDLE)
    assert more.goodput < first.goodput
    assert more.between_failures_s == pytest.approx(first.between_failures_s / 2)
    for name in ASSUMPTIONS:
        worse = figures(RUN, {**MIDDLE, name: 1.1 * MIDDLE[name]})
        assert worse.mwh > first.mwh, name
        assert (worse.days > first.days) == (name not in ("power_share", "server_over_boards", "pue")), name
    paid = figures(RUN, {**MIDDLE, "price_per_gpu_hour": 2.0, "energy_price_per_kwh": 0.1})
    assert paid.cost == pytest.approx(2 * first.gpu_hours + 100 * first.mwh)


def test_interruptions_of_llama_3_from_failures_of_other_clusters() -> None:
    """419 unplanned interruptions in 54 days of 16,384 H100 (arXiv 2407.21783, table 5), goodput above 90 %."""
    a_day = {name: 86400 / figures(RUN, {**MIDDLE, "failures_per_node_day": end}).between_failures_s
             for name, end in zip("lmh", ends(ASSUMPTIONS["failures_per_node_day"]), strict=True)}  # fmt: skip
    assert 54 * a_day["m"] == pytest.approx(419, rel=0.05)
    assert 54 * a_day["l"] < 419 < 54 * a_day["h"]
    found = forecast(RUN, {**ASSUMPTIONS, "step_seconds": Parameter(20.0)})
    assert found.low.goodput < 0.9 < found.high.goodput


def test_intervals_hold_the_middle_and_what_is_stated_is_certain() -> None:
    ranges = {**ASSUMPTIONS, "step_seconds": Parameter(20.0, low=18.0, high=24.0)}
    found = forecast(RUN, ranges, seed=3)
    assert found.low.days < found.middle.days < found.high.days
    assert forecast(RUN, ranges, seed=3) == found
    sizes = [each.most for each in found.moved]
    assert sizes == sorted(sizes, reverse=True)
    certain = {name: Parameter(each.value) for name, each in ranges.items()}
    alone = forecast(RUN, certain)
    assert alone.low.days == alone.high.days == pytest.approx(found.middle.days)
    one = forecast(RUN, {**certain, "step_seconds": ranges["step_seconds"]})
    ratios = (one.low.days / one.middle.days, one.high.days / one.middle.days)
    assert ratios == pytest.approx((18 / 20, 24 / 20), rel=0.01)


def test_assumptions_from_words() -> None:
    found = assumed(["pue=1.1", "restart_s=120,60,300"])
    assert [ends(found[name]) for name in ("pue", "restart_s")] == [(1.1, 1.1, 1.1), (60.0, 120.0, 300.0)]
    assert set(ASSUMPTIONS) < set(WORDS)
    wrong = ["pue", "pue=0.5", "pue=nan", "pue=1.3,1.4,1.5", "pue=1.1,1.2", "prize=3", "restart_s=inf"]
    assert len(refusal(assumed, wrong).problems) == len(wrong)


def test_prices_of_a_file(tmp_path) -> None:
    def price(text: str) -> Price:
        return read_price(str(put(tmp_path / "price.yaml", f"{text}\ncurrency: USD\nsource: an offer\n")))

    made = price("price_per_gpu_hour: {value: 2, low: 1, high: 3}")
    assert (made.gpu_hour("h100_sxm"), made.currency) == (2.0, "USD")
    assert ends(made.ranges["price_per_gpu_hour"]) == (1.0, 2.0, 3.0)
    by_gpu = price("price_by_gpu: {h100: 3}\nprice_per_gpu_hour: 2")
    assert [by_gpu.gpu_hour(gpu) for gpu in ("h100_sxm", "mi300x")] == [3.0, 2.0]
    assert read_price("2.5").gpu_hour("mi300x") == 2.5
    for text in ("nan", "-1", "inf", "0"):
        refusal(read_price, text)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("price_per_gpu_hour: .nan\nenergy_price_per_kwh: -1", {"price_per_gpu_hour", "energy_price_per_kwh"}),
        ("price_per_gpu_hour: 2\ncurency: USD\nsource: ''", {"curency", "currency", "source"}),
        ("price_by_gpu: {h100: 3, abacus: 1, mi300x: -1}", {"price_by_gpu.abacus", "price_by_gpu.mi300x"}),
        ("", {"price_per_gpu_hour"}),
    ],
)
def test_mistakes_of_a_price_are_named_by_their_keys(tmp_path, text: str, keys: set[str]) -> None:
    rest = "" if "source" in text else "\ncurrency: USD\nsource: an offer"
    caught = refusal(read_price, str(put(tmp_path / "price.yaml", f"{text}{rest}\n")))
    assert {problem.key for problem in caught.problems} == keys


CASE = """\
model: llama3.1_8b
cluster: h100_sxm
gpus: 256
framework: megatron-lm
recipe: {tp: 2, micro_batch_size: 1, global_batch_size: 512, seq_length: 8192, data_parallel_sharding: optim}
"""


def test_the_command_says_it_as_a_page_and_as_a_document(case: str) -> None:
    words = ["plan", "--config", case, "--tokens", "15T", "--price", "2"]
    page = command_line.told("projector", *words)
    says(page, "15T tokens", "GPU-hours", "cost", "On more GPUs", "131,072", "What moves it most", "Young", "PUE")
    found = command_line.document("projector", *words)
    assert found["steps"] == pytest.approx(15e12 / 512 / 8192)
    figures = found["figures"]
    assert figures["low"]["days"] < figures["middle"]["days"] < figures["high"]["days"]
    assert figures["middle"]["cost"] == pytest.approx(2 * figures["middle"]["gpu_hours"])
    assert found["simulated"]["goodput"] == pytest.approx(figures["middle"]["goodput"], rel=0.01)
    sizes = found["sizes"]
    assert [each["gpus"] for each in sizes] == [256 * 2**i for i in range(10)]
    for before, after in pairwise(sizes):
        assert before["slowest_chip"] < after["slowest_chip"]
        assert before["figures"]["middle"]["goodput"] > after["figures"]["middle"]["goodput"]
    assert sizes[0]["figures"] == figures
    batches = [each["global_batch_size"] for each in sizes]
    assert batches[:4] == [512, 512, 512, 1024]  # a micro-batch for each replica, then the batch grows
    assert {"step_seconds", "slowest_chip", "pue"} <= {each["name"] for each in found["assumptions"]}
    assert all(each["source"] for each in found["assumptions"])


def test_the_interval_of_a_step_is_that_of_its_projection(case: str) -> None:
    asked = ["--config", case, "--cp", "4"]
    told = command_line.document("projector", "performance", *asked)["projections"]["simulate"]["expected"]
    planned = command_line.document("projector", "plan", *asked, "--tokens", "1T")
    (step,) = [each for each in planned["assumptions"] if each["name"] == "step_seconds"]
    assert (step["low"], step["high"]) == pytest.approx((told["low"], told["high"]))


def test_an_end_of_a_range_at_which_the_run_stops(case: str) -> None:
    words = ["plan", "--config", case, "--tokens", "1T", "--assume", "failures_per_node_day=0.01,0.001,100"]
    out = command_line.told("projector", *words)
    assert "stops" in out
    assert "nan" not in out
    found = command_line.document("projector", *words)
    (moved,) = [each for each in found["assumptions"] if each["name"] == "failures_per_node_day"]
    assert moved["change"]["days"][1] is None


@pytest.mark.parametrize(("words", "found"), tabled("refusals", "plan"))
def test_bad_input(case: str, words: tuple[str, ...], found: str) -> None:
    assert found in command_line.refused("projector", "plan", "--config", case, *words)


def test_every_board_has_a_rated_power_with_a_source() -> None:
    from projector.constants import every

    known = every()
    for name in catalogue.gpu_names():
        assert known[f"gpus.{name}.tdp_watts"].value == catalogue.gpu(name).tdp_watts, name


@pytest.mark.parametrize(
    ("tokens", "title"), [("16.384M", "16.38M tokens"), ("100k", "100k tokens"), ("2.5B", "2.5B tokens")]
)
def test_a_short_run_has_its_length_in_a_unit_that_shows_it(tokens: str, title: str) -> None:
    job = ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--tp", "2", "--mbs", "1", "--gbs", "16")
    said = command_line.told("projector", "plan", "--tokens", tokens, *job, "--seq-length", "4096")
    assert title in said
    assert not re.search(r"\b0\.0\b(?! %)|\de-\d", said)


# A step of reinforcement learning: sums, limits and closed forms of its parts, and the command.


ROLLOUT = Rollout(prompts=64, samples=4, prompt=1024, response=3072, rate=1000.0, gpus=16)
RECIPE = Recipe(micro_batch_size=1, global_batch_size=1, seq_length=1, data_parallel_sharding="optim", tp=2)
WORK = Workload(model=zoo.load("llama3.1_8b"), recipe=RECIPE, gpus=16, framework="megatron-lm")
HERE = cluster("h100_sxm")
RL_WORDS = (
    "rl --model llama3.1_8b --gpu h100 --gpus 16 --tp 2 --mbs 1 --data-parallel-sharding optim --prompts 64 --samples 4 "
    "--prompt-length 1024 --response-length 3072 --rollout-rate 1000"
)
COMMAND = RL_WORDS.split()


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


def test_the_command_says_its_parts() -> None:
    found = command_line.document("projector", *COMMAND)
    assert found["step_seconds"] == pytest.approx(sum(found["parts"].values()))
    assert (found["recipe"]["global_batch_size"], found["recipe"]["seq_length"]) == (256, 4096)
    assert "the rate that was given" in command_line.told("projector", *COMMAND)
    ppo = command_line.document("projector", *COMMAND, "--critic")["parts"]
    assert {**ppo, "values": 0.0, "critic": 0.0} == found["parts"]
    assert (ppo["values"], ppo["critic"]) == (ppo["log-probabilities"], ppo["training"])
    assert "--optimizer: found 'nothing'" in command_line.refused("projector", *COMMAND, "--strict")
    twice = command_line.document("projector", *COMMAND, "--critic", "--updates", "2")["parts"]
    assert (twice["values"], twice["critic"]) == (twice["log-probabilities"], twice["training"])


@pytest.mark.parametrize(("more", "words"), tabled("refusals", "reinforcement"))
def test_what_contradicts_the_answers_is_refused(more: list[str], words: str) -> None:
    assert command_line.refused("projector", *COMMAND, *more).strip() == words
