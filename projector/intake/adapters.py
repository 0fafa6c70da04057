"""Reads low-rank adapters in peft's words, and quantised weights below them in bitsandbytes' words, for all trainers on
transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from projector.intake.settings import Settings
from projector.workload.lora import BLOCK_LINEARS

#: Linear layers of a decoder by the names of its modules (``output_proj`` is torchtune's).
LINEARS = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "qkv_proj": "linear_qkv",
    "o_proj": "linear_proj", "output_proj": "linear_proj", "gate_proj": "linear_fc1", "up_proj": "linear_fc1",
    "gate_up_proj": "linear_fc1", "down_proj": "linear_fc2", "lm_head": "output_layer",
}  # fmt: skip
_EVERY = ("all", "all-linear")
#: huggingface/transformers BitsAndBytesConfig, to whose words every dialect's own are renamed.
_FOUR, _EIGHT, _TYPE, _NESTED = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")

_BITS, _WHOLE = "quant_bits", (16, 32)


def put(
    job: Settings, rank: object, named: Iterable[str] | None, section: str = "", few: Mapping[str, object] | None = None
) -> None:
    """Puts low-rank adapters of ``rank`` on the linear layers ``named`` (``all-linear``: on all of the decoder's) into the
    job's fields, with the bits of the weights below (``few``, or settings of ``section``); unknown names of layers become
    doubts."""
    linears: list[str] = []
    for name in filter(None, map(str.strip, named or ())):
        linears += BLOCK_LINEARS if name in _EVERY else [LINEARS[name]] if name in LINEARS else []
        job.doubts += [] if name in (*LINEARS, *_EVERY) else [f"lora_target={name}"]
    job.fields["lora"] = {"dim": rank, "targets": list(dict.fromkeys(linears)), **(few or _few_bits(job, section))}


def _few_bits(job: Settings, section: str) -> dict[str, object]:
    args = job.args
    four, eight = _asks_4_and_8_bits(job, section)
    called, nested = args.word(f"{section}{_TYPE}"), args.flag(f"{section}{_NESTED}")
    if four and eight:
        args.problems.append((f"{section}{_EIGHT}", True, f"one of {_FOUR} and {_EIGHT}"))
    if eight:
        return {"quant_type": "int8"}
    return {"quant_type": called or "fp4", "double_quant": bool(nested)} if four else {}


def _asks_4_and_8_bits(job: Settings, section: str) -> tuple[bool, bool]:
    """Returns whether weights in 4 bits, and in 8 bits, are asked for, by switches or by a number of bits."""
    four, eight = (job.args.flag(f"{section}{name}") for name in (_FOUR, _EIGHT))
    bits = job.args.integer(_BITS)
    if bits not in (None, *_WHOLE, 4, 8):
        job.args.problems.append((_BITS, bits, "4 or 8 bits"))
    return bool(four or bits == 4), bool(eight or bits == 8)


def quantised(job: Settings) -> bool:
    """Returns whether the weights below adapters are quantised."""
    found = job.fields.get("lora")
    return isinstance(found, dict) and found.get("quant_type") is not None


def unpaired(job: Settings, section: str = "") -> None:
    """Reports quantised weights without adapters as a problem: nothing could be trained."""
    if not job.fields.get("lora") and any(_asks_4_and_8_bits(job, section)):
        job.args.problems.append((_FOUR, "weights in few bits", "adapters beside them, which are trained"))
