"""Logs of torchtitan: its own metrics line (a rate, no time), and Megatron's line where Primus patches it in; the model that
it prints as it builds it: its name, and a Llama's arguments where it is none of the published ones.

Other families' arguments (experts, latent or linear attention, what forks add) are left to the name: a part of them would
make another model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from harness.evidence.ingest.logs.dialect import LLAMA, WORDS, Dialect
from harness.evidence.ingest.logs.dumps import DottedDump, renamed
from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Lines, Mark
from harness.evidence.ingest.logs.iteration_line import step
from harness.evidence.ingest.logs.numbers import finite, loss, whole
from harness.evidence.ingest.logs.shared_lines import shared
from harness.evidence.ingest.logs.source import RANK
from harness.evidence.ingest.logs.trainer import Trainer
from projector.intake import named_models
from projector.intake.values import literal
from projector.workload import zoo

_BUILDING = re.compile(
    r"Building ([\w.-]{2,40}) (?:([0-9][\w.]{0,12}) with |([\w.-]{1,80}) with (?=\{|[\w.]{0,40}(?:Args|Config)\())"
)
_ARGUMENTS = re.compile(r" with \w{0,40}ModelArgs\((.{10,2000})\)\s*$")
_ARGUMENT = re.compile(r"\b(\w{2,40})=([\w.+-]{1,40})(?=[,)]|$)")
_LLAMA = ("llama", "llama2", "llama3")
_RANK = re.compile(rf"(?:{RANK}){{1,2}}")
_MOST_LINES = 200_000  # of a model's JSON: some 150 a layer
_PARTS = ("attention", "feed_forward", "attention_norm", "ffn_norm", "param_init")
_SHAPE: Mapping[str, object] = {**LLAMA, "untie_embeddings_and_output_weights": True}


def built(line: str) -> str | None:
    """Returns ``family flavour`` of the model that a line says is built; None for any other line."""
    match = _BUILDING.search(line)
    return f"{match[1]} {match[2] or match[3]}" if match else None


def architecture(line: str) -> Mapping[str, object]:
    """Returns Megatron-LM's arguments of a printed Llama; empty for anything else.

    The feed-forward size follows torchtitan's models/llama3/model.py: two thirds of four times the width, times
    ``ffn_dim_multiplier``, rounded up to ``multiple_of``.
    """
    name, printed = _BUILDING.search(line), _ARGUMENTS.search(line)
    if name is None or printed is None or name[1] not in _LLAMA or "moe" in printed[1].lower():
        return {}
    printed_sizes = {match[1]: match[2] for match in _ARGUMENT.finditer(printed[1])}
    sizes = {ours: whole(printed_sizes.get(theirs, "")) for theirs, ours in WORDS["torchtitan-llama"].items()}
    multiple = whole(printed_sizes.get("multiple_of", "256"))
    factor = printed_sizes.get("ffn_dim_multiplier", "None")
    if not all(sizes.values()) or not multiple:
        return {}
    width = int(2 * (4 * (sizes["hidden_size"] or 0)) / 3)
    if factor != "None":
        try:
            width = int(float(factor) * width)
        except (ValueError, OverflowError):
            return {}
    groups = whole(printed_sizes.get("n_kv_heads", "")) or sizes["num_attention_heads"]
    return {
        **sizes,
        "ffn_hidden_size": -(-width // multiple) * multiple,
        "group_query_attention": groups != sizes["num_attention_heads"],
        "num_query_groups": groups,
        **_SHAPE,
    }


class Printed:
    """Collects JSON that is printed over many lines, each behind the prefix of its rank. ``opens`` tells whether a line is
    the first; ``read`` turns the parsed JSON into settings."""

    def __init__(self, opens: Callable[[str], bool], read: Callable[[Any], Mapping[str, object]]) -> None:
        self._opens, self._read = opens, read
        self._lines: list[str] = []
        self._prefix = ""
        self._depth = 0

    def begin(self, line: str) -> bool:
        """Returns whether a line opens the JSON."""
        if not line.rstrip().endswith(" {") or not self._opens(line):
            return False
        rank = _RANK.match(line)
        self._lines, self._prefix, self._depth = ["{"], rank[0] if rank else "", 1
        return True

    def feed(self, line: str) -> bool:
        """Takes a line; returns whether the line is part of the JSON (lines of other ranks may stand between)."""
        if not self._depth or not line.startswith(self._prefix) or len(self._lines) >= _MOST_LINES:
            self._depth = self._depth if len(self._lines) < _MOST_LINES else 0
            return False
        text = line[len(self._prefix) :].strip()
        if not text or text[0] not in '"{}[]':
            return False
        self._lines.append(text)
        self._depth += (text[-1] in "{[") - (text.rstrip(",") in ("}", "]"))
        return True

    def take(self) -> Mapping[str, object]:
        """Returns the settings of the JSON once all of it was read; else empty."""
        if self._depth or not self._lines:
            return {}
        text, self._lines = "\n".join(self._lines), []
        try:
            return self._read(json.loads(text))
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError):
            return {}


def a_llama(line: str) -> bool:
    """Returns whether a line says that a Llama is built."""
    name = _BUILDING.search(line)
    return name is not None and name[1] in _LLAMA


def llama(model: Any) -> Mapping[str, object]:
    """Returns Megatron-LM's arguments of a printed model, where all its layers are a Llama's; else empty."""
    shapes = {_dense_layer(layer) for layer in model["layers"]}
    if len(shapes) != 1 or None in shapes:
        return {}
    heads, groups, head, ffn = shapes.pop()  # type: ignore[misc]
    return {
        "num_layers": len(model["layers"]),
        "hidden_size": int(model["dim"]),
        "vocab_size": int(model["vocab_size"]),
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "group_query_attention": groups != heads,
        "kv_channels": head,
        "ffn_hidden_size": ffn,
        **_SHAPE,
        "untie_embeddings_and_output_weights": not model.get("enable_weight_tying"),
    }


def _dense_layer(layer: Any) -> tuple[int, int, int, int] | None:
    """Returns (heads, key-value heads, head size, feed-forward size) of a plain dense layer; None for any other layer."""
    attention, mlp = layer["attention"], layer["feed_forward"]
    if any(layer.get(name) for name in layer if name not in _PARTS) or attention.get("qk_norm"):
        return None
    if any(part["bias"] for part in (attention["wq"], attention["wo"], mlp["w1"])) or "w3" not in mlp:
        return None
    heads = int(attention["n_heads"])
    return (
        heads,
        int(attention["n_kv_heads"] or heads),
        attention["wq"]["out_features"] // heads,
        mlp["w1"]["out_features"],
    )


_LINE = re.compile(r"Running with (?:args|configs): (\{.{2,100000}\})\s*$")
_HEAD = "Running with configs: {"


def opens(line: str) -> bool:
    """Returns whether a line opens the configuration as JSON."""
    return _HEAD in line


def in_line(line: str) -> Mapping[str, object]:
    """Returns the settings of the one-line form under dotted names; empty for any other line."""
    match = _LINE.search(line) if "Running with " in line else None
    return flat(literal(match[1])) if match else {}


def flat(config: Any) -> Mapping[str, object]:
    """Returns the settings of a nested configuration by ``section.name``; empty for what is no mapping."""
    return named_models.flat(config) if isinstance(config, Mapping) else {}


NAME = "torchtitan"

_MESH = re.compile(r"device mesh with parallelism: (.{0,200})")
_DEGREE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep|etp)=(\d{1,7})")
_STARTS = re.compile(
    r"local batch size:? ([0-9]{1,9}), global batch size:? ([0-9]{1,9}),.{0,40}?"
    r"sequence length:? ([0-9]{1,9})(?!,?[0-9])"
)
_RECOMPUTE = re.compile(r"Applied (full|selective) activation checkpointing")
#: What converts linear layers, 0.1 to 2026 (torchtitan/components/quantization/float8.py, mx.py, nvfp4.py): before recipes
#: had names they were tensorwise.
_QUANTISED = re.compile(
    r"(?:Float8|MX) (?:tensorwise scaled )?training active(?: with recipe (\w{1,40}))?|Swapped to (MXLinear) layers|"
    r"Converted Linear layers to (MXFP8Linear|NVFP4Linear)"
)
_GATHERED = "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True"
#: What else is said to be done to the model that no argument of Megatron-LM stands for.
_DONE = re.compile(
    r"INFO - (Converted (?:MoE layers|GroupedExperts) .{1,200}|MXFP8 MoE training enabled"
    r"|Applied .{0,60}Async Tensor Parallelism.{0,60}|Applied CPU Offloading.{0,60})$"
)
_DOES = ("Converted ", "Applied ", "MoE training")
_DONE_AS = "said"  # key of :func:`_read_setting` for these
_PARAMETERS = re.compile(r"Total parameter count: (.{1,80})|size: ([0-9,]{1,20}) total parameters")
_MESH_WORDS = WORDS["torchtitan-mesh"]


class TorchTitan(Trainer):
    """Reads torchtitan's lines, which print only a rate: batch, sequence length and GPUs give the step time (see
    ``build``)."""

    def __init__(self, of: Dialect) -> None:
        super().__init__(of)
        self.stated: dict[str, object] = {}
        self.dump = DottedDump(least=3)
        self.model, self.printed = Printed(a_llama, llama), Printed(opens, flat)

    def read(self, lines: Lines) -> Iterator[Event]:
        yield from super().read(lines)
        if self.once("framework"):  # of a log without a step, too
            yield Fact("framework", NAME)

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        if self.once("head") and (fact := shared(line[:200], number, self.seen)) is not None:
            yield fact
        if "elapsed time per iteration" in line:
            yield from filter(None, (step(line, number),))
        else:
            yield self.made(line, number, match["step"], None, tokens_per_s=finite(match["rate"]), loss=loss(line))

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        if self.model.feed(line):
            self.stated.update(self.model.take())
        elif self.printed.feed(line):
            self.dump.add(self.printed.take(), number)
        elif self.dump.feed(line, number) or self.printed.begin(line):
            return ()
        elif "Building " in line and self.model.begin(line):
            _read_setting(line, self.stated)
        elif settings := in_line(line):
            self.dump.add(settings, number)
        elif _read_mesh(line, self.stated):
            return (Mark.RESTART,)
        elif not _read_setting(line, self.stated):
            return None
        return ()

    def arguments(self, number: int) -> Iterator[Arguments]:
        stated, self.stated = self.stated, {}
        unread = tuple(("log", change) for change in str(stated.pop(_DONE_AS, "")).splitlines())
        count = len(stated)
        for printed in self.dump.take():
            count, known = printed.stated, renamed(printed, WORDS[NAME])
            stated = {**known.values, **stated}
            unread += known.unread
        if stated:
            yield Arguments(stated, number, count, unread)


def _read_mesh(line: str, stated: dict[str, object]) -> bool:
    if "parallelism:" not in line or not (mesh := _MESH.search(line)):
        return False
    degrees = {name: int(size) for name, size in _DEGREE.findall(mesh[1])}
    stated.update({_MESH_WORDS[name]: size for name, size in degrees.items() if name in _MESH_WORDS})
    stated["world_size"] = math.prod(degrees.get(name, 1) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    return True


def _read_setting(line: str, stated: dict[str, object]) -> bool:
    if "batch size" in line and (starts := _STARTS.search(line)):
        names = ("micro_batch_size", "global_batch_size", "seq_length")
        stated.update({name: int(value) for name, value in zip(names, starts.groups(), strict=True)})
    elif "Building " in line and (name := built(line)) is not None:
        stated["model_name"] = name
        if zoo.find(name) is None:
            stated.update(architecture(line))
    elif "activation checkpointing" in line and (recompute := _RECOMPUTE.search(line)):
        stated["activation_checkpoint_mode"] = recompute[1]
    elif "parameter" in line and (count := _PARAMETERS.search(line)):
        stated["parameter_count"] = count[1] or count[2]
    elif "with torch.compile" in line:
        if "loss function" not in line:
            stated["torch_compile"] = True
    elif quantised := _quantised(line):
        stated.update(quantised)
    elif done := _DONE.search(line.rstrip()) if any(map(line.__contains__, _DOES)) else None:
        before = str(stated.get(_DONE_AS, ""))
        stated[_DONE_AS] = before if done[1] in before else f"{before}\n{done[1]}".strip()
    else:
        return False
    return True


def _quantised(line: str) -> dict[str, object]:
    """Returns the precision of the linear layers, where a line says that they are converted."""
    if _GATHERED in line:
        return {"fp8_param_gather": True}
    if "training active" not in line and "MX" not in line and "NVFP4Linear" not in line:
        return {}
    if not (match := _QUANTISED.search(line)):
        return {}
    word = (match[1] or match[2] or match[3] or "tensorwise").lower()
    if "fp4" in word:
        return {"fp4": word.removesuffix("linear")}
    return {"fp8": "hybrid", "fp8_recipe": "mxfp8" if "mx" in word else word.removesuffix("_with_gw_hp")}
