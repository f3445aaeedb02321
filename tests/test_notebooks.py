"""Every notebook runs from its first cell to its last, and shows what it did when it was kept."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from notebook_runs import NOTEBOOKS, SIZE, code_cells, printed, run, running_kernel, texts
from peers import peer

LIBRARIES = {"from_other_tools": "virtualizarr"}
"""Notebooks that need a library which not every Python has."""
LONG = {"archives", "changed_archive", "cloud", "dask_cluster", "main_job", "million_references"}
"""Notebooks that the quick tests do not run."""
PLACE = re.compile(r"/tmp/|/home/|/Users/|site-packages| at 0x")
"""What only makes sense on one machine, or for one run."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
RUNS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.full] if path.stem in LONG else [])
    for path in NOTEBOOKS
]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
    assert {*LIBRARIES, *LONG} <= {path.stem for path in NOTEBOOKS}


@every_notebook
def test_notebook_is_kept_with_its_pictures(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs) >= 2
    assert path.stat().st_size < SIZE


@every_notebook
def test_notebook_shows_no_warning_and_no_place_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    streams = [o.get("name") for cell in code_cells(notebook) for o in cell.outputs]
    assert "stderr" not in streams
    assert PLACE.findall(texts(notebook)) == []


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookClient]:
    with running_kernel() as client:
        yield client


# What a person runs: up to 20 s each.
@pytest.mark.every
@pytest.mark.parametrize("path", RUNS)
# The kernel is a process of its own: what its messaging libraries warn of is not about us.
@pytest.mark.filterwarnings("default")
def test_notebook_runs_and_prints_what_was_kept(
    path: Path, kernel: NotebookClient, tmp_path: Path
) -> None:
    if path.stem in LIBRARIES:
        peer(LIBRARIES[path.stem])
    kept = printed(nbformat.read(path, as_version=4))
    assert printed(run(path, tmp_path, kernel)) == kept, "keep what it prints now: make notebooks"
