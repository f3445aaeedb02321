"""The recipes of other tools, on the page that shows them: the same result in as many lines."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xarray as xr
from peers import peer

import virtualds

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
BLOCK = re.compile(r"^```python *(?P<tool>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SET = re.compile(r'"([\w.]+\.(?:json|parquet|icechunk))"')
FIRST = "Before all"
TOOLS = {"kerchunk": "kerchunk", "virtualizarr": "virtualizarr", "icechunk": "virtualizarr"}
"""The folder of each peer: blocks for Icechunk go on with the datasets of VirtualiZarr."""
SNAPSHOT = {"Work on a branch": "dev"}

for library in ("kerchunk", "virtualizarr", "icechunk"):
    peer(library)

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")


def sections() -> dict[str, dict[str, str]]:
    """The blocks of each section of the page, by tool; ours has no name."""
    _, *parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {part.partition("\n")[0]: BLOCK.findall(part) for part in parts}
    return {title: dict(blocks) for title, blocks in found.items()}


SECTIONS = sections()
ROWS = [(title, tool) for title, blocks in SECTIONS.items() for tool in blocks if tool]
ROWS = [(title, tool) for title, tool in ROWS if title != FIRST]


class Made(NamedTuple):
    """What a block made: what stands in its folder, or an object that it leaves."""

    folder: Path
    names: dict[str, Any]


@pytest.fixture(scope="module")
def made(
    archive_files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Made]]:
    """Run the page from top to bottom, each tool in a folder of its own; keep every state."""
    root, found = tmp_path_factory.mktemp("recipes"), {}
    folders = {name: root / name for name in ("", *set(TOOLS.values()))}
    folders[""] = root / "ours"
    names: dict[str, dict[str, Any]] = {folder: {} for folder in folders}
    for folder in folders.values():
        folder.mkdir()
        for path in archive_files:
            shutil.copy2(path, folder)
    with pytest.MonkeyPatch.context() as patch:
        for title, blocks in SECTIONS.items():
            for tool, code in blocks.items():
                who = TOOLS.get(tool, "")
                patch.chdir(folders[who])
                exec(compile(code, f"{title} ({tool or 'virtualds'})", "exec"), names[who])
                found[title, tool] = keep(folders[who], dict(names[who]), title, tool)
    yield found


def keep(folder: Path, names: dict[str, Any], title: str, tool: str) -> Made:
    """Return the state after a block: the set of its section is opened now, since it goes on."""
    if title in (FIRST, "List commits"):
        return Made(folder, names)
    target = SET.findall(SECTIONS[title][""])[-1]
    allow = [str(folder), "s3://bucket"]
    if title == "Rename paths":
        # nothing lies there, so nothing is loaded
        names["opened"] = virtualds.open_virtual_dataset(
            folder / target, allow=allow, loadable_variables=[], decode_cf=False
        )
        return Made(folder, names)
    found = xr.open_dataset(
        folder / target, engine="virtual", allow=allow, snapshot=SNAPSHOT.get(title)
    )
    names["opened"] = found.load()
    if title == "Open a set":
        # urls of kerchunk start from the working folder
        names["ds"] = names["ds"].load()
    return Made(folder, names)


def urls(ds: xr.Dataset) -> set[str]:
    return set(ds[["t"]].virtual.sources["url"])


@pytest.mark.parametrize(("title", "tool"), ROWS, ids=str)
def test_a_recipe_gives_the_same_here(
    title: str, tool: str, made: dict[tuple[str, str], Made]
) -> None:
    ours, theirs = made[title, ""].names, made[title, tool].names
    if title == "List commits":
        # the first is that of an empty repository
        assert len(ours["times"]) == len(theirs["times"]) - 1 == 2
        return
    one, other = ours["opened"], theirs["opened"]
    if title == "Rename paths":
        assert urls(one) == urls(other) == {"s3://bucket/2001.nc"}
        return
    assert one["t"].size
    xr.testing.assert_equal(one, other)
    if title == "Open a set":
        xr.testing.assert_equal(ours["ds"], theirs["ds"])


def count_lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


@pytest.mark.parametrize(("title", "tool"), ROWS, ids=str)
def test_a_recipe_takes_no_more_lines_here(title: str, tool: str) -> None:
    blocks = SECTIONS[title]
    assert count_lines(blocks[""]) <= count_lines(blocks[tool])
