"""Lists what GPUs of an architecture can run: kernels of attention and transports, from ``architectures.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from projector.hardware.types import Gpu
from projector.io.files import read_yaml

ATTENTION, TRANSPORTS = "attention", "transports"
#: Precisions of linear layers, widest first.
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "mxfp4", "nvfp4")


@cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    return dict(read_yaml(Path(__file__).with_suffix(".yaml")))


def known(arch: str, kind: str) -> Mapping[str, str] | None:
    """Returns the entries of ``kind`` (:data:`ATTENTION` or :data:`TRANSPORTS`) of an architecture, each with its
    source; None where the table does not have the architecture, so that nothing is known."""
    return _table().get(arch, {}).get(kind)


def precisions(gpu: Gpu) -> tuple[str, ...]:
    """Returns the precisions in which the matrix units of ``gpu`` multiply; of a processor without such units all of
    them, because a library computes each in software or says itself that it cannot."""
    return PRECISIONS if gpu.vendor == "cpu" else tuple(name for name in PRECISIONS if name in gpu.peak)
