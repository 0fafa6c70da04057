"""``python -m harness``: see :mod:`harness.cli`."""

from __future__ import annotations

from harness.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
