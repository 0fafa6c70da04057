"""torchtitan: its validation, its model in several spellings, several starts in one file, summaries of its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from log_records import records, step

from harness.evidence.ingest.logs import torchtitan
from harness.evidence.ingest.logs.events import Arguments
from harness.evidence.ingest.logs.titan_model import architecture, built

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"


LLAMA = "dim=2048, n_layers=18, n_heads=16, n_kv_heads=8, vocab_size=128256, multiple_of=256, ffn_dim_multiplier=1.3"


def test_torchtitans_validation_is_no_step(tmp_path: Path) -> None:
    """It prints the number of the step before it and a rate of its own, of forward passes."""
    check = "[titan] - root - INFO - validate step: {0}  loss:  3.8  memory: 23.58GiB(75.20%)  tps: 9,000\n"
    text = "".join(titan(i, 1, 1000) + check.format(i) for i in range(1, 30))
    _, (record,) = records(tmp_path, text)
    assert (record.steps, record.evaluations, record.repeated) == (29, 29, 0)
    assert step(record) == pytest.approx(1e-3)


def test_torchtitans_own_llama() -> None:
    line = f"[rank0]:[titan] - root - INFO - Building llama3 1B with TransformerModelArgs({LLAMA}, max_seq_len=8192)"
    assert built(line) == "llama3 1B"
    shape = architecture(line)
    # 2/3 of 4 x 2048, times 1.3, rounded up to 256
    assert (shape["ffn_hidden_size"], shape["num_query_groups"], shape["num_layers"]) == (7168, 8, 18)
    assert not architecture(line.replace("llama3", "deepseek_v3"))
    assert not architecture(line.replace("max_seq_len", "moe_args=MoEArgs(), max_seq_len"))
    assert built("Building device mesh with parallelism: pp=1") is None


def layer(heads: int = 12, **more: object) -> dict[str, object]:
    def linear(rows: int, columns: int) -> dict[str, object]:
        return {"in_features": columns, "out_features": rows, "bias": False}

    attention = {"n_heads": heads, "n_kv_heads": 4, "wq": linear(768, 768), "wo": linear(768, 768), "qk_norm": None}
    mlp = {"w1": linear(2048, 768), "w2": linear(768, 2048), "w3": linear(2048, 768)}
    return {"attention": attention, "feed_forward": mlp, "attention_norm": {"eps": 1e-5}, "moe": None, **more}


@pytest.mark.parametrize("rank", ["", "[rank7]:"])
@pytest.mark.parametrize(
    ("layers", "whole"),
    [([layer()] * 2, True), ([layer(), layer(6)], False), ([layer(moe={"experts": 8})] * 2, False)],
)
def test_torchtitans_model_as_json(rank: str, layers: list[dict[str, object]], whole: bool) -> None:
    model = {"dim": 768, "vocab_size": 128256, "layers": layers, "enable_weight_tying": False}
    first, *rest = json.dumps(model, indent=2).splitlines()
    text = [f"{rank}[titan] - root - INFO - Building llama3 175M with {first}", *(f"{rank}{line}" for line in rest)]
    text += [f"{rank}[titan] step: {i}  loss: 6.1  memory: 49.66GiB(52.28%)  tps: 5,856  mfu: 34.29%" for i in (1, 2)]
    found = torchtitan.events(enumerate(text, 1))
    (arguments,) = (event for event in found if isinstance(event, Arguments))
    assert arguments.values.get("num_layers") == (2 if whole else None)
    assert arguments.values["model_name"] == "llama3 175M"


def titan(start: int, count: int, rate: int) -> str:
    return "".join(
        f"[titan] step: {start + i}  loss: 6.1  memory: {20 + rate / 1000:.2f}GiB(50%)  tps: {rate}  mfu: 3%\n"
        for i in range(count)
    )


@pytest.mark.parametrize(
    ("starts", "runs"),
    [
        (((1, 20, 1000), (1, 20, 1010)), 1),  # the same once more
        (((1, 20, 1000), (1, 20, 2000)), 2),  # another run
        (((0, 20, 1000), (1, 20, 2000)), 2),  # another run that does not print its first step
        (((1, 30, 1000), (15, 30, 2000)), 1),  # goes on from a checkpoint
        (((1, 20, 1000), (1, 4, 2000)), 1),  # too short to tell
    ],
)
def test_a_start_that_begins_anew_at_another_speed_is_another_run(
    tmp_path: Path, starts: tuple[tuple[int, int, int], ...], runs: int
) -> None:
    _, found = records(tmp_path, "".join(titan(*start) for start in starts))
    assert len(found) == runs
    if runs == 2:
        assert [round(1 / (step(record) or 1)) for record in found] == [1000, 2000]
        assert [record.memory["reserved"] for record in found] == [21.0, 22.0]
        assert [record.name for record in found] == ["start 1", "start 2"]


def test_summaries_of_the_trainer(tmp_path: Path) -> None:
    one = "{'train_runtime': 484.7942, 'train_samples_per_second': 2.063, 'train_steps_per_second': 0.516, 'epoch': 1.0}\n"
    other = one.replace("484.7942", "969.59").replace("2.063", "1.031").replace("0.516", "0.258")
    _, (first, second) = records(tmp_path, one * 3 + other)
    assert step(first) == pytest.approx(484.7942 / 250)
    assert step(second) == pytest.approx(969.59 / 250)
    assert int(first.batch[0]) == 4
    assert "the mean of a whole training" in first.notes[0]


def test_a_summary_that_leaves_its_steps_open_is_none(tmp_path: Path) -> None:
    text = "{'train_runtime': 9000.0, 'train_samples_per_second': 2.0, 'train_steps_per_second': 0.007, 'epoch': 1.0}\n"
    _, (record,) = records(tmp_path, text)
    assert record.steps == 0
    assert "of a number of steps that it does not tell" in record.notes[0]
