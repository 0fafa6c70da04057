"""Remarks on what a configuration holds beyond what is projected."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 12  # settings in one line; all of them are in the JSON document


def some(unmodelled: Sequence[str]) -> tuple[str, ...]:
    """One remark that names what may change time or memory and is not modelled; nothing where there is nothing."""
    if not unmodelled:
        return ()
    more = f" and {len(unmodelled) - _MOST} more" if len(unmodelled) > _MOST else ""
    return (f"{', '.join(unmodelled[:_MOST])}{more}: not in the figures",)


def counted(ignored: Sequence[str]) -> tuple[str, ...]:
    """One remark that counts what cannot change time or memory."""
    if not ignored:
        return ()
    settings = "1 setting" if len(ignored) == 1 else f"{len(ignored)} settings"
    return (f"{settings} that cannot change time or memory (named with --json)",)
