"""Every real log excerpt that the figures of the raw material were made from: its step time is the record's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.evidence.ingest.context import Context
from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.build import state_of
from harness.evidence.ingest.loose import convert
from projector.io.files import parse_yaml
from projector.workload.schema import recipe_to_mapping

CLOSE = 0.005
NO_STEPS = re.compile(r"mlperf_v(3\.1_gpt3|4\.1_gpt3_NVIDIA_eos|5\.0_llama31_405b|5\.1_llama31_405b_Nebius)")
#: Logs whose record is another figure, with the reason and the difference (value / record - 1) to expect.
EXPLAINED = {
    "mlperf_v5.0/Oracle__results__1xBM.GPU.MI300X.8__llama2_70b_lora__result_0.txt": (
        "median over ten runs, this is one",
        -0.014,
    ),
    "mlperf_v5.1/AMD__results__MI350X_EPYC_9575F_pytorch__llama2_70b_lora__result_0.txt": (
        "median over ten runs",
        0.015,
    ),
    "mlperf_v5.1/MangoBoost__results__MI300X-LLMBoost-GPUBoost-1node__llama2_70b_lora__result_0.txt": (
        "median over ten",
        -0.019,
    ),
    "nvidia/mlperf_v5.1_llama31_405b_NVIDIA_hsg_ngpu2560_ngc25.09_nemo.log": (
        "record is of the whole log, this is its first 82 steps",
        0.014,
    ),
    "nvidia/mlperf_v5.1_llama31_405b_NVIDIA_hsg_ngpu5120_ngc25.09_nemo.log": (
        "record is of the whole log, this is its first 82 steps",
        0.008,
    ),
    "tprimat/train_amd_prim_llama.json": ("record is the mean over two levels of speed", -0.029),
}
#: Records of files that say of themselves only in prose which record is theirs.
RECORDS = {
    "bigscience_tr11_176B_a100_iterations.log": ("bloom-176b-main",),
    "mlperf-v6.0-amd-mi355x-llama31_8b-result_0.excerpt.log": ("mlperf-v6.0-amd-mi355x-llama31_8b-mxfp4",),
    "primus-b3d76699-per-iteration-table.md": tuple(
        f"dsv4-8l-mi355x-0703-{n}" for n in ("triton-v1", "triton-v2", "gluon")
    ),
    "primus-e1a541da-per-iteration-table.md": tuple(
        f"dsv4-8l-mi355x-0714-{n}" for n in ("triton-v2", "gluon-v3", "turbo")
    ),
    "benchmark_rocm_llama.json": ("tprimat-mi300x-llama-gbs128-10it",),
    "train_amd_prim_llama.json": ("tprimat-mi300x-llama",),
    "train_nvd_nemo_llama.json": ("tprimat-nemo-llama",),
}
#: Files of single lines, each of another job: (line of the file, record).
LINES = {
    "primus_megatron_lines.log": {
        2: "primus-logline-256gb-a",
        6: "primus-logline-256gb-b",
        8: "megatron-llama2-7b-gfx942-fp8",
    },
    "cvs-iteration-lines.log": {1: "cvs-line-megatron-gbs16"},
}


@cache
def corpus(folder: Path) -> dict[str, dict]:
    files = (folder / "amd.yaml", folder / "nvidia.yaml")
    return {record["id"]: record for file in files for record in parse_yaml(file.read_text(), file.name)}


def records_of(path: Path, known: dict[str, dict]) -> list[dict]:
    beside = path.with_suffix(".yaml")
    entry = re.search(r"mlperf_(v5\.\d)/(.*?)__results__(.*?)__(.*?)__result", str(path))
    if path.name in RECORDS:
        ids = RECORDS[path.name]
    elif entry:
        ids = ("-".join(("mlperf", *entry.groups())).lower(),)
    else:
        ids = (parse_yaml(beside.read_text(), "")["id"],) if beside.exists() else ()
    return [known[name] for name in ids if name in known]


def logs(shared: Path) -> Iterator[Path]:
    for path in sorted((shared / "corpus" / "logs").rglob("*")):
        if path.suffix in (".log", ".txt", ".json", ".md") and not path.name.endswith("launch_args.txt"):
            yield path


def seconds(path: Path, batch: object) -> list[float]:
    """The step times of a log's runs; samples a second become steps by the record's batch."""
    found = []
    for record in read_records_of_log(path)[1]:
        state = state_of(record)
        if state is not None:
            found.append(state.value * (float(str(batch)) if record.basis == "samples" else 1.0))
    return found


def test_every_log_is_read_and_its_step_time_is_that_of_its_record(shared: Path) -> None:
    known = corpus(shared / "corpus")
    compared = 0
    for path in logs(shared):
        mine = records_of(path, known)
        found = seconds(path, mine[0]["global_batch_size"] if mine else 8)
        if NO_STEPS.match(path.name):
            assert not found, path.name  # the excerpt holds the 90 lines of the start alone
            continue
        assert found, path.name
        for value, record in zip(found, mine, strict=True) if mine else ():
            expected = record["metrics"]["iteration_ms"]
            if expected is None:
                continue
            compared += 1
            difference = value * 1000 / expected - 1
            centre = EXPLAINED.get(f"{path.parent.name}/{path.name}", ("", 0.0))[1]
            assert abs(difference - centre) < CLOSE, (path.name, value, expected)
    assert compared >= 55


def test_with_the_records_configuration_a_log_is_a_whole_run(shared: Path) -> None:
    """What the log says of batch, sequence and GPUs agrees with the record, and so does the rate."""
    known = corpus(shared / "corpus")
    compared = 0
    for path in logs(shared):
        mine = records_of(path, known)
        stated = convert(mine, "record").runs[0] if len(mine) == 1 and not NO_STEPS.match(path.name) else None
        if stated is None or stated.model is None or stated.recipe is None or stated.measured.tgs is None:
            continue
        context = Context(
            gpu=stated.gpu,
            gpus=stated.gpus,
            model=stated.model,
            recipe=stated.recipe,
            stated=recipe_to_mapping(stated.recipe),
            framework=stated.stack.framework,
        )
        (run,) = read_log(path, context=context).runs
        assert run.problem == ""
        assert run.measured.tgs is not None
        compared += 1
        centre = EXPLAINED.get(f"{path.parent.name}/{path.name}", ("", 0.0))[1]
        assert abs(stated.measured.tgs / run.measured.tgs - 1 - centre) < CLOSE, path.name
    assert compared >= 25


@pytest.mark.parametrize("name", LINES)
def test_single_lines_of_different_jobs(shared: Path, tmp_path: Path, name: str) -> None:
    known = corpus(shared / "corpus")
    text = (shared / "corpus" / "logs" / "amd" / name) if name.startswith("primus") else None
    path = text or shared / "corpus" / "logs" / "amd" / "more" / name
    lines = path.read_text().splitlines()
    for number, record in LINES[name].items():
        alone = tmp_path / "one.log"
        alone.write_text(lines[number - 1] + "\n")
        (value,) = seconds(alone, 1)
        assert value * 1000 == pytest.approx(known[record]["metrics"]["iteration_ms"], rel=CLOSE)


def test_torchtitan_rate_of_the_last_model_of_the_file(shared: Path) -> None:
    path = shared / "corpus" / "logs" / "amd" / "more" / "torchtitan-mi355x-2gpu.log"
    (record,) = read_records_of_log(path)[1]
    state = state_of(record)
    assert state is not None
    expected = corpus(shared / "corpus")["titan-qwen3-8b-2xmi355x-fullac"]["metrics"]["tokens_per_s_per_gpu"]
    assert 1 / state.value == pytest.approx(expected, rel=CLOSE)


def test_tprimat_mean_is_the_record_where_the_median_is_not(shared: Path) -> None:
    path = shared / "corpus" / "logs" / "amd" / "tprimat" / "train_amd_prim_llama.json"
    state = state_of(read_records_of_log(path)[1][0])
    assert state is not None
    assert state.mean * 1000 == pytest.approx(2429.8, rel=CLOSE)
    assert state.drift is not None
    assert state.drift < -0.05
