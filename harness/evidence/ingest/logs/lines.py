"""Trainers whose lines say all: no code but what a line looks like and what its figures mean.

Taken are figures of a step (or means since the line before), never running averages. Sources of the meaning: the line
of code that prints each, named at its class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.evidence.ingest.logs.clock import Clock, seconds_of
from harness.evidence.ingest.logs.events import Event
from harness.evidence.ingest.logs.numbers import NUMBER, SCALED
from harness.evidence.ingest.logs.trainer import Trainer

__all__ = ["TABLE"]

_STEP = r"(?P<step>[0-9]{1,15})"
_LOSS = rf"(?:{NUMBER}|-?nan|-?inf)"


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
    """karpathy/nanochat scripts/base_train.py: ``tok/sec`` is of all ranks and is not taken."""

    NAME = "nanochat"
    steps = {
        "| dt: ": re.compile(
            rf"\bstep {_STEP}(?:/[0-9]{{1,15}})? \([0-9.]{{1,9}}%\) \| loss: .{{0,60}}?\| dt: (?P<ms>{NUMBER})ms \| tok/sec:"
        )
    }
    figures = {"loss": re.compile(rf"\| loss: {NUMBER}")}


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


class FmsFsdp(Trainer):
    """foundation-model-stack/fms-fsdp utils/train_utils.py: a line a figure; ``current`` is since the report before."""

    NAME = "fms-fsdp"
    heads = re.compile(rf"^step: {_STEP}\s*$")
    steps = {"current step time:": re.compile(rf"^current step time: (?P<s>{NUMBER})")}


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
        "tokens_per_second_per_gpu:": re.compile(rf"^Step {_STEP} \| "),
        "|Loss: ": re.compile(
            rf"(?:^|\s)[0-9]{{1,9}}\|{_STEP}\|Loss: {_LOSS}:.{{0,400}}?\[(?:([0-9]{{1,5}}):)?([0-9]{{1,2}}):([0-9]{{2}})<"
        ),
    }
    figures = {
        "tokens_per_s": re.compile(rf"\btokens_per_second_per_gpu:{NUMBER}"),
        "reserved_gib": re.compile(rf"\bpeak_memory_reserved:{NUMBER}"),
        "loss": re.compile(rf"\b[lL]oss:\s?{NUMBER}"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    def step(self, match: re.Match[str], line: str, number: int) -> Iterable[Event]:
        if "|Loss: " not in line:
            return super().step(match, line, number)
        return self._between(match, line, number)

    def _between(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        if found := self.clock.since(int(match["step"]), seconds_of(*match.groups()[-3:])):
            yield self.made(line, number, match["step"], found[0], mean=True)


TABLE = (FsdpExample, Lingua, MindFormers, NanoChat, NeuronX, OlmoCore, FmsFsdp, PicoTron, TinyGrad, TorchTune)
