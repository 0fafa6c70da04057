"""What every test may use: the repository root, and the raw material beside it where it is present."""

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness.contracts.estimates import Observation
from harness.contracts.runs import MeasuredRun
from harness.evaluation import observations
from harness.evidence import dataset

# The same examples in every run, however slow the machine: what fails in CI fails at home.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=20)
settings.load_profile("steady")

# What a test breaks on purpose must not be remembered, nor be hidden by what was remembered before.
os.environ["PROJECTOR_CACHE"] = "off"

# Tables are as wide as they need to be unless a test states a width.
os.environ.pop("COLUMNS", None)

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(params=[pytest.param(32, id="some"), pytest.param(1, id="all", marks=pytest.mark.night)])
def every(request) -> int:
    """Of long lists each thirty-second is looked at in every run of the tests, all of them at night: ``items[::every]``."""
    return int(request.param)


@pytest.fixture(scope="session", autouse=True)
def checked_in_runs_once() -> Iterator[None]:
    """Read the measured runs of the repository once a process: they take four seconds, and dozens of tests begin with them.
    A file with another text, such as one that a test breaks, is read each time, and all are by tests of what is kept."""
    plain, recall, made = dataset.remember, dataset.remembered, dict[str, list[MeasuredRun]]()
    checked_in = {path.read_text(encoding="utf-8") for path in (ROOT / "measured" / "runs").glob("*.yaml")}

    def remember(text: str, runs: Sequence[MeasuredRun]) -> None:
        if text in checked_in:
            made[text] = list(runs)
        plain(text, runs)

    def remembered(text: str) -> list[MeasuredRun] | None:
        return made[text] if text in made and os.environ.get("PROJECTOR_CACHE") == "off" else recall(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "remember", remember)
        patch.setattr(dataset, "remembered", remembered)
        yield


@pytest.fixture(scope="session", autouse=True)
def few_rows_teach() -> Iterator[None]:
    """Commands know a tenth of what the repository's rows teach: with all of it they spend most of their time on it."""
    every = observations.packaged

    @cache
    def few() -> dict[str, tuple[Observation, ...]]:
        return {name: seen[::10] for name, seen in (every() or {}).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observations, "packaged", few)
        yield


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def shared() -> Path:
    if not (SHARED / "corpus").is_dir():
        pytest.skip("the raw third-party material (../shared) is not on this machine")
    return SHARED


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium, started once."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra test)")
    if BROWSER is None:
        pytest.skip("no chromium or google-chrome on this machine")
    with api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
