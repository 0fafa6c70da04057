"""Parses YAML and JSON texts strictly: what nests or expands without bound is a mistake, as is a key given twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from projector.errors import InputError, Problem

DEEPEST = 100
"""Levels of mappings and lists inside one another; the deepest real configurations have 8."""
MOST_ALIASED = 100_000
"""Values that aliases may add when they are written out: nested aliases make gigabytes of 300 bytes."""
LONGEST_INTEGER = 10**40
"""No size, rate or seed comes near; longer integers cost quadratic time wherever they are shown."""

#: What PyYAML raises for values that their tags do not allow: 2025-02-31, ``!!bool 8``, ``!!timestamp noon``.
_UNBUILT = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_READABLE = "a document people can read"
_MERGE = "tag:yaml.org,2002:merge"


def parse_yaml(text: str, where: str) -> Any:
    """Returns the document in ``text``, YAML or JSON; ``where`` names its file. A key given twice is a mistake, with
    its line.

    Wrong are also what the grammar allows and nobody can hold: nesting deeper than :data:`DEEPEST`, aliases that expand
    past :data:`MOST_ALIASED`, 31 February, integers of more digits than :data:`LONGEST_INTEGER`.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(text, where)
        except InputError:
            if where.endswith(".json"):
                raise  # else: a flow mapping of YAML, which JSON is not
    return _yaml(text, where)


def parse_json(text: str, where: str, expected: str = "valid JSON") -> Any:
    """Returns the document in a JSON ``text``, under the rules of :func:`parse_yaml`; ``expected``: what it should have
    been."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            seen: set[str] = set()
            repeated.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return mapping

    def integer(digits: str) -> int:
        if len(digits) > 41:
            raise ValueError(f"an integer of {len(digits)} digits")
        return int(digits)

    try:
        document = json.loads(text, object_pairs_hook=unique, parse_int=integer)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError([Problem(where, place, error.msg, expected)]) from None
    except RecursionError:
        raise InputError([Problem(where, "", f"more than {DEEPEST} levels", _READABLE)]) from None
    except ValueError as error:
        raise InputError([Problem(where, "", str(error), "numbers of a sensible length")]) from None
    if repeated:
        raise InputError(Problem(where, key, "a key given twice", "each key once") for key in repeated)
    if text.count("[") + text.count("{") > DEEPEST and _too_deep(document):
        raise InputError([Problem(where, "", f"more than {DEEPEST} levels", _READABLE)])
    return document


def json_line(line: str) -> Any:
    """Returns the record of one line of a file; None for a line that was cut or damaged."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _too_deep(document: object) -> bool:
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(DEEPEST):
        inside = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in inside if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        loader = _strict()(text)
        node = loader.get_single_node()
        if "&" in text and "*" in text:
            _check_expansion(node)
        repeated = _write_merges_out(node)
    except _Beyond as error:
        raise InputError([Problem(where, error.place, error.found, _READABLE)]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError([Problem(where, _place(error), _message(error), "valid YAML")]) from None
    if repeated:
        raise InputError(Problem(where, f"line {line}", key, "each key once") for key, line in sorted(repeated))
    try:
        return None if node is None else loader.construct_document(node)
    except _Beyond as error:
        raise InputError([Problem(where, error.place, error.found, _READABLE)]) from None
    except (*_UNBUILT, yaml.YAMLError) as error:
        found = _message(error)
        tagged = "for the tag '!" in found  # such as !include
        expected = "what its own program puts for that tag, written out" if tagged else "valid YAML"
        raise InputError([Problem(where, _place(error) or _line_of_wrong_value(node), found, expected)]) from None


class _Beyond(ValueError):
    """Raised for a document past one of the bounds above."""

    def __init__(self, node: Any, found: str) -> None:
        self.place = f"line {node.start_mark.line + 1}" if node is not None else ""
        self.found = found
        super().__init__(found)


@cache
def _strict() -> Any:
    """Returns the loader class; made when first needed, since yaml is imported late."""
    import yaml

    class Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Stops where a document is too deep to be composed: the parser recurses in C, past what Python can catch.

        Only these methods are overridden. Tests of documents (merges, repeated keys, depth, bombs) run with the oldest and
        the newest PyYAML that the package allows, since no manual promises when the parser calls them.
        """

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._depth = 0
            self._tags: dict[str, str] = {}

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            """Returns the type of a plain word, resolved once for each word, since a table repeats its words."""
            if kind is not yaml.ScalarNode or not implicit[0]:
                return super().resolve(kind, value, implicit)
            if value not in self._tags:
                self._tags[value] = super().resolve(kind, value, implicit)
            return self._tags[value]

        def descend_resolver(self, current_node: Any, _: Any) -> None:
            self._depth += 1
            if self._depth > DEEPEST:
                raise _Beyond(current_node, f"more than {DEEPEST} levels")

        def ascend_resolver(self) -> None:
            self._depth -= 1

        def construct_yaml_int(self, node: Any) -> int:
            value = super().construct_yaml_int(node) if len(node.value) < 200 else LONGEST_INTEGER
            if abs(value) >= LONGEST_INTEGER:
                raise _Beyond(node, f"an integer of {len(node.value)} digits")
            return int(value)

    Strict.add_constructor("tag:yaml.org,2002:int", Strict.construct_yaml_int)
    return Strict


def _write_merges_out(root: Any) -> set[tuple[str, int]]:
    """Writes every merge key ``<<`` of a tree of nodes out, in place, and returns the keys given twice with their lines.

    A merge follows its definition (YAML 1.1, https://yaml.org/type/merge.html): a mapping's own keys win over merged ones,
    and of several merged mappings the earlier wins, at any depth. Versions of PyYAML differ in this, so it never sees one.
    Two ``<<`` in one mapping are a key given twice: nothing says which of them wins. Raises :class:`_Beyond` where a merge
    names anything but mappings.
    """
    repeated: set[tuple[str, int]] = set()
    done: set[int] = set()

    def visit(node: Any) -> None:
        done.add(id(node))
        for each in _inside(node):
            if isinstance(each.value, list) and id(each) not in done:
                visit(each)
        if node.id == "mapping":
            repeated.update(_repeated(node))
            node.value = _written_out(node)

    if root is not None and isinstance(root.value, list):
        visit(root)
    return repeated


def _inside(node: Any) -> list[Any]:
    """Returns the nodes of a sequence, or the keys and values of a mapping, in order."""
    return [each for item in node.value for each in (item if isinstance(item, tuple) else (item,))]


def _repeated(mapping: Any) -> list[tuple[str, int]]:
    """Returns the keys that stand in ``mapping`` more than once and say another word then, each with the line of its
    repetition."""
    seen: dict[str, object] = {}
    repetitions = []
    for key, value in mapping.value:
        if isinstance(key.value, str):
            said = (value.tag, value.value) if isinstance(value.value, str) and key.tag != _MERGE else None
            if key.value in seen and (said is None or seen[key.value] != said):
                repetitions.append((key.value, key.start_mark.line + 1))
            seen[key.value] = said
    return repetitions


def _written_out(mapping: Any) -> list[tuple[Any, Any]]:
    """Returns the (key, value) nodes of ``mapping`` with its merge written out, the winner of a repeated key last.

    The mappings that it merges were written out before.
    """
    own = [(key, value) for key, value in mapping.value if key.tag != _MERGE]
    merged: list[tuple[Any, Any]] = []
    for key, value in mapping.value:
        if key.tag != _MERGE:
            continue
        sources = value.value if value.id == "sequence" else [value]
        if not all(source.id == "mapping" for source in sources):
            raise _Beyond(value, "a merge of something that is no mapping")
        merged = [pair for source in reversed(sources) for pair in source.value]
    return merged + own


def _line_of_wrong_value(root: Any) -> str:
    """Returns the line of the first value below ``root`` that cannot be built by itself."""
    import yaml

    builder = _strict()("")
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node.value, list):
            if id(node) not in seen:
                waiting += reversed(_inside(node))
            seen.add(id(node))
            continue
        try:
            builder.construct_object(node)
        except (*_UNBUILT, yaml.YAMLError):
            return f"line {node.start_mark.line + 1}"
    return ""


def _check_expansion(root: Any) -> None:
    """Raises :class:`_Beyond` for nodes that contain themselves, or expand past :data:`MOST_ALIASED` through aliases."""
    sizes: dict[int, tuple[int, int]] = {}
    open_: set[int] = set()
    added = 0

    def measure(node: Any) -> tuple[int, int]:
        """Returns (values, levels) of a node with its aliases written out."""
        nonlocal added
        if id(node) in open_:
            raise _Beyond(node, "an alias inside what it stands for")
        if id(node) in sizes:
            added += sizes[id(node)][0]
            if added > MOST_ALIASED:
                raise _Beyond(node, f"more than {MOST_ALIASED:,} values once its aliases are written out")
            return sizes[id(node)]
        open_.add(id(node))
        inside = [measure(child) for child in _inside(node)] if isinstance(node.value, list) else [(0, -1)]
        open_.remove(id(node))
        sizes[id(node)] = (1 + sum(n for n, _ in inside), 1 + max((levels for _, levels in inside), default=0))
        if sizes[id(node)][1] > DEEPEST:
            raise _Beyond(node, f"more than {DEEPEST} levels")
        return sizes[id(node)]

    if root is not None:
        measure(root)


def _place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _message(error: Exception) -> str:
    if isinstance(error, (LookupError, TypeError, AttributeError)):  # PyYAML tripping over its own helpers
        return "a value that its tag does not allow"
    return str(getattr(error, "problem", None) or error).partition("\n")[0]


def as_mapping(document: object, where: str, expected: str = "a mapping of keys") -> Mapping[str, Any]:
    """Returns ``document`` with its keys as text. Raises :class:`InputError` for anything but a mapping."""
    if not isinstance(document, Mapping):
        found = "an empty file" if document is None else type(document).__name__
        raise InputError([Problem(where, "", found, expected)])
    return {str(key): value for key, value in document.items()}
