"""Whatever is done to a file: it is read, or refused with what is wrong. Never another exception."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from asked import put

from projector.errors import InputError, Unsupported
from projector.intake import detect
from tests.conftest import SHARED
from tests.fuzz.loaders import LOADERS
from tests.fuzz.mutations import MANY, mutate

MOST_PRINTED = 20_000  # characters that a refusal may print: the files are small


def tries(name: str, seeds: range, folder: Path) -> tuple[int, int]:
    """(files read, files refused)."""
    loader = LOADERS[name]
    samples = loader.samples()
    read = 0
    for seed in seeds:
        file, text = samples[seed % len(samples)]
        read += loaded(loader.load, put(folder / file, mutate(text, seed)), seed)
    return read, len(seeds) - read


def loaded(load: Callable[[Path], object], path: Path, seed: int) -> bool:
    """Whether a file is read; else it is refused, in few words."""
    try:
        load(path)
    except (InputError, Unsupported) as error:
        assert len(str(error)) < MOST_PRINTED  # noqa: PT017
        return False
    except Exception as error:
        shutil.copy(path, path.with_suffix(".culprit"))
        raise AssertionError(f"{path.name}, seed {seed}: {type(error).__name__}: {error}") from error
    return True


@pytest.mark.parametrize("name", LOADERS)
def test_the_samples_are_sound(name: str, tmp_path: Path) -> None:
    for file, text in LOADERS[name].samples():
        LOADERS[name].load(put(tmp_path / file, text))


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    read, refused = tries(name, range(30), tmp_path)
    assert refused > 3
    assert read > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_very_many_damaged_files(name: str, tmp_path: Path) -> None:
    tries(name, range(1_000, 1_000 + MANY), tmp_path)


# Experiments and launch scripts that projects ship, damaged where they stand, with their presets beside them.

INPUTS = SHARED / "inputs"
LARGEST = 30_000  # bytes


def shipped_tries(seeds: range, folder: Path) -> tuple[int, int]:
    """(files read, files refused)."""
    shutil.copytree(INPUTS, folder / "inputs")
    files = [*(folder / "inputs" / "primus" / "examples").rglob("*.yaml"), *(folder / "inputs").rglob("*.sh")]
    files = sorted(path for path in files if path.stat().st_size < LARGEST)
    read = 0
    for seed in seeds:
        path = files[seed * 37 % len(files)]
        sound = path.read_bytes()
        path.write_bytes(mutate(sound.decode(errors="replace"), seed))
        read += loaded(detect.load, path, seed)
        path.write_bytes(sound)
    return read, len(seeds) - read


@pytest.mark.skipif(not INPUTS.is_dir(), reason="the raw third-party material (../shared) is not on this machine")
def test_damaged_experiments_and_scripts(tmp_path: Path) -> None:
    read, refused = shipped_tries(range(60), tmp_path)
    assert min(read, refused) > 3


@pytest.mark.slow
@pytest.mark.skipif(not INPUTS.is_dir(), reason="the raw third-party material (../shared) is not on this machine")
def test_very_many_damaged_experiments_and_scripts(tmp_path: Path) -> None:
    shipped_tries(range(1_000, 1_000 + MANY), tmp_path)
