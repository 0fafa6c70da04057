"""Keeps timings in a file: what was measured, on what, with which versions; a file of something else is refused."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.timings import Asked, Timings
from projector.errors import InputError, Problem, raise_all
from projector.io.documents import parse_json
from projector.io.files import read_text, write_whole, writing
from projector.io.table import values
from projector.workload.structure import to_mapping

SCHEMA = 2
#: Prefixes of the environment variables by which timings differ.
_SWITCHES = (
    *("NCCL_", "RCCL_", "CUDA_DEVICE_MAX_", "CUDA_VISIBLE", "PYTORCH_", "TORCH_", "NVTE_", "HIP_", "HSA_"),
    "GPU_MAX_",
)
_PARTS = ("schema", "tool", "torch", "device", "environment", "work", "timings")
#: Fields of a model on which one rank's layers do not depend.
_IRRELEVANT_FIELDS = ("name", "family", "source", "num_layers", "per_layer", "hybrid_layer_pattern", "mixer_pattern")


def save(path: Path, timings: Timings, asked: Asked, notes: Iterable[str], device: Device) -> None:
    """Writes the timings to ``path`` as a whole. Raises :class:`InputError` where that cannot be written."""
    document = {
        "schema": SCHEMA,
        "tool": _version(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": str(device.torch.__version__),
        "device": _device(device),
        "environment": _environment(asked, device),
        "work": _work(asked),
        "notes": list(notes),
        "timings": asdict(timings),
    }
    with writing(path):
        write_whole(path, json.dumps(document, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Returns the document of ``path``. Raises :class:`InputError` for one that is no benchmark of this schema."""
    where = str(path)
    document = parse_json(read_text(path, "a file of --save-benchmark"), where, "a file of --save-benchmark")
    if not isinstance(document, dict) or "schema" not in document:
        raise InputError([Problem(where, "schema", None, f"{SCHEMA}: a file of --save-benchmark has it")])
    if document["schema"] != SCHEMA:
        raise InputError([Problem(where, "schema", document["schema"], f"{SCHEMA}: measure again with this version")])
    missing = [key for key in _PARTS if key not in document]
    raise_all([Problem(where, key, None, "a value: the file is cut or changed") for key in missing])
    return document


def refuse(path: Path, document: Mapping[str, Any], asked: Asked, gpu: str, device: Device | None = None) -> None:
    """Raises :class:`InputError` with everything in which the file is of something else: a rank's work, the device
    (``gpu``: that of the cluster; ``device``: the one at hand, if any), the major version of torch there."""
    where = str(path)
    theirs, ours = dict(document["work"]), _work(asked)
    missing = sorted(set(ours.pop("layers")) - set(map(str, theirs.pop("layers", ()))))
    problems = list(_differences(theirs, ours, where, "work"))
    if missing:
        problems.append(Problem(where, "work.layers", document["work"].get("layers"), f"{', '.join(missing)}, too"))
    their_device = document["device"]
    if device is None:
        if their_device.get("gpu") != gpu:
            problems.append(Problem(where, "device.gpu", their_device.get("gpu"), f"{gpu}, the device of the cluster"))
    else:
        problems += _differences(their_device, _device(device), where, "device")
        major = str(device.torch.__version__).split(".")[0]
        if str(document["torch"]).split(".")[0] != major:
            problems.append(Problem(where, "torch", document["torch"], f"{major}.x, the major version here"))
    raise_all(problems)


def timings_of(path: Path, document: Mapping[str, Any]) -> Timings:
    """Returns the timings of a document. Raises :class:`InputError` where the file was changed."""
    try:
        return Timings.read(document["timings"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise InputError([Problem(str(path), "timings", found, "timings as --save-benchmark writes them")]) from None


def _differences(theirs: Any, ours: Any, where: str, key: str) -> Iterable[Problem]:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for name in dict.fromkeys([*theirs, *ours]):
            yield from _differences(theirs.get(name), ours.get(name), where, f"{key}.{name}")
    elif theirs != ours:
        yield Problem(where, key, theirs, "nothing" if ours is None else str(ours))


def _device(device: Device) -> dict[str, str]:
    return values(device, "type title gpu arch")


def _environment(asked: Asked, device: Device) -> dict[str, Any]:
    from projector.benchmark.processes import threads_of

    cuda = device.type == "cuda"
    version = device.torch.version
    return {
        "ranks": asked.ranks,
        "threads": threads_of(device, asked.ranks),
        "dtype": asked.workload.recipe.precision,
        "layers": asked.layers,
        "budget_seconds": asked.budget,
        "driver": (f"ROCm {version.hip}" if version.hip else f"CUDA {version.cuda}") if cuda else "none: a CPU",
        "python": platform.python_version(),
        "system": platform.platform(),
        "float32_products": device.torch.get_float32_matmul_precision(),  # some containers run them as TF32
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SWITCHES)},
    }


def _work(asked: Asked) -> dict[str, Any]:
    """Returns what one rank computed and the number of ranks; the rest of the run (stages, micro-batches, data-parallel
    ranks, number of layers) is put around its times."""
    work = asked.workload
    model: dict[str, Any] = dict(to_mapping(work.model))
    if work.model.moe is not None:
        model["moe"] = {name: value for name, value in model["moe"].items() if name != "moe_layer_freq"}
    content = {
        "model": {name: value for name, value in model.items() if name not in _IRRELEVANT_FIELDS},
        "recipe": to_mapping(work.recipe),
        **values(asked, "ranks sharded"),
        "layers": [part.key for part in asked.parts],
        **values(work, "framework framework_date"),
    }
    plain: dict[str, Any] = json.loads(json.dumps(content))  # tuples become the lists that a file gives back
    return plain


def _version() -> str:
    try:
        return f"projector-harness {metadata.version('projector-harness')}"
    except metadata.PackageNotFoundError:
        return "projector-harness, a checkout"
