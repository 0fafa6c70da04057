"""Transfer against waiting: a collective's kernel spins until the last rank has come, so its time is the wait and the
transfer together. With traces of several ranks the fastest one shows the transfer; with one rank the fastest of its like
bounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.trace.events import Kernels, Message
from harness.trace.names import Named


@dataclass(frozen=True, slots=True)
class Exchange:
    """All messages of one kind on one rank. ``seconds`` of their kernels; ``transfer``: what of it is needed to move the
    bytes; ``ranks``: of the group, 0 where the trace does not say."""

    op: str
    group: str
    ranks: int
    elements: int
    dtype: str
    count: int
    seconds: float
    transfer: float

    @property
    def waiting(self) -> float:
        return self.seconds - self.transfer


Key = tuple[str, str, int, int, str]


def exchanges(parts: Sequence[Kernels]) -> tuple[Exchange, ...]:
    """The exchanges of the first of ``parts`` (one a rank, the same step), the longest first.

    Messages of several ranks are matched by their number where torch wrote one, else by their order in the group.
    """
    own, *others = [list(_messages(part)) for part in parts]
    fastest = _fastest(own, others)
    rows: dict[Key, list[float]] = {}
    for at, (key, _, seconds) in enumerate(own):
        row = rows.setdefault(key, [0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += seconds
        row[2] += min(seconds, fastest[at])
    made = [Exchange(*key, int(row[0]), row[1], row[2]) for key, row in rows.items()]
    return tuple(sorted(made, key=lambda each: (-each.seconds, each.op)))


def _messages(part: Kernels) -> Iterator[tuple[Key, tuple[object, ...], float]]:
    """Kind, name among ranks, seconds of each communication kernel, in order."""
    names = part.kinds()
    seen: dict[object, int] = {}
    for at, (name, start, end) in enumerate(
        zip(part.name.tolist(), part.start.tolist(), part.end.tolist(), strict=True)
    ):
        kind = names[name]
        if kind.communicates:
            key = _key(kind, part.messages.get(at))
            number = seen[key] = seen.get(key, -1) + 1
            message = part.messages.get(at)
            sequence = number if message is None or message.sequence is None else ("#", message.sequence)
            yield key, (key, sequence), end - start


def _key(kind: Named, message: Message | None) -> Key:
    if message is None:
        return kind.op or kind.provider, kind.kind, 0, 0, ""
    return message.op, message.group, message.ranks, message.elements, message.dtype


def _fastest(
    own: Sequence[tuple[Key, tuple[object, ...], float]],
    others: Sequence[Sequence[tuple[Key, tuple[object, ...], float]]],
) -> list[float]:
    if others:
        known: list[Mapping[tuple[object, ...], float]] = [
            {name: seconds for _, name, seconds in rows} for rows in others
        ]
        return [min([seconds, *(rank[name] for rank in known if name in rank)]) for _, name, seconds in own]
    least: dict[Key, float] = {}
    for key, _, seconds in own:
        least[key] = min(seconds, least.get(key, seconds))
    return [least[key] for key, _, _ in own]
