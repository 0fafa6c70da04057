"""``python -m harness``: see :mod:`harness.cli`."""

from __future__ import annotations

import os

# The harness solves many small systems: threads of BLAS cost more than they save, above all on a busy machine. It has
# to be said before NumPy is loaded; who set it already keeps it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Sequence

from harness import cli
from harness.report import runner
from projector.memo import collect_seldom


def main(argv: Sequence[str] | None = None) -> int:
    """Runs :func:`harness.cli.main`; where GitHub Actions reads along, no text of the input becomes one of its commands."""
    collect_seldom()
    with runner.commandless(os.environ):
        return cli.main(argv)


if __name__ == "__main__":
    raise SystemExit(main())
