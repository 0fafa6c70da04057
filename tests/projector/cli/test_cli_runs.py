"""``--anchor`` and ``--runs``: what measured runs of one's own say of another one, in every command that projects."""

from pathlib import Path

import pytest
from asked import put, says
from cli_command import document, refused, told
from tabled import tabled

import projector

CASE = """\
model: llama3.1_8b
cluster: h100_sxm
gpus: 16
framework: megatron-lm
recipe: {tp: 2, micro_batch_size: 1, global_batch_size: 64, seq_length: 4096, data_parallel_sharding: optim}
"""
RUN = "gpu: h100, gpus: 16, model: llama3.1_8b, framework: megatron-lm, precision: bf16, pp: 1, cp: 1"
SIZES = "micro_batch_size: 1, global_batch_size: 64, seq_length: 4096"
RUNS = f"""\
- {{id: a, {RUN}, tp: 2, {SIZES}, step_time_s: 2.1}}
- {{id: b, {RUN}, tp: 4, {SIZES}, step_time_s: 2.6}}
- {{id: c, {RUN}, tp: 4, {SIZES}}}
"""


def said(*words: str, command: str = "performance") -> dict:
    return document(command, *words)


def expected(document: dict) -> dict:
    return document["projections"]["simulate"]["expected"]


def test_an_anchor_alone_gives_back_its_own_step(case: str) -> None:
    found = said("--anchor", case, "--anchor-step", "3.5")
    assert (expected(found)["low"], expected(found)["middle"], expected(found)["high"]) == (3.5, 3.5, 3.5)
    (used,) = found["own_runs"]["used"]
    assert used["measured_step_seconds"] == 3.5
    assert used["projected_step_seconds"] == found["projections"]["simulate"]["step_seconds"]


def test_flags_change_the_target_and_not_the_anchor(case: str) -> None:
    """Whether the file is named once or twice, and the step stands before it or behind it."""
    flags = ("--tp", "4", "--pp", "2", "--global-batch-size", "128")
    without = said("--config", case, *flags)
    once = said("--anchor", case, "--anchor-step", "2.5", *flags)
    twice = said("--anchor-step", "2.5", "--anchor", case, "--config", case, *flags)
    assert expected(once) == expected(twice)
    assert once["projections"]["simulate"]["step_seconds"] == without["projections"]["simulate"]["step_seconds"]
    assert expected(once)["middle"] > expected(without)["middle"]  # the run was slower than projected
    assert expected(once)["rests_on"].startswith("1 run of your own and ")


def test_a_second_anchor_narrows_and_the_same_one_does_not(case: str) -> None:
    def width(*words: str) -> float:
        found = expected(said("--config", case, "--micro-batch-size", "2", *words))
        return found["high"] / found["low"]

    other = put(Path(case).with_name("other.yaml"), CASE.replace("tp: 2", "tp: 4"))
    first, second = ("--anchor", case, "--anchor-step", "2.0"), ("--anchor", str(other), "--anchor-step", "2.4")
    assert width(*first, *second) < width(*first) < width()
    assert width(*first, *first) == width(*first)


def test_runs_of_a_table_teach_and_the_others_are_told(case: str, tmp_path) -> None:
    table = put(tmp_path / "runs.yaml", RUNS)
    found = said("--config", case, "--runs", str(table))
    assert [used["name"] for used in found["own_runs"]["used"]] == ["a", "b"]
    assert expected(found)["rests_on"].startswith("2 runs of your own and ")
    (left,) = found["own_runs"]["left"]
    assert left.startswith("c: ")
    out = told("performance", "--config", case, "--runs", table)
    says(out, "Own run a: 2.100 s measured", "Not used: c: ")
    assert out.count("Expected: ") == 1


def test_search_and_plan_take_the_runs_too(case: str) -> None:
    own = ("--anchor", case, "--anchor-step", "3.5")
    expects = expected(said(*own, "--tp", "4"))
    planned = said(*own, "--tp", "4", "--tokens", "1T", command="plan")
    (step,) = [each for each in planned["assumptions"] if each["name"] == "step_seconds"]
    ends = expects["low"], expects["middle"], expects["high"]
    assert (step["low"], step["value"], step["high"]) == pytest.approx(ends)
    fixed = [word for name in ("tp=4", "pp=1", "cp=1", "micro_batch_size=1") for word in ("--fix", name)]
    found = said(*own, *fixed, command="search")
    assert found["own_runs"]["used"][0]["measured_step_seconds"] == 3.5
    assert all(each["expected"]["rests_on"].startswith("1 run of your own") for each in found["best"])


def test_sweep_takes_the_runs_too(case: str, tmp_path) -> None:
    recipe = CASE.splitlines()[-1]
    grid = put(tmp_path / "grid.yaml", f"sweep: 1\nmodel: llama3.1_8b\nsystem: h100_sxm\ngpus: 16\n{recipe}\n")
    out = ("--out", str(tmp_path / "kept.jsonl"))
    (before,) = said(str(grid), *out, command="sweep")["best"]
    (after,) = said(str(grid), *out, "--anchor", case, "--anchor-step", "3.5", command="sweep")["best"]
    assert before["step_seconds"] == after["step_seconds"]
    assert before["expected.middle"] < after["expected.middle"] == pytest.approx(3.5)
    assert before["expected.low"] < before["expected.middle"] < before["expected.high"]


def test_exploring_does_not_forget_the_run(case: str) -> None:
    """One expectation, and what-if gains by the same posterior, which does not think that a slow run was bad luck."""
    own = ("--anchor", case, "--anchor-step", "3.5")
    found = said(*own, "--explore")
    assert expected(found)["middle"] == 3.5
    steps = [each for each in found["exploration"]["steps"] if each["interval"]]
    assert all(each["interval"][0] < each["gain"] < each["interval"][1] for each in steps)
    assert next(each for each in steps if each["change"] == "recompute everything")["gain"] < 0


def test_what_the_file_leaves_open_the_flags_say_of_both(tmp_path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text("".join(line for line in CASE.splitlines(True) if not line.startswith(("cluster", "gpus"))))
    flags = ("--anchor", str(path), "--anchor-step", "3.5", "--gpu", "h200", "--gpus", "32")
    assert expected(said(*flags))["middle"] == pytest.approx(3.5)


def test_python_gives_what_the_command_gives(case: str) -> None:
    target, anchor = (projector.project(config=case, **more) for more in ({"tp": 4}, {}))
    found = projector.expect(target, runs=[(anchor, 3.5)])
    same = expected(said("--anchor", case, "--anchor-step", "3.5", "--tp", "4"))
    assert (found.low, found.middle, found.high) == pytest.approx((same["low"], same["middle"], same["high"]))


@pytest.mark.parametrize(("words", "found"), tabled("refusals", "anchors"))
def test_half_an_anchor_is_refused(case: str, words: tuple[str, ...], found: str) -> None:
    words = tuple(case if word == "CASE" else word for word in words)
    assert found in "\n".join(refused("performance", *words))


def test_the_grade_of_a_figure_is_the_worst_that_holds_of_it(case: str) -> None:
    def grade(*words: str) -> str:
        return expected(said(*words))["grade"]

    assert grade("--config", case) == "measured elsewhere"
    assert grade("--anchor", case, "--anchor-step", "3.5") == "measured here"
    assert grade("--config", case, "--anchor", case, "--anchor-step", "3.5", "--gpu", "b200") == "measured elsewhere"

    out = " ".join(told("performance", "--config", case).split())
    says(out, "Evidence: measured elsewhere.", "uncertain by", "█", "measured runs of")
