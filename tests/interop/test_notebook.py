"""The notebook that shows the way from kerchunk and VirtualiZarr, where both are installed."""

from pathlib import Path

import nbformat
import pytest
from notebook_runs import FOLDER, printed, run, running_kernel
from peers import peer

peer("virtualizarr")
NOTEBOOK = FOLDER / "from_other_tools.ipynb"


# The kernel is a process of its own: what its messaging libraries warn of is not about us.
@pytest.mark.filterwarnings("default")
def test_notebook_runs_and_prints_what_was_kept(tmp_path: Path) -> None:
    kept = printed(nbformat.read(NOTEBOOK, as_version=4))
    with running_kernel() as kernel:
        found = printed(run(NOTEBOOK, tmp_path, kernel))
    assert found == kept, "keep what it prints now: make notebooks"
