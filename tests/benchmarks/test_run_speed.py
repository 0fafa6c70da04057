"""A suite from new processes: what the second one is spared, beside the first in the same run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT


def test_a_suite_beside_itself_the_first_time(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", str(ROOT / "suites" / "moe.yaml"), "--quiet", "--out"]
    environment = {**os.environ, "PROJECTOR_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}

    def run(name: str) -> float:
        began = time.perf_counter()
        subprocess.run([*command, str(tmp_path / name), "--no-plots"], env=environment, check=True, capture_output=True)
        return time.perf_counter() - began

    first, again = run("first"), min(run("again"), run("again"))
    assert again < 0.6 * first  # a third when written
