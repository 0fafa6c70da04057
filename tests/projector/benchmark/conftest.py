"""The CPU as a device, and a stopwatch that is quick rather than exact. Skips where torch is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.benchmark.device import Device, open_device
from projector.benchmark.stopwatch import Stopwatch

SMALL = """\
model:
  base: llama3_8b
  num_layers: 2
  hidden_size: 64
  ffn_hidden_size: 128
  num_attention_heads: 4
  num_query_groups: 2
  kv_channels: 16
  vocab_size: 512
recipe: {micro_batch_size: 1, global_batch_size: 2, seq_length: 64, precision: bf16}
gpus: 1
cluster: cpu
"""


@pytest.fixture(scope="session")
def cpu() -> Device:
    pytest.importorskip("torch")
    return open_device("cpu", threads=1)  # two that wait for each other are slow where others run


@pytest.fixture
def quick(cpu: Device) -> Stopwatch:
    return Stopwatch(cpu, samples=3, flush=False, most=0.01, warm=0.0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path
