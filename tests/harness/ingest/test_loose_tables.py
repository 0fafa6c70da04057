"""Files that nobody prepared: CSV, JSON, other headers, contradictions, gaps and nonsense."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.ingest.command import ingest, load
from harness.evidence.ingest.importmap import ImportMap, read_import_map
from harness.evidence.ingest.loose import convert
from harness.evidence.ingest.record import Record, boolean, integer, number
from projector.errors import InputError

COLUMNS = "Run,GPU type,#GPUs,Framework,Model name,dtype,Seq len,MBS,GBS,TP,PP,EP,Step time (ms),Tokens / s / GPU,remat"
CSV = f"""\
{COLUMNS}
a,MI300X,8,Primus/Megatron-LM,llama3.1_8b,bf16,8192,2,128,1,1,,"12,500",10485.8,none
b,mi355x,8,Primus/Megatron-LM,mixtral 8x7b,BF16,4096,1,64,1,1,8,2000,,full
c,MI399X,8,Primus/Megatron-LM,llama3.1_8b,bf16,8192,2,128,1,1,1,100,,
"""


def test_csv_with_its_own_headers(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\ufeff" + CSV)
    made = load(path)
    a, b, c = made.runs
    assert a.problem == ""
    assert a.recipe is not None
    assert (a.gpu, a.recipe.micro_batch_size, a.recipe.recompute_granularity) == ("mi300x", 2, "none")
    assert a.measured.step_seconds == 12.5
    assert "cp=1 (not mentioned)" in a.assumed
    assert b.recipe is not None
    assert (b.recipe.ep, b.recipe.recompute_granularity) == (8, "full")
    assert b.measured.tgs == pytest.approx(64 * 4096 / 2 / 8)
    assert c.problem == "unknown gpu 'MI399X'"
    assert made.rows[2].refused == ("unknown gpu 'MI399X'",)


def test_json_header_map_and_gzip(tmp_path: Path) -> None:
    rows = [
        {"Kennung": "x", "Karte": "H100", "Anzahl": "16", "fw": "NeMo 25.07", "model": "LLAMA3_70B", "dtype": "fp8"}
    ]
    rows[0] |= {"seq": 8192, "mbs": 1, "gbs": 128, "tp": 4, "pp": 4, "dp": 1, "tgs": "1,524", "cp": 1}  # type: ignore[dict-item]
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"runs": rows}).encode()))
    header = tmp_path / "map.yaml"
    header.write_text("Kennung: id\nKarte: gpu\nAnzahl: gpus\nfw: framework\n")
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
    with pytest.raises(InputError) as none:
        convert([7, {"id": "x"}, [1]], "t")
    assert [str(p) for p in none.value.problems] == [
        "t: [0]: found 7, expected a record: columns and their values",
        "t: [2]: found [1], expected a record: columns and their values",
    ]
    with pytest.raises(InputError, match=r"t: \[1\]\.id: found 'x', expected an id that t\[0\] does not have"):
        convert([{"id": "x"}, {"id": "x"}], "t")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "- {id: [", "valid YAML"),
        ("a.json", "{'id': 1}", "valid JSON"),
        ("a.csv", "id,gpu\n", "at least one record"),
        ("a.yaml", "id: 1", "a list of records"),
    ],
)
def test_broken_files_are_input_errors(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        ingest([tmp_path / name, tmp_path / "missing.yaml"], tmp_path / "out.yaml")
    assert expected in str(caught.value)
    assert "an existing file" in str(caught.value)
    assert not (tmp_path / "out.yaml").exists()


def test_import_map_reports_unknown_keys_and_wrong_types(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("columns: {A: gpu}\nfile: {x: y}\nassign: {r: 3}\n")
    with pytest.raises(InputError) as caught:
        read_import_map(path)
    assert len(caught.value.problems) == 2


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


def test_scalars() -> None:
    assert (number("1,234.5"), number(True), number("8k"), number(float("nan"))) == (1234.5, None, None, None)
    assert (integer("16"), integer(2.5), integer("2.0")) == (16, None, 2)
    assert (boolean("True"), boolean(0), boolean("maybe")) == (True, False, None)


def test_flat_columns_find_their_section() -> None:
    flat = Record(
        {"Hidden size": 4096, "TFLOP/s/GPU": 500, "TP size": 2, "moe_permute_fusion": True}, "t", {"TP size": "tp"}
    )
    assert set(flat.values) == {"arch.hidden", "metrics.tflops_per_gpu", "tp", "other.moe_permute_fusion"}
