"""The figures of GPU and cluster files as parameters: each with the kind and title of the source that covers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from projector.hardware.yaml_file import described
from projector.parameter import Parameter, named_unit


def quoted(path: Path) -> Mapping[str, Parameter]:
    """``memory_gib``, ``peak_tflops.bf16``, ``intra.bandwidth_gbs``, … of a file that has been read and checked."""
    mapping = described(path)
    return {
        f"{key}{rest}": Parameter(value, source["kind"], source["title"], unit=named_unit(key))
        for source in mapping["sources"]
        for key in source["values"]
        for rest, value in _numbers(_at(mapping, key))
    }


def _at(mapping: object, key: str) -> object:
    for part in key.split("."):
        mapping = mapping.get(part) if isinstance(mapping, Mapping) else None
    return mapping


def _numbers(found: object) -> Iterator[tuple[str, float]]:
    if isinstance(found, Mapping):
        for key, item in found.items():
            yield from ((f".{key}{rest}", value) for rest, value in _numbers(item))
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield "", found
