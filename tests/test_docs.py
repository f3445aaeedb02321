"""Every example that a reader may copy runs: the pages' Python blocks and the docstrings."""

import doctest
import importlib
import inspect
import itertools
import os
import re
import shlex
import shutil
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import fsspec
import numpy as np
import pytest
import xarray as xr
from peers import peer

import virtualds
from virtualds.accessors.virtual import (
    VirtualAccessor,
    VirtualDatasetAccessor,
    VirtualDataTreeAccessor,
)
from virtualds.codecs import list_codec_names
from virtualds.codecs.codec import VIRTUALDS_PREFIX
from virtualds.codecs.zlib import Zlib
from virtualds.combine.workers import LeftOut
from virtualds_cli.program import main as program

# each page and each docstring is an example that a reader may copy
pytestmark = pytest.mark.every

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "virtualds", ROOT / "virtualds_cli", ROOT / "virtualds_server")
LIBRARIES = {
    "docs/reference/formats/icechunk.md": "icechunk",
    "docs/how-to/from-virtualizarr.md": "icechunk",
    "virtualds.formats.icechunk.library": "icechunk",
    "virtualds.formats.icechunk.references": "icechunk",
    "virtualds.formats.icechunk.write": "icechunk",
}
"""Pages and modules that need a library which not every Python has."""
WITH_BUCKET = {"buckets.md", "where-to-keep.md"}
"""Pages whose blocks read and write ``s3://bucket``."""
FENCE = re.compile(
    r"^```(?:python|\{code-cell\}(?:\n:.*)*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
"""A block, or a cell of a page that shows its results, maybe with tags."""


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
    """The package, of which public classes say that they are, and modules that have examples."""
    paths = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
    paths = [path for path in paths if ">>>" in path.read_text()]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return sorted({"virtualds", *(name.removesuffix(".__init__") for name in names)})


@pytest.fixture
def archive(tmp_path: Path, archive_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own that holds ``2001.nc`` and ``2002.nc``."""
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bucket(archive: Path, moto: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``s3://bucket`` with the files of ``archive``, which everybody may read."""
    server = fsspec.filesystem("s3", **moto)
    server.call_s3("create_bucket", Bucket="bucket")
    for path in archive.glob("*.nc"):
        found = {"Body": path.read_bytes(), "ACL": "public-read"}
        server.call_s3("put_object", Bucket="bucket", Key=f"archive/{path.name}", **found)
    client = moto["client_kwargs"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", client["endpoint_url"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", client["region_name"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto["secret"])
    # fsspec keeps its filesystems, and one that found no credentials never looks again
    type(server).clear_instance_cache()
    yield
    server.rm("s3://bucket", recursive=True)


def skip_without_library(name: str) -> None:
    if name in LIBRARIES:
        peer(LIBRARIES[name])


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, archive: Path, request: pytest.FixtureRequest) -> None:
    skip_without_library(str(page.relative_to(ROOT)))
    if page.name in WITH_BUCKET:
        request.getfixturevalue("bucket")
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
        path = tmp_path / f"{name}.nc"
        part.to_netcdf(path, encoding={"t": stored[name]})
        # older than `sync` waits for a file that may still be written
        os.utime(path, (time.time() - 3600,) * 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
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
    seen: dict[str, Any] = {}
    if module is virtualds:
        # examples of public classes, which say that they are of the package, run as of its root
        public = {name: getattr(virtualds, name) for name in virtualds.__all__}
        seen = {"np": np, "xr": xr, "LeftOut": LeftOut, "Zlib": Zlib} | public
    assert doctest.testmod(module, extraglobs=seen, optionflags=options).failed == 0


ACCESSORS = (VirtualAccessor, VirtualDatasetAccessor, VirtualDataTreeAccessor)


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


SHELL = re.compile(r"^```(?:console|sh)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the words of each call of ``virtualds`` that pages and README show."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for match in SHELL.finditer(page.read_text(encoding="utf-8")):
            for line in match["code"].replace("\\\n", " ").splitlines():
                lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
                lexer.whitespace_split = True
                words = list(itertools.takewhile(lambda word: word not in {"|", "&&", ">"}, lexer))
                if words[:1] == ["virtualds"]:
                    yield str(page.relative_to(ROOT)), words[1:]


def test_pages_show_commands() -> None:
    assert {"README.md", "docs/how-to/nightly.md"} <= {page for page, _ in commands()}


@pytest.mark.parametrize(("page", "words"), list(commands()), ids=str)
def test_the_command_line_takes_what_pages_show(page: str, words: list[str]) -> None:
    own = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    name, *arguments = words[len(own) :]
    program.make_context("virtualds", [*own, name, *arguments])
    program.commands[name].make_context(name, arguments, parent=click.Context(program))


def test_every_command_has_its_help_in_a_section() -> None:
    """In the order of the program's own help."""
    text = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    found = re.findall(r"^### (\S+)\n\n<!-- help: (\S+) -->$", text, re.MULTILINE)
    assert found == [(name, name) for name in program.commands]


def test_the_page_of_zarr_v3_specifies_every_codec_that_only_virtualds_has() -> None:
    """So that a reader can be written from the page alone."""
    text = (ROOT / "docs/reference/formats/zarr-v3.md").read_text(encoding="utf-8")
    said = set(re.findall(r"`([^`\s]+)`", text.partition("\n### Codecs for HDF5 filters\n")[2]))
    names = {name for name in list_codec_names("zarr_v3") if str(name).startswith(VIRTUALDS_PREFIX)}
    assert names
    assert names - said == set()


def linked_files(page: Path) -> Iterator[Path]:
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            yield page.parent / target


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_outside_of_the_pages_lead_to_files(name: str) -> None:
    found = list(linked_files(ROOT / name))
    assert found
    assert [path for path in found if not path.exists()] == []


def test_the_readme_lists_the_extras_of_the_package() -> None:
    """And nothing but those for developers is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: {re.match(r"[\w-]+", wanted)[0] for wanted in packages}  # type: ignore[index]
        for name, packages in project["optional-dependencies"].items()
        if name not in {"docs", "test", "interop"}
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("<!-- extras -->")[2].partition("<!-- extras end -->")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", table, re.MULTILINE)
    assert {name: set(packages.split(", ")) for name, packages in rows} == extras


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda p: p.name)
def test_a_picture_of_the_readme_is_shown_by_code_hosting_sites(picture: Path) -> None:
    """They run no scripts of pictures, and fetch nothing from elsewhere."""
    assert picture.name in (ROOT / "README.md").read_text(encoding="utf-8")
    root = ET.parse(picture).getroot()
    names = {element.tag.partition("}")[2] for element in root.iter()}
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"title", "desc"} <= names
    assert not names & {"script", "image", "foreignObject", "style", "use"}


def test_every_page_stands_in_one_of_four_parts() -> None:
    parts = re.findall(r"^(\S+)/index$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    assert parts == ["tutorials", "how-to", "explanation", "reference"]
    found = {page.relative_to(ROOT / "docs").parts[0] for page in pages()[1:]}
    assert found == {*parts, "index.md"}


@pytest.mark.parametrize("part", ["how-to", "explanation", "reference"])
def test_the_first_page_of_a_part_says_what_each_of_its_pages_is_for(part: str) -> None:
    text = (ROOT / "docs" / part / "index.md").read_text(encoding="utf-8")
    said = re.findall(r"^- \[[^]]+\]\((\S+)\.md\): \S", text, re.MULTILINE)
    sidebar = text.partition(":hidden:")[2].split()[:-1]
    assert said == sidebar
