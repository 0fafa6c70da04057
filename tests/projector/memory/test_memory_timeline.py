"""Memory through a step: it meets the plan's peaks, starts and ends empty, and can be drawn."""

from pathlib import Path

import numpy as np
import pytest
from asked import refusal
from hypothesis import given, reject
from hypothesis import strategies as st
from memory_cases import deepseek_v3, gpu, llama, recipe, resolved

from projector import pipeline
from projector.errors import InputError
from projector.frameworks.types import Resolved
from projector.memory import draw
from projector.memory.holding import holdings
from projector.memory.plan import plan
from projector.memory.timeline import RankTimeline, memory_timeline, sketch

GPU = gpu()


def _timelines(case: Resolved) -> tuple[RankTimeline, ...]:
    how = case.workload.recipe
    compiled = pipeline.compile(how.pipeline_schedule, how.pp, how.vpp, case.workload.num_microbatches)
    stages = how.pp * how.vpp
    durations = (np.full(stages, 1e-3), np.full(stages, 1.2e-3), np.full(stages, 0.8e-3), 0.0)
    return memory_timeline(case, GPU, pipeline.evaluate(compiled, *durations))


schedules = st.sampled_from(
    [("1f1b", 1), ("interleaved", 2), ("gpipe", 1), ("zb_h1", 1), ("zb_h2", 1), ("zbv", 2), ("v_half", 2)]
)


@given(schedules, st.sampled_from([2, 4]), st.booleans(), st.sampled_from([1, 2, 5]))
def test_every_rank_peaks_where_the_plan_says(kind: tuple[str, int], pp: int, moe: bool, rounds: int) -> None:
    schedule, vpp = kind
    how = recipe(pp=pp, vpp=vpp, pipeline_schedule=schedule, global_batch_size=8 * rounds * pp, ep=2 if moe else 1)
    case = resolved(deepseek_v3(8, 1) if moe else llama(8), how, 8 * pp)
    planned = plan(case, GPU)
    for line, rank in zip(_timelines(case), planned.ranks, strict=True):
        if rank.event not in ("optimizer_step", "construction"):
            assert line.peak == pytest.approx(rank.allocated, rel=1e-9)
        assert line.floor == pytest.approx(sum(line.static.values()))
        assert line.before[0] == 0
        assert line.after[-1] == pytest.approx(0, abs=1.0)
        assert np.all(line.during >= line.before - 1.0)
        assert np.all(line.after >= -1.0)
        assert np.all(line.end[:-1] <= line.start[1:] + 1e-9)


@given(
    st.sampled_from(pipeline.names(unlisted=True)), st.sampled_from([2, 3, 4]),
    st.sampled_from([1, 2, 3]), st.integers(1, 24), st.sampled_from(["none", "full"]),
)  # fmt: skip
def test_a_rank_peaks_as_its_order_says_micro_batch_by_micro_batch(
    name: str, pp: int, vpp: int, number: int, granularity: str
) -> None:
    """Every micro-batch of the whole step is put on the rank by its forward and taken off by its backward."""
    how = recipe(
        pp=pp, vpp=vpp, pipeline_schedule=name, global_batch_size=number, recompute_granularity=granularity,
        recompute_num_layers=1,
    )  # fmt: skip
    try:
        case = resolved(llama(pp * vpp * 2), how, pp)
        schedule, planned = pipeline.build(name, pp, vpp, number), plan(case, GPU)
    except InputError:
        reject()
    if schedule.split and granularity == "full":
        reject()  # no framework puts off what a replay of whole layers would have to keep
    held = holdings(case, GPU.arch, schedule.placement)
    for order, rank, own in zip(schedule.orders, planned.ranks, held, strict=True):
        kept: dict[tuple[int, int], float] = {}
        most = 0.0
        for kind, chunk, batch in order:
            saved, pending, forward, backward = own.chunks[chunk].sizes
            busy = {"F": forward, "B": backward, "W": 0.0}[kind]
            most = max(most, sum(kept.values()) + busy)
            after = {"F": saved, "B": pending if schedule.split else 0.0, "W": 0.0}[kind]
            kept[chunk, batch] = after
        assert not any(kept.values())
        peak = max(own.kept.total + max(most, own.kept.state.step), own.kept.state.construction)
        assert rank.allocated == pytest.approx(peak, rel=1e-9)


def test_the_sketch_fits_its_width_and_is_full_at_the_peak() -> None:
    lines = _timelines(resolved(llama(8), recipe(pp=4, pipeline_schedule="1f1b"), 32))
    for width in (50, 80, 120):
        rows = sketch(lines, width).splitlines()
        assert len(rows) == 1 + len(lines)
        assert all(len(row) <= width for row in rows[1:])
        assert any("█" in row for row in rows[1:])


def test_a_picture_that_cannot_be_written_is_refused_in_one_go(tmp_path: Path) -> None:
    case = resolved(llama(8), recipe(), 8)
    refused = refusal(draw.save, plan(case, GPU), (), tmp_path / "nowhere" / "memory.bmp")
    assert len(refused.problems) == 2
