"""The strict schema of measured runs: written and read back, and every mistake at once."""

from pathlib import Path

import pytest
from asked import put, refusal

from harness.evidence import dataset, run_text
from harness.evidence.ingest.loose import convert
from tests.harness.ingest.loose_cases import SIMUMAX, record

GOOD = """\
- id: {id}
  source: {{title: a table, revision: abc, kind: table}}
  gpu: mi300x
  gpus: 8
  stack: {{framework: megatron-lm, date: 2025-10}}
  model: {{base: llama3_70b, num_layers: 4}}
  recipe: {{micro_batch_size: 1, global_batch_size: 16, seq_length: 4096, tp: 2}}
  measured: {{step_seconds: 1.5, tgs: 5461.3}}
"""


def test_round_trip_of_converted_rows(tmp_path: Path) -> None:
    rows = [
        SIMUMAX,
        record(id="llama", assumed=1),
        record(id="lora", model="Llama2-70B LoRA (rank 16)", other={"lora_target_modules": ["linear_qkv"]}),
        record(id="scratch", model="my own", arch={"layers": 4, "hidden": 512, "heads": 8, "vocab": 1000, "ffn": 2048}),
        record(
            id="moe",
            model="mine",
            arch={"layers": 3, "hidden": 512, "heads": 8, "vocab": 9, "experts": 4, "topk": 2, "moe_ffn": 64},
        ),
        record(id="bad", gpu="GTX 1080", precision=None),
    ]
    runs = list(convert(rows, "t").runs)
    path = put(tmp_path / "runs.yaml", run_text.to_yaml(runs))
    assert dataset.read(path) == runs
    assert "([0]*1+[1]*3)" in path.read_text()


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    text = GOOD.format(id="a") + GOOD.format(id="a") + GOOD.format(id="b")
    text = text.replace("gpu: mi300x", "gpu: mi300y", 1).replace("gpus: 8", "gpus: eight", 1)
    text = text.replace("tp: 2", "tensor_parallel: 2", 1).replace("step_seconds: 1.5", "step_seconds: -1", 1)
    text = text.replace("base: llama3_70b", "base: lama3_70b", 1) + "  colour: red\n"
    shown = str(refusal(dataset.read, put(path, text)))
    assert f"{path}: [0].gpu: found 'mi300y', expected a known name; nearest: mi300x" in shown
    for key in ("[0].gpus", "[0].recipe.tensor_parallel", "[0].measured.step_seconds", "[0].model.base", "[2].colour"):
        assert key in shown
    assert "llama3_70b" in shown


@pytest.mark.parametrize("alone", ["step_seconds: 1.5", "tgs: 5461.333333333333"])
def test_of_step_time_and_rate_one_is_enough(tmp_path: Path, alone: str) -> None:
    path = put(tmp_path / "runs.yaml", GOOD.format(id="a").replace("step_seconds: 1.5, tgs: 5461.3", alone))
    (run,) = dataset.read(path)
    assert (run.measured.step_seconds, run.measured.tgs) == (pytest.approx(1.5), pytest.approx(16 * 4096 / 1.5 / 8))
    assert len(run.measured.derived) == 1
    assert dataset.read(put(tmp_path / "again.yaml", run_text.to_yaml([run]))) == [run]


def test_flop_rates_alone_are_no_throughput(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    path.write_text(GOOD.format(id="a").replace("step_seconds: 1.5, tgs: 5461.3", "tflops_per_gpu: 400"))
    refusal(dataset.read, path, match=r"\[0\].measured.tflops_per_gpu: found 'no other.*expected step_seconds or tgs")


def test_duplicate_ids_in_one_file_and_among_files(tmp_path: Path) -> None:
    for name in ("x.yaml", "y.yaml"):
        (tmp_path / name).write_text(GOOD.format(id="same"))
    refusal(dataset.read, tmp_path, match="'same', expected unique ids")
    (tmp_path / "x.yaml").write_text(GOOD.format(id="other"))
    assert [run.id for run in dataset.read(tmp_path)] == ["other", "same"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a list of measured runs"),
        ("[]", "at least one measured run"),
        ("- 3", "a mapping"),
        ("- {id: [", "valid YAML"),
        (GOOD.format(id="a").replace("  measured: {step_seconds: 1.5, tgs: 5461.3}\n", ""), "a value"),
        (GOOD.format(id="a").replace("  model: {base: llama3_70b, num_layers: 4}\n", ""), "needs `problem:`"),
        (GOOD.format(id="a").replace("tgs: 5461.3", "status: broken"), "one of ok, out-of-memory"),
        (GOOD.format(id="a").replace("tgs: 5461.3", "memory_kind: some"), "one of allocated"),
        (GOOD.format(id="a") + "  cluster: nowhere\n", "a known name"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in str(refusal(dataset.read, put(tmp_path / "runs.yaml", text)))


def test_missing_file(tmp_path: Path) -> None:
    refusal(dataset.read, tmp_path / "no.yaml", match="does not exist")


def test_a_row_with_a_problem_may_lack_model_and_recipe(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    path.write_text(
        "- {id: a, source: {title: t}, gpu: '', gpus: 0, stack: {framework: ''}, measured: {}, problem: no gpu}\n"
    )
    run = dataset.read(path)[0]
    assert run.model is None
    with pytest.raises(ValueError, match="no gpu"):
        _ = run.workload


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.night)])
def test_the_checked_in_runs_are_those_of_the_corpus(root: Path, shared: Path, whole: bool) -> None:
    from harness.evidence.ingest.command import ingest

    names = ("nvidia", "amd", "nvidia_more", "nvidia_third", "amd_more", "amd_third")[0 if whole else 4 :]
    tables = [shared / "corpus" / f"{name}.yaml" for name in names]
    made = ingest(tables, None, root / "measured" / "import.yaml")
    stored = {run.id: run for run in dataset.read(root / "measured" / "runs")}
    ids = {run.id for run in made.runs}
    assert ids == set(stored) if whole else ids <= set(stored)
    assert [run.id for run in made.runs if stored[run.id] != run] == []
