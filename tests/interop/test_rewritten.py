"""Mixed archives that were rewritten, read by kerchunk's stack, Icechunk and zarr-python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations import reference
from mixed_archives import CUT, MIXED, Mixed
from peers import peer

import virtualds

icechunk = peer("icechunk")
LocalFileSystemAccess = peer("icechunk.credentials").LocalFileSystemAccess
ARCHIVES: dict[str, Mixed] = MIXED | CUT


def read_references(references: Any) -> xr.Dataset:
    filesystem = reference.ReferenceFileSystem(
        references, remote_protocol="file", asynchronous=True, skip_instance_cache=True
    )
    store = zarr.storage.FsspecStore(filesystem, read_only=True)
    return xr.open_zarr(store, consolidated=False, zarr_format=2, chunks=None).load()


def read_json(path: Path) -> xr.Dataset:
    return read_references(str(path))


def read_parquet(path: Path) -> xr.Dataset:
    local = fsspec.filesystem("file")
    with warnings.catch_warnings():
        # pandas will drop fastparquet, with which fsspec knows missing chunks
        warnings.simplefilter("ignore")
        return read_references(
            reference.LazyReferenceMapper(str(path), local, engine="fastparquet")
        )


def read_icechunk(path: Path) -> xr.Dataset:
    storage = icechunk.local_filesystem_storage(str(path))
    containers = icechunk.Repository.open(storage).config.virtual_chunk_containers or {}
    allowed = dict.fromkeys(containers, LocalFileSystemAccess)
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)
    store = repository.readonly_session("main").store
    return xr.open_dataset(store, engine="zarr", consolidated=False, chunks=None).load()


READERS: dict[str, tuple[str, Callable[[Path], xr.Dataset]]] = {
    "kerchunk-json": ("refs.json", read_json),
    "kerchunk-parquet": ("refs.parquet", read_parquet),
    "icechunk": ("refs.icechunk", read_icechunk),
}


def assert_same_bits(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype.newbyteorder("=")
    assert found.shape == wanted.shape
    native = wanted.astype(found.dtype)
    absent = np.isnan(native)
    np.testing.assert_array_equal(np.isnan(found), absent)
    assert found[~absent].tobytes() == native[~absent].tobytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("name", ARCHIVES)
def test_peers_read_every_archive_bit_for_bit(name: str, form: str, tmp_path: Path) -> None:
    paths = ARCHIVES[name].write(tmp_path)
    file, read = READERS[form]
    virtual = ARCHIVES[name].virtual(paths)
    virtual.virtual.to_manifest(tmp_path / file, on_unsupported="rewrite")
    wanted = ARCHIVES[name].native(paths)["t"]
    assert_same_bits(read(tmp_path / file)["t"].values, wanted.values)
    ours = virtualds.open_virtual_dataset(tmp_path / file)
    assert_same_bits(ours["t"].values, wanted.values)


@pytest.mark.parametrize("name", MIXED)
def test_icechunk_holds_rewritten_chunks_itself(name: str, tmp_path: Path) -> None:
    paths = MIXED[name].write(tmp_path)
    target = tmp_path / "refs.icechunk"
    MIXED[name].virtual(paths).virtual.to_manifest(target, on_unsupported="rewrite")
    assert not (tmp_path / "refs.icechunk.chunks").exists()
    urls = virtualds.open_virtual_dataset(target).virtual.sources["url"]
    assert {Path(url).suffix for url in urls} <= {".nc", ""}


def test_permuted_axes_go_out_with_the_codec_transpose(tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    ds = virtualds.open_virtual_dataset(paths[0]).transpose("x", "y", "time")
    assert ds.virtual.cost("icechunk")["rewritten"].sum() == 0
    ds.virtual.to_manifest(tmp_path / "refs.icechunk")
    native = xr.load_dataset(paths[0]).transpose("x", "y", "time")
    assert_same_bits(read_icechunk(tmp_path / "refs.icechunk")["t"].values, native["t"].values)
    ds.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    plain = zarr.open_group(tmp_path / "plain.zarr", mode="r")
    assert plain["t"].metadata.codecs[0].to_dict()["name"] == "transpose"
    assert_same_bits(np.asarray(plain["t"][...]), native["t"].values)


@pytest.mark.parametrize("form", READERS)
def test_flipped_axes_are_refused_by_name_or_encoded_anew(form: str, tmp_path: Path) -> None:
    file, read = READERS[form]
    paths = MIXED["codec_changes"].write(tmp_path)
    ds = virtualds.open_virtual_dataset(paths[0])
    dim = ds["t"].dims[1]
    back = {dim: slice(None, None, -1)}
    with pytest.raises(virtualds.UnsupportedError, match=rf"(?s)zarr-v3.* t: .*flipped.*{dim}"):
        ds.isel(back).virtual.to_manifest(tmp_path / file)
    ds.virtual.to_manifest(tmp_path / file)
    # nor beside chunks that are not flipped
    late = ds.isel(back).drop_vars(dim, errors="ignore").assign_coords(time=ds["time"] + 1000)
    with pytest.raises(virtualds.UnsupportedError, match="flipped"):
        late.virtual.to_manifest(tmp_path / file, mode="a", append_dim="time")
    ds.isel(back).virtual.to_manifest(tmp_path / file, mode="w", on_unsupported="rewrite")
    wanted = xr.load_dataset(paths[0]).isel(back)["t"].values
    assert_same_bits(read(tmp_path / file)["t"].values, wanted)


def test_an_append_to_icechunk_rewrites_only_what_is_new(tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    target = tmp_path / "refs.icechunk"
    for path in paths:
        ds = virtualds.open_virtual_dataset(path)
        ds.virtual.to_manifest(target, append_dim="time", on_unsupported="rewrite")
    wanted = MIXED["codec_changes"].native(paths)["t"].values
    assert_same_bits(read_icechunk(target)["t"].values, wanted)
    urls = virtualds.open_virtual_dataset(target).virtual.sources["url"].tolist()
    assert [Path(url).name for url in urls if url.endswith(".nc")] == ["0.nc", "2.nc"]


def test_verify_says_which_chunks_only_the_repository_holds(tmp_path: Path) -> None:
    paths = MIXED["packing_changes"].write(tmp_path)
    target = tmp_path / "refs.icechunk"
    MIXED["packing_changes"].virtual(paths).virtual.to_manifest(
        target, on_unsupported="rewrite", main_encoding={"t": {"codecs": []}}
    )
    ds = virtualds.open_virtual_dataset(target)
    assert ds.virtual.verify().ok
    assert "a chunk of an Icechunk repository" in str(ds.virtual.verify(against="native"))
