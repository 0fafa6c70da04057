"""Sorts settings that no loader reads into those without effect, unmodelled ones, and misspellings. The names
are in ``known_settings.yaml``, with their source and release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import Problem, truncate
from projector.intake.spelling import misspelt, normal
from projector.intake.values import literal
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe

_FILE = Path(__file__).with_name("known_settings.yaml")
#: Words in the name of a setting that cuts model, batch or states over GPUs, or replays layers; and of those that only name
#: files, other models or what is printed.
_CUTTING = re.compile(
    r"^(?!max_shard_size$|"
    r"(?:log|load|save|no|fake|disable|source|target|wandb|inference|vision|img|encoder|hf|export|tokenizer|data|rl)_)"
    r"(?!.*(?:path|dir|file|timeout|logging|method_vision|_fusion|_overlap)$)"
    r".*(?:parallel|shard|fsdp|zero_stage|layerzero|use_zero|zero_?[123](?:_|$)|distributed_optim|recompute|checkpoint_(?:activ|layer|gran)"
    r"|dualpipe|pipeline_(?:split|schedule)|(?:^|_)(?:tp|pp|cp|ep|dp|sp)_(?:degree|size)$)"
)
_LONGEST = 60  # characters of a value in a remark

#: Short names of this project and of the literature, and what trainers call them.
SHORT_NAMES: Mapping[str, str] = {
    short: told.names["megatron"][0]
    for name, told in about_of(Recipe).items()
    for short in (name, *told.also)
    if told.names.get("megatron", (short,))[0] != short
}


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Holds sorted settings. ``neutral``: names that cannot change seconds or bytes; ``unmodelled``: others, ``name=value``.

    ``cutting``: those of ``unmodelled`` that nobody knows and whose names say that they cut the work over GPUs.
    """

    neutral: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    cutting: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def beside(self, inner: Unread, prefix: str) -> Unread:
        """Returns these settings and those of a section, ``inner``, whose names get ``prefix``."""
        return Unread(
            neutral=(*self.neutral, *(prefix + each for each in inner.neutral)),
            unmodelled=(*self.unmodelled, *(prefix + each for each in inner.unmodelled)),
            cutting=(*self.cutting, *inner.cutting),
            problems=(*self.problems, *inner.problems),
        )


def sort(unread: Mapping[str, object], read: frozenset[str], where: str, *, written: bool = True) -> Unread:
    """Sorts ``unread`` (settings that no field took) beside the names that the loader can ``read``.

    A name that the loader reads under other settings has no effect under these. An unknown name that misspells one that is
    read is a :class:`Problem` where a person has ``written`` the settings: a trainer's printout holds no misspellings.
    Other unknown names may be a fork's own: they are listed as not modelled, unless they are off.
    """
    neutral, unmodelled, cutting, problems = [], [], [], []
    for name, value in sorted(unread.items()):
        neutral_at = known().get(normal(name))
        if name in read or name.isupper():  # in capitals: a variable of the shell or of the file, no argument
            neutral.append(name)
        elif neutral_at is None and written and (meant := _nearest_names(name, read)):
            problems.append(Problem(where, name, value, f"a known setting; nearest: {', '.join(meant)}"))
        elif _changes_nothing(value, neutral_at):
            neutral.append(name)
        else:
            unmodelled.append(f"{name}={shown(value)}" + ("" if neutral_at else " (unknown)"))
            if _cuts(normal(name).rpartition(".")[2], literal(value)):
                cutting.append(f"{name}={shown(value)}")
    return Unread(
        neutral=tuple(neutral), unmodelled=tuple(unmodelled), cutting=tuple(cutting), problems=tuple(problems)
    )


def _cuts(name: str, value: object) -> bool:
    """Returns whether an unread setting cuts the work over GPUs in its own way, by the table or by its name."""
    if name in known():
        return name in _valued("cutting")
    return _CUTTING.search(name) is not None and (value is True or value not in (0, 1))


def _nearest_names(name: str, read: frozenset[str]) -> tuple[str, ...]:
    short = SHORT_NAMES.get(normal(name))
    return (short,) if short in read and short is not None else misspelt(name, read)


#: What :func:`known` says of a setting that changes nothing at any value.
NEUTRAL: tuple[object, ...] = (object(),)


@cache
def _tables() -> Mapping[str, Any]:
    from projector.io.files import read_yaml

    content: Mapping[str, Any] = read_yaml(_FILE)
    return content


@cache
def known() -> Mapping[str, tuple[object, ...]]:
    """Returns the values that change nothing, by the name of the setting."""
    neutral = (
        each for releases in _tables()["neutral"].values() for names in releases.values() for each in names.split()
    )
    return {**dict.fromkeys(map(normal, neutral), NEUTRAL), **_valued("unmodelled"), **_valued("cutting")}


@cache
def _valued(family: str) -> Mapping[str, tuple[object, ...]]:
    """Returns the settings of a family (``cutting``: other ways of cutting a model over GPUs) with the values that change
    nothing."""
    return {
        normal(name): tuple(values) if isinstance(values, list) else (values,)
        for releases in _tables()[family].values()
        for settings in releases.values()
        for name, values in settings.items()
    }


def _changes_nothing(value: object, neutral_at: tuple[object, ...] | None) -> bool:
    """Returns whether a setting has no effect at ``value``: unset, or one of ``neutral_at`` (None: unknown)."""
    if neutral_at is NEUTRAL:
        return True
    plain = literal(value)
    if plain is None or plain in ([], {}, (), "", "none"):
        return True
    if isinstance(plain, Mapping):
        return plain.get("enabled", plain.get("enable")) is False
    return plain is False if neutral_at is None else plain in neutral_at


def shown(value: object) -> str:
    """Returns ``value`` on one line, cut where it is long."""
    return truncate(str(value).replace("\n", " "), _LONGEST)
