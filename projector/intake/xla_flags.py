"""What the environment of a JAX program says of XLA: its flags, and the level of optimisation that sets some of them
(NVIDIA/JAX-Toolbox@bcbbfa57 docs/GPU_performance.md, "Effect details (O1)")."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from projector.intake import aliases
from projector.intake.values import Reader

_OF_A_LEVEL = ("xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_while_loop_double_buffering")
_LEVELS = ("O1", "O2", "O3")


def stated(env: Mapping[str, str]) -> tuple[dict[str, object], list[tuple[str, object, str]]]:
    """Recipe fields that ``XLA_FLAGS`` and ``JAX_OPTIMIZATION_LEVEL`` state, and what is no value of theirs as
    ``(key, found, expected)``. Of a flag that is repeated the last counts; one without a value is on."""
    text = env.get("XLA_FLAGS", "")
    try:
        words = shlex.split(text)
    except ValueError:
        return {}, [("XLA_FLAGS", text, "flags whose quotes are closed")]
    parts = (word.lstrip("-").partition("=") for word in words)
    told = dict.fromkeys(_OF_A_LEVEL, "true") if env.get("JAX_OPTIMIZATION_LEVEL") in _LEVELS else {}
    args = Reader({**told, **{name: value if is_told else "true" for name, is_told, value in parts}})
    fields = aliases.stated(args, "xla")
    return fields, args.problems
