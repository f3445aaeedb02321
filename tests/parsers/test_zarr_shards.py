"""Shards are opened by their indexes: what they hold are references, damage is an error."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from counting_server import CountingHandler, counting_server
from products import looped
from virtual_arrays import counted_reads
from zarr_stores import BIG, CRC, GZIP, LITTLE, ZSTD, named, numcodec, sharded, v3

import virtualds
from virtualds import ManifestArray
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.formats.zarr import shards

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def virtual(path: Any, **how: Any) -> ManifestArray:
    """Return the array ``a`` of a store."""
    found = virtualds.open_virtual_dataset(path, loadable_variables=[], **how)
    data = found.a.variable._data
    assert isinstance(data, ManifestArray)
    return data


def native(path: Path) -> Any:
    return zarr.open_array(path / "a", mode="r")[...]


# ---------------------------------------------------------------------- references


def test_inner_chunks_are_references_into_shards(tmp_path: Path) -> None:
    v3("int32", -5, sharded(chunk=(1, 2))).write(tmp_path / "s")
    array = virtual(tmp_path / "s")
    [fragment] = array.fragments
    assert fragment.manifest.shape == (7, 5)
    assert fragment.manifest.is_loaded
    # of the rows that were written; nothing is there of the last two
    assert (fragment.manifest.file[:5] >= 0).all() and (fragment.manifest.file[5:] == -1).all()
    assert (fragment.manifest.length[:5] == 8).all()
    assert len(array.sources) == 2 * 3


def test_a_part_is_read_by_its_own_bytes(tmp_path: Path) -> None:
    v3("int32", -5, sharded(LITTLE, chunk=(1, 2)), chunks=(6, 10)).write(tmp_path / "s")
    found = virtualds.open_virtual_dataset(tmp_path / "s", loadable_variables=[])
    with counted_reads() as store:
        assert found.a.isel(y=2, x=3).values == 23
    assert 4 <= store.nbytes <= 8


def test_inner_chunks_are_concatenated_and_written_in_every_format(tmp_path: Path) -> None:
    for number in range(2):
        v3("int32", -5, sharded(LITTLE, ZSTD)).write(tmp_path / f"{number}.zarr")
    found = virtualds.open_virtual_mfdataset(
        str(tmp_path / "*.zarr"), combine="nested", concat_dim="y"
    )
    expected = np.concatenate([native(tmp_path / f"{n}.zarr") for n in range(2)])
    np.testing.assert_array_equal(found.a.values, expected)
    refs = [tmp_path / name for name in ("refs.virtual.zarr", "refs.json", "refs.parquet")]
    for path, part in zip(
        refs, (found, found.isel(y=slice(7)), found.isel(y=slice(7))), strict=True
    ):
        part.virtual.to_manifest(path)
        again = virtualds.open_virtual_dataset(path)
        np.testing.assert_array_equal(again.a, part.a.values)


# ---------------------------------------------------------------------- many shards


@pytest.mark.parametrize("nested", [False, True])
def test_indexes_of_many_shards_are_read_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    inner = sharded(LITTLE, ZSTD, chunk=(1, 2))
    codec = sharded(inner, chunk=(1, 4)) if nested else inner
    v3("int32", -5, codec).write(tmp_path / "s")
    monkeypatch.setattr(shards, "MAX_SHARDS", {True: 2, False: 2})
    read: Counter[str] = Counter()
    real = shards._read_index

    def counted(shard: Any, level: Any) -> Any:
        read[shard.file.url.rpartition("/c/")[2]] += 1
        return real(shard, level)

    monkeypatch.setattr(shards, "_read_index", counted)
    array = virtual(tmp_path / "s")
    assert not read and not array.fragments[0].manifest.is_loaded
    expected = native(tmp_path / "s")
    np.testing.assert_array_equal(array.read((slice(0, 2), slice(5, 7))), expected[:2, 5:7])
    assert set(read) == {"0/1"}
    copy = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(copy.read((slice(None), slice(None))), expected)
    np.testing.assert_array_equal(array.read((slice(None), slice(None))), expected)
    assert len(read) == 6 and (nested or set(read.values()) == {1})
    found = virtualds.open_virtual_dataset(tmp_path / "s", loadable_variables=[])
    for name in ("refs.virtual.zarr", "refs.json", "refs.parquet"):
        found.virtual.to_manifest(tmp_path / name)
        np.testing.assert_array_equal(virtualds.open_virtual_dataset(tmp_path / name).a, expected)


def test_sharded_arrays_of_a_reference_set_are_read(tmp_path: Path) -> None:
    """They may lie in the set, or be referred to shard by shard."""
    source = tmp_path / "s"
    store = v3("int32", -5, sharded(LITTLE, ZSTD))
    store.write(source)
    entries = {
        f"{i}.{j}": {
            "path": (file := source / "a/c" / str(i) / str(j)).as_uri(),
            "offset": 0,
            "length": file.stat().st_size,
        }
        for i in range(2)
        for j in range(3)
    }
    # a shard may stand in the manifest
    entries["0.0"] = {"data": base64.b64encode((source / "a/c/0/0").read_bytes()).decode()}
    transformer = {"name": "chunk-manifest-json", "configuration": {"manifest": entries}}
    for name, more in {"referred": {"storage_transformers": [transformer]}, "native": {}}.items():
        root = tmp_path / f"{name}.virtual.zarr"
        store.write(root)
        document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        node = json.loads((root / "a/zarr.json").read_text()) | more
        below = {"kind": "inline", "must_understand": False, "metadata": {"a": node}}
        (root / "zarr.json").write_text(json.dumps(document | {"consolidated_metadata": below}))
        found = virtualds.open_virtual_dataset(root, parser="zarr-v3")
        np.testing.assert_array_equal(found.a, native(source), name)


# ---------------------------------------------------------------------- servers


def test_a_shard_on_s3_costs_one_request(
    tmp_path: Path, s3_bucket: str, s3_server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    v3("int32", -5, sharded(LITTLE, ZSTD), shape=(40, 10)).write(tmp_path / "s")
    remote = fsspec.filesystem("s3", **s3_server)
    remote.put(str(tmp_path / "s"), s3_bucket.removeprefix("s3://") + "/s", recursive=True)
    asked: list[tuple[str, int]] = []
    threads: set[int] = set()
    real = shards.fetch_bytes

    def counted(file: Any, begin: int, size: int) -> Any:
        asked.append((file.url, size))
        threads.add(threading.get_ident())
        return real(file, begin, size)

    monkeypatch.setattr(shards, "fetch_bytes", counted)
    array = virtual(f"{s3_bucket}/s", storage_options=s3_server)
    assert len(asked) == len({url for url, _ in asked}) == 13 * 3
    # offset and length of 3 x 2 chunks, and a checksum
    assert {size for _, size in asked} == {16 * 6 + 4}
    assert len(threads) > 2
    np.testing.assert_array_equal(array.read((slice(None),) * 2), native(tmp_path / "s"))


class Unlisted(CountingHandler):
    """A web server that shows no folders."""

    def list_directory(self, path: Any) -> None:
        self.send_error(404)


def test_shards_on_a_server_without_listings_are_opened_when_they_are_needed(
    tmp_path: Path,
) -> None:
    v3("int32", -5, sharded(LITTLE, ZSTD)).write(tmp_path / "s", consolidated=True)
    with counting_server(tmp_path, Unlisted) as (url, counts):
        array = virtual(f"{url}/s")
        assert not any("/c/" in path for _, path, _ in counts.requests)
        np.testing.assert_array_equal(
            array.read((slice(0, 3), slice(0, 4))), native(tmp_path / "s")[:3, :4]
        )
        assert {path for _, path, _ in counts.requests if "/c/" in path} == {"/s/a/c/0/0"}
        np.testing.assert_array_equal(array.read((slice(None),) * 2), native(tmp_path / "s"))


# ---------------------------------------------------------------------- what is damaged


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


MOST = 2**64 - 1
CHECKED, UNCHECKED = sharded(LITTLE), sharded(LITTLE, index=[LITTLE])
INDEX = 16 * 6


def said(begin: int, size: int) -> Callable[[bytes], bytes]:
    """Have an index say that the first chunk lies somewhere."""
    return lambda data: data[:-INDEX] + number(begin) + number(size) + data[-INDEX + 16 :]


def flipped(place: int) -> Callable[[bytes], bytes]:
    """Turn a bit of a byte, counted from the end."""
    return lambda data: data[:place] + bytes([data[place] ^ 1]) + (data[place:][1:])


DAMAGE: dict[str, tuple[Any, Callable[[bytes], bytes]]] = {
    "a bit of the index": (CHECKED, flipped(-50)),
    "the checksum": (CHECKED, flipped(-1)),
    "cut short": (CHECKED, lambda data: data[:-7]),
    "shorter than the index": (CHECKED, lambda data: data[-40:]),
    "a chunk behind the end": (UNCHECKED, said(1000, 8)),
    "a chunk that ends behind the end": (UNCHECKED, said(0, 1000)),
    "an end that overflows": (UNCHECKED, said(MOST - 3, 8)),
    "half of nothing": (UNCHECKED, said(MOST, 8)),
    "nothing of a place": (UNCHECKED, said(0, MOST)),
    "no bytes": (UNCHECKED, said(0, 0)),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_damaged_index_is_an_error_and_no_fill_value(
    tmp_path: Path, name: str, lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, damage = DAMAGE[name]
    v3("int32", -5, codec).write(tmp_path / "s")
    shard = tmp_path / "s/a/c/0/1"
    shard.write_bytes(damage(shard.read_bytes()))
    if lazy:
        monkeypatch.setattr(shards, "MAX_SHARDS", {True: 0, False: 0})
        array = virtual(tmp_path / "s")
        assert (array.read((slice(0, 1), slice(0, 4))) >= 0).all()
        with pytest.raises(ReadError, match=r"c/0/1.*index"):
            array.read((slice(0, 1), slice(0, 5)))
        return
    with pytest.raises(ReadError, match=r"c/0/1.*index") as caught:
        virtual(tmp_path / "s")
    assert "variable 'a' of" in str(caught.value)
    with pytest.warns(UserWarning, match="index"):
        kept = virtualds.open_virtual_dataset(tmp_path / "s", on_error="keep")
    with pytest.raises(UnsupportedError, match="index"):
        _ = kept.a.values


def test_a_shard_that_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v3("int32", -5, sharded()).write(tmp_path / "s")
    monkeypatch.setattr(shards, "MAX_SHARDS", {True: 0, False: 0})
    array = virtual(tmp_path / "s")
    (tmp_path / "s/a/c/1/0").unlink()
    with pytest.raises(ReadError, match="c/1/0"):
        array.read((slice(3, 4), slice(0, 1)))


DELTA, MAGIC = numcodec("delta", dtype="<i4"), {"name": "magic"}
THREES = sharded(BIG, chunk=(1, 3))
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "compressed as a whole": ([sharded(), GZIP], UnsupportedError, "gzip.*as a whole"),
    "filtered as a whole": ([DELTA, sharded()], UnsupportedError, "delta.*as a whole"),
    "an index of any length": ([sharded(index=[LITTLE, ZSTD])], UnsupportedError, "zstd"),
    "an unknown codec inside": ([sharded(MAGIC)], UnsupportedError, "magic"),
    "an unknown codec of the index": ([sharded(index=[LITTLE, MAGIC])], UnsupportedError, "magic"),
    "chunks that do not divide": ([sharded(chunk=(2, 2))], FormatError, "divide"),
    "chunks of nothing": ([sharded(chunk=(0, 2))], FormatError, "chunk_shape"),
    "chunks of other axes": ([sharded(chunk=(1,))], FormatError, "chunk_shape"),
    "an index elsewhere": ([sharded(at="middle")], FormatError, "middle"),
    "an index without order": ([sharded(index=[{"name": "bytes"}, CRC])], FormatError, "endian"),
    "no codecs": ([named("sharding_indexed", chunk_shape=[1, 2])], FormatError, "codecs"),
    "shards of shards that do not divide": ([sharded(THREES, chunk=(3, 4))], FormatError, "divide"),
}  # fmt: skip


@looped("name", REFUSED)
def test_impossible_codecs_of_shards_are_refused_by_name(tmp_path: Path, name: str) -> None:
    codecs, error, message = REFUSED[name]
    v3("int32", -5).write(tmp_path / "s")
    metadata = tmp_path / "s/a/zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"codecs": codecs}))
    with pytest.raises(error, match=message) as caught:
        virtualds.open_virtual_dataset(tmp_path / "s")
    assert "variable 'a' of" in str(caught.value)


def test_shards_of_a_rectilinear_grid(tmp_path: Path) -> None:
    """Written by hand: zarr-python has such grids later."""
    store = v3("uint8", 9, {"name": "bytes"}, shape=(5, 4))
    (tmp_path / "s/a/c/0").mkdir(parents=True)
    (tmp_path / "s/a/c/1").mkdir()
    grid = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[4, 2], [4]]},
    }
    codec = sharded({"name": "bytes"}, chunk=(2, 2), index=[LITTLE])
    node = store.array | {"chunk_grid": grid, "codecs": [codec]}
    (tmp_path / "s/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "s/a/zarr.json").write_text(json.dumps(node))
    index = b"".join(number(n) for i in range(4) for n in (4 * i, 4))
    (tmp_path / "s/a/c/0/0").write_bytes(bytes(range(16)) + index)
    empty = number(MOST) * 2
    (tmp_path / "s/a/c/1/0").write_bytes(bytes(range(20, 24)) + empty + number(0) + number(4))
    assert virtual(tmp_path / "s").read((slice(None),) * 2).tolist() == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
        [9, 9, 20, 21],
    ]
