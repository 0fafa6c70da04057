"""From a file to whole steps, owners, exchanges and shapes."""

import json

import command_line
import numpy as np
import pytest
from asked import ROOT, put, refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.trace.account import account, union
from harness.trace.events import Kernels
from harness.trace.idle import BETWEEN, LAUNCH, OTHERS, SYNC, idle
from harness.trace.names import UNKNOWN, bare, named
from harness.trace.owners import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, owners
from harness.trace.reader import read
from harness.trace.shapes import shaped
from harness.trace.steps import TracedPart, chosen, steps
from harness.trace.study import exchanges, study
from projector.operators.types import Attention, Gemm
from tests.harness.trace.made import ADAM, GEMM, REDUCE, Made, stepped
from tests.harness.trace.made import FORWARD as FLASH


def test_the_step_of_median_length_stands_for_the_trace(tmp_path) -> None:
    trace = read(stepped([900, 500, 510, 505]).write(tmp_path / "t.json.gz"))
    assert (trace.gpu, trace.rank, trace.world, trace.cut) == ("NVIDIA H100 80GB HBM3", 0, 2, False)
    assert [step.number for step in steps(trace)] == [10, 11, 12, 13]
    part = chosen(trace)
    assert part.said.startswith("step 13 ")  # 505: the lower of the two in the middle
    assert part.seconds == pytest.approx((505 + 350) * 1e-6)  # no step follows it
    assert chosen(trace, 11).seconds == pytest.approx((500 + 400) * 1e-6)  # to the first kernel of the next


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path) -> None:
    made = stepped([500, 500])
    made.kernel(GEMM, 1905, 30, launch=1500)  # launched in step 10, runs in 11
    first, second = steps(read(made.write(tmp_path / "t.json")))
    assert (len(first.kernels), len(second.kernels)) == (5, 4)


def test_a_device_behind_its_host_makes_no_step_longer(tmp_path) -> None:
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


def test_a_cut_file_loses_its_last_step(tmp_path) -> None:
    path = stepped([500, 500, 500]).write(tmp_path / "t.json")
    text = path.read_text()
    trace = read(put(path, text[: len(text) - 200]))
    assert trace.cut
    assert [step.number for step in steps(trace)] == [10, 11]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"traceEvents": []}', '{"traceEvents": [{"ph": "M", "name": "x"}]}', "step 1"]
)
def test_what_is_no_trace_is_refused(tmp_path, text: str) -> None:
    refusal(read, put(tmp_path / "t.json", text), match=r"t\.json")


def test_a_kernel_is_owned_by_what_encloses_its_launch(tmp_path) -> None:
    made = Made()
    made.mark("layer 3", 0, 100)
    made.host("aten::mm", 10, 20)
    made.kernel(GEMM, 200, 10, launch=15)
    made.host("autograd::engine::evaluate_function: MmBackward0", 40, 20, tid=2)
    made.host("cudaLaunchKernel", 45, 1, cat="cuda_runtime", tid=2, correlation=99)
    made.events.append(
        {"ph": "X", "cat": "kernel", "name": GEMM, "ts": 220, "dur": 5, "tid": 7, "args": {"stream": 7, "correlation": 99}}
    )  # fmt: skip
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
def test_what_the_fastest_rank_needs_is_transfer(tmp_path, numbered: bool) -> None:
    ranks = [exchange(0, [50, 30], numbered=numbered), exchange(1, [20, 35], numbered=numbered)]
    parts = [chosen(read(made.write(tmp_path / f"{made.rank}.json"))).kernels for made in ranks]
    (row,) = exchanges(parts)
    assert (row.op, row.group, row.ranks, row.elements, row.count) == ("allreduce", "dp", 2, 1024, 2)
    assert row.transfer == pytest.approx((20 + 30) * 1e-6)
    assert row.waiting == pytest.approx(30e-6)
    (alone,) = exchanges(parts[:1])
    assert alone.transfer == pytest.approx(60e-6)  # twice the faster of the two alike


def test_shapes_come_from_sizes_and_strides(tmp_path) -> None:
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


def test_events_in_any_order_say_the_same(tmp_path) -> None:
    made = stepped([500, 600, 550])
    path = made.write(tmp_path / "a.json")
    other = put(tmp_path / "b.json", json.dumps({**made.document(), "traceEvents": made.events[::-1]}))
    one, two = chosen(read(path)), chosen(read(other))
    assert (one.said, one.seconds) == (two.said, pytest.approx(two.seconds))


# Every moment is counted once, whatever runs beside what.

NAMES = (GEMM, "flash::flash_fwd_kernel<x>", REDUCE, "Memcpy DtoD (Device -> Device)", "who knows")


def part_of(rows: list[tuple[float, float, int]]) -> TracedPart:
    rows = sorted(rows)
    start, length, name = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.full(len(rows), -1, dtype=np.int64)
    kernels = Kernels(start, start + length, nothing, name.astype(np.int64), nothing, NAMES)
    return TracedPart(kernels, float(start.min()), float((start + length).max()) + 1.0, True, "")


rows = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0.001, 3), st.integers(0, len(NAMES) - 1)), min_size=1, max_size=30
)


@given(rows)
def test_the_parts_sum_to_the_step(found: list[tuple[float, float, int]]) -> None:
    part = part_of(found)
    made = account(part)
    assert sum(entry.exposed for entry in made.entries) + made.idle == pytest.approx(part.seconds)
    assert made.busy + made.idle == pytest.approx(part.seconds)
    assert all(0 <= entry.exposed <= entry.busy + 1e-12 for entry in made.entries)
    assert sum(entry.calls for entry in made.entries) == len(found)


@given(rows)
def test_a_union_is_what_a_clock_would_count(found: list[tuple[float, float, int]]) -> None:
    part = part_of(found)
    spans = union(part.kernels, np.ones(len(found), dtype=bool))
    ticks = np.linspace(0, 14, 1401)
    inside = sum((ticks >= a) & (ticks < b) for a, b in spans)
    apart = sum((ticks >= a) & (ticks < b) for a, b in zip(part.kernels.start, part.kernels.end, strict=True))
    assert ((inside > 0) == (apart > 0)).all()
    assert (inside <= 1).all()


def test_communication_counts_only_where_nothing_computes() -> None:
    made = account(part_of([(0.0, 4.0, 0), (1.0, 5.0, 2), (5.5, 2.0, 3)]))
    exposed = {entry.kind: entry.exposed for entry in made.entries}
    assert exposed["GEMM"] == pytest.approx(4.0)
    assert exposed["communication: all_reduce"] == pytest.approx(2.0)  # from 4 to 6: before, the product runs
    assert exposed["copy"] == pytest.approx(1.5)  # from 6 to 7.5: before, the message is under way


def test_two_products_at_a_time_share_it() -> None:
    made = account(part_of([(0.0, 2.0, 0), (0.0, 2.0, 1)]))
    assert {entry.kind: entry.exposed for entry in made.entries} == pytest.approx({"GEMM": 1.0, "attention": 1.0})


@pytest.fixture
def gaps(tmp_path) -> dict[str, float]:
    made = Made()
    made.kernel(GEMM, 100, 50, launch=10)
    made.kernel(GEMM, 152, 48, launch=20)  # follows at once
    made.host("cudaStreamSynchronize", 30, 172, cat="cuda_runtime")
    made.kernel(GEMM, 230, 70, launch=210)  # 30 µs: the host had waited until 202
    made.kernel(GEMM, 340, 60, launch=330)  # 40 µs: launched late
    made.kernel(GEMM, 450, 50, launch=335)  # 50 µs: launched before the device ran dry
    trace = read(made.write(tmp_path / "t.json"))
    part = chosen(trace)
    return {reason: 1e6 * seconds for reason, seconds in idle(trace, part, account(part)).items()}


def test_a_gap_has_the_reason_of_what_ended_it(gaps: dict[str, float]) -> None:
    assert gaps == pytest.approx({BETWEEN: 2.0, SYNC: 30.0, LAUNCH: 40.0, OTHERS: 50.0})


# Kernels are told by name; each name here was seen in a published trace or stands in its library's source.

SEEN = tabled("names", "kernels")


@pytest.mark.parametrize("name", SEEN)
def test_a_known_name(name: str) -> None:
    found = named(name)
    assert (found.kind, found.provider) == SEEN[name]


def test_the_main_kernels_of_attention_tell_layer_passes() -> None:
    ways = [named(name).way for name in SEEN if named(name).kind == "attention"]
    assert ways == ["forward", "", "backward", "forward", "backward", "forward"]


@pytest.mark.parametrize("name", ["my_kernel_v2", "foo::dispatch_table", "combined_scan", ""])
def test_an_unknown_name_stays_unknown(name: str) -> None:
    assert named(name).kind == UNKNOWN


def test_arguments_are_no_part_of_a_name_but_functors_are() -> None:
    assert bare("void f<g(int)>(h)") == "f<g(int)>"
    assert named("void run<X>(cublas_params)").kind == UNKNOWN


# ``harness trace`` as a user runs it, on a published trace and on bad ones.


PUBLISHED = ROOT.parent / "shared" / "traces" / "kineto_deepseek_train.json"
CONFIG = ROOT / "examples" / "deepseek_v3_h800.yaml"
published = pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published trace is not beside the checkout")


@published
def test_the_published_trace_adds_up_to_what_is_known_of_it() -> None:
    """deepseek-ai/profile-data: sums over three streams, by kernel."""
    found = study([PUBLISHED])
    busy = {row.kind: 1e3 * row.busy for row in found.rows}
    assert 1e3 * found.part.seconds == pytest.approx(129.0, abs=0.05)
    assert 1e3 * found.account.busy == pytest.approx(128.5, abs=0.05)
    assert busy["expert exchange: combine"] == pytest.approx(49.4, abs=0.1)
    assert busy["expert exchange: dispatch"] == pytest.approx(31.0, abs=0.1)
    assert busy["expert exchange: wait"] == pytest.approx(32.6, abs=0.1)
    assert busy["attention"] == pytest.approx(4.9 + 15.1 + 1.9, abs=0.1)
    exchanged = sum(1e3 * row.exposed for row in found.rows if row.kind.startswith("expert exchange"))
    assert exchanged == pytest.approx(4.2, abs=0.1)
    assert found.unknown_share < 0.03


@published
def test_the_published_trace_beside_its_projection(tmp_path) -> None:
    overlay = tmp_path / "both.json"
    argv = ["trace", str(PUBLISHED), "--config", str(CONFIG), "--json", "--overlay", str(overlay)]
    said = json.loads(command_line.told("harness", *argv))
    assert any("4 of 480 forward and 4 of 480 backward layer passes" in line for line in said["lines"])
    events = json.loads(overlay.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "attention"]
    assert len(kernels) == 16
    assert {event["pid"] for event in events if event.get("cat") == "forward"} == set(range(16))


def test_a_terminal_of_80_columns(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = stepped([500, 510, 490]).write(tmp_path / "t.json.gz")
    lines = command_line.told("harness", "trace", path).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("attention") for line in lines)


@pytest.mark.parametrize(("argv", "wanted"), tabled("refusals", "trace"))
def test_bad_input_is_one_clear_error(argv: list[str], wanted: str, tmp_path) -> None:
    files = {
        "one": stepped([500, 500]).write(tmp_path / "one.json"),
        "other": Made(rank=1, world=4, events=stepped([500]).events).write(tmp_path / "other.json"),
        "none": tmp_path / "none.json",
    }
    said = command_line.refused("harness", "trace", *(word.format(**files) for word in argv))
    assert wanted in said
    assert "Traceback" not in said
    assert not files["none"].exists()


def test_inference_is_said_to_be_no_step(tmp_path) -> None:
    made = Made()
    made.kernel("flash::flash_fwd_kernel<x>", 100, 50)
    path = made.write(tmp_path / "t.json")
    assert "no backward pass" in command_line.told("harness", "trace", path, "--config", CONFIG)


@pytest.mark.parametrize(("cluster", "said"), [("h100_sxm", False), ("mi355x", True)])
def test_a_projection_of_another_device_is_named(cluster: str, said: bool, tmp_path) -> None:
    path = stepped([500, 510, 490]).write(tmp_path / "t.json")
    argv = ["trace", str(path), "--model", "llama3_8b", "--cluster", cluster, "--gpus", "8"]
    sizes = ["--micro-batch-size", "1", "--global-batch-size", "8", "--seq-length", "4096"]
    out = command_line.told("harness", *argv, *sizes)
    assert (f"the projection of {cluster}" in out) is said
    assert "Projected" in out
