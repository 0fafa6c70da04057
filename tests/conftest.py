"""What every test may use: the repository root, and the raw material beside it where it is present."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, however slow the machine: what fails in CI fails at home.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

# What a test breaks on purpose must not be remembered, nor be hidden by what was remembered before.
os.environ["PROJECTOR_CACHE"] = "off"

# Tables are as wide as they need to be unless a test states a width.
os.environ.pop("COLUMNS", None)

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(params=[pytest.param(8, id="every-eighth"), pytest.param(1, id="all", marks=pytest.mark.night)])
def every(request: pytest.FixtureRequest) -> int:
    """Of long lists each eighth is looked at in every run of the tests, all of them at night: ``items[::every]``."""
    return int(request.param)


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def shared() -> Path:
    if not (SHARED / "corpus").is_dir():
        pytest.skip("the raw third-party material (../shared) is not on this machine")
    return SHARED
