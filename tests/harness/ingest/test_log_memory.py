"""Logs are streamed: the peak memory of a process does not grow with the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOG = Path(__file__).resolve().parents[2] / "data" / "logs" / "megatron_b.log"
LARGEST = 300.0  # MB of memory, whatever the log's size
SCRIPT = """
import json, pathlib, resource, sys
from harness.evidence.ingest.command import load
(run,) = load(sys.argv[1]).runs
status = pathlib.Path("/proc/self/status")  # ru_maxrss would hold what the parent was before exec
if status.exists():
    peak = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
print(json.dumps([peak, run.measured.step_seconds, run.measured.samples]))
"""


def write_log(path: Path, megabytes: float) -> int:
    """A log of that size with the arguments of the small one; how many steps it has."""
    head, _, rest = LOG.read_text().partition("end of arguments")
    mark, _, body = rest.partition("\n")
    line = body.splitlines()[-1]
    number = line.partition("iteration ")[2][:8]
    wanted, written, step = megabytes * 1e6, 0, 0
    with path.open("w") as file:
        written += file.write(f"{head}end of arguments{mark}\n")
        while written < wanted:
            step += 1
            written += file.write(
                line.replace(number, f"{step:8d}", 1).replace("6000.0", f"{5990 + step % 21}.0") + "\n"
            )
    return step


def measured(path: Path) -> tuple[float, float, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    peak, step, samples = json.loads(done.stdout)
    return peak, step, samples


def test_memory_grows_with_the_steps_only(tmp_path: Path) -> None:
    """35 bytes a step: a gigabyte of iteration lines has some two million."""
    small, large = tmp_path / "small.log", tmp_path / "large.log"
    write_log(small, 1)
    steps = write_log(large, 40)
    before, _, _ = measured(small)
    after, seconds, samples = measured(large)
    assert seconds == pytest.approx(6.0, rel=1e-3)
    assert samples == steps - 5
    assert after < LARGEST
    assert (after - before) * 1e6 / steps < 200  # bytes a step, with the working copies of the steady state


@pytest.mark.slow
def test_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    steps = write_log(path, 1000)
    peak, _, samples = measured(path)
    path.unlink()
    assert samples == steps - 5
    assert peak < LARGEST
