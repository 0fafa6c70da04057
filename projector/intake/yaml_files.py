"""Reads Primus' YAML: environment variables inside strings, inheritance between files, merging of mappings.

Rules: AMD-AGI/Primus@fd1eeabb primus/core/config and primus/core/utils/yaml_utils.py, restated in this project's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from projector.errors import Problem, or_none
from projector.io.documents import as_mapping
from projector.io.files import read_yaml, resolved

_VARIABLE = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")
_DEEPEST = 32  # files that extend one another


def read(
    path: Path, env: Mapping[str, str], problems: list[Problem], chain: tuple[Path, ...] = ()
) -> dict[str, object]:
    """Returns the mapping in ``path`` with variables filled in, over the files it ``extends`` (``includes``, ``bases``).

    Everything wrong with the file or its parents is added to ``problems``; what could be read is returned.
    """
    where = str(path)
    if path in chain or len(chain) > _DEEPEST:
        problems.append(Problem(where, "extends", " → ".join(p.name for p in (*chain, path)), "no cycle of files"))
        return {}
    content = or_none(problems, lambda: dict(as_mapping(read_yaml(path), str(path), "a mapping")))
    if content is None:
        return {}
    filled = substitute(content, env, where, "", problems)
    assert isinstance(filled, dict)
    merged: dict[str, object] = {}
    for key in ("includes", "bases", "extends"):  # ``bases``: the word of earlier presets, some of which still stand
        parents = filled.pop(key, None) or []
        for parent in [parents] if isinstance(parents, str) else parents if isinstance(parents, list) else [parents]:
            if isinstance(parent, str):
                merged = deep_merge(merged, read(resolved(path.parent / parent), env, problems, (*chain, path)))
            else:
                problems.append(Problem(where, key, parent, "a file name or a list of them"))
    return deep_merge(merged, filled)


def substitute(value: object, env: Mapping[str, str], where: str, key: str, problems: list[Problem]) -> object:
    """Returns ``value`` with ``${NAME}`` and ``${NAME:default}`` filled in everywhere.

    A text that held a variable is then read as true/false, a whole number or a number where it is one; ``null`` is
    None. A variable without a default that ``env`` lacks is a problem.
    """
    if isinstance(value, Mapping):
        return {str(k): substitute(v, env, where, f"{key}.{k}".lstrip("."), problems) for k, v in value.items()}
    if isinstance(value, list):
        return [substitute(item, env, where, f"{key}[{i}]", problems) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    if not _VARIABLE.search(value):
        return None if value == "null" else value

    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name not in env and default is None:
            problems.append(Problem(where, key, match[0], f"the environment variable {name}, or a default behind ':'"))
        return env.get(name, default or "")

    return _typed(_VARIABLE.sub(fill, value))


def _typed(text: str) -> object:
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered == "null":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except (ValueError, OverflowError):
            continue
    return text


def deep_merge(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Returns ``base`` with ``changes`` on top: mappings merged key by key, everything else (lists, too) replaced."""
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, change) if isinstance(old, Mapping) and isinstance(change, Mapping) else change
    return merged
