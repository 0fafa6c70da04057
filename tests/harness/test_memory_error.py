"""The tolerance of the memory verdict: quantiles worked out by hand, real peaks, what the verdicts become, the command."""

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from asked import refusal

from harness.cli import main
from harness.contracts.runs import MeasuredRun
from harness.evaluation.peaks import judged, peaks, sized, undecided
from harness.evidence import dataset
from harness.score.memory_error import MemoryOutcome, Peak, Sized, held_out, orders, tolerances
from projector.frameworks import resolve
from projector.memory.tolerance import TOLERANCE, kind
from tests.workloads import workload

RUNS = Path(__file__).resolve().parents[2] / "measured" / "runs"


def peak(error: float, source: str = "a", kind: str = "ddp") -> Peak:
    return Peak(run_id="r", source=source, gpu="g", family="f", kind=kind, counts="device", error=error)


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    """All rows: peaks of sources that nobody had tuned on are farther off than the open ones, and a new run is like them."""
    return [run for path in sorted(RUNS.glob("*.yaml")) for run in dataset.read(path)]


@pytest.fixture(scope="module")
def found(runs: list[MeasuredRun]) -> list[Peak]:
    return peaks(runs)


@pytest.fixture(scope="module")
def outcomes(runs: list[MeasuredRun]) -> list[MemoryOutcome]:
    return judged([run for i, run in enumerate(runs) if i % 8 == 0 or run.measured.status != "ok"])


def test_the_quantile_leaves_room_for_one_more_row() -> None:
    """99 peaks of one cell, 0.01 to 0.99: level 0.9 · 100 / 99 is the ninetieth, whichever their signs."""
    made = tolerances([peak((-1) ** i * i / 100) for i in range(1, 100)])
    assert made == {"other": 0.90, "ddp": 0.90}


def test_a_long_table_weighs_as_ten_rows() -> None:
    many = [peak(0.01, "many") for _ in range(1000)]
    few = [peak(0.5, "few") for _ in range(10)]
    assert tolerances([*many, *few])["other"] == 0.5
    assert tolerances([*many, *few[:1]])["other"] == 0.01


def test_no_single_source_moves_it() -> None:
    """Ten rows each of eight sources at 0.1: a ninth changes nothing however far off it is, two do."""
    sound = [peak(0.1, str(i)) for i in range(8) for _ in range(10)]
    odd, other = ([peak(3.0, name) for _ in range(500)] for name in ("odd", "other"))
    assert tolerances([*sound, *odd])["other"] == 0.1
    assert tolerances([*sound, *odd, *other])["other"] == 3.0


def test_peaks_whose_kind_or_adapters_nobody_states_are_left_out(runs: list[MeasuredRun], found: list[Peak]) -> None:
    by_id = {run.id: run for run in runs}
    measured = [by_id[each.run_id] for each in found]
    assert all(run.measured.memory_kind or run.measured.failed_allocation_gib for run in measured)
    assert {each.source for each in found if each.source.startswith("mlperf")} == {"mlperf"}
    assert not any("lora " in text or "recompute unknown" in text for run in measured for text in run.assumed)
    assert not any(run.doubt for run in measured)


def test_few_peaks_have_no_tolerance_of_their_own() -> None:
    rare = [peak(0.3, kind="zero") for _ in range(5)]
    assert "zero" not in tolerances([*rare, *(peak(0.1) for _ in range(50))])
    assert tolerances([peak(0.1)])["other"] == math.inf
    assert tolerances([])["other"] == math.inf


def test_a_kind_of_few_sources_is_no_narrower_than_all() -> None:
    """One code's peaks, however many and near, are no proof for another's; wider they may be. Submitters of MLPerf Training
    run one code."""
    known = [peak(0.1, str(i)) for i in range(8) for _ in range(10)]
    for source in ("a", "b"):
        near = [peak(0.01, source, "adapters") for _ in range(30)]
        assert tolerances([*known, *near])["adapters"] == 0.1
    assert tolerances([*known, *(peak(0.5, "a", "planned") for _ in range(30))])["planned"] == 0.5
    spread = [peak(0.01, source, "adapters") for source in "abcd" for _ in range(10)]
    assert tolerances([*known, *spread])["adapters"] == 0.01


def test_layers_that_nobody_counted_stand_apart() -> None:
    """Their largest error is their tolerance, however few they are; nobody else's moves, nor theirs with others'."""
    known = [peak(0.1, str(i)) for i in range(8) for _ in range(10)]
    made = tolerances([*known, peak(-0.4, kind="new"), peak(0.3, kind="new")])
    assert made == tolerances(known) | {"new": 0.4}
    assert tolerances([peak(0.7), *known, peak(0.4, kind="new")])["new"] == 0.4


def test_the_kind_follows_from_the_layers() -> None:
    def of(model: str) -> str:
        return kind(resolve(workload(model, 64), "nvidia"))

    assert {of(name) for name in ("nemotron3_ultra", "deepseek_v4_flash", "kimi_k3")} == {"new"}
    assert "new" not in {of(name) for name in ("deepseek_v3", "gpt_oss_120b", "llama3_8b")}


def test_a_source_is_judged_by_the_others() -> None:
    rows = [peak(0.1, "good") for _ in range(50)] + [peak(0.4, "bad") for _ in range(50)]
    assert held_out(rows) == {"bad": (0, 50), "good": (50, 50)}


def test_the_shipped_tolerance_is_what_the_command_fits(found: list[Peak]) -> None:
    made = tolerances(found)
    assert made.keys() == TOLERANCE.keys()
    for name, value in made.items():
        assert TOLERANCE[name] == pytest.approx(value, abs=0.012), f"{name}: run python -m harness tolerance"


def test_nine_of_ten_peaks_are_inside(found: list[Peak]) -> None:
    """Of all sources but one, every source weighing the same."""
    assert len(found) >= 165
    sources: dict[str, list[bool]] = defaultdict(list)
    for each in found:
        sources[each.source].append(abs(each.error) <= TOLERANCE.get(each.kind, TOLERANCE["other"]))
    share = sorted(sum(inside) / len(inside) for inside in sources.values())[1:]
    assert sum(share) / len(share) >= 0.9


def test_blocks_that_failed_are_measured_peaks(found: list[Peak], runs: list[MeasuredRun]) -> None:
    """Compiled steps: what the rank kept and the block that it could not have, against the plan."""
    blocks = [each for each in found if each.counts == "block"]
    assert len(blocks) >= 35
    assert {each.kind for each in blocks} == {"planned"}
    assert sum(abs(each.error) for each in blocks) / len(blocks) <= 0.07
    assert all(r.measured.status == "out-of-memory" for r in runs if r.measured.failed_allocation_gib)


def test_what_is_wrong_becomes_too_close(outcomes: list[MemoryOutcome]) -> None:
    """Nearly every wrong verdict says so, and three of four stay sure."""
    wrong = [each for each in outcomes if not each.right]
    sure = [each for each in wrong if not each.close]
    assert len(sure) <= 3
    assert sum(each.close for each in outcomes) <= 0.25 * len(outcomes)
    failed = [each for each in outcomes if not each.ran]
    assert all(each.right or each.close for each in failed)


def test_the_order_of_memory_within_groups(runs: list[MeasuredRun]) -> None:
    """By hand: of three pairs one is reversed; a lone peak and another kind of count are compared with nothing."""

    def of(measured: float, projected: float, group: str = "a", counts: str = "device") -> Sized:
        return Sized(group=group, counts=counts, measured=measured, projected=projected)

    three = [of(10, 30), of(20, 20), of(40, 50)]
    (made,) = orders([*three, of(5, 90, "b"), of(5, 90, counts="reserved")])
    assert (made.group, made.rows, made.pairs) == ("a", 3, 3)
    assert made.agreement == pytest.approx(2 / 3)
    assert made.tau == pytest.approx(1 / 3)
    assert orders([of(10, 3), of(10.05, 9)])[0][2:] == (None, None, 0)
    assert orders([]) == []

    measured = orders(sized(runs))
    pairs = sum(each.pairs for each in measured)
    assert pairs >= 300
    assert sum((each.agreement or 0.0) * each.pairs for each in measured) / pairs >= 0.9


def test_the_command(capsys) -> None:
    assert main(["tolerance", str(RUNS / "megatron_lm.yaml"), "--json"]) == 0
    tables = {table["title"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert {
        "Tolerance", "Coverage of sources left out", "Does it fit?", "Order of memory within groups",
    } <= tables.keys()  # fmt: skip


def test_a_block_is_a_positive_number(tmp_path) -> None:
    rows = yaml.safe_load((RUNS / "maxtext_mi355x.yaml").read_text())
    row = next(row for row in rows if "failed_allocation_gib" in row["measured"])
    row["measured"]["failed_allocation_gib"] = -1.0
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump([row]))
    assert refusal(dataset.read, tmp_path / "bad.yaml").problems[0].key.endswith("failed_allocation_gib")


def test_what_a_row_or_its_projection_guesses_is_no_peak_to_be_right_about() -> None:
    """The same rule for the tolerance and for the memory errors of a report."""
    assert not undecided(["precision=bf16", "recompute_granularity=none", "vpp=1 (not stated)"])
    for guess in (
        "recompute unknown (a message)",
        "16 layers, seq_length=8192 (x)",
        "recompute_granularity=full (does not fit without)",
    ):
        assert undecided([guess])
