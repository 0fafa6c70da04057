"""Defines the command line of the projector, one file a command, with argparse because it starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from projector.cli.parser import Commands, parse, program
from projector.io.guard import guarded

COMMANDS: Commands = {
    "ask": {
        "ask": "does it fit, in which layout, how fast and how sure is that, how long is the whole run, what starts it",
        "performance": "step time, tokens/s/GPU, MFU, breakdown and memory verdict",
        "memory": "peak memory of every pipeline rank, by component, and the verdict",
        "search": "the best layouts, how much faster any other can be, which cannot be told apart, what holds them back",
        "sweep": "projects every combination of models, systems, GPUs and settings in a file; goes on where it was stopped",
        "plan": "what a whole run will take: days, GPU-hours, energy and money for a number of tokens, failures counted in",
        "rl": "a step of reinforcement learning (GRPO, PPO): generation at a given rate, log-probabilities, training, "
        "new weights",
    },
    "check": {
        "layers": "FLOP, bytes, intensity and time of every operator of a layer, and what binds it: compute, "
        "memory, link, host",
        "schedules": "every pipeline schedule side by side: step time, idle share (bubble), memory of each rank; the "
        "timeline drawn",
        "models": "the architectures that are known, with their parameters",
        "gpus": "the GPUs that are known: peaks, memory, bandwidth, fabric",
        "clusters": "the clusters that are known: hosts and fabrics",
        "frameworks": "the frameworks that are known, and where their behaviour is taken from",
        "support": "whether a framework can train a model on a GPU, since when, and what was measured of it",
    },
    "make": {
        "trace": "write the timeline of a step: compute, messages, gradients and memory of every pipeline rank (Perfetto)",
        "serve": "answers in a browser and as a REST API, on this machine",
        "mcp": "answers as tools for coding agents (Model Context Protocol)",
        "probe": "measure the device at hand and write a catalogue entry of it",
        "network": "a cluster file with the bandwidths that nccl-tests or rccl-tests printed, and the model's error by size",
    },
    "": {
        "both": "performance and memory of one projection, or of one benchmark, as Primus has it",
        "record": "time kernels on the device at hand into measured/kernels",
        "benchmark": "time real layers on the device at hand, beside their projection",
        "constants": "every constant of the models: value, unit, kind, range, source",
    },
}
#: The files of commands that have another name.
_MODULES = {"both": "performance", **dict.fromkeys(("models", "gpus", "clusters", "frameworks"), "catalogues")}


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
        modules=_MODULES,
    )
