"""Every page says what it must, and names only what is there."""

import html
import re
from pathlib import Path

import pytest
import yaml
from asked import put, refusal
from docsite import figures, names, reference
from docsite.blocks import cells, markers, replaced
from docsite.figures import FIGURES, SWITCHES
from docsite.links import wrong_links
from docsite.reference import REFERENCE, words
from tabled import tabled

import docs as tool
from harness.contracts.results import COLUMNS
from projector.workload.recipe import Recipe
from tests.docs_tools import DOCS, ROOT, pages

PROOF = ("protocol", "calibration", "ranking", "ingestion", "suites")
MODELS = sorted(set((DOCS / "models").glob("*.md")) - {DOCS / "models" / "index.md"})
MODELS += [DOCS / "proof" / f"{name}.md" for name in PROOF]
PARTS = ("The equation", "What it assumes", "Where it comes from", "Where it holds", "Measured error")


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(DOCS)) for path in paths]


@pytest.mark.parametrize("page", pages(), ids=ids(pages()))
def test_names_and_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert names.wrong_names(text) == []
    assert names.wrong_commands(text) == []


@pytest.mark.parametrize("page", MODELS, ids=ids(MODELS))
def test_a_model_page_says_the_five_things(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert [part for part in PARTS if part in headings] == list(PARTS)
    assert '<div class="eq">' in text, "an equation"
    measured = text.split("## Measured error")[1]
    assert names.command_lines(measured), "the command that prints the error"
    assert re.search(r"`(projector|harness)/", text), "where its code is"


@pytest.mark.parametrize("page", MODELS, ids=ids(MODELS))
def test_an_equation_fits_its_page(page: Path) -> None:
    """A line of an equation does not wrap: what is longer is cut off on a screen."""
    for equation in re.findall(r'<div class="eq">(.*?)</div>', page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in equation.split("<br>"):
            shown = html.unescape(re.sub(r"<[^>]+>", "", line.replace("&emsp;", "  "))).strip()
            assert len(shown) <= 95, shown


@pytest.mark.parametrize("page", pages(), ids=ids(pages()))
def test_generated_parts_have_a_maker_and_are_filled(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in markers(text):
        assert name in {**FIGURES, **REFERENCE}
        assert replaced(text, name, "", str(page)) != text, f"{name} is empty"


def test_percentages_are_not_typed() -> None:
    """A measured figure in a page stands between markers; what is left are levels, limits of a rule and data sheets."""
    allowed = {"90 %", "3 %", "5 %", "1 %"}  # interval level; peaks against rates; scatter of tables; ties
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name in markers(text):
            text = replaced(text, name, "", str(page))
        assert set(re.findall(r"\d[\d.]* ?%", text)) <= allowed, page


def test_every_page_is_in_the_navigation() -> None:
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = [page for part in found["nav"] for group in part.values() for page in group]
    assert sorted(listed) == ids(pages())


def test_the_words_are_those_of_the_code() -> None:
    assert tuple(words()["row"]) == COLUMNS
    assert {name for some in SWITCHES.values() for name in some} <= {*Recipe.__dataclass_fields__, "gpus"}


def test_unknown_names_are_found() -> None:
    page = (
        "`projector/kernels/gemn.py` `projector.kernels.gemm.secondz` `gemm.lop` `projector/kernels/{gemm,x}.py` `a/b`"
    )
    assert [wrong.split("`")[1] for wrong in names.wrong_names(page)] == [
        "projector/kernels/gemn.py",
        "projector.kernels.gemm.secondz",
        "gemm.lop",
    ]


@pytest.mark.parametrize(("line", "wrong"), tabled("documentation", "commands"))
def test_wrong_commands_are_found(line: str, wrong: str) -> None:
    found = names.wrong_commands(f"```sh\n{line}  # as users type it\n```\n")
    assert bool(found) == bool(wrong)
    assert wrong in "".join(found)


def test_commands_in_sentences_may_leave_out_what_they_need() -> None:
    assert names.wrong_commands("see `python -m projector performance --explore`") == []
    assert len(names.wrong_commands("see `python -m projector performance --exlpore`")) == 1


# Generated parts: cut out of reports, put between markers, found stale.

PAGE = "a\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nb\n"


@pytest.mark.parametrize("name", [*figures.FIGURES, *reference.REFERENCE])
def test_every_part_can_be_made(name: str) -> None:
    made = tool.block(name)
    assert made.strip()
    rows = [line for line in made.splitlines() if line.startswith("|")]
    widths = {line.replace(r"\|", "").count("|") for line in rows}
    assert name == "commands" or len(widths) <= 1, "one width"


def test_a_missing_heading_or_report_is_named() -> None:
    refusal(figures.section, "figures", "Nothing", match="no such heading")
    refusal(figures.report, "nothing", match="does not exist")
    refusal(tool.block, "in-shorts", match="in-short")


def test_stale_pages_are_found(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tool, "DOCS", tmp_path)
    monkeypatch.setattr(tool.names, "path_of", lambda page: page.name)
    page = put(tmp_path / "p.md", PAGE)
    assert tool.main(["check"]) == 1
    assert "p.md: its generated parts are not current" in capsys.readouterr().err
    assert tool.main(["fill"]) == 0
    assert "DeepSeek-V3" in page.read_text(encoding="utf-8")
    assert tool.main(["check"]) == 0
    page.write_text(PAGE.replace("speed", "spede"), encoding="utf-8")
    assert tool.main(["check"]) == 2
    assert "speed" in capsys.readouterr().err


def test_shares_take_every_row_once() -> None:
    """The bins of a part of the step hold all held-out rows of simulate that have it."""
    import csv

    with (ROOT / "reports" / "results.csv").open(newline="", encoding="utf-8") as lines:
        rows = [r for r in csv.DictReader(lines) if r["predictor"] == "simulate" and r["fit"] == "heldout"]
    known = [r for r in rows if r["error"] and r["host_s"]]
    made = cells(figures.shares("host_s"))[1:]
    assert sum(int(row[1]) for row in made) == len(known) > 500


def test_a_docstring_explains_a_field() -> None:
    told = reference._explained("A row. ``error`` = x; ``a_b``: what ``it``\nis (see there). ``c``: three. More.")
    assert told["a_b"] == "what `it` is (see there)"
    assert told["c"] == "three"


# Links of the built site, and the build itself.


GOOD = """<html><head><link rel="stylesheet" href="s.css"></head><body id="top"><h2 id="one">One</h2>
<a href="#one">1</a> <a href="b/c.html#two">2</a> <a href="b/">3</a> <a href="https://arxiv.org/abs/1811.06965">4</a>
<a href="/index.html">5</a> <img src="b/p%20q.png"></body></html>"""


@pytest.fixture
def site(tmp_path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(GOOD, encoding="utf-8")
    (tmp_path / "b" / "c.html").write_text('<h2 id="two">2</h2><a href="../index.html">up</a>', encoding="utf-8")
    (tmp_path / "b" / "index.html").write_text("<p>b</p>", encoding="utf-8")
    (tmp_path / "s.css").write_text("", encoding="utf-8")
    (tmp_path / "b" / "p q.png").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(("old", "new", "wrong"), tabled("documentation", "links"))
def test_wrong_links_are_found(site: Path, old: str, new: str, wrong: str) -> None:
    (site / "index.html").write_text(GOOD.replace(old, new), encoding="utf-8")
    found = wrong_links(site)
    assert len(found) == 1
    assert wrong in found[0]


def test_the_site_builds_strictly_and_loads_nothing(tmp_path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    import docs as tool

    command = [*tool.MKDOCS, "--site-dir", str(tmp_path / "site")]
    assert tool.run(command) == 0
    assert wrong_links(tmp_path / "site") == []
    assert (tmp_path / "site" / "models" / "gemm.html").is_file()
    assert ROOT not in (tmp_path / "site").parents


def test_logs_and_traces_that_commands_name_can_be_pasted() -> None:
    """They are in the checkout, but for those of the reader's own node."""
    for page in (ROOT / "README.md", *pages()):
        if page.name == "eight-gpus.md":
            continue
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            named = re.findall(r"(?<!\S)[\w/.*-]+\.(?:log|gz)(?!\S)", block)
            assert [file for file in named if not list(ROOT.glob(file))] == [], page.name
