"""CSV tables: what is wrong with one as a whole, and long ones row by row with the same result as short ones."""

import gzip
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import command_line
import pytest
from asked import put, refusal, says
from tabled import tabled

from harness.__main__ import main
from harness.contracts.runs import MeasuredRun
from harness.evidence import dataset
from harness.evidence.ingest import stream
from harness.evidence.ingest.command import ingest, stream_table
from harness.evidence.ingest.context import Context
from harness.evidence.ingest.report import RowReport

HEADER = "id,model,gpu,gpus,seq_length,mbs,gbs,tp,pp,cp,precision,step_seconds,framework"
MODELS, GPUS = ("llama3_8b", "llama2_7b", "qwen2.5_7b", "unknown-1b"), ("H100", "A100 80GB", "MI300X", "")


def lines(count: int, seed: int = 1) -> list[str]:
    """Rows with few configurations and figures of their own, wrong ones and empty cells among them."""
    drawn = random.Random(seed)
    return [
        f"run-{i},{drawn.choice(MODELS)},{drawn.choice(GPUS)},{drawn.choice((8, 64))},{drawn.choice((4096, 8192))},1,128,"
        f"{drawn.choice((1, 2, 4))},1,1,{drawn.choice(('bf16', 'fp8', ''))},{drawn.choice((0.01, 5, 12.5))},Megatron-LM"
        for i in range(count)
    ]


def table(path: Path, count: int, seed: int = 1) -> Path:
    return put(path, "\n".join([HEADER, *lines(count, seed)]) + "\n")


WRONG = tuple(tabled("readers", "csv_tables_wrong"))


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_what_is_wrong_with_a_table(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path / "t.csv", text)
    for command in (["ingest"], ["run", "--out", str(tmp_path / "out"), "--runs"]):
        assert main([*command, str(path)]) == 2
        said = capsys.readouterr()
        assert words in said.err
        assert said.out == ""


def one_row(path: Path, separator: str = ",", **cells: str) -> tuple[MeasuredRun, RowReport]:
    """The row of a table that states these cells alone."""
    text = "".join(separator.join(f'"{text}"' for text in line) + "\n" for line in (cells.keys(), cells.values()))
    report = ingest([put(path, text)])
    return report.runs[0], report.rows[0]


@pytest.mark.parametrize("second", ["s", "sec", "second"])
@pytest.mark.parametrize("per", ["/", " / ", " per ", "_per_"])
def test_a_rate_is_read_by_its_words_and_their_order(per: str, second: str, tmp_path: Path) -> None:
    """Whose it is, of what, by what; where the time stands before the work it is none."""
    path = tmp_path / "t.csv"
    for work in ("Tokens", "tok"):
        for device in ("GPU", "device", "chip"):
            for header in (f"{work}{per}{second}{per}{device}", f"{work}{per}{device}{per}{second}"):
                assert one_row(path, gpus="8", **{header: "2,500"})[0].measured.tgs == 2500
            assert (
                one_row(path, gpus="8", **{f"TFLOP{per}{second}{per}{device}": "400"})[0].measured.tflops_per_gpu == 400
            )
        assert one_row(path, gpus="8", **{f"{work}{per}{second}": "20000"})[0].measured.tgs == 2500
        for header in (f"{second}{per}{work}", f"GPU {work}{per}{second}", f"{work}{per}{second}{per}node"):
            assert one_row(path, gpus="8", **{header: "2500"})[0].measured.tgs is None
    for step in ("step", "iteration", "it"):
        for header, seconds in ((f"Avg {step}{per}{second}", 0.25), (f"{second}{per}{step}", 4.0)):
            assert one_row(path, **{header: "4", "gpus": "8"})[0].measured.step_seconds == seconds


def test_a_table_in_markdown_is_the_same_table(tmp_path: Path) -> None:
    rows = [HEADER, *lines(20)]
    ruler = "|" + " :--- |" * rows[0].count(",") + "---|"
    marked = ["| " + row.replace(",", " | ").replace("llama", "**llama") + " |" for row in rows]
    head = marked[0].replace("id", "`id`", 1).replace("seq_length", "Sequence <br> length [^1]")
    text = "\n".join(["# Speed", "", head, ruler, *marked[1:], "", "As measured."])
    plain = ingest([put(tmp_path / "t.csv", "\n".join(rows))])
    path = put(tmp_path / "t.md", text.replace("_7b", "_7b**").replace("3_8b", "3_8b**"))
    assert [(run.id, run.measured, run.problem) for run in ingest([path]).runs] == [
        (run.id, run.measured, run.problem) for run in plain.runs
    ]
    refusal(ingest, [put(path, f"{text}\n\n{marked[0]}\n{ruler}\n{marked[1]}")], match="another table")


@pytest.mark.parametrize(("unit", "gib"), [("GB", 40.0), ("GiB", 40.0), ("MB", 40 / 1024), ("MiB", 40 / 1024)])
@pytest.mark.parametrize("name", ["Memory", "Peak mem", "Max memory / GPU", "Peak GPU memory"])
def test_the_unit_of_a_header_is_that_of_its_cells(name: str, unit: str, gib: float, tmp_path: Path) -> None:
    for cells in ({f"{name} ({unit})": "40"}, {"memory": f"40 {unit}"}):
        assert one_row(tmp_path / "t.csv", gpus="8", **cells)[0].measured.peak_memory_gib == gib
    for unit_of_time, factor in (("ms", 1e-3), ("s", 1.0), ("sec", 1.0)):
        run, _ = one_row(tmp_path / "t.csv", gpus="8", **{f"Mean time per iteration [{unit_of_time}]": "40"})
        assert run.measured.step_seconds == 40 * factor


@pytest.mark.parametrize(("separator", "text", "seconds"), tabled("readers", "csv_tables_commas"))
def test_a_comma_that_may_be_a_decimal_one_is_no_thousands(
    separator: str, text: str, seconds: float | None, tmp_path: Path
) -> None:
    run, row = one_row(tmp_path / "t.csv", separator, gpus="8", step_time_s=text)
    assert run.measured.step_seconds == seconds
    assert any("is not a number" in why for why in row.refused) == (seconds is None)


@pytest.mark.parametrize(("cells", "gpus", "doubt"), tabled("readers", "csv_tables_counts"))
def test_counts_and_figures_that_disagree_are_doubted(
    cells: dict[str, str], gpus: int, doubt: str, tmp_path: Path
) -> None:
    run, row = one_row(tmp_path / "t.csv", **cells)
    assert (run.gpus, bool(row.doubts)) == (gpus, bool(doubt))
    assert not doubt or doubt in row.doubts[0]


@pytest.mark.parametrize(("cells", "read", "unread"), tabled("readers", "csv_tables_headers"))
def test_a_header_means_what_its_words_say(
    cells: dict[str, str], read: dict[str, object], unread: str, tmp_path: Path
) -> None:
    run, row = one_row(tmp_path / "t.csv", gpu="H100", gpus="8", tgs="9000", **cells)
    found = {"step_seconds": None, "peak_memory_gib": None, "status": "ok", **run.switches, **vars(run.measured)}
    expected = {"step_seconds": None, "peak_memory_gib": None, "status": "ok", **read}
    assert {name: found[name] for name in expected} == expected
    assert "; ".join(row.unread) == unread


@pytest.mark.parametrize("header", ["GPU Memory (GB)", "Memory per GPU (GiB)"])
@pytest.mark.parametrize(("gib", "peak"), [("80", None), ("80GB", None), ("79.5", 79.5), ("40 GiB", 40)])
def test_the_memory_that_a_gpu_has_is_no_peak(header: str, gib: str, peak: float | None, tmp_path: Path) -> None:
    run, row = one_row(tmp_path / "t.csv", gpus="8", gpu="H100", TGS="2500", **{header: gib})
    assert (run.measured.peak_memory_gib, bool(row.doubts)) == (peak, peak is None)


@pytest.mark.parametrize("text", ["OOM", "oom", "Out of memory"])
def test_a_figure_that_says_out_of_memory_is_that_end(text: str, tmp_path: Path) -> None:
    for header in ("TGS", "step_time_ms", "TFLOPS", "memory_gb"):
        run, row = one_row(tmp_path / "t.csv", gpus="8", **{header: text})
        assert run.measured.status == "out-of-memory"
        assert not any("number" in why or "throughput" in why for why in row.refused)


def test_the_second_column_of_one_meaning_is_named(tmp_path: Path) -> None:
    run, row = one_row(tmp_path / "t.csv", gpus="8", TGS="2500", **{"tokens/s/GPU": "2600"})
    assert run.measured.tgs == 2500
    assert any("2600" in text for text in row.unread)


@pytest.mark.parametrize("name", ["t.yaml", "t.json"])
def test_a_list_of_numbers_is_no_table(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path / name, "[1, 2, 3]")
    for command in (["ingest"], ["run", "--runs"], ["run"], ["compare"]):
        assert str(path) in command_line.refused("harness", *command, path)
    assert main(["ingest", str(put(path, '[{"a": 1, "b": 2}]'))]) == 2
    assert "found 'a, b', expected columns of a run" in capsys.readouterr().err


SLIPS = f"""{HEADER},tgs,memory_gb,date
ok,llama3_8b,H100,64,8192,1,128,2,1,1,bf16,4,Megatron-LM,,70,2025/02/28
ms,llama3_8b,H100,64,8192,1,128,2,1,1,bf16,4000,Megatron-LM,,70,May 2025
total,llama3_8b,H100,64,8192,1,128,2,1,1,bf16,,Megatron-LM,262144,,2025-02
both,llama3_8b,H100,64,8192,1,128,2,1,1,bf16,4,Megatron-LM,262144,,2025-02
feb,llama3_8b,H100,64,8192,1,128,2,1,1,bf16,4,Megatron-LM,,,2025-02-30
mem,llama3_8b,H100,64,8192,1,128,2,1,1,bf16,4,Megatron-LM,,560,
huge,llama3_8b,H100,1e30,8192,1,128,2,1,1,bf16,1e300,Megatron-LM,,,
v100,llama3_8b,V100,64,8192,1,128,2,1,1,bf16,40,Megatron-LM,,,
"""
SAID = tabled("readers", "csv_tables_said")


def test_every_row_goes_through_the_physical_check(tmp_path: Path) -> None:
    report = ingest([put(tmp_path / "t.csv", SLIPS)])
    refused = {row.id: row.refused for row in report.rows}
    assert {name: refused[name] for name in SAID} == {name: (text,) for name, text in SAID.items()}
    assert refused["ok"] == refused["ms"] == ()
    says(refused["huge"], "metrics.step_seconds = 1e+300 is beyond any training", "gpus = 1e+30 is beyond any training")
    doubts = {row.id: row.doubts for row in report.rows}
    assert "in milliseconds, taken for seconds? 4 s would be 30 %" in doubts["ms"][0]
    assert {run.id: run.stack.date for run in report.runs}["ms"] == "2025-05"
    assert {run.id: run.problem for run in report.runs}["mem"] == SAID["mem"]


def test_a_row_among_others_is_what_it_is_alone(tmp_path: Path) -> None:
    """Rows of one configuration differ in their figures, and in a batch that follows from them."""
    head = f"{HEADER},tokens/s/GPU,ms/step,zero,notes"
    same = "llama3_8b,H100,8,8192,1,{},1,1,,bf16,,Megatron-LM"
    rows = [
        f"r{i},{same.format(batch)},{rate},{ms},{zero},{note}"
        for i, (batch, rate, ms, zero, note) in enumerate(
            (batch, rate, ms, zero, note)
            for batch in ("64", "")
            for rate, ms in ((8192, 8000), (8192, 16000), (9000, ""), ("", 8000))
            for zero, note in (("", ""), (1, ""), (1, "oom"))
        )
    ]
    together = ingest([put(tmp_path / "t.csv", "\n".join((head, *rows)))])
    assert len({run.recipe and run.recipe.global_batch_size for run in together.runs}) > 2
    for run, row, text in zip(together.runs, together.rows, rows, strict=True):
        alone = ingest([put(tmp_path / "one.csv", f"{head}\n{text}")])
        assert (replace(alone.runs[0], source=run.source), replace(alone.rows[0], where=row.where)) == (run, row)


@pytest.mark.parametrize("packed", [False, True])
def test_a_long_table_gives_what_a_short_one_gives(packed: bool, tmp_path: Path, monkeypatch) -> None:
    path = table(tmp_path / "t.csv", 200)
    path.write_text(
        "\n".join(
            f"{line},{'g' if i % 2 else ''},{i % 3}" if i else f"{line},group,knob"
            for i, line in enumerate(path.read_text().splitlines())
        )
    )
    if packed:
        path = put(tmp_path / "t.csv.gz", gzip.compress(path.read_bytes()))
    short, long = tmp_path / "short.yaml", tmp_path / "long.yaml"
    said = []
    for out in (short, long):
        if out is long:
            monkeypatch.setattr(stream, "_STREAMED", 0)
        said.append(command_line.told("harness", "ingest", path, "--out", out, "--summary").replace(str(out), "OUT"))
    assert said[1].startswith(said[0])
    assert "assumed: " in said[1]
    assert short.read_text() == long.read_text()
    assert any(run.switches.get("knob") for run in dataset.read(long))


def test_a_long_table_with_a_mistake_at_its_end_writes_nothing(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", 50)
    path.write_text(path.read_text() + "late,a,b,c,d,e,f,g,h,i,j,k,l,m,n\n")
    out = put(tmp_path / "out.yaml", "what was there\n")
    refusal(stream_table, path, out, None, match="row 51: found '15 cells'")
    assert out.read_text() == "what was there\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.yaml", "t.csv"]


def test_rows_of_a_long_table_are_not_held(tmp_path: Path) -> None:
    """Ten times the rows take the same memory, but for the 8 bytes and the slot of each id."""
    code = (
        "import resource, sys; from pathlib import Path; from harness.evidence.ingest.command import stream_table\n"
        "for path in sys.argv[1:]:\n"
        "    stream_table(Path(path), Path(path + '.yaml'), None)\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    paths = [table(tmp_path / f"{count}.csv", count) for count in (300, 3_000)]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    few, many = (int(used) * (1024 if sys.platform != "darwin" else 1) for used in done.stdout.split())
    assert many - few < 2_700 * 1000


@pytest.mark.parametrize("name", ["t.csv.gz", "t.yaml.gz"])
def test_a_few_bytes_of_gzip_do_not_become_a_gigabyte(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"a" * (65 << 20), 1))
    refusal(ingest, [tmp_path / name], match=r"a table of more than 16 MiB|a larger table")
    if name == "t.csv.gz":
        refusal(stream_table, tmp_path / name, None, None, match=r"a line of 1,048,576 characters")


def test_what_a_user_says_stands_for_what_a_row_leaves_out(tmp_path: Path) -> None:
    """As W&B's table of runs has it: the arguments of each run, and neither GPU nor framework."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "Name,model,tensor_model_parallel_size,micro_batch_size,global_batch_size,seq_length,world_size,gpu,bf16,iteration-time\n"
        "sun-1,llama3.1_8b,2,1,256,8192,64,,true,5.8\nsun-2,llama3.1_8b,2,1,256,8192,64,H200,true,5.5\n"
    )
    made = ingest([path], said=Context(gpu="h100_sxm", framework="megatron-lm"))
    assert [(run.gpu, run.stack.framework, run.measured.step_seconds) for run in made.runs] == [
        ("h100_sxm", "megatron-lm", 5.8),
        ("h200", "megatron-lm", 5.5),
    ]
