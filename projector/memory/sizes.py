"""Units and bytes of element types that memory formulas share."""

from __future__ import annotations

__all__ = ["DTYPE_BYTES", "MIB", "QUANTISED"]

MIB = float(2**20)

# Bytes of one element by the names Megatron-LM's arguments use.
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

# Precisions whose linears read quantised operands (the modules around them stay in bf16).
QUANTISED = frozenset({"fp8", "mxfp8", "mxfp4", "nvfp4"})
