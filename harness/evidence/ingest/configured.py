"""What a record says of a run beside its figures: read once for all rows that say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.contracts.runs import Source, Stack
from harness.evidence.ingest.architecture import architecture
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.parallel import Sizes
from harness.evidence.ingest.provenance import gpu_of, gpus_per_node, source_of, stack_of
from harness.evidence.ingest.recipe import group_sizes, recipe_of, recipe_words
from harness.evidence.ingest.record import Record
from projector.hardware import catalogue
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_MOST_KINDS = 64  # patterns of filled cells of one table


@dataclass(frozen=True, kw_only=True)
class Configured:
    """What a record says of a run beside its figures, with the texts that reading it left on the record.

    ``place``: of the record, which is the title of a source that is not stated.
    """

    gpu: str
    stack: Stack
    source: Source
    model: Model | None
    name: str
    words: dict[str, object]
    size: Sizes
    recipe: Recipe | None
    workload: Workload | None
    gpus_per_node: int | None
    cluster: str | None
    group: str
    note: str
    mtp_stated: bool
    switches: Mapping[str, object]
    used: frozenset[str]
    texts: tuple[tuple[str, ...], ...]
    unread: Mapping[str, str]
    place: str


def configure(record: Record, known: ImportMap) -> Configured:
    """Read every field that is no figure; what stops a projection is refused on the record."""
    gpu, stack, source = gpu_of(record), stack_of(record), source_of(record, known.strip)
    model, name = architecture(record)
    words = recipe_words(record, stack, gpu)
    size = group_sizes(record, model, stack, words)
    recipe = recipe_of(record, gpu, model, size, words)
    workload = None
    if model is not None and recipe is not None and size.gpus:
        workload = Workload(
            model=model, recipe=recipe, gpus=size.gpus, framework=stack.framework, framework_date=stack.date
        )
    switches: dict[str, object] = {}
    if path := record.text("other.moe_path"):
        switches["moe_path"] = path
    if phase := words.pop("phase", None):
        switches["phase"] = phase
    node = gpus_per_node(record, size.gpus)
    return Configured(
        gpu=gpu,
        stack=stack,
        source=source,
        model=model,
        name=name,
        words=words,
        size=size,
        recipe=recipe,
        workload=workload,
        gpus_per_node=node if gpu and not _rack(gpu) else None,
        cluster=record.text("cluster") or None,
        group=record.text("group"),
        note=_note(record, known),
        mtp_stated=_mtp_stated(record),
        switches=switches,
        used=frozenset(record.used),
        texts=(tuple(record.mapped), tuple(record.assumed), tuple(record.refused), tuple(record.doubts)),
        unread=dict(record.unread),
        place=record.where,
    )


class Memory:
    """Configurations by what was read to make them.

    A configuration follows from which keys a record has and from the values that were looked at, and from nothing else: the
    keys of a first reading that looked at more than those before it forget what was known of their kind.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._kinds: dict[tuple[str, ...], tuple[tuple[str, ...], dict[tuple[object, ...], Configured]]] = {}

    def configured(self, record: Record, known: ImportMap) -> Configured:
        """As :func:`configure`, from memory where an equal configuration was read before."""
        kind = tuple(record.values)
        looked, made = self._kinds.get(kind, ((), {}))
        found = made.get(tuple(map(record.values.__getitem__, looked))) if made else None
        if found is not None:
            _recall(record, found)
            return found
        values = record.values
        watched = Watched(values)
        record.values = watched
        found = configure(record, known)
        record.values = values
        if any(record.where in text for texts in found.texts for text in texts):
            return found
        seen = watched.seen & values.keys()
        if not seen <= set(looked):
            looked, made = tuple(sorted({*looked, *seen})), {}
        if len(made) >= self._most:
            made.clear()
        made[tuple(map(values.__getitem__, looked))] = found
        self._kinds[kind] = (looked, made)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.clear()
        return found


class Watched(dict[str, object]):
    """Values that remember which of them were looked at."""

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> object:
        found = super().__getitem__(key)
        self.seen.add(key)
        return found

    def get(self, key: str, default: object = None) -> object:
        self.seen.add(key)
        return super().get(key, default)


def _recall(record: Record, found: Configured) -> None:
    """What reading the configuration would have left on the record."""
    record.used |= found.used
    mapped, assumed, refused, doubts = found.texts
    record.mapped += mapped
    record.assumed += assumed
    record.refused += refused
    record.doubts += doubts
    record.unread |= found.unread


def _rack(gpu: str) -> bool:
    """A fast domain wider than a host (NVL72): nodes of a table are hosts, not domains."""
    if not catalogue.knows_gpu(gpu):
        return False
    cluster = catalogue.default_cluster(gpu)
    return cluster.gpus_per_node > cluster.gpus_per_host


def _note(record: Record, known: ImportMap) -> str:
    note = record.text("note")
    for pattern in known.strip:
        note = re.sub(pattern, "", note)
    return re.sub(r"\s+", " ", note).strip()


def _mtp_stated(record: Record) -> bool:
    keys = ("other.mtp_num_layers", "other.args.mtp_num_layers", "arch.mtp_layers", "other.mtp_layers")
    return any(key in record.values for key in keys) or "mtp" in record.text("model").lower()
