"""The HTML page in a headless browser: it draws, sorts, filters and links as it says, and asks for nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.contracts.results import Row
from harness.evaluation.evaluate import Evaluation
from harness.report import html, payload, publish, view
from harness.report.table import Column, Report, Table
from harness.score import accuracy, ranking

RUNS = 1500
GPUS = ("mi355x", "b200", "h100_sxm", "a100_sxm_80gb")
NASTY = '</script><img src=x onerror=alert(1)> & "quoted" _under_'

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on this machine")

# Run after the page's own script: what a reader would see, as text that the dumped page then holds.
PROBE = """
<script>
const seen = {ready: document.documentElement.dataset.ready, error: document.documentElement.dataset.error,
  shown: document.getElementById('rows')?.dataset.shown, drawn: document.querySelectorAll('#rows tr.row').length,
  wide: document.documentElement.scrollWidth - innerWidth, said: document.getElementById('said')?.textContent,
  charts: Object.fromEntries([...document.querySelectorAll('#explore .chart[id]')]
    .map(c => [c.id, c.querySelectorAll('svg').length])),
  slopes: document.querySelectorAll('#slopes svg').length, crossed: document.querySelectorAll('#slopes .cross').length,
  tied: document.querySelectorAll('#slopes .tied').length, chips: document.querySelectorAll('#chips button').length,
  hash: location.hash, requests: performance.getEntriesByType('resource').length,
  rows: [...document.querySelectorAll('#rows tr.row')].map(r => [...r.cells].map(c => c.textContent)),
  refusals: [...document.querySelectorAll('#refusals tbody tr')].map(r => [...r.cells].map(c => c.textContent)), ...(ACT)()};
const out = document.createElement('pre');
out.id = 'probe';
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>
"""


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    from harness.contracts.results import RunFacts

    rows: list[Row] = []
    facts: dict[str, RunFacts] = {}
    for i in range(RUNS):
        run = f"run-{i:04d}"
        refused = i % 10 == 9
        # Inside a group of five: the first two swapped, the next two projected equal, the last one refused in every other.
        measured = (1000.0 + i // 5) * (1.0, 1.1, 1.2, 1.3, 1.4)[i % 5]
        projected_at = (1000.0 + i // 5) * (1.0, 0.9, 1.3, 1.3, 1.8)[i % 5]
        facts[run] = RunFacts(
            run_id=run,
            source=NASTY if i == 3 else f"table {i % 7}",
            memory_kind=("allocated", "reserved", None)[i % 3],
            differs={"tp": str(2 ** (i % 4)), "pp": str(1 + i % 2), "note": f"value {i % 5}"},
        )
        for predictor in ("simulate", "constant-mfu"):
            for fit, scale in (("uncalibrated", 1.2), ("heldout", 1.0)):
                twice = 2.0 if predictor == "constant-mfu" else 1.0
                projected = None if refused else projected_at * scale * twice
                rows.append(_row(run, i, predictor, fit, measured, projected))
    return Evaluation(rows=tuple(rows), facts=facts)


def _row(run: str, i: int, predictor: str, fit: str, measured: float, projected: float | None) -> Row:
    known: dict[str, Any] = {}
    if projected is not None:
        step = 1e6 / projected
        held = {"interval_low": 0.8 * projected, "interval_high": 1.25 * projected} if fit == "heldout" else {}
        known = {
            "projected_tgs": projected,
            "projected_step_seconds": step,
            "error": projected / measured - 1.0,
            "projected_memory_gib": 50.0,
            "measured_memory_gib": 48.0 + i % 9,
            "compute_s": 0.7 * step,
            "tp_s": 0.3 * step,
            **held,
        }
    return Row(
        run_id=run,
        suite="s",
        group=f"group-{i // 5}",
        gpu=GPUS[i % 4],
        gpus=8,
        model=NASTY if i % 50 == 0 else f"model_{i % 6}",
        family=f"family_{i % 3}",
        precision="bf16",
        framework=("primus", "megatron-lm")[i % 2],
        predictor=predictor,
        fit=fit,
        status="unsupported" if projected is None else "ok",
        reason=f"not modelled: thing {i % 3}; also this" if projected is None else "",
        measured_tgs=measured,
        **known,
    )


@pytest.fixture(scope="module")
def look(evaluation: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Opens the page at an address and a width, does ``act`` (a script that returns an object), and tells what is seen."""
    folder = tmp_path_factory.mktemp("page")
    page = publish.page(view.build(evaluation), evaluation)

    def opened(address: str = "", width: int = 1300, act: str = "() => ({})") -> dict[str, Any]:
        path = folder / "page.html"
        path.write_text(page.replace("</body>", PROBE.replace("ACT", act) + "</body>"), encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")
        command = [str(BROWSER), *flags, f"--window-size={width},900", f"--user-data-dir={folder / 'profile'}"]
        done = subprocess.run(
            [*command, f"{path.as_uri()}{address}"], capture_output=True, text=True, timeout=120, check=False
        )
        return dict(json.loads(_probe(done.stdout)))

    return opened


def _probe(page: str) -> str:
    class Found(HTMLParser):
        text, inside = "", False

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.inside = ("id", "probe") in attrs

        def handle_data(self, data: str) -> None:
            if self.inside:
                self.text += data

    found = Found()
    found.feed(page)
    assert found.text, "the page's script did not run to its end"
    return found.text


def points(row: list[str]) -> float:
    return abs(float(row[10].replace("−", "-")))


@browser
@pytest.mark.parametrize("width", [1300, 800])
def test_the_page_draws_everything_and_fits(
    look: Callable[..., dict[str, Any]], evaluation: Evaluation, width: int
) -> None:
    seen = look(width=width)
    assert (seen["ready"], seen.get("error")) == ("yes", None)
    assert seen["shown"] == str(RUNS)
    assert 100 <= seen["drawn"] < RUNS
    assert seen["wide"] <= 0
    assert seen["requests"] == 0
    assert set(seen["charts"].values()) == {1}
    assert {"scatter", "by-gpu", "by-framework", "by-model", "by-tp", "by-sharding", "memory-chart"} <= set(
        seen["charts"]
    )
    assert seen["slopes"] == 6
    assert (seen["crossed"], seen["tied"]) == (12, 12)
    held = accuracy.select(evaluation.rows, "simulate", "heldout")
    figures = accuracy.summarise(held, evaluation.facts)
    assert f"{RUNS} rows, {figures.compared} compared" in seen["said"]
    assert (
        f"mean error {100 * (figures.mape or 0):.1f} % (macro {100 * (figures.macro_mape or 0):.1f} %)" in seen["said"]
    )
    sizes = [points(row) for row in seen["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    assert [(line[0], line[2]) for line in seen["refusals"]][:1] == [("150", "also this")]


@browser
def test_an_address_filters_and_sorts(look: Callable[..., dict[str, Any]]) -> None:
    seen = look("#filter=gpu:mi355x,b200;framework:primus&text=model_2&sort=error")
    wanted = [i for i in range(RUNS) if i % 4 in (0, 1) and i % 2 == 0 and i % 6 == 2 and i % 50]
    assert seen["shown"] == str(len(wanted))
    assert {row[2] for row in seen["rows"]} == {"mi355x"}
    sizes = [points(row) for row in seen["rows"] if len(row) == 14]
    assert sizes == sorted(sizes)
    assert seen["chips"] == 3


@browser
def test_refused_rows_show_their_reason_and_are_counted(look: Callable[..., dict[str, Any]]) -> None:
    seen = look("#filter=status:refused;gpu:a100_sxm_80gb&predictor=constant-mfu&fit=uncalibrated&sort=-measured")
    wanted = [i for i in range(RUNS) if i % 10 == 9 and i % 4 == 3]
    assert seen["shown"] == str(len(wanted))
    assert all(row[8].startswith("not modelled: thing") for row in seen["rows"])
    assert [row[0] for row in seen["rows"]] == [f"run-{i:04d}" for i in reversed(wanted)]
    counts = {line[2]: int(line[0]) for line in seen["refusals"]}
    assert counts["also this"] == len(wanted)
    assert sum(n for reason, n in counts.items() if reason != "also this") == len(wanted)


@browser
def test_clicks_sort_filter_and_write_the_address(look: Callable[..., dict[str, Any]]) -> None:
    act = """() => {
      const head = [...document.querySelectorAll('#rows th')].find(h => h.dataset.key === 'measured');
      head.firstChild.click();
      const down = [...document.querySelectorAll('#rows tr.row')].slice(0, 2).map(r => r.cells[0].textContent);
      head.firstChild.click();
      const sorting = location.hash;
      const up = [...document.querySelectorAll('#rows tr.row')].slice(0, 2).map(r => r.cells[0].textContent);
      const began = performance.now();
      document.querySelector('.facet[data-key=gpu] input[value=b200]').click();
      const took = performance.now() - began, filtered = document.getElementById('rows').dataset.shown;
      const name = document.querySelector('#by-framework [data-filter=megatron-lm]');
      name.dispatchEvent(new MouseEvent('click', {bubbles: true}));
      const both = location.hash;
      document.querySelector('#chips button').click();
      document.querySelector('#rows tr.row').click();
      const more = document.querySelector('#rows tr.more');
      const written = document.querySelector('table.written'), th = written.querySelectorAll('th button');
      th[0].click();
      const ordered = [...written.tBodies[0].rows].map(r => r.cells[0].textContent);
      return {down, up, sorting, took, filtered, both, one: location.hash, more: more.textContent, ordered,
        parts: more.querySelectorAll('rect').length, images: document.images.length};
    }"""
    seen = look(act=act)
    assert seen["down"] == ["run-1499", "run-1494"]
    assert seen["up"] == ["run-0000", "run-0005"]
    assert seen["sorting"] == "#sort=measured"
    assert seen["filtered"] == str(RUNS // 4)
    assert seen["took"] < 2000
    assert seen["both"] == "#filter=gpu:b200;framework:megatron-lm&sort=measured"
    assert seen["one"] == "#filter=framework:megatron-lm&sort=measured"
    assert seen["parts"] == 2
    assert seen["ordered"] == sorted(seen["ordered"])
    assert seen["images"] == 0


@browser
def test_the_head_of_the_rows_stays_in_sight_below_the_filters(look: Callable[..., dict[str, Any]]) -> None:
    act = """() => {
      document.querySelector('#rows tr.row:nth-child(90)').scrollIntoView();
      const box = selector => document.querySelector(selector).getBoundingClientRect();
      return {bar: box('#bar').top, gap: box('#rows th').top - box('#bar').bottom, scrolled: scrollY};
    }"""
    seen = look(act=act)
    assert seen["scrolled"] > 1000
    assert (seen["bar"], round(seen["gap"])) == (0, 0)


@browser
def test_a_wrong_address_is_a_page_all_the_same(look: Callable[..., dict[str, Any]]) -> None:
    seen = look("#filter=nothing:x;gpu;:;&sort=sideways&predictor=none&fit=&plot=pie")
    assert (seen["ready"], seen.get("error"), seen["shown"], seen["chips"]) == ("yes", None, str(RUNS), 0)
    assert look("#text=%5B(")["shown"] == "0"


def test_the_payload_is_small_and_cannot_end_its_element(evaluation: Evaluation) -> None:
    text = payload.dumps(payload.build(evaluation))
    assert "<" not in text
    assert json.loads(text)["runs"]["model"]["words"][0] == NASTY
    assert len(text) < 500 * RUNS


def test_the_payload_holds_what_the_rows_hold(evaluation: Evaluation) -> None:
    data = json.loads(payload.dumps(payload.build(evaluation)))
    simulate = data["predictors"]["simulate"]
    held = accuracy.select(evaluation.rows, "simulate", "heldout")
    assert data["runs"]["id"] == [r.run_id for r in held]
    for at, row in enumerate(held):
        assert simulate["heldout"][at] == (
            None if row.projected_tgs is None else pytest.approx(row.projected_tgs, rel=1e-4)
        )
        assert simulate["status"]["words"][simulate["status"]["at"][at]] == row.status
    assert simulate["shares"][0] == [700, 0, 0, 300, 0, 0, 0, 0, 0, 0]
    assert simulate["shares"][9] is None
    taus = {g.group: g.tau for g in ranking.group_rankings(held, evaluation.facts)}
    assert {g["name"]: g["tau"] for g in data["groups"]["simulate"]} == pytest.approx(taus, rel=1e-4)


def test_the_page_names_no_other_place(evaluation: Evaluation) -> None:
    page = publish.page(view.build(evaluation), evaluation)
    assert "://" not in page
    assert (
        re.search(r"""\b(src|href)\s*=\s*["'](?!#|data:)""", page.split('<script type="application/json"')[0]) is None
    )
    assert "default-src 'none'" in page


def test_no_rows_make_a_page_without_charts() -> None:
    empty = Evaluation(rows=(), facts={})
    page = publish.page(view.build(empty), empty)
    assert "</html>" in page
    assert 'id="data"' not in page


def test_figures_of_written_tables_have_a_true_minus() -> None:
    columns = (Column("run-id", numeric=False), Column("n"))
    page = html.render(Report(title="t", tables=(Table(title="T", columns=columns, rows=(("-x", "-1.5 %"),)),)))
    assert '<td>-x</td><td class="n">−1.5 %</td>' in page


def test_files_of_the_page_are_there_and_short() -> None:
    scripts = sorted(html.PAGE.glob("*"))
    assert {p.name for p in scripts} == {"common.js", *html.SCRIPTS, "page.css", "explorer.html"}
    for path in scripts:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 250, path.name
    assert Path(html.PAGE).is_dir()
