"""What a schedule demands of the rest of a recipe, in words."""

from __future__ import annotations

from projector.pipeline.schedules import generator, names


def recompute_conflict(name: str, whole_layers: bool) -> str | None:
    """Why the schedule ``name`` does not run when ``whole_layers`` are recomputed; ``None`` where it does.

    A whole layer that is recomputed lives only inside its own backward: its activations are rebuilt there and freed at
    its end, so a weight gradient that is put off finds none. Keeping them until ``W`` would keep what recompute saves.
    AMD-AGI/Primus@fd1eeabb refuses the pair in its projection and falls back on whole backwards; selective recompute
    rebuilds operators whose inputs are kept, which ``W`` can use.
    """
    found = generator(name)
    if not found.split or not whole_layers:
        return None
    return (
        "the schedule puts weight gradients off, but recompute of whole layers (recompute_granularity=full, "
        "recompute_layer_ids) frees what they need at the end of each backward: use recompute none or selective, or a "
        f"schedule with whole backwards ({', '.join(each for each in names() if not generator(each).split)})"
    )
