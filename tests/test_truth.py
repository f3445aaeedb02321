"""No number comes out wrong and nothing is lost, in every known way for that to happen."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from virtual_arrays import no_reads, virtual

import virtualds
from virtualds.arrays.array import ManifestArray
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.reading.plan import plan_selection
from virtualds.reading.tasks import BATCH_BYTES

VALUES = np.arange(4000.0).reshape(10, 20, 20)


def save(path: Path, ds: xr.Dataset, **encoding: Any) -> Path:
    ds.to_netcdf(path, encoding=encoding or None)
    return path


def test_gaps_of_reindexing_are_written_as_they_read(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": (("t", "x"), np.ones((2, 3)))}, {"t": [0, 1]})
    path = save(tmp_path / "a.nc", ds, v={"_FillValue": None})
    empty = virtualds.open_virtual_dataset(path).reindex(t=[5, 6])
    empty.virtual.to_manifest(tmp_path / "refs.json")
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual")
    assert np.isnan(again["v"].values).all()


def test_a_reference_of_the_wrong_length_never_reads_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(np.arange(4000.0).tobytes())
    array = ManifestArray.from_arrays(
        shape=(2000,),
        chunks=(2000,),
        dtype="f8",
        path=str(tmp_path / "raw.bin"),
        offsets=0,
        lengths=800,
    )
    with pytest.raises(ReadError, match="800 bytes"):
        np.asarray(array)


def test_a_set_vouches_for_one_scan_of_a_file(tmp_path: Path) -> None:
    parts = []
    for value in (1.0, 2.0):
        ds = xr.Dataset({"v": (("t", "x"), np.full((1, 3), value))})
        path = save(tmp_path / "a.nc", ds, v={"chunksizes": (1, 3)})
        parts.append(virtualds.open_virtual_dataset(path))
    both = xr.concat(parts, "t")
    with pytest.raises(UnsupportedError, match="scanned twice"):
        both.virtual.to_manifest(tmp_path / "refs.json")


@pytest.mark.parametrize("name", [1, "a/b", ""])
def test_a_name_that_no_file_can_hold_is_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"ds\.rename"):
        xr.Dataset({name: ("x", [1])}).virtual.to_manifest(tmp_path / "refs.json")


@pytest.mark.parametrize("key", ["0", "0.1.1", "0.0.0"])
def test_a_chunk_key_of_another_rank_is_refused(key: str, tmp_path: Path) -> None:
    metadata = {"zarr_format": 2, "shape": [2, 2], "chunks": [1, 1], "dtype": "<f8"}
    metadata |= {"compressor": None, "filters": None, "fill_value": None, "order": "C"}
    refs = {".zgroup": {"zarr_format": 2}, "v/.zarray": metadata, f"v/{key}": ["a.bin", 0, 8]}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    with pytest.raises(FormatError, match="chunk key"):
        xr.open_dataset(tmp_path / "refs.json", engine="virtual")


def test_masks_of_virtual_arrays_are_arrays_like_others(tmp_path: Path) -> None:
    values = np.array([[1.0, np.nan], [3.0, 4.0]])
    one = xr.Variable(("x", "y"), virtual(values, tmp_path)).isnull()
    assert xr.Variable.concat([one, one], "x").values.sum() == 2
    np.testing.assert_array_equal(one.transpose("y", "x").values, np.isnan(values).T)


def test_parts_without_elements_are_joined(tmp_path: Path) -> None:
    empty, full = np.zeros((0, 5)), np.ones((1, 5))
    parts = [virtual(empty, tmp_path, chunks=(1, 2)), virtual(full, tmp_path, chunks=(1, 5))]
    joined = np.concatenate(parts, axis=0)
    np.testing.assert_array_equal(np.asarray(np.squeeze(joined, 0)), full[0])
    assert np.concatenate([parts[0], parts[0]]).shape == (0, 5)


def test_static_fields_that_differ_are_not_taken_from_the_first_file(tmp_path: Path) -> None:
    paths = []
    for k in range(2):
        mask = (("y", "x"), np.full((2, 2), k))
        ds = xr.Dataset({"v": (("t", "y", "x"), np.ones((1, 2, 2))), "mask": mask}, {"t": [k]})
        paths.append(save(tmp_path / f"{k}.nc", ds))
    with pytest.raises(ValueError, match="mask"):
        virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="t")
    asked = virtualds.open_virtual_mfdataset(
        paths, combine="nested", concat_dim="t", compat="override", coords="minimal"
    )
    assert asked["mask"].values.tolist() == [[0, 0], [0, 0]]


def test_batches_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    """Whatever the first chunk's size says of the others."""
    values = np.random.default_rng(0).normal(size=(64, 2**15))
    values[0] = 0
    array = virtual(values, tmp_path, chunks=(1, 2**15), codecs=[{"id": "zlib"}])
    batches = list(plan_selection(array, (slice(None), slice(None))).batches)
    sizes = [sum(task.length for task in batch.tasks) for batch in batches]
    assert max(sizes) <= BATCH_BYTES
    assert len(batches) > 8


STORED_ALIKE = {
    "an index": lambda a: a[3],
    "an index in the middle": lambda a: a[:, 3],
    "a new axis": lambda a: np.expand_dims(a, 0)[:, 3:4],
    "permuted axes": lambda a: np.transpose(a, (2, 0, 1))[:, 3:4],
    "indices around": lambda a: a[3, :, 4],
}


@pytest.mark.parametrize("view", STORED_ALIKE)
def test_little_is_read_of_an_uncompressed_variable_however_it_is_looked_at(
    view: str, tmp_path: Path
) -> None:
    values = np.arange(40 * 50 * 60.0).reshape(40, 50, 60)
    array = virtual(values, tmp_path)
    seen, expected = STORED_ALIKE[view](array), STORED_ALIKE[view](values)
    batches = plan_selection(seen, (slice(None),) * seen.ndim).batches
    read = sum(length for work in batches for _, length in work.ranges)
    assert read <= 50 * 60 * 8  # one index of the first stored axis, or less
    np.testing.assert_array_equal(np.asarray(seen), expected)


def test_asking_a_lazy_dataset_about_its_references_reads_nothing(tmp_path: Path) -> None:
    path = save(tmp_path / "a.nc", xr.Dataset({"v": (("t", "y", "x"), VALUES)}))
    ds = xr.open_dataset(path, engine="virtual")
    with no_reads():
        assert ds.virtual.nchunks == 1
        assert len(ds.virtual.sources) == 1
        ds.virtual.to_manifest(tmp_path / "refs.json")


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_a_file_that_no_set_can_name_is_refused_before_one_is_written(
    suffix: str, tmp_path: Path
) -> None:
    written, target = tmp_path / "written.nc", tmp_path / f"refs{suffix}"
    xr.Dataset({"v": ("x", np.arange(3000.0))}).to_netcdf(written)
    for name in (b"two\nlines.nc", b"not UTF-8 \xff.nc"):
        source = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
        shutil.copy(written, source)
        vds = virtualds.open_virtual_dataset(source)
        assert vds.identical(xr.load_dataset(written))
        with pytest.raises(UnsupportedError, match=r"control characters.*not UTF-8") as raised:
            vds.virtual.to_manifest(target)
        assert repr(os.fsdecode(name))[1:-1] in str(raised.value)
        assert not target.exists()


def test_prefixes_of_paths_end_at_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()
    ds = xr.Dataset({"v": (("t", "x"), np.ones((1, 3)))})
    one, two = (save(tmp_path / folder / "1.nc", ds) for folder in ("a", "ab"))
    both = xr.concat([virtualds.open_virtual_dataset(p) for p in (one, two)], "t")
    moved = both.virtual.rename_paths({f"{tmp_path}/a/": "/new/"}).virtual.sources["url"]
    assert moved.tolist() == ["file:///new/1.nc", f"file://{two}"]


def test_files_that_a_slice_does_not_need_do_not_travel_with_it(tmp_path: Path) -> None:
    parts = [virtual(np.full((1, 4), float(k)), tmp_path) for k in range(20)]
    joined = np.concatenate(parts, axis=0)
    assert len(joined.sources) == 20
    assert len(joined[3:5].sources) == 2


def test_impossible_dates_of_missing_chunks_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        never = file.create_dataset("t", (4000, 8), "f8", chunks=(10, 8), fillvalue=1e300)
        never[:10] = 0.0
        never.attrs["units"] = "days since 2000-01-01"
        never[3990:] = 0.0
    ds = virtualds.open_virtual_dataset(tmp_path / "a.h5", loadable_variables=[])
    with pytest.raises(ReadError, match="missing chunk") as caught:
        ds["t"].values.sum()
    assert str(caught.value).startswith("variable 't'")
