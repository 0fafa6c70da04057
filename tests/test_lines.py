"""What counts as a line of code."""

import runpy
from pathlib import Path

MODULE = '''"""A docstring
of two lines."""

import os
from a import (
    b,
)


# a comment
def f(x: int) -> str:  # 1
    """Another."""
    return (  # 2, 3, 4
        "text"
    )
'''


def test_blanks_comments_docstrings_and_imports_are_no_code() -> None:
    count = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "lines.py"))["code_lines"]
    assert count(MODULE) == 4
    assert count("") == 0
