"""Executes the notebook of docs/ and stores what it shows (extra test)."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).parents[1] / "docs" / "start" / "sweep.ipynb"

if __name__ == "__main__":
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.write(NotebookClient(notebook, timeout=300, record_timing=False).execute(), PATH)
