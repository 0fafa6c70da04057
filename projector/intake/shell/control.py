"""Exceptions that carry the jumps of a shell, and those that end an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projector.intake.shell.conditions import Verdict


class Exit(Exception):
    """Is raised by ``exit``, which ends the script. ``code``: None where it is not known."""

    def __init__(self, code: int | None, why: str = "") -> None:
        self.code, self.why, self.fine = code, why, code == 0
        super().__init__(why)


class Return(Exception):
    """Is raised by ``return`` in a function or a sourced file. ``fine``: the status is 0."""

    def __init__(self, fine: Verdict) -> None:
        self.fine = fine
        super().__init__()


class _Loop(Exception):
    def __init__(self, levels: int = 1) -> None:
        self.levels = levels
        super().__init__()


class Break(_Loop):
    """Is raised by ``break n``, which leaves ``levels`` loops."""


class Continue(_Loop):
    """Is raised by ``continue n``, which goes on with the next round of the ``levels``-th loop."""


class TooLong(Exception):
    """Is raised where a script does more than anybody would wait for."""


class Unreadable(Exception):
    """Is raised for a line that is not shell, or not as the grammar knows it; ``expected``: what should stand there."""

    def __init__(self, where: str, line: int, text: str, expected: str = "") -> None:
        self.where, self.line, self.text, self.expected = where, line, text, expected
        super().__init__(text)
