"""Measured runs as YAML: strict reading (every mistake of every file at once) and compact writing.

The schema is the dataclasses of :mod:`harness.runs`, nested as they are; ``model`` is a zoo name, a zoo name with
changes (``{base: …, field: …}``) or a full mapping, ``recipe`` holds only what is stated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.runs import Measured, MeasuredRun, Source, Stack
from projector.errors import InputError, Problem, nearest
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.schema import model_to_mapping, parse_model, parse_recipe, recipe_to_mapping
from projector.workload.structure import parse_dataclass, to_mapping

__all__ = ["is_strict", "parse", "read", "read_all", "to_yaml", "write"]

_KEYS = [
    "id",
    "source",
    "gpu",
    "gpus",
    "gpus_per_node",
    "cluster",
    "stack",
    "model",
    "model_name",
    "recipe",
    "measured",
    "group",
    "switches",
    "assumed",
    "problem",
    "notes",
]
_REQUIRED = ("id", "source", "gpu", "gpus", "stack", "measured")
_STATUS = ("ok", "out-of-memory")
_MEMORY = ("allocated", "reserved", "device")


def read(path: str | Path) -> list[MeasuredRun]:
    """Runs of one file, or of every ``*.yaml`` of a folder. Raises :class:`InputError` with all mistakes found."""
    return read_all([path])


def read_all(paths: Iterable[str | Path]) -> list[MeasuredRun]:
    """Runs of several files and folders, in order; an id must be unique among all of them."""
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    for path in _files(paths, problems):
        try:
            found, wrong = parse(_load(path), str(path))
        except InputError as error:
            problems += error.problems
            continue
        runs += found
        problems += wrong
    if problems:
        raise InputError([*problems, *_duplicates(runs, "")])
    if twice := _duplicates(runs, ""):
        raise InputError(twice)
    return runs


def _files(paths: Iterable[str | Path], problems: list[Problem]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(path.glob("*.yaml"))
            if not inside:
                problems.append(Problem(str(path), "", "no *.yaml", "a folder with measured runs"))
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            problems.append(Problem(str(path), "", "nothing", "an existing file or folder of measured runs"))
    return files


def _load(path: Path) -> object:
    import yaml

    try:
        return yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError([Problem(str(path), place, getattr(error, "problem", error), "valid YAML")]) from None


def is_strict(data: object) -> bool:
    """A list whose first record has the strict schema's ``measured`` and ``stack`` (loose tables have neither)."""
    first = data[0] if isinstance(data, list) and data else None
    return isinstance(first, Mapping) and "measured" in first and "stack" in first


def parse(data: object, where: str) -> tuple[list[MeasuredRun], list[Problem]]:
    """Runs of parsed YAML, and what is wrong with it; ``where`` names the file in the problems."""
    if not isinstance(data, list):
        return [], [Problem(where, "", type(data).__name__, "a list of measured runs")]
    if not data:
        return [], [Problem(where, "", "an empty list", "at least one measured run")]
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    for index, item in enumerate(data):
        run, wrong = _run(item, where, f"[{index}]")
        problems += wrong
        if run is not None:
            runs.append(run)
    return runs, problems + _duplicates(runs, where)


def _duplicates(runs: Sequence[MeasuredRun], where: str) -> list[Problem]:
    counts = Counter(run.id for run in runs)
    return [
        Problem(where or "measured runs", "id", name, f"unique ids ({n} rows)") for name, n in counts.items() if n > 1
    ]


def _run(item: object, where: str, key: str) -> tuple[MeasuredRun | None, list[Problem]]:
    if not isinstance(item, Mapping):
        return None, [Problem(where, key, item, "a mapping")]
    label = f"{key}."
    problems = [Problem(where, f"{label}{k}", v, nearest(str(k), _KEYS)) for k, v in item.items() if k not in _KEYS]
    problems += [Problem(where, f"{label}{k}", "nothing", "a value") for k in _REQUIRED if item.get(k) is None]
    parts = _parts(item, where, label, problems)
    problems += _scalars(item, where, label)
    if problems:
        return None, problems
    model: Model | None = parts["model"]
    name = str(item.get("model_name") or (model.name if model else ""))
    return (
        MeasuredRun(
            id=item["id"],
            gpu=item["gpu"],
            gpus=item["gpus"],
            gpus_per_node=item.get("gpus_per_node"),
            cluster=item.get("cluster"),
            model_name=name,
            group=item.get("group", ""),
            switches=item.get("switches", {}),
            assumed=tuple(item.get("assumed", ())),
            problem=item.get("problem", ""),
            notes=item.get("notes", ""),
            **parts,
        ),
        [],
    )


def _parts(item: Mapping[str, Any], where: str, label: str, problems: list[Problem]) -> dict[str, Any]:
    """The nested values, each by its own schema; problems are appended."""
    parts: dict[str, Any] = {"model": None, "recipe": None}
    for name, kind in (("source", Source), ("stack", Stack), ("measured", Measured)):
        if item.get(name) is not None:
            parts[name], wrong = parse_dataclass(kind, item[name], where, f"{label}{name}.")
            problems += wrong
    if item.get("model") is not None:
        parts["model"], wrong = parse_model(item["model"], where, f"{label}model.")
        problems += wrong
    if item.get("recipe") is not None:
        parts["recipe"], wrong = parse_recipe(item["recipe"], where, f"{label}recipe.")
        problems += wrong
    if not item.get("problem"):
        problems += [
            Problem(where, f"{label}{name}", "nothing", "a value (a row without one needs `problem:`)")
            for name in ("model", "recipe")
            if item.get(name) is None
        ]
    return parts


def _scalars(item: Mapping[str, Any], where: str, label: str) -> list[Problem]:
    found: list[Problem] = []

    def check(name: str, good: bool, expected: str) -> None:
        if item.get(name) is not None and not good:
            found.append(Problem(where, f"{label}{name}", item[name], expected))

    excused = bool(item.get("problem"))
    for name in ("id", "gpu", "cluster", "model_name", "group", "problem", "notes"):
        check(name, isinstance(item.get(name), str), "text")
    gpu = item.get("gpu")
    if isinstance(gpu, str) and gpu not in catalogue.gpu_names() and not excused:
        check("gpu", False, nearest(gpu, catalogue.gpu_names()))
    cluster = item.get("cluster")
    if isinstance(cluster, str) and cluster not in catalogue.cluster_names():
        check("cluster", False, nearest(cluster, catalogue.cluster_names()))
    check("gpus", type(item.get("gpus")) is int and item["gpus"] >= (0 if excused else 1), "a whole number of GPUs")
    check(
        "gpus_per_node", type(item.get("gpus_per_node")) is int and item["gpus_per_node"] > 0, "a positive whole number"
    )
    check("switches", isinstance(item.get("switches"), Mapping), "a mapping")
    assumed = item.get("assumed")
    check("assumed", isinstance(assumed, list) and all(isinstance(a, str) for a in assumed), "a list of texts")
    return found + _figures(item.get("measured"), where, f"{label}measured.")


def _figures(measured: object, where: str, label: str) -> list[Problem]:
    if not isinstance(measured, Mapping):
        return []
    found = [
        Problem(where, f"{label}{name}", measured[name], "a positive number")
        for name in ("step_seconds", "tgs", "tflops_per_gpu", "peak_memory_gib")
        if isinstance(measured.get(name), (int, float)) and measured[name] <= 0
    ]
    for name, known in (("status", _STATUS), ("memory_kind", _MEMORY)):
        if isinstance(measured.get(name), str) and measured[name] not in known:
            found.append(Problem(where, f"{label}{name}", measured[name], f"one of {', '.join(known)}"))
    return found


def write(runs: Iterable[MeasuredRun], path: str | Path, header: str = "") -> None:
    """Write runs so that :func:`read` gives them back. ``header``: a comment for the file's top, in lines."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    Path(path).write_text(comment + to_yaml(runs), encoding="utf-8")


def to_yaml(runs: Iterable[MeasuredRun]) -> str:
    """The text that :func:`write` writes: one block per run, nested parts in one line each."""
    return "\n".join(_block(run) for run in runs)


def _block(run: MeasuredRun) -> str:
    lines = []
    for name, value in _mapping(run).items():
        lines.append(f"{name}: {_flow(value)}")
    return "- " + "\n  ".join(lines) + "\n"


def _flow(value: object) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    layout: dict[str, Any] = {"width": 1_000_000, "allow_unicode": True, "sort_keys": False}
    text = yaml.dump(value, Dumper=dumper, default_flow_style=True, **layout)
    return str(text).removesuffix("...\n").strip()


def _mapping(run: MeasuredRun) -> dict[str, object]:
    """A run as plain YAML types, without what is empty or default."""
    model = _model(run.model)
    shown: dict[str, object] = {
        "id": run.id,
        "source": to_mapping(run.source),
        "gpu": run.gpu,
        "gpus": run.gpus,
        "gpus_per_node": run.gpus_per_node,
        "cluster": run.cluster,
        "stack": to_mapping(run.stack),
        "model": model,
        "model_name": "" if run.model is not None and run.model_name == run.model.name else run.model_name,
        "recipe": recipe_to_mapping(run.recipe) if run.recipe else None,
        "measured": to_mapping(run.measured),
        "group": run.group,
        "switches": dict(run.switches),
        "assumed": list(run.assumed),
        "problem": run.problem,
        "notes": run.notes,
    }
    return {name: value for name, value in shown.items() if name in _REQUIRED or value not in (None, "", [], {})}


def _model(model: Model | None) -> object:
    """A zoo name, what differs from one, or the whole mapping."""
    if model is None:
        return None
    if model.name not in zoo.names():
        return model_to_mapping(model)
    base = zoo.load(model.name)
    if base == model:
        return model.name
    return {"base": model.name, **_changes(model_to_mapping(base), model_to_mapping(model), model)}


def _changes(old: Mapping[str, object], new: Mapping[str, object], model: object) -> dict[str, object]:
    changed: dict[str, object] = {}
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key, getattr(model, key))
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed[key] = _changes(before, after, getattr(model, key))
        else:
            changed[key] = _pattern(after) if key == "moe_layer_freq" else after
    return changed


def _pattern(freq: object) -> object:
    """``([0]*3+[1]*58)`` for a dense head followed by MoE layers (Megatron's spelling), else the list."""
    if not isinstance(freq, (list, tuple)) or 1 not in freq:
        return freq
    dense = list(freq).index(1)
    sparse = len(freq) - dense
    return f"([0]*{dense}+[1]*{sparse})" if list(freq) == [0] * dense + [1] * sparse else list(freq)
