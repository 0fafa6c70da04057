"""Reads files of efficiency parameters: ``parameters: {key: {value, kind, source, low, high}}``.

Meaning of the keys: ``efficiency/README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from projector.errors import InputError, Problem, raise_all
from projector.io.documents import parse_yaml
from projector.parameter import Parameter, read

FOLDER = Path(__file__).parent / "efficiency"


def priors() -> Mapping[str, Parameter]:
    """Returns the parameters of every GPU whose own file does not state them."""
    return shipped("gpu")


@cache
def shipped(stem: str) -> Mapping[str, Parameter]:
    """Returns the parameters of one packaged file; none where there is no such file."""
    return stored(FOLDER / f"{stem}.yaml")


def stored(path: Path) -> Mapping[str, Parameter]:
    """Returns the parameters of a file as it stands now; none where there is no such file."""
    return parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


def parse(text: str, where: str) -> Mapping[str, Parameter]:
    """Returns the parameters of one file's text. Raises ``InputError`` with every mistake."""
    data = parse_yaml(text, where)
    cells = data.get("parameters") if isinstance(data, Mapping) else None
    if not isinstance(cells, Mapping):
        raise InputError([Problem(where, "parameters", cells, "a mapping of parameters")])
    problems: list[Problem] = []
    parameters = {str(key): read(cell, where, f"parameters.{key}", problems) for key, cell in cells.items()}
    raise_all(problems)
    return parameters
