"""Experiments and launch scripts that projects ship, damaged where they stand, with their presets beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect
from tests.conftest import SHARED
from tests.fuzz.mutations import MANY, mutate

INPUTS = SHARED / "inputs"
LARGEST = 30_000  # bytes


def tries(seeds: range, folder: Path) -> tuple[int, int]:
    """(files read, files refused). Raises what the loader raises beyond what it may."""
    shutil.copytree(INPUTS, folder / "inputs")
    files = [*(folder / "inputs" / "primus" / "examples").rglob("*.yaml"), *(folder / "inputs").rglob("*.sh")]
    files = sorted(path for path in files if path.stat().st_size < LARGEST)
    read = refused = 0
    for seed in seeds:
        path = files[seed * 37 % len(files)]
        sound = path.read_bytes()
        path.write_bytes(mutate(sound.decode(errors="replace"), seed))
        try:
            detect.load(path)
            read += 1
        except (InputError, Unsupported):
            refused += 1
        except Exception as error:
            raise AssertionError(f"{path.name}, seed {seed}: {type(error).__name__}: {error}") from error
        path.write_bytes(sound)
    return read, refused


@pytest.mark.skipif(not INPUTS.is_dir(), reason="the raw third-party material (../shared) is not on this machine")
def test_damaged_experiments_and_scripts(tmp_path: Path) -> None:
    read, refused = tries(range(200), tmp_path)
    assert min(read, refused) > 10


@pytest.mark.slow
@pytest.mark.skipif(not INPUTS.is_dir(), reason="the raw third-party material (../shared) is not on this machine")
def test_very_many_damaged_experiments_and_scripts(tmp_path: Path) -> None:
    tries(range(1_000, 1_000 + MANY), tmp_path)
