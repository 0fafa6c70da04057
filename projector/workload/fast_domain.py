"""Reads which groups lie inside a fast domain: ``tp4.cp2.dp8``, or ``{tp: 4, cp: 2, dp: 8}`` in a file.

4 of the tensor-parallel ranks, 2 of the context-parallel and 8 of the data-parallel ones share a domain of links (an NVLink
domain, a node): 64 GPUs. What a group has beyond that lies in other domains (Subramanian et al., arXiv:2410.00273, section
3). Where nothing is said ranks fill domains in the order tp, tp2, cp, dp, pp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

#: Groups in the order in which ranks are numbered, fastest first.
ORDER = ("tp", "tp2", "cp", "dp", "pp")
_PART = re.compile(r"(?:(tp2)[:=]|(tp|cp|dp|pp)[:=]?)(\d{1,6})")  # tp24: 24 ranks of tp; tp2:4: 4 of tp2


def inside(text: str | None) -> tuple[int, ...] | None:
    """Returns the ranks of each group of :data:`ORDER` in a domain; None where nothing is said. Raises ValueError with what
    is wrong."""
    if text is None:
        return None
    ranks: dict[str, int] = {}
    for word in re.split(r"[.\s+]+", text.strip()):
        match = _PART.fullmatch(word)
        name = (match[1] or match[2]) if match else ""
        if match is None or name in ranks or int(match[3]) < 1:
            raise ValueError("as in tp4.cp2.dp8, each of tp, tp2 (tp2:4), cp, dp, pp once at most")
        ranks[name] = int(match[3])
    return tuple(ranks.get(name, 1) for name in ORDER)


def written(domain: Mapping[str, int]) -> str:
    """Returns the text of ranks by group; groups of one rank are left out."""
    parts = (f"{name}:{domain[name]}" if name == "tp2" else f"{name}{domain[name]}" for name in ORDER
             if domain.get(name, 1) != 1)  # fmt: skip
    return ".".join(parts) or "tp1"


def placements(domain: int) -> tuple[str, ...]:
    """Returns every way in which groups share a domain of so many ranks."""
    return tuple(written(dict(zip(("tp", "cp", "dp", "pp"), ranks, strict=True))) for ranks in _products(domain, 4))


def _products(number: int, factors: int) -> Iterator[tuple[int, ...]]:
    if factors == 1:
        yield (number,)
        return
    for first in (n for n in range(1, number + 1) if number % n == 0):
        yield from ((first, *rest) for rest in _products(number // first, factors - 1))
