"""What schedules demand of the rest of a recipe."""

from __future__ import annotations

import pytest

from projector import pipeline
from projector.workload.checks import CHOICES


@pytest.mark.parametrize("name", pipeline.names())
def test_recompute_of_whole_layers_excludes_weight_gradients_put_off(name):
    assert pipeline.recompute_conflict(name, False) is None
    conflict = pipeline.recompute_conflict(name, True)
    if pipeline.generator(name).split:
        assert "recompute" in conflict
        assert "1f1b" in conflict
    else:
        assert conflict is None


def test_every_word_of_a_recipe_is_a_schedule_and_the_other_way_round():
    found = {pipeline.find(word) for word in CHOICES["pipeline_schedule"]}
    assert found == {*pipeline.names(), "zb_ilp"}  # found only when asked for


def test_problems_are_those_of_build():
    found = pipeline.problems("zbv", 4, 1, 8, where="file.yaml")
    assert [(p.where, p.key, p.found, p.expected) for p in found] == [("file.yaml", "vpp", 1, "2 for zbv")]
    assert pipeline.problems("zbv", 4, 2, 8) == []
