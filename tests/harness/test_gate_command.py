"""The gate is shown to fail, through the command line: a broken constant, a dropped row, a swapped order, a wide step."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import ROOT, says
from tabled import tabled

from harness.cli import main
from harness.contracts import frame
from harness.contracts.results import Row
from harness.evaluation import observations
from harness.evidence import suite
from harness.predictors import ours
from harness.report import files, publish
from harness.score import gate
from projector.hardware import efficiency
from projector.hardware.types import Efficiency

GATE = {
    "mape": 0.03, "worst": 0.05, "bias": 0.03, "kendall_tau": 1.0, "top1_regret": 0.0, "coverage": 1.0,
    "memory_mape": 0.03, "uncalibrated_mape": 0.03, "min_rows": 5,
}  # fmt: skip
ALLOCATED = {"memory_kind": "allocated"}
LOOSE = {"coverage": 0.1}
CLOCK = "clock.matrix"
RECIPES: dict[str, tuple[str, str, dict[str, int]]] = tabled("workloads", "gate_runs")

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}

NUMBERS = itertools.count()

Runs = dict[str, dict[str, Any]]
Call = Callable[..., tuple[int, str]]


def run_of(name: str, step: float, memory: float) -> dict[str, Any]:
    model, group, recipe = RECIPES[name]
    return {
        "id": name,
        "source": {"title": "made up", "kind": "table"},
        "gpu": "h100_sxm",
        "gpus": 16,
        "stack": {"framework": "megatron-lm"},
        "model": model,
        "recipe": {**recipe, **FULL, "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
        "measured": {"step_seconds": step, "tgs": 64 * 4096 / step / 16, "peak_memory_gib": memory} | ALLOCATED,
        "group": group,
    }


def write(folder: Path, runs: Mapping[str, Mapping[str, Any]], gate: Mapping[str, float] = GATE) -> None:
    for name in ("suites", "measured/runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    name = f"tight{next(NUMBERS)}"  # a process reads a file of runs once
    (folder / "measured" / "runs" / f"{name}.yaml").write_text(yaml.safe_dump(list(runs.values())))
    suite = {"suite": "tight", "select": [{"runs": name}], "gate": {"simulate": dict(gate)}}
    (folder / "suites" / "tight.yaml").write_text(yaml.safe_dump(suite))


@pytest.fixture(scope="module")
def truth(tmp_path_factory) -> Runs:
    """Runs that measure what is projected, to 1 %."""
    folder = tmp_path_factory.mktemp("truth")
    write(folder, {name: run_of(name, 5.0, 50.0) for name in RECIPES})
    suite = str(folder / "suites" / "tight.yaml")
    assert main(["run", suite, "--no-gate", "--no-plots", "--out", str(folder / "out")]) == 0
    rows = json.loads((folder / "out" / "results.json").read_text())["rows"]
    mine = [r for r in rows if r["predictor"] == "simulate" and r["fit"] == "uncalibrated"]
    assert [r["status"] for r in mine] == ["ok"] * len(RECIPES)
    found = {r["run_id"]: (r["projected_step_seconds"], r["projected_memory_gib"]) for r in mine}
    return {
        name: run_of(name, step * (1.01 if i % 2 else 0.99), memory * 1.01)
        for i, (name, (step, memory)) in enumerate(found.items())
    }


@pytest.fixture
def call(tmp_path, monkeypatch, capsys) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(observations, "packaged", lambda: None)  # what is true here is what is projected
    monkeypatch.setattr(publish, "write_reports", lambda *_: None)  # pages decide nothing, and take as long as the rest
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def run(runs: Runs, *flags: str, gate: Mapping[str, float] = GATE, out: str = "out") -> tuple[int, str]:
        write(tmp_path, runs, gate)
        capsys.readouterr()
        code = main(["run", "suites/tight.yaml", "--no-plots", "--verbose", "--out", out, *flags])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def failures(text: str) -> set[str]:
    """The thresholds that do not hold."""
    lines = [line.split() for line in text.splitlines() if line.startswith("FAIL tight")]
    return {words[3].removesuffix(":") for words in lines}


def changed(runs: Runs, name: str, **measured: float) -> Runs:
    made = {key: json.loads(json.dumps(run)) for key, run in runs.items()}
    made[name]["measured"].update(measured)
    step = made[name]["measured"]["step_seconds"]
    made[name]["measured"]["tgs"] = 64 * 4096 / step / 16
    return made


def test_what_is_right_passes(truth: Runs, call: Call) -> None:
    code, text = call(truth)
    assert code == 0, text
    assert text.count("PASS tight simulate") == len(GATE)


@pytest.mark.parametrize(
    ("share", "limits", "broken"),
    [
        (0.5, {name: GATE[name] for name in ("uncalibrated_mape", "coverage", "min_rows")}, "uncalibrated_mape"),
        # what was too fast may become better by it, so the bias is bounded on both sides
        (0.8, {"uncalibrated_bias_min": -0.05, "uncalibrated_bias_max": 0.05}, "uncalibrated_bias_min"),
    ],
)
def test_a_broken_kernel_constant_fails(
    truth: Runs, call: Call, monkeypatch, share: float, limits: Mapping[str, float], broken: str
) -> None:
    """Matrix products at a share of their clock, on every GPU: the figure before any correction shows all of it."""
    assert call(truth, gate=limits)[0] == 0
    sound = efficiency._shipped

    @cache
    def slow(*of: Any) -> Efficiency:
        known = sound(*of).parameters
        return Efficiency(gpu=of[2], parameters={**known, CLOCK: efficiency._scaled_share(known[CLOCK], share)})

    monkeypatch.setattr(efficiency, "_shipped", slow)
    monkeypatch.setattr(ours, "_projected", ours._projected.__wrapped__)  # remembers nothing
    code, text = call(truth, gate=limits)
    assert code == 1, text
    assert failures(text) == {broken}


@pytest.mark.parametrize("name", ["dense", "moe", "scaling", "schedules"])
def test_the_gates_of_the_project_see_flop_rates_a_fifth_too_low(name: str) -> None:
    """The rows that are checked in, their kernels a quarter longer, before any fit."""
    read = suite.load(ROOT / "suites" / f"{name}.yaml")
    ids = {run.id for run in read.runs}
    slow = [slower(replace(r, suite=name)) for r in uncalibrated() if r.run_id in ids]
    limits = {key: limit for key, limit in read.gate["simulate"].items() if "uncalibrated" in key}
    found = {check.name for check in gate.check(name, frame.of(slow), {"simulate": limits}) if not check.passed}
    assert found & {"uncalibrated_bias_min", "by_gpu.uncalibrated_bias_min"}


@cache
def uncalibrated() -> Sequence[Row]:
    """The sound rows that are checked in, as they are simulated."""
    rows = files.rows(ROOT / "reports" / "results.csv")
    return [r for r in rows if r.fit == "uncalibrated" and r.predictor == "simulate" and not r.doubt]


def slower(row: Row) -> Row:
    if row.compute_s is None or row.projected_step_seconds is None or row.projected_tgs is None or not row.measured_tgs:
        return row
    tgs = row.projected_tgs * row.projected_step_seconds / (row.projected_step_seconds + 0.25 * row.compute_s)
    return replace(row, projected_tgs=tgs, error=tgs / row.measured_tgs - 1.0)


def test_a_model_that_left_the_zoo_fails_its_suite_by_name(truth: Runs, call: Call) -> None:
    gone = changed(truth, "dense-b")
    gone["dense-b"]["model"] = "llama3_8c"
    code, text = call(gone, gate=LOOSE)
    assert code == 1, text
    assert "FAIL tight simulate missing_models: 1, required <= 0 (llama3_8c (a known name; nearest: llama3_8b" in text
    assert call(gone, "--no-gate", gate=LOOSE)[0] == 0


@pytest.mark.parametrize(
    ("change", "flags", "gate"),
    [
        ({}, (), GATE),
        ({"step_seconds": 9.0}, ("--no-gate",), GATE),
        ({"step_seconds": 9.0}, (), LOOSE),
        ({"step_seconds": 9.0}, (), {"worst": 0.1}),
        ({"step_seconds": 9.0}, ("--against", "before"), LOOSE),
        ({"step_seconds": 9.0}, ("--against", "before", "--no-gate"), LOOSE),
    ],
)
def test_junit_fails_where_the_command_does(
    truth: Runs, call: Call, tmp_path, change: dict[str, float], flags: tuple[str, ...], gate: dict[str, float]
) -> None:
    if "--against" in flags:
        assert call(truth, gate=LOOSE, out="before")[0] == 0
    code, text = call(changed(truth, "dense-b", **change), *flags, "--junit", "out/j.xml", gate=gate)
    assert code == int("failure" in (tmp_path / "out" / "j.xml").read_text().replace("failures=", "")), text
    again = main(["report", "out", "--junit", "out/k.xml", "--no-plots"])
    assert again == int("<failure" in (tmp_path / "out" / "k.xml").read_text())


def test_a_row_that_leaves_the_suite_blocks_unless_it_may(truth: Runs, call: Call) -> None:
    assert call(truth, gate=LOOSE, out="before")[0] == 0
    rest = {name: run for name, run in truth.items() if name != "moe-b"}
    code, text = call(rest, "--against", "before", gate=LOOSE)
    assert code == 1
    assert "FAIL moe-b, simulate: projected before, no longer in the suite (--allow-removed accepts it)" in text
    assert ["removed", "simulate", "moe-b"] in [line.split() for line in text.splitlines()]
    assert call(rest, "--against", "before", "--allow-removed", gate=LOOSE)[0] == 0
    code, text = call(truth, "--against", "out", gate=LOOSE)
    assert code == 0
    assert ["new", "simulate", "moe-b"] in [line.split() for line in text.splitlines()]


def test_rows_are_compared_with_those_of_a_csv_too(truth: Runs, call: Call, tmp_path) -> None:
    assert call(truth, out="before")[0] == 0
    table = tmp_path / "before" / "results.csv"
    said = call(truth, "--against", "before/results.csv")[1]
    assert "PASS against earlier results: 0 rows lost, 0 broken" in said
    assert "NOTE uncalibrated: mean error of shared rows 1.0 % before, 1.0 % now; 0 rows worse" in said
    header, *lines = table.read_text(encoding="utf-8").splitlines()
    place = header.split(",").index("error")
    cells = [line.split(",") for line in lines]
    assert any(row[place] for row in cells)
    flawless = [",".join([*row[:place], "0.0" if row[place] else "", *row[place + 1 :]]) for row in cells]
    table.write_text("\n".join([header, *flawless]) + "\n", encoding="utf-8")
    code, text = call(truth, "--against", "before/results.csv", "--drift-tolerance", "0", gate=LOOSE)
    assert code == 1
    assert "points worse, at most 0 points allowed" in text
    table.write_text("\n".join([header, *(line.replace(",ok,", ",ok,", 1) for line in lines[:-1]), "x,y"]) + "\n")
    code, text = call(truth, "--against", "before/results.csv")
    assert code == 2
    assert f"line {len(lines) + 1}, gpus: found ''" in text


@pytest.mark.parametrize(("flags", "piece"), tabled("refusals", "gate_command"))
def test_flags_that_make_no_sense(truth: Runs, call: Call, tmp_path, flags: tuple[str, ...], piece: str) -> None:
    code, text = call(truth, *flags, gate={"min_rows": 0, "uncalibrated_mape": -1})
    assert code == 2
    says(text, piece, "gate.simulate.min_rows: found 0, expected a number from 1 to 1e+06: rows with an error")
    says(text, "gate.simulate.uncalibrated_mape: found -1, expected a number from 0 to 10")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as exit_:
        call(truth, "--against", "before", "--drift-tolerance", "5%")
    assert exit_.value.code == 2
