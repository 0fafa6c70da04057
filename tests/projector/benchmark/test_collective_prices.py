"""A collective that was timed tells of others as far as its ranks lay on nodes as theirs do."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from projector.benchmark.launched import Launched
from projector.benchmark.prices import Price, placed, possible
from projector.benchmark.timings import CollectiveWanted, Seconds
from projector.collectives.model import Pricing
from projector.collectives.placement import groups
from projector.hardware import catalogue, efficiency
from projector.hardware.types import GroupShape
from projector.operators.types import Collective
from projector.projection import project
from projector.workload import zoo
from tests.workloads import workload

H100 = catalogue.cluster("h100")
SUM = Collective(name="", kind="all_reduce", group="dp", bytes=1e9)
HOP = Collective(name="", kind="send_recv", group="pp_beyond", bytes=1e8)
TWO_NODES = Launched("srun", 0, 16, 0, 8, 2)


def _resolved(gpus: int) -> Any:
    work = workload(zoo.load("llama3_8b", num_layers=4), gpus, tp=8, pp=2, seq_length=1024)
    return project(work, H100).resolved


def _price(gpus: int, timed: Mapping[CollectiveWanted, float]) -> Price:
    found: Any = SimpleNamespace(collectives=tuple((each, Seconds(value)) for each, value in timed.items()))
    asked: Any = SimpleNamespace(sharded=False, ranks=16)
    return Price(_resolved(gpus), H100, found, asked)


def _wanted(op: Collective) -> CollectiveWanted:
    resolved = _resolved(32)
    found = possible(op, groups(resolved.workload.recipe, 32, H100), 16, resolved)
    assert found is not None
    return found


def test_a_sum_over_two_nodes_tells_of_more_nodes() -> None:
    """What two nodes took three times longer for than the models say, thirty-two do, too."""
    plain, each = _price(32, {})(SUM), placed(_wanted(SUM), TWO_NODES, tp=8)
    assert (each.size, each.per_node) == (2, 1)
    timed = {each: 3.0 * plain}
    assert _price(32, timed)(SUM) == pytest.approx(3.0 * plain)
    for gpus in (64, 512):
        assert _price(gpus, timed)(SUM) == pytest.approx(3.0 * _price(gpus, {})(SUM)), gpus


def test_what_one_node_took_is_not_taken_for_two() -> None:
    for op in (SUM, HOP):
        each = placed(_wanted(op), None, tp=8)
        assert each.per_node == 2
        inside = Pricing({each.group: GroupShape(2, 2)}, H100, efficiency.of(H100.gpu))
        said = inside.seconds(Collective(name="", kind=op.kind, group=each.group, bytes=float(each.bytes)))
        between = _price(32, {})(op)
        assert between > 2.0 * said
        assert _price(32, {each: said})(op) == pytest.approx(between)
        assert _price(32, {each: 2.0 * said})(op) == pytest.approx(2.0 * between)
    near = Collective(name="", kind="send_recv", group="pp_node", bytes=HOP.bytes)
    assert _price(32, {placed(_wanted(near), None, tp=8): 7.0})(near) == 7.0


def test_where_ranks_lie_follows_their_order() -> None:
    each = CollectiveWanted("all_reduce", "dp", 8, 1024, 4)
    assert [placed(each, TWO_NODES, tp).per_node for tp in (2, 4)] == [4, 8]  # of all, and of neighbours
    assert placed(CollectiveWanted("all_reduce", "world", 16, 1024, 4), TWO_NODES, 1).per_node == 8
    assert placed(each, None, 1) == each
