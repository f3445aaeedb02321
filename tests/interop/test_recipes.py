"""The recipes of other tools, on the page that shows them: the same result in as many lines."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xarray as xr
from peers import peer

import virtualds

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "recipes.md"
BLOCK = re.compile(r"^```python *(?P<tool>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SET = re.compile(r'"([\w.]+\.(?:json|parquet|icechunk))"')
FILES, FIRST = "The files", "Before all"
TOOLS = {"kerchunk": "kerchunk", "virtualizarr": "virtualizarr", "icechunk": "virtualizarr"}
"""The folder of each peer: blocks for Icechunk go on with the datasets of VirtualiZarr."""
SNAPSHOT = {"Work on a branch": "dev"}
GROUP = {"Add a group": "first", "Add a variable": "first"}
GROUP |= {"Write a tree": "run/one", "Append to a tree": "run/two"}
NO_SET = {FILES, FIRST, "List commits", "Keep a set up to date"}
IN_MEMORY = "Keep references in memory"
PIECES = {"Hold small chunks in the set": ("t", 0), "Cut large chunks": ("snow", 12)}
"""The references to files that a variable has in a JSON set, after these recipes."""

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
    folders = {name: root / (name or "ours") for name in ("", *set(TOOLS.values()))}
    names: dict[str, dict[str, Any]] = {folder: {} for folder in folders}
    for folder in folders.values():
        folder.mkdir()
        for path in archive_files:
            shutil.copy2(path, folder)
    with pytest.MonkeyPatch.context() as patch:
        for who, folder in folders.items():
            patch.chdir(folder)
            exec(SECTIONS[FILES][""], names[who])
        for title, tool, code in recipes():
            who = TOOLS.get(tool, "")
            patch.chdir(folders[who])
            exec(compile(code, f"{title} ({tool or 'virtualds'})", "exec"), names[who])
            found[title, tool] = keep(folders[who], dict(names[who]), title)
    yield found


def recipes() -> Iterator[tuple[str, str, str]]:
    """Yield title, tool and code of every block after the one that makes files."""
    for title, blocks in SECTIONS.items():
        if title != FILES:
            yield from ((title, tool, code) for tool, code in blocks.items())


def keep(folder: Path, names: dict[str, Any], title: str) -> Made:
    """Return the state after a block: what it made is opened now, since the page goes on."""
    if title.startswith("Open "):
        # urls of kerchunk start from the working folder
        names["opened"] = names["ds"].load()
    elif title == IN_MEMORY:
        names["opened"] = xr.open_dataset(names["refs"], engine="virtual").load()
    elif title not in NO_SET:
        names["opened"] = open_set(folder / SET.findall(SECTIONS[title][""])[-1], title)
    return Made(folder, names)


def open_set(path: Path, title: str) -> xr.Dataset:
    allow = [str(path.parent), "s3://bucket"]
    if title == "Rename paths":
        # nothing lies there, so nothing is loaded
        return virtualds.open_virtual_dataset(
            path, allow=allow, loadable_variables=[], decode_cf=False
        )
    where = {"snapshot": SNAPSHOT.get(title), "group": GROUP.get(title)}
    return xr.open_dataset(path, engine="virtual", allow=allow, **where).load()


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
    assert one.data_vars and all(variable.size for variable in one.variables.values())
    xr.testing.assert_equal(one, other)


@pytest.mark.parametrize("title", PIECES)
@pytest.mark.parametrize("tool", ["", "kerchunk"])
def test_chunks_are_held_or_cut(title: str, tool: str, made: dict[tuple[str, str], Made]) -> None:
    variable, expected = PIECES[title]
    path = made[title, tool].folder / SET.findall(SECTIONS[title][""])[-1]
    refs = json.loads(path.read_text())
    refs = refs.get("refs", refs)
    kept = [key for key, value in refs.items() if isinstance(value, list)]
    assert sum(key.startswith(f"{variable}/") for key in kept) == expected


def test_rewriting_copies_the_chunks_of_one_file_alone(
    made: dict[tuple[str, str], Made],
) -> None:
    title = "Write what the format cannot hold"
    folders = [made[title, tool].folder for tool in ("", "virtualizarr")]
    names = [folder / "mixed.json" for folder in folders]
    ours, theirs = (json.loads(name.read_text())["refs"] for name in names)
    assert sum("/2001.nc" in str(value) for value in ours.values()) == 12
    assert not any("/plain.nc" in str(value) for value in ours.values())
    assert not any(".nc" in str(value) for value in theirs.values())


def count_lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


@pytest.mark.parametrize(("title", "tool"), ROWS, ids=str)
def test_a_recipe_takes_no_more_lines_here(title: str, tool: str) -> None:
    blocks = SECTIONS[title]
    assert count_lines(blocks[""]) <= count_lines(blocks[tool])
