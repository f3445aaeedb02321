"""Files of unusual sizes of addresses are read, and a broken link spoils nothing but itself."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
import pytest

import virtualds
from virtualds import FormatError, SourceFile
from virtualds.parsers import hdf5
from virtualds.parsers.hdf5 import objects
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.fractal_heap import read_symbols
from virtualds.stores import find_store

WAYS = ("auto", "library")


def scan(path: Path, way: str = "auto") -> virtualds.ManifestGroup:
    url = f"file://{path}"
    with virtualds.set_options(hdf5=way):
        return hdf5.read(find_store(url).describe(url, None), below=True)


def test_addresses_and_lengths_may_differ_in_size(tmp_path: Path) -> None:
    for offset in (2, 4, 8):
        for length in (2, 4, 8):
            path = tmp_path / f"{offset}-{length}.h5"
            creating = h5py.h5p.create(h5py.h5p.FILE_CREATE)
            creating.set_sizes(offset, length)
            file_id = h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_TRUNC, creating)
            with h5py.File(file_id) as file:
                file["x"] = np.arange(5.0)
                file["deep/y"] = np.arange(3)
                file["soft"] = h5py.SoftLink("/deep/y")
            for way in WAYS:
                found = scan(path, way)
                assert not found.all_problems(), (offset, length, way)
                assert found.variables["x"].read().tolist() == [0, 1, 2, 3, 4], (offset, length)
                assert found.variables["soft"].read().tolist() == [0, 1, 2], (offset, length)
                assert found.groups["deep"].variables["y"].read().tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_a_link_to_what_is_no_file_spoils_no_other_variable(way: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["d"] = np.arange(3)
    (tmp_path / "loop.h5").symlink_to("loop.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ok"] = np.arange(4.0)
        for name, target in {"part": "b.h5/x", "long": "n" * 300, "loop": "loop.h5"}.items():
            file[name] = h5py.ExternalLink(target, "/d")
    found = scan(tmp_path / "a.h5", way)
    assert list(found.variables) == ["ok"]
    problems = found.all_problems()
    assert problems.keys() == {"part", "long", "loop"}
    assert all(isinstance(problem, FormatError) for problem in problems.values()), problems


@pytest.mark.parametrize("way", WAYS)
def test_a_soft_link_without_a_slash_begins_in_its_group(way: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["deep/a"], file["deep/er/b"] = [0], [1], [2]
        file["deep/link"] = h5py.SoftLink("a")
        file["deep/further"] = h5py.SoftLink("er/b")
    found = scan(tmp_path / "a.h5", way).groups["deep"].variables
    assert [found[name].read().tolist() for name in ("link", "further")] == [[1], [2]]


def test_a_node_of_a_group_with_two_parents_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as file:
        for number in range(50):
            file[f"{number:02}"] = [number]
    raw = bytearray((tmp_path / "a.h5").read_bytes())
    # signature, kind and level, used entries, and neighbours; then keys and children by turns
    tree, heap = raw.index(b"TREE\0\0"), raw.index(b"HEAP")
    first = tree + 8 + 16 + 8
    raw[first : first + 8] = raw[first + 16 : first + 24]
    (tmp_path / "a.h5").write_bytes(raw)
    file = FileBytes(SourceFile((tmp_path / "a.h5").as_uri()))
    try:
        with pytest.raises(FormatError, match="two parents"):
            list(read_symbols(file, tree, heap))
    finally:
        file.close()


@pytest.mark.parametrize("way", WAYS)
def test_the_root_is_listed_once_for_all_links_to_it(way: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(20):
            file[f"d{number}"] = [number]
            file[f"to{number}"] = h5py.SoftLink(f"/d{number}")
    roots = []
    find_root = objects._make_root

    def count(*given: object) -> objects.HDF5Location:
        roots.append(given)
        return find_root(*given)  # type: ignore[arg-type]

    with patch.object(objects, "_make_root", count):
        found = scan(tmp_path / "a.h5", way)
    assert len(found.variables) == 40
    assert len(roots) == 1
