"""Reports: the same rows back from disk, and every renderer on rows that try to break it."""

import io
import json
from html.parser import HTMLParser

import pytest
from asked import put, says

from harness.contracts import frame
from harness.evaluation.evaluate import Evaluation
from harness.report import files, html, markdown, plot, plot_post, provenance, terminal, view
from harness.report.table import Report
from projector.io.files import write_whole

NASTY = "<b>|*_`[red]"


@pytest.fixture
def evaluation(make_row, facts_for) -> Evaluation:
    rows = [
        make_row(name, measured, projected, fit=fit, predictor=predictor, model=model)
        for name, measured, projected, model in (
            *(("a", 100, 104, NASTY), ("b", 200, 190, "dense")),
            *(("c", 100, None, "dense"), ("case", None, 50, "dense")),
        )
        for predictor in ("simulate", "constant-mfu")
        for fit in ("uncalibrated", "shipped", "heldout")
    ]
    return Evaluation(rows=tuple(rows), facts=facts_for(*rows, assumed=("x",)))


def saved(evaluation: Evaluation) -> files.Saved:
    return files.Saved(evaluation=evaluation, gates={"s": {"simulate": {"mape": 0.1}}}, provenance={"python": "3"})


def test_rows_come_back_from_disk(evaluation: Evaluation, tmp_path) -> None:
    write_whole(tmp_path / "results.json", files.json_text(saved(evaluation)))
    assert files.read(tmp_path) == saved(evaluation)
    assert files.read(tmp_path / "results.json") == saved(evaluation)
    assert json.loads((tmp_path / "results.json").read_text())["schema_version"] == files.SCHEMA_VERSION


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_balanced_escaped_and_fetches_nothing(evaluation: Evaluation) -> None:
    page = html.render(view.build(evaluation))
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert "b" not in tags.seen
    assert "://" not in page
    assert "&lt;b&gt;" in page


def test_markdown_rows_have_the_width_of_their_head(evaluation: Evaluation) -> None:
    text = markdown.render(view.build(evaluation), {"plot": "plot.png"})
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = line.replace("\\|", "").count("|")
        width = width or cells
        assert cells == width
    assert "![plot](plot.png)" in text


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rich_output_keeps_brackets(evaluation: Evaluation) -> None:
    screen = Screen()
    terminal.show(Report(title="[red]", gate=("FAIL [x]",), tables=view.build(evaluation).tables), screen)
    says(screen.getvalue(), "[red]", "FAIL [x]")


def test_a_png_has_the_colours_that_matplotlib_saves(make_row) -> None:
    from PIL import Image, ImageChops

    rows = frame.of([make_row(f"r{i}", 10.0**i, 10.0**i * 1.2) for i in range(1, 4)])
    saved = io.BytesIO()
    plot_post.hero(rows).savefig(saved, dpi=60)
    figure = plot_post.hero(rows)
    one, other = (Image.open(each).convert("RGB") for each in (saved, io.BytesIO(plot.png(figure, 60))))
    assert one.size == other.size
    assert max(high for _, high in ImageChops.difference(one, other).getextrema()) < 40  # of 255: fewer colours


def test_provenance_names_versions_and_hashes(tmp_path) -> None:
    made = provenance.collect([put(tmp_path / "in", b"abc")], ["harness", "run"], 1.0)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert made["inputs"] == {str(tmp_path / "in"): digest}
    assert made["versions"]["numpy"]
    assert provenance.revision(tmp_path) == ""
    assert provenance.flat(made) == ((str(tmp_path / "in"), digest),)
