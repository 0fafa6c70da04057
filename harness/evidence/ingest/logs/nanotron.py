"""Logs of nanotron: ``iteration: 1 / 15`` with ``elapsed_time_per_iteration_ms: 4.71K``, numbers of three digits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Event, Fact, Restart, Step
from harness.evidence.ingest.logs.numbers import SCALED, scaled
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "nanotron"

_MARK = "elapsed_time_per_iteration_ms:"
_ITERATION = re.compile(r"\biteration:\s?([0-9]{1,15})\s?/")
_FIELD = re.compile(rf"\b([a-z_]{{2,40}}):\s?{SCALED}(?=\s|$)")
_STARTS = re.compile(
    r"\[Start training\].{0,60}? mbs: ([0-9]{1,9}) \| grad_accum: ([0-9]{1,9}) \| global_batch_size: ([0-9]{1,9}) \| "
    r"sequence_length: ([0-9]{1,9})"
)
_PARALLEL = re.compile(
    r"(?:\]:\s{1,60}|ParallelismArgs\()(tp|pp|dp|context_parallel_size|expert_parallel_size)=([0-9]{1,9}),"
)
_LLAMA = re.compile(
    r"\]:\s{1,60}(hidden_size|intermediate_size|num_attention_heads|num_hidden_layers|num_key_value_heads|vocab_size"
    r"|max_position_embeddings|tie_word_embeddings)=(\w{1,12})[,)]"
)
_WORDS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_parallel_size": "expert_model_parallel_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_query_groups",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}
#: What every model that nanotron calls a Llama has.
_SHAPE: dict[str, object] = {
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "bf16": True,
}
_GIB = 2**30


def weigh(line: str) -> int:
    if _MARK in line and _ITERATION.search(line):
        return STEP
    return int("[INFO|DP=" in line)


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    stated: dict[str, object] = {}
    for number, line in lines:
        if _MARK in line:
            if (found := _step(line, number)) is not None:
                if stated:
                    yield _arguments(stated, number)
                    stated.clear()
                if "framework" not in seen:
                    seen.add("framework")
                    yield Fact("framework", NAME, number)
                yield found
        elif "Saving checkpoint at" in line:
            yield Checkpoint(number)
        elif "[Start training]" in line:
            yield Restart("a new start", number)
            if starts := _STARTS.search(line):
                names = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "seq_length")
                stated.update({name: int(value) for name, value in zip(names, starts.groups(), strict=True)})
        elif "LlamaConfig(" in line:
            stated.update(_SHAPE)
        elif not _setting(line, stated) and (event := shared(line, number, seen)) is not None:
            yield event
    if stated:
        yield _arguments(stated, 0)


def _setting(line: str, stated: dict[str, object]) -> bool:
    """Sizes of the layout, and of the model where it is a Llama."""
    if "=" not in line:
        return False
    if parallel := _PARALLEL.search(line):
        stated.setdefault(_WORDS[parallel[1]], int(parallel[2]))
    elif "swiglu" in stated and (size := _LLAMA.search(line)):
        if size[1] == "tie_word_embeddings":
            stated["untie_embeddings_and_output_weights"] = size[2] == "False"
        elif size[2].isdecimal():
            stated.setdefault(_WORDS[size[1]], int(size[2]))
    else:
        return False
    return True


def _arguments(stated: dict[str, object], number: int) -> Arguments:
    """With the number of GPUs that the layout makes up."""
    values = dict(stated)
    sizes = [values.get(name) for name in ("data_parallel_size", "pipeline_model_parallel_size")]
    sizes += [values.get("tensor_model_parallel_size"), values.get("context_parallel_size", 1)]
    if all(isinstance(size, int) for size in sizes):
        world = 1
        for size in sizes:
            world *= int(str(size))
        values["world_size"] = world
    if values.get("num_query_groups") != values.get("num_attention_heads"):
        values["group_query_attention"] = True
    return Arguments(values, number)


def _step(line: str, number: int) -> Step | None:
    index = _ITERATION.search(line)
    fields = {match[1]: value for match in _FIELD.finditer(line, 0, 4000) if (value := scaled(match[2])) is not None}
    elapsed, batch = fields.get("elapsed_time_per_iteration_ms"), fields.get("global_batch_size")
    if index is None or not elapsed:
        return None
    reserved = fields.get("cuda_max_memory_reserved")
    return Step(
        iteration=int(index[1]),
        seconds=elapsed / 1000,
        line=number,
        tokens_per_s=fields.get("tokens_per_sec_per_gpu"),
        tflops=fields.get("model_tflops_per_gpu"),
        # shortened from 1000 on: then it is no exact count
        global_batch_size=int(batch) if batch and batch < 1000 else None,
        memory_gib=reserved / _GIB if reserved else None,
        memory_kind="reserved" if reserved else None,
        loss=fields.get("lm_loss"),
    )
