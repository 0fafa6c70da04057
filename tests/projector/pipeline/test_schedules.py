"""Every schedule: complete, free of deadlock, in the published order, found under the names the field uses."""

from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from naive_pipeline import simulate
from tabled import tabled

from projector import pipeline
from projector.errors import InputError
from projector.pipeline.compiler import Deadlock, compile_schedule
from projector.pipeline.types import Action, Schedule, loop_placement
from projector.settle.scheduling import conflict as conflict_of
from projector.workload.recipe import Recipe
from projector.workload.value_checks import CHOICES


@st.composite
def sizes(draw):
    name = draw(st.sampled_from(pipeline.names()))
    chunks, unit = pipeline.generator(name).chunks, pipeline.generator(name).multiples
    vpp = chunks or draw(st.integers(1, 4)) * unit.get("vpp", 1)
    pp, m = draw(st.integers(1, 7)) * unit.get("pp", 1), draw(st.integers(1, 17)) * unit.get("microbatches", 1)
    group = draw(st.none() | st.integers(min(pp, m), 12)) if chunks is None else None
    return name, pp, vpp, m, group, draw(st.integers(0, 2))


@given(sizes())
def test_every_action_once_and_no_deadlock(case):
    schedule = pipeline.build(*case)
    _, pp, vpp, m, *_ = case
    kinds = "FBW" if schedule.split else "FB"
    done = Counter(
        (kind, own[chunk], number)
        for own, order in zip(schedule.placement, schedule.orders, strict=True)
        for kind, chunk, number in order
    )
    assert done == Counter((k, stage, i) for k in kinds for stage in range(pp * vpp) for i in range(m))
    for order in schedule.orders:
        assert Counter(chunk for _, chunk, _ in order) == dict.fromkeys(
            range(schedule.chunks), len(kinds) * schedule.each
        )
    ones = [1.0] * (pp * vpp)
    assert len(simulate(schedule, ones, ones, ones)) == sum(map(len, schedule.orders))
    assert Counter(chain(*schedule.placement)) == dict.fromkeys(range(pp * vpp), schedule.copies)


@pytest.mark.parametrize(
    ("pp", "vpp", "m", "group"),
    # whole groups, and 13 = 8 + 5, whose last group Megatron takes: it has a micro-batch for each of 4 ranks
    [
        *((pp, 1, m, None) for pp, m in ((1, 1), (1, 5), (4, 1), (4, 2), (4, 4), (4, 8), (8, 3), (8, 64))),
        *((4, vpp, m, None) for vpp, m in ((2, 8), (3, 24), (4, 4), (2, 16))),
        *((4, *sizes) for sizes in ((2, 8, 8), (3, 24, 6), (3, 24, 8), (2, 16, 8), (2, 13, 8))),
    ],
)
def test_the_warm_up(pp, vpp, m, group):
    for rank, order in enumerate(pipeline.build("interleaved" if vpp > 1 else "1f1b", pp, vpp, m, group).orders):
        warmup = (1 if vpp == 1 else 2) * (pp - rank - 1) + (vpp - 1) * (group or pp)
        assert [action.kind for action in order].index("B") == min(warmup + 1, m * vpp)


@pytest.mark.parametrize("name", ["interleaved", "interleaved_zb"])
@pytest.mark.parametrize(("m", "vpp"), [(13, 8), (25, 8), (9, 3), (5, 4)])
def test_remainders_that_megatron_refuses_run_almost_as_well(name, m, vpp):
    def makespan(count):
        ones = np.ones(4 * vpp)
        return float(pipeline.evaluate(pipeline.compile(name, 4, vpp, count), ones, ones, ones).makespan)

    assert makespan(m - m % 4) < makespan(m) <= makespan(m + 4 - m % 4)


def test_one_more_forward_ahead_with_extra_warmup():
    plain, more = (pipeline.build("interleaved", 4, 2, 8, None, extra) for extra in (0, 1))
    for before, after in zip(plain.orders, more.orders, strict=True):
        count = [[action.kind for action in order].index("B") for order in (before, after)]
        assert count[1] == count[0] + 1


def test_every_alias_leads_to_its_schedule():
    seen: set[str] = set()
    for name in pipeline.names():
        for alias in (name, *pipeline.generator(name).aliases):
            assert pipeline.find(alias) == name
            assert alias not in seen
            seen.add(alias)


@pytest.mark.parametrize(("text", "pp", "vpp", "name"), tabled("names", "schedules_that_run"))
def test_what_a_framework_runs(text, pp, vpp, name):
    assert pipeline.choose(text, pp, vpp) == name


def test_all_mistakes_at_once():
    caught = refusal(pipeline.compile, "zbw", 0, -1, 0, 0, -1)
    found = {problem.key: problem.expected for problem in caught.problems}
    assert set(found) == {
        "pipeline_schedule", "pp", "vpp", "microbatches", "microbatch_group_size_per_vp_stage", "extra_warmup"
    }  # fmt: skip
    assert "zbv" in found["pipeline_schedule"]


def test_a_group_fills_the_pipeline():
    with pytest.raises(InputError, match="microbatch_group_size_per_vp_stage: found 3, expected an integer >= 4"):
        pipeline.compile("interleaved", 4, 2, 8, 3)
    assert pipeline.compile("interleaved", 4, 2, 3, 3).size == 2 * 4 * 2 * 3


def test_the_compiler_refuses_orders_that_cannot_run():
    F, B = (Action("F", 0, 0), Action("F", 0, 1)), (Action("B", 0, 0), Action("B", 0, 1))
    place = loop_placement(2, 1)
    waits = Schedule("x", 2, 1, 2, False, ((F[0], B[0], F[1], B[1]), (*F, *B)), place)
    refusal(compile_schedule, waits, match="can run", kind=Deadlock)
    with pytest.raises(Deadlock, match="before its forward"):
        compile_schedule(Schedule("x", 2, 1, 2, False, ((*F, *B), (*B, *F)), place))
    with pytest.raises(Deadlock, match="expected"):
        compile_schedule(Schedule("x", 2, 1, 2, False, ((*F, *B), (*F, B[0], B[0])), place))
    refusal(compile_schedule, Schedule("x", 2, 1, 2, False, ((*F, *B), F), place), match="expected", kind=Deadlock)


@pytest.mark.parametrize("name", pipeline.names())
def test_which_schedules_run_all_forwards_first(name):
    entry = pipeline.generator(name)
    built = pipeline.build(name, 4, entry.chunks or 2, 40)
    orders, forwards = built.orders, built.each * built.chunks
    first = all([action.kind for action in order].index("B") == forwards for order in orders)
    assert first == entry.forwards_first


# What schedules demand of the rest of a recipe.


@pytest.mark.parametrize("name", pipeline.names())
def test_recompute_of_whole_layers_excludes_weight_gradients_put_off(name):
    vpp = pipeline.generator(name).chunks or (1 if pipeline.choose(name, 4, 1) == name else 2)
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=8, pp=4, vpp=vpp, pipeline_schedule=name)
    assert conflict_of(recipe) is None
    conflict = conflict_of(replace(recipe, recompute_granularity="full")) or ""
    for word in ("recompute", "1f1b"):
        assert (word in conflict) == pipeline.generator(name).split


def test_every_word_of_a_recipe_is_a_schedule_and_the_other_way_round():
    found = {pipeline.find(word) for word in CHOICES["pipeline_schedule"]}
    assert found == {*pipeline.names(), "zb_ilp"}  # found only when asked for


def test_problems_are_those_of_build():
    found = pipeline.problems("zbv", 4, 1, 8, where="file.yaml")
    assert [(p.where, p.key, p.found, p.expected) for p in found] == [("file.yaml", "vpp", 1, "2 for zbv")]
    assert pipeline.problems("zbv", 4, 2, 8) == []


# V-1F1B: the orders of the published generator, at two thirds of 1F1B's memory.


def test_an_order_of_the_published_generator():
    # sail-sg/zero-bubble-pipeline-parallelism@39f2c186 zerobubble/scheduler/v1f1b.py, schedule(4, 8, …): chunk 1 small
    published = (
        "FFFFFfbfbfbfbBFfbBFfbBFfbBfbBBBB",
        "FFFFffbfbFbfBbfFBbfFBbfFBbfBbBBB",
        "FFFfffbFbFBfbBfbFBfbFBfbFBfbBbBB",
        "FfFfFfbBFfbBFfbBFfbBFfbBFfbBbBbB",
    )
    for order, expected in zip(pipeline.build("v_1f1b", 4, 2, 8).orders, published, strict=True):
        assert "".join(action.kind.lower() if action.chunk else action.kind for action in order) == expected


@pytest.mark.parametrize(
    ("pp", "m", "makespan"),
    # the same generator's orders for one second per F, B and W of a chunk, messages for nothing
    [(4, 8, 63), (8, 16, 129), (8, 32, 225), (16, 64, 459), (5, 10, 78), (6, 24, 166)],
)
def test_times_of_the_published_orders(pp, m, makespan):
    ones = np.ones(2 * pp)
    made = pipeline.evaluate(compile_schedule(pipeline.build("v_1f1b", pp, 2, m)), ones, ones, ones)
    assert float(made.makespan) == makespan
    assert makespan < 6 * (m + pp - 1)  # 1F1B


# Hanayo: the snake over the ranks, and what more waves buy.


def idle(name: str, pp: int, vpp: int, m: int) -> float:
    """Seconds that the busiest wait leaves a rank idle, the whole model's forward of a rank taking one second."""
    forward = np.full(pp * vpp, 1.0 / vpp)
    made = pipeline.evaluate(pipeline.compile(name, pp, vpp, m), forward, forward, forward)
    return float((made.makespan - made.rank_busy).max())


def test_the_snake():
    assert pipeline.build("hanayo", 3, 4, 3).placement == ((0, 5, 6, 11), (1, 4, 7, 10), (2, 3, 8, 9))


@pytest.mark.parametrize("pp", [4, 8])
def test_each_doubling_of_waves_halves_the_bubble_of_an_iteration(pp):
    found = [idle("hanayo", pp, 2 * waves, pp) for waves in (1, 2, 4)]
    assert found[0] < idle("1f1b", pp, 1, pp)
    for fewer, more in pairwise(found):
        assert more == pytest.approx(fewer / 2, rel=0.1)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (4, 4), (8, 2), (8, 4)])
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
def test_never_worse_than_one_chunk(pp, vpp, rounds):
    assert idle("hanayo", pp, vpp, rounds * pp) <= idle("1f1b", pp, 1, rounds * pp)


# DualPipe and DualPipeV: two directions over the same ranks, whole backwards beside forwards, and the README's table.


ROUNDS = (2, 3, 4)  # micro-batches a stage: the published orders take 2·PP and more


def line(
    name: str, stages: int, microbatches: int, seconds: tuple[float, float, float], paired: bool
) -> pipeline.Timeline:
    """The times of a schedule on as many stages, whatever its ranks; DualPipeV has half the ranks and micro-batches."""
    vpp = pipeline.generator(name).chunks or 1
    compiled = pipeline.compile(name, stages // vpp, vpp, microbatches // vpp, paired=paired)
    return pipeline.evaluate(compiled, *(np.full(stages, part) for part in seconds))


def waits(made: pipeline.Timeline) -> float:
    return float((made.rank_span - made.rank_busy).max())


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("seconds", [(1, 1, 1), (2, 2, 1), (3, 3, 2)])
def test_the_published_bubble(stages, rounds, seconds):
    """(PP/2 − 1)(F&B + B − 3W), B the whole backward (deepseek-ai/DualPipe README); F&B = F + B."""
    forward, inputs, weight = seconds
    whole = inputs + weight
    expected = (stages / 2 - 1) * (forward + whole + whole - 3 * weight)
    for name in ("dualpipe", "dualpipe_v"):
        assert waits(line(name, stages, rounds * stages, seconds, True)) == pytest.approx(expected)


@pytest.mark.parametrize("seconds", [(1, 1.5, 0.5), (2, 3, 1), (1, 1.25, 0.75)])
def test_longer_input_gradients_wait_no_longer_than_published(seconds):
    forward, inputs, weight = seconds
    for stages in (4, 8, 16):
        most = (stages / 2 - 1) * (forward + 2 * (inputs + weight) - 3 * weight)
        made = [waits(line(name, stages, 2 * stages, seconds, True)) for name in ("dualpipe", "dualpipe_v")]
        assert made[0] == pytest.approx(made[1])
        assert most - 4 * (inputs - forward) <= made[0] <= most


def test_what_a_pair_hides_is_saved_for_every_micro_batch():
    stages, m, hidden = 8, 64, 0.25
    compiled = pipeline.compile("dualpipe", stages, 1, m, paired=True)
    ones = np.ones(stages)
    plain = pipeline.evaluate(compiled, ones, ones, ones, hidden=(0 * ones, 0 * ones))
    made = pipeline.evaluate(compiled, ones, ones, ones, hidden=(hidden * ones, hidden * ones))
    pairs = np.bincount(compiled.rank[compiled.pairs[0]], minlength=stages)
    assert made.rank_busy == pytest.approx(plain.rank_busy - 2 * hidden * pairs)
    assert (pairs >= 2 * (m // 2 - stages)).all()  # all but warm-up and flush


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_activations_and_parameters_of_the_table(pp):
    schedule = pipeline.build("dualpipe", pp, 1, 4 * pp)
    assert (schedule.chunks, schedule.copies, schedule.each) == (2, 2, 2 * pp)
    assert pipeline.peak(compile_schedule(schedule), 1.0).max() == pp + 1
    for rank, own in enumerate(schedule.placement):
        assert own == (rank, pp - 1 - rank)


def test_both_directions_are_mirror_images():
    made = line("dualpipe", 8, 32, (1.0, 1.5, 0.75), True)
    assert made.rank_busy == pytest.approx(made.rank_busy[::-1])
    assert made.rank_end == pytest.approx(made.rank_end[::-1])


def test_sizes_it_refuses():
    caught = refusal(pipeline.compile, "dualpipe", 5, 2, 7)
    assert {p.key: p.expected for p in caught.problems} == {
        "vpp": "1 for dualpipe", "pp": "a multiple of 2 for dualpipe", "microbatches": "a multiple of 2 for dualpipe"
    }  # fmt: skip
    refusal(pipeline.build, "hanayo", 4, 3, 4, match="vpp: found 3, expected a multiple of 2 for hanayo")


def test_the_gradient_of_a_whole_backward_leaves_at_its_end():
    F, B, W = (Action(kind, 0, 0) for kind in "FBW")
    orders = ((F, B, W),) * 2
    placement = ((0,), (1,))
    ones = np.ones(2)
    apart, whole = (
        pipeline.evaluate(compile_schedule(Schedule("x", 2, 1, 1, True, orders, placement, joined)), ones, ones, ones)
        for joined in (None, ((0, 3), (0, 3)))
    )
    assert (float(apart.makespan), float(whole.makespan)) == (5.0, 6.0)
