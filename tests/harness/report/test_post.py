"""The article and its plots: every figure computed, every outlier marked, every run named, light and dark alike."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from harness.contracts import frame
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.report import files, pictures, plot, plot_details, plot_post, post, publish, view
from harness.score import whatif
from tests.harness import plain_rows

Image = pytest.importorskip("PIL.Image")

POST: dict[str, Callable[..., Any]] = {
    "hero": plot_post.hero, "sources": plot_post.sources, "what-if": plot_post.what_if, "orders": plot_details.orders,
}  # fmt: skip
#: Those of a report, which have a title for a theme.
DETAILS = {
    draw.__name__: lambda rows, _=None, draw=draw: draw(rows, "t")
    for draw in (plot_details.errors_by_parallelism, plot_details.memory, plot_details.steps)
} | {"models": plot_post.models}
DRAW = POST | DETAILS


@pytest.fixture(scope="module")
def held(evaluation: Evaluation) -> Any:
    return frame.part(evaluation.once, predictor="simulate", fit="heldout")


def saved(evaluation: Evaluation, **provenance: Any) -> files.Saved:
    return files.Saved(evaluation=evaluation, gates={}, provenance=provenance)


def some(*pairs: tuple[str, float, float | None], source: str = "a/b @1") -> Any:
    """Held-out rows of one group: name, measured, projected."""
    rows = [plain_rows.row(name, measured, projected, gpu="b200", status="ok") for name, measured, projected in pairs]
    facts = {name: RunFacts(run_id=name, source=source, differs={"tp": name}) for name, _, _ in pairs}
    return frame.of(rows, facts)


def texts(figure: Any) -> list[str]:
    import matplotlib.text

    return [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text()]


# Gains


def test_gains_are_those_of_pairs_that_the_measurement_tells_apart() -> None:
    rows = some(("a", 100.0, 50.0), ("b", 200.0, 100.0), ("c", 200.5, 300.0), ("d", 400.0, None))
    found = whatif.gains(rows)
    assert sorted(zip(found.measured.tolist(), found.projected.tolist(), strict=True)) == [(2.0, 2.0), (2.005, 6.0)]
    assert (found.groups, found.right.sum(), found.tied.sum()) == (1, 2, 0)


def test_a_factor_of_all_projections_changes_no_gain(held: Any) -> None:
    one, other = whatif.gains(held), whatif.gains(held.assign(projected_tgs=3.7 * held["projected_tgs"]))
    assert len(one.measured) > 100
    assert np.allclose(one.projected, other.projected, rtol=1e-12)
    assert (one.measured > 1.0).all()


def test_gains_and_agreement_of_the_ranking_are_the_same_figure(held: Any) -> None:
    from harness.score import ranking

    found = whatif.gains(held)
    order = ranking.summary(ranking.group_rankings(held))
    assert float((found.right + 0.5 * found.tied).mean()) == pytest.approx(order.pooled_agreement, abs=1e-12)


def test_no_group_no_gain() -> None:
    found = whatif.gains(some(("a", 100.0, 50.0)))
    assert (len(found.measured), found.groups, found.typical_error) == (0, 0, None)


# Plots


@pytest.mark.parametrize(("name", "kind"), [*((name, "") for name in DRAW), ("what-if", "-dark")])
def test_a_plot_is_the_same_twice_and_of_its_theme(held: Any, name: str, kind: str) -> None:
    theme = plot.THEMES[kind]
    figures = [DRAW[name](held, theme) for _ in range(2)]
    first, second = map(plot.svg, figures)
    assert first == second
    assert ElementTree.fromstring(first).tag.endswith("svg")
    pixels = np.asarray(Image.open(io.BytesIO(plot.png(figures[0], 60))).convert("RGB"), dtype=float)
    page = [int(theme.page[i : i + 2], 16) for i in (1, 3, 5)]
    assert np.abs(pixels[2, 2] - page).max() <= 8
    assert np.abs(pixels - page).max() > 100


@pytest.mark.parametrize("name", POST)
def test_texts_stay_inside_the_picture_and_apart(held: Any, name: str) -> None:
    """Titles, labels of axes and names; not the labels beside marks, which may meet where marks do."""
    import matplotlib.text

    figure = DRAW[name](held)
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    off = {t for a in figure.axes if not a.axison for x in (a.xaxis, a.yaxis) for t in x.findobj(matplotlib.text.Text)}
    boxes = [
        (t.get_window_extent(), t.get_text())
        for t in figure.findobj(matplotlib.text.Text)
        if t.get_text().strip() and t not in off and not isinstance(t, matplotlib.text.Annotation)
    ]
    assert [words for b, words in boxes if b.x0 < -1 or b.y0 < -1 or b.x1 > width + 1 or b.y1 > height + 1] == []
    tall = [(b, words) for b, words in boxes if "\n" not in words]
    clashes = [
        (one, other)
        for i, (a, one) in enumerate(tall)
        for b, other in tall[i + 1 :]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 2 and min(a.y1, b.y1) - max(a.y0, b.y0) > 2
    ]
    assert clashes == []


def test_a_line_is_as_long_as_the_interval_of_the_usual_run_allows() -> None:
    rows = some(("a", 100.0, 110.0), ("b", 200.0, 190.0)).assign(
        interval_low=[88.0, 152.0], interval_high=[137.5, 237.5]
    )
    (axes,) = plot_post.hero(rows).axes
    bars = [line.get_xdata() for line in axes.lines if line.get_marker() == "|"]
    assert [each.tolist() for each in bars] == [[pytest.approx(0.8), pytest.approx(1.25)]]


def test_a_ratio_beyond_the_axis_is_marked_with_its_value() -> None:
    figure = plot_post.sources(some(("a", 100.0, 101.0), ("b", 100.0, 1000.0), ("c", 100.0, 20.0)))
    assert {"10×", "0.2×"} <= set(texts(figure))
    assert any(words.startswith("a/b") for words in texts(figure))


def test_runs_of_an_order_are_named_and_wrong_ones_dashed() -> None:
    rows = some(
        ("job-fast", 300.0, 310.0), ("job-mid", 200.0, 110.0), ("job-slow", 100.0, 120.0), ("job-least", 50.0, 50.0)
    )
    figure = plot_details.orders(rows)
    said = texts(figure)
    assert [any(words.startswith(f"{name}  ") for words in said) for name in ("fast", "mid", "slow", "least")] == [
        True
    ] * 4
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert len(dashed) == 2
    assert plot_details.orders(rows.assign(switches=[("tp",)] * len(rows))) is None


def test_nothing_to_draw_is_no_plot() -> None:
    rows = some(("x", 1.0, None))
    assert [draw(rows) for draw in DRAW.values()] == [None] * 8


# The article


def test_every_figure_of_the_article_follows_the_rows(evaluation: Evaluation) -> None:
    """Rows that are off by a third more give another article; nothing but names, dates and limits is left of the old."""
    from dataclasses import replace

    def worse(row: Row) -> Row:
        if row.error is None or row.measured_tgs is None:
            return row
        error = 4 / 3 * row.error
        return replace(row, error=error, projected_tgs=row.measured_tgs * (1.0 + error))

    rows = tuple(map(worse, evaluation.rows))
    pattern = r"[+−-]?\d+\.\d+ %"
    one, other = (post.render(e, "t", (), {}) for e in (evaluation, Evaluation(rows=rows, facts=evaluation.facts)))
    held_out = r"is off by (\d+\.\d) %"
    first, second = (float(re.search(held_out, text).group(1)) for text in (one, other))  # type: ignore[union-attr]
    assert second == pytest.approx(4 / 3 * first, abs=0.15)
    assert len(re.findall(pattern, one)) > 40


def test_an_article_on_nothing_compared_says_so(evaluation: Evaluation) -> None:
    none = Evaluation(rows=tuple(r for r in evaluation.rows if r.error is None), facts=evaluation.facts)
    assert "No run of these" in post.render(none, "t", (), {})
    assert "No run of these 0" in post.render(Evaluation(rows=(), facts={}), "t", (), {})


def test_the_format_post_writes_article_and_plots(evaluation: Evaluation, tmp_path, monkeypatch) -> None:
    drawn = dict.fromkeys(("png", "svg"), b"as in the tests above")
    monkeypatch.setattr(pictures.Picture, "drawn", lambda self, *_: {kind: drawn[kind] for kind in self.kinds})
    report = view.build(evaluation)
    publish.write_reports(tmp_path, report, saved(evaluation), ["post"])
    stems = [f"post-{name}{end}" for name in plot_post.PLOTS for end in ("", "-dark")]
    assert {p.name for p in tmp_path.iterdir()} == {
        "post.md",
        *(f"{s}.{kind}" for s in stems for kind in ("png", "svg")),
    }
    linked = re.findall(r"\]\((.*?)\)", (tmp_path / "post.md").read_text(encoding="utf-8"))
    assert linked == [f"post-{name}.png" for name in plot_post.PLOTS]
    publish.write_rows(tmp_path, saved(evaluation))
    assert {p.name for p in tmp_path.iterdir()} == {"post.md", "results.csv", "results.json"}


def test_tables_and_page_draw_nothing(evaluation: Evaluation, tmp_path) -> None:
    """matplotlib is for those who ask for a plot."""
    publish.write_rows(tmp_path, saved(evaluation))
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from harness.cli import main; code = main(sys.argv[1:]);"
         " print('matplotlib' in sys.modules, file=sys.stderr); sys.exit(code)",
         "report", str(tmp_path), "--out", str(tmp_path / "out"), "--format", "html", "md", "csv", "tex"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip().splitlines()[-1:]) == (0, ["False"])
    assert "](" not in (tmp_path / "out" / "post.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("ends", [(0.38, 580.0), (1.0, 580.0), (0.9, 1.3), (0.2, 12.0)])
def test_labels_of_gains_do_not_touch_and_reach_far(ends: tuple[float, float]) -> None:
    ticks = np.log(plot_post._spaced_ticks(ends))
    span = np.log(ends[1] / ends[0])
    assert (np.diff(ticks) >= span / 20).all()
    assert np.log(ends[1]) - ticks[-1] < span / 2
