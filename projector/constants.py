"""Lists every constant of a projection by name: of code, frameworks, efficiency files, collectives, data sheets."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from projector.parameter import Count, Parameter, declared, named_unit

#: Packages whose numbers are no physics: screens, files, foreign configurations, timing of a device.
_WITHOUT = ("__main__", "benchmark", "cli", "io", "intake")


def modules() -> tuple[str, ...]:
    """Returns the modules whose constants are parameters."""
    import projector

    names = (module.name for module in pkgutil.walk_packages(projector.__path__, "projector."))
    without = tuple(f"projector.{room}" for room in _WITHOUT)
    return tuple(name for name in names if not f"{name}.".startswith(tuple(f"{room}." for room in without)))


def every() -> Mapping[str, Parameter | Count]:
    """Returns all constants by name: ``kernels.nearest_shapes.REACH``, ``frameworks.primus.runtime.step_ms``,
    ``efficiency.gfx950.gemm.loop.bf16``, ``collectives.nccl.link.intra``, ``gpus.mi355x.memory_gib``, …, in that order
    of rooms."""
    return dict([*_code(), *_told(), *_quoted("gpus"), *_quoted("clusters")])


def _code() -> Iterator[tuple[str, Parameter | Count]]:
    for module in modules():
        import_module(module)
        room = module.removeprefix("projector.")
        yield from ((f"{room}.{name.lstrip('_')}", each) for name, each in declared(module).items())


def _told() -> Iterator[tuple[str, Parameter]]:
    """Yields the constants of files that state the source of each."""
    from projector import frameworks
    from projector.collectives.constants import sections
    from projector.hardware.efficiency_file import FOLDER, shipped

    files = {f"frameworks.{name}": frameworks.load(name).constants for name in frameworks.names()}
    files |= {f"efficiency.{path.stem}": shipped(path.stem) for path in sorted(FOLDER.glob("*.yaml"))}
    files |= {f"collectives.{section}": entries for section, entries in sections().items()}
    yield from ((f"{file}.{key}", each) for file, entries in files.items() for key, each in entries.items())


def _quoted(folder: str) -> Iterator[tuple[str, Parameter]]:
    from projector import hardware

    for path in sorted((Path(hardware.__path__[0]) / folder).glob("*.yaml")):
        yield from ((f"{folder}.{path.stem}.{key}", each) for key, each in _figures(path).items())


def _figures(path: Path) -> Mapping[str, Parameter]:
    """Returns ``memory_gib``, ``peak_tflops.bf16``, ``intra.bandwidth_gbs``, … of a GPU or cluster file that has been
    read and checked, each with the kind and title of the source that covers it."""
    from projector.hardware.yaml_file import read_described

    mapping = read_described(path)
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


def _numbers(values: object) -> Iterator[tuple[str, float]]:
    if isinstance(values, Mapping):
        for key, item in values.items():
            yield from ((f".{key}{rest}", value) for rest, value in _numbers(item))
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield "", values
