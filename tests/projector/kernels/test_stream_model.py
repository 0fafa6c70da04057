"""Laws of the stream model, and the tables of memory rates that it is scored on."""

from pathlib import Path

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels import sets
from harness.kernels.schema import stream as cells_of
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency
from projector.kernels import stream
from projector.kernels.tables import operator, read
from projector.operators.types import Scan, Stream
from projector.parameter import Parameter

BYTES = st.floats(0.0, 1e10)
KINDS = st.sampled_from(("strided", "norm", "copy", "reduce", "fill", "optimizer", "scatter", "cast"))
MEASURED = ("a100_sxm_80gb", "h100_sxm", "h200", "mi300x")


def seconds(*ops: Stream, name: str = "h100_sxm", **parameters: float) -> list[float]:
    base = load(name)
    changed = {key.replace("_", ".", 1): Parameter(value, "derived", "") for key, value in parameters.items()}
    found = stream.seconds(ops, gpu(name), Efficiency(gpu=name, parameters={**base.parameters, **changed}))
    return [float(value) for value in found]


@given(KINDS, BYTES, BYTES, BYTES, BYTES)
def test_more_bytes_never_take_less_time(kind: str, first: float, second: float, read: float, write: float) -> None:
    few = Stream(name="s", kind=kind, read=first, write=second)
    many = Stream(name="s", kind=kind, read=first + read, write=second + write)
    one, two = seconds(few, many)
    assert two >= one * (1 - 1e-12)


@given(KINDS, BYTES, BYTES, st.floats(0.5, 1.5), st.floats(0.0, 0.5))
def test_no_faster_than_the_memory(kind: str, first: float, second: float, device: float, one_way: float) -> None:
    op = Stream(name="s", kind=kind, read=first, write=second)
    (took,) = seconds(op, stream_device=device, stream_one_way=one_way)
    assert took >= op.bytes / gpu("h100_sxm").memory_bandwidth


def test_a_kernel_that_only_reads_moves_more() -> None:
    copy, add, dot = (
        Stream(name="s", kind="copy", read=read, write=write) for read, write in ((3e9, 3e9), (4e9, 2e9), (6e9, 0.0))
    )
    one, two, three = seconds(copy, add, dot, stream_fill_us=0.0, stream_one_way=0.09)
    assert two / one == pytest.approx(1.0 - 0.09 / 3)
    assert three / one == pytest.approx(1.0 - 0.09)


def test_a_pair_of_halves_costs_one_fill_more() -> None:
    whole = Stream(name="s", kind="norm", read=1e8, write=1e8, launches=2)
    half = Stream(name="s", kind="norm", read=5e7, write=5e7)
    both, one = seconds(whole, half)
    assert both == pytest.approx(2 * one, rel=1e-12)


@pytest.mark.parametrize(
    ("op", "value", "unit", "read_bytes", "write_bytes", "microseconds"),
    [
        ("babelstream_copy", "1.61", "TB/s", 2**28, 2**28, 2 * 2**28 / 1.61e12 * 1e6),
        ("babelstream_triad", "1.7", "TB/s", 2**29, 2**28, 3 * 2**28 / 1.7e12 * 1e6),
        ("babelstream_dot", "3180", "GB/s", 2**29, 0, 2**29 / 3.18e12 * 1e6),
        ("hbm_write", "5140", "GB/s", 0, 2**30, 2**30 / 5.14e12 * 1e6),
        ("memory_op_default", "0.5", "fraction", 2**30, 2**30, 2**31 / 0.8e12 * 1e6),
    ],
)
def test_rates_become_times(
    op: str, value: str, unit: str, read_bytes: int, write_bytes: int, microseconds: float
) -> None:
    params = "peak 1600 GB/s, latency 40 us"
    row = {"op": op, "value": value, "unit": unit, "params": params, "source": "test", "notes": ""}
    found = cells_of(row)
    assert found is not None
    made = operator("stream", found)
    assert isinstance(made, Stream)
    assert (made.read, made.write) == (read_bytes, write_bytes)
    assert float(found["time_us"]) == pytest.approx(microseconds, rel=1e-5)


def test_stated_arrays_replace_the_default() -> None:
    row = {"op": "babelstream_add", "value": "1", "unit": "TB/s", "params": "array_bytes=1e9", "source": "test"}
    found = cells_of(row)
    assert found is not None
    assert (found["read_bytes"], found["write_bytes"]) == ("2000000000", "1000000000")


def test_host_links_are_no_streams_and_bad_rates_are_named() -> None:
    row = {"op": "nvbandwidth_h2d", "value": "26", "unit": "GB/s", "params": "", "source": "test"}
    assert cells_of(row) is None
    for change in ({"value": "0"}, {"unit": "parsecs"}, {"unit": "fraction"}, {"value": "fast"}):
        refusal(cells_of, {**row, "op": "babelstream_copy", **change}, kind=ValueError)


@pytest.mark.parametrize("name", MEASURED)
def test_bare_streams_without_a_fit(root: Path, name: str) -> None:
    rows = [row for row in read(root / "measured" / "kernels" / name) if isinstance(row.op, Stream)]
    bare = [row for row in rows if row.op.kind in sets.BARE]  # type: ignore[union-attr]
    base = {key: p for key, p in load(name).parameters.items() if key != "stream.device"}
    ops = [row.op for row in bare if isinstance(row.op, Stream)]
    took = stream.seconds(ops, gpu(name), Efficiency(gpu=name, parameters=base))
    error = took / np.array([row.seconds for row in bare]) - 1.0
    assert len(bare) >= 2
    assert np.abs(error).mean() < 0.1


def test_only_bare_streams_are_fitted(root: Path) -> None:
    (found,) = sets.stream(read(root / "measured" / "kernels" / "h100_sxm"))
    assert set(found.keys) == {"stream.device"}
    assert len({found.group(row) for row in found.rows}) == 4
    assert sets.stream(read(root / "measured" / "kernels" / "b200")) == []


@pytest.mark.parametrize("name", ["a100_sxm_80gb", "h100_sxm", "h200", "b200", "b300", "mi300x"])
def test_a_kernel_that_loads_element_by_element_is_never_faster(name: str) -> None:
    strided, plain = seconds(
        *(Stream(name="s", kind=k, read=1e9, write=1e9) for k in ("strided", "elementwise")), name=name
    )
    assert strided > plain


def test_loads_in_flight_bound_it_whatever_the_memory() -> None:
    """pytorch/pytorch PR 195542 (A100) and tile-ai/TileOPs PR 537 (H200): about as much a compute unit on both."""
    rate = {}
    for name in ("a100_sxm_80gb", "h100_sxm", "h200", "b200"):
        (took,) = seconds(Stream(name="s", kind="strided", read=4e9, write=4e9), name=name)
        rate[name] = 8e9 / took / gpu(name).compute_units
    assert max(rate.values()) < 1.4 * min(rate.values())


def test_the_published_scan_of_chunks() -> None:
    """tile-ai/tilelang@be9c08f6 benchmark/mamba2/README.md: 80 heads of 64, 128 states, chunks of 256, batches of 8."""
    for length, published in ((2048, 0.329), (8192, 1.278), (32768, 5.076)):
        tokens, width, states, chunk = 8 * length, 80 * 64, 128, 256
        scan = Scan(
            name="scan", kind="elementwise", read=2.0 * tokens * (width + states + chunk + width * states / chunk),
            write=2.0 * tokens * width, work=tokens * width * (chunk + 2.0 * states),
        )  # fmt: skip
        assert seconds(scan, name="h800")[0] * 1e3 == pytest.approx(published, rel=0.06)
