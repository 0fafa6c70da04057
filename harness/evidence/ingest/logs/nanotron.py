"""Logs of nanotron: ``iteration: 1 / 15`` with ``elapsed_time_per_iteration_ms: 4.71K``, numbers of three digits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Event, Restart
from harness.evidence.ingest.logs.numbers import SCALED, scaled
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import one_of, same

#: Where a line ends a number may be broken off, but for one with its unit.
_FIELD = re.compile(rf"\b([a-z_]{{2,40}}):\s?{SCALED}(?=\s{{1,40}}\S|(?<=[KMGBT])\s{{0,9}}$)")
_STARTS = re.compile(
    r"\[Start training\].{0,60}? mbs: ([0-9]{1,9}) \| grad_accum: ([0-9]{1,9}) \| global_batch_size: ([0-9]{1,9}) \| "
    r"sequence_length: ([0-9]{1,9})(?![0-9,])"
)
_STARTED = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "seq_length")
_LAYOUT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    **same("context_parallel_size"),
    "expert_parallel_size": "expert_model_parallel_size",
}
_SIZES = {
    **same("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings"),
    "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_query_groups",
}
_PARALLEL = re.compile(rf"(?:\]:\s{{1,60}}|ParallelismArgs\(){one_of(_LAYOUT)}=([0-9]{{1,9}}),(?![0-9])")
_LLAMA = re.compile(rf"\]:\s{{1,60}}{one_of((*_SIZES, 'tie_word_embeddings'))}=(\w{{1,12}})[,)](?![0-9])")
#: What every model that nanotron calls a Llama has.
_SHAPE: dict[str, object] = {
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "bf16": True,
}
_GIB = 2**30


class Nanotron(Trainer):
    NAME = "nanotron"
    steps = {"elapsed_time_per_iteration_ms:": re.compile(r"\biteration:\s?([0-9]{1,15})\s?/")}
    hints = ("[INFO|DP=",)
    said = {"Saving checkpoint at": Checkpoint}

    def __init__(self) -> None:
        super().__init__()
        self.stated: dict[str, object] = {}

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        fields = {
            found[1]: value for found in _FIELD.finditer(line, 0, 4000) if (value := scaled(found[2])) is not None
        }
        elapsed, batch = fields.get("elapsed_time_per_iteration_ms"), fields.get("global_batch_size")
        reserved = fields.get("cuda_max_memory_reserved")
        if not elapsed:
            return
        yield self.made(
            line,
            number,
            match[1],
            elapsed / 1000,
            tokens_per_s=fields.get("tokens_per_sec_per_gpu"),
            tflops=fields.get("model_tflops_per_gpu"),
            # shortened from 1000 on: then it is no exact count
            global_batch_size=int(batch) if batch and batch < 1000 else None,
            memory_gib=reserved / _GIB if reserved else None,
            memory_kind="reserved" if reserved else None,
            loss=fields.get("lm_loss"),
        )

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        """A start, and sizes of the layout and of the model where it is a Llama."""
        if "[Start training]" in line:
            if starts := _STARTS.search(line):
                self.stated.update(zip(_STARTED, map(int, starts.groups()), strict=True))
            return (Restart("a new start", number),)
        if "LlamaConfig(" in line:
            self.stated.update(_SHAPE)
        elif "=" in line and (parallel := _PARALLEL.search(line)):
            self.stated.setdefault(_LAYOUT[parallel[1]], int(parallel[2]))
        elif "=" in line and "swiglu" in self.stated and (size := _LLAMA.search(line)):
            if size[1] == "tie_word_embeddings":
                self.stated["untie_embeddings_and_output_weights"] = size[2] == "False"
            elif size[2].isdecimal():
                self.stated.setdefault(_SIZES[size[1]], int(size[2]))
        else:
            return None
        return ()

    def arguments(self, number: int) -> Iterator[Arguments]:
        """With the number of GPUs that the layout makes up."""
        values, self.stated = self.stated, {}
        sizes = [values.get(f"{axis}_parallel_size") for axis in ("data", "pipeline_model", "tensor_model")]
        sizes.append(values.get("context_parallel_size", 1))
        counts = [size for size in sizes if isinstance(size, int)]
        if len(counts) == len(sizes):
            values["world_size"] = math.prod(counts)
        if values.get("num_query_groups") != values.get("num_attention_heads"):
            values["group_query_attention"] = True
        if values:
            yield Arguments(values, number)
