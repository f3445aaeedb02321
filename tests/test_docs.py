"""Every example that a reader may copy runs: the pages' Python blocks and the docstrings."""

import doctest
import importlib
import inspect
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from peers import peer

import virtualds
from virtualds.accessors.dataset import VirtualDatasetAccessor
from virtualds.accessors.dataset_writer import DatasetWriter
from virtualds.accessors.tree import VirtualDataTreeAccessor
from virtualds.codecs import Zlib
from virtualds.combine.progress import LeftOut

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "virtualds", ROOT / "virtualds_cli")
LIBRARIES = {
    "docs/reference/formats/icechunk.md": "icechunk",
    "docs/how-to/recipes.md": "icechunk",
    "virtualds.formats.icechunk.library": "icechunk",
    "virtualds.formats.icechunk.nodes": "icechunk",
}
"""Pages and modules that need a library which not every Python has."""
FENCE = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["code"], text.count("\n", 0, match.start("code")))
        for match in FENCE.finditer(text)
    ]


def pages() -> list[Path]:
    docs = [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    return [page for page in [ROOT / "README.md", *sorted(docs)] if blocks(page)]


def modules() -> list[str]:
    paths = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    # the last of these runs a program
    return [n.removesuffix(".__init__") for n in names if not n.endswith(".__main__")]


@pytest.fixture
def archive(tmp_path: Path, archive_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own that holds ``2001.nc`` and ``2002.nc``."""
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def skip_without_library(name: str) -> None:
    if name in LIBRARIES:
        peer(LIBRARIES[name])


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, archive: Path) -> None:
    skip_without_library(str(page.relative_to(ROOT)))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        # The blank lines make a traceback name the line of the page.
        source = "\n" * block.line + block.code
        exec(compile(source, str(page), "exec"), namespace)


@pytest.fixture
def changed_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As ``archive``, with files of different lengths, compression, packing and chunks."""
    stored: dict[str, dict[str, Any]] = {
        "2001": {
            "zlib": True,
            "chunksizes": (31, 6, 8),
            "dtype": "i2",
            "scale_factor": 0.01,
            "_FillValue": -1,
        },
        "2002": {"chunksizes": (28, 3, 8), "dtype": "i2", "scale_factor": 0.02, "_FillValue": -9},
    }
    for name, days in (("2001", 31), ("2002", 28)):
        field = np.random.default_rng(days).integers(0, 300, (days, 6, 8)) / 100.0
        part = xr.Dataset(
            {"t": (("time", "lat", "lon"), field)},
            {
                "time": np.datetime64(f"{name}-02-01", "ns")
                + np.arange(days) * np.timedelta64(1, "D"),
                "lat": np.arange(6.0),
                "lon": np.arange(8.0),
            },
        )
        part.to_netcdf(tmp_path / f"{name}.nc", encoding={"t": stored[name]})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["README.md", "docs/tutorials/quickstart.md", "docs/index.md"])
def test_the_first_pages_hold_for_an_archive_that_changed_on_the_way(
    name: str, changed_archive: Path
) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(ROOT / name):
        exec(compile("\n" * block.line + block.code, name, "exec"), namespace)


@pytest.mark.parametrize("name", modules())
def test_docstrings(name: str, archive: Path) -> None:
    skip_without_library(name)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    module = importlib.import_module(name)
    # examples of public classes, which say that they are of the package, run as of its root
    seen = {"np": np, "xr": xr, "LeftOut": LeftOut, "Zlib": Zlib} if module is virtualds else {}
    if name.startswith("virtualds.accessors"):
        seen = {"open_virtual_dataset": virtualds.open_virtual_dataset, "xr": xr}
    assert doctest.testmod(module, extraglobs=seen, optionflags=options).failed == 0


ACCESSORS = (VirtualDatasetAccessor, DatasetWriter, VirtualDataTreeAccessor)


@pytest.mark.parametrize(
    ("accessor", "name"),
    [(kind, name) for kind in ACCESSORS for name in vars(kind) if not name.startswith("_")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_member_of_an_accessor_has_an_example_that_runs(accessor: type, name: str) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(vars(accessor)[name]) or "")
    assert any(not example.options.get(doctest.SKIP) for example in examples)


def test_the_readme_shows_the_main_job() -> None:
    code = "".join(block.code for block in blocks(ROOT / "README.md"))
    for step in ("open_virtual_mfdataset", "to_manifest", 'engine="virtual"'):
        assert step in code
