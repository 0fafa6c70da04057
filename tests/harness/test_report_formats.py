"""What a report is pasted into: LaTeX, Markdown for a post, SVG, JUnit; and the command that writes them."""

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from asked import says
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.cli import main
from harness.contracts.results import BASELINE, FITS, Row, RunFacts
from harness.evaluation.evaluate import Evaluation
from harness.report import files, junit, latex, markdown, post, provenance, publish, view
from harness.report.table import NONE, Column, Table
from harness.score import gate
from tests.harness import plain_rows

NASTY = r"a_b & 50% #1 {x} $y ~^\ |"


@pytest.fixture
def evaluation(make_row: Callable[..., Row]) -> Evaluation:
    """Two models on two GPUs, one run refused; both predictors, every fit; a group with an inversion."""
    parts = {"compute_s": 0.006, "tp_s": 0.004}
    known = (("a", 100.0, 104.0, "h100_sxm"), ("b", 200.0, 90.0, "h100_sxm"), ("c", 100.0, None, "mi355x"))
    parts |= {"projected_memory_gib": 40.0, "measured_memory_gib": 44.0, "memory_error": -1 / 11}
    refused = {"reason": "not modelled: <thing>"}
    rows = [
        make_row(
            name, measured, projected, fit=fit, predictor=predictor, gpu=gpu, model=NASTY if name == "a" else "dense",
            **(parts if projected else refused),
        )
        for name, measured, projected, gpu in known
        for predictor in ("simulate", BASELINE)
        for fit in FITS
    ]  # fmt: skip
    facts = {
        name: RunFacts(run_id=name, memory_kind="device", differs={"tp": tp}, complete=name != "c")
        for name, tp in (("a", "2"), ("b", "10"), ("c", "1"))
    }
    return Evaluation(rows=tuple(rows), facts=facts)


@pytest.fixture
def saved(evaluation: Evaluation) -> files.Saved:
    made = {
        "command": ["harness", "run"],
        "revision": "0123456789abcdef+changes",
        "versions": {"numpy": "2"},
        "inputs": {"in.yaml": "ab12"},
    }
    return files.Saved(evaluation=evaluation, gates={"s": {"simulate": {"worst": 0.5, "mape": 0.9}}}, provenance=made)


# LaTeX


def unescaped(text: str) -> str:
    """``text`` without the commands that :mod:`harness.report.latex` writes."""
    return re.sub(r"\\[a-z]+\{\}|\{''\}|\\[{}$&%#_,]|\$\\[a-z]+\$|\$[+-]\$", "", text)


@given(st.text())
def test_escaped_text_has_no_markup_of_its_own(text: str) -> None:
    made = latex.escape(text)
    assert not set(unescaped(made)) & set("\\{}$&%#_^<>|\n\r\x00")


@given(st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "Zs"))))
def test_plain_text_is_left_alone(text: str) -> None:
    assert latex.escape(text) == text


@pytest.mark.parametrize(("text", "expected"), tabled("documentation", "latex"))
def test_marks(text: str, expected: str) -> None:
    assert latex.escape(text) == expected


def test_a_latex_table_has_the_columns_of_its_head() -> None:
    columns = (Column("a_b", numeric=False), Column("n"), Column("%"))
    rows = ((NASTY, "+12.3 %", NONE), ("[x", "-4.0 %", "7"), ("*", "1", "2"))
    text = latex.render([Table(title="T & U", columns=columns, rows=rows, note="50 %")], "x")
    says(text, r"\begin{tabular}{@{}lrr@{}}", r"\caption{T \& U. 50 \%}", r"\label{tab:x-1}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 4
    assert body[3].startswith(r"\relax *")
    for line in body:
        assert len(re.findall(r"(?<!\\)&", line)) == 2
    assert r"$+$12.3\,\% & -- \\" in body[1]
    assert body[2] == r"\relax [x & $-$4.0\,\% & 7 \\"
    assert [text.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [1, 1, 1]
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_tables_for_a_paper_have_main_columns_only(evaluation: Evaluation) -> None:
    made = post.tables(evaluation)
    assert not any(c.minor for t in made for c in t.columns)
    assert max(len(t.columns) for t in made) <= 8


# Error by parallelism


def test_the_table_by_parallelism_orders_degrees_by_size(evaluation: Evaluation) -> None:
    (table,) = [t for t in view.details(evaluation, "simulate") if "parallelism" in t.title]
    assert [row[0] for row in table.rows] == [
        "TP 2", "TP 10", "PP 1", "EP 1", "CP 1", "data-parallel sharding framework's own",
    ]  # fmt: skip
    assert table.rows[0][2] == "1"


# JUnit


def test_junit_rows_pass_fail_and_skip(saved: files.Saved) -> None:
    e = saved.evaluation
    checks = gate.check("s", e.frame, saved.gates["s"])
    root = ElementTree.fromstring(junit.render(checks, e.rows).encode())
    gates, rows = list(root)
    assert (gates.get("name"), rows.get("name")) == ("s", "s rows, simulate")
    assert [(c.get("name"), [child.tag for child in c]) for c in rows] == [
        ("a", ["system-out"]),
        ("b", ["failure", "system-out"]),
        ("c", ["skipped", "system-out"]),
    ]
    assert (rows.get("tests"), rows.get("failures"), rows.get("skipped")) == ("3", "1", "1")
    assert (
        rows[1][0].get("message")
        == "ok: measured 200.0, projected 90.0 tokens/s/GPU, error -55.0 %; required |error| <= 0.5"
    )
    assert rows[2][0].get("message") == "unsupported: not modelled: <thing>"
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("5", "2", "1")


def test_rows_without_a_worst_threshold_do_not_fail(saved: files.Saved) -> None:
    e = saved.evaluation
    checks = gate.check("s", e.frame, {"simulate": {"mape": 0.001}})
    _, rows = ElementTree.fromstring(junit.render(checks, e.rows).encode())
    assert rows.get("failures") == "0"


@given(st.text())
def test_junit_is_xml_whatever_a_reason_holds(reason: str) -> None:
    row = plain_rows.row(reason, None, None, status="invalid", reason=reason)
    ElementTree.fromstring(junit.render([], [row]).encode())


# Provenance and the command


def test_the_whole_provenance_is_shown_where_nothing_is_checked_in(saved: files.Saved) -> None:
    assert provenance.whole(saved.provenance) == (
        ("command", "harness run"),
        ("revision", "0123456789abcdef+changes"),
        ("numpy", "2"),
        ("in.yaml", "ab12"),
    )


def test_the_command_writes_the_formats_asked_for(saved: files.Saved, tmp_path, capsys) -> None:
    publish.write_rows(tmp_path, saved)
    for name in ("benchmark-steps.svg", "benchmark-steps.png"):
        (tmp_path / name).write_text("drawn of these rows")
    out = tmp_path / "out"
    assert (
        main(
            ["report", str(tmp_path), "--out", str(out), "--format", "tex", "md", "csv", "--junit", str(out / "j.xml")]
        )
        == 1  # a threshold of these rows does not hold, and the JUnit file says so
    )
    assert {p.name for p in out.iterdir()} == {"accuracy.tex", "report.md", "post.md", "results.csv", "j.xml"}
    assert (out / "results.csv").read_text() == (tmp_path / "results.csv").read_text()
    assert "## simulate: every row" not in (out / "report.md").read_text()
    assert main(["report", str(tmp_path), "--format", "html", "svg"]) == 0
    assert (tmp_path / "simulate-steps.svg").read_bytes().startswith(b"<?xml")
    assert 'id="data"' in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "benchmark-steps.svg").exists()
    assert (tmp_path / "benchmark-steps.png").exists()
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "results.json")]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    "text", ["[run](http://example.org)", "a*b*", "`x`", "<b>", "a|b", "~~x~~", "_x_ y", "see www.example.org"]
)
def test_a_name_is_no_markup(text: str) -> None:
    """An id is anybody's text: in a table of ``post.md`` it is neither a link nor emphasis, and reads as it was."""
    made = markdown.escape(text)
    assert re.sub(r"\\(.)", r"\1", made) == text
    assert not re.search(r"(?<!\\)[*`<|\[\]~]|[^\\]://|www\.|(?<!\\)_x|x_", made)
    assert markdown.escape("moe_router_topk=8, tp2") == "moe_router_topk=8, tp2"
