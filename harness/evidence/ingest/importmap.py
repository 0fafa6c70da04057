"""What a user says about a table before it is imported: column names, patterns to cut, which file a run belongs to."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest, raise_all


@dataclass(frozen=True)
class ImportMap:
    """What a user states about a table. ``columns``: column of the table → canonical key (``TP size`` → ``tp``). ``strip``:
    regular expressions cut from source texts and notes. ``assign``: glob of run ids → canonical keys set for them
    (``cluster``, ``group``, …); its ``assumed`` says what is a guess among them. ``doubtful``: glob of run ids → the
    ``doubt`` of runs whose table has no column for it, with the source's words. ``files``: file stem → globs of the ids that
    are written to it, first match wins. ``usual``: canonical key → value of the rows that have none."""

    columns: Mapping[str, str] = field(default_factory=dict)
    strip: tuple[str, ...] = ()
    assign: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    doubtful: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    usual: Mapping[str, object] = field(default_factory=dict)

    def assigned(self, run_id: str) -> dict[str, object]:
        """Returns the canonical keys that the map sets for this run."""
        assigned_keys: dict[str, object] = {}
        for pattern, values in self.assign.items():
            if fnmatch.fnmatchcase(run_id, pattern):
                assigned_keys |= values
        return assigned_keys

    def doubt(self, run_id: str) -> str:
        """Returns why the source of this run doubts its figures; empty where it does not."""
        return next((why for pattern, why in self.doubtful.items() if fnmatch.fnmatchcase(run_id, pattern)), "")

    def file_of(self, run_id: str, default: str) -> str:
        """Returns the stem of the file that this run is written to."""
        of_run = (
            stem for stem, globs in self.files.items() if any(fnmatch.fnmatchcase(run_id, glob) for glob in globs)
        )
        return next(of_run, default)


#: Key of an import map that holds a mapping → type of what is mapped to, and the same in words.
_HOLDS: Mapping[str, tuple[type, str]] = {
    "columns": (str, "the name of a key"),
    "assign": (Mapping, "a mapping of keys to values"),
    "doubtful": (object, ""),
    "files": (object, ""),
}
_KEYS = (*_HOLDS, "strip")


def read_import_map(path: Path) -> ImportMap:
    """Reads an import map: a flat ``column: key`` mapping, or one with the keys of :class:`ImportMap`.

    Raises :class:`InputError` with every mistake of the file.
    """
    from harness.evidence.ingest.tables import read_yaml

    data = read_yaml(path)
    if not isinstance(data, Mapping):
        raise InputError(
            [Problem(str(path), "", type(data).__name__, "a mapping of columns, or of " + ", ".join(_KEYS))]
        )
    if not any(key in _KEYS and not isinstance(value, str) for key, value in data.items()):
        data = {"columns": data}
    problems = [Problem(str(path), str(key), key, nearest(str(key), _KEYS)) for key in data if key not in _KEYS]
    read: dict[str, Mapping[str, Any]] = {}
    for key, (kind, expected) in _HOLDS.items():
        read[key] = found = data.get(key) or {}
        if not isinstance(found, Mapping):
            problems.append(Problem(str(path), key, found, "a mapping"))
            continue
        wrong = ((name, item) for name, item in found.items() if not isinstance(item, kind))
        problems += [Problem(str(path), f"{key}.{name}", item, expected) for name, item in wrong]
    strip = data.get("strip") or ()
    if isinstance(strip, (list, tuple)) and all(isinstance(item, str) for item in strip):
        problems += [
            Problem(str(path), f"strip[{i}]", item, "a regular expression")
            for i, item in enumerate(strip)
            if not _compiles(item)
        ]
    else:
        problems.append(Problem(str(path), "strip", strip, "a list of regular expressions"))
    raise_all(problems)
    return ImportMap(
        columns={str(k): v for k, v in read["columns"].items()},
        strip=tuple(strip),
        assign={str(k): {str(key): item for key, item in v.items()} for k, v in read["assign"].items()},
        doubtful={str(k): str(v) for k, v in read["doubtful"].items()},
        files={str(k): tuple(map(str, v)) if isinstance(v, list) else (str(v),) for k, v in read["files"].items()},
    )


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
