"""Tables nobody prepared: foreign encodings and separators, units in cells, what no machine can have done."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest

from harness.__main__ import main
from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.command import load
from projector.errors import InputError

RECORD: dict[str, object] = {
    "id": "a",
    "gpu": "H100",
    "gpus": 8,
    "framework": "Megatron-LM",
    "model": "llama3-8b",
    "precision": "bf16",
    "seq_length": 8192,
    "micro_batch_size": 1,
    "global_batch_size": 128,
    "tp": 2,
    "pp": 1,
    "cp": 1,
}
HEADER = "model,gpu,gpus,seq_length,mbs,gbs,tp,pp,cp,precision,Tokens/s/GPU,framework\n"
ROW = "llama3_8b,H100,8,8192,1,128,2,1,1,bf16,9000,Megatron-LM\n"


def only(path: Path) -> MeasuredRun:
    (run,) = load(path).runs
    return run


def with_figures(folder: Path, **changes: object) -> MeasuredRun:
    path = folder / "t.json"
    path.write_text(json.dumps([RECORD | changes]))
    return only(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_spreadsheet_is_read_in_whatever_form_it_was_saved(tmp_path: Path, encoding: str, separator: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((HEADER + ROW).replace(",", separator).encode(encoding))
    run = only(path)
    assert (run.problem, run.measured.tgs, run.gpu) == ("", 9000.0, "h100_sxm")


@pytest.mark.parametrize(
    ("metrics", "step"),
    [
        ({"step_seconds": "14.5s"}, 14.5),
        ({"step_seconds": "14500 ms"}, 14.5),
        ({"iteration_ms": "14.5 s"}, 14.5),
        ({"iteration_ms": "14,500ms"}, 14.5),
        ({"tokens_per_s_per_gpu": "9k"}, 128 * 8192 / 8 / 9000),
    ],
)
def test_units_in_a_cell_are_understood(tmp_path: Path, metrics: dict[str, str], step: float) -> None:
    run = with_figures(tmp_path, seq_length="8k", metrics=metrics)
    assert run.problem == ""
    assert run.recipe is not None
    assert run.recipe.seq_length == 8192
    assert run.measured.step_seconds == pytest.approx(step)


def test_a_unit_that_does_not_belong_to_the_column_is_refused(tmp_path: Path) -> None:
    run = with_figures(tmp_path, micro_batch_size="1k", metrics={"step_seconds": "14 GB"})
    assert "micro_batch_size is not a whole number: '1k'" in run.problem
    assert "metrics.step_seconds is not a number: '14 GB'" in run.problem


def test_a_throughput_above_the_peak_of_the_device_is_refused(tmp_path: Path) -> None:
    assert with_figures(tmp_path, metrics={"tokens_per_s_per_gpu": 9000}).problem == ""
    beyond = with_figures(tmp_path, metrics={"tokens_per_s_per_gpu": 90_000})
    assert "90000 tokens/s/GPU means 438 % of the bf16 peak of h100_sxm" in beyond.problem
    assert " % of the fp32 peak" in with_figures(tmp_path, precision="fp32", metrics={"tgs": 16_000}).problem


@pytest.mark.parametrize("name", ["none", "nan", "inf"])
def test_medians_that_are_no_numbers_give_no_spread(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.yaml"
    medians = f"[.{name}, 14.5, 14.6]" if name != "none" else "[none, 14.5, 14.6]"
    fields = "".join(f", {key}: {value}" for key, value in RECORD.items())
    path.write_text(
        f"- {{{fields[2:]}, metrics: {{step_seconds: 14.5}}, other: {{step_time_s_median_by_run: {medians}}}}}"
    )
    assert only(path).measured.rel_std is None


UNREADABLE = {
    "day.yaml": "- {id: 2024-02-31}\n",
    "digits.yaml": "- {id: x, gpus: " + "9" * 5000 + "}\n",
    "digits.json": '[{"gpus": ' + "9" * 5000 + "}]",
    "deep.json": "[" * 100_000 + "]" * 100_000,
    "lines.jsonl": '{"id": "a"}\n' + "[" * 100_000 + "\n",
    "cell.csv": 'model,gpu\n"' + "x" * 200_000 + '",h100\n',
    "twice.yaml": "- {id: a, gpu: h100, gpu: b200}\n",
    "key.yaml": "- {id: a, [1, 2]: b}\n",
    "two.yaml": "runs: [{id: a}]\nothers: [{id: b}]\n",
}


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_what_cannot_be_read_is_one_mistake_with_its_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(UNREADABLE[name])
    with pytest.raises(InputError) as error:
        load(path)
    assert all(problem.where == str(path) for problem in error.value.problems)


def test_brackets_without_end_are_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("[" * 3000 + "]" * 3000)
    done = command_line.run("harness", "run", "--runs", path, "--out", tmp_path / "out")
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, taken = tmp_path / "t.json", tmp_path / "file"
    table.write_text(json.dumps([RECORD | {"metrics": {"step_seconds": 14.5}}]))
    taken.write_text("")
    assert main(["run", "--runs", str(table), "--out", str(taken / "below")]) == 2
    assert "expected a path that can be read or written" in capsys.readouterr().err
