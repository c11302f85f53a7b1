"""The notebook runs from top to bottom, as a reader would run it, and is stored without outputs."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[1] / "examples/tutorial.ipynb"


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(tmp_path: Path) -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    said = [
        output.text for cell in book.cells if cell.cell_type == "code" for output in cell.outputs if "text" in output
    ]
    text = "\n".join(said)
    assert "layers can be quantized" in text
    assert text.count(" of 500 votes)") == 4
    assert "on images that the search never saw" in text
    shown = [
        output.data for cell in book.cells if cell.cell_type == "code" for output in cell.outputs if "data" in output
    ]
    assert "<iframe" in shown[-1]["text/html"], "the report is shown inline"
    assert (tmp_path / "runs/report.html").exists()
