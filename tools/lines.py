"""Lines of code by package: what is left without blanks, comments, docstrings and imports.

python tools/lines.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NOTHING = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines of a module on which a token of a statement stands that is neither a docstring nor an import."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOTHING:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        silent = isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if silent:
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main(folders: list[str]) -> None:
    print(f"{'package':<12} {'files':>6} {'lines':>8} {'code':>8}")
    for folder in folders:
        texts = [path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))]
        print(
            f"{folder:<12} {len(texts):>6,} {sum(len(text.splitlines()) for text in texts):>8,} "
            f"{sum(map(code_lines, texts)):>8,}"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or ["projector", "harness", "tests"])
