"""Column names of results tables: which key each of the usual spellings means (``columns.yaml``)."""

from __future__ import annotations

from pathlib import Path

from projector.intake.dialect import words
from projector.io.files import read_yaml
from projector.workload.declared import about_of
from projector.workload.recipe import Recipe

_TOLD = {
    section: {key: spelt.split() for keys, spelt in told.items() for key in words(keys)}
    for section, told in read_yaml(Path(__file__).with_name("columns.yaml")).items()
}
_DECLARED = {name: (*told.names.get("megatron", ()), *told.also) for name, told in about_of(Recipe).items()}
TOP_KEYS, METRIC_KEYS, ARCH_KEYS = (frozenset(_TOLD[section]) for section in ("run", "metrics", "arch"))
ALIASES = {
    spelling: key if section == "run" else f"{section}.{key}"
    for section, told in _TOLD.items()
    for key, spelt in told.items()
    for spelling in (*spelt, *(_DECLARED.get(key, ()) if section == "run" else ()))
    if spelling != key
}
#: Key of an architecture → field of the model that it is.
FIELDS = {key: spelt[0] if spelt else key for key, spelt in _TOLD["arch"].items()}

#: What a table without a column of a run is told.
COLUMNS_OF_A_RUN = "columns of a run, such as model, gpu, gpus, tp, step_seconds"


def known_key(key: str) -> bool:
    """Whether a canonical key is one that some part of a run is read from."""
    return not key.startswith("other.")
