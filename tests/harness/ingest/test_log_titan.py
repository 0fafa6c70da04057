"""torchtitan: its validation, its model in several spellings, several starts in one file, summaries of its figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from asked import LOGS, put
from log_records import records, step
from log_samples import samples
from tabled import sample, tabled

from harness.evidence.ingest.command import load
from harness.evidence.ingest.dialects import read_log
from harness.evidence.ingest.logs import registry
from harness.evidence.ingest.logs.events import Arguments
from harness.evidence.ingest.logs.logged import AFTER_EVALUATION
from harness.evidence.ingest.logs.olmo_config import arguments
from harness.evidence.ingest.logs.source import open_source
from harness.evidence.ingest.logs.torchtitan import architecture, built

LLAMA = "dim=2048, n_layers=18, n_heads=16, n_kv_heads=8, vocab_size=128256, multiple_of=256, ffn_dim_multiplier=1.3"


def test_torchtitans_validation_is_no_step(tmp_path: Path) -> None:
    """It prints the number of the step before it and a rate of its own, of forward passes."""
    check = "[titan] - root - INFO - validate step: {0}  loss:  3.8  memory: 23.58GiB(75.20%)  tps: 9,000\n"
    text = "".join(titan(i, 1, 1000) + check.format(i) for i in range(1, 30))
    _, (record,) = records(tmp_path, text)
    assert (record.steps, record.repeated) == (29, 0)
    assert record.flags.tolist() == [0, *(AFTER_EVALUATION,) * 28]
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


@pytest.mark.parametrize("ranks", [("",), ("[rank7]:",), ("[rank0]: ", "[rank1]: "), ("[rank0]: [rank7]:",)])
@pytest.mark.parametrize(
    ("layers", "whole"), [([layer()] * 2, True), ([layer(), layer(6)], False), ([layer(moe={"experts": 8})] * 2, False)]
)
def test_torchtitans_model_as_json(tmp_path: Path, ranks: tuple[str], layers: list[dict[str, object]], whole) -> None:
    model = {"dim": 768, "vocab_size": 128256, "layers": layers, "enable_weight_tying": False}
    first, *rest = json.dumps(model, indent=2).splitlines()
    text = [f"[titan] - root - INFO - Building llama3 175M with {first}", *rest]
    text += [f"[titan] step: {i}  loss: 6.1  memory: 49.66GiB(52.28%)  tps: 5,856  mfu: 34.29%" for i in (1, 2)]
    printed = "".join(f"{rank}{line}\n" for line in text for rank in ranks)
    found = registry.events_of(open_source(put(tmp_path / "a.log", printed)), "torchtitan")
    (arguments,) = (event for event in found if isinstance(event, Arguments))
    assert arguments.values.get("num_layers") == (2 if whole else None)
    assert arguments.values["model_name"] == "llama3 175M"


def titan(start: int, count: int, rate: int) -> str:
    return "".join(
        f"[titan] step: {start + i}  loss: 6.1  memory: {20 + rate / 1000:.2f}GiB(50%)  tps: {rate}  mfu: 3%\n"
        for i in range(count)
    )


@pytest.mark.parametrize(
    ("starts", "runs"), tabled("readers", "a_start_that_begins_anew_at_another_speed_is_another_run")
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


CONFIG = json.loads(sample("torchtitan_config.json"))


@pytest.mark.parametrize("prefix", ["", "[rank0]:"])
@pytest.mark.parametrize("lined", [True, False])
def test_settings_of_a_printed_configuration_that_nobody_reads_are_named(lined: bool, prefix: str, tmp_path) -> None:
    text = (LOGS / "torchtitan.log").read_text()
    shown = f"configs: {json.dumps(CONFIG, indent=2)}" if lined else f"args: {CONFIG}"
    whole = f"[titan] 2026-03-01 10:00:00,000 - root - INFO - Running with {shown}\n{text}"
    path = put(tmp_path / "torchtitan.log", "".join(prefix + line for line in whole.splitlines(keepends=True)))
    (plain,), (row,), (run,) = load(LOGS / "torchtitan.log").runs, read_log(path).rows, read_log(path).runs
    assert run.recipe == replace(plain.recipe, tp_comm_overlap=True)
    assert (run.model, run.measured) == (plain.model, plain.measured)
    told = "; ".join(run.unread)
    assert row.unread == run.unread  # as of a table
    for name in ("parallelism.pipeline_parallel_schedule: Interleaved1F1B", "fsdp_reshard_after_forward: never"):
        assert name in told
    for name in ("compile.components", "quantize.linear.float8.filter_fqns: ['output']"):
        assert name in told
    assert not any(name in told for name in ("dump_folder", "emulate", "compile.enable", "module_fqns", "seq_len"))


@pytest.mark.parametrize(
    ("lines", "precision", "recipe"), tabled("readers", "a_log_that_converts_its_linear_layers_is_not_in_bf16")
)
def test_a_log_that_converts_its_linear_layers_is_not_in_bf16(
    lines: list[str], precision: str, recipe: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "torchtitan.log"
    said = "".join(f"[titan] 2026-03-01 10:00:00,000 - root - INFO - {line}\n" for line in lines)
    run = load(put(path, said + (LOGS / "torchtitan.log").read_text())).runs[0]
    assert run.recipe.precision == precision
    assert recipe is None or run.recipe.fp8_recipe == recipe


def test_what_a_log_says_of_the_model_beside_its_settings(tmp_path: Path) -> None:
    """Weights gathered in 8 bits are; experts in 8 bits, and a compiled loss alone, are no field."""
    said = (
        "Float8 tensorwise scaled training active",
        "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True",
        "Converted MoE layers matching FQNS ['experts'] to use dynamic float8 rowwise quantization",
        "Compiling the loss function with torch.compile",
    )
    path = tmp_path / "torchtitan.log"
    head = "".join(f"[titan] 2026-03-01 10:00:00,000 - root - INFO - {line}\n" for line in said)
    (run,) = load(put(path, head + (LOGS / "torchtitan.log").read_text())).runs
    assert run.recipe.fp8_param_gather is True
    assert run.recipe.torch_compile is not True
    assert any(text.startswith("log: Converted MoE layers") for text in run.unread)


@pytest.mark.parametrize("converted", [False, True])
def test_experts_that_are_not_converted_are_said_to_be_in_bf16(converted: bool, tmp_path: Path) -> None:
    said = ["Float8 training active with recipe rowwise"]
    said += [
        "Converted GroupedExperts to use dynamic float8 rowwise quantization with scaled grouped GEMMs"
    ] * converted
    text = (LOGS / "torchtitan.log").read_text()
    model = text[text.index("Building llama3 8B") :].partition("\n")[0]
    path = tmp_path / "torchtitan.log"
    head = "".join(f"[titan] 2026-03-01 10:00:00,000 - root - INFO - {line}\n" for line in said)
    (row,) = read_log(put(path, head + text.replace(model, "Building deepseek_v3 16B with {"))).rows
    assert any("of the experts, too (there bf16)" in text for text in row.assumed) == (not converted)


# OLMo: the configuration in one line, and what of it nobody reads.

MODEL = (
    "d_model=2048, n_heads=16, n_kv_heads=None, clip_qkv=8.0, n_layers=16, mlp_ratio=8, mlp_hidden_size=None, "
    "activation_type='swiglu', block_type='sequential', alibi=False, rope=True, multi_query_attention=False, "
    "attention_layer_norm=False, layer_norm_type='default', layer_norm_with_affine=False, max_sequence_length=4096, "
    "include_bias=False, vocab_size=50280, embedding_size=50304, weight_tying=True, precision='amp_bf16'"
)
REST = (
    "optimizer=OptimizerConfig(name='adamw', betas=(0.9, 0.95)), data=DataConfig(paths=['/a/b.npy']), "
    "global_train_batch_size=2048, device_train_batch_size=256, device_train_microbatch_size=8, precision='amp_bf16', "
    "compile=None, distributed_strategy='fsdp', fsdp=FSDPConfig(use_orig_params=True, "
    "sharding_strategy=<ShardingStrategy.FULL_SHARD: 1>, precision='pure'), activation_checkpointing=None, fused_loss=None"
)
LINE = (
    f"2025-12-11 00:26:10.823\tnode:0\ttrain:98\tINFO\tTrainConfig(run_name='a', model=ModelConfig({MODEL}), {REST})\n"
)


def test_a_log_of_olmo_is_a_whole_run_but_for_its_gpu(tmp_path: Path) -> None:
    path = put(tmp_path / "a.log", LINE + samples()["olmo"])
    (run,), (row,) = read_log(path, incomplete=True).runs, read_log(path, incomplete=True).rows
    assert run.model is not None
    assert run.recipe is not None
    model, recipe = run.model, run.recipe
    assert (model.num_layers, model.hidden_size, model.ffn_hidden_size, model.gated_linear_unit) == (
        16, 2048, 8192, True,
    )  # fmt: skip
    assert (model.normalization, model.vocab_size, model.add_bias_linear) == ("NonParametricLayerNorm", 50280, False)
    assert model.untie_embeddings_and_output_weights is False
    assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.seq_length, run.gpus) == (8, 2048, 4096, 8)
    assert (recipe.precision, recipe.data_parallel_sharding) == ("bf16", "optim_grads_params")
    assert run.measured.step_seconds == pytest.approx(6.0)
    assert [name for name, _ in row.missing] == ["gpu"]


@pytest.mark.parametrize(("said", "other", "told"), tabled("readers", "what_nobody_reads_of_olmo_leaves_the_run_open"))
def test_what_nobody_reads_of_olmo_leaves_the_run_open(said: str, other: str, told: str, tmp_path: Path) -> None:
    assert said in LINE
    path = put(tmp_path / "a.log", LINE.replace(said, other) + samples()["olmo"])
    (row,) = read_log(path, incomplete=True).rows
    assert "micro_batch_size" in [name for name, _ in row.missing]
    assert any(text.startswith(f"{told}=") and "not read" in text for text in row.doubts)


@pytest.mark.parametrize(("said", "other", "name", "value"), tabled("readers", "olmos_words"))
def test_olmos_words(said: str, other: str, name: str, value: object) -> None:
    assert said in LINE
    found, _ = arguments(LINE.replace(said, other, 1))
    assert found.get(name) == value
    assert arguments("no configuration") == ({}, ())
