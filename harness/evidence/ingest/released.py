"""What the recipe of a release recomputes, where a source leaves that open and names the release.

Its own measured memory decides: a fifth or more below a projection without recompute, it was recomputed; where no memory was
measured, the recipe is believed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from harness.contracts.runs import Measured
from harness.evidence.ingest.record import Record
from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.intake import nemo_recipes
from projector.intake.bridge_recipes import recompute_of
from projector.workload.workload import Workload

_RELEASE = re.compile(r"megatron-?bridge\W*v?(\d+\.\d+)", re.IGNORECASE)
_NEMO = re.compile(r"\bnemo\W*(?:framework\W*)?v?(?:2\.\d|2[5-9]\.\d\d)", re.IGNORECASE)  # 2, and images since 25.02
_LESS = 0.8  # of the memory without recompute
_MOST_PROJECTIONS = 500  # of one import: a table of any length stays bounded
_GIB = 2.0**30


def completed(record: Record, workload: Workload, measured: Measured, gpu: str) -> Workload:
    """``workload`` with the recompute of the release's recipe, listed as assumed."""
    recipe, version = workload.recipe, record.text("framework_version")
    release, nemo = _RELEASE.search(version), _NEMO.search(f"{record.text('framework')} {version}")
    if not (release or nemo) or recipe.recompute_granularity is not None or recipe.lora is not None:
        return workload
    name = workload.model.name
    fields = recompute_of(name, release[1]) if release else nemo_recipes.recompute_of(name)
    if fields.get("recompute_granularity", "none") == "none":
        return workload
    which = f"the recipe of {name} in {f'Megatron-Bridge {release[1]}' if release else 'NeMo 2'}"
    peak, plain = measured.peak_memory_gib, _memory(workload, gpu) if measured.peak_memory_gib else None
    if peak and plain:
        share = 1 - peak / plain
        which += (
            f", where {peak:.1f} GiB are {abs(share):.0%} {'below' if share > 0 else 'above'} the {plain:.1f} without"
        )
        if peak > _LESS * plain:
            record.doubts.append(f"recompute not stated and taken for none, against {which}")
            return workload
    record.assume(f"{', '.join(f'{name}={value}' for name, value in fields.items())} ({which})")
    changed: Any = dict(fields)
    return replace(workload, recipe=replace(recipe, **changed))


@lru_cache(maxsize=4096)
def _memory(workload: Workload, gpu: str) -> float | None:
    """GiB that the fullest rank reserves; None where that is not modelled, or too many were asked for."""
    from projector.projection import project

    if _memory.cache_info().misses > _MOST_PROJECTIONS or not catalogue.knows_gpu(gpu):
        return None
    try:
        return float(project(workload, catalogue.default_cluster(gpu)).memory.reserved) / _GIB
    except (InputError, Unsupported):
        return None
