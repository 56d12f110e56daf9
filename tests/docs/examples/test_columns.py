"""The notebook, executed by a Jupyter kernel against the bundle of the checkout."""

import json
from pathlib import Path
from typing import Any

import pytest

from sentiment.model.bundle import CHECKOUT_BUNDLES
from tests.docs.examples.conftest import EXAMPLES, ROOT
from tests.programs import run

NOTEBOOK = EXAMPLES / "columns.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], nbformat.current_nbformat)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=180).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture
def cells(start: Any, awake: None, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """What each cell of code shows."""
    server = start(bundles=(CHECKOUT_BUNDLES,), model="english")
    monkeypatch.setenv("SENTIMENT_TARGET", server.target)
    # Kernels of users of this machine are not ours; nothing is written at home.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    run(python, "-c", EXECUTE, NOTEBOOK, tmp_path / "done.ipynb", cwd=ROOT)
    done = json.loads((tmp_path / "done.ipynb").read_text())
    return {cell["id"]: cell["outputs"] for cell in done["cells"] if cell["cell_type"] == "code"}


def test_the_notebook_shows_answers_an_explanation_and_plots(cells: dict[str, list[dict[str, Any]]]) -> None:
    table = "".join(cells["column"][0]["data"]["text/plain"])
    assert [line.split()[0] for line in table.splitlines() if "INVALID_ARGUMENT: text: is missing" in line] == ["5"]
    assert (table.count("positive "), table.count("negative ")) >= (3, 2)
    words = "".join(cells["explain"][0]["data"]["text/plain"])
    assert "loved" in words and "integrated_gradients" in words
    for plot in ("chart", "compare"):
        assert any("image/png" in output.get("data", {}) for output in cells[plot])
    evidence = "".join(cells["evidence"][0]["data"]["text/plain"]).splitlines()
    assert [line.split()[0] for line in evidence[1:]] == ["occlusion", "integrated_gradients"]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]

    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
