"""What Primus takes and does nothing with, what a hardware file says to no avail, and how many hosts a batch can use."""

from types import SimpleNamespace

import pytest
import workloads
from cli_command import projector

from projector.benchmark.shrink import shrink_to
from projector.cli import performance

EXPERIMENT = """
work_group: amd
user_name: root
exp_name: e
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: mixtral_8x7B_v0.1.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 256, seq_length: 4096, expert_model_parallel_size: 8}
"""


@pytest.fixture
def shown(tmp_path):
    """The lines of ``performance`` that begin with a word."""
    file = tmp_path / "MI300X" / "e.yaml"
    file.parent.mkdir()
    file.write_text(EXPERIMENT)

    def lines(word: str, *arguments: str) -> str:
        done = projector("performance", "--config", str(file), *arguments)
        assert (done.code, done.err) == (0, "")
        return "\n".join(line for line in done.out.splitlines() if word in line)

    return lines


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("use_flash_attn=false", "--attention-backend unfused"),
        ("enable_zero_bubble=true", "--enable-zero-bubble projects it"),
        ("context_model_parallel_size=2", "--cp 2 splits the sequence"),
    ],
)
def test_switches_without_effect_are_named_with_the_reason(shown, said: str, why: str) -> None:
    line = shown("Without effect: ", "--target-nodes", "4", said)
    assert f"{said}: " in line
    assert why in line
    assert shown("simulate ", "--target-nodes", "4", said) == shown("simulate ", "--target-nodes", "4")


def test_zero_bubble_acts_once_it_is_patched_in(shown) -> None:
    words = ("--target-nodes", "4", "--pp", "4", "enable_zero_bubble=true", "patch_zero_bubble=true")
    assert "schedule zb_h1" in shown("schedule ", *words)
    assert "enable_zero_bubble" not in shown("Without effect", *words)


def test_keys_of_a_hardware_file_that_nothing_feels(shown, tmp_path) -> None:
    file = tmp_path / "hardware.yaml"
    keys = "{node_bw: 100, node_topology: mesh, switch_topology: true, p2p_bw_eff: 0.5}"
    file.write_text(f"hardware_config: {keys}\n")
    found = shown("without effect", "--target-nodes", "4", "--hardware-config", str(file))
    assert "without effect: node_topology, switch_topology: as the cluster has it" in found
    assert "p2p_bw_eff (felt by messages between pipeline stages)" in found
    assert "node_bw" not in found
    piped = shown("without effect", "--target-nodes", "4", "--pp", "4", "--hardware-config", str(file))
    assert "p2p_bw_eff" not in piped


def test_what_a_benchmark_shrank_to_stands_beside_the_target(monkeypatch) -> None:
    run = workloads.sharded("mixtral_8x7b", 64, tp=2, pp=4, ep=8, cp=1)
    shrunk = shrink_to(run, 4)
    timed = SimpleNamespace(asked=SimpleNamespace(workload=shrunk.workload, ranks=shrunk.ranks), notes=())
    monkeypatch.setattr("projector.cli.live.measurement", lambda *_: timed)
    words = performance._timed(SimpleNamespace(workload=run, cluster=None), SimpleNamespace())
    assert "pp 1, ep 4, tp 2, cp 1 on 4 of 64 ranks; target: pp 4, ep 8, tp 2, cp 1, dp 8" in words


def test_hosts_that_a_batch_can_use(shown) -> None:
    assert "at most 16 hosts are useful with these 4 micro-batches a rank" in shown("Job: ", "--target-nodes", "4")
    assert "no more micro-batches: at most 16 hosts are useful" in shown("Job: ", "--target-nodes", "16")
