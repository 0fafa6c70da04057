"""``harness trace`` as a user runs it, on a published trace and on bad ones."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.trace.study import study
from tests.harness.trace.made import Made, stepped

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT.parent / "shared" / "traces" / "kineto_deepseek_train.json"
CONFIG = ROOT / "examples" / "deepseek_v3_h800.yaml"
published = pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published trace is not beside the checkout")


@published
def test_the_published_trace_adds_up_to_what_is_known_of_it() -> None:
    """deepseek-ai/profile-data: sums over three streams, by kernel."""
    found = study([PUBLISHED])
    busy = {row.kind: 1e3 * row.busy for row in found.rows}
    assert 1e3 * found.part.seconds == pytest.approx(129.0, abs=0.05)
    assert 1e3 * found.account.busy == pytest.approx(128.5, abs=0.05)
    assert busy["expert exchange: combine"] == pytest.approx(49.4, abs=0.1)
    assert busy["expert exchange: dispatch"] == pytest.approx(31.0, abs=0.1)
    assert busy["expert exchange: wait"] == pytest.approx(32.6, abs=0.1)
    assert busy["attention"] == pytest.approx(4.9 + 15.1 + 1.9, abs=0.1)
    exchanged = sum(1e3 * row.exposed for row in found.rows if row.kind.startswith("expert exchange"))
    assert exchanged == pytest.approx(4.2, abs=0.1)
    assert found.unknown_share < 0.03


@published
def test_the_published_trace_beside_its_projection(capsys, tmp_path) -> None:
    overlay = tmp_path / "both.json"
    argv = ["trace", str(PUBLISHED), "--config", str(CONFIG), "--json", "--overlay", str(overlay)]
    assert main(argv) == 0
    said = json.loads(capsys.readouterr().out)
    assert any("4 of 480 forward and 4 of 480 backward layer passes" in line for line in said["lines"])
    events = json.loads(overlay.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "attention"]
    assert len(kernels) == 16
    assert {event["pid"] for event in events if event.get("cat") == "forward"} == set(range(16))


def test_a_terminal_of_80_columns(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = stepped([500, 510, 490]).write(tmp_path / "t.json.gz")
    assert main(["trace", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("attention") for line in lines)


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["{one}", "--step", "99"], "--step: found 99, expected 10, 11"),
        (["{one}", "{one}"], "rank: found 0, expected one file a rank"),
        (["{one}", "{other}"], "world_size: found 4, expected 2"),
        (["{none}"], "none.json does not exist"),
        (["{one}", "--overlay", "{none}"], "--overlay"),
        (["{one}", "--record", "{none}"], "--record"),
    ],
)
def test_bad_input_is_one_clear_error(argv: list[str], wanted: str, tmp_path, capsys) -> None:
    files = {
        "one": stepped([500, 500]).write(tmp_path / "one.json"),
        "other": Made(rank=1, world=4, events=stepped([500]).events).write(tmp_path / "other.json"),
        "none": tmp_path / "none.json",
    }
    assert main(["trace", *(word.format(**files) for word in argv)]) == 2
    said = capsys.readouterr().err
    assert wanted in said
    assert "Traceback" not in said
    assert not files["none"].exists()


def test_inference_is_said_to_be_no_step(tmp_path, capsys) -> None:
    made = Made()
    made.kernel("flash::flash_fwd_kernel<x>", 100, 50)
    path = made.write(tmp_path / "t.json")
    assert main(["trace", str(path), "--config", str(CONFIG)]) == 0
    assert "no backward pass" in capsys.readouterr().out


@pytest.mark.parametrize(("cluster", "said"), [("h100_sxm", False), ("mi355x", True)])
def test_a_projection_of_another_device_is_named(cluster: str, said: bool, tmp_path, capsys) -> None:
    path = stepped([500, 510, 490]).write(tmp_path / "t.json")
    argv = ["trace", str(path), "--model", "llama3_8b", "--cluster", cluster, "--gpus", "8"]
    sizes = ["--micro-batch-size", "1", "--global-batch-size", "8", "--seq-length", "4096"]
    assert main([*argv, *sizes]) == 0
    out = capsys.readouterr().out
    assert (f"the projection of {cluster}" in out) is said
    assert "Projected" in out
