"""Real logs that nobody had seen who wrote the readers: the step time read by hand within 1 %, or the true reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.evidence.ingest.context import Context
from harness.evidence.ingest.dialects import read_log, read_records_of_log
from harness.evidence.ingest.logs.build import state_of
from harness.evidence.ingest.logs.record import Record
from harness.evidence.ingest.logs.settings import stated_by
from projector.errors import InputError
from projector.io.files import parse_yaml

CLOSE = 0.01
EXPECTED = Path(__file__).resolve().parents[4] / "shared" / "logs_wild" / "expected.yaml"
#: Logs whose step time no reader could have had by hand, that still say one: value and the words that go with it.
PARTIAL = {
    "hf_rocm_lora.log": ((1.93918, 43.9752), "the mean of a whole training"),
    "litgpt_tutorial.log": ((0.96059,), ""),
    "modded_nanogpt_0.log": ((0.255,), ""),
    "modded_nanogpt_1.log": ((0.0834583,), "the second half of the steps is"),
    "rocm_blog_nanogpt.log": ((0.08577,), ""),
    "ml_v50_tinycorp_bert.txt": ((1.88884,), ""),
}
#: Logs that say none, with the reason (or what stands first in a text without any step).
NONE = {
    "bs_hfds_n16.log": "of 2 steps, warm-up among them",
    "mds_alcf_old.log": "the only step logged is the first",
    "x_internevo.log": "the only step logged is the first",
    "x_nanotron.log": "the only step logged is the first",
    "mlm_gh200_1719340.log": "",
    "mlm_gh200_1844299.log": "expected iteration lines of a known log dialect",
    # counts in an epoch's own unit: refused as no language model anyway
    "ml_v50_cisco_bert.txt": "in no unit what the log's own counts",
}
NO_LANGUAGE_MODEL = ("ml_v50_cisco_bert.txt", "ml_v50_tinycorp_bert.txt", "x_maxdiffusion_979.log")
#: Files of runs at different speeds; the figure read by hand is the first one's.
RUNS = {"titan_chain_many.log": 2}
#: Step times of these hold evaluations that the submitter does not time apart.
DOUBTED = {"ml_v40_juniper_lora.txt": "evaluation inside"}


def logs() -> dict[str, dict[str, Any]]:
    return parse_yaml(EXPECTED.read_text(), EXPECTED.name) if EXPECTED.exists() else {}


def step_seconds(record: Record, dialect: str) -> float | None:
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
    assert len(logs()) >= 53
    assert {*PARTIAL, *NONE, *NO_LANGUAGE_MODEL, *DOUBTED} <= set(logs())


@pytest.mark.parametrize("name", logs())
def test_a_wild_log_says_what_was_read_by_hand(shared: Path, name: str) -> None:
    path, expected = shared / "logs_wild" / name, logs()[name]
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
        assert found[0] == pytest.approx(expected["step_seconds"], rel=CLOSE)
    for rate, basis in (("tokens_per_second_per_gpu", "tokens"), ("samples_per_second", "samples")):
        if rate in expected:
            assert records[0].basis == basis
            assert states[0] is not None
            assert 1 / states[0].value == pytest.approx(expected[rate], rel=CLOSE)
    assert DOUBTED.get(name, "") in words(records[0])


@pytest.mark.parametrize("name", ["bs_hfds_n16.log", "mds_alcf_old.log", "x_internevo.log", "x_nanotron.log"])
def test_a_log_without_a_steady_step_is_refused_for_that(shared: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_log(shared / "logs_wild" / name)
    (problem,) = caught.value.problems
    assert (problem.key, NONE[name] in str(problem)) == ("steps", True)


def words(record: Record) -> str:
    state = state_of(record)
    drift = f"the second half of the steps is {state.drift:+.1%} off" if state is not None and state.drift else ""
    return "; ".join([*record.notes, drift])


def refused(path: Path, reason: str) -> None:
    if reason.startswith("expected"):
        with pytest.raises(InputError, match=reason):
            read_records_of_log(path)
        return
    _, records = read_records_of_log(path)
    assert all(state_of(record) is None and reason in words(record) for record in records)


@pytest.mark.parametrize("name", NO_LANGUAGE_MODEL)
def test_what_trains_no_language_model_says_so(shared: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_log(shared / "logs_wild" / name)
    (problem,) = caught.value.problems
    assert problem.expected == "the training of a causal language model"


def test_a_trace_of_two_chunks_is_no_step(shared: Path) -> None:
    dialect, (record,) = read_records_of_log(shared / "traces" / "kineto_deepseek_train.json")
    assert (dialect, record.steps) == ("trace", 0)
    assert record.kernels is not None
    assert "no optimizer's kernel in the trace" in record.notes[0]


def test_a_submission_is_a_whole_run_by_its_launcher_and_system_record(shared: Path) -> None:
    run = read_log(shared / "logs_wild" / "ml_v51_nebius_h200_405b.txt").runs[0]
    assert run.recipe is not None
    assert (run.gpu, run.gpus, run.model_name, run.problem) == ("h200", 1024, "llama3.1_405b", "")
    assert (run.recipe.tp, run.recipe.pp, run.recipe.cp) == (4, 8, 2)
    assert (run.recipe.micro_batch_size, run.recipe.global_batch_size) == (1, 1152)


def test_a_llama_printed_as_json_is_a_whole_run(shared: Path) -> None:
    run = read_log(shared / "logs_wild" / "titan_pp8vp2_diag.log").runs[0]
    assert run.model is not None
    assert (run.model.num_layers, run.model.ffn_hidden_size, run.model.num_query_groups) == (16, 2048, 4)
    assert run.measured.step_seconds == pytest.approx(0.400665, rel=1e-5)
