"""Whether runs did the same work, so that one of them may be called the faster. Pure functions of sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.compare.side import Side

#: What must be stated by every run and be the same: (name in words, the value as text, empty where it is not stated).
_NEEDED: tuple[tuple[str, Callable[[Side], str]], ...] = (
    ("model", lambda side: side.architecture or side.differs.get("model", "")),
    ("batch", lambda side: f"{side.tokens_per_step:,} tokens a step" if side.tokens_per_step else ""),
    ("number of GPUs", lambda side: str(side.gpus or "")),
)
#: What must be the same among the runs that state it.
_ALIKE: tuple[tuple[str, Callable[[Side], str]], ...] = (
    ("number of layers", lambda side: side.differs.get("num_layers", "")),
    ("sequence length", lambda side: side.differs.get("seq_length", "")),
)


def obstacles(sides: Sequence[Side]) -> tuple[str, ...]:
    """Why no winner can be named, in words; empty where the runs did the same work on as many GPUs of one kind.

    Logs hardly ever name the GPU: runs none of which names it are taken to be of one machine, as the user who lays them
    side by side does.
    """
    found = [words for name, value in _NEEDED for words in _needed(name, value, sides)]
    found += [words for name, value in _ALIKE for words in _differing(name, value, sides)]
    if any(side.gpu for side in sides):
        found += _needed("GPU", lambda side: side.gpu, sides)
    return (*found, *(f"{side.name} cannot be true ({side.impossible})" for side in sides if side.impossible))


def _needed(name: str, value: Callable[[Side], str], sides: Sequence[Side]) -> Iterator[str]:
    silent = [side.name for side in sides if not value(side)]
    if len(silent) == len(sides):
        yield f"the {name} is not stated"
    elif silent:
        yield f"the {name} of {' and '.join(silent)} is not stated"
    yield from _differing(name, value, sides)


def _differing(name: str, value: Callable[[Side], str], sides: Sequence[Side]) -> Iterator[str]:
    told = {side.name: value(side) for side in sides if value(side)}
    if len(set(told.values())) > 1:
        yield f"the {name} differs ({', '.join(f'{run}: {text}' for run, text in told.items())})"
