"""The grade of a figure: the worst of what is known of its evidence, and never better than --strict allows."""

from dataclasses import replace

import pytest

from projector import posterior
from projector.cli.leftover import unstated
from projector.expectation import Knowledge, kinds
from projector.posterior import ASSUMPTIONS, GRADES, Facts, Run

FACTS = Facts(
    step_seconds=1.0, shares={"compute": 1.0}, gpu="h100_sxm", framework="megatron-lm", family="dense", model="m"
)
RUN = Run(facts=FACTS, measured_seconds=1.1)


def test_runs_of_ones_own_on_this_gpu_and_framework_are_here_and_others_elsewhere() -> None:
    assert Knowledge().grade(FACTS) == "measured elsewhere"
    assert Knowledge(runs=(RUN,)).grade(FACTS) == "measured here"
    other = replace(RUN, facts=replace(FACTS, gpu="b200"))
    assert Knowledge(runs=(other,)).grade(FACTS) == "measured elsewhere"


def test_what_nobody_measured_is_modelled() -> None:
    nowhere = replace(FACTS, gpu="unheard of", framework="unheard of")
    assert Knowledge().grade(nowhere) == "modelled"
    assert Knowledge().grade(replace(FACTS, processor=True)) == "modelled"
    assert "no measured run" in Knowledge().of(nowhere).rests_on


@pytest.mark.parametrize("kind", ASSUMPTIONS)
def test_an_assumed_input_is_worse_than_any_measurement(kind: str) -> None:
    assert Knowledge(runs=(RUN,)).grade(replace(FACTS, assumed=frozenset({kind}))) == "assumed"


def test_strict_refuses_every_figure_that_is_assumed() -> None:
    for text in ("micro_batch_size=1 (not stated)", "tp=1", "recompute_granularity=none", "num_layers=3"):
        assert kinds([text])  # of the kinds that make a figure assumed
        assert unstated({}, [text])


def test_the_grade_says_what_the_sentence_beside_it_says() -> None:
    known = posterior.load()
    for gpu in ("h100_sxm", "unheard of"):
        for framework in ("megatron-lm", "unheard of"):
            facts = replace(FACTS, gpu=gpu, framework=framework)
            found = Knowledge().of(facts)
            assert found.grade in GRADES
            assert (found.grade == "modelled") == (known.nearest(facts) is None)
            assert (found.grade == "modelled") == found.rests_on.startswith("no measured run")
