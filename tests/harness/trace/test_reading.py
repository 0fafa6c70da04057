"""From a file to whole steps, owners, exchanges and shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.trace.account import account
from harness.trace.owners import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, owners
from harness.trace.reader import read
from harness.trace.shapes import shaped
from harness.trace.steps import chosen, steps
from harness.trace.study import exchanges
from projector.errors import InputError
from projector.operators.types import Attention, Gemm
from tests.harness.trace.made import ADAM, GEMM, REDUCE, Made, stepped
from tests.harness.trace.made import FORWARD as FLASH


def test_the_step_of_median_length_stands_for_the_trace(tmp_path: Path) -> None:
    trace = read(stepped([900, 500, 510, 505]).write(tmp_path / "t.json.gz"))
    assert (trace.gpu, trace.rank, trace.world, trace.cut) == ("NVIDIA H100 80GB HBM3", 0, 2, False)
    assert [step.number for step in steps(trace)] == [10, 11, 12, 13]
    part = chosen(trace)
    assert part.said.startswith("step 13 ")  # 505: the lower of the two in the middle
    assert part.seconds == pytest.approx((505 + 350) * 1e-6)  # no step follows it
    assert chosen(trace, 11).seconds == pytest.approx((500 + 400) * 1e-6)  # to the first kernel of the next


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    made = stepped([500, 500])
    made.kernel(GEMM, 1905, 30, launch=1500)  # launched in step 10, runs in 11
    first, second = steps(read(made.write(tmp_path / "t.json")))
    assert (len(first.kernels), len(second.kernels)) == (5, 4)


def test_a_device_behind_its_host_makes_no_step_longer(tmp_path: Path) -> None:
    """Each step's copy runs at once, its products 3,000 µs after their launch, one step after the other."""
    made = Made()
    for i in range(5):
        made.mark(f"ProfilerStep#{i}", 1000 * i, 1000)
        made.kernel("Memcpy HtoD (Pinned -> Device)", 1000 * i + 5, 10, stream=9, launch=1000 * i + 1)
        made.kernel(GEMM, 1000 * i + 3000, 900, launch=1000 * i + 10)
        made.kernel(ADAM, 1000 * i + 3900, 100, launch=1000 * i + 20)
    trace = read(made.write(tmp_path / "t.json"))
    assert [step.device_seconds for step in steps(trace)[1:]] == pytest.approx([1e-3] * 4)
    part = chosen(trace)
    assert part.seconds == pytest.approx(1e-3)
    assert account(part).idle == pytest.approx(0.0)


def test_a_cut_file_loses_its_last_step(tmp_path: Path) -> None:
    path = stepped([500, 500, 500]).write(tmp_path / "t.json")
    text = path.read_text()
    path.write_text(text[: len(text) - 200])
    trace = read(path)
    assert trace.cut
    assert [step.number for step in steps(trace)] == [10, 11]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"traceEvents": []}', '{"traceEvents": [{"ph": "M", "name": "x"}]}', "step 1"]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"t\.json"):
        read(path)


def test_a_kernel_is_owned_by_what_encloses_its_launch(tmp_path: Path) -> None:
    made = Made()
    made.mark("layer 3", 0, 100)
    made.host("aten::mm", 10, 20)
    made.kernel(GEMM, 200, 10, launch=15)
    made.host("autograd::engine::evaluate_function: MmBackward0", 40, 20, tid=2)
    made.host("cudaLaunchKernel", 45, 1, cat="cuda_runtime", tid=2, correlation=99)
    made.events.append(
        {
            "ph": "X",
            "cat": "kernel",
            "name": GEMM,
            "ts": 220,
            "dur": 5,
            "tid": 7,
            "args": {"stream": 7, "correlation": 99},
        }
    )
    made.host("CheckpointFunctionBackward", 60, 30)
    made.host("aten::mm", 62, 5)
    made.kernel(GEMM, 230, 10, launch=63)
    made.host("MmBackward0", 70, 10)
    made.kernel(GEMM, 240, 10, launch=75)
    made.mark("Optimizer.step#AdamW.step", 150, 20)
    made.kernel(GEMM, 250, 10, launch=155)
    trace = read(made.write(tmp_path / "t.json"))
    found = owners(trace, trace.kernels)
    assert [owner.phase for owner in found] == [FORWARD, BACKWARD, RECOMPUTE, BACKWARD, OPTIMIZER]
    assert [owner.mark for owner in found[:4]] == ["layer 3"] * 4  # on the thread of the backward, too
    assert trace.ops.names[int(trace.ops.name[found[0].op])] == "aten::mm"


def exchange(rank: int, lengths: list[float], *, numbered: bool = True) -> Made:
    made = Made(rank)
    for at, length in enumerate(lengths):
        message = {
            "Collective name": "allreduce",
            "In msg nelems": 1024,
            "Out msg nelems": 1024,
            "dtype": "BFloat16",
            "Group size": 2,
            "Process Group Description": "dp",
            **({"Seq": at} if numbered else {}),
        }
        made.kernel(REDUCE, 1000.0 * at, length, **message)
    return made


@pytest.mark.parametrize("numbered", [True, False])
def test_what_the_fastest_rank_needs_is_transfer(tmp_path: Path, numbered: bool) -> None:
    ranks = [exchange(0, [50, 30], numbered=numbered), exchange(1, [20, 35], numbered=numbered)]
    parts = [chosen(read(made.write(tmp_path / f"{made.rank}.json"))).kernels for made in ranks]
    (row,) = exchanges(parts)
    assert (row.op, row.group, row.ranks, row.elements, row.count) == ("allreduce", "dp", 2, 1024, 2)
    assert row.transfer == pytest.approx((20 + 30) * 1e-6)
    assert row.waiting == pytest.approx(30e-6)
    (alone,) = exchanges(parts[:1])
    assert alone.transfer == pytest.approx(60e-6)  # twice the faster of the two alike


def test_shapes_come_from_sizes_and_strides(tmp_path: Path) -> None:
    made = Made()
    types = ["c10::BFloat16", "c10::BFloat16"]
    linear = {"Input Dims": [[512, 256], [256, 128]], "Input Strides": [[256, 1], [1, 256]], "Input type": types}
    made.host("aten::mm", 10, 10, **linear)
    made.kernel(GEMM, 100, 8, launch=12)
    wgrad = {"Input Dims": [[256, 512], [512, 128]], "Input Strides": [[1, 256], [128, 1]], "Input type": types}
    made.host("aten::mm", 30, 10, **wgrad)
    made.kernel(GEMM, 110, 9, launch=32)
    sizes = [[2, 8, 64, 32], [2, 2, 64, 32], [2, 2, 64, 32]]
    made.host("aten::_scaled_dot_product_flash_attention", 50, 10, **{"Input Dims": sizes, "Input type": types * 2})
    made.kernel(FLASH, 130, 7, launch=52)
    trace = read(made.write(tmp_path / "t.json"))
    first, second, third = shaped(trace.ops, trace.kernels, owners(trace, trace.kernels))
    assert isinstance(first.op, Gemm)
    assert (first.op.m, first.op.n, first.op.k, first.op.layout) == (256, 128, 512, "NT")
    assert isinstance(second.op, Gemm)
    assert (second.op.m, second.op.n, second.op.k, second.op.layout) == (512, 128, 256, "TN")
    assert isinstance(third.op, Attention)
    assert (third.op.heads, third.op.kv_heads, third.op.seq_q, third.laid) == (8, 2, 64, False)
    assert [row.seconds for row in (first, second, third)] == pytest.approx([9e-6, 8e-6, 7e-6])


def test_events_in_any_order_say_the_same(tmp_path: Path) -> None:
    made = stepped([500, 600, 550])
    path = made.write(tmp_path / "a.json")
    other = tmp_path / "b.json"
    other.write_text(json.dumps({**made.document(), "traceEvents": made.events[::-1]}))
    one, two = chosen(read(path)), chosen(read(other))
    assert (one.said, one.seconds) == (two.said, pytest.approx(two.seconds))
