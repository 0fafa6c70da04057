"""The grid of a sweep file: models, systems, numbers of GPUs and recipe fields, each one value or a list of them.

.. code-block:: yaml

    sweep: 1                       # version of the format, where one is stated
    point: projection              # or search
    model: [llama3_8b, llama3_70b] # zoo names
    system: [h100_sxm, my_gpu.yaml]  # or gpu:, cluster:
    gpus: [64, 128]
    framework: megatron-lm
    tokens: 15T                    # for days, in the figures
    scale: {memory_bandwidth: [0.5, 1, 2]}
    recipe: {global_batch_size: 512, seq_length: 4096, micro_batch_size: [1, 2], tp: [1, 2, 4, 8]}
    search: {fix: {cp: [1]}, objective: tgs}
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import product
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, nearest
from projector.hardware import catalogue, user_files
from projector.hardware.scaled import SCALES
from projector.io.files import read_yaml
from projector.search.objective import OBJECTIVES
from projector.workload import amounts
from projector.workload.schema import counted, parse_model, parse_recipe

VERSION = 1
MOST = 20_000_000  # points: more are a mistake of the file, or of the idea
_KEYS = ("sweep", "point", "model", "system", "gpus", "framework", "tokens", "scale", "recipe", "search")
_SEARCH = ("fix", "vary", "objective", "memory_margin", "seconds")
Point = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A product of axes. ``outer``: axes that change what is computed on (model, system, scale, gpus), ``inner``: those
    of the recipe, the last the fastest. ``search``: fields and limits of the search at each point; None where points
    are projected."""

    outer: Mapping[str, tuple[Any, ...]]
    inner: Mapping[str, tuple[Any, ...]]
    framework: str
    tokens: float | None
    search: Mapping[str, Any] | None = field(default=None)

    def __len__(self) -> int:
        return math.prod(map(len, (*self.outer.values(), *self.inner.values())))

    def points(self) -> Iterator[dict[str, Any]]:
        """Yields every point lazily, as names to values; equal neighbours share model and system."""
        shared: dict[str, Any] = {"framework": self.framework}
        if self.search is not None:
            shared["search"] = self.search
        axes = {**self.outer, **{f"recipe.{name}": values for name, values in self.inner.items()}}
        for values in product(*axes.values()):
            yield {**shared, **dict(zip(axes, values, strict=True))}


def key_of(point: Point) -> str:
    """Returns a key that is equal for equal points, whatever file they come from. A system file counts by its text."""
    identity = dict(point)
    if catalogue.is_path(str(identity["system"])):
        identity["system"] = _digest(str(identity["system"]))
    text = json.dumps(identity, sort_keys=True, default=list)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


_FILES: dict[str, str] = {}


def _digest(path: str) -> str:
    if path not in _FILES:
        _FILES[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return _FILES[path]


def read(path: Path) -> Grid:
    """Returns the grid of the file at ``path``. Raises :class:`InputError` with everything that is wrong with it."""
    return parsed(read_yaml(path), str(path), path)


def parsed(content: object, where: str, path: Path) -> Grid:
    """Returns the grid of the ``content`` of a file; files that it names lie beside ``path``. Raises as :func:`read`."""
    if not isinstance(content, Mapping):
        raise InputError([Problem(where, "", type(content).__name__, "a mapping: sweep, model, system, gpus, recipe")])
    named = [key for key in ("system", "gpu", "cluster") if key in content]
    if len(named) > 1:
        raise InputError([Problem(where, named[-1], content[named[-1]], f"one of {' and '.join(named)}, not several")])
    content = {"system" if key in named else key: value for key, value in content.items()}
    if content.get("sweep", VERSION) != VERSION:
        raise InputError([Problem(where, "sweep", content["sweep"], f"{VERSION}: the version of this format")])
    wrong = [Problem(where, key, content[key], nearest(str(key), _KEYS)) for key in content if key not in _KEYS]
    wrong += [Problem(where, key, "nothing", "one value or a list") for key in _KEYS[2:5] if content.get(key) is None]
    point = content.get("point", "projection")
    if point not in ("projection", "search"):
        wrong.append(Problem(where, "point", point, "projection or search"))
    outer = {name: several(content.get(name)) for name in ("model", "system")}
    outer["system"] = tuple(user_files.beside(str(name), path) for name in outer["system"])
    outer |= _scales(content.get("scale"), where, wrong)
    outer["gpus"] = several(content.get("gpus"))
    recipe = content.get("recipe") or {}
    inner: dict[str, tuple[Any, ...]] = {}
    if isinstance(recipe, Mapping):
        inner = {str(name): _values(counted(name, value)) for name, value in recipe.items()}
    else:
        wrong.append(Problem(where, "recipe", recipe, "recipe fields, each one value or a list of values"))
    stated = {name: values for name, values in outer.items() if content.get(name) is not None}
    wrong += _empty(where, stated, "") + _empty(where, inner, "recipe.")
    wrong += _outer(where, outer) + _inner(where, inner, searched=point == "search")
    given = content.get("tokens")
    tokens = None if given is None else amounts.tokens(str(given))
    if given is not None and tokens is None:
        wrong.append(Problem(where, "tokens", given, amounts.TOKENS))
    held = _held(where, content.get("search"), wrong) if point == "search" else None
    if wrong:
        raise InputError(wrong)
    grid = Grid(
        outer=outer, inner=inner, framework=str(content.get("framework", "megatron-lm")), tokens=tokens, search=held
    )
    if len(grid) > MOST:
        raise InputError([Problem(where, "", f"{len(grid):,} points", f"at most {MOST:,}: fewer values")])
    return grid


def several(value: object) -> tuple[Any, ...]:
    """Returns the values of one axis of a file: those of a list, or one alone."""
    return tuple(value) if isinstance(value, list) else () if value is None else (value,)


def _values(value: object) -> tuple[Any, ...]:
    """Returns one value, or the values of a list; a value that is itself a list stands in a list of lists."""
    every = several(value) if value is not None else (None,)
    return tuple(tuple(each) if isinstance(each, list) else each for each in every)


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _empty(where: str, axes: Mapping[str, tuple[Any, ...]], prefix: str) -> list[Problem]:
    return [
        Problem(where, prefix + name, "no value", "one value or more") for name, values in axes.items() if not values
    ]


def _scales(given: object, where: str, wrong: list[Problem]) -> dict[str, tuple[Any, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        wrong.append(Problem(where, "scale", given, f"factors of {', '.join(SCALES)}"))
        return {}
    factors = {f"scale.{name}": several(values) for name, values in given.items()}
    wrong += [
        Problem(where, "scale", word, nearest(word, tuple(SCALES)))
        for name in given
        for word in str(name).split("+")
        if word not in SCALES
    ]
    wrong += [
        Problem(where, name, each, "a factor above 0")
        for name, values in factors.items()
        for each in values
        if not _positive(each)
    ]
    return factors


def _outer(where: str, outer: Mapping[str, tuple[Any, ...]]) -> list[Problem]:
    wrong = [problem for name in outer["model"] for problem in parse_model(name, where, "model.")[1]]
    for name in outer["system"]:
        try:
            catalogue.cluster(str(name))
        except InputError as error:
            wrong += [Problem(where, "system", name, problem.expected) for problem in error.problems[:1]]
    return wrong + [
        Problem(where, "gpus", each, "a whole number above 0")
        for each in outer["gpus"]
        if type(each) is not int or each < 1
    ]


def _inner(where: str, inner: Mapping[str, tuple[Any, ...]], *, searched: bool) -> list[Problem]:
    """Returns the mistakes of every value by itself, beside the first of all others; a search finds the micro-batch."""
    first = {"micro_batch_size": 1} if searched else {}
    first |= {name: values[0] for name, values in inner.items() if values}
    mistakes = dict.fromkeys(parse_recipe(_plain(first), where)[1])
    for name, values in inner.items():
        for value in values[1:]:
            mistakes |= dict.fromkeys(parse_recipe(_plain({**first, name: value}), where)[1])
    return list(mistakes)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items() if value is not None
    }


def _held(where: str, given: object, wrong: list[Problem]) -> Mapping[str, Any]:
    held = given or {}
    if not isinstance(held, Mapping):
        wrong.append(Problem(where, "search", held, f"a mapping of {', '.join(_SEARCH)}"))
        return {}
    wrong += [
        Problem(where, f"search.{key}", held[key], nearest(str(key), _SEARCH)) for key in held if key not in _SEARCH
    ]
    if held.get("objective", "tgs") not in set(OBJECTIVES) - {"cost"}:
        expected = f"one of {', '.join(name for name in OBJECTIVES if name != 'cost')}"
        wrong.append(Problem(where, "search.objective", held["objective"], expected))
    for name in ("memory_margin", "seconds"):
        if name in held and not (_positive(held[name]) and (name == "seconds" or held[name] < 1)):
            wrong.append(Problem(where, f"search.{name}", held[name], "a number above 0"))
    for name in ("fix", "vary"):
        if not isinstance(held.get(name, {}), Mapping):
            wrong.append(Problem(where, f"search.{name}", held[name], "recipe fields with lists of values"))
    return dict(held)
