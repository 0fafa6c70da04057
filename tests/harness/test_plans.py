"""Published totals beside plans: what is read, what holds on the shipped ones, the report, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.evaluation.plans import Held, held
from harness.evidence import totals
from projector.errors import InputError

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
            assert each.own is not None
            assert each.own.middle.gpu_hours > (each.total.gpu_hours or 0)


def test_failures_and_power(made: dict[str, Held]) -> None:
    llama = made["llama3.1-405b"]
    assert llama.interruptions is not None
    assert llama.interruptions[1] == pytest.approx(419, rel=0.05)
    assert all(each.goodput[0] < each.goodput[1] < each.goodput[2] for each in made.values())
    for name in ("llama3.1-405b", "olmo-hybrid-7b"):
        low, _, high = made[name].goodput
        assert low < (made[name].total.goodput or 0) < high
    low, _, high = made["apertus-70b"].kilowatts or (0, 0, 0)
    assert low < 5000 * 1e3 / 6e6 < high


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plans.md"
    assert main(["plans", str(TOTALS), "--out", str(out), "--json"]) == 0
    tables = {table["title"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert {"Hours", "Failures", "Power", "Sources"} == set(tables)
    text = out.read_text(encoding="utf-8")
    assert "| deepseek-v3 |" in text
    assert "arXiv 2412.19437" in text


def test_bad_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "totals.yaml"
    path.write_text(
        "- {id: a, source: s, gpus: 0, tokens: .nan, of: moon, gpu: abacus, tgs: -1}\n"
        "- {id: a, source: '', gpus: 8, interruptions: {count: 3}, case: {model: nothing}}\n"
    )
    with pytest.raises(InputError) as caught:
        totals.read(path)
    keys = {problem.key for problem in caught.value.problems}
    assert {"a.gpus", "a.tokens", "a.of", "a.gpu", "a.tgs", "a.source", "a.interruptions", "a"} <= keys
    path.write_text("{}")
    assert main(["plans", str(path)]) == 2
    assert "a list of runs" in capsys.readouterr().err
