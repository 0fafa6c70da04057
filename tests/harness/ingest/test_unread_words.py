"""A value is read, or it is said: no word of a record is dropped in silence, and what is unread stays with the run."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st
from loose_cases import SIMUMAX, one, record

from harness.contracts.results import COLUMNS
from harness.evaluation.evaluate import Selected, row_of
from harness.evidence import dataset, run_text
from harness.evidence.ingest import vocabulary
from harness.evidence.ingest.command import ingest
from harness.evidence.ingest.context import Context, read_context
from harness.evidence.ingest.loose import convert
from harness.evidence.ingest.settings import plain_key
from harness.evidence.ingest.tables import read_records
from projector.errors import InputError, Unsupported
from projector.intake import detect, megatron_args
from projector.io.files import read_text

#: Words that say a source's kind, and nothing of its run.
SAYS_NOTHING = ("source_kind",)
NESTED = ("args", "config_exports", "env")
NONSENSE = st.text("bcdfghjkqvxz", min_size=6, max_size=9).map(lambda text: f"zq{text}")

RICH: dict[str, Any] = record(
    model="Mixtral 8x7B (32 layers)",
    ep=8,
    etp=1,
    arch={"layers": 32, "hidden": 4096, "norm": "RMSNorm", "position": "rotary", "swiglu": True, "attention": "gqa"},
    zero="FSDP2, shard 8",
    recompute="selective: layernorm, moe_act",
    schedule="no pipeline",
    flash_attn="FA3",
    deepep=True,
    grouped_gemm="turbo",
    metrics={"iteration_ms": 10000.0, "memory_gb": 60, "memory_kind": "reserved", "status": "ok", "samples": 9},
    other={
        "result": "passed",
        **dict.fromkeys(("compile", "liger_kernel", "cuda_graphs", "mock_data", "sequence_parallel"), True),
        "attention": "flash", "optimizer": "adam", "routing": "uniform", "dataset": "c4", "phase": "pre-training",
        "overlap_grad_reduce": True, "turbo_deepep_num_cu": 64, "cpu_offload": "none", "torch_dtype": "bfloat16",
        "mixed_precision": "no", "loss_fusion": "te", "precision_aware_optimizer": "bf16", "grad_accum": 16,
        "moe_path": "sparse_matmul dropless, turbo grouped GEMM", "float8_recipe": "rowwise", "lora": False,
        "network": "8 x 400 Gb/s InfiniBand", "topology": "rail-optimised", "packed": True, "bf16": True, "swiglu": True,
        "args": {"moe_router_dtype": "fp32", "recompute_modules": ["layernorm"], "grad_reduce_in_fp32": True},
        "config_exports": {"FULL_CUDA_GRAPH": False, "NVTE_FUSED_ATTN": 1}, "env": {"CUDA_DEVICE_MAX_CONNECTIONS": 1},
    },
)  # fmt: skip

Path_ = tuple[str, ...]


def places(data: dict[str, Any]) -> Iterator[Path_]:
    """Where the values of a record stand."""
    for key, value in data.items():
        if key in ("arch", "metrics", "other") and isinstance(value, dict):
            for inner, item in value.items():
                if inner in NESTED and isinstance(item, dict):
                    yield from ((key, inner, name) for name, leaf in item.items() if leaf is not None)
                elif item is not None:
                    yield key, inner
        elif value is not None and key not in SAYS_NOTHING:
            yield (key,)


def changed(data: dict[str, Any], place: Path_, change: Callable[[Any], Any]) -> dict[str, Any]:
    made = copy.deepcopy(data)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = change(inner[place[-1]])
    return made


def said(data: dict[str, Any]) -> str:
    """All that an import says of a record, the run that it writes included."""
    made = convert([data], "t")
    row = made.rows[0]
    return " ".join((*row.unread, *row.refused, *row.assumed, run_text.to_yaml(made.runs)))


def neutral(place: Path_) -> bool:
    return vocabulary.changes_nothing(plain_key(".".join(place)), "another value")


def broken(data: dict[str, Any], place: Path_, word: str) -> list[str]:
    """The changes of one value by a nonsense word that pass in silence."""
    if neutral(place):
        return []
    changes = {
        "replaced": lambda _: word,
        "qualified": lambda old: [*old, word] if isinstance(old, list) else f"{old} ({word})",
    }
    return [name for name, change in changes.items() if word not in said(changed(data, place, change))]


@given(st.sampled_from([(data, place) for data in (RICH, SIMUMAX) for place in places(data)]), NONSENSE)
def test_no_word_of_a_record_is_dropped_in_silence(case: tuple[dict[str, Any], Path_], word: str) -> None:
    assert broken(*case, word) == []


def test_nor_of_any_row_of_the_corpora(shared: Path, every: int) -> None:
    seen: set[tuple[Path_, str]] = set()
    silent = []
    for table in sorted((shared / "corpus").glob("*.yaml")):
        if every > 1 and table.stat().st_size > 500_000:
            continue  # a second each to parse
        for data in read_records(table)[::every]:
            assert isinstance(data, dict)
            for place in places(data):
                framework = str(data.get("framework"))
                if (place, framework) not in seen:
                    seen.add((place, framework))
                    silent += [(table.stem, data["id"], place, how) for how in broken(data, place, "zqkvbx")]
    assert silent == []


@given(st.sampled_from(sorted(vocabulary.subjects())), NONSENSE)
def test_nonsense_is_unread_by_every_subject(subject: str, word: str) -> None:
    found = vocabulary.read(subject, word)
    assert (dict(found.settings), dict(found.usual), found.unread) == ({}, {}, (word,))
    assert not found.understood


@pytest.mark.parametrize("denial", ["not", "no", "without"])
def test_a_word_that_is_denied_is_not_taken(denial: str) -> None:
    found = vocabulary.read("optimizer", f"adam, {denial} bf16 states")
    assert (dict(found.settings), " ".join(found.unread).split()[-2:]) == ({"optimizer": "adam"}, ["bf16", "states"])


def test_a_value_without_end_takes_no_time_and_its_rest_is_said() -> None:
    for subject in vocabulary.subjects():
        assert vocabulary.read(subject, "-" * 10**6).unread[0] == "999000 characters more"


@given(st.text(max_size=60))
def test_any_text_is_accounted_for(text: str) -> None:
    for subject in vocabulary.subjects():
        found = vocabulary.read(subject, text)
        assert all(word.strip() for word in found.unread)


def test_a_key_that_nobody_knows_is_unread_unless_it_is_off() -> None:
    run, row = one(**record(other={"paged_stash": True, "sub_graphs": False, "recipe_source": "a file"}))
    assert run.unread == row.unread == ("paged_stash: True",)


@pytest.mark.parametrize(
    ("key", "same", "other"),
    [
        *[("packed", True, False), ("bf16", True, False), ("fp8", False, "hybrid"), ("fp4", None, "e2m1")],
        *[("swiglu", True, False), ("disable_bias_linear", True, False), ("moe_router_topk", 2, 4)],
        *[("normalization", "RMSNorm", "LayerNorm"), ("power_limited", False, True), ("hidden_dropout", 0.0, 0.1)],
        *[("multi_latent_attention", False, True), ("position_embedding_type", "rope", "alibi")],
    ],
)
def test_what_a_row_says_again_is_unread_where_it_is_something_else(key: str, same: object, other: object) -> None:
    base = record(model="Mixtral 8x7B (32 layers)", ep=8, etp=1)
    before = one(**base)[0]
    for value in (same, other):
        run, _ = one(**(base | {"other": {key: value}}))
        told = f"{key}: {value}" in run.unread
        assert told == (value == other and (run.model, run.recipe) == (before.model, before.recipe)), value


@pytest.mark.parametrize("key", ["lora_rank", "lora_dim", "lora_r"])
def test_a_rank_of_adapters_is_a_training_of_adapters(key: str) -> None:
    run, _ = one(**record(other={key: 8}))
    assert run.recipe.lora.dim == 8


def test_a_pattern_of_dense_layers_is_taken() -> None:
    run, _ = one(**record(model="Mixtral 8x7B (32 layers)", ep=8, etp=1, arch={"moe_layer_freq": "[0]*2+[1]*30"}))
    assert run.model.moe.moe_layer_freq == (0,) * 2 + (1,) * 30
    run, _ = one(**record(model="Mixtral 8x7B (32 layers)", ep=8, etp=1, arch={"moe_layer_freq": "zqkv"}))
    assert any("zqkv" in text for text in run.unread)


def test_of_two_that_disagree_the_stronger_counts_and_the_other_is_said() -> None:
    run, _ = one(**record(recompute="full", other={"recompute_granularity": "none"}))
    assert run.recipe.recompute_granularity == "full"
    assert run.unread == ("recompute_granularity: recompute_granularity=none where full is stated too",)


def test_alternatives_of_other_gpus_are_left_out_and_no_others() -> None:
    text = "FP8 (32x32 on GB200/B200; 128x128 on H100; zqkv)"
    assert vocabulary.part_for(text, "h100_sxm") == "FP8 (; 128x128 on H100; zqkv)"


def test_what_is_unread_stays_with_the_run_and_its_row(tmp_path: Path) -> None:
    from harness.contracts.runs import Prediction

    run, _ = one(**record(other={"attention": "FlexAttention", "paged_stash": "yes; on 2 streams"}))
    assert run.unread == ("attention: FlexAttention", "paged_stash: yes, on 2 streams")
    assert dataset.read(put(tmp_path / "runs.yaml", run_text.to_yaml([run]))) == [run]
    row = row_of(Selected("", run), "simulate", "uncalibrated", Prediction(status="unsupported"), None)
    assert row.unread == "attention: FlexAttention; paged_stash: yes, on 2 streams"
    assert COLUMNS[-1] == "unread"


def test_a_log_is_as_unread_for_a_projection_as_for_an_import(shared: Path) -> None:
    """What ``projector performance --config LOG`` says of a log is what ``harness ingest LOG`` says."""
    compared = 0
    for log in sorted((shared / "logs_wild").glob("*.log")):
        if not megatron_args.is_dump(read_text(log)):
            continue
        try:
            imported = ingest([log], said=Context(gpu="v100_sxm_32gb"))
            loaded = detect.load(log)
        except (InputError, Unsupported):
            continue
        runs = [run for run in imported.runs if run.recipe is not None]
        told = {text.replace("=", ": ", 1).replace(";", ",") for text in loaded.unmodelled}
        assert [set(run.unread) for run in runs] == [told] * len(runs), log.name
        compared += len(runs)
    assert compared > 5


def test_a_word_of_the_file_beside_a_log_is_said_too(tmp_path: Path) -> None:
    """``ingest LOG --recipe FILE`` names what ``performance --config FILE`` names."""
    head = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
    (tmp_path / "job.toml").write_text(f"{head}[experimental]\nzqkv = 3\n")
    lines = (
        f"[titan] 2025-01-01 10:0{step}:00,000 - root - INFO - step: {step}  loss: 8.1  memory: 50.2GiB(63%)  tps: 273"
        "  tflops: 15.8"
        for step in range(1, 10)
    )
    (tmp_path / "run.log").write_text("\n".join(lines))
    context = read_context(tmp_path / "job.toml", gpu="h100", gpus=8)
    (run,) = ingest([tmp_path / "run.log"], said=context).runs
    told = detect.load(tmp_path / "job.toml", gpus=8)
    assert {text.replace("=", ": ", 1) for text in told.unmodelled} == set(run.unread)
    assert any("zqkv" in text for text in run.unread)
    assert set(told.assumed) <= set(run.assumed)


def test_a_recipe_beside_a_log_has_the_names_that_a_case_has(tmp_path: Path) -> None:
    beside = put(tmp_path / "recipe.yaml", "recipe: {seq: 4k, mbs: 1, gbs: 64, lora_rank: 8}")
    context = read_context(beside)
    assert context.stated == {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 64, "lora": {"dim": 8}}
    assert context.recipe is not None
    beside.write_text("recipe: {seq: 4096, seq_length: 4096}")
    refusal(read_context, beside, match="one name of the field seq_length")
