"""Reads Megatron-LM arguments from the dump at the head of a training log, or from a YAML or JSON mapping.

Dump lines read ``name .... value`` behind any prefix (rank numbers, timestamps, ``[rank-0/8][INFO] [file.py:12] :``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from projector.errors import InputError
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.values import Reader, literal
from projector.io.documents import parse_yaml
from projector.workload import tokenizers, zoo

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_BUILT = r"\[(?:NO|YES|OKAY|FAIL|SUCCESS)\]"
#: A line of a dump: name and value; none of the report in which DeepSpeed lists what it could build (``cpu_adam ... [NO]``),
#: and none whose dots end in what another process printed there (``use_torch_fsdp2 ......WARNING: …``).
_DUMPED = re.compile(
    r"(?:^|[\]:])\s{0,40}:?\s{0,40}([A-Za-z_][\w.]{0,80}?)\s{1,9}\.{3,200}(?=\s|$)"
    rf"(?!\S{{1,80}}\s{{1,40}}{_BUILT})\s?(?!{_BUILT})([^:\s].{{0,2000}}|)$"
)
_TORN = re.compile(rf"(?:\.{{4,200}}|{_BUILT}).{{0,2000}}$")
_WORLD = re.compile(r"using world size:\s*(\d+)")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d+)\)")
_SECTIONS = (("language_model", "model_parallel"), ("system", "model", "data"))
_LEAST_LINES = 8  # of a dump: fewer are a coincidence (Megatron-LM prints some 300)


def from_mapping(
    args: Mapping[str, object], where: str, *, model: str | None = None, name: str = "", written: bool = True
) -> Loaded:
    """Returns the workload of a plain mapping of Megatron-LM argument names to values.

    Where no vocabulary is given and no tokenizer is named, that of the zoo model which ``name`` means is assumed.
    ``written``: by a person, see :class:`Origin`. Raises :class:`InputError` with everything that does not fit.
    """
    name = name or model or "megatron model"
    if model:
        return assemble(args, Origin(where=where, name=name, base=zoo.load(model), written=written))
    alike = zoo.find(name)
    named = tokenizers.completed(args)
    if alike is None or named is None or named.sure:
        return assemble(args, Origin(where=where, name=name, written=written))
    size = zoo.load(alike).vocab_size
    assumed = (f"vocab_size={size} (of {alike})",)
    return assemble({**args, "vocab_size": size}, Origin(where=where, name=name, assumed=assumed, written=written))


def partial_recipe(
    args: Mapping[str, object], num_layers: int | None = None
) -> tuple[dict[str, object], list[tuple[str, object, str]]]:
    """Returns the recipe fields that a *part* of the arguments states, and ``(argument, value, expected)`` of bad values."""
    reader = Reader(args)
    return recipe_fields(reader, num_layers), reader.problems


def parse(text: str) -> dict[str, object]:
    """Returns the arguments found in ``text``, by name; empty when there are none."""
    return _dump(text) or _mapping(text)


def is_dump(text: str) -> bool:
    """Returns whether ``text`` holds the arguments as a trainer printed them, rather than as a person wrote them."""
    lines = (True for line in text.splitlines() if dumped(_ANSI.sub("", line)))
    return sum(1 for _ in islice(lines, _LEAST_LINES)) == _LEAST_LINES


def dumped(line: str) -> tuple[str, str] | None:
    """Returns name and value of a line of a dump, without text of another rank behind them; None for other lines."""
    match = _DUMPED.search(line.rstrip()) if "..." in line else None
    return (match[1], _TORN.sub("", match[2]).strip()) if match else None


def _dump(text: str) -> dict[str, object]:
    """Returns the last complete list of arguments, or all lines that look like arguments where no list has a head."""
    found: dict[str, object] = {}
    beside: dict[str, object] = {}
    ended = False
    for line in text.splitlines():
        bare = _ANSI.sub("", line)
        if world := _WORLD.search(bare):
            beside["world_size"] = int(world[1])
        if vocabulary := _VOCABULARY.search(bare):
            beside["vocab_size"] = int(vocabulary[1])
        if "- arguments -" in bare:
            found, ended = {}, False
        ended = ended or "- end of arguments -" in bare
        if not ended and (said := dumped(bare)):
            found.setdefault(said[0], literal(said[1]))
    found |= {name: value for name, value in beside.items() if found.get(name) is None}
    return found if len(found) >= _LEAST_LINES else {}


def _mapping(text: str) -> dict[str, object]:
    try:
        content = parse_yaml(text, "")
    except InputError:
        return {}
    if not isinstance(content, Mapping):
        return {}
    for key in ("MODEL_ARGS", "args"):
        inner = content.get(key)
        if isinstance(inner, Mapping):
            content = inner
    return {str(key).lstrip("-").replace("-", "_"): literal(value) for key, value in joined(content).items()}


def joined(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``content`` with the sections of Megatron-LM's own YAML and FlagScale's flattened, since their arguments share
    one space of names; other mappings unchanged."""
    found = {str(key): value for key, value in content.items()}
    if any(all(isinstance(found.get(key), Mapping) for key in sections) for sections in _SECTIONS):
        while any(isinstance(value, Mapping) for value in found.values()):
            inner = (value if isinstance(value, Mapping) else {key: value} for key, value in found.items())
            found = {str(key): value for each in inner for key, value in each.items()}
    return found
