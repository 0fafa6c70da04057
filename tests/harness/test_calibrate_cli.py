"""``harness calibrate``: tables of the posterior, the file it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from projector.posterior import parse

MODELS = ("llama3_8b", "mixtral_8x7b", "llama2_7b", "qwen3_8b", "gpt3_5b", "nemotron4_15b")

RUN = """\
- id: {model}-{gpu}-{i}
  source: {{title: made up by {model} {gpu}, kind: table}}
  gpu: {gpu}
  gpus: 8
  stack: {{framework: megatron-lm}}
  model: {model}
  recipe: {{tp: 2, micro_batch_size: 1, global_batch_size: {batch}, seq_length: 4096}}
  measured: {{step_seconds: {step}, tgs: {tgs}}}
"""


def run(model: str, gpu: str, i: int, slower: float) -> str:
    batch, step = 64 * (i + 1), 5.0 * (i + 1) * slower
    return RUN.format(model=model, gpu=gpu, i=i, batch=batch, step=step, tgs=batch * 4096 / step / 8)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six families on three GPUs, each of a source of its own: enough for an interval."""
    text = [
        run(model, gpu, i, 1.0 + 0.05 * j)
        for j, model in enumerate(MODELS)
        for gpu in ("h100_sxm", "b200", "mi300x")
        for i in range(2)
    ]
    path = tmp_path / "runs.yaml"
    path.write_text("".join(text))
    return path


def test_it_shows_where_stacks_differ_and_writes_a_file_that_reads_back(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out, looks = tmp_path / "posterior.json", tmp_path / "looks.csv"
    assert main(["first-look", str(runs), "--out", str(looks), "--known", str(tmp_path / "none.csv")]) == 0
    given = ["calibrate", "--runs", str(runs), "--looks", str(looks)]
    assert main([*given, "--judge", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for title in ("What a new source should expect", "What runs of one's own add", "Where stacks differ"):
        assert title in said
    written = out.read_text()
    found = parse(written, str(out))
    assert {"h100_sxm", "b200", "mi300x", "megatron-lm"} <= set(found.counts)
    assert found.evidence["rows"] == "36"
    assert main([*given, "--against", str(out)]) == 0
    assert "PASS" in capsys.readouterr().out
    out.write_text(written.replace('"tail": [', '"tail": [9'))
    assert main([*given, "--against", str(out)]) == 1


def test_unknown_gpus_write_nothing(project_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = project_folder / "measured" / "runs" / "tiny.yaml"
    out = tmp_path / "posterior.json"
    assert main(["calibrate", "h200", "--runs", str(tiny), "--out", str(out)]) == 2
    assert "h200" in capsys.readouterr().err
    assert not out.exists()
