"""A command of ``projector`` where no variable says anything."""

import pytest
from cli_command import VARIABLES
from cli_command import document as told_as_json


@pytest.fixture
def document(monkeypatch):
    """The JSON document of a command with these flags."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return lambda *flags, command="performance": told_as_json(command, *flags)
