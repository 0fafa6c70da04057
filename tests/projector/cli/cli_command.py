"""Examples of configurations, and commands of ``projector`` without its name: what they tell, and how they refuse."""

from functools import partial
from pathlib import Path

import command_line
from asked import ROOT

__all__ = ["DEEPSEEK", "MIXTRAL", "ON_MI355X", "ROOT", "VARIABLES", "document", "refused", "told"]

MIXTRAL, DEEPSEEK = (str(ROOT / "examples" / f"{name}.yaml") for name in ("mixtral_8x22b_mi355x", "deepseek_v3_h100"))
#: What commands read where no flag says it.
VARIABLES = ("PRIMUS_GPU_ARCH", "PRIMUS_GEMM_BACKEND", "PRIMUS_GPU_CLOCK_MHZ", "NNODES", "GPUS_PER_NODE")
ON_MI355X = ("--config", MIXTRAL, "--cluster", "mi355x", "--target-nodes", "8")
told, document = partial(command_line.told, "projector"), partial(command_line.document, "projector")


def refused(*words: str | Path) -> list[str]:
    """The lines that a command says which refuses."""
    return command_line.refused("projector", *words).splitlines()
