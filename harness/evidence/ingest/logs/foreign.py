"""What is no training of a causal language model: the one place that knows, by a benchmark's name or by a telling line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.evidence.ingest.logs.events import Event, Fact
from harness.evidence.ingest.logs.protocol import Lines

TASK = "other_task"  # key of the fact
_ENCODER = "an encoder of text, trained on masked words"
_IMAGES = "a model of images"
_DIFFUSION = "a diffusion model"
_PREFERENCES = "preferences: a step holds pairs of answers, and mostly a second model that judges them"
_REINFORCED = "reinforcement learning: a step holds the generation of answers"
#: Benchmarks of MLPerf Training (v0.5 to v5.1; mlcommons/training_policies) that are no language model.
_BENCHMARKS: Mapping[str, str] = {
    "bert": _ENCODER,
    "resnet": _IMAGES,
    "ssd": _IMAGES,
    "maskrcnn": _IMAGES,
    "retinanet": _IMAGES,
    "unet3d": _IMAGES,
    "stable_diffusion": _DIFFUSION,
    "flux1": _DIFFUSION,
    "dlrm": "a recommender",
    "dlrm_dcnv2": "a recommender",
    "gnn": "a graph network",
    "rgat": "a graph network",
    "minigo": "a player of Go",
    "rnnt": "a model of speech",
    "gnmt": "a translator",
    "transformer": "a translator",
}
_HEADED = re.compile(
    r"(?:Some weights of |argument in `)"
    r"(\w{2,40}For(?:SequenceClassification|TokenClassification|MaskedLM|ImageClassification|QuestionAnswering))\b"
)
_CHOSEN = re.compile(r"\bchosen: -?[0-9.]{1,20}, rejected: -?[0-9]")  # DeepSpeed-Chat
_REWARDED = re.compile(r'"reward": -?[0-9]')  # LLaMA-Factory: null where it trains without
_MARKS: tuple[tuple[str, str], ...] = (
    (" Frames/s/device:", _DIFFUSION),
    (" decode.loss_", _IMAGES),
    (" loss_bbox:", _IMAGES),
    (" loss_cls:", _IMAGES),
    ("| sop loss:", _ENCODER),
    ("creating BERT datasets", _ENCODER),
    ("creating T5 datasets", "an encoder and a decoder of text"),
    ("UNet2DConditionModel", _DIFFUSION),
    ("FluxTransformer2DModel", _DIFFUSION),
    ("rewards/chosen", _PREFERENCES),
    ("rewards/margins", _PREFERENCES),
    ("completions/mean_length", _REINFORCED),
    ("'completion_length':", _REINFORCED),
    ("objective/rlhf_reward", _REINFORCED),
    (" | Mismatch KL", _REINFORCED),
    (" timing_s/gen:", _REINFORCED),
    ("|Generate time=", _REINFORCED),
    ("fairseq.tasks.masked_lm", _ENCODER),
    ("fairseq.tasks.translation", "a translator"),
    ("fairseq.tasks.audio", "a model of speech"),
    ("fairseq.tasks.hubert", "a model of speech"),
)
#: Trainers whose lines are known and have no time of a step: (a line of theirs, why it is none).
_UNREAD: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\beta: .{0,400}\btime: [0-9.]{1,20} s/iter\b"), "a `time … s/iter` that is the mean since the start"),
    (
        re.compile(r"\bEpoch: \[[0-9]{1,9}\]\s{1,4}\[\s{0,9}[0-9]{1,12}/[0-9]{1,12}\].{0,400}\btime: [0-9.]{1,20}\s"),
        "a `time` that is the mean of iterations, of which accumulation makes several a step",
    ),
    (
        re.compile(r"\| tps [0-9.]{1,20}\([0-9.]{1,20}/gpu\)"),
        "a rate of a data-parallel rank (`/gpu`), which is a GPU's only where nothing else is parallel; the history of the "
        "run beside it (training.jsonl) tells the times of its steps",
    ),
    (
        re.compile(r"^\s{0,9}Train throughput/(?:device/)?tokens_per_sec: "),
        "a rate over a window of batches",
    ),
    (
        re.compile(
            r"\bEpoch:?\s?\[[0-9]{1,9}/[0-9]{1,9}\]\([0-9]{1,12}/[0-9]{1,12}\).{0,400}\bepoch__?[tT]ime: ?[0-9.]{1,20} ?min"
        ),
        "the minutes that an epoch takes by its mean so far",
    ),
    (
        re.compile(r"\bstep:[0-9]{1,12} - .{0,4000}\btiming_s/gen:"),
        f"steps of {_REINFORCED}",
    ),
    (
        re.compile(r"\bEpoch [0-9]{1,9}:\s{1,4}[0-9]{1,3}%\|[^|]{0,400}\| [0-9]{1,12}/[0-9]{1,12} \["),
        "a bar of batches, of which accumulation makes several a step",
    ),
    (
        re.compile(r"\"log_history\": \["),
        "the losses of a state of Hugging Face's Trainer, without times: its output or its trainer_log.jsonl holds them",
    ),
    (
        re.compile(r"^\{.{0,400}\"(?:global_|_)?step\": ?[0-9]"),
        "records of steps without a time of which the unit is known",
    ),
    (
        re.compile(r"\btimer\.py:[0-9]{1,6}:stop\] [0-9]{1,9}/[0-9]{1,15}, SamplesPerSec="),
        "a `SamplesPerSec` that is the mean since the start (before DeepSpeed 0.6)",
    ),
    (
        re.compile(
            r"(?:time|iter|step|[Ss]peed|dt|took)\b[^|]{0,40}?\b[0-9]{1,9},[0-9]{1,9} ?(?:ms|s|samples/sec)?"
            r"(?![\w.,]{0,9}[0-9])"
        ),
        "times with a comma, which may be a decimal one: write them with a point",
    ),
    (
        re.compile(r"^DLLL \{"),
        "records of DLLogger, whose names are each script's own and are not known to be of a step",
    ),
)
_WATCHED = 20_000  # lines that may say it: the head and the first steps
_LONGEST = 4000


def benchmark(name: str) -> str | None:
    """What a benchmark trains, None for a language model (or a benchmark that nobody knows)."""
    return _BENCHMARKS.get(name.lower().replace("-", "_"))


def unread(lines: Lines) -> str | None:
    """What a log of no dialect prints instead of the time of a step, where that is known."""
    for number, line in lines:
        for pattern, what in _UNREAD:
            if pattern.search(line[:_LONGEST]):
                return what
        if number >= _WATCHED:
            break
    return None


def watched(lines: Lines, found: list[Event]) -> Iterator[tuple[int, str]]:
    """The lines as they are; the first that says that another model is trained is put into ``found``."""
    stream = iter(lines)
    for number, line in stream:
        if not found and (what := _task(line[:_LONGEST])) is not None:
            found.append(Fact(TASK, what, number))
        yield number, line
        if number >= _WATCHED:
            break
    yield from stream


def _task(line: str) -> str | None:
    for mark, what in _MARKS:
        if mark in line:
            return what
    if "rejected: " in line and _CHOSEN.search(line):
        return _PREFERENCES
    if '"reward": ' in line and _REWARDED.search(line):
        return _REINFORCED
    if "For" in line and (headed := _HEADED.search(line)):
        return f"{headed[1]}, a model with another head"
    return None
