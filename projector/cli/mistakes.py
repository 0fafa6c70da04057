"""Mistakes that argparse finds, in the one shape of all mistakes: ``<where>: found …, expected …``.

argparse gives its mistakes as English sentences only, so these patterns lean on their words. The tests run on Python 3.11
and 3.14, whose words differ; a sentence that no pattern knows is shown as argparse says it.
"""

from __future__ import annotations

import re

_SHAPES = (
    (re.compile(r"argument (\S+): (found .*)", re.DOTALL), r"{0}: {1}"),
    (re.compile(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)"), "{0}: found {1}, expected one of {2}"),
    (re.compile(r"argument (\S+): invalid \S+ value: (.*)"), "{0}: found {1}, expected another kind of value"),
    (
        re.compile(r"argument (\S+): not allowed with argument (\S+)"),
        "{0}: found {1} beside it, expected one of the two",
    ),
    (re.compile(r"argument (\S+): (expected .*)"), "{0}: found nothing, {1}"),
    (re.compile(r"argument (\S+): ignored explicit argument (.*)"), "{0}: found {1}, expected no value"),
    (re.compile(r"the following arguments are required: (.*)"), "command line: found nothing, expected {0}"),
    (re.compile(r"one of the arguments (.*) is required"), "command line: found nothing, expected one of {0}"),
)


def line(message: str) -> str:
    """What argparse says, as one line of ours."""
    for pattern, shape in _SHAPES:
        match = pattern.fullmatch(message)
        if match:
            flag, *rest = match.groups()
            return shape.format(flag.split("/")[0], *rest).replace("\n", " ")
    return f"command line: {message}"
