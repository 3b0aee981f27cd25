"""The notebook of the tutorials runs from its first cell to its last, in a kernel of its own."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorials" / "notebook.ipynb"
# MiniLM's table would take a minute to train, and the notebook says nothing of what it knows.
STAND_IN = """
from pathlib import Path
from tiny import tiny_default_model
stand_in = tiny_default_model(Path("start"))
stand_in.__enter__()
"""


def test_the_notebook_runs_as_it_stands_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none that nobody made
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STAND_IN))
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("umpteen.Classifier" in output and "<table>" in output for output in shown)
    assert "True" in shown[-1]
