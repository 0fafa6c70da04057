"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file of the configuration that the test file has as ``CASE``."""
    path = tmp_path / "case.yaml"
    path.write_text(request.module.CASE)
    return str(path)
