"""Publishers from titles, runs that their own sources doubt, and first looks that stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness import cli
from harness.calibrate import folds, observe
from harness.contracts import frame
from harness.contracts.runs import MeasuredRun, Prediction
from harness.contracts.sources import publisher
from harness.evaluation import evaluate, first_look
from harness.evaluation.evaluate import Selected
from harness.evidence import dataset, suite
from harness.predictors.protocol import gpu_levels
from projector.errors import InputError


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("mlcommons/training_results_v5.1 Cisco/results/hpf_n16/llama2_70b_lora/result_0.txt @441d", "mlperf cisco"),
        ("mlcommons/training_results_v5.0 @ 0fdc : AMD/results/MI300X_pytorch/llama2/result_1.txt", "mlperf amd"),
        ("Someone/training_results_v6.0 (fork of mlcommons/training_results_v6.0): Cisco/results/x/", "mlperf cisco"),
        ("IBM+CoreWeave/training_results_v5.0 IBM+CoreWeave/results/carina/llama31_405b/", "mlperf ibm+coreweave"),
        ("InternLM/InternEvo doc/en/train_performance.md @c628a8c", "internlm/internevo"),
        ("AMD-AGI/Primus PR #1011 (2026-08-21) https://github.com/AMD-AGI/Primus/pull/1011", "amd-agi/primus"),
        ("https://github.com/pytorch/torchtitan/pull/1690", "pytorch/torchtitan"),
        ("SimuMax v1.2 results, github MooreThreads/SimuMax docs/b200/summary.json", "moorethreads/simumax"),
        ("docs.nvidia.com/nemo-framework/user-guide/latest/performance.html", "nvidia/nemo"),
        ("NVIDIA/NeMo docs/source/performance/performance_summary.md @e2de", "nvidia/nemo"),
        ("Korthikanti et al. 2022 arXiv:2205.05198 Table 5", "arxiv:2205.05198"),
        ('GitHub markdown ("MI350X Training Results", tested 2026-01-08)', "mi350x training results"),
        ("our own runs, March", "our own runs"),
        ("", ""),
    ],
)
def test_publishers(title: str, expected: str) -> None:
    assert publisher(title) == expected


@dataclass(frozen=True)
class Half:
    """Projects half of the measured time."""

    name: str = "simulate"

    def predict(self, run: MeasuredRun) -> Prediction:
        return Prediction(status="ok", step_seconds=0.5 * (run.measured.step_seconds or 1.0))

    levels = staticmethod(gpu_levels)


@pytest.fixture
def runs(project_folder: Path) -> list[MeasuredRun]:
    return list(suite.load(project_folder / "suites" / "tiny.yaml").runs)


def test_a_doubted_run_stands_apart_and_teaches_nothing(runs: list[MeasuredRun]) -> None:
    doubted = replace(runs[0], doubt='"an outlier", its source says')
    far = replace(doubted, measured=replace(doubted.measured, step_seconds=1e3, tgs=1.0))
    made = [evaluate.evaluate([Selected("s", r) for r in (one, *runs[1:])], [Half()]) for one in (doubted, far)]
    assert made[0].rows == made[1].rows
    assert {row.run_id for row in made[0].doubted} == {doubted.id}
    assert doubted.id not in {row.run_id for row in made[0].rows}
    assert made[0].doubted[0].error == pytest.approx(1.0)
    assert made[0].facts[doubted.id].doubt == doubted.doubt
    without = evaluate.evaluate([Selected("s", r) for r in runs[1:]], [Half()])
    assert without.rows == made[0].rows


@pytest.mark.parametrize("text", ["''", "' '", "7", "[a]"])
def test_a_doubt_is_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.yaml"
    head = "- {id: a, source: {title: t}, gpu: '', gpus: 0, stack: {framework: ''}, measured: {}, problem: no gpu"
    path.write_text(f"{head}, doubt: {text}}}\n")
    with pytest.raises(InputError, match="in words"):
        dataset.read(path)
    path.write_text(head + ", doubt: 'footnoted \"regression\"'}\n")
    run = dataset.read(path)[0]
    assert run.doubt == 'footnoted "regression"'
    dataset.write([run], path)
    assert dataset.read(path) == [run]


def test_rows_of_one_publisher_are_left_out_together(runs: list[MeasuredRun]) -> None:
    titles = ("a/b one.md", "A/b two.md", "c/d", "e/f")
    named = [replace(r, source=replace(r.source, title=title)) for r, title in zip(runs, titles, strict=False)]
    made = evaluate.evaluate([Selected("s", r) for r in named], [Half()])
    seen = observe.of_rows(frame.part(frame.of(made.rows, made.facts), fit="uncalibrated"))
    assert {folds.by_source(o) for o in seen} == {"a/b", "c/d", "e/f"} & {publisher(r.source.title) for r in named}


def test_a_look_is_made_once(runs: list[MeasuredRun], tmp_path: Path) -> None:
    path = tmp_path / "looks" / "first_look.csv"
    measured = first_look.due(runs, ())
    made = first_look.look(measured[:1], Half(), "r1")
    first_look.append(path, made)
    before = path.read_text()
    assert first_look.read(path)[0].error == pytest.approx(1.0)
    seen = [each.run_id for each in first_look.read(path)]
    assert measured[0].id not in {run.id for run in first_look.due(runs, seen)}
    first_look.append(path, first_look.look(measured[1:], Half(), "r2"))
    assert path.read_text().startswith(before)
    assert [each.run_id for each in first_look.read(path)] == [run.id for run in measured]


def test_an_interval_that_says_nothing_is_neither_in_nor_out(runs: list[MeasuredRun]) -> None:
    (made,) = first_look.look(first_look.due(runs, ())[:1], Half(), "")
    assert replace(made, low=1.0, high=1e9).inside is True
    assert replace(made, low=None).inside is None


def test_the_command_keeps_what_it_saw(runs: list[MeasuredRun], tmp_path: Path, capsys) -> None:
    table, out = tmp_path / "runs.yaml", tmp_path / "first.csv"
    dataset.write(runs, table)
    call = ["first-look", str(table), "--out", str(out), "--known", str(tmp_path / "none.csv")]
    assert cli.main(call) == 0
    assert "By source" in capsys.readouterr().out
    kept = out.read_bytes()
    assert cli.main(call) == 0
    assert out.read_bytes() == kept
    out.write_text("run_id,error\na,b\n")
    assert cli.main(call) == 2
    assert str(out) in capsys.readouterr().err
