"""What tests of commands share."""

import pytest


@pytest.fixture
def case(request, tmp_path) -> str:
    """A file of the configuration that the test file has as ``CASE``."""
    path = tmp_path / "case.yaml"
    path.write_text(request.module.CASE)
    return str(path)
