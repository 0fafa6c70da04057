"""Trainers whose lines say (nearly) all: little code but what a line looks like and what its figures mean.

Taken are figures of a step (or means since the line before), never running averages. Sources of the meaning: the line
of code that prints each, named at its class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from harness.evidence.ingest.logs import olmo_config
from harness.evidence.ingest.logs.clock import CLOCK, STAMP
from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Evaluation, Event, Fact, Memory
from harness.evidence.ingest.logs.numbers import NUMBER, SCALED, group, measure, whole
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import MAXTEXT_WORDS, one_of

_STEP = r"(?P<step>[0-9]{1,15})"
_BROKEN = "-?(?:nan|inf)"
_LOSS = rf"(?:{NUMBER}|{_BROKEN})"
_DEVICES = re.compile(r"[Nn]um_devices[:=]?\s{0,3}([0-9]{1,7})")
_EVALUATED = re.compile(r"\bstep [0-9]{1,15}: train loss \S{1,20}, val loss ")
_PEAK = re.compile(rf"peak memory (?:allocated|consumption): [0-9]{{1,9}} MiB reserved: {NUMBER} MiB")
_MIB_PER_GIB = 1024
_OLMO_PEAK = re.compile(rf"Peak GPU Memory \(MB\)(?:=| .{{1,40}}: ){NUMBER}")
_FAIRSEQ = tuple(re.compile(rf'\b{name}"?[=:] ?"?{NUMBER}') for name in ("wpb", "wps"))


class FsdpExample(Trainer):
    """awslabs/awsome-distributed-training pytorch/FSDP/src/train.py: samples of all ranks over the time of the step."""

    NAME = "pytorch"
    steps = {"samples/sec": re.compile(rf"\bBatch {_STEP} (?:Steps [0-9]{{1,15}} )?Loss: {_LOSS}, Speed: ")}
    figures = {
        "samples_per_s": re.compile(rf"\bSpeed: {NUMBER} samples/sec"),
        "loss": re.compile(rf"\bLoss: {NUMBER}"),
    }


class Lingua(Trainer):
    """facebookresearch/lingua apps/main/train.py: ``iter`` is the last iteration's, ``wps`` the rate of a rank."""

    NAME = "lingua"
    steps = {
        "  wps: ": re.compile(rf"\bstep: {_STEP}  acc: 0  loss: .{{0,120}}?  iter:\s{{1,9}}(?P<s>{NUMBER})  data:")
    }
    figures = {"loss": re.compile(rf"  loss:\s{{1,9}}{NUMBER}")}


class MindFormers(Trainer):
    """mindspore-lab/mindformers core/callback/callback.py."""

    NAME = "mindformers"
    steps = {
        "per_step_time:": re.compile(
            rf"step:\[\s{{0,9}}{_STEP}/\s{{0,9}}[0-9]{{1,15}}\], loss:.{{1,60}}?per_step_time: (?P<ms>{NUMBER})ms"
        )
    }
    figures = {
        "tflops": re.compile(rf"train_throughput_per_npu: {NUMBER}T"),
        "loss": re.compile(rf"\bloss:\s?\[?\s?{NUMBER}"),
    }


class NanoChat(Trainer):
    """karpathy/nanochat scripts/base_train.py, build-nanogpt, autoresearch: ``tok/sec`` is of all ranks and is not taken."""

    NAME = "nanochat"
    steps = {
        " dt: ": re.compile(
            rf"\bstep\s{{1,9}}{_STEP}(?:/[0-9]{{1,15}})?(?: \([0-9.]{{1,9}}%\))?(?: \||,) loss: .{{0,80}}?"
            rf"[|,] dt: (?P<ms>{NUMBER})ms[ |,]{{1,3}}tok/s(?:ec)?:"
        )
    }
    hints = ("nanochat.common", "Tokens / micro-batch / rank: ")
    figures = {"loss": re.compile(rf"[|,] loss: {NUMBER}")}
    words = {
        "Distributed world size": "world_size",
        "Tokens / micro-batch / rank": "rank",
        "Total batch size": "tokens",
    }
    settings = re.compile(rf"\b{one_of(words)}:? ([0-9][0-9,]{{0,15}}(?: x [0-9]{{1,9}}(?= = ))?)")

    def arguments(self, number: int) -> Iterator[Arguments]:
        """Micro-batch and length stand as a product, the batch in tokens."""
        for found in super().arguments(number):
            values: dict[str, object] = {**found.values}
            micro, _, length = str(values.pop("rank", "")).partition(" x ")
            values |= {"micro_batch_size": int(micro), "seq_length": int(length)} if length else {}
            yield found._replace(values=_in_sequences(values))


class NeuronX(Trainer):
    """aws-neuron examples of neuronx-distributed: ``throughput`` is a moving average and is not taken."""

    NAME = "neuronx-distributed"
    steps = {" seq/s loss ": re.compile(rf"\bstep {_STEP} step_time (?P<s>{NUMBER})s throughput ")}
    figures = {"loss": re.compile(rf" seq/s loss {NUMBER}")}


class OlmoCore(Trainer):
    """allenai/OLMo-core train/callbacks: a head with the step, then a line a figure; ``TPS`` is of the step and a rank."""

    NAME = "olmo-core"
    heads = re.compile(rf"\[step={_STEP}/")
    steps = {"throughput/device/TPS=": re.compile(rf"\bthroughput/device/TPS=(?P<tokens_per_s>{NUMBER})")}


class Olmo(Trainer):
    """allenai/OLMo olmo/train.py: its rates are of a window of batches and are not taken; the clock before each line is."""

    NAME = "olmo"
    steps = {
        "olmo.train:": re.compile(
            rf"\b{STAMP}\s.{{0,80}}\bolmo\.train:[0-9]{{1,6}}\s{{1,9}}INFO\s{{1,9}}\[step={_STEP}/"
        )
    }

    shortest = 1.0  # seconds: its own are printed to the millisecond

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        values, unread = olmo_config.arguments(line)
        if values:
            told = [Fact("note", f"{name}={value} is not read", number) for name, value in unread]
            return [Arguments(values, number, len(values), unread), *told]
        used = group(_OLMO_PEAK.search(line)) if "Peak GPU Memory" in line else None
        return [Memory(used * 1e6 / 2**30, "allocated", number)] if used else None


class FairSeq(Trainer):
    """facebookresearch/fairseq trainer.py, metaseq: ``wpb`` tokens of an update and ``wps`` of all ranks, both since the
    line before; their quotient is the step, ``ups`` is rounded."""

    NAME = "fairseq"
    steps = {
        "num_updates=": re.compile(rf"\btrain_inner \|.{{0,600}}\bnum_updates={_STEP},"),
        '"num_updates"': re.compile(rf'\btrain_inner \|.{{0,900}}"num_updates": "{_STEP}"'),
    }
    figures = {"loss": re.compile(rf'\bloss"?[=:] ?"?{NUMBER}')}

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        tokens, rate = (measure(pattern.search(line)) for pattern in _FAIRSEQ)
        if tokens and rate:
            yield self.made(line, number, match["step"], tokens / rate, mean=True)


class Levanter(Trainer):
    """stanford-crfm/levanter callbacks, tqdm-loggable: a bar once a minute. Its rate is smoothed and is not taken."""

    NAME = "levanter"
    steps = {
        "Progress on:train ": re.compile(
            rf"\bProgress on:train (?P<step>[0-9.]{{1,8}}[kMG]?)it/[^ ]{{1,12}} rate:\S{{1,20}} remaining:\S{{1,20}} "
            rf"elapsed:{CLOCK} "
        )
    }
    figures = {"loss": re.compile(rf"\bpostfix:loss={NUMBER}")}


class FmsFsdp(Trainer):
    """foundation-model-stack/fms-fsdp utils/train_utils.py: a line a figure; ``current`` is since the report before."""

    NAME = "fms-fsdp"
    heads = re.compile(rf"^\s{{0,20}}step: {_STEP}\s*$")
    steps = {"current step time:": re.compile(rf"^\s{{0,20}}current step time: (?P<s>{NUMBER})")}


class PrimeRl(Trainer):
    """PrimeIntellect-ai/prime-rl trainer/sft/train.py: ``Throughput`` is of all ranks over steps and is not taken."""

    NAME = "prime-rl"
    steps = {
        " tokens/s | MFU": re.compile(
            rf"\bStep {_STEP} \| (?:Time: )?\s{{0,9}}"
            rf"(?:(?P<ms>{NUMBER})ms|(?:(?P<minutes>[0-9]{{1,2}})m )?(?P<s>{NUMBER})s) \| Loss:? "
        )
    }
    figures = {
        "loss": re.compile(rf"\| Loss:? {NUMBER}"),
        "reserved_gib": re.compile(rf"\| Peak Mem\.:? {NUMBER}(?:/{NUMBER})? GiB"),
    }


class VerlSft(Trainer):
    """volcengine/verl trainer/fsdp_sft_trainer.py, utils/logger: every figure of a step in one line."""

    NAME = "verl"
    steps = {"train/time(s):": re.compile(rf"\bstep:{_STEP} - .{{0,400}}?\btrain/time\(s\):(?P<s>{NUMBER})")}
    figures = {"loss": re.compile(rf"\btrain/loss:{NUMBER}")}


class PicoTron(Trainer):
    """huggingface/picotron train.py: the batch is printed in tokens, the memory is reserved, in 10^9 bytes."""

    NAME = "picotron"
    steps = {"| Tokens/s/GPU:": re.compile(rf"\bStep: {_STEP}\s{{0,9}}\| Loss: ")}
    figures = {
        "tokens_per_s": re.compile(rf"\| Tokens/s/GPU:\s{{0,9}}{SCALED}"),
        "reserved_gb": re.compile(rf"\| Memory usage:\s{{0,9}}{NUMBER}GB"),
        "loss": re.compile(rf"\| Loss:\s{{0,9}}{NUMBER}"),
    }


class TinyGrad(Trainer):
    """tinygrad examples/mlperf/model_train.py: memory and rate are of all its GPUs together and are not taken."""

    NAME = "tinygrad"
    framework = False
    steps = {
        " run, ": re.compile(
            rf"^\s{{0,20}}{_STEP}\s{{1,9}}(?:(?P<s>{NUMBER}) s|(?P<ms>{NUMBER}) ms) run,.{{0,200}}? loss,"
        )
    }
    figures = {"loss": re.compile(rf" run, {NUMBER} loss,")}


class TorchTune(Trainer):
    """pytorch/torchtune training/metric_logging.py (rate of a rank, GiB), else its bar ``epoch|step|Loss: …``."""

    NAME = "torchtune"
    steps = {
        "tokens_per_second_per_gpu:": re.compile(rf"^\s{{0,20}}Step {_STEP} \| "),
        "|Loss: ": re.compile(rf"(?:^|\s)[0-9]{{1,9}}\|{_STEP}\|Loss: {_LOSS}:.{{0,400}}?\[{CLOCK}<"),
    }
    figures = {
        "tokens_per_s": re.compile(rf"\btokens_per_second_per_gpu:{NUMBER}"),
        "reserved_gib": re.compile(rf"\bpeak_memory_reserved:{NUMBER}"),
        "loss": re.compile(rf"\b[lL]oss:\s?{NUMBER}"),
    }


class MaxText(Trainer):
    """``completed step: …`` lines and the ``Config param`` lines before them."""

    NAME = "maxtext"
    steps = {"completed step:": re.compile(rf"completed step: {_STEP}, seconds:\s{{0,9}}(?P<s>{NUMBER})(?=,)")}
    hints = ("Config param ",)
    figures = {
        "tokens_per_s": re.compile(rf"Tokens/s/device:\s{{0,9}}{NUMBER}(?=,)"),
        "tflops": re.compile(rf"TFLOP/s(?:/device)?:\s{{0,9}}{NUMBER}(?=,)"),
        "loss": re.compile(rf", loss:\s{{0,9}}{NUMBER}"),
    }
    settings = re.compile(r"Config param (\w{1,60}):\s?(.{0,200})")
    words = MAXTEXT_WORDS
    said = {"eval metrics": Evaluation, "saved a checkpoint at step": Checkpoint}

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        devices = _DEVICES.search(line) if "evices" in line and "Config param " not in line else None
        return [Fact("gpus", int(devices[1]), number)] if devices else None


class LlmC(Trainer):
    """``step   61/74 | loss 3.2 (+1.1z)| norm 1.48 (+nanz)| lr 3e-04 | 44.57 ms | 29.5% bf16 MFU | 91886 tok/s``.

    The time is of the step, evaluation and sampling left out. ``tok/s`` and MFU are not taken: the first is a running
    average over all GPUs. The head is a table ``| name | value |``.
    """

    NAME = "llm.c"
    steps = {
        "tok/s": re.compile(
            rf"^\s{{0,9}}step\s{{1,9}}{_STEP}/[0-9]{{1,15}} \| (?:train )?loss\s{{1,9}}"
            rf"(?:(?P<loss>{NUMBER})|-?nan|-?inf)\b.{{0,160}}?\| (?P<ms>{NUMBER}) ms \|.{{0,80}}? tok/s"
        ),
        # its trainer for CPUs
        "(took ": re.compile(rf"^\s{{0,20}}step {_STEP}: train loss (?P<loss>{NUMBER}) \(took (?P<ms>{NUMBER}) ms"),
    }
    hints = ("| micro batch size B ",)
    words = {
        "micro batch size B": "micro_batch_size",
        "sequence length T": "seq_length",
        "total batch size": "tokens",
        "num_processes": "world_size",
    }
    settings = re.compile(rf"^\|\s{one_of(words)}\s{{1,40}}\|\s([0-9]{{1,12}})\s{{1,60}}\|")

    def arguments(self, number: int) -> Iterator[Arguments]:
        """The batch is stated in tokens."""
        for found in super().arguments(number):
            yield found._replace(values=_in_sequences(found.values))


class NanoGpt(Trainer):
    """nanoGPT (``iter 10: loss 3.4575, time 92.16ms``) and its speed runs (``step:1/1490 train_time:92ms``).

    The first prints the time of the iteration, the second the training time so far, evaluations left out: a step's is
    the difference of two.
    """

    NAME = "nanogpt"
    steps = {
        "train_time:": re.compile(
            rf"^\s{{0,9}}(?:s:|step:){_STEP}/[0-9]{{1,15}}\s(?:(?:train_loss|loss):(?P<loss>{NUMBER}) )?"
            rf".{{0,60}}?train_time:(?:(?P<clock_ms>{NUMBER})ms|(?P<clock_s>{NUMBER})s)\b"
        ),
        # behind what a launcher may put before each line (a clock, a rank)
        "iter ": re.compile(
            rf"^(?:.{{0,80}}[\s\]:])?iter {_STEP}: loss (?:(?P<loss>{NUMBER})|{_BROKEN}), time (?P<ms>{NUMBER})ms"
        ),
    }
    shortest = 1.0  # seconds: below, its milliseconds are too coarse

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        if "train_time:" not in line and match["loss"] is None and self.once("broken"):
            yield Fact("note", f"line {number}: the loss is no number from step {match['step']} on", number)
        yield from super().step(match, line, number)

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        if "val loss" in line and _EVALUATED.search(line):
            return [Evaluation(number)]  # the time of the iteration after it holds it
        used = group(_PEAK.search(line)) if "peak memory" in line else None
        return [Memory(used / _MIB_PER_GIB, "reserved", number)] if used else None


def _in_sequences(values: Mapping[str, object]) -> dict[str, object]:
    """Counts, with the batch that is stated in ``tokens`` in sequences, where they divide it."""
    counts = {name: whole(str(value)) or 0 for name, value in values.items()}
    tokens, length = counts.pop("tokens", 0), counts.get("seq_length", 0)
    if length and tokens and tokens % length == 0:
        counts["global_batch_size"] = tokens // length
    return {**counts}


#: The trainers of this file, in its order.
TABLE: tuple[type[Trainer], ...] = tuple(
    found
    for found in tuple(vars().values())
    if isinstance(found, type) and issubclass(found, Trainer) and found is not Trainer
)
