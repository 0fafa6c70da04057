"""Flags whose files a test writes; the others are rows of ``tests/founding/flag_items.yaml``."""

import itertools
import json
from pathlib import Path

import pytest
from asked import put
from cli_command import DEEPSEEK, MIXTRAL, ROOT, refused, told
from tabled import tabled

from projector.cli import run
from projector.hardware import catalogue
from projector.plan.assumptions import ASSUMPTIONS

DATA = ROOT / "tests" / "projector" / "intake" / "data"


@pytest.fixture
def document(document):
    """With the Mixtral example for its configuration."""
    return lambda *flags, config=MIXTRAL, **how: document("--config", config, *flags, **how)


def seconds(made):
    return made["projections"]["simulate"]["step_seconds"]


def exchange(made):
    return made["projections"]["simulate"]["breakdown"]["ep_s"]


def test_cluster_file(document, tmp_path):
    file = tmp_path / "mine.yaml"
    text = (ROOT / "projector" / "hardware" / "clusters" / "mi355x.yaml").read_text()
    file.write_text(text.replace("bandwidth_gbs: 535.5", "bandwidth_gbs: 53.55").replace("name: mi355x", "name: mine"))
    made = document("--cluster", str(file))
    assert made["cluster"]["name"] == "mine"
    assert seconds(made) > seconds(document("--cluster", "mi355x"))
    assert "inter.technology=infiniband (not stated)" in made["assumed"]
    file.write_text(file.read_text().replace("inter:", "inter:\n  technology: infiniband", 1))
    assert "inter.technology" not in " ".join(document("--cluster", str(file))["assumed"])


def test_hardware_config(document, tmp_path):
    file = put(tmp_path / "network.yaml", "hardware_config:\n  node_bw: 20\n  num_nodes: 3\n")
    slow, usual = document("--cluster", "mi355x", "--hardware-config", str(file)), document("--cluster", "mi355x")
    assert exchange(slow) > 2 * exchange(usual)
    assert any("node_bw" in note for note in slow["notes"])
    assert any("without effect: num_nodes" in note for note in slow["notes"])


@pytest.mark.parametrize(("name", "vpp", "schedule"), tabled("names", "schedules_of_primus"))
def test_schedules_by_the_names_of_primus_and_their_own(document, tmp_path, name, vpp, schedule):
    # weight gradients that are put off exclude recompute of whole layers, which the example asks for
    plain = tmp_path / "plain.yaml"
    plain.write_text(Path(MIXTRAL).read_text().replace("recompute_granularity: full", "recompute_granularity: null"))
    flags = ("--pipeline-schedule-algorithm", name, "--num-virtual-stages-per-pipeline-rank", str(vpp))
    made = document("--cluster", "mi355x", "--gpus", "64", *flags, config=str(plain))
    assert made["derived"]["schedule"] == schedule


_FIELDS = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_query_groups",
    "vocab_size": "vocab_size",
}


def test_model_of_a_name_or_a_hugging_face_file(document, tmp_path):
    on = ("--cluster", "mi355x", "--gpus", "64")
    named = document(*on, "--model", "mixtral_8x7b", "--num-virtual-stages-per-pipeline-rank", "4")
    assert named["model"]["name"] == "mixtral_8x7b"
    content = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    }  # fmt: skip
    put(tmp_path / "config.json", json.dumps(content))
    ours = "".join(f"{_FIELDS[name]}: {size}\n" for name, size in content.items() if name in _FIELDS)
    shape = put(tmp_path / "model.yaml", f"name: mine\n{ours}")
    sizes = "gpu: b200\ngpus: 8\nrecipe: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096}\n"
    named = document(config=str(put(tmp_path / "case.yaml", f"{sizes}model: config.json\n")))
    case = put(tmp_path / "case.yaml", sizes)
    for form in (tmp_path, tmp_path / "config.json", shape):
        given = document("--model", str(form), config=str(case))
        assert given["model"]["parameters"] == named["model"]["parameters"] > 7e9
        assert form == shape or given["projections"] == named["projections"]


def test_every_cluster_answers(capsys, every):
    """With figures, or with a reason in words."""
    for name, config in list(zip(catalogue.cluster_names(), itertools.cycle((MIXTRAL, DEEPSEEK))))[::every]:
        code = run(["performance", "--config", config, "--cluster", name])
        captured = capsys.readouterr()
        assert (code, bool(captured.out), bool(captured.err)) in ((0, True, False), (2, False, True)), name


@pytest.mark.parametrize(("flags", "idle"), tabled("workloads", "idle_flags"))
def test_a_flag_that_changes_nothing_is_named(flags: str, idle: bool) -> None:
    job = "--model mixtral_8x7b --gpu mi325x --framework primus --gpus 16 --mbs 1 --gbs 128 --seq 4096 --ep 8"
    shown = told("performance", *job.split(), *flags.split())
    assert any(f"Without effect: {flag} (" in shown for flag in flags.split()) == idle


WHOLE_RUN = [f"--assume={name.replace('_', '-')}={float(value):g}" for name, value in ASSUMPTIONS.items()]


@pytest.mark.parametrize("command", [["performance"], ["memory"], ["plan", "--tokens", "1T", *WHOLE_RUN]])
def test_strict_refuses_until_everything_is_stated(command: list[str]) -> None:
    job = [*command, "--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "16", "--strict"]
    said = "--framework megatron-lm --mbs 1 --gbs 64 --seq 8192 --tp 2 --recompute-granularity none --sequence-parallel"
    named = [line.partition(":")[0] for line in refused(*job, *said.split())]
    assert {"--optimizer", "--data-parallel-sharding", "--framework-date"} <= set(named)
    values = {"--optimizer": "adam", "--data-parallel-sharding": "optim", "--framework-date": "2026-05"}
    values |= {"--cross-entropy-fusion": "te", "--attention-backend": "fused"}
    rest = [word for flag in named for word in ([flag, values[flag]] if flag in values else [flag])]
    assert "Assumed" not in told(*job, *said.split(), *rest)


def test_strict_names_what_a_plan_assumes() -> None:
    first, *rest = ASSUMPTIONS
    job = ["plan", "--tokens", "1T", "--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "16", "--strict"]
    said = "\n".join(refused(*job, *WHOLE_RUN[1:]))
    assert [name for name in (first, *rest) if f"assumed {name}=" in said] == [first]


def test_mfu_by_each_published_formula(document):
    """One step, many counts: TFLOP/s over the peak is the MFU, and the projection's own is among them."""
    made = document("--mfu", "--gpu-arch", "mi355x")
    found = {each["formula"]: each for each in made["mfu_by_formula"]}
    assert found["megatron-2026-05"]["mfu"] == pytest.approx(made["projections"]["simulate"]["mfu"])
    ratios = {each["mfu"] / each["tflops"] for each in found.values()}
    assert max(ratios) == pytest.approx(min(ratios))
    counts = [each["gflop"] for each in made["mfu_by_formula"]]
    assert counts == sorted(counts, reverse=True)
    assert sum(each["own"] for each in found.values()) == 1
