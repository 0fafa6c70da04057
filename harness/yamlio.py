"""Reading one YAML file strictly: broken syntax, a key given twice and a missing file are :class:`InputError`."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem

__all__ = ["parse_yaml", "read_yaml"]


def read_yaml(path: Path, expected: str) -> Any:
    """The document of ``path``; ``expected`` says in words what the file should have been."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError([Problem(str(path), "", "no such file", expected)]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), "", str(error), expected)]) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """The document in ``text``; ``where`` names its file in the :class:`InputError` of what is wrong with it.

    Wrong are also what YAML's grammar allows and Python cannot hold: 31 February, thousands of digits or brackets.
    """
    import yaml

    try:
        node = _loader(text).get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError([Problem(where, _line(error), _what(error), "valid YAML")]) from None
    repeated = _repeated(node)
    if repeated:
        raise InputError(Problem(where, f"line {line}", key, "each key once") for key, line in repeated)
    try:
        return _construct(text, node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError([Problem(where, _line(error), _what(error), "valid YAML")]) from None


def _loader(text: str) -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)


def _construct(text: str, node: Any) -> Any:
    return None if node is None else _loader(text).construct_document(node)


def _repeated(node: Any) -> list[tuple[str, int]]:
    """(key, line) of every key that a mapping gives a second time."""
    import yaml

    found: list[tuple[str, int]] = []
    stack = [node] if node is not None else []
    seen_nodes: set[int] = set()
    while stack:
        current = stack.pop()
        if id(current) in seen_nodes:
            continue
        seen_nodes.add(id(current))
        if isinstance(current, yaml.MappingNode):
            keys: set[Hashable] = set()
            for key, value in current.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        found.append((key.value, key.start_mark.line + 1))
                    keys.add(key.value)
                stack.append(value)
        elif isinstance(current, yaml.SequenceNode):
            stack.extend(current.value)
    return sorted(found, key=lambda item: item[1])


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _what(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
