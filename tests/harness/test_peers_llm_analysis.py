"""The llm-analysis adapter, on the package where it is installed and on a stand-in with the same interface."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace

import peer_fakes
import pytest
from test_peers_refusals import run_of

from harness import predictors
from harness.contracts import frame
from harness.contracts.runs import Measured, MeasuredRun
from harness.evaluation import evaluate
from harness.evaluation.evaluate import Selected
from harness.predictors import Predictor
from harness.report import view
from harness.score import accuracy


@pytest.fixture(params=["stand-in", "package"])
def tool(request, monkeypatch, tmp_path) -> Iterator[Predictor]:
    fake = request.param == "stand-in"
    if not fake and importlib.util.find_spec("llm_analysis") is None:
        pytest.skip("llm-analysis is not installed (extra: peers)")
    folder = peer_fakes.llm_analysis_package(tmp_path) if fake else None
    with peer_fakes.importable(monkeypatch, "llm_analysis", folder):
        (made,) = predictors.load(["llm-analysis"])
        yield made


def forward_flops(run: MeasuredRun) -> float:
    """FLOP of one micro-batch by the formula of release 0.2.2: every MLP is two linears of 4 · hidden."""
    work = run.workload
    m, b, s = work.model, work.recipe.micro_batch_size, work.recipe.seq_length
    groups = m.num_attention_heads / m.num_query_groups
    h = m.hidden_size
    layer = 4 * b * s * h**2 + 4 * b * s * h**2 / groups + 4 * b * s**2 * h + 16 * b * s * h**2
    return layer * m.num_layers + 2 * b * s * h * work.padded_vocab_size


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        ({"recompute_granularity": "none"}, 3.0),
        ({"recompute_granularity": "full", "tp": 2, "pp": 2}, 4.0),
        ({"recompute_granularity": "none", "micro_batch_size": 4, "tp": 4, "sequence_parallel": True}, 3.0),
    ],
)
def test_step_time_is_its_closed_form(tool: Predictor, recipe: dict[str, object], passes: float) -> None:
    run = run_of(**recipe)
    made = tool.predict(run)
    r = run.workload.recipe
    expected = passes * forward_flops(run) * run.workload.num_microbatches / (r.tp * r.pp * 312e12)
    assert made.step_seconds == pytest.approx(expected, rel=1e-9), made.reason
    assert made.breakdown == {"compute_s": made.step_seconds}
    assert made.memory_gib > 0
    assert "flops_efficiency=1 (its default)" in made.assumed
    assert made.seconds_to_project > 0


def test_a_gpu_that_it_has_no_file_of_comes_from_the_data_sheet(tool: Predictor) -> None:
    known, other = run_of(), run_of(gpu="mi300x")
    ours, its = tool.predict(other), tool.predict(known)
    assert its.step_seconds / ours.step_seconds == pytest.approx(1307.4e12 / 312e12, rel=0.01)
    assert any("mi300x from the data sheet" in a for a in ours.assumed)
    assert not any("data sheet" in a for a in its.assumed)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"pp": 2, "vpp": 2}, "llm-analysis has no interleaved schedule"),
        ({"cp": 2, "precision": "fp8"}, "llm-analysis has no context parallelism; llm-analysis has no fp8 training"),
        ({"optimizer_cpu_offload": True}, "llm-analysis has no optimizer offload"),
    ],
)
def test_refusals_name_every_reason(tool: Predictor, recipe: dict[str, object], words: str) -> None:
    made = tool.predict(run_of(**recipe))
    assert (made.status, made.reason, made.step_seconds) == ("unsupported", words, None)


def test_fully_sharded_data_parallelism_is_its_zero_stage_3(tool: Predictor) -> None:
    whole = tool.predict(run_of(data_parallel_sharding="no_shard"))
    sharded = tool.predict(run_of(data_parallel_sharding="optim_grads_params"))
    assert whole.step_seconds == sharded.step_seconds
    assert (sharded.memory_gib or 0) < (whole.memory_gib or 0)


def test_a_run_that_does_not_fit_keeps_its_time(tool: Predictor) -> None:
    made = tool.predict(run_of("gpt3_175b", data_parallel_sharding="no_shard"))
    assert made.status == "out-of-memory"
    assert made.step_seconds is not None
    assert "GiB of 80 GiB" in made.reason


def test_it_does_not_look_at_the_measurement(tool: Predictor) -> None:
    run = run_of(tp=2)
    assert tool.predict(run).step_seconds == tool.predict(replace(run, measured=Measured())).step_seconds


def test_refused_rows_count_against_its_coverage_and_share_a_table(tool: Predictor) -> None:
    runs = [
        replace(run, id=name)
        for name, run in {"a": run_of(), "b": run_of(tp=2), "c": run_of(cp=2), "d": run_of("mixtral_8x7b")}.items()
    ]
    tools = (tool, *predictors.load(["constant-mfu"]))
    made = evaluate.evaluate([Selected("s", r) for r in runs], tools)
    mine = accuracy.summarise(frame.part(made.frame, predictor="llm-analysis", fit="heldout"))
    assert (mine.compared, mine.eligible, mine.coverage) == (2, 4, 0.5)
    (table,) = [t for t in view.build(made).tables if t.title == "Other projectors on the same rows"]
    assert [row[:3] for row in table.rows] == [
        ("llm-analysis", "llm-analysis", "2"),
        ("llm-analysis", "constant-mfu", "2"),
    ]
