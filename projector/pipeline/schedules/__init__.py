"""Registers every schedule by name. A new one is a new file here, with a ``GENERATOR``, or ``GENERATORS`` of one rule."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import import_module
from pkgutil import iter_modules

from projector.errors import InputError, Problem, nearest, raise_all
from projector.pipeline.types import Costs, Generator, Schedule
from projector.size import least, most

_REMARK = re.compile(r"-(vpp-?\d+|(via|with|using|by|on|over)-.*)$")


def _registered() -> dict[str, Generator]:
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    generators = [module.GENERATOR for module in modules if hasattr(module, "GENERATOR")]
    generators += [entry for module in modules for entry in getattr(module, "GENERATORS", ())]
    return {
        entry.name: entry
        for entry in sorted(generators, key=lambda e: (e.split, e.chunks is None, e.chunks or 0, e.name))
    }


_REGISTRY = _registered()


def names(*, unlisted: bool = False) -> tuple[str, ...]:
    """Returns the registered schedules; with ``unlisted`` also those that are only searched for on request."""
    return tuple(name for name, entry in _REGISTRY.items() if entry.listed or unlisted)


def words() -> tuple[str, ...]:
    """Returns the names of schedules in recipes: with hyphens, and the aliases that differ by more than hyphens."""
    spelling_of: dict[str, str] = {}
    for spelling in _spellings():
        spelling_of.setdefault(spelling.replace("-", ""), spelling)
    return tuple(spelling_of.values())


@lru_cache(maxsize=1024)
def find(text: str) -> str | None:
    """Returns the schedule that free text such as ``"Interleaved 1F1B"`` or ``"zero-bubble"`` means, or ``None``.

    Case, punctuation and text in brackets do not matter, nor do a ``vppN`` and a remark that says how the schedule runs
    (``"… via layout …"``, ``"… with overlap"``) at the end. Any other word left over makes the name unknown.
    """
    return _spellings().get(_REMARK.sub("", _normal(text)))


def generator(name: str) -> Generator:
    """Returns the generator of a name or alias. Raises :class:`InputError` with the nearest names when there is none."""
    known = find(name)
    if known is None:
        raise InputError([Problem("pipeline", "pipeline_schedule", name, nearest(name, names()))])
    return _REGISTRY[known]


@lru_cache(maxsize=4096)
def choose(text: str | None, pp: int, vpp: int) -> str:
    """Returns the schedule that a framework runs for the ``text`` of a recipe. Raises :class:`InputError` on an unknown
    name.

    Frameworks pick the interleaved form from ``vpp`` alone (Megatron-LM ``get_forward_backward_func``), so a schedule
    for one chunk becomes its interleaved form when ``vpp > 1``, and the other way round. With ``pp = vpp = 1`` there is
    no pipeline: micro-batches follow each other, F then B, which is ``1f1b``.
    """
    if pp == 1 and vpp == 1:
        return "1f1b"
    entry = generator(text or "1f1b")
    return (entry.looped if vpp > 1 else entry.single) or entry.name


def build(
    name: str,
    pp: int,
    vpp: int,
    microbatches: int,
    group: int | None = None,
    extra_warmup: int = 0,
    costs: Costs | None = None,
) -> Schedule:
    """Returns the schedule ``name`` for these sizes. Raises :class:`InputError` with every mistake among them.

    ``costs``: the durations to make the order for, where it depends on them (``zb_1p``, ``zb_2p``); without, all equal.
    """
    mistakes = problems(name, pp, vpp, microbatches, group, extra_warmup)
    raise_all(mistakes)
    entry = generator(name)
    if costs is not None and entry.tuned is not None:
        return entry.tuned(pp, microbatches, costs)
    return entry.build(pp, vpp, microbatches, group, extra_warmup)


def problems(
    name: str,
    pp: int,
    vpp: int,
    microbatches: int,
    group: int | None = None,
    extra_warmup: int = 0,
    where: str = "pipeline",
) -> list[Problem]:
    """Returns everything that keeps the schedule ``name`` from being built for these sizes."""
    mistakes: list[Problem] = []
    known = find(name)
    if known is None:
        mistakes.append(Problem(where, "pipeline_schedule", name, nearest(name, names())))
    sizes = {"pp": pp, "vpp": vpp, "microbatches": microbatches}
    mistakes += [Problem(where, key, value, "an integer >= 1") for key, value in sizes.items() if value < 1]
    if group is not None and group < (fewest := most(1, least(pp, microbatches))):
        expected = f"an integer >= {fewest}, so that a group fills the pipeline"
        mistakes.append(Problem(where, "microbatch_group_size_per_vp_stage", group, expected))
    if extra_warmup < 0:
        mistakes.append(Problem(where, "extra_warmup", extra_warmup, "an integer >= 0"))
    if known is None:
        return mistakes
    entry = _REGISTRY[known]
    if entry.chunks is not None and vpp != entry.chunks:
        mistakes.append(Problem(where, "vpp", vpp, f"{entry.chunks} for {known}"))
    for key, unit in entry.multiples.items():
        if sizes[key] % unit:
            mistakes.append(Problem(where, key, sizes[key], f"a multiple of {unit} for {known}"))
    return mistakes


def _normal(text: str) -> str:
    without_brackets = re.sub(r"\([^)]*\)", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", without_brackets).strip("-")


@cache
def _spellings() -> dict[str, str]:
    return {_normal(spelling): entry.name for entry in _REGISTRY.values() for spelling in (entry.name, *entry.aliases)}
