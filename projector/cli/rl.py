"""Projects a step of GRPO or PPO: generation at a given rate, log-probabilities, training, weights: ``projector rl``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from projector.errors import InputError, Problem, raise_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projector.cli.inputs import Case
    from projector.io.table import Line, Table
    from projector.plan.rl import RlStep

_SOURCES = {
    "generation": "the rate that was given",
    "log-probabilities": "a forward of every answer",
    "reference": "a forward of the frozen model",
    "values": "a forward of the value model",
    "training": "projector performance",
    "critic": "the same step, of the value model",
    "weights": "bf16 weights gathered once over all GPUs",
}
_NOT_MODELLED = (
    "Not modelled: the longest answers of a batch, rewards, environments, and what engine, frozen and value model hold in "
    "memory: the verdict is that of training."
)


def command(options: argparse.Namespace) -> None:
    from projector.cli import as_json, document
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.cli.layout import with_layout
    from projector.cli.setting_remarks import refuse_assumed
    from projector.io.table import values
    from projector.plan.rl import Rollout, rl_step

    if options.ahead and options.rollout_gpus is None:
        raise InputError([Problem("--ahead", "", "no --rollout-gpus", "GPUs of their own that generate meanwhile")])
    _follow(options)
    case = with_layout(read_case(options), options)
    named = "prompts samples prompt=prompt_length response=response_length rate=rollout_rate ahead"
    apart = options.rollout_gpus is not None
    rollout = Rollout(**values(options, named), gpus=options.rollout_gpus or case.workload.gpus, apart=apart)
    judges = {"reference": not options.no_reference, "critic": options.critic}
    with naming_the_flag(options):
        step = rl_step(case.workload, case.cluster, rollout, options.updates, **judges, settings=case.settings)
    if options.strict:
        refuse_assumed(case.workload, step.made, case.assumed)
    figures = {"rollout": asdict(rollout), **values(step, "parts step_seconds=seconds even")}
    as_json.tell(options.json, lambda: {**document.head("rl", case, step.made), **figures}, lambda: _page(case, step))


def _follow(options: argparse.Namespace) -> None:
    """Sets batch and length, which follow from the answers. Raises :class:`InputError` where a flag states them, too."""
    answers, length = options.prompts * options.samples, options.prompt_length + options.response_length
    batch = answers // options.updates
    derived = {"global_batch_size": ("--prompts", batch), "seq_length": ("--response-length", length)}
    twice = ((*options.stated[key], value) for key, (_, value) in derived.items() if key in options.stated)
    wrong = [Problem(flag, "", found, f"none: {value} follow from the answers") for flag, found, value in twice]
    if answers % options.updates:
        wrong.append(Problem("--updates", "", options.updates, f"a divisor of {answers} answers (prompts × samples)"))
    raise_all(wrong)
    options.stated |= {key: (flag, str(value)) for key, (flag, value) in derived.items()}


def _page(case: Case, step: RlStep) -> Iterator[Line | Table]:
    from projector.cli import expected, report
    from projector.cli.tables import tabled
    from projector.io.table import Line

    rollout, work = step.rollout, step.made.resolved.workload
    yield from report.head(case, step.made)
    yield report.verdict(case, step.made)
    others = f" on {rollout.gpus} GPUs of their own" if rollout.apart else ""
    rate = f"{rollout.answers / step.seconds:,.1f} answers/s"
    answers = f"{rollout.answers:,} answers of {rollout.response:,} tokens{others}"
    yield Line(f"{step.seconds:.1f} s a step: {answers}, {rate}", "title")
    parts, total = [part for part in step.parts.items() if part[1]], sum(step.parts.values())
    yield tabled("rl", parts, share=lambda row: row[1] / total, source=_SOURCES.__getitem__)
    yield Line("")
    even = f"the longer of the two counts; even with {step.even:.0f} generating GPUs."
    if rollout.ahead:
        yield Line(f"Generation runs beside the rest: {even}")
    elif rollout.apart:
        both = f"The {rollout.gpus} generating GPUs and the {work.gpus} that train"
        yield Line(f"{both} wait for each other: --ahead overlaps them.")
    expectation = expected.expectation(case, step.made)
    low, high = step.updates * expectation.low, step.updates * expectation.high
    yield Line(f"Training alone: 90 % between {low:.1f} and {high:.1f} s, as measured runs let expect.", "dim")
    yield Line(_NOT_MODELLED, "dim")
    yield from report.remarks(case, step.made)
