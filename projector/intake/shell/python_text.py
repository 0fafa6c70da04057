"""Finds the files that a Python program in a script's own text writes, without running it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

_MODE = re.compile(r"(?=.*[wax+])[rwaxbt+]+")  # of open: one that writes
_WRITES = re.compile(r"write\w*|dump|save\w*|to_(?:json|yaml)\w*|copy\w*|move|rename|replace")
_READS = re.compile(r"open|read\w*|load\w*")


def words_of_written(text: str) -> set[str]:
    """Returns the texts that stand where ``text``, a Python program, says what it writes: names of files among them, names
    of environment variables that hold one, and ``argv`` where it is a word of the command line. Empty for no program."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's own about the program's texts
            return _of(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def _of(tree: ast.Module) -> set[str]:
    held: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                held.setdefault(ast.unparse(target), set()).update(_texts(node.value))
    found = {word for node in ast.walk(tree) if _writes(node) for word in _texts(node)}
    return found.union(*(held.get(word, ()) for word in found))


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _writes(node: ast.AST) -> bool:
    if _called(node) == "open":
        assert isinstance(node, ast.Call)
        given = (*node.args, *(each.value for each in node.keywords))
        return any(isinstance(each, ast.Constant) and _MODE.fullmatch(str(each.value)) for each in given)
    return _WRITES.fullmatch(_called(node)) is not None


def _texts(node: ast.AST) -> Iterator[str]:
    """Yields the texts and names below ``node``, without those of what is only read."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.strip()
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield ast.unparse(node).removeprefix("sys.")
    for child in ast.iter_child_nodes(node):
        if not _READS.fullmatch(_called(child)) or _writes(child):
            yield from _texts(child)
