"""The recipes of other tools, on the pages that show them: the same result in as many lines."""

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

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = ("from-kerchunk", "from-virtualizarr")
BLOCK = re.compile(r"^```python *(?P<tool>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SET = re.compile(r'"([\w.]+\.(?:json|parquet|icechunk))"')
FILES, FIRST = "The files", "Imports"
TOOLS = {"kerchunk": "kerchunk", "virtualizarr": "virtualizarr", "icechunk": "virtualizarr"}
"""The folder of each peer: blocks for Icechunk go on with the datasets of VirtualiZarr."""
SNAPSHOT = {"Work on a branch": "dev"}
GROUP = {"Add a group": "first", "Add a variable": "first"}
GROUP |= {"Write a tree": "run/one", "Append to a tree": "run/two"}
NO_SET = {FILES, FIRST, "List commits"}
IN_MEMORY = "Keep references in memory"
PIECES = {"Hold small chunks in the set": ("t", 0), "Cut large chunks": ("snow", 12)}
"""The references to files that a variable has in a JSON set, after these recipes."""

for library in ("kerchunk", "virtualizarr", "icechunk"):
    peer(library)

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")


Section = tuple[str, str]
"""The name of a page, and the title of a section."""


def sections(page: str) -> dict[Section, dict[str, str]]:
    """The blocks of each section of a page, by tool; ours has no name."""
    text = (GUIDES / f"{page}.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    found = {part.partition("\n")[0]: dict(BLOCK.findall(part)) for part in parts}
    return {(page, title): blocks for title, blocks in found.items() if blocks}


SECTIONS = {key: blocks for page in PAGES for key, blocks in sections(page).items()}
ROWS = [
    (section, tool)
    for section, blocks in SECTIONS.items()
    for tool in blocks
    if tool and section[1] != FIRST
]


class Made(NamedTuple):
    """What a block made: what stands in its folder, or an object that it leaves."""

    folder: Path
    names: dict[str, Any]


@pytest.fixture(scope="module")
def made(
    archive_files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[Section, str], Made]:
    """Run the pages from top to bottom, each tool in a folder of its own; keep every state."""
    found: dict[tuple[Section, str], Made] = {}
    for page in PAGES:
        found |= run_page(page, archive_files, tmp_path_factory.mktemp(page))
    return found


def run_page(page: str, files: list[Path], root: Path) -> dict[tuple[Section, str], Made]:
    found = {}
    folders = {name: root / (name or "ours") for name in ("", *set(TOOLS.values()))}
    names: dict[str, dict[str, Any]] = {folder: {} for folder in folders}
    for folder in folders.values():
        folder.mkdir()
        for path in files:
            shutil.copy2(path, folder)
    with pytest.MonkeyPatch.context() as patch:
        for who, folder in folders.items():
            patch.chdir(folder)
            exec(SECTIONS[page, FILES][""], names[who])
        for section, tool, code in recipes(page):
            who = TOOLS.get(tool, "")
            patch.chdir(folders[who])
            exec(compile(code, f"{section} ({tool or 'virtualds'})", "exec"), names[who])
            found[section, tool] = keep(folders[who], dict(names[who]), section)
    return found


def recipes(page: str) -> Iterator[tuple[Section, str, str]]:
    """Yield section, tool and code of every block after the one that makes files."""
    for section, blocks in SECTIONS.items():
        if section[0] == page and section[1] != FILES:
            yield from ((section, tool, code) for tool, code in blocks.items())


def keep(folder: Path, names: dict[str, Any], section: Section) -> Made:
    """Return the state after a block: what it made is opened now, since the page goes on."""
    title = section[1]
    if title.startswith("Open "):
        # urls of kerchunk start from the working folder
        names["opened"] = names["ds"].load()
    elif title == IN_MEMORY:
        names["opened"] = xr.open_dataset(names["refs"], engine="virtual").load()
    elif title not in NO_SET:
        names["opened"] = open_set(folder / SET.findall(SECTIONS[section][""])[-1], title)
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


def label(value: str | Section) -> str:
    return value if isinstance(value, str) else ": ".join(value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("section", "tool"), ROWS, ids=label)
def test_a_recipe_gives_the_same_here(
    section: Section, tool: str, made: dict[tuple[Section, str], Made]
) -> None:
    ours, theirs = made[section, ""].names, made[section, tool].names
    if section[1] == "List commits":
        # the first is that of an empty repository
        assert len(ours["times"]) == len(theirs["times"]) - 1 == 2
        return
    one, other = ours["opened"], theirs["opened"]
    if section[1] == "Rename paths":
        assert urls(one) == urls(other) == {"s3://bucket/2001.nc"}
        return
    assert one.data_vars and all(variable.size for variable in one.variables.values())
    xr.testing.assert_equal(one, other)


@pytest.mark.parametrize("title", PIECES)
@pytest.mark.parametrize("tool", ["", "kerchunk"])
def test_chunks_are_held_or_cut(
    title: str, tool: str, made: dict[tuple[Section, str], Made]
) -> None:
    variable, expected = PIECES[title]
    section = "from-kerchunk", title
    path = made[section, tool].folder / SET.findall(SECTIONS[section][""])[-1]
    refs = json.loads(path.read_text())
    refs = refs.get("refs", refs)
    kept = [key for key, value in refs.items() if isinstance(value, list)]
    assert sum(key.startswith(f"{variable}/") for key in kept) == expected


def test_rewriting_copies_the_chunks_of_one_file_alone(
    made: dict[tuple[Section, str], Made],
) -> None:
    section = "from-virtualizarr", "Write what the format cannot hold"
    folders = [made[section, tool].folder for tool in ("", "virtualizarr")]
    names = [folder / "mixed.json" for folder in folders]
    ours, theirs = (json.loads(name.read_text())["refs"] for name in names)
    assert sum("/2001.nc" in str(value) for value in ours.values()) == 12
    assert not any("/plain.nc" in str(value) for value in ours.values())
    assert not any(".nc" in str(value) for value in theirs.values())


def count_lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


@pytest.mark.parametrize(("section", "tool"), ROWS, ids=label)
def test_a_recipe_takes_no_more_lines_here(section: Section, tool: str) -> None:
    blocks = SECTIONS[section]
    assert count_lines(blocks[""]) <= count_lines(blocks[tool])
