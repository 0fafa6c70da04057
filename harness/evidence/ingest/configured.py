"""What a record says of the origin of a run: its source, its software and its machine."""

from __future__ import annotations

import re

from harness.contracts.runs import Source, Stack
from harness.evidence.ingest.fields import framework_slug, software_date
from harness.evidence.ingest.record import Record, integer
from projector import frameworks
from projector.frameworks import UNKNOWN
from projector.hardware import catalogue

_KINDS = (
    ("log", r"\blog\b|raw|per-step"),
    ("figure", r"chart|image|figure|pixel"),
    ("table", r"table|chronicle"),
    ("issue", r"issue|pull-request|^pr$|measurement|reproduction"),
    ("document", r"blog|docs|repo"),
)


def source_of(record: Record, strip: tuple[str, ...] = ()) -> Source:
    """Returns title, revision (first hash or tag after ``@``), licence and kind. ``strip``: patterns cut from titles."""
    title = _stripped(record.text("source") or record.where, strip)
    revision = re.search(r"@\s*([0-9a-f]{7,40})\b", title)
    stated = record.text("source_kind").lower()
    kind = next((name for name, pattern in _KINDS if stated and re.search(pattern, stated)), "table")
    return Source(
        title=title.strip(" ,;"), revision=revision[1] if revision else "", licence=record.text("licence"), kind=kind
    )


def stack_of(record: Record) -> Stack:
    """Returns framework (a profile's name where one fits), version as stated, and month of the software where it is told."""
    text = record.text("framework") or _framework_of_source(record)
    slug = framework_slug(text)
    name = slug if slug in frameworks.names() else (frameworks.find(text) if text else None)
    if (
        name == "deepspeed"
        and "deepspeed" not in f"{text} {record.text('zero')}".lower()
        and not integer(record.get("zero"))
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
    # a date as it is where it starts with a year, else its month; words of neither kind stay, to be refused
    dated = stated if re.match(r"\d{4}-", stated) else software_date(stated) or stated
    date = dated or software_date(
        version,
        record.text("other.container"),
        record.text("other.container_family"),
        record.text("other.run"),
        record.text("source"),
    )
    return Stack(framework=name or slug, version=version, date=date)


def _framework_of_source(record: Record) -> str:
    """Returns the framework that the source's own name tells, where no column does; else empty."""
    slug = framework_slug(record.text("source"))
    if slug not in frameworks.names():
        return ""
    record.assume(f"framework={slug} (named by the source)")
    return slug


def gpu_of(record: Record) -> str:
    """Returns the catalogue's name of the GPU; refuses one that is not stated or unknown."""
    text = record.text("gpu")
    if not text and integer(beside := record.get("gpus")) is None and catalogue.find_gpu(str(beside)):
        text = str(beside)  # a cell that counts them, and says which
    if not text:
        record.refuse("gpu not stated")
        return ""
    name = catalogue.find_gpu(text)
    if name is None:
        record.refuse(f"unknown gpu {text!r}")
        return text.lower()
    record.map("gpu", name, text)
    return name


def gpus_per_node(record: Record, gpu: str, gpus: int | None) -> int | None:
    """Returns the GPUs of one node, where the record states a number other than the usual 8; else None."""
    stated, nodes = record.integer("gpus_per_node", "other.gpus_per_node"), record.integer("nodes")
    if stated is None and gpus and nodes and nodes > 1 and gpus % nodes == 0:
        stated = gpus // nodes
    return stated if stated not in (None, 8) and gpu and not _is_rack(gpu) else None


def _is_rack(gpu: str) -> bool:
    """Returns whether a fast domain is wider than a host (NVL72): nodes of a table are hosts, not domains."""
    if not catalogue.knows_gpu(gpu):
        return False
    cluster = catalogue.default_cluster(gpu)
    return cluster.gpus_per_node > cluster.gpus_per_host


def stripped_note(record: Record, strip: tuple[str, ...]) -> str:
    """Returns the record's note without what the patterns ``strip`` match."""
    return _stripped(record.text("note"), strip)


def _stripped(text: str, strip: tuple[str, ...]) -> str:
    for pattern in strip:
        text = re.sub(pattern, "", text)
    return " ".join(text.split())
