"""Every real log excerpt that the figures of the raw material were made from: its step time is the record's."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asked import put, refusal
from tabled import tabled

from harness.evidence.ingest.context import Context
from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.settings import stated_by
from harness.evidence.ingest.loose import convert
from harness.evidence.ingest.steady import state_of
from projector.io.documents import parse_yaml
from projector.workload.structure import to_mapping

CLOSE = 0.005
NO_STEPS = re.compile(r"mlperf_v(3\.1_gpt3|4\.1_gpt3_NVIDIA_eos|5\.0_llama31_405b|5\.1_llama31_405b_Nebius)")
#: Logs whose record is another figure, with the reason and the difference (value / record - 1) to expect.
EXPLAINED = tabled("readers", "log_corpus_explained")
#: Records of files that say of themselves only in prose which record is theirs.
RECORDS = tabled("readers", "log_corpus_records")
#: Files of single lines, each of another job: (line of the file, record).
LINES = tabled("readers", "log_corpus_lines")


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
            gpu=stated.gpu, gpus=stated.gpus, model=stated.model, recipe=stated.recipe,
            stated=to_mapping(stated.recipe), framework=stated.stack.framework,
        )  # fmt: skip
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
        (value,) = seconds(put(tmp_path / "one.log", lines[number - 1] + "\n"), 1)
        assert value * 1000 == pytest.approx(known[record]["metrics"]["iteration_ms"], rel=CLOSE)


def test_torchtitan_rate_of_the_last_model_of_the_file(shared: Path) -> None:
    path = shared / "corpus" / "logs" / "amd" / "more" / "torchtitan-mi355x-2gpu.log"
    (record,) = read_records_of_log(path)[1]
    state = state_of(record)
    expected = corpus(shared / "corpus")["titan-qwen3-8b-2xmi355x-fullac"]["metrics"]["tokens_per_s_per_gpu"]
    assert 1 / state.value == pytest.approx(expected, rel=CLOSE)


def test_tprimat_mean_is_the_record_where_the_median_is_not(shared: Path) -> None:
    path = shared / "corpus" / "logs" / "amd" / "tprimat" / "train_amd_prim_llama.json"
    state = state_of(read_records_of_log(path)[1][0])
    assert state.mean * 1000 == pytest.approx(2429.8, rel=CLOSE)
    assert state.drift is not None
    assert state.drift < -0.05


# Real logs that nobody had seen who wrote the readers: the step time read by hand within 1 %, or the true reason.

CLOSE_BY_HAND = 0.01
EXPECTED = Path(__file__).resolve().parents[4] / "shared" / "logs_wild" / "expected.yaml"
#: Logs whose step time no reader could have had by hand, that still say one: value and the words that go with it.
PARTIAL = tabled("readers", "log_corpus_partial")
#: Logs that say none, with the reason (or what stands first in a text without any step).
NONE = tabled("readers", "log_corpus_none")
NO_LANGUAGE_MODEL = ("ml_v50_cisco_bert.txt", "ml_v50_tinycorp_bert.txt", "x_maxdiffusion_979.log")
#: Files of runs at different speeds; the figure read by hand is the first one's.
RUNS = {"titan_chain_many.log": 2}
#: Step times of these hold evaluations that the submitter does not time apart.
DOUBTED = {"ml_v40_juniper_lora.txt": "evaluation inside"}


def wild_logs() -> dict[str, dict[str, Any]]:
    return parse_yaml(EXPECTED.read_text(), EXPECTED.name) if EXPECTED.exists() else {}


def step_seconds(record: Logged, dialect: str) -> float | None:
    """The steady step, of a rate with what the log states of batch, sequence and GPUs."""
    state = state_of(record)
    if state is None:
        return None
    stated = stated_by(record, dialect, Context())
    if record.basis == "seconds":
        return state.value
    if record.basis == "samples" or not (stated.global_batch_size and stated.seq_length and stated.gpus):
        return None
    return state.value * stated.global_batch_size * stated.seq_length / stated.gpus


def test_there_are_wild_logs(shared: Path) -> None:
    assert len(wild_logs()) >= 53
    assert {*PARTIAL, *NONE, *NO_LANGUAGE_MODEL, *DOUBTED} <= set(wild_logs())


@pytest.mark.parametrize("name", wild_logs())
def test_a_wild_log_says_what_was_read_by_hand(shared: Path, name: str) -> None:
    path, expected = shared / "logs_wild" / name, wild_logs()[name]
    if name in NONE:
        refused(path, NONE[name])
        return
    dialect, records = read_records_of_log(path)
    found = [step_seconds(record, dialect) for record in records]
    states = [state_of(record) for record in records]
    if name in PARTIAL:
        assert found == pytest.approx(PARTIAL[name][0], rel=1e-4)
        assert all(PARTIAL[name][1] in words(record) for record in records)
        return
    assert len(records) == RUNS.get(name, 1)
    if expected["step_seconds"] is not None:
        assert found[0] == pytest.approx(expected["step_seconds"], rel=CLOSE_BY_HAND)
    for rate, basis in (("tokens_per_second_per_gpu", "tokens"), ("samples_per_second", "samples")):
        if rate in expected:
            assert records[0].basis == basis
            assert states[0] is not None
            assert 1 / states[0].value == pytest.approx(expected[rate], rel=CLOSE_BY_HAND)
    assert DOUBTED.get(name, "") in words(records[0])


def words(record: Logged) -> str:
    state = state_of(record)
    drift = f"the second half of the steps is {state.drift:+.1%} off" if state is not None and state.drift else ""
    return "; ".join([*record.notes, drift])


def refused(path: Path, reason: str) -> None:
    if reason.startswith("expected"):
        refusal(read_records_of_log, path, match=reason)
        return
    _, records = read_records_of_log(path)
    assert all(state_of(record) is None and reason in words(record) for record in records)


@pytest.mark.parametrize("name", NO_LANGUAGE_MODEL)
def test_what_trains_no_language_model_says_so(shared: Path, name: str) -> None:
    (problem,) = refusal(read_log, shared / "logs_wild" / name).problems
    assert problem.expected == "the training of a causal language model"


def test_a_trace_of_two_chunks_is_no_step(shared: Path) -> None:
    dialect, (record,) = read_records_of_log(shared / "traces" / "kineto_deepseek_train.json")
    assert (dialect, record.steps) == ("trace", 0)
    assert record.kernels is not None
    assert "no optimizer's kernel in the trace" in record.notes[0]


def test_a_submission_is_a_whole_run_by_its_launcher_and_system_record(shared: Path) -> None:
    run = read_log(shared / "logs_wild" / "ml_v51_nebius_h200_405b.txt").runs[0]
    assert (run.gpu, run.gpus, run.model_name, run.problem) == ("h200", 1024, "llama3.1_405b", "")
    assert (run.recipe.tp, run.recipe.pp, run.recipe.cp) == (4, 8, 2)
    assert (run.recipe.micro_batch_size, run.recipe.global_batch_size) == (1, 1152)


def test_a_llama_printed_as_json_is_a_whole_run(shared: Path) -> None:
    run = read_log(shared / "logs_wild" / "titan_pp8vp2_diag.log").runs[0]
    assert (run.model.num_layers, run.model.ffn_hidden_size, run.model.num_query_groups) == (16, 2048, 4)
    assert run.measured.step_seconds == pytest.approx(0.400665, rel=1e-5)
