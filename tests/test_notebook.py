"""The notebook of the tutorials runs from its first cell to its last, in a kernel of its own."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from umpteen.parallel.allocator import KEPT, LARGEST

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorials" / "notebook.ipynb"


def test_the_notebook_runs_as_it_stands_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As the command does for itself (parallel/allocator.py): else half of the time goes into getting memory again.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(LARGEST))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(KEPT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none that nobody made
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("umpteen.Classifier" in output and "<table>" in output for output in shown)
    assert "True" in shown[-1]
