"""Defines the command line of the projector, one file a command, with argparse because it starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from projector.cli.parser import Command, parse, program
from projector.io.guard import guarded

COMMANDS = (
    Command(
        "ask",
        "does it fit, in which layout, how fast and how sure is that, how long is the whole run, what starts it",
        "ask",
    ),
    Command("performance", "step time, tokens/s/GPU, MFU, breakdown and memory verdict", "ask"),
    Command(
        "both", "performance and memory of one projection, or of one benchmark, as Primus has it", module="performance"
    ),
    Command(
        "layers",
        "FLOP, bytes, intensity and time of every operator of a layer, and what binds it: compute, memory, link, host",
        "check",
    ),
    Command("memory", "peak memory of every pipeline rank, by component, and the verdict", "ask"),
    Command(
        "search",
        "the best layouts, how much faster any other can be, which cannot be told apart, what holds them back",
        "ask",
    ),
    Command(
        "sweep",
        "projects every combination of models, systems, GPUs and settings in a file; goes on where it was stopped",
        "ask",
    ),
    Command(
        "plan",
        "what a whole run will take: days, GPU-hours, energy and money for a number of tokens, failures counted in",
        "ask",
    ),
    Command(
        "rl",
        "a step of reinforcement learning (GRPO, PPO): generation at a given rate, log-probabilities, training, new weights",
        "ask",
    ),
    Command(
        "schedules",
        "every pipeline schedule side by side: step time, idle share (bubble), memory of each rank; the timeline drawn",
        "check",
    ),
    Command(
        "trace",
        "write the timeline of a step: compute, messages, gradients and memory of every pipeline rank (Perfetto)",
        "make",
    ),
    Command("serve", "answers in a browser and as a REST API, on this machine", "make"),
    Command("mcp", "answers as tools for coding agents (Model Context Protocol)", "make"),
    Command("record", "time kernels on the device at hand into measured/kernels"),
    Command("probe", "measure the device at hand and write a catalogue entry of it", "make"),
    Command(
        "network",
        "a cluster file with the bandwidths that nccl-tests or rccl-tests printed, and the model's error by size",
        "make",
    ),
    Command("benchmark", "time real layers on the device at hand, beside their projection"),
    Command("models", "the architectures that are known, with their parameters", "check", "catalogues"),
    Command("gpus", "the GPUs that are known: peaks, memory, bandwidth, fabric", "check", "catalogues"),
    Command("clusters", "the clusters that are known: hosts and fabrics", "check", "catalogues"),
    Command(
        "frameworks", "the frameworks that are known, and where their behaviour is taken from", "check", "catalogues"
    ),
    Command(
        "support", "whether a framework can train a model on a GPU, since when, and what was measured of it", "check"
    ),
    Command("constants", "every constant of the models: value, unit, kind, range, source"),
)


def run(argv: Sequence[str]) -> int:
    """Runs one command. Returns exit code 0, or 2 when the input is wrong: every mistake on its own line of stderr."""
    return guarded(lambda: called(list(argv)))


def called(argv: list[str]) -> int:
    """Runs one command for a caller in Python and returns 0. Raises what is wrong instead of printing it."""
    parsed = parse(_parser(), argv)
    parsed.command(parsed)
    return 0


def _parser() -> argparse.ArgumentParser:
    return program(
        "projector",
        "Says how fast and how big a distributed LLM training run will be, before it is launched. No GPU is needed.",
        "",
        examples=(
            "performance --model llama3.1_8b --gpu h100 --gpus 64 --mbs 1 --gbs 512 --seq-length 8192",
            "memory --config examples/deepseek_v3_h100.yaml",
        ),
        commands=COMMANDS,
    )
