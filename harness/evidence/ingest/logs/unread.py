"""Settings that a log prints and no reader takes: those whose names say that they may change the time of a step."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.evidence.ingest.logs.events import Arguments
from projector.intake.values import literal

_MATTER = re.compile(
    r"parallel|shard|fsdp|zero|compil|quanti[sz]|float8|fp8|fp4|mxfp|int8|recompute|remat|checkpoint_?(?:activ|layer|num)"
    r"|activation_?checkpoint|offload|overlap|async|attention|kernel|fus(?:ed|ion)|graph|precision|dtype|lora|peft|dispatch"
    r"|accumulat|packing|log$",
    re.IGNORECASE,
)
_IDLE = re.compile(
    r"(?:^|[._])(?:path|dir|file|folder|timeout|logg(?:er|ing)|wandb|tensorboard|profil\w*|seed|dropout|init\w*|eval\w*|save\w*)"
    r"(?:$|[._])",
    re.IGNORECASE,
)
_OFF: tuple[object, ...] = (None, False, 0, 1, -1, "", "none", "default", "auto", [], {}, ())
_LONGEST = 60  # characters of one


def may_matter(found: Arguments, values: Mapping[str, object]) -> tuple[str, ...]:
    """``name: value`` of each. ``values``: what was read beside them."""
    named = (f"{name}: {value}" for name, value in found.unread if _matters(name, value) and name not in values)
    return tuple(dict.fromkeys(text[:_LONGEST].replace(";", ",") for text in named))


def _matters(name: str, value: str) -> bool:
    if not _MATTER.search(name) or _IDLE.search(name):
        return False
    plain = literal(value.strip("'\""))
    if isinstance(plain, Mapping):
        return plain.get("enabled", plain.get("enable")) is not False
    return not (plain.lower() in _OFF if isinstance(plain, str) else _off(plain))


def _off(value: object) -> bool:
    return any(value == off and type(value) is type(off) for off in _OFF)
