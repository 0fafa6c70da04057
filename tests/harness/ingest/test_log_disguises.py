"""Every dialect under every disguise: the same figures, or none; never others."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from asked import put, refusal
from log_disguises import CUTS, DESTRUCTIVE, DISGUISES
from log_samples import samples
from tabled import tabled

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.numbers import NUMBER, finite, measured
from harness.evidence.ingest.steady import state_of
from projector.errors import InputError

_CLOSE = 0.02
SAMPLES = samples()
NUMBERED = re.compile(rf"took {NUMBER} ms")


@dataclass(frozen=True)
class Reading:
    """The runs of a log that have a steady step, and their rows."""

    dialect: str = ""
    records: tuple[Logged, ...] = ()
    runs: tuple[MeasuredRun, ...] = ()


def read(path: Path, text: str) -> Reading:
    path.write_text(text, newline="")
    try:
        dialect, records = read_records_of_log(path)
    except InputError:
        return Reading()
    try:
        runs = read_log(path, incomplete=True).runs
    except InputError:
        runs = ()
    return Reading(dialect, tuple(record for record in records if state_of(record) is not None), runs)


def seconds(record: Logged, like: Logged) -> float:
    """The steady step in the unit of ``like``: of a rate by what ``like`` prints of the same steps."""
    state, whole = state_of(record), state_of(like)
    if record.basis == like.basis:
        return state.value
    if record.basis == "samples":
        return state.value * float(like.batch[-1])
    return state.value * whole.value * float(like.tokens[-1])


def differences(found: Reading, whole: Reading) -> list[str]:
    """What ``found`` says otherwise than ``whole``."""
    if not found.records:
        return []
    if len(found.records) != len(whole.records):
        return [f"{len(found.records)} runs"]
    told = [] if found.dialect == whole.dialect else [f"dialect {found.dialect}"]
    for record, like in zip(found.records, whole.records, strict=True):
        expected = state_of(like)
        if abs(seconds(record, like) / expected.value - 1) > _CLOSE:
            told.append(f"{seconds(record, like):.6g} for {expected.value:.6g} {like.basis}")
        told += _settings(record, like)
    for run, like_run in zip(found.runs, whole.runs, strict=False):
        told += _row(run, like_run)
    return told


def _settings(record: Logged, like: Logged) -> list[str]:
    mine, theirs = ((one.stated.values if one.stated else {}) for one in (record, like))
    told = [f"{key}={value}" for key, value in mine.items() if _bare(value) != _bare(theirs.get(key))]
    told += [f"{key}={value}" for key, value in record.facts.items() if value != like.facts.get(key)]
    told += [f"{kind} {gib} GiB" for kind, gib in record.memory.items() if not _same(gib, like.memory.get(kind))]
    batches = {int(batch) for batch in record.batch} - {int(batch) for batch in like.batch} - {0}
    told += [f"batch {batch}" for batch in batches]
    return told + [f"length {record.seq_length}"] * (record.seq_length not in (None, like.seq_length))


def _bare(value: object) -> str:
    return str(value).replace(",", "")


def _same(value: float, like: float | None) -> bool:
    return like is not None and abs(value / like - 1) < _CLOSE


def _row(run: MeasuredRun, like: MeasuredRun) -> list[str]:
    stated = (("gpus", run.gpus, like.gpus), ("model", run.model, like.model), ("recipe", run.recipe, like.recipe))
    told = [f"{name} {mine}" for name, mine, theirs in stated if mine and mine != theirs]
    for mine, theirs in (
        (run.measured.step_seconds, like.measured.step_seconds),
        (run.measured.tgs, like.measured.tgs),
    ):
        if mine and theirs and not _same(mine, theirs):
            told.append(f"{mine:.6g} for {theirs:.6g}")
    return told


def _lost(run: MeasuredRun, like: MeasuredRun) -> bool:
    return run.gpus != like.gpus or (run.recipe is None) != (like.recipe is None)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.night)])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_disguised_log_says_the_same_or_nothing(name: str, every: int, tmp_path: Path) -> None:
    """Each dialect under an eighth of the disguises, each disguise on an eighth of the dialects; all of them at night."""
    first = list(SAMPLES).index(name) % every
    whole = read(tmp_path / "a.log", SAMPLES[name])
    wrong = {}
    for disguise, change in list(DISGUISES.items())[first::every]:
        found = read(tmp_path / "a.log", change(SAMPLES[name]))
        told = differences(found, whole)
        if whole.records and not found.records and not disguise.startswith(DESTRUCTIVE):
            told = ["not read"]
        if disguise.startswith("prefix") and any(map(_lost, found.runs, whole.runs)):
            told += ["its configuration is not read"]
        if told:
            wrong[disguise] = told[:5]
    assert not wrong


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.night)])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_log_says_what_its_whole_lines_say(name: str, every: int, tmp_path: Path) -> None:
    """However a log was cut, in the middle of a number or of its arguments, what is left is read line by line."""
    for cut in CUTS[list(SAMPLES).index(name) % every :: every]:
        torn, without, with_it = (read(tmp_path / "a.log", text) for text in cut(SAMPLES[name]))
        told = [differences(torn, expected) for expected in (without, with_it)]
        assert not all(told), told


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.night)])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_figure_in_which_a_log_ends_is_none(name: str, every: int, tmp_path: Path) -> None:
    text = SAMPLES[name].rstrip("\n")
    ends = [
        end for end in range(text.rindex("\n") + 2, len(text)) if text[end - 1].isdigit() and text[end] in "0123456789."
    ]
    whole = read(tmp_path / "a.log", text + "\n")
    for end in ends[::every]:
        found = read(tmp_path / "a.log", text[:end])
        for record, like in zip(found.records, whole.records, strict=False):
            for kind in ("value", "tokens", "tflops", "loss"):
                mine, theirs = ([*getattr(each, kind)[record.steps - 1 : record.steps]] for each in (record, like))
                assert mine == pytest.approx(theirs, rel=1e-3) or not mine[:1] or not mine[0] > 0, text[end - 40 : end]


@pytest.mark.parametrize(("text", "count", "time"), tabled("readers", "a_comma_is_no_decimal_point"))
def test_a_comma_is_no_decimal_point(text: str, count: float | None, time: float | None) -> None:
    assert (finite(text), measured(text)) == (count, time)
    assert (NUMBERED.search(f"took {text} ms") is None) == (text == "7.000,5")


def test_what_is_left_of_a_list_of_arguments_is_none(tmp_path: Path) -> None:
    """A size that stands before the first line of the log would be taken for its default."""
    text = SAMPLES["megatron_plain"]
    found = read(tmp_path / "a.log", text[text.index("group_query_attention") :])
    (record,) = found.records
    assert (record.arguments, found.runs[0].recipe) == ([], None)
    assert "begins before the log" in record.notes[0]


def test_micro_batches_of_which_nobody_says_how_many_make_a_step_are_no_steps(tmp_path: Path) -> None:
    text = SAMPLES["xtuner"].replace("accumulative_counts", "another")
    refusal(read_log, _written(tmp_path, text), match="accumulative_counts")


def test_counts_that_may_be_tokens_or_samples_are_no_rate(tmp_path: Path) -> None:
    text = SAMPLES["mllog_tokens"].replace("max_sequence_length", "another")
    text = "".join(line for line in text.splitlines(keepends=True) if "throughput" not in line)
    _, (record,) = read_records_of_log(_written(tmp_path, text))
    assert (record.steps, "tokens or samples" in record.notes[0]) == (0, True)


def _written(folder: Path, text: str) -> Path:
    return put(folder / "a.log", text)
