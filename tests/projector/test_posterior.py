"""Laws of the posterior: what measured runs teach, and what they cannot."""

import math
import re
from dataclasses import replace
from itertools import product

import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st

from harness.evaluation import posterior_file
from projector import posterior, project
from projector.cli.setting_remarks import refuse_assumed
from projector.effects import ASSUMPTIONS, Facts, Prior, shares
from projector.expectation import Knowledge, kinds, memory_grade
from projector.hardware import catalogue
from projector.posterior import GRADES, REPEAT, Expectation, Posterior, Run
from tests.workloads import workload

KNOWN = Posterior(
    prior=Prior(
        deviations={
            "compute": 0.1, "host": 0.5, "host, framework": 0.4, "host, source": 0.3, "source": 0.05, "run": 0.05,
        },
        scatter={"nemo": 0.5},
    ),
    tail=(1.8, 2.5),
)  # fmt: skip
steps = st.floats(0.01, 100.0)


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    host = draw(st.floats(0.0, 0.9))
    return Facts(
        step_seconds=draw(steps), shares={"compute": 1.0 - host, "host": host},
        gpu=draw(st.sampled_from(["h100_sxm", "mi300x"])), framework=draw(st.sampled_from(["megatron-lm", "nemo"])),
        family="dense", model=draw(st.sampled_from(["a", "b"])),
    )  # fmt: skip


runs = st.lists(st.builds(Run, facts=facts(), measured_seconds=steps), max_size=5)


def same(a: Expectation, b: Expectation) -> None:
    assert (a.low, a.middle, a.high) == pytest.approx((b.low, b.middle, b.high), rel=1e-6)


@given(facts())
def test_without_data_what_is_projected_is_expected(target: Facts) -> None:
    found = KNOWN.expect(target)
    assert found.middle == target.step_seconds
    assert found.low < found.middle < found.high


@given(facts(), st.permutations(ASSUMPTIONS), st.permutations(["ep", "dp"]))
def test_the_order_in_which_a_process_holds_sets_changes_nothing(
    target: Facts, assumed: list[str], crossing: list[str]
) -> None:
    """Sums over effects would differ in their last digits from process to process."""
    order = [*replace(target, assumed=tuple(assumed)).effects]  # type: ignore[arg-type]
    assert order == [*replace(target, assumed=tuple(ASSUMPTIONS)).effects]  # type: ignore[arg-type]
    seconds = {"compute_s": 1.0, "ep_s": 0.5, "dp_s": 0.25}
    assert [*shares(seconds, crossing)] == [*shares(seconds, ["dp", "ep"])]


@given(facts(), runs)
def test_nothing_learnt_on_gpus_is_applied_to_a_cpu(target: Facts, some: list[Run]) -> None:
    here = replace(target, gpu="cpu", processor=True)
    taught = KNOWN.given(some)
    assert taught.log_ratio(here) == pytest.approx(KNOWN.log_ratio(here))
    assert "learnt on GPUs" in taught.expect(here).rests_on
    assert taught.given([Run(facts=here, measured_seconds=2 * here.step_seconds)]).log_ratio(here)[0] > 0.1
    assert taught.log_ratio(target) == pytest.approx(KNOWN.given([*some]).log_ratio(target))


@given(facts(), runs, runs)
def test_more_runs_never_widen(target: Facts, some: list[Run], more: list[Run]) -> None:
    """Of runs given after others; a run given with others may be an outlier beside them."""
    before = KNOWN.given(some)
    assert before.given(more).expect(target).half_width <= before.expect(target).half_width * (1 + 1e-6)


@given(facts(), runs, st.randoms())
def test_neither_order_nor_repetition_matters(target: Facts, some: list[Run], random: object) -> None:
    shuffled = [*some, *some]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    same(KNOWN.given(some).expect(target), KNOWN.given(shuffled).expect(target))


@given(facts(), runs)
def test_the_ratio_of_a_run_to_itself_is_one(target: Facts, some: list[Run]) -> None:
    found = KNOWN.given(some).ratio(target, target)
    assert (found.low, found.middle, found.high, found.half_width) == (1.0, 1.0, 1.0, 0.0)


@given(facts(), facts(), runs)
def test_what_two_runs_share_cancels(target: Facts, other: Facts, some: list[Run]) -> None:
    """A variant shares what is special about the run; both ways round the ratio is the same."""
    known = KNOWN.given(some)
    there, back = known.ratio(target, other), known.ratio(other, target)
    assert there.middle * back.middle == pytest.approx(1.0)
    assert there.half_width == pytest.approx(back.half_width)
    free = KNOWN.ratio(target, replace(target, step_seconds=target.step_seconds / 2), variant=True)
    assert free.middle == pytest.approx(2.0)
    assert free.half_width == pytest.approx(KNOWN.tail[0] * math.sqrt(2.0) * REPEAT)


@given(facts(), runs)
def test_squares_of_the_parts_add_up(target: Facts, some: list[Run]) -> None:
    found = KNOWN.given(some).expect(target)
    assert math.hypot(*found.parts.values()) == pytest.approx(found.half_width)


@given(st.floats(-0.02, 0.02), st.floats(0.05, 1.0))
def test_closed_form_of_one_part(y: float, tau: float) -> None:
    """mean = y τ² / (τ² + σ²), variance τ² σ² / (τ² + σ²), where the run is no outlier."""
    one = Posterior(prior=Prior(deviations={"compute": tau}), tail=(1.0, 1.0))
    target = Facts(step_seconds=2.0, shares={"compute": 1.0}, gpu="g", framework="f", family="d")
    after = one.given([Run(facts=target, measured_seconds=2.0 * math.exp(y))])
    mean, variance = after.log_ratio(target)
    assert mean == pytest.approx(y * tau**2 / (tau**2 + REPEAT**2))
    assert variance == pytest.approx(tau**2 * REPEAT**2 / (tau**2 + REPEAT**2) + REPEAT**2)


def test_an_outlier_counts_less_than_its_distance() -> None:
    target = Facts(step_seconds=1.0, shares={"compute": 1.0}, gpu="g", framework="f", family="d")
    one = Posterior(prior=Prior(deviations={"compute": 0.05}), tail=(1.0, 1.0))
    learnt = [one.given([Run(facts=target, measured_seconds=math.exp(y))]).log_ratio(target)[0] / y for y in (0.1, 1.0)]
    assert learnt[1] < learnt[0]


@given(facts())
def test_stacks_that_lie_apart_have_wider_intervals(target: Facts) -> None:
    nemo, megatron = (KNOWN.expect(replace(target, framework=name)).half_width for name in ("nemo", "megatron-lm"))
    assert nemo < megatron


def test_an_unknown_framework_is_wider_than_a_known_one() -> None:
    known = posterior.load()
    of = Facts(
        step_seconds=1.0, shares={"compute": 0.6, "host": 0.4}, gpu="h100_sxm", framework="megatron-lm", family="dense"
    )
    other = replace(of, framework="unheard of")
    assert known.expect(other).half_width > known.expect(of).half_width
    assert "other frameworks" in known.expect(other).rests_on


def test_the_file_is_what_it_was_written_from() -> None:
    known = posterior.load()
    again = posterior.parse(posterior_file.text(known), "again")
    target = Facts(step_seconds=1.0, shares={"compute": 0.9, "tp": 0.1}, gpu="b200", framework="nemo", family="moe")
    same(known.expect(target), again.expect(target))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "nonsense", '{"effects": 3}', '{"effects": [], "covariance": [], "mean": [], "tail": "wide"}'],
)
def test_a_broken_file_is_told(text: str) -> None:
    refusal(posterior.parse, text, "broken.json", match=r"broken\.json")


@given(facts(), st.floats(-0.02, 0.02))
def test_a_timed_part_teaches_of_that_part_alone(target: Facts, y: float) -> None:
    """Of a step that is the part, the part is expected; nothing is said of the others, and no run of one's own is meant."""
    compute = replace(target, shares={"compute": 1.0}, step_seconds=3.0, timed=True)
    known = KNOWN.given([Run(facts=compute, measured_seconds=3.0 * math.exp(y))])
    share = target.shares["compute"]
    mean, variance = known.log_ratio(target)
    assert mean == pytest.approx(share * y * 0.1**2 / (0.1**2 + REPEAT**2))
    gained = KNOWN.log_ratio(target)[1] - variance
    assert gained == pytest.approx((share * 0.1**2) ** 2 / (0.1**2 + REPEAT**2))
    assert known.own == 0
    assert "timed on this device" in known.expect(target).rests_on


@given(facts(), runs)
def test_an_interval_after_own_runs_has_the_tail_of_own_runs(target: Facts, some: list[Run]) -> None:
    known, free = KNOWN.given(some), KNOWN.expect(target).half_width
    half = known.reach * math.sqrt(known.log_ratio(target)[1])
    assert known.expect(target).half_width == pytest.approx(min(half, free))
    assert (known.reach == KNOWN.tail[0]) == (not some)


@given(st.floats(-0.2, 0.2), st.floats(0.05, 1.0))
def test_a_run_says_how_far_its_stack_lies_from_others(y: float, tau: float) -> None:
    """By √((ν + y² / (τ² + σ²)) / (ν + 1)), as Student's t; one that came as expected narrows, one far off widens."""
    one = Posterior(prior=Prior(deviations={"compute": tau}), tail=(9.0, 2.0))
    after = one.given([Run(facts=replace(FACTS, step_seconds=2.0), measured_seconds=2.0 * math.exp(y))])
    square = y**2 / (tau**2 + REPEAT**2)
    if square < 1.0:  # no outlier
        assert after.reach == pytest.approx(2.0 * math.sqrt((posterior.FREEDOM + square) / (posterior.FREEDOM + 1.0)))
    assert (after.reach < 2.0) == (square < 1.0)


# The grade of a figure: the worst of what is known of its evidence, and never better than --strict allows.


FACTS = Facts(
    step_seconds=1.0, shares={"compute": 1.0}, gpu="h100_sxm", framework="megatron-lm", family="dense", model="m"
)
RUN = Run(facts=FACTS, measured_seconds=1.1)
HERE = catalogue.default_cluster("h100_sxm")
MADE = project(workload("llama3_8b", tp=2), HERE)


def test_steps_are_alike_by_their_time_a_token() -> None:
    longer = replace(FACTS, step_seconds=8.0)
    step = [{effect for effect in facts.effects if effect[0] == "step, source"} for facts in (FACTS, longer)]
    assert step[0] != step[1]
    assert replace(longer, tokens=8.0).effects.keys() & step[0]


def test_runs_of_ones_own_on_this_gpu_and_framework_are_here_and_others_elsewhere() -> None:
    assert Knowledge().grade(FACTS) == "measured elsewhere"
    assert Knowledge(runs=(RUN,)).grade(FACTS) == "measured here"
    other = replace(RUN, facts=replace(FACTS, gpu="b200"))
    assert Knowledge(runs=(other,)).grade(FACTS) == "measured elsewhere"


@pytest.mark.parametrize("kind", ASSUMPTIONS)
def test_an_assumed_input_is_worse_than_any_measurement(kind: str) -> None:
    assert Knowledge(runs=(RUN,)).grade(replace(FACTS, assumed=frozenset({kind}))) == "assumed"


def test_strict_refuses_every_figure_that_is_assumed() -> None:
    for text in ("micro_batch_size=1 (not stated)", "tp=1", "recompute_granularity=none", "num_layers=3"):
        assert kinds([text])  # of the kinds that make a figure assumed
        refusal(refuse_assumed, MADE.resolved.workload, MADE, [text], match=re.escape(f"assumed {text}"))


def test_memory_is_measured_elsewhere_unless_it_is_assumed_or_nobody_counted_its_layers() -> None:
    assert memory_grade(MADE) == "measured elsewhere"
    assert memory_grade(MADE, ["recompute_granularity=none"]) == "assumed"
    assert memory_grade(project(workload("mamba2_130m"), HERE)) == "modelled"


def test_the_grade_says_what_the_sentence_beside_it_says() -> None:
    known = posterior.load()
    assert Knowledge().grade(replace(FACTS, processor=True)) == "modelled"
    for gpu, framework in product(("h100_sxm", "unheard of"), ("megatron-lm", "unheard of")):
        facts = replace(FACTS, gpu=gpu, framework=framework)
        found = Knowledge().of(facts)
        assert found.grade in GRADES
        nowhere = gpu == framework == "unheard of"
        assert (found.grade == "modelled") == (known.nearest(facts) is None) == nowhere
        assert found.rests_on.startswith("no measured run") == nowhere
