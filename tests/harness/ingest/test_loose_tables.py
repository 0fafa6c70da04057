"""Files that nobody prepared: CSV, JSON, other headers, contradictions, gaps and nonsense."""

import gzip
import json
from pathlib import Path

import pytest
from asked import put, refusal, says
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.__main__ import main
from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.command import ingest, load
from harness.evidence.ingest.importmap import ImportMap, read_import_map
from harness.evidence.ingest.loose import convert
from projector.errors import InputError

COLUMNS = "Run,GPU type,#GPUs,Framework,Model name,dtype,Seq len,MBS,GBS,TP,PP,EP,Step time (ms),Tokens / s / GPU,remat"
CSV = f"""\
{COLUMNS}
a,MI300X,8,Primus/Megatron-LM,llama3.1_8b,bf16,8192,2,128,1,1,,"12,500",10485.8,none
b,mi355x,8,Primus/Megatron-LM,mixtral 8x7b,BF16,4096,1,64,1,1,8,2000,,full
c,MI399X,8,Primus/Megatron-LM,llama3.1_8b,bf16,8192,2,128,1,1,1,100,,
"""


def test_csv_with_its_own_headers(tmp_path: Path) -> None:
    made = load(put(tmp_path / "runs.csv", "\ufeff" + CSV))
    a, b, c = made.runs
    assert a.problem == ""
    assert (a.gpu, a.recipe.micro_batch_size, a.recipe.recompute_granularity) == ("mi300x", 2, "none")
    assert a.measured.step_seconds == 12.5
    assert "cp=1 (not mentioned)" in a.assumed
    assert (b.recipe.ep, b.recipe.recompute_granularity) == (8, "full")
    assert b.measured.tgs == pytest.approx(64 * 4096 / 2 / 8)
    assert c.problem == "unknown gpu 'MI399X'"
    assert made.rows[2].refused == ("unknown gpu 'MI399X'",)


def test_json_header_map_and_gzip(tmp_path: Path) -> None:
    rows = [
        {"Kennung": "x", "Karte": "H100", "Anzahl": "16", "fw": "NeMo 25.07", "model": "LLAMA3_70B", "dtype": "fp8"}
    ]
    rows[0] |= {"seq": 8192, "mbs": 1, "gbs": 128, "tp": 4, "pp": 4, "dp": 1, "tgs": "1,524", "cp": 1}  # type: ignore[dict-item]
    path = put(tmp_path / "t.json.gz", gzip.compress(json.dumps({"runs": rows}).encode()))
    header = put(tmp_path / "map.yaml", "Kennung: id\nKarte: gpu\nAnzahl: gpus\nfw: framework\n")
    report = ingest([path], tmp_path / "out.yaml", header)
    run = report.runs[0]
    assert (run.id, run.gpu, run.gpus, run.stack.framework) == ("x", "h100_sxm", 16, "nemo")
    assert run.measured.step_seconds == pytest.approx(128 * 8192 / 16 / 1524)
    assert report.usable == 1
    assert report.written == {str(tmp_path / "out.yaml"): 1}
    assert load(tmp_path / "out.yaml").runs == report.runs


def test_contradicting_figures_and_sizes_are_refused_with_their_numbers() -> None:
    base = {"gpu": "h100", "gpus": 8, "framework": "megatron", "model": "llama3_8b", "precision": "bf16"}
    sizes = {"seq": 8192, "mbs": 1, "gbs": 128, "tp": 1, "pp": 1, "cp": 1}
    slow = convert([base | sizes | {"iteration_ms": 10000, "tgs": 16000}], "t").rows[0]
    assert slow.refused == (
        "16000 tokens/s/GPU over 10 s and 8 GPUs are 1.22 times the 1,048,576 tokens of global_batch_size x seq_length",
    )
    split = convert([base | sizes | {"dp": 4, "iteration_ms": 10000}], "t").rows[0]
    assert split.refused == ("tp 1 × pp 1 × cp 1 × dp 4 is not 8 GPUs",)
    batch = convert([base | sizes | {"gbs": 12, "dp": 8, "iteration_ms": 10000}], "t").rows[0]
    assert batch.refused == ("global batch 12 is not a multiple of micro-batch 1 × dp 8",)


def test_every_gap_of_a_row_is_named() -> None:
    run = convert([{"id": "x", "model": "llama3_8b", "note": "nothing else"}], "t").runs[0]
    for gap in ("gpu", "gpus", "framework", "tp", "pp", "precision", "seq_length", "micro_batch_size"):
        assert f"{gap} not stated" in run.problem
    assert run.recipe is None
    assert run.model is not None


def test_values_that_are_no_numbers_and_negative_ones() -> None:
    row = convert([{"gpus": "eight", "tp": "two", "seq": -1, "iteration_ms": -5, "model": "nothing known"}], "t").rows[
        0
    ]
    text = "; ".join(row.refused)
    assert "gpus is not a whole number: 'eight'" in text
    assert "tp is not a whole number: 'two'" in text
    assert "seq_length = -1 is not positive" in text
    assert "step_seconds = -0.005 is not positive" in text
    assert "unknown model 'nothing known'" in text


def test_records_that_are_none_and_repeated_ids_are_mistakes_of_the_table() -> None:
    none = refusal(convert, [7, {"id": "x"}, [1]], "t")
    assert [str(p) for p in none.problems] == [
        "t: [0]: found 7, expected a record: columns and their values",
        "t: [2]: found [1], expected a record: columns and their values",
    ]
    with pytest.raises(InputError, match=r"t: \[1\]\.id: found 'x', expected an id that t\[0\] does not have"):
        convert([{"id": "x"}, {"id": "x"}], "t")


@pytest.mark.parametrize(("name", "text", "expected"), tabled("readers", "broken_files_are_input_errors"))
def test_broken_files_are_input_errors(tmp_path: Path, name: str, text: str, expected: str) -> None:
    caught = refusal(ingest, [put(tmp_path / name, text), tmp_path / "missing.yaml"], tmp_path / "out.yaml")
    assert expected in str(caught)
    assert "does not exist" in str(caught)
    assert not (tmp_path / "out.yaml").exists()


def test_import_map_reports_unknown_keys_and_wrong_types(tmp_path: Path) -> None:
    path = put(tmp_path / "map.yaml", "columns: {A: gpu}\nfile: {x: y}\nassign: {r: 3}\n")
    assert len(refusal(read_import_map, path).problems) == 2


def test_import_map_assigns_sets_aside_and_sorts_into_files(tmp_path: Path) -> None:
    known = ImportMap(
        strip=(r" \(private\)",),
        assign={"a*": {"group": "g", "cluster": "mi300x"}},
        doubtful={"ab": "typed by hand"},
        files={"first": ("a*",)},
    )
    table = tmp_path / "t.yaml"
    row = "gpu: mi300x, gpus: 8, framework: primus, model: llama3_8b, precision: bf16, seq: 8192, mbs: 1, gbs: 64"
    rest = "tp: 1, pp: 1, cp: 1, iteration_ms: 6000, source: a page (private)"
    table.write_text("".join(f"- {{id: {name}, {row}, {rest}}}\n" for name in ("aa", "ab", "b")))
    report = ingest([table], tmp_path / "out", known)
    assert {Path(path).name: n for path, n in report.written.items()} == {"first.yaml": 2, "t.yaml": 1}
    good, doubtful, other = report.runs
    assert (good.group, good.cluster, good.source.title) == ("g", "mi300x", "a page")
    assert (doubtful.doubt, doubtful.problem) == ("typed by hand", "")
    assert doubtful.measured.step_seconds == 6.0
    assert (other.group, other.cluster) == ("", None)


@given(
    st.dictionaries(
        st.sampled_from(["gpu", "gpus", "model", "tp", "precision", "recompute", "zero", "schedule", "arch", "metrics"])
        | st.text(max_size=8),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=20)
        | st.lists(st.integers(), max_size=3),
        max_size=10,
    )
)
def test_any_record_gives_one_run_and_one_report(data: dict[str, object]) -> None:
    made = convert([data], "t")
    assert len(made.runs) == len(made.rows) == 1
    assert made.runs[0].problem


# Tables nobody prepared: foreign encodings and separators, units in cells, what no machine can have done.

RECORD: dict[str, object] = {
    "id": "a", "gpu": "H100", "gpus": 8, "framework": "Megatron-LM", "model": "llama3-8b", "precision": "bf16",
    "seq_length": 8192, "micro_batch_size": 1, "global_batch_size": 128, "tp": 2, "pp": 1, "cp": 1,
}  # fmt: skip
HEADER = "model,gpu,gpus,seq_length,mbs,gbs,tp,pp,cp,precision,Tokens/s/GPU,framework\n"
ROW = "llama3_8b,H100,8,8192,1,128,2,1,1,bf16,9000,Megatron-LM\n"


def only(path: Path) -> MeasuredRun:
    (run,) = load(path).runs
    return run


def with_figures(folder: Path, **changes: object) -> MeasuredRun:
    return only(put(folder / "t.json", json.dumps([RECORD | changes])))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_spreadsheet_is_read_in_whatever_form_it_was_saved(tmp_path: Path, encoding: str, separator: str) -> None:
    run = only(put(tmp_path / "t.csv", (HEADER + ROW).replace(",", separator).encode(encoding)))
    assert (run.problem, run.measured.tgs, run.gpu) == ("", 9000.0, "h100_sxm")


@pytest.mark.parametrize(
    ("metrics", "step"),
    [
        ({"step_seconds": "14.5s"}, 14.5),
        ({"step_seconds": "14500 ms"}, 14.5),
        ({"iteration_ms": "14.5 s"}, 14.5),
        ({"iteration_ms": "14,500ms"}, 14.5),
        ({"tokens_per_s_per_gpu": "9k"}, 128 * 8192 / 8 / 9000),
    ],
)
def test_units_in_a_cell_are_understood(tmp_path: Path, metrics: dict[str, str], step: float) -> None:
    run = with_figures(tmp_path, seq_length="8k", metrics=metrics)
    assert run.problem == ""
    assert run.recipe.seq_length == 8192
    assert run.measured.step_seconds == pytest.approx(step)


def test_a_unit_that_does_not_belong_to_the_column_is_refused(tmp_path: Path) -> None:
    run = with_figures(tmp_path, micro_batch_size="1k", metrics={"step_seconds": "14 GB"})
    says(run.problem, "micro_batch_size is not a whole number: '1k'", "metrics.step_seconds is not a number: '14 GB'")


@pytest.mark.parametrize("name", ["none", "nan", "inf"])
def test_medians_that_are_no_numbers_give_no_spread(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.yaml"
    medians = f"[.{name}, 14.5, 14.6]" if name != "none" else "[none, 14.5, 14.6]"
    fields = "".join(f", {key}: {value}" for key, value in RECORD.items())
    path.write_text(
        f"- {{{fields[2:]}, metrics: {{step_seconds: 14.5}}, other: {{step_time_s_median_by_run: {medians}}}}}"
    )
    assert only(path).measured.rel_std is None


UNREADABLE = {
    "day.yaml": "- {id: 2024-02-31}\n", "digits.yaml": "- {id: x, gpus: " + "9" * 5000 + "}\n",
    "digits.json": '[{"gpus": ' + "9" * 5000 + "}]", "deep.json": "[" * 100_000 + "]" * 100_000,
    "lines.jsonl": '{"id": "a"}\n' + "[" * 100_000 + "\n", "cell.csv": 'model,gpu\n"' + "x" * 200_000 + '",h100\n',
    "twice.yaml": "- {id: a, gpu: h100, gpu: b200}\n", "key.yaml": "- {id: a, [1, 2]: b}\n",
    "two.yaml": "runs: [{id: a}]\nothers: [{id: b}]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_what_cannot_be_read_is_one_mistake_with_its_file(tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, UNREADABLE[name])
    assert all(problem.where == str(path) for problem in refusal(load, path).problems)


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_command_line(tmp_path: Path, capsys) -> None:
    table, taken = tmp_path / "t.json", tmp_path / "file"
    table.write_text(json.dumps([RECORD | {"metrics": {"step_seconds": 14.5}}]))
    taken.write_text("")
    assert main(["run", "--runs", str(table), "--out", str(taken / "below")]) == 2
    assert "expected a path that can be read or written" in capsys.readouterr().err
