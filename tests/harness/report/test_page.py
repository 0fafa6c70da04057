"""The page in a headless browser: it fits and is readable at every width, and works by mouse, keyboard and on paper."""

import re
from itertools import pairwise
from typing import Any

import pytest
from asked import says
from many import GPUS, NASTY, RUNS

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.score import accuracy


def points(text: str) -> float:
    return abs(float(text.replace("−", "-")))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 800, 500])
def test_nothing_overprints_and_nothing_runs_out_of_the_page(look: Any, width: int, scheme: str) -> None:
    with look(width=width, scheme=scheme) as sight:
        assert sight.js("probe.tooWide()") <= 0
        assert sight.js("probe.overlaps()") == []
        assert sight.js("probe.cut()") == []
        assert sight.lacking(".chart", "e.querySelector('svg')") == 0


@pytest.mark.parametrize("width", [1300, 500])
def test_the_drawer_is_readable(look: Any, width: int) -> None:
    with look("#run=run-0003", width=width) as sight:
        assert sight.lacking("#drawer", "e.scrollWidth <= e.clientWidth") == 0
        assert sight.js("probe.overlaps()") == []
        assert sight.js("probe.cut()") == []


def test_the_first_screen_says_how_good_it_is(look: Any, evaluation: Evaluation) -> None:
    figures = accuracy.summarise(frame.part(evaluation.frame, predictor="simulate", fit="heldout"))
    with look() as sight:
        (said,) = sight.texts(".verdict")
        says(said, f"Over {figures.compared} measured runs", f"{100 * (figures.mape or 0):.1f} %")
        assert sight.texts(".tiles b")[:2] == [f"{100 * (v or 0):.1f} %" for v in (figures.mape, figures.macro_mape)]
        assert sight.lacking("#hero, #heat", "e.getBoundingClientRect().bottom <= 900") == 0
        # a lane a GPU, with what the intervals of its runs allow: a bar and its two ends
        assert sight.page.locator("#hero .whisker").count() == 3 * sight.page.locator("#hero [data-filter]").count() > 0


def test_the_heat_map_holds_the_mean_error_of_every_cell(look: Any, evaluation: Evaluation) -> None:
    held = frame.part(evaluation.frame, predictor="simulate", fit="heldout").dropna(subset=["error"])
    with look() as sight:
        found = sight.js("probe.heat()")
        shown = {(gpu, family): (error, rows) for gpu, family, error, rows in found}
        cells = held["error"].abs().groupby([held["gpu"], held["family"]])
        assert shown == {key: (f"{100 * errors.mean():.0f}", str(len(errors))) for key, errors in cells}
        # Each step of the scale is darker than the one before: it is told apart without colours.
        light = sight.js("probe.steps()")
        assert light == sorted(light, reverse=True)
        assert all(a > 1.15 * b for a, b in pairwise(light))


def test_hover_names_a_run_and_its_figures(look: Any) -> None:
    with look() as sight:
        mark = sight.js("probe.mark('hero')")
        sight.page.mouse.move(*mark)
        told = sight.page.locator("#tip").inner_text()
        assert re.search(r"run-\d{4}\n.*mi355x|run-\d{4}\n", told)
        assert re.search(r"measured .*, projected .* tokens/s/GPU: [+−][\d.]+ %\n90 % interval .* to ", told)
        assert sight.js("() => document.querySelector('#hero .ring').getAttribute('d')").startswith("M")
        sight.page.mouse.move(2, 2)
        assert sight.page.locator("#tip").is_hidden()


def test_a_chart_is_read_and_a_row_opened_by_keyboard(look: Any) -> None:
    with look() as sight:
        sight.page.locator("#hero").focus()
        sight.press("ArrowRight")
        first = sight.page.locator("#tip b").inner_text()
        sight.press("End", "ArrowLeft")
        before_last = sight.page.locator("#tip b").inner_text()
        assert first != before_last
        sight.press("Enter")
        assert sight.page.locator("#drawer").is_visible()
        assert sight.texts("#drawer-title") == [before_last]
        sight.press("Escape")
        assert sight.page.locator("#drawer").is_hidden()
        assert sight.js("() => document.activeElement.id") == "hero"
        sight.press("Escape")
        assert sight.page.locator("#tip").is_hidden()


def test_every_stop_of_the_tab_key_is_seen(look: Any) -> None:
    with look() as sight:
        seen = []
        for _ in range(40):
            sight.press("Tab")
            seen.append(sight.js("probe.focus()"))
        assert len({text for text, _, _ in seen}) > 20
        assert [text for text, style, width in seen if style == "none" or width < 1] == []


def test_rows_are_walked_and_opened_by_keyboard(look: Any) -> None:
    with look("#sort=id") as sight:
        sight.page.locator("#rows tbody button").first.focus()
        sight.press("ArrowDown", "ArrowDown", "ArrowUp", "Enter")
        assert sight.texts("#drawer-title") == ["run-0001"]
        assert sight.address.endswith("run=run-0001")
        sight.press("ArrowRight")
        assert sight.texts("#drawer-title") == ["run-0002"]
        sight.press("Escape")
        assert sight.js("() => document.activeElement.textContent") == "run-0001"
        sight.page.wait_for_function("() => !location.hash.includes('run=')", timeout=10_000)
        for _ in range(30):
            sight.press("ArrowDown")
        assert sight.js("() => document.activeElement.textContent") == "run-0031"


def test_the_heat_map_is_walked_by_keyboard_and_filters(look: Any) -> None:
    with look() as sight:
        sight.page.locator("#heat button[tabindex='0']").focus()
        sight.press("ArrowDown", "ArrowRight")
        gpu, family = sight.js("() => [document.activeElement.dataset.gpu, document.activeElement.dataset.family]")
        assert gpu in GPUS
        sight.press("Enter")
        assert sight.address == f"#filter=gpu:{gpu};family:{family}"
        assert sight.js("() => document.activeElement.dataset.family") == family
        sight.press("Enter")
        assert sight.address == ""


def test_the_drawer_holds_recipe_breakdown_neighbours_and_command(look: Any) -> None:
    with look("#run=run-0003") as sight:
        recipe = dict(zip(sight.texts("#drawer .recipe dt"), sight.texts("#drawer .recipe dd"), strict=True))
        assert recipe == {"tp": "8", "pp": "2", "note": "value 3"}
        assert sight.texts(".shares th") == ["compute", "TP"]
        assert sight.texts(".shares td.n")[1::2] == ["70.0 %", "30.0 %"]
        assert sight.texts(".near .link") == ["run-0004", "run-0002", "run-0001", "run-0000"]
        assert sight.texts(".near .sub")[1] == "tp 4, pp 1, note value 2"
        assert sight.texts("#drawer pre") == ["python -m harness run suites/moe.yaml --mode both --id run-0003"]
        assert NASTY in sight.page.locator("#drawer-body").inner_text()
        sight.page.locator(".near .link").nth(1).click()
        assert sight.texts("#drawer-title") == ["run-0002"]
        sight.page.mouse.click(20, 450)
        assert sight.page.locator("#drawer").is_hidden()


def test_a_refused_row_says_why(look: Any) -> None:
    with look("#run=run-0009") as sight:
        assert sight.texts("#drawer .why") == ["unsupported: not modelled: thing 0; also this"]
        assert sight.page.locator("#drawer-parts").count() == 0


def test_on_paper_the_explorer_is_off_and_tables_are_whole(look: Any) -> None:
    with look() as sight:
        sight.page.emulate_media(media="print")
        sight.js("() => dispatchEvent(new Event('beforeprint'))")
        hidden = ["nav", "#explore", "#bar", "#theme", "#drawer"]
        assert [s for s in hidden if sight.page.locator(s).first.is_visible()] == []
        assert sight.page.locator("#heat").is_visible()
        assert sight.lacking("table.written", "e.checkVisibility()") == 0
        assert sight.lacking(".wide", "getComputedStyle(e).overflowX === 'visible'") == 0
        assert len(sight.page.pdf(format="A4")) > 10_000
        sight.js("() => dispatchEvent(new Event('afterprint'))")
        assert sight.js("() => document.querySelectorAll('details[open]').length") == 0


def test_charts_and_figures_of_the_selection(look: Any, evaluation: Evaluation) -> None:
    figures = accuracy.summarise(frame.part(evaluation.frame, predictor="simulate", fit="heldout"))
    with look() as sight:
        assert sight.js("probe.shown()") == str(RUNS)
        assert sight.page.locator("#rows tr.row").count() == 25
        assert sight.page.locator("#slopes svg").count() == 6
        assert (sight.page.locator("#slopes .cross").count(), sight.page.locator("#slopes .tied").count()) == (12, 12)
        (said,) = sight.texts("#said")
        assert f"{RUNS} rows, {figures.compared} compared" in said
        assert f"mean error {100 * (figures.mape or 0):.1f} % (macro {100 * (figures.macro_mape or 0):.1f} %)" in said
        sizes = [points(text) for text in sight.texts("#rows td:nth-child(11)") if text]
        assert sizes == sorted(sizes, reverse=True)
        assert sight.texts("#refusals tbody tr:first-child td")[::2][:2] == ["150", "also this"]
        sight.page.locator("#further").click()
        assert sight.page.locator("#rows tr.row").count() == 225
        assert sight.js("() => document.activeElement.closest('tr').dataset.at") == "25"


def test_an_address_filters_and_sorts(look: Any) -> None:
    with look("#filter=gpu:mi355x,b200;framework:primus&text=model_2&sort=error") as sight:
        wanted = [i for i in range(RUNS) if i % 4 in (0, 1) and i % 2 == 0 and i % 6 == 2 and i % 50]
        assert sight.js("probe.shown()") == str(len(wanted))
        assert set(sight.texts("#rows td:nth-child(3)")) == {"mi355x"}
        sizes = [points(t) for t in sight.texts("#rows tr:not(:has(.reason)) td:nth-child(11)")]
        assert sizes == sorted(sizes)
        assert sight.page.locator("#chips button").count() == 3
        chosen = sight.js("() => document.getElementById('hero').marks.length")
        assert chosen == sum(i % 10 != 9 for i in wanted)


def test_refused_rows_show_their_reason_and_are_counted(look: Any) -> None:
    with look(
        "#filter=status:refused;gpu:a100_sxm_80gb&predictor=constant-mfu&fit=uncalibrated&sort=-measured"
    ) as sight:
        wanted = [i for i in range(RUNS) if i % 10 == 9 and i % 4 == 3]
        assert sight.js("probe.shown()") == str(len(wanted))
        assert all(text.startswith("not modelled: thing") for text in sight.texts("#rows .reason"))
        names = sight.texts("#rows .name button")
        assert names == [f"run-{i:04d}" for i in reversed(wanted)][: len(names)]
        counts = sight.js("probe.reasons()")
        assert dict(counts)["also this"] == len(wanted)
        assert sum(n for reason, n in counts if reason != "also this") == len(wanted)


def test_clicks_sort_filter_and_write_the_address(look: Any) -> None:
    with look() as sight:
        head = sight.page.locator("#rows th[data-key=measured] button")
        head.click()
        assert sight.texts("#rows .name button")[:2] == ["run-1499", "run-1494"]
        head.click()
        assert sight.texts("#rows .name button")[:2] == ["run-0000", "run-0005"]
        assert sight.address == "#sort=measured"
        sight.page.locator(".facet[data-key=gpu] summary").click()
        took = sight.js("probe.time(() => document.querySelector('.facet[data-key=gpu] input[value=b200]').click())")
        assert took < 2000
        assert sight.js("probe.shown()") == str(RUNS // 4)
        sight.press("Escape")
        sight.page.locator("#by-framework [data-filter=megatron-lm]").dispatch_event("click")
        assert sight.address == "#filter=gpu:b200;framework:megatron-lm&sort=measured"
        sight.page.locator("#chips button").first.click()
        assert sight.address == "#filter=framework:megatron-lm&sort=measured"
        sight.page.locator("#hero [data-filter=b200]").dispatch_event("click")
        assert "gpu:b200" in sight.address
        sight.page.locator("#tables > details summary").first.click()
        sight.page.locator("table.written th button").first.click()
        ordered = sight.js(
            "[...document.querySelector('table.written').tBodies[0].rows].map(r => r.cells[0].textContent)"
        )
        assert ordered == sorted(ordered)
        assert sight.js("() => document.images.length") == 0


def test_the_head_of_the_rows_stays_in_sight_below_the_filters(look: Any) -> None:
    with look() as sight:
        sight.js("() => document.querySelector('#rows tr.row:nth-child(12)').scrollIntoView()")
        bar, head = sight.js("probe.box('#bar')"), sight.js("probe.box('#rows th')")
        assert (bar["top"], round(head["top"] - bar["bottom"])) == (0, 0)


def test_a_wrong_address_is_a_page_all_the_same(look: Any) -> None:
    with look("#filter=nothing:x;gpu;:;&sort=sideways&predictor=none&fit=&plot=pie&run=nobody") as sight:
        assert sight.js("probe.shown()") == str(RUNS)
        assert sight.page.locator("#chips button").count() == 0
        assert sight.page.locator("#drawer").is_hidden()
    with look("#text=%5B(") as sight:
        assert sight.js("probe.shown()") == "0"
        assert sight.js("probe.overlaps()") == []


def test_files_of_the_page_are_there_and_short() -> None:
    from harness.report import html

    scripts = [*sorted(html.PAGE.glob("*")), html.LOOK / html.STYLES[0], html.LOOK / "common.js"]
    assert {p.name for p in scripts} == {"common.js", "first.html", "explorer.html", *html.SCRIPTS, *html.STYLES}
    for path in scripts:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 250, path.name
