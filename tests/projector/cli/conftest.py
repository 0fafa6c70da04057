"""A command of ``projector`` in this process, and what it says."""

import json

import pytest
from cli_command import VARIABLES

from projector.cli import run


@pytest.fixture
def document(capsys, monkeypatch):
    """The JSON document of a command with these flags, where no variable says anything."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def make(*flags, command="performance"):
        code = run([command, *flags, "--json"])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return json.loads(captured.out)

    return make
