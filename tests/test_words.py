"""Every docstring of a function is a sentence with a verb: what it does, in the third person."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: A verb in the third person and none of the nouns that look like one, or a reference to where the sentence stands.
_VERB = re.compile(
    r"(?!(?:Arguments|Bytes|Fields|Figures|Its|Keys|Numbers|Options|Rows|Seconds)\b)([A-Z][a-z]+s|As|See)\b"
)
#: Formulas of FLOP, each a source and an equation; and the one wrapper that is what it wraps.
_EXCEPT = ("projector/frameworks/flops_formulas.py", "projector/dataclass.py")


def without_verb(text: str) -> Iterator[str]:
    """Yields the functions of a module whose docstrings do not begin with a verb."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            said = ast.get_docstring(node)
            if said and not _VERB.match(said):
                yield f"{node.name}: {said.splitlines()[0]}"


@pytest.mark.parametrize("package", ["projector", "harness"])
def test_what_a_function_does_is_said_with_a_verb(package: str) -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 100
    found = {str(path): list(without_verb((ROOT / path).read_text())) for path in paths if str(path) not in _EXCEPT}
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize(("said", "number"), [("Of every rank.", 1), ("Rows of it.", 1), ("Returns the rows.", 0)])
def test_a_noun_alone_is_found(said: str, number: int) -> None:
    assert len(list(without_verb(f'def f():\n    """{said}"""'))) == number
