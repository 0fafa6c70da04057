"""The CPU as a device, and a stopwatch that is quick rather than exact. Skips where torch is not installed."""

from pathlib import Path

import pytest
from benchmark_cases import SMALL

from projector.benchmark.device import Device, open_device
from projector.benchmark.stopwatch import Stopwatch
from tests.workloads import written


@pytest.fixture(scope="session")
def cpu() -> Device:
    pytest.importorskip("torch")
    return open_device("cpu", threads=1)  # two that wait for each other are slow where others run


@pytest.fixture
def quick(cpu: Device) -> Stopwatch:
    return Stopwatch(cpu, samples=3, flush=False, most=0.01, warm=0.0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return written(tmp_path / "small.yaml", SMALL, {})
