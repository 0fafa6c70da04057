"""Communication beside compute: units taken, waves counted again, memory shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.hardware import catalogue
from projector.hardware.efficiency import load
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.step.contention import Losses, Taken, crowding, matrix_losses, without_units
from projector.step.timing import SLOWED, Clock

H100 = catalogue.gpu("h100_sxm")
MEMORY = {"dp": 125e9, "dispatch": 125e9, "tp": 1125e9}
COPY = Stream(name="copy", kind="copy", read=1e9, write=1e9)


def price(gpu, ops):  # type: ignore[no-untyped-def]
    return Simulated(gpu, load("h100_sxm"), Execution()).times(ops).seconds.tolist()


def product(name: str, m: int, n: int, k: int = 8192) -> Gemm:
    return Gemm(name=name, m=m, n=n, k=k)


def losses(ops: list[Operator], **units: int) -> dict[str, dict[Operator, float]]:
    taken = {kind: Taken(units.get(kind, 20), memory) for kind, memory in MEMORY.items()}
    found = crowding(taken, H100, lambda units: matrix_losses(ops, H100, units, price))
    return {kind: {op: each.matrix.get(op, each.stream) for op in ops} for kind, each in found.items()}


def test_units_leave_with_their_share_of_the_rate() -> None:
    less = without_units(H100, 32)
    assert less.compute_units == 100
    assert less.peak["bf16"] == pytest.approx(H100.peak["bf16"] * 100 / 132)
    assert less.memory_bandwidth == H100.memory_bandwidth
    assert without_units(H100, 10_000).compute_units == 66


def test_a_product_of_one_full_wave_loses_more_than_one_of_many() -> None:
    one_wave, many = product("one", 128 * 12, 256 * 11), product("many", 128 * 64, 256 * 64)
    lost = losses([one_wave, many], dp=24)["dp"]
    assert lost[one_wave] > lost[many] > 0.1
    assert lost[many] == pytest.approx(132 / 108 - 1.0, abs=0.12)


@given(st.integers(0, 60), st.integers(0, 60))
def test_more_units_taken_never_cost_less(a: int, b: int) -> None:
    few, more = sorted((a, b))
    op = product("g", 8192, 8192)
    assert losses([op], dp=few)["dp"][op] <= losses([op], dp=more)["dp"][op]


def test_memory_bound_kernels_lose_by_the_traffic_not_by_the_units() -> None:
    lost = losses([COPY], dp=24, dispatch=64)
    assert lost["dp"][COPY] == lost["dispatch"][COPY]
    assert lost["tp"][COPY] > lost["dp"][COPY] > 0.0


def test_both_slow_each_other_down() -> None:
    """A message as long as its cover: compute runs at 1/(1 + loss), the message at 1/(1 + SLOWED)."""
    op = product("g", 8192, 8192)
    comm = Collective(name="c", kind="all_gather", group="dp", bytes=1.0, hides_behind=("g",))
    quiet = Execution.of(runtime={"launch_us": 0.0, "collective_us": 0.0, "layer_us": 0.0, "linear_us": 0.0})
    clock = Clock(
        kernels={op: 1.0},
        measured=frozenset(),
        collective=lambda _: 2.0,
        execution=quiet,
        crowded={"dp": Losses({op: 0.5}, 0.0)},
    )
    phase = clock.phase([op, comm])
    moved = 1.5 / (1.0 + SLOWED)
    assert phase.seconds == pytest.approx(1.5 + 2.0 - moved)
    assert phase.exposed["dp"] == pytest.approx(2.0 - moved)


def test_exchanges_with_kernels_of_their_own_take_their_own_units() -> None:
    op = product("g", 8192, 8192)
    quiet = Execution.of(runtime={"launch_us": 0.0, "collective_us": 0.0, "layer_us": 0.0, "linear_us": 0.0})
    crowded = {kind: Losses({op: loss}, 0.0) for kind, loss in (("ep", 0.5), ("dispatch", 0.0), ("tp", 0.25))}
    clock = Clock(kernels={op: 9.0}, measured=frozenset(), collective=lambda _: 1.0, execution=quiet, crowded=crowded)

    def seconds(group: str, transport: str) -> float:
        comm = Collective(name="c", kind="all_to_all", group=group, bytes=1.0, hides_behind=("g",), transport=transport)
        return clock.phase([op, comm]).seconds

    assert seconds("ep", "deepep") == pytest.approx(9.0)
    assert 9.0 < seconds("tp", "nccl") < seconds("ep", "nccl")
