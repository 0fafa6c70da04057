"""``python -m harness``: see :mod:`harness.cli`."""

from __future__ import annotations

import os

# The harness solves many small systems: threads of BLAS cost more than they save, above all on a busy machine. It has
# to be said before NumPy is loaded; who set it already keeps it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
