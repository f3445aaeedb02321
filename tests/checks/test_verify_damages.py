"""Every damage is found by the cheapest check that can find it, and named."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from cases import numbers
from counting_server import counting_server
from range_server import Fault, faulty_server

import virtualds
from virtualds import ManifestArray, SourceFile, Verification
from virtualds.codecs.pipeline import CodecPipeline

LOOKS = ("fingerprint", "range", "native")


@pytest.fixture
def files(archive_files: list[Path], tmp_path: Path) -> list[Path]:
    """Two files that may be damaged."""
    return [Path(shutil.copy2(path, tmp_path)) for path in archive_files]


def opened(files: list[Path]) -> xr.Dataset:
    return virtualds.open_virtual_mfdataset(
        [str(path) for path in files], combine="nested", concat_dim="time"
    )


def kinds(found: Verification) -> set[str]:
    return {problem.kind for problem in found.problems}


def chunk_of(path: Path) -> tuple[int, int]:
    """Where a chunk in the middle of a file lies."""
    row = virtualds.open_virtual_dataset(path)["t"].data.manifest.lookup((6, 0, 0))
    return row.offset, row.length


# ---------------------------------------------------------------------- what becomes of files


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    offset, _ = chunk_of(path)
    os.truncate(path, offset)


def overwrite(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 5_000_000_000))


def flip_a_byte(path: Path) -> None:
    before, (offset, length) = path.stat(), chunk_of(path)
    data = bytearray(path.read_bytes())
    data[offset + length // 2] ^= 0xFF
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@dataclass(frozen=True)
class Damage:
    """What is done to a file, and what each look finds."""

    do: Callable[[Path], None]
    fingerprint: set[str]
    range: set[str]
    native: set[str]


DAMAGES = {
    "nothing": Damage(lambda path: None, set(), set(), set()),
    "deleted": Damage(delete, {"missing"}, {"missing"}, {"missing"}),
    "truncated": Damage(truncate, {"size"}, {"size", "range"}, {"size", "range"}),
    "overwritten": Damage(overwrite, {"modified"}, {"modified"}, {"modified"}),
    "a byte flipped": Damage(flip_a_byte, set(), set(), {"undecodable"}),
    "a folder": Damage(make_a_folder, {"unreachable"}, {"unreachable"}, {"unreachable"}),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named_with_its_damage(name: str, look: str, files: list[Path]) -> None:
    dataset, damage = opened(files), DAMAGES[name]
    damage.do(files[1])
    found = dataset.virtual.verify(None, look)
    assert kinds(found) == getattr(damage, look), found
    assert found.ok == (not getattr(damage, look))
    assert {p.url for p in found.problems} <= {files[1].as_uri()}
    assert (found.files, found.references) == (2, 24)
    # the other file is looked at all the same
    untouched = 12 if look == "native" else 0
    assert sum(found.compared.values()) >= untouched


def test_the_chunk_that_does_not_decode_is_named(files: list[Path]) -> None:
    dataset = opened(files)
    flip_a_byte(files[1])
    [problem] = dataset.virtual.verify(None, "native").problems
    assert (problem.variable, problem.chunk) == ("t", (18, 0, 0))
    assert sum(dataset.virtual.verify(None, "native").compared.values()) == 23


def test_references_past_the_end_are_reported_once_per_file(files: list[Path]) -> None:
    dataset = opened(files)
    truncate(files[1])
    [row] = [p for p in dataset.virtual.verify(against="range").problems if p.kind == "range"]
    assert (row.variable, row.url) == ("t", files[1].as_uri())
    assert row.chunk == (18, 0, 0)
    assert "5 more chunks" in row.message


def test_the_chunk_cache_does_not_hide_damage(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("v", data=numbers(64, 200), chunks=(64, 200), compression="gzip")
    dataset = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    row = dataset["v"].data.manifest.lookup((0, 0))
    # a part of a chunk is wanted, so the rest is kept
    assert np.isfinite(dataset["v"][0].values).all()
    before, data = os.stat(tmp_path / "a.nc"), bytearray((tmp_path / "a.nc").read_bytes())
    data[row.offset + row.length // 2] ^= 0xFF
    (tmp_path / "a.nc").write_bytes(data)
    os.utime(tmp_path / "a.nc", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kinds(dataset.virtual.verify(None, "native")) == {"undecodable"}


# ---------------------------------------------------------------------- what becomes of references


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Uncompressed chunks of 32 bytes."""
    path = tmp_path / "plain.nc"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=numbers(6, 4), chunks=(2, 4))
    return path


def with_columns(path: Path, **change: Any) -> xr.Dataset:
    """The file with its references changed, as a set of others may have them."""
    dataset = virtualds.open_virtual_dataset(path)
    array = dataset["v"].data
    [fragment] = array.fragments
    columns = {name: how(getattr(fragment.manifest, name)) for name, how in change.items()}
    manifest = replace(fragment.manifest, **columns)
    return dataset.assign(v=(dataset["v"].dims, _with(array, manifest)))


def _with(array: ManifestArray, manifest: Any) -> ManifestArray:
    [fragment] = array.fragments
    return replace(array, fragments=(replace(fragment, manifest=manifest),))


REFERENCES: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "right": ({}, set(), set()),
    "shifted": ({"offset": lambda o: o - 4}, set(), {"differs"}),
    "negative": ({"offset": lambda o: o * 0 - 5}, {"range"}, {"range"}),
    "empty": ({"length": lambda n: n * 0}, {"range"}, {"range"}),
    "too long": ({"length": lambda n: n + 2**20}, {"range"}, {"range"}),
    "too short": ({"length": lambda n: n - 4}, set(), {"undecodable"}),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_wrong_reference_is_found(name: str, plain: Path) -> None:
    change, by_range, by_native = REFERENCES[name]
    dataset = with_columns(plain, **change)
    assert kinds(dataset.virtual.verify(against="range")) == by_range
    found = dataset.virtual.verify(None, "native")
    assert kinds(found) == by_native, found
    assert sum(found.compared.values()) == (3 if not by_native else 0)


def decoded_by(path: Path, change: Callable[[CodecPipeline], CodecPipeline]) -> xr.Dataset:
    dataset = virtualds.open_virtual_dataset(path)
    array = dataset["t"].data
    wrong = replace(array, pipelines=tuple(map(change, array.pipelines)))
    return dataset.assign(t=(dataset["t"].dims, wrong))


WRONG_WAYS: dict[str, tuple[Callable[[CodecPipeline], CodecPipeline], str]] = {
    "byte order": (lambda p: replace(p, dtype=p.dtype.newbyteorder()), "stored"),
    "type": (lambda p: replace(p, dtype=np.dtype("<u2")), "stored"),
    "scale": (
        lambda p: replace(p, packing=replace(p.packing, scale_factor=np.float64(0.02))),
        "decoded",
    ),
    "fill": (lambda p: replace(p, packing=replace(p.packing, fills=(np.int16(0),))), ""),
}


@pytest.mark.parametrize("name", WRONG_WAYS)
def test_chunks_that_are_decoded_otherwise_differ(name: str, files: list[Path]) -> None:
    change, what = WRONG_WAYS[name]
    found = decoded_by(files[0], change).virtual.verify(None, "native")
    if not what:  # of a fill value that does not occur nobody knows
        assert found.ok
        return
    assert kinds(found) == {"differs"}
    assert all(f"h5netcdf: {what} t[" in problem.message for problem in found.problems)


def test_files_without_fingerprints_are_checked_by_range(files: list[Path], tmp_path: Path) -> None:
    offset, _ = chunk_of(files[0])
    zarray = {"shape": [2], "chunks": [1], "dtype": "|u1", "compressor": None, "filters": None,
              "fill_value": None, "order": "C", "zarr_format": 2}  # fmt: skip
    references = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps(zarray),
        "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
        "v/0": [str(files[0]), offset, 1],
        "v/1": [str(files[1]), 10**9, 1],
    }
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    dataset = virtualds.open_virtual_dataset(tmp_path / "refs.json", loadable_variables=[])
    cheap, full = (dataset.virtual.verify(against=look) for look in ("fingerprint", "range"))
    assert cheap.ok
    assert (cheap.files, cheap.fingerprinted) == (2, 0)
    assert "; 2 only for existence" in str(cheap)
    [problem] = full.problems
    assert (problem.kind, problem.url, problem.chunk) == ("range", files[1].as_uri(), (1,))


def test_inline_and_missing_chunks_are_counted_as_such(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("v", (6, 4), "f4", chunks=(2, 4))[2:4] = 1
    array = virtualds.open_virtual_dataset(tmp_path / "a.nc")["v"].data
    joined = np.concatenate([array, ManifestArray.from_values(np.zeros((2, 4), "f4"))])
    dataset = xr.Dataset({"v": (("y", "x"), joined), "w": ("x", np.arange(4))})
    found = dataset.virtual.verify(None, "native")
    assert found.ok
    assert (found.references, found.missing, found.inline, found.loaded) == (1, 2, 1, 1)


# ---------------------------------------------------------------------- far files


def test_a_remote_file_is_asked_for_once(files: list[Path], tmp_path: Path) -> None:
    with counting_server(tmp_path) as (url, counts):
        dataset = virtualds.open_virtual_mfdataset(
            [f"{url}/{path.name}" for path in files], combine="nested", concat_dim="time"
        )
        files[1].unlink()
        for look in ("fingerprint", "range"):
            counts.requests.clear()
            found = dataset.virtual.verify(against=look)
            assert kinds(found) == {"missing"}
            assert [counts.of(path.name) for path in files] == [1, 1]
            assert found.files == 2


def test_another_etag_is_another_version(files: list[Path], tmp_path: Path) -> None:
    with faulty_server(tmp_path) as served:
        served.etag = '"one"'
        dataset = virtualds.open_virtual_dataset(f"{served.url}/2001.nc")
        same = dataset.virtual.verify()
        served.etag = 'W/"one"'
        weak = dataset.virtual.verify()
        served.etag = '"two"'
        other = dataset.virtual.verify()
    assert (same.ok, weak.ok) == (True, True)
    assert same.fingerprinted == 1
    [problem] = other.problems
    assert (problem.kind, problem.url) == ("etag", f"{served.url}/2001.nc")


def test_a_server_that_is_gone_is_not_a_missing_file(files: list[Path], tmp_path: Path) -> None:
    with counting_server(tmp_path) as (url, _):
        dataset = virtualds.open_virtual_dataset(f"{url}/2001.nc")
    with socket.socket() as nobody, virtualds.set_options(retries=0):
        # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        dataset = dataset.virtual.rename_paths({url: gone})
        found = dataset.virtual.verify(against="native")
    assert kinds(found) == {"unreachable"}
    assert (found.ok, found.sampled) == (False, 0)


@pytest.mark.parametrize("status", [403, 500])
def test_a_file_that_may_not_be_seen_is_not_a_missing_one(
    status: int, files: list[Path], tmp_path: Path
) -> None:
    with faulty_server(tmp_path) as served, virtualds.set_options(retries=0):
        dataset = virtualds.open_virtual_dataset(f"{served.url}/2001.nc")
        served.always = Fault("status", status)
        assert kinds(dataset.virtual.verify()) == {"unreachable"}


def test_files_in_a_bucket_have_etags(
    files: list[Path], s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    import fsspec

    filesystem = fsspec.filesystem("s3", **s3_server)
    filesystem.put(str(files[0]), f"{s3_bucket}/a.nc")
    dataset = virtualds.open_virtual_dataset(f"{s3_bucket}/a.nc", storage_options=s3_server)
    found = dataset.virtual.verify(None, "native")
    assert found.ok, found
    assert (found.fingerprinted, sum(found.compared.values())) == (1, 12)
    data = bytearray(files[0].read_bytes())
    data[-1] ^= 0xFF
    filesystem.pipe(f"{s3_bucket}/a.nc", bytes(data))
    assert kinds(dataset.virtual.verify()) == {"etag"}


# ---------------------------------------------------------------------- sets


@pytest.fixture
def large(tmp_path: Path) -> Iterator[xr.Dataset]:
    """Three hundred thousand references into three files that hold no byte."""
    grid, parts = (100, 10, 100), []
    for number in range(3):
        path = tmp_path / f"{number}.bin"
        path.touch()
        os.truncate(path, 16 * 100_000)
        file = SourceFile(path.as_uri(), 16 * 100_000, path.stat().st_mtime_ns)
        parts.append(
            ManifestArray.from_arrays(
                shape=(100, 40, 100),
                chunks=(1, 4, 1),
                dtype="f4",
                path=file,
                offsets=16 * np.arange(100_000).reshape(grid),
                lengths=16,
            )
        )
    yield xr.Dataset({"v": (("t", "y", "x"), np.concatenate(parts))})


@pytest.mark.parametrize("suffix", ["parquet", "zarr"])
def test_a_lazy_set_is_looked_through_in_pieces(
    suffix: str, large: xr.Dataset, tmp_path: Path
) -> None:
    large.virtual.to_manifest(tmp_path / f"refs.{suffix}")
    dataset = virtualds.open_virtual_dataset(tmp_path / f"refs.{suffix}")
    found = dataset.virtual.verify(against="range")
    assert found.ok, found
    assert (found.files, found.fingerprinted, found.references) == (3, 3, 300_000)
    os.truncate(tmp_path / "1.bin", 16 * 50_000)
    damaged = dataset.transpose("x", "t", "y").virtual.verify(against="range")
    [size, past] = damaged.problems
    assert (size.kind, past.kind, past.variable) == ("size", "range", "v")
    assert "49,999 more chunks" in past.message


def test_a_record_of_a_set_that_is_gone_is_a_problem_of_its_references(
    large: xr.Dataset, tmp_path: Path
) -> None:
    large.virtual.to_manifest(tmp_path / "refs.parquet", record_size=100_000)
    dataset = virtualds.open_virtual_dataset(tmp_path / "refs.parquet")
    (tmp_path / "refs.parquet" / "v" / "refs.1.parq").write_bytes(b"no parquet")
    found = dataset.virtual.verify(against="range")
    assert kinds(found) == {"references"}
    assert not found.ok
    assert dataset.virtual.verify(20, "native").counts["references"] == 1
