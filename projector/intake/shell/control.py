"""Ways in which a shell leaves what it is doing, and the bounds of an evaluation."""

from __future__ import annotations


class Exit(Exception):
    """``exit``: the script ends. ``code``: None where it is not known."""

    def __init__(self, code: int | None, why: str = "") -> None:
        self.code, self.why = code, why
        super().__init__(why)


class Return(Exception):
    """``return`` of a function or a sourced file; true for 0."""

    def __init__(self, fine: bool) -> None:
        self.fine = fine
        super().__init__()


class _Loop(Exception):
    def __init__(self, levels: int = 1) -> None:
        self.levels = levels
        super().__init__()


class Break(_Loop):
    """``break n``."""


class Continue(_Loop):
    """``continue n``."""


class TooLong(Exception):
    """The script does more than anybody would wait for."""


class Unreadable(Exception):
    """A line that is not shell, or no shell that the grammar knows; ``expected``: what should stand there."""

    def __init__(self, where: str, line: int, text: str, expected: str = "") -> None:
        self.where, self.line, self.text, self.expected = where, line, text, expected
        super().__init__(text)
