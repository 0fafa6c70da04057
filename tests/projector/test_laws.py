"""Laws over random configurations: more work is never faster, better hardware never slower, an overlap never a loss."""

from dataclasses import replace
from functools import cache

import pytest

from projector.frameworks.flops import flops_per_token
from projector.projection import Projection, project
from tests.projector.law_cases import EASIER, HARDER, SWITCHES, Case, cases, seconds

FEW, MANY = range(36), range(1000, 1200)
NUMBERS = pytest.mark.parametrize("numbers", [FEW, pytest.param(MANY, marks=pytest.mark.night)], ids=["few", "many"])
EXACT = 1.0 + 1e-9
STILL = {
    "sequence": 1e-2, "micro-batch": 1e-2, "top-k": 1e-2, "smaller nodes": 1e-3, "peak": 1e-3, "memory bandwidth": 1e-3,
    "network bandwidth": 1e-3, "link bandwidth": 1e-2,
}  # fmt: skip
"""What is left among many cases (docs/proof/laws.md says why)."""


@cache
def known(numbers: range) -> tuple[tuple[Case, Projection], ...]:
    """Every case that can run, with its projection."""
    return tuple((case, made) for case in cases(numbers) if (made := seconds(case)) is not None)


def broken(law: str, numbers: range, least: float = 1e-9) -> list[str]:
    """What breaks a law of :data:`HARDER` or :data:`EASIER`, and by how much, where that is more than ``least``."""
    found = []
    for case, made in known(numbers):
        changed = {**HARDER, **EASIER}[law](case)
        other = None if changed is None else seconds(changed)
        if other is not None:
            first, last = (made, other) if law in HARDER else (other, made)
            if first.step_seconds > last.step_seconds * (1.0 + least):
                found.append(f"{first.step_seconds / last.step_seconds - 1.0:+.3%} {case}")
    return found


def chunks(case: Case) -> float:
    """Seconds of the first chunks of pipelined tensor-parallel collectives in a step."""
    made = project(case.work, case.cluster, communication=True)
    return sum(row.seconds for row in made.communication if row.name.endswith(".chunk"))


def exchange(case: Case) -> float:
    """Seconds of a step's reductions and gathers over replicas, hidden or not."""
    made = project(case.work, case.cluster, communication=True)
    return sum(row.seconds for row in made.communication if row.name.startswith(("grad", "param")))


def losses(switch: str, numbers: range) -> list[str]:
    """Cases that an overlap makes slower; under ``tp_comm_overlap`` by more than the first chunks of all collectives that
    it pipelines and what it costs to run the products beside them piece by piece, in each of the m + pp − 1 micro-batches
    that the longest way through a pipeline passes; else by more than it costs to exchange bucket by bucket."""
    found = []
    for case, _ in known(numbers):
        off, on = (seconds(case.recipe(**{switch: value})) for value in (False, True))
        if off is None or on is None or on.step_seconds <= off.step_seconds * EXACT:
            continue
        whole, split = (case.recipe(**{switch: value}) for value in (False, True))
        filled = 1.0 + (case.work.recipe.pp - 1) / case.work.num_microbatches
        pieces = sum(max(0.0, on.breakdown[part] - off.breakdown[part]) for part in ("compute_s", "host_s"))
        buckets = max(0.0, exchange(split) - exchange(whole))
        if on.step_seconds > off.step_seconds + filled * (chunks(split) + pieces) + buckets:
            found.append(f"{on.step_seconds / off.step_seconds - 1.0:+.3%} {case}")
    return found


@NUMBERS
@pytest.mark.parametrize("law", [*HARDER, *EASIER])
def test_more_work_is_never_faster_and_better_hardware_never_slower(law: str, numbers: range) -> None:
    assert not broken(law, numbers, STILL.get(law, 1e-9) if numbers is MANY else 1e-9)


@NUMBERS
@pytest.mark.parametrize("switch", SWITCHES)
def test_an_overlap_is_never_a_loss(switch: str, numbers: range) -> None:
    assert not losses(switch, numbers)


def test_no_step_beats_the_peak_and_its_parts_add_up() -> None:
    for case, made in known(FEW):
        work = case.work
        flops = flops_per_token(work, "megatron-2025-04") * work.tokens_per_step / work.gpus
        assert flops / made.step_seconds < case.cluster.gpu.peak_of(work.recipe.precision), case
        assert made.tgs == pytest.approx(work.tokens_per_step / made.step_seconds / work.gpus), case
        assert made.mfu > 0.0, case
        assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds, rel=1e-9), case
        assert min(made.breakdown.values()) >= -1e-9, case


def test_replicas_add_no_throughput() -> None:
    """Twice the ranks on twice the batch take as long at least, but for an optimizer that they share."""
    for case, made in known(FEW):
        work = case.work
        twice = replace(work, gpus=2 * work.gpus)
        other = seconds(replace(case, work=twice).recipe(global_batch_size=2 * work.recipe.global_batch_size))
        if other is not None and case.cluster.intra.topology != "mesh":
            assert other.step_seconds * EXACT >= made.step_seconds - made.breakdown["optimizer_s"], case
