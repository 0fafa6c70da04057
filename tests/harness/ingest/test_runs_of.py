"""One function reads the runs of any file, and every command that names runs asks it."""

import json
from pathlib import Path

import command_line
import pytest
from asked import LOGS, put, refusal
from tabled import sample

from harness.__main__ import main
from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.context import Context, read_context
from harness.evidence.run_text import to_yaml
from harness.evidence.runs_of import runs_of, runs_of_all
from projector.cli import run as projector

SAID = read_context(None, "mi300x", 8)


def only(path: Path, said: Context | None = None) -> MeasuredRun:
    (run,) = runs_of(path, said)
    return run


def test_a_flag_says_what_the_log_does_not() -> None:
    assert only(LOGS / "megatron_a.log").problem == "gpu not stated"
    run = only(LOGS / "megatron_a.log", SAID)
    assert (run.gpu, run.gpus, run.problem) == ("mi300x", 8, "")
    refusal(runs_of, LOGS / "megatron_a.log", read_context(None, "mi300x", 16), match="16, as --gpus")


def test_flags_that_no_log_takes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "strict.yaml").write_text(to_yaml([only(LOGS / "megatron_a.log", SAID)]))
    refusal(runs_of_all, [tmp_path / "strict.yaml"], SAID, match="no log")
    assert len(runs_of_all([tmp_path / "strict.yaml", LOGS / "torchtitan.log"], read_context(None, "mi300x"))) == 2


def test_a_log_is_evaluated_like_a_table(tmp_path: Path) -> None:
    log = str(LOGS / "megatron_a.log")
    assert main(["run", "--runs", log, "--gpu", "mi300x", "--no-gate", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["rows"][0]["status"] == "ok"


def test_a_log_is_an_anchor_that_tells_its_own_step(tmp_path: Path) -> None:
    """Whatever its dialect, and as a table of one run; flags change the target and not the anchor."""
    log = LOGS / "torchtitan.log"
    run = only(log)
    (tmp_path / "strict.yaml").write_text(to_yaml([run]))
    found = [anchored("--anchor", str(path)) for path in (log, tmp_path / "strict.yaml")]
    for one, expected in found:
        assert one["measured_step_seconds"] == run.measured.step_seconds == pytest.approx(expected)
    changed, expected = anchored("--anchor", str(log), "--micro-batch-size", "1")
    assert changed["projected_step_seconds"] == found[0][0]["projected_step_seconds"]
    assert expected != pytest.approx(run.measured.step_seconds)


def anchored(*words: str) -> tuple[dict[str, float], float]:
    """The one run that was used, and the expected step of the target."""
    document = command_line.document("projector", "performance", *words)
    (used,) = document["own_runs"]["used"]
    return used, document["projections"]["simulate"]["expected"]["middle"]


def test_an_anchor_that_tells_no_step_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "gpu not stated" in command_line.refused("projector", "performance", "--anchor", LOGS / "megatron_a.log")
    (tmp_path / "two.yaml").write_text(to_yaml([only(LOGS / "megatron_a.log", SAID), only(LOGS / "torchtitan.log")]))
    assert projector(["performance", "--anchor", str(tmp_path / "two.yaml")]) == 2
    assert "2 runs (megatron_a, torchtitan" in capsys.readouterr().err


TITAN = sample("runs_of.toml")
MAXTEXT = "model_name: llama3.1-8b\nper_device_batch_size: 2\nmax_target_length: 8192\nremat_policy: full\n"
FACTORY = (
    "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\ndo_train: true\ncutoff_len: 8192\n"
    "per_device_train_batch_size: 2\ngradient_accumulation_steps: 1\nbf16: true\npacking: true\ndataset: x\n"
    "template: llama3\noutput_dir: x\n"
)
TUNE = (
    "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\nbatch_size: 2\ngradient_accumulation_steps: 1\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 8192, path: x}\n"
    "dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}\noptimizer: {_component_: torch.optim.AdamW}\n"
    "dtype: bf16\nenable_activation_checkpointing: true\n"
)
STEPS = "".join(
    f"[titan] 2025-01-0{1 + i // 9} INFO - step: {i:2d}  loss: 8.{i:02d}  memory: 95.23GiB(49.6%)  tps: 5,461  mfu: 41.00%\n"
    for i in range(1, 31)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [("job.toml", TITAN), ("maxtext.yml", MAXTEXT), ("factory.yaml", FACTORY), ("tune.yaml", TUNE)],
    ids=lambda value: value if "." in value and len(value) < 20 else "",
)
def test_the_batch_of_a_configuration_follows_from_the_gpus(name: str, text: str, tmp_path: Path) -> None:
    """So many samples a rank: the number of GPUs makes the batch, wherever it is said; without it nothing does."""
    (tmp_path / name).write_text(text)
    log = put(tmp_path / "train.log", STEPS)
    for gpus in (8, 64):
        run = only(log, read_context(tmp_path / name, "h100_sxm", gpus))
        assert run.recipe.global_batch_size == 2 * gpus
        assert run.measured.step_seconds == pytest.approx(2 * 8192 / 5461)
    caught = refusal(runs_of, log, read_context(tmp_path / name, "h100_sxm"))
    assert [problem.key for problem in caught.problems] == ["gpus"]
