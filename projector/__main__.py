"""``python -m projector``: projects one configuration and shows it. Exits 0, or 2 with every mistake."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    from projector.memo import collect_seldom

    collect_seldom()  # before the modules of a command are read, which makes most of its objects
    from projector.cli import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    raise SystemExit(main())
