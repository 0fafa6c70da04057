"""Kernel tables of any origin become rows or reasons; wrong files say everything that is wrong with them."""

import re
from collections import Counter
from pathlib import Path

import pytest
from asked import put, refusal
from tabled import tabled

from harness.kernels import table
from harness.kernels.collectives_table import read as read_collectives
from harness.kernels.schema import read
from projector.hardware.catalogue import gpu
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

FABRICS = ("collectives", "collectives_unseen")
HEAD = "source,gpu,dtype,op,m,n,k,batch,layout,out_dtype,accumulate,library,kernel,metric,value,tflops,time_us,notes\n"


def third_party(folder: Path, *lines: str, head: str = HEAD) -> Path:
    return put(folder / "table.csv", head + "".join(f"{line}\n" for line in lines))


def gemm(m: object = 4096, time: object = 400, rate: object = "", dtype: str = "bf16", **more: str) -> str:
    cells = {"gpu": "MI300X", "op": "gemm", "layout": "TN", "library": "hipBLASLt", "notes": "", **more}
    head = f"me,{cells['gpu']},{dtype},{cells['op']},{m},8192,4096,1,{cells['layout']},bf16,False"
    return f"{head},{cells['library']},,time_us,,{rate},{time},{cells['notes']}"


def test_a_row_has_its_operator_and_its_time(tmp_path: Path) -> None:
    (row,) = read(third_party(tmp_path, gemm(notes="rowwise b_preshuffled", dtype="fp8_e4m3fnuz"))).rows
    assert isinstance(row.measured.op, Gemm)
    assert (row.gpu, row.kind, row.dtype, row.scaling) == ("mi300x", "gemm", "fp8", "rowwise")
    assert row.measured.family == "hipblaslt_preshuffled"
    assert row.measured.seconds == pytest.approx(4e-4)
    assert row.flops == 2 * 4096 * 8192 * 4096
    assert row.where.endswith("table.csv:2")


def test_time_and_rate_stand_for_each_other(tmp_path: Path) -> None:
    stated, derived = read(
        third_party(tmp_path, gemm(time=500), gemm(time="", rate=2 * 4096**2 * 8192 / 500e-6 / 1e12))
    ).rows
    assert derived.measured.seconds == pytest.approx(stated.measured.seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (gemm(gpu="H20-Q"), "a device that the catalogue does not have: H20-Q"),
        (gemm(dtype="int8"), "integer operands"),
        (gemm(dtype="mystery"), "no model of operands of type 'mystery'"),
        (gemm(time="", rate=""), "no time and no rate"),
        (gemm(time=1), "faster than the device's peak"),
        (gemm(op="fused_moe"), "a fused MoE kernel of serving"),
        (gemm(op="all_reduce"), "a collective"),
        (gemm(op="sort"), "an operation that no kernel model covers"),
        (gemm(notes="best shape of a sweep"), "the best of a shape sweep"),
        (gemm(notes="power cap 500 W"), "a power-capped machine"),
    ],
)
def test_what_no_model_covers_says_why(tmp_path: Path, line: str, reason: str) -> None:
    found = read(third_party(tmp_path, line, gemm()))
    assert len(found.rows) == 1
    assert [s.reason.startswith(reason) for s in found.skipped] == [True]


def test_an_unknown_library_is_a_family_of_its_own(tmp_path: Path) -> None:
    (row,) = read(third_party(tmp_path, gemm(library="My.Kernels 2"))).rows
    assert row.measured.family == "my_kernels_2"


def test_a_training_step_is_the_sum_of_its_products_and_casts(tmp_path: Path) -> None:
    line = gemm(
        op="gemm_step_fwd_dgrad_wgrad", dtype="fp8", time=3000, notes="includes quantization",
        library="Triton blockwise",
    )  # fmt: skip
    (row,) = read(third_party(tmp_path, line)).rows
    products = [op for op in row.parts if isinstance(op, Gemm)]
    assert [(op.m, op.n, op.k, op.layout) for op in products] == [
        (4096, 8192, 4096, "TN"),
        (4096, 4096, 8192, "NN"),
        (8192, 4096, 4096, "NT"),
    ]
    assert row.flops == 3 * 2 * 4096 * 8192 * 4096
    assert sum(isinstance(op, Stream) for op in row.parts) == 3


def test_columns_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    path = third_party(tmp_path, "b200,bf16,gemm,4096,4096,4096,120", head="gpu,dtype,op,m,n,k,time_us\n")
    (row,) = read(path).rows
    assert row.measured.op == Gemm(name="", m=4096, n=4096, k=4096)
    assert row.measured.source.endswith(":2")


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    path = third_party(tmp_path, gemm(m="many"), gemm(time=-3), gemm(m=0, layout="XY"))
    caught = refusal(read, path)
    found = [(p.where.rsplit(":", 1)[1], p.key, p.found) for p in caught.problems]
    assert found == [("2", "m", "many"), ("3", "time_us", "-3"), ("4", "m", "0"), ("4", "layout", "XY")]
    refusal(read, third_party(tmp_path, "b200,attn_fwd,1", head="gpu,op,time_us\n"), match="heads_q")


@pytest.mark.parametrize(("content", "expected"), tabled("refusals", "kernel_tables"))
def test_what_is_no_kernel_table_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    refusal(read, put(tmp_path / "wrong.csv", content), match=expected)


def test_our_own_tables_know_their_gpu_by_their_folder(root: Path, tmp_path: Path) -> None:
    text = (root / "measured" / "kernels" / "b200" / "grouped.csv").read_text(encoding="utf-8")
    (tmp_path / "b200").mkdir()
    for folder in ("b200", "."):
        (tmp_path / folder / "grouped.csv").write_text(text, encoding="utf-8")
    rows = read(tmp_path / "b200" / "grouped.csv").rows
    assert all(isinstance(row.measured.op, GroupedGemm) for row in rows)
    assert {row.gpu for row in rows} == {"b200"}
    refusal(read, tmp_path / "grouped.csv", match="a table without its GPU")
    assert len(read(tmp_path / "grouped.csv", "b200").rows) == len(rows)


def test_wrong_cells_of_our_own_tables(root: Path, tmp_path: Path) -> None:
    lines = (root / "measured" / "kernels" / "b200" / "attention.csv").read_text(encoding="utf-8").splitlines()
    columns = lines[0].split(",")
    cells = lines[1].split(",")
    for name, wrong in (("heads", "-1"), ("causal", "perhaps"), ("time_us", "")):
        cells[columns.index(name)] = wrong
    (tmp_path / "b200").mkdir()
    caught = refusal(read, put(tmp_path / "b200" / "attention.csv", "\n".join([lines[0], ",".join(cells)])))
    assert {p.key for p in caught.problems} == {"heads", "causal", "time_us"}


def test_all_measured_tables_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    loaded = table.load(table.default_tables())
    assert len(loaded.rows) > 34_000
    assert not loaded.skipped
    assert all(table.was_fitted(row) for row in loaded.rows[::500])
    assert {row.kind for row in loaded.rows} >= {"gemm", "attention", "grouped"}
    assert all(not Path(row.where).is_absolute() for row in loaded.rows[::500])


def test_no_constant_was_fitted_on_a_source_of_the_unseen_tables(root: Path) -> None:
    """A repository that publishes tables of its own counts as one source; an issue or a pull request as one of its own."""
    seen, unseen = (table.load([root / "measured" / name]).rows for name in ("kernels", "kernels_unseen"))
    assert len(unseen) > 350
    assert not any(table.was_fitted(row) for row in unseen)
    origins = [{re.split(r"[@ ]", row.measured.source)[0] for row in rows} for rows in (seen, unseen)]
    assert len(origins[1]) >= 10
    assert not origins[0] & origins[1]
    fabrics = [{record.source for record in read_collectives(root / "measured" / name)} for name in FABRICS]
    assert len(fabrics[1]) >= 8
    assert not fabrics[0] & fabrics[1]


def test_third_party_tables_give_the_same_rows_as_our_own(root: Path, shared: Path, monkeypatch) -> None:
    monkeypatch.chdir(root)
    raw = table.load([*(shared / "kernels").glob("attention_*.csv"), *(shared / "kernels").glob("g*_simumax.csv")])
    own = table.load(table.default_tables())
    known = Counter((row.gpu, row.measured) for row in own.rows)
    assert raw.rows
    assert all((row.gpu, row.measured) in known for row in raw.rows)
    assert all(table.was_fitted(row) for row in raw.rows)


def test_every_third_party_table_is_read_or_refused_with_a_reason(shared: Path) -> None:
    for path in sorted((shared / "kernels").glob("*.csv")):
        if path.name in (
            "gpus.csv",
            "collectives_perlmutter.csv",
        ):  # data sheets; nccl-tests as printed, which name no GPU
            refusal(read, path)
            continue
        found = read(path)
        assert found.rows or found.skipped
        assert all(s.reason for s in found.skipped)
        assert all(
            row.flops / row.measured.seconds <= gpu(row.gpu).peak_of(row.dtype) for row in found.rows if row.flops
        )


def test_causal_rates_without_a_convention_count_half_the_square(tmp_path: Path) -> None:
    head = "gpu,dtype,op,batch,seq_q,heads_q,head_dim_qk,causal,tflops\n"
    causal, full = read(
        third_party(
            tmp_path,
            "B200,bf16,attn_fwd,2,4096,32,128,True,800",
            "B200,bf16,attn_fwd,2,4096,32,128,False,800",
            head=head,
        )
    ).rows
    assert isinstance(causal.measured.op, Attention)
    assert causal.measured.op.kv_heads == 32
    assert causal.measured.seconds == pytest.approx(full.measured.seconds / 2, rel=1e-5)
    assert causal.flops / causal.measured.seconds == pytest.approx(800e12, rel=1e-5)
