"""The error that a projected peak may have, which the verdict must leave to either side of the limit.

It depends on how weights and memory are managed, since that decides which bytes a plan may miss: ``planned`` (a compiler
places every buffer; it also trades speed for memory when it does not fit), ``adapters`` (weights without gradients or
states: saved tensors decide), else by data parallelism. A kind with too few measured peaks has the tolerance of all of them.

``new``: models with layers whose saved tensors nobody has counted (recurrent mixers, compressed attention, several
residual streams). Their few peaks say nothing of others, and others nothing of them: the largest error seen is theirs.
"""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.memo import cached_on
from projector.parameter import parameter
from projector.workload.layer_kinds import Recurrent
from projector.workload.model import Model
from projector.workload.sparse import CompressedAttention

NEW = "new"

TOLERANCE = parameter(
    {"planned": 0.175, "ddp": 0.150, "fsdp2": 0.155, "adapters": 0.175, "new": 0.228, "other": 0.175},
    kind="fitted",
    source="python -m harness tolerance: |ln(measured / projected peak)| that nine of ten measured peaks stay within, of "
    "all sources but the oddest, those included that nobody had tuned on; a source weighs as many of its peaks as there "
    "are, up to ten; new: the largest; a kind of few sources has no less than all",
    low=0.0,
    high=1.0,
    scored=True,
)


def kind(resolved: Resolved) -> str:
    """Returns the kind of management that decides the error of a plan, a key of :data:`TOLERANCE`."""
    if uncounted(resolved.workload.model):
        return NEW
    if resolved.workload.recipe.lora:
        return "adapters"
    sharing = resolved.execution.data_parallel
    return (
        "planned" if resolved.execution.allocator.planned else sharing.name if "weights" in sharing.divided else "ddp"
    )


@cached_on(0)
def uncounted(model: Model) -> bool:
    """Returns whether nobody has counted the tensors that the model's layers save."""
    mixers = (kind.mixer for kind in model.layer_kinds)
    several = model.residual_width > model.hidden_size
    return several or any(isinstance(mixer, Recurrent | CompressedAttention) for mixer in mixers)


def tolerance(resolved: Resolved) -> float:
    """Returns |ln(true / projected)| of the peak that is exceeded once in ten runs."""
    return TOLERANCE.get(kind(resolved), TOLERANCE["other"])
