"""Both programs say what is wrong with a command line in the same words."""

from __future__ import annotations

import re
from pathlib import Path

import command_line
import pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPE = re.compile(r"[^:]+(: [^:]+)?: found .*, expected .*")


def refused(program: str, *words: str) -> list[str]:
    done = command_line.run(program, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("projector", "harness"),
    [
        ((), ()),
        (("nothing",), ("nothing",)),
        (("models", "--jsn"), ("figures", "--jsn")),
        (("performance", "--gpus", "0"), ("run", "--jobs", "0")),
        (("performance", "--profiling-mode", "all"), ("run", "--mode", "all")),
        (("performance", "--gpus"), ("run", "--junit")),
        (("performance", "--config", "nowhere.yaml"), ("run", "nowhere.yaml")),
        (("performance", "a", "b"), ("report", "a", "b")),
    ],
)
def test_one_shape(projector: tuple[str, ...], harness: tuple[str, ...]) -> None:
    ours, theirs = refused("projector", *projector), refused("harness", *harness)
    for line in (*ours, *theirs):
        assert SHAPE.fullmatch(line), line
