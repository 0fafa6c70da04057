"""Published totals beside plans: what is read, what holds on the shipped ones, the report, bad input."""

from dataclasses import replace
from pathlib import Path

import command_line
import pytest
from asked import put, refusal, says
from tabled import tabled

from harness.evaluation import platforms
from harness.evaluation.plans import Held, held
from harness.evaluation.platforms import Rated
from harness.evidence import totals
from harness.evidence.ingest import command as ingest
from harness.predictors import load
from harness.report import peaks_plot, view_peaks
from projector.hardware import catalogue

TOTALS = Path(__file__).resolve().parents[2] / "measured" / "totals.yaml"


@pytest.fixture(scope="module")
def made() -> dict[str, Held]:
    return {each.total.id: each for each in held(totals.read(TOTALS))}


def test_published_hours_lie_where_plans_say(made: dict[str, Held]) -> None:
    """From a projection: all; from the rate of their own steps: all but one, whose hours hold more than restarts."""
    planned = {name: each.inside(each.planned.forecast) for name, each in made.items() if each.planned}
    assert planned == {"deepseek-v3": True, "llama3.1-405b": True, "bloom-176b": True}
    own = {name: each.inside(each.own) for name, each in made.items() if not each.total.ideal and each.own}
    assert own == {"llama3.1-405b": True, "bloom-176b": True, "olmo3-7b": True, "olmo3-32b": False}
    for each in made.values():
        if each.total.ideal:
            assert each.own.middle.gpu_hours > (each.total.gpu_hours or 0)


def test_failures_and_power(made: dict[str, Held]) -> None:
    assert made["llama3.1-405b"].interruptions[1] == pytest.approx(419, rel=0.05)
    assert all(each.goodput[0] < each.goodput[1] < each.goodput[2] for each in made.values())
    for name in ("llama3.1-405b", "olmo-hybrid-7b"):
        low, _, high = made[name].goodput
        assert low < (made[name].total.goodput or 0) < high
    low, _, high = made["apertus-70b"].kilowatts or (0, 0, 0)
    assert low < 5000 * 1e3 / 6e6 < high


def test_bad_totals(tmp_path) -> None:
    path = tmp_path / "totals.yaml"
    path.write_text(
        "- {id: a, source: s, gpus: 0, tokens: .nan, of: moon, gpu: abacus, tgs: -1}\n"
        "- {id: a, source: '', gpus: 8, interruptions: {count: 3}, case: {model: nothing}}\n"
    )
    caught = refusal(totals.read, path)
    keys = {problem.key for problem in caught.problems}
    assert {"a.gpus", "a.tokens", "a.of", "a.gpu", "a.tgs", "a.source", "a.interruptions.days", "a"} <= keys
    assert "a list of runs" in command_line.refused("harness", "plans", put(path, "{}"))


# Platforms side by side: the figures of a published comparison, and what it did not say of itself.

ROWS = Path(__file__).resolve().parent / "data" / "tprimat_peaks.yaml"
ITS = {"llama3.1_8b": 8.0e9, "qwen2.5_7b": 7.6e9}  # parameters as the comparison counts them
COUNTED = ["--parameters", "llama3.1_8b=8e9", "qwen2.5_7b=7.6e9"]


@pytest.fixture(scope="module")
def rows() -> list[Rated]:
    return platforms.rated(ingest.load(ROWS).runs, load(("simulate",))[0], ITS)


def test_figures_of_the_comparison(rows: list[Rated]) -> None:
    best = {row.key: row for row in platforms.peaks(rows)}
    amd, nvidia = best["mi300x", "qwen2.5_7b"], best["h100_sxm", "qwen2.5_7b"]
    assert amd.tokens == 87_933
    assert 8 * amd.tflops == pytest.approx(4_009.7, abs=0.1)
    assert amd.utilisation == pytest.approx(0.383, abs=5e-4)
    assert 8 * nvidia.tflops == pytest.approx(3_596.8, abs=0.1)
    assert nvidia.utilisation == pytest.approx(0.455, abs=1e-3)  # it says 22.7 %
    assert (nvidia.against_sparse, amd.against_sparse) == (True, False)
    assert amd.tokens / nvidia.tokens == pytest.approx(1.11, abs=0.01)
    assert amd.tokens * 86_400 == pytest.approx(7_597_433_417, rel=1e-5)
    assert 8 * best["mi300x", "llama3.1_8b"].tflops == pytest.approx(3_306.0, abs=0.1)


def test_what_it_does_not_say(rows: list[Rated]) -> None:
    """The sequences differ; its four strategies on MI300X are one; rows on H100 are far too slow."""
    best = platforms.peaks(rows)
    assert any("sequence 8192 against 2048" in each for each in platforms.unfair(best[0], best[1]))
    same = {(each.rows[0].run.gpu, each.rows[0].model): each for each in platforms.alike(rows) if len(each.rows) == 4}
    assert set(same) == {("mi300x", "qwen2.5_7b"), ("mi300x", "llama3.1_8b")}
    for each in same.values():
        assert each.spread < 0.003
        assert each.not_applied
    slow = {row.run.id for row in rows if row.slow}
    assert {"h100-llama-00", "h100-llama-01"} <= slow
    assert not any(name.startswith("mi300x") for name in slow)
    words = " ".join(view_peaks.verdict(rows, platforms.alike(rows)))
    says(words, "87,933 tokens/s", "not a fair comparison", "sparse peak", "probably they were not applied")
    says(words, "find out why")


def test_laws(rows: list[Rated]) -> None:
    for row in rows:
        assert row.utilisation == pytest.approx(row.tflops * 1e12 / catalogue.gpu(row.run.gpu).peak_of("bf16"))
        assert 0 < row.utilisation < 1
        ranks = list(platforms.GRADES.values())
        assert row.utilisation >= platforms.GRADES[row.grade]
        assert all(row.utilisation < least for least in ranks[: list(platforms.GRADES).index(row.grade)])
        assert row.slow == (row.share is not None and row.share < platforms.SLOW)
        assert platforms.unfair(row, row) == ()
    found = platforms.scaled(platforms.peaks(rows)[0], load(("simulate",))[0])
    assert [each["linear"] for each in found] == [87_933 * each["times"] for each in found]
    assert all(each["projected"] is not None and each["projected"] <= 1.001 * each["linear"] for each in found)
    apart = [replace(row, tgs=row.tgs * 3.0**i) for i, row in enumerate(rows)]
    assert platforms.alike(apart) == []
    repeats = [rows[0], replace(rows[0], tgs=rows[0].tgs * 1.001)]
    assert platforms.alike(repeats) == []  # one strategy twice


def test_each_dotted_peak_lies_over_its_own_bar(rows: list[Rated]) -> None:
    """A row without TFLOP/s has no bar in that panel, and moves no other's peak."""
    first, *others = platforms.peaks(rows)
    for shown in ([first, *others], [replace(first, tflops=None), *others]):
        axes = peaks_plot.draw(shown).axes
        bars = [
            (bar.get_x() + bar.get_width() / 2, row)
            for bar, row in zip(axes[4].patches, _with_bars(shown), strict=True)
        ]
        lines = {tuple(line.get_segments()[0].mean(axis=0)) for line in axes[4].collections}
        assert lines == {(x, row.dense) for x, row in bars}
        assert len(axes[7].get_xticks()) == len({row.run.gpu for row in rows})  # a box each platform


def _with_bars(rows: list[Rated]) -> list[Rated]:
    return [row for row in platforms.peaks(rows) if row.tflops]


def test_the_peaks_command(tmp_path) -> None:
    price = put(tmp_path / "price.yaml", "price_by_gpu: {mi300x: 2.0}\ncurrency: USD\nsource: an offer\n")
    words = ["peaks", str(ROWS), *COUNTED, "--price", str(price), "--out", str(tmp_path / "out")]
    found = command_line.document("harness", *words)
    tables = {table["title"]: table for table in found["tables"]}
    assert len(tables) == 8
    assert "No price of h100_sxm" in tables["A day at the peak"]["note"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"peaks.md", "peaks.png"}
    assert "Ten panels" in (tmp_path / "out" / "peaks.md").read_text(encoding="utf-8")
    page = command_line.told("harness", "peaks", ROWS, "--strategy", "balanced")
    assert "truly_identical" not in page
    assert "balanced" in page


@pytest.mark.parametrize(("words", "found"), tabled("refusals", "plans"))
def test_bad_input(words: tuple[str, ...], found: str) -> None:
    assert found in command_line.refused("harness", "peaks", ROWS, *words)
