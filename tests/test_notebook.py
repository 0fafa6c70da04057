"""The notebook of the documentation runs as it stands, and what it shows is what it was written with: after a change of
figures ``jupyter execute --inplace docs/start/sweep.ipynb`` writes it again."""

import json
from typing import Any

import pytest

from tests.docs_tools import DOCS

NOTEBOOK = DOCS / "start" / "sweep.ipynb"


def cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: Any) -> list[str]:
    """Plain texts of a cell that do not depend on versions of a library."""
    texts = ("".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"])
    return [text for text in texts if "<" not in text]


def test_a_sweep_to_a_picture_takes_eight_lines_and_is_stored_with_it() -> None:
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    sweep, best = cells(stored)
    assert len("".join(sweep["source"]).splitlines()) <= 8
    assert any("image/png" in output["data"] for output in sweep["outputs"])
    assert any("text/html" in output["data"] for output in best["outputs"])


@pytest.mark.slow
def test_it_shows_today_what_is_stored(monkeypatch) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed (extra test)")
    pytest.importorskip("ipykernel", reason="there is no kernel of Jupyter")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    stored = nbformat.read(NOTEBOOK, as_version=4)
    made = client.NotebookClient(nbformat.read(NOTEBOOK, as_version=4), timeout=300).execute()
    assert [shown(cell) for cell in cells(made)] == [shown(cell) for cell in cells(stored)]
    assert any("image/png" in output["data"] for output in cells(made)[0]["outputs"])
