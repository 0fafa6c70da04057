"""Runs the command line as a user does, or in this process where a subprocess would only cost time."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command_line
from asked import ROOT

EXAMPLES = ROOT / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
DEEPSEEK = str(EXAMPLES / "deepseek_v3_h100.yaml")
#: What commands read where no flag says it.
VARIABLES = ("PRIMUS_GPU_ARCH", "PRIMUS_GEMM_BACKEND", "PRIMUS_GPU_CLOCK_MHZ", "NNODES", "GPUS_PER_NODE")
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
    made = command_line.run("projector", *arguments, cwd=cwd, env=env)
    return Done(made.returncode, made.stdout, made.stderr)
