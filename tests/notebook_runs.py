"""Run notebooks, and keep in them what they print and draw: ``make notebooks``.

What is kept is shown by the pages and by sites that host code, so nobody has to run a notebook to
look at it. A cell with the tag ``varies`` prints other numbers on each machine, such as seconds.
"""

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SIZE = 300_000
"""A notebook has at most so many bytes, with all pictures."""
QUIET = {"TQDM_DISABLE": "1"}
"""Progress bars show seconds, which differ from run to run."""
BEGIN = """
get_ipython().reset()
import os, sys
os.chdir({!r})
sys.modules["__main__"].__spec__ = None
del os, sys
"""
"""What runs before a notebook: names of the one before are gone. Without ``__spec__``, which goes
with them, a cluster cannot start processes."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
RANDOM_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""xarray names the parts of its tables so."""
RANDOM_FOLDER = re.compile(re.escape(tempfile.gettempdir()) + r"/tmp[a-z0-9_]{8}\b")
"""Each notebook works in one of these."""


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@contextmanager
def running_kernel() -> Iterator[NotebookClient]:
    """Start a process that runs one notebook after the other: it takes longer than most of them."""
    client = NotebookClient(new_notebook(), timeout=300, kernel_name="python3")
    with client.setup_kernel(env=os.environ | QUIET):
        yield client


def run(path: Path, folder: Path, client: NotebookClient) -> NotebookNode:
    """Return a notebook as it is after its last cell, without what is random in it."""
    _execute(client, new_notebook(cells=[new_code_cell(BEGIN.format(str(folder)))]))
    notebook = nbformat.read(path, as_version=4)
    _execute(client, notebook)
    names: dict[str, str] = {}
    text = RANDOM_NAME.sub(
        lambda found: names.setdefault(found[0], f"part-{len(names)}"), nbformat.writes(notebook)
    )
    return nbformat.reads(RANDOM_FOLDER.sub("/archive", text), as_version=4)


def _execute(client: NotebookClient, notebook: NotebookNode) -> None:
    client.nb = notebook
    client.reset_execution_trackers()
    numbers = itertools.count(1)
    for place, cell in enumerate(notebook.cells):
        number = next(numbers) if cell.cell_type == "code" else None
        client.execute_cell(cell, place, execution_count=number)


def printed(notebook: NotebookNode) -> list[tuple[str, list[str]]]:
    """Return what each cell printed, and the kinds of what it showed besides."""
    return [_shown(cell) for cell in code_cells(notebook)]


def texts(notebook: NotebookNode) -> str:
    """Return all that a person may read in the outputs."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    found = [output.get("text", "") for output in outputs]
    for output in outputs:
        found += [text for kind, text in output.get("data", {}).items() if "text" in kind]
    return "\n".join(found)


def keep(path: Path) -> None:
    """Run a notebook, and write it with its outputs."""
    with tempfile.TemporaryDirectory() as folder, running_kernel() as client:
        notebook = run(path, Path(folder), client)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)


def _shown(cell: NotebookNode) -> tuple[str, list[str]]:
    """Return the text of a cell, if it does not vary, and the kinds of its other outputs."""
    varies = "varies" in cell.metadata.get("tags", ())
    streams = [o.text for o in cell.outputs if o.output_type == "stream"]
    kinds: list[Any] = [sorted(o.data) for o in cell.outputs if "data" in o]
    return "" if varies else "".join(streams), [" ".join(kind) for kind in kinds]


if __name__ == "__main__":
    for notebook in map(Path, sys.argv[1:] or NOTEBOOKS):
        keep(notebook)
