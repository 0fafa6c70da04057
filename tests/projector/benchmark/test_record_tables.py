"""Tables that grow: our own schema, resumable, whole at every moment, and read at once by everything that reads tables."""

import csv
import json
from pathlib import Path

import command_line
import pytest
from asked import put, refusal
from tabled import tabled

from harness.kernels.schema import read as read_schema
from projector.benchmark import record, shapes
from projector.benchmark.device import Device
from projector.benchmark.job import Job, Ready, Skip
from projector.benchmark.record import COLUMNS, TableFile, cells_of
from projector.benchmark.stopwatch import Stopwatch
from projector.cli import run as projector
from projector.cli.source import workload
from projector.kernels.tables import KINDS, operator, read
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

OPS = {
    "gemm": Gemm(name="", m=8, n=16, k=32, layout="NT", out_bytes=4.0, accumulate=True),
    "attention": Attention(
        name="", batch=1, heads=4, kv_heads=2, seq_q=16, seq_k=16, head_dim_qk=24, head_dim_v=16, backward=True
    ),
    "grouped": GroupedGemm(name="", groups=4, rows=64, n=8, k=16, backend="fused"),
    "stream": Stream(name="", kind="norm", read=1024.0, write=512.0, launches=2),
}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_the_inverse_of_the_reader(kind: str) -> None:
    assert operator(kind, cells_of(OPS[kind], "mine")) == OPS[kind]
    assert set(cells_of(OPS[kind], "mine")) < set(COLUMNS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_row_is_read_back(tmp_path: Path, kind: str) -> None:
    table = TableFile(tmp_path, kind)
    assert not table.holds(OPS[kind], "mine")
    table.add(OPS[kind], "mine", 1.5e-3, 0.02, "live, cold cache, median of 11", "torch 9")
    table.save()
    (row,) = read(tmp_path)
    assert row.op == OPS[kind]
    assert row.seconds == pytest.approx(1.5e-3)
    assert row.source == "torch 9"
    assert _rows(tmp_path / f"{kind}.csv")[0]["spread"] == "0.0200"
    assert TableFile(tmp_path, kind).holds(OPS[kind], "mine")
    loaded = read_schema(tmp_path / f"{kind}.csv", "h200")
    assert len(loaded.rows) + len(loaded.skipped) == 1


def test_rows_of_others_stay_and_do_not_count_as_timed_here(tmp_path: Path) -> None:
    folder = tmp_path / "h200"
    folder.mkdir()
    head = ",".join(name for name in COLUMNS["gemm"] if name != "spread")
    (folder / "gemm.csv").write_text(
        f"{head}\nmine,bf16,,NT,1,4,8,16,32,1,,,7.5,sustained clocks,1\n", encoding="utf-8"
    )
    (folder / "gemm.sources.csv").write_text("number,source\n1,A paper\n", encoding="utf-8")
    table = TableFile(folder, "gemm")
    assert not table.holds(OPS["gemm"], "mine")
    table.add(OPS["gemm"], "mine", 1e-5, 0.1, "live, cold cache, median of 3", "torch 9")
    table.save()
    assert [row.source for row in read(folder)] == ["A paper", "torch 9"]


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    refusal(TableFile, tmp_path, "gemm", match=r"gemm\.csv")


def test_a_second_run_times_nothing(cpu: Device, quick: Stopwatch, small: Path, tmp_path: Path) -> None:
    ops = shapes.of_workloads([workload(str(small))], cpu.vendor, cpu.arch)
    planned = record.plan(ops, cpu, KINDS)
    first = record.run(planned.jobs, quick, tmp_path / "cpu")
    again = record.run(planned.jobs, quick, tmp_path / "cpu")
    assert sum(first.added.values()) == len(planned.jobs)
    assert not first.skipped
    assert sum(again.added.values()) == 0
    assert again.kept == first.added
    assert {row.condition[:16] for row in read(tmp_path / "cpu")} == {"live, warm cache"}


def test_what_was_timed_before_an_interrupt_is_kept(cpu: Device, quick: Stopwatch, tmp_path: Path) -> None:
    def stop() -> Ready:
        raise KeyboardInterrupt

    one = Job("gemm", OPS["gemm"], "mine", 1.0, lambda: Ready(lambda: None))
    two = Job("stream", OPS["stream"], "", 1.0, stop)
    assert record.run([one, two], quick, tmp_path).interrupted
    assert len(read(tmp_path)) == 1
    assert not list(tmp_path.glob(".*"))


def test_kernels_that_cannot_run_are_counted_with_their_reason(cpu: Device, quick: Stopwatch, tmp_path: Path) -> None:
    def refused() -> Ready:
        raise Skip("no such kernel")

    def broken() -> Ready:
        raise RuntimeError("first line\nsecond line")

    jobs = [
        Job("gemm", OPS["gemm"], "mine", 1.0, refused),
        Job("gemm", OPS["gemm"], "other", 1.0, broken),
        Job("gemm", OPS["gemm"], "huge", 1e18, broken),
    ]
    done = record.run(jobs, quick, tmp_path)
    assert sorted(done.skipped) == [
        "gemm: more memory than the device has free",
        "gemm: no such kernel",
        "gemm: other: first line",
    ]
    assert not (tmp_path / "gemm.csv").exists()


def test_kernels_that_would_take_too_long_are_skipped(cpu: Device, quick: Stopwatch, tmp_path: Path) -> None:
    def made(size: int) -> Job:
        return Job("gemm", Gemm(name="", m=size, n=size, k=size), "mine", 1.0, lambda: Ready(lambda: sum(range(2000))))

    done = record.run([made(8), made(4096)], quick, tmp_path, longest=1.0)
    assert done.added["gemm"] == 1
    assert done.skipped["gemm: longer than 1 s"] == 1


def test_a_limit_spreads_over_sizes(cpu: Device) -> None:
    ops = [Gemm(name="", m=8 * i, n=8, k=8) for i in range(1, 101)]
    rows = [job.op.m for job in record.plan(ops, cpu, ("gemm",), 5).jobs if isinstance(job.op, Gemm)]
    assert rows[0] == 8
    assert rows[-1] == 800
    assert len(rows) == 5


def test_shapes_of_the_zoo_hold_every_kind_once() -> None:
    ops = shapes.of_workloads(shapes.usual(), "nvidia", "hopper")
    assert {shapes.kind_of(op) for op in ops} == set(KINDS)
    assert len(set(ops)) == len(ops) > 500
    assert {op.layout for op in ops if isinstance(op, Gemm)} >= {"TN", "NN", "NT"}


def test_shapes_of_a_file(tmp_path: Path) -> None:
    path = put(tmp_path / "shapes.csv", "dtype,scaling,layout,accumulate,out_bytes,m,n,k,batch\nbf16,,TN,0,2,8,8,8,1\n")
    assert shapes.of_file(path) == (Gemm(name="", m=8, n=8, k=8),)
    path.write_text("dtype,scaling,layout,accumulate,out_bytes,m,n,k,batch\nbf16,,TN,0,2,x,8,8,1\n", encoding="utf-8")
    refusal(shapes.of_file, path, match=r"shapes\.csv:2")
    refusal(shapes.of_file, tmp_path / "no.csv", match=r"no\.csv")


def test_record_then_benchmark_mode(small: Path, tmp_path: Path, monkeypatch, capsys, cpu: Device) -> None:
    """The tables that ``record`` writes carry a projection in benchmark mode at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured" / "kernels").mkdir(parents=True)
    flags = ["--config", str(small), "--device", "cpu", "--samples", "3", "--no-flush"]
    assert "timed" in command_line.told("projector", "record", *flags)
    assert (tmp_path / "measured" / "kernels" / "cpu" / "attention.csv").is_file()
    assert projector(["performance", "--config", str(small), "--profiling-mode", "benchmark", "--json"]) == 0
    assert '"measured_share"' in capsys.readouterr().out
    assert projector(["benchmark", "--config", str(small), "--device", "cpu", "--budget", "0.05", "--json"]) == 0
    layer = next(each for each in json.loads(capsys.readouterr().out)["step"] if each["part"] == "layer dense, forward")
    assert layer["recorded"] > 0
    assert 0.5 < layer["tabled"] <= 1.0  # products and attention were recorded at these very sizes


def test_a_dry_run_times_nothing(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: Device) -> None:
    out = tmp_path / "out"
    assert projector(["record", "--config", str(small), "--device", "cpu", "--dry-run", "--out", str(out)]) == 0
    assert "kernels to time" in capsys.readouterr().out
    assert not out.exists()


def test_suites_are_read_through_the_harness(small: Path, tmp_path: Path, capsys, cpu: Device) -> None:
    suite = tmp_path / "mine.yaml"
    recipe = "{micro_batch_size: 1, global_batch_size: 8, seq_length: 4096}"
    case = f"{{id: one, model: llama3_8b, gpu: h100_sxm, gpus: 8, recipe: {recipe}}}"
    suite.write_text(f"suite: mine\ncases: [{case}]\n", encoding="utf-8")
    code = projector(["record", "--suite", str(suite), "--device", "cpu", "--dry-run"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "gemm" in shown.out


@pytest.mark.parametrize(("flags", "words"), tabled("refusals", "record"))
def test_bad_input_is_one_line_and_exit_2(flags: list[str], words: str, small: Path, cpu: Device) -> None:
    what = [] if "--config" in flags or "--shapes" in flags else ["--config", str(small)]
    shown = command_line.refused("projector", "record", *what, *flags).strip()
    assert words in shown
    assert len(shown.splitlines()) == 1
