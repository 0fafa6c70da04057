"""How far a measurement on this machine was disturbed: by other programs, or by a machine whose pace changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from projector.dataclass import dataclass

QUIET = 0.05  # share of a step in which its process may have waited for a core
_LEAST = 1 / 3  # of all steps are kept, however disturbed


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """What stands between measurements and a comparison of them, each as a share of a step.

    ``spread``: slowest over fastest repetition, less one, or the 90 % interval of the timed step's median, whichever is
    wider; ``waited``: without a core that others held; ``pace``: slowest over fastest pace of the machine around what is
    compared, less one; ``again``: by how much what is compared came out otherwise when it was measured again.
    """

    spread: float = 0.0
    waited: float = 0.0
    pace: float = 0.0
    again: float = 0.0

    @property
    def most(self) -> float:
        return max(self.spread, self.waited, self.pace, self.again)

    def __str__(self) -> str:
        tail = f", again {self.again:.0%} apart" if self.again else ""
        return f"spread {self.spread:.0%}, no core {self.waited:.0%}, pace {self.pace:.0%}{tail}"


def kept(shares: Sequence[float]) -> list[bool]:
    """Which steps count, by the share of each that was waiting: those below a twentieth, and the least disturbed third
    in any case (what is left on a machine that is never quiet)."""
    if not shares:
        return []
    enough = sorted(shares)[math.ceil(len(shares) * _LEAST) - 1]
    limit = max(QUIET, enough)
    return [share <= limit for share in shares]
