"""VirtualiZarr opens the same Zarr stores: where both refer to chunks, to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import peer
from zarr_stores import STORES

import virtualds
from virtualds import ManifestArray

virtualizarr = peer("virtualizarr")
parsers = pytest.importorskip("virtualizarr.parsers")
pytest.importorskip("arro3.core", reason="VirtualiZarr lists stores through it")
obstore = pytest.importorskip("obstore.store", reason="VirtualiZarr reads files through it")
registries = pytest.importorskip("obspec_utils.registry", reason="VirtualiZarr finds stores by it")

pytestmark = pytest.mark.filterwarnings("ignore")

Entries = dict[str, tuple[str, int, int]]


def theirs(path: Path) -> Entries:
    """Return path, offset and length by the keys of chunks; those that are missing have none."""
    registry = registries.ObjectStoreRegistry({"file://": obstore.LocalStore()})
    parser = parsers.ZarrParser()
    found = parser(url=f"file://{path}", registry=registry)
    manifest = found._group.arrays["a"].manifest.dict()
    return {
        key: (entry["path"], entry["offset"], entry["length"])
        for key, entry in manifest.items()
        if entry["path"]
    }


def array(path: Path) -> ManifestArray:
    found = virtualds.open_virtual_dataset(path, loadable_variables=[], decode_cf=False)
    data: Any = found.a.variable._data
    assert isinstance(data, ManifestArray)
    return data


def ours(path: Path) -> Entries:
    [fragment] = array(path).fragments
    manifest = fragment.manifest
    found = {}
    for place in np.argwhere(manifest.file >= 0).tolist():
        row = manifest.lookup(tuple(place))
        key = ".".join(map(str, place))
        found[key] = (manifest.files[row.file].url, row.offset, row.length)
    return found


@pytest.mark.parametrize(
    "name", ["v2 zlib", "v2 separator", "v2 order F", "v3 gzip", "v3 transpose"]
)
def test_virtualizarr_and_virtualds_refer_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    STORES[name].write(tmp_path / "s", consolidated=True)
    assert ours(tmp_path / "s") == theirs(tmp_path / "s")


def test_virtualizarr_finds_nothing_under_keys_of_the_other_version(tmp_path: Path) -> None:
    """Their arrays of version 3 have chunks under ``c/`` only; what else is there reads as fill."""
    STORES["v3 keys of v2"].write(tmp_path / "s", consolidated=True)
    assert theirs(tmp_path / "s") == {}
    assert len(ours(tmp_path / "s")) == 6


def test_virtualizarr_refers_to_whole_shards_and_virtualds_to_inner_chunks(tmp_path: Path) -> None:
    """A shard is one chunk to them, and read whole; its index is not looked at."""
    STORES["shard"].write(tmp_path / "s", consolidated=True)
    inner, whole = ours(tmp_path / "s"), theirs(tmp_path / "s")
    assert {path for path, _, _ in inner.values()} == {path for path, _, _ in whole.values()}
    lengths = {path: length for path, _, length in whole.values()}
    assert all(offset + length <= lengths[path] for path, offset, length in inner.values())
    assert len(inner) == 25 and len(whole) == 6
