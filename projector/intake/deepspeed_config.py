"""A DeepSpeed configuration in Megatron-DeepSpeed's arguments: ZeRO stage, batch sizes, precision, offload.

Names and values: ``dialects/deepspeed.yaml``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from projector.errors import InputError, Problem
from projector.intake.dialect import Settings, dialect
from projector.intake.shell.unknown import MARK, Unknown, Unknowns, is_known


def arguments(text: str, where: str, unknowns: Unknowns) -> tuple[dict[str, object], dict[str, tuple[Unknown, ...]]]:
    """(arguments that the JSON ``text`` states, those whose value only the run knows). A setting that may change seconds or
    bytes and that nothing models is an argument by its dotted name. Raises :class:`InputError`."""
    if not MARK.sub("", text).strip():
        held = "; ".join(str(item) for item in unknowns.within(text)) or "an empty file"
        raise InputError([Problem(where, "", held, "a DeepSpeed configuration that the script states")])
    try:
        content = json.loads(re.sub(rf"([:\[,]\s*)({MARK.pattern})", r'\1"\2"', text))
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(where, "", str(error)[:120], "a DeepSpeed configuration in JSON")]) from None
    if not isinstance(content, Mapping):
        raise InputError([Problem(where, "", type(content).__name__, "a DeepSpeed configuration in JSON")])
    job = Settings(dialect("deepspeed"), _settled(content), where)
    open_ = Settings(dialect("deepspeed"), content, where).fields
    left = job.unread(written=True)
    if job.problems or left.problems:
        raise InputError([*job.problems, *left.problems])
    found = {name: value for name, value in job.fields.items() if value is not None}
    found |= {
        name: True for name in job.dialect.tables["aside"] if '"enabled": true' in json.dumps(content.get(name)).lower()
    }
    told = (text.removesuffix(" (unknown)").partition("=") for text in (*job.doubtful(), *left.unmodelled))
    found |= {name if "." in name else f"deepspeed.{name}": job.stated[name] for name, _, _ in told}
    unknown = {
        name: unknowns.within(str(value))
        for name, value in open_.items()
        if isinstance(value, str) and not is_known(value)
    }
    return {name: value for name, value in found.items() if name not in unknown}, unknown


def _settled(value: Any) -> Any:
    """Without what the trainer or only the run settles."""
    if isinstance(value, Mapping):
        kept = ((key, _settled(inner)) for key, inner in value.items())
        return {
            key: inner
            for key, inner in kept
            if inner != "auto" and not (isinstance(inner, str) and not is_known(inner))
        }
    return value
