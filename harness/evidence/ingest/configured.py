"""What a record says of a run beside its figures: read once for all rows that say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.contracts.runs import Source, Stack
from harness.evidence.ingest.architecture import architecture
from harness.evidence.ingest.fields import framework_slug, software_date
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.parallel import Sizes
from harness.evidence.ingest.recipe import group_sizes, recipe_of, recipe_words
from harness.evidence.ingest.record import Record, integer
from projector import frameworks
from projector.dataclass import dataclass
from projector.frameworks import UNKNOWN
from projector.hardware import catalogue
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_KINDS = (
    ("log", r"\blog\b|raw|per-step"),
    ("figure", r"chart|image|figure|pixel"),
    ("table", r"table|chronicle"),
    ("issue", r"issue|pull-request|^pr$|measurement|reproduction"),
    ("document", r"blog|docs|repo"),
)


def source_of(record: Record, strip: tuple[str, ...] = ()) -> Source:
    """Returns title, revision (first hash or tag after ``@``), licence and kind. ``strip``: patterns cut from titles."""
    title = record.text("source") or record.where
    for pattern in strip:
        title = re.sub(pattern, "", title)
    revision = re.search(r"@\s*([0-9a-f]{7,40})\b", title)
    stated = record.text("source_kind").lower()
    kind = next((name for name, pattern in _KINDS if re.search(pattern, stated)), "table")
    return Source(
        title=re.sub(r"\s+", " ", title).strip(" ,;"),
        revision=revision[1] if revision else "",
        licence=record.text("licence"),
        kind=kind,
    )


def stack_of(record: Record) -> Stack:
    """Returns framework (a profile's name where one fits), version as stated, and month of the software where it is told."""
    text = record.text("framework") or _framework_of_source(record)
    slug = framework_slug(text)
    name = slug if slug in frameworks.names() else (frameworks.find(text) if text else None)
    if (
        name == "deepspeed"
        and "deepspeed" not in f"{text} {record.text('zero')}".lower()
        and not integer(record.values.get("zero"))
    ):
        name = "pytorch"  # a trainer of Hugging Face runs on what it is given
        record.assume(f"framework={name} ({text}: DeepSpeed is not named)")
    if not text:
        record.refuse("framework not stated")
    elif name is None:
        name = UNKNOWN
        record.assume(f"framework={UNKNOWN} ({text}: no profile, a wider interval)")
    else:
        record.map("framework", name, text)
    version = record.text("framework_version")
    stated = record.text("date").replace("/", "-")
    date = _day_or_month(stated) or software_date(
        version,
        record.text("other.container"),
        record.text("other.container_family"),
        record.text("other.run"),
        record.text("source"),
    )
    return Stack(framework=name or slug, version=version, date=date)


def _day_or_month(text: str) -> str:
    """Returns a stated date as it is where it starts with a year, else the month that its words name; words of neither kind
    stay, to be refused."""
    return text if re.match(r"\d{4}-", text) else software_date(text) or text


def _framework_of_source(record: Record) -> str:
    """Returns the framework that the source's own name tells, where no column does; else empty."""
    slug = framework_slug(str(record.values.get("source", "")))
    if slug not in frameworks.names():
        return ""
    record.assume(f"framework={slug} (named by the source)")
    return slug


def gpu_of(record: Record) -> str:
    """Returns the catalogue's name of the GPU; refuses one that is not stated or unknown."""
    text = record.text("gpu")
    if not text:
        record.refuse("gpu not stated")
        return ""
    name = catalogue.find_gpu(text)
    if name is None:
        record.refuse(f"unknown gpu {text!r}")
        return text.lower()
    record.map("gpu", name, text)
    return name


def gpus_per_node(record: Record, gpus: int | None) -> int | None:
    """Returns the GPUs of one node, where the record states a number other than the usual 8; else None."""
    stated, nodes = record.integer("gpus_per_node", "other.gpus_per_node"), record.integer("nodes")
    if stated is None and gpus and nodes and nodes > 1 and gpus % nodes == 0:
        stated = gpus // nodes
    return stated if stated not in (None, 8) else None


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
    """Reads every field that is no figure; what stops a projection is refused on the record."""
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
        gpus_per_node=node if gpu and not _is_rack(gpu) else None,
        cluster=record.text("cluster") or None,
        group=record.text("group"),
        note=_stripped_note(record, known),
        mtp_stated=_mtp_stated(record),
        switches=switches,
        used=frozenset(record.used),
        texts=(tuple(record.mapped), tuple(record.assumed), tuple(record.refused), tuple(record.doubts)),
        unread=dict(record.unread),
        place=record.where,
    )


class Memory:
    """Configurations by the values that were read to make them.

    A configuration follows from which keys a record has and from the values that were looked at, and from nothing else:
    where a first reading looks at more keys than those before it, what was known of that kind of record is forgotten.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._kinds: dict[tuple[str, ...], tuple[tuple[str, ...], dict[tuple[object, ...], Configured]]] = {}

    def configured(self, record: Record, known: ImportMap) -> Configured:
        """Returns what :func:`configure` returns, from memory where an equal configuration was read before."""
        kind = tuple(record.values)
        looked, known_values = self._kinds.get(kind, ((), {}))
        configured = known_values.get(tuple(map(record.values.__getitem__, looked))) if known_values else None
        if configured is not None:
            _recall(record, configured)
            return configured
        values = record.values
        watched = Watched(values)
        record.values = watched
        configured = configure(record, known)
        record.values = values
        if any(record.where in text for texts in configured.texts for text in texts):
            return configured
        seen = watched.seen & values.keys()
        if not seen <= set(looked):
            looked, known_values = tuple(sorted({*looked, *seen})), {}
        if len(known_values) >= self._most:
            known_values.clear()
        known_values[tuple(map(values.__getitem__, looked))] = configured
        self._kinds[kind] = (looked, known_values)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.clear()
        return configured


class Watched(dict[str, object]):
    """Values that remember which of them were looked at."""

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        self.seen.add(key)
        return value

    def get(self, key: str, default: object = None) -> object:
        self.seen.add(key)
        return super().get(key, default)


def _recall(record: Record, read: Configured) -> None:
    """Puts on the record what reading the configuration would have left there."""
    record.used |= read.used
    mapped, assumed, refused, doubts = read.texts
    record.mapped += mapped
    record.assumed += assumed
    record.refused += refused
    record.doubts += doubts
    record.unread |= read.unread


def _is_rack(gpu: str) -> bool:
    """Returns whether a fast domain is wider than a host (NVL72): nodes of a table are hosts, not domains."""
    if not catalogue.knows_gpu(gpu):
        return False
    cluster = catalogue.default_cluster(gpu)
    return cluster.gpus_per_node > cluster.gpus_per_host


def _stripped_note(record: Record, known: ImportMap) -> str:
    note = record.text("note")
    for pattern in known.strip:
        note = re.sub(pattern, "", note)
    return re.sub(r"\s+", " ", note).strip()


def _mtp_stated(record: Record) -> bool:
    keys = ("other.mtp_num_layers", "other.args.mtp_num_layers", "arch.mtp_layers", "other.mtp_layers")
    return any(key in record.values for key in keys) or "mtp" in record.text("model").lower()
