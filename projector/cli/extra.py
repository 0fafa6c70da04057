"""Holds what is shown beyond a projection: the type that each further question of a command answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from projector.io.table import Line, Table


class Extra(NamedTuple):
    """An answer beyond the projection, as ``blocks`` to show and as ``values`` of the JSON document."""

    blocks: Sequence[Line | Table] = ()
    values: Mapping[str, object] = {}
