"""``harness compare`` as a user runs it: logs, benchmark files, tables and ids; what it writes, says and refuses."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from asked import put, says
from tabled import tabled

from harness.cli import main
from tests.harness.conftest import run_yaml

sys.path.insert(0, str(Path(__file__).parent))
from logs_made import LOGS, write_log


def measured(name: str, step: float = 5.0) -> str:
    return run_yaml(name, "llama3_8b", 64, step, recipe="tp: 2, ", group="")


@pytest.fixture(autouse=True)
def wide(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    rng = np.random.default_rng(5)
    slow = np.concatenate([[20.0, 9.0, 7.0, 6.5, 6.2], 6.0 + 0.02 * rng.standard_normal(60), [15.0]])
    fast = np.concatenate([[18.0, 9.0, 7.0, 6.0, 5.9], 5.7 + 0.02 * rng.standard_normal(60)])
    return write_log(tmp_path / "slow.log", slow, timers=True), write_log(tmp_path / "fast.log", fast, timers=True)


def said(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["compare", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_two_logs_side_by_side(pair: tuple[Path, Path], tmp_path, capsys) -> None:
    out = tmp_path / "side"
    code, text, _ = said(capsys, *pair, "--gpu", "mi300x", "--out", out)
    assert code == 0
    sentence = text.splitlines()[1]
    assert sentence.startswith("fast is 5.3 % faster than slow (by step time: 5.")
    assert sentence.endswith(": significant).")
    (timer,) = [r for r in rows(text) if r[:2] == ["timer", "optimizer"]]
    assert float(timer[2]) > float(timer[3]) > 0.5
    (stable,) = [r for r in rows(text) if r[:1] == ["slow"] and len(r) == 9]
    assert stable[1:3] == ["61", "60"]
    says(text, "150.1 device", "11.000 to 2.136")
    assert {p.name for p in out.iterdir()} == {"compare.png", "compare.svg", "compare.md"}
    assert sentence.partition(" (")[0] in (out / "compare.md").read_text()


def test_the_pictures_hold_six_panels_and_the_same_runs_give_the_same_bytes(
    pair: tuple[Path, Path], tmp_path, capsys
) -> None:
    for name in ("one", "two"):
        assert said(capsys, *pair, "--gpu", "mi300x", "--out", tmp_path / name)[0] == 0
    pictures = [(tmp_path / name / "compare.svg").read_bytes() for name in ("one", "two")]
    assert pictures[0] == pictures[1]
    assert (tmp_path / "one" / "compare.png").read_bytes() == (tmp_path / "two" / "compare.png").read_bytes()
    words = " ".join(t.strip() for t in ElementTree.fromstring(pictures[0]).itertext())
    for title in ("step time", "tokens/s/GPU", "peak memory", "loss", "stability", "breakdown: timers"):
        assert title in words
    says(words, "A: slow", "B: fast")


def test_benchmark_files_without_a_model_still_compare(capsys, tmp_path) -> None:
    other = put(tmp_path / "other.json", (LOGS / "tprimat.json").read_text().replace("6.0,", "6.6,"))
    code, text, _ = said(capsys, LOGS / "tprimat.json", other, "--out", tmp_path / "side")
    assert code == 0
    says(text, "log (tprimat)", "no projected breakdown: the log does not say model")
    assert (tmp_path / "side" / "compare.png").exists()


REAL = tabled("refusals", "other_work")


@pytest.mark.parametrize(("first", "other", "reasons"), REAL)
def test_real_logs_of_other_work_have_no_winner(
    first: str, other: str, reasons: tuple[str, ...], shared: Path, capsys
) -> None:
    logs = shared / "logs_wild"
    if not logs.is_dir():
        pytest.skip("needs the logs of others beside the checkout")
    code, text, _ = said(capsys, logs / first, logs / other)
    assert code == 0
    sentence = " ".join(text.split()).removeprefix("Runs side by side ")
    assert sentence.startswith("No run can be called the faster: ")
    assert all(reason in sentence for reason in reasons)
    assert "% faster" not in text


def test_measured_runs_of_one_job_have_a_winner_and_those_of_two_machines_none(root: Path, capsys) -> None:
    measured = ("--measured", root / "measured" / "runs")
    code, text, _ = said(capsys, "pp-llama2-7b-mi300x-1f1b-interleaved", "pp-llama2-7b-mi300x-zbb", *measured)
    assert code == 0
    assert text.splitlines()[1].startswith("pp-llama2-7b-mi300x-zbb is 4.0 % faster than")


def test_ids_tables_and_logs_together(tmp_path, pair: tuple[Path, Path], capsys) -> None:
    table = tmp_path / "runs.yaml"
    table.write_text(measured("quiet").replace("step_seconds", "rel_std: 0.004, step_seconds") + measured("bare", 6.0))
    code, text, _ = said(capsys, "quiet", "bare", pair[0], "--runs", table, "--gpu", "mi300x")
    assert code == 0
    assert "cannot be stated" in text
    assert "in seconds per step" not in text, "other work is compared by throughput"
    assert "projected compute_s" in text
    both = said(capsys, table)
    assert both[0] == 0
    assert "quiet is 20.0 % faster than bare (by step time: 5 s against 6 s; significance cannot be stated" in both[1]


def test_two_files_of_one_name_are_told_apart(tmp_path, pair: tuple[Path, Path], capsys) -> None:
    (tmp_path / "again").mkdir()
    again = put(tmp_path / "again" / "slow.log", pair[1].read_text())
    code, text, _ = said(capsys, pair[0], again, "--gpu", "mi300x")
    assert code == 0
    assert f"again/slow is 5.3 % faster than {pair[1].parent.name}/slow" in text


def refused(capsys, out: Path, *arguments: object) -> list[str]:
    code, text, errors = said(capsys, *arguments, "--out", out)
    assert code == 2
    assert text == ""
    assert not out.exists()
    return errors.splitlines()


def test_every_mistake_at_once_and_nothing_written(pair: tuple[Path, Path], tmp_path, capsys) -> None:
    wrong = write_log(tmp_path / "wrong.log", np.full(20, 6.0), batch=256)
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 40)
    table = put(tmp_path / "runs.yaml", measured("quiet"))
    lines = refused(
        capsys, tmp_path / "side", pair[0], wrong, tmp_path / "binary.log", "quite", "--runs", table, "--gpu", "mi300x"
    )
    assert len(lines) == 3
    assert "wrong.log: line 50: global batch size: found 256, expected 128, as the arguments of line 3 say" in lines[0]
    assert "binary.log: found 'binary data'" in lines[1]
    assert lines[2] == "command line: RUN: found 'quite', expected an existing file, or a known name; nearest: quiet"


def test_one_run_or_too_many(pair: tuple[Path, Path], tmp_path, capsys) -> None:
    out = tmp_path / "side"
    assert "2 to 8 runs to compare" in refused(capsys, out, pair[0], "--gpu", "mi300x")[0]
    table = put(tmp_path / "many.yaml", "".join(measured(f"r{i}") for i in range(9)))
    assert "found '9 runs (r0, r1, " in refused(capsys, out, table)[0]
    code, _, errors = said(capsys, *pair, "--out", put(tmp_path / "file", ""))
    assert code == 2
    assert "--out: found" in errors
