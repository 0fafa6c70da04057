"""Damaged logs: a run or one clear error, in bounded time, whatever was done to the bytes."""

import re
from pathlib import Path

import pytest
from asked import put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_mutations import mutate
from tabled import tabled

from harness.evidence.dataset import parse
from harness.evidence.ingest.command import load
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.logs import registry
from harness.evidence.ingest.logs.dialect import Dialect, read_all
from harness.evidence.run_text import to_yaml
from projector.errors import InputError
from projector.io.documents import parse_yaml

LOGS = sorted(Path(__file__).resolve().parents[2].joinpath("data", "logs").iterdir())
RECIPE = "{model: llama3.1_8b, gpu: mi300x, recipe: {micro_batch_size: 2, seq_length: 8192, global_batch_size: 128}}"


def survives(data: bytes, name: str, folder: Path, recipe: Path | None) -> str:
    path = put(folder / f"damaged{Path(name).suffix}", data)
    try:
        made = load(path, None, read_context(recipe))
    except InputError as error:
        problems = error.problems
        outcome = "refused"
    else:
        for run in made.runs:
            seconds = run.measured.step_seconds
            assert seconds is None or 0 < seconds < float("inf")
        if all(run.gpu and run.gpus for run in made.runs) and made.logs:
            again, wrong = parse(parse_yaml(to_yaml(made.runs), "again"), "again")
            assert not wrong
            assert [run.measured for run in again] == [run.measured for run in made.runs]
        outcome = "read"
    if outcome == "refused":
        assert problems
        assert all(problem.where and problem.expected for problem in problems)
    return outcome


HOSTILE = tabled("readers", "log_fuzz_units")


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_long_line_of_anything_is_read(unit: str, tmp_path: Path) -> None:
    """No pattern may take longer than in proportion to its line: a quadratic one would take hours here."""
    line = (unit * (2**17 // len(unit))).encode()
    head = (LOGS[0].parent / "megatron_plain.log").read_bytes()
    survives(head + line + b"\n" + line[: len(line) // 2], "x.log", tmp_path, None)
    for dialect in registry.LINES:
        assert list(dialect.events([(1, line.decode()), (2, "end")])) is not None
        assert dialect.weigh(line.decode()) >= 0


@pytest.mark.parametrize("dialect", read_all(), ids=lambda dialect: dialect.name)
def test_a_step_that_may_stand_anywhere_opens_with_no_run_of_anything(dialect: Dialect) -> None:
    """Each place of a line would look through all that follows: slow in a long line that holds a URL."""
    assert not [each for each in dialect.step_patterns.values() if re.match(r"(?:\(\?[=:!])?\.[*+{]", each.pattern)]


@given(text=st.text(max_size=300), unit=st.sampled_from(HOSTILE), number=st.integers(-1, 10**30))
def test_no_dialect_raises_for_any_text(text: str, unit: str, number: int) -> None:
    lines = [text, f"{unit}{text}", unit.replace("1", str(number)) + "\n", f"{unit}{unit}|", text[::-1] + unit]
    for dialect in registry.LINES:
        assert list(dialect.events(enumerate(lines, 1))) is not None
        assert all(dialect.weigh(line) in (0, 1, 2) for line in lines)


def sweep(count: int, folder: Path) -> dict[str, int]:
    recipe = put(folder / "recipe.yaml", RECIPE)
    outcomes = {"read": 0, "refused": 0}
    for seed in range(count):
        log = LOGS[seed % len(LOGS)]
        beside = recipe if seed % 2 else None
        outcomes[survives(mutate(log.read_bytes(), seed), log.name, folder, beside)] += 1
    return outcomes


def test_damaged_logs_give_a_run_or_one_clear_error(tmp_path: Path) -> None:
    assert min(sweep(100, tmp_path).values()) > 3


@pytest.mark.night
def test_ten_thousand_damaged_logs(tmp_path: Path) -> None:
    assert sum(sweep(10_000, tmp_path).values()) == 10_000


@given(text=st.text(max_size=400), log=st.sampled_from([log for log in LOGS if log.suffix == ".log"]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_before_a_log_changes_nothing_or_is_refused(text: str, log: Path, tmp_path: Path) -> None:
    survives(text.encode("utf-8", "surrogatepass") + b"\n" + log.read_bytes(), log.name, tmp_path, None)
