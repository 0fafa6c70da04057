"""Projections of a search as lines of a file, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from projector.errors import InputError, Problem
from projector.hardware.types import Cluster
from projector.io.code import code_hash
from projector.io.documents import json_line
from projector.kernels.settings import Settings
from projector.search.space import Space
from projector.workload.model_schema import model_to_mapping
from projector.workload.schema import recipe_to_mapping

_FORMAT = 1


class Kept:
    """``known``: seconds and bytes by the name of a configuration. The first line says what they are of: base,
    ``cluster`` (with the memory that a search may use), kernel settings, code.

    Raises :class:`InputError` for a file of another search, of another version, or of something else; a line that was
    cut or damaged is left out, and its projection made again."""

    def __init__(self, path: str | None, space: Space, cluster: Cluster, settings: Settings) -> None:
        self.known: dict[str, tuple[float, float]] = {}
        self._path = Path(path) if path else None
        self._out: IO[str] | None = None
        self._head = {"search": _FORMAT, "of": _digest(space, cluster, settings), "code": code_hash()}

    def __enter__(self) -> Kept:
        if self._path is None:
            return self
        lines = self._lines(self._path)
        if lines:
            self._check(lines[0])
        for line in lines[1:]:
            made = json_line(line)
            if isinstance(made, dict) and isinstance(name := made.get("name"), str):
                numbers = made.get("seconds"), made.get("bytes")
                if all(isinstance(each, float) and 0 < each < math.inf for each in numbers):
                    self.known[name] = float(made["seconds"]), float(made["bytes"])
        try:
            self._out = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError([Problem(str(self._path), "", str(error.strerror), "a file to write to")]) from None
        if not lines:
            self._write(self._head)
        elif self._path.read_bytes()[-1:] != b"\n":
            self._out.write("\n")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._out is not None:
            self._out.close()

    def keep(self, name: str, seconds: float, memory: float) -> None:
        if self._out is not None:
            self._write({"name": name, "seconds": seconds, "bytes": memory})

    def _write(self, content: dict[str, Any]) -> None:
        if self._out is not None:
            self._out.write(json.dumps(content) + "\n")
            self._out.flush()

    def _lines(self, path: Path) -> list[str]:
        try:
            return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError([Problem(str(path), "", type(error).__name__, "a file that --resume wrote")]) from None

    def _check(self, line: str) -> None:
        head = json_line(line)
        wrong: tuple[object, str] | None = None
        if not isinstance(head, dict) or "search" not in head:
            wrong = line[:40], "a file that --resume wrote"
        elif head["search"] != _FORMAT:
            wrong = head["search"], f"a file of version {_FORMAT}"
        elif head.get("code") != self._head["code"]:
            wrong = "projections of another version of this program", "a file of this one"
        elif head.get("of") != self._head["of"]:
            wrong = "another model, recipe, cluster, memory margin or kernel settings", "the search that began it"
        if wrong:
            raise InputError([Problem(str(self._path), "", *wrong)])


def _digest(space: Space, cluster: Cluster, settings: Settings) -> str:
    base = space.base
    content = {
        "model": model_to_mapping(base.model),
        "recipe": recipe_to_mapping(base.recipe),
        "framework": [base.framework, base.framework_date],
        "gpus": base.gpus,
        "cluster": repr(cluster),
        "settings": repr(settings),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
