"""Runs the command line as a user does, or in this process where a subprocess would only cost time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
DEEPSEEK = str(EXAMPLES / "deepseek_v3_h100.yaml")
ON_MI355X = ("--config", MIXTRAL, "--cluster", "mi355x", "--target-nodes", "8")


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def refused(self) -> list[str]:
        """The lines of a refusal: exit code 2, nothing on stdout, no traceback."""
        assert (self.code, self.out) == (2, "")
        assert "Traceback" not in self.err
        assert self.err
        return self.err.splitlines()


def projector(*arguments: str, cwd: Path | None = None, **env: str) -> Done:
    """``python -m projector`` with these arguments and variables."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PRIMUS_", "NNODES", "GPUS_PER"))}
    made = subprocess.run(
        [sys.executable, "-m", "projector", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd or ROOT,
        env=clean | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | env,
        timeout=60,
        check=False,
    )
    return Done(made.returncode, made.stdout, made.stderr)
