"""What a command costs before and beside its own work: processor time of whole processes over that of a fixed loop."""

import itertools
import os
import resource
import subprocess
import sys
import time

import pytest
from asked import ROOT

LLAMA = (
    "--model llama3.1_8b --gpu h100 --gpus 64 --tp 2 --mbs 1 --gbs 512 --seq-length 8192 --data-parallel-sharding optim"
)
# A loop takes 0.06 s on two cores of a server: help 0.1 s, performance 0.6 s, a first answer 0.8 s. Each limit is 1.6 times
# what an idle machine needs: beside another worker the same command has taken 1.3 times as many loops.
MOST = {
    "-c from\tprojector\timport\tproject": 6.2, "-m projector --help": 1.5, "-m harness --help": 1.6,
    f"-m projector performance {LLAMA}": 11.5, "-m projector performance --config examples/deepseek_v3_h100.yaml": 14.5,
    "-m harness run --help": 8.0, "-m projector ask --model llama3.1_8b --gpu h100 --gpus 8 --budget 0": 17.5,
    "-m projector search --model qwen3_235b_a22b --gpu b200 --gpus 256 --gbs 4096 --seq 4k --budget 0.1s": 32.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With compiled modules in a folder of their own, which the first run of each command fills."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


def ratio_of(words: str, environment: dict[str, str]) -> float:
    """The least processor time of several runs over that of a fixed loop, which runs between them: a machine that slows down
    for a while slows both."""
    command = [sys.executable, *(word.replace("\t", " ") for word in words.split(" "))]
    found, loops = [], [loop()]
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        loops.append(loop())
    return min(each / (0.5 * sum(beside)) for each, beside in zip(found, itertools.pairwise(loops), strict=True))


def loop() -> float:
    """Returns the processor seconds of a fixed loop of plain Python: how fast this machine is just now."""
    began = time.process_time()
    sum(number % 7 for number in range(2_000_000))
    return time.process_time() - began


@pytest.mark.parametrize("words", MOST)
def test_a_command_starts_fast(words: str, environment: dict[str, str]) -> None:
    ratio = ratio_of(words, environment)
    assert ratio < MOST[words], f"{ratio:.2f} times the loop"
