"""Long schedules from short ones: exactly the whole schedule, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from projector import pipeline
from projector.pipeline import periodic

SIZES = (
    ("1f1b", 2, 1, None),
    ("1f1b", 5, 1, None),
    ("interleaved", 2, 3, None),
    ("interleaved", 3, 2, 5),
    ("zb_h1", 2, 1, None),
    ("zb_h1", 5, 1, None),
    ("zbv", 3, 2, None),
    ("zbv", 5, 2, None),
)


@pytest.mark.parametrize(("name", "pp", "vpp", "group"), SIZES)
@pytest.mark.parametrize("overlaps", [(True, True), (True, False), (False, False)])
def test_a_short_schedule_ends_as_the_long_one_does(
    name: str, pp: int, vpp: int, group: int | None, overlaps: tuple[bool, bool]
) -> None:
    random, stages = np.random.default_rng(pp), pp * vpp
    even = np.ones((2, stages)) + [[0.0], [1e-4]] * random.random(stages)
    stages_of = np.concatenate([even, np.exp(random.normal(size=(30, stages)))])
    messages = np.concatenate([np.zeros((2, stages - 1)), random.random((30, stages - 1))])
    release = random.random((32, stages))
    for microbatches in (17 * (group or pp), 40 * (group or pp), 61 * pp + 1 if vpp == 1 else 61 * (group or pp)):
        short = periodic.shorter(name, pp, vpp, microbatches, group)
        assert short is not None
        assert short < microbatches

        def played(number: int) -> pipeline.Timeline:
            compiled = pipeline.compile(name, pp, vpp, number, group)
            times = stages_of, 2.0 * stages_of[::-1], (0.5 if name.startswith("zb") else 0.0) * stages_of
            return pipeline.evaluate(compiled, *times, messages, *overlaps, release=release)

        some, every = played(short), played(microbatches)
        later = periodic.later(some, np.full(32, microbatches), group)
        said = np.isfinite(later)
        assert said.mean() > 0.5
        assert said[0]
        for figure in ("makespan", "rank_end", "last_backward"):
            ends, whole = getattr(some, figure)[said], getattr(every, figure)[said]
            moved = ends + later[said].reshape(-1, *[1] * (ends.ndim - 1))
            np.testing.assert_allclose(moved, whole, rtol=1e-11)


def test_orders_that_are_not_known_to_repeat_are_not_cut() -> None:
    assert periodic.shorter("zb_h2", 4, 1, 4096, None) is None
    assert periodic.shorter("1f1b", 1, 1, 4096, None) is None
    assert periodic.shorter("1f1b", 4, 1, 13, None) is None
    assert periodic.shorter("1f1b", 4, 1, 14, None) == 12
