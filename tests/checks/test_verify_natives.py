"""References read what native readers read, for every kind of source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grib_messages
import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
from cases import CASES, Archive, numbers
from counting_server import counting_server
from effort import others_soaked
from other_sources import OTHERS
from products import few_quick, looped

import virtualds
from virtualds import Verification
from virtualds.arrays.parser import NativeReader
from virtualds.datasets.location import PARSERS, READERS
from virtualds.parsers import hdf5

OF_NO_FORMAT = {"external_files": "values lie in files that have no structure of their own"}
"""Cases that nobody can compare, and why."""


def verified(path: Path | str, **how: Any) -> Verification:
    """All chunks of a file, compared, coordinates too."""
    dataset = virtualds.open_virtual_dataset(path, loadable_variables=[], **how)
    return dataset.virtual.verify(None, "native")


def of_case(name: str, archive: Archive) -> Verification:
    path, group = archive.path(name), CASES[name].group
    try:
        return verified(path, group=group)
    except virtualds.UnsupportedError:  # what exists only once it is loaded
        dataset = virtualds.open_virtual_dataset(path, group=group)
        return dataset.virtual.verify(None, "native")


COMPARED = [name for name in CASES if name not in OF_NO_FORMAT]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("name", few_quick(COMPARED, COMPARED[::4]))
def test_every_chunk_of_a_case_equals_the_native_readers(name: str, archive: Archive) -> None:
    found = of_case(name, archive)
    assert found.references == found.sampled == sum(found.compared.values())
    # what has no chunk in a file is not called equal to anything
    assert found.counts == ({} if found.references else {"not compared": 1}), found
    assert found.ok == bool(found.references)


@pytest.mark.parametrize("name", OF_NO_FORMAT)
def test_files_without_a_native_reader_are_not_called_ok(name: str, archive: Archive) -> None:
    found = of_case(name, archive)
    assert not found.ok and not found.compared
    assert found.counts == {"not compared": found.sampled}
    assert found.bad_files == 0


def write_fits(path: Path) -> None:
    from astropy.io import fits

    scaled = fits.ImageHDU(numbers(4, 5, dtype="i2"), name="SCALED")
    scaled.header["BSCALE"], scaled.header["BZERO"] = 0.5, 3.0
    unsigned = fits.ImageHDU(numbers(4, 5, dtype="u2"), name="UNSIGNED")
    tiles = fits.CompImageHDU(numbers(40, 50, dtype="i2"), name="TILES")
    fits.HDUList([fits.PrimaryHDU(numbers(5, 6)), unsigned, scaled, tiles]).writeto(path)


def write_tiff(path: Path) -> None:
    tiles = {"tile": (32, 48), "compression": "zlib", "predictor": 2}
    tifffile.imwrite(path, numbers(70, 90, dtype="u2"), **tiles)


SOURCES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    **{name: (case.source, case.write) for name, case in OTHERS.items()},
    **{
        f"messages: {name}": ("grib", grib_messages.CASES[name].write)
        for name in ("levels and steps", "one point", "one row")
    },
    "scaled and unsigned images": ("fits", write_fits),
    "tiles of unsigned integers": ("tiff", write_tiff),
}
"""Files that xarray has no engine for, each with the name of its parser."""


@pytest.mark.filterwarnings("ignore:.*cfgrib.*", "ignore::FutureWarning:cfgrib.*")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SOURCES)
def test_other_formats_are_compared_with_their_own_libraries(name: str, tmp_path: Path) -> None:
    source, write = SOURCES[name]
    write(tmp_path / "a")
    found = verified(tmp_path / "a")
    assert found.ok, found
    assert found.references == sum(found.compared.values()) > 0
    [parser] = [parser for parser in PARSERS if parser.name == source]
    assert [name.split()[0] for name in found.compared] == [parser.natives[0].package]


OF_INDEXES = {"grib-index"}
"""Parsers of files without values; the values are in files of other parsers."""


@looped("parser", sorted({parser.name for parser in PARSERS} - OF_INDEXES))
def test_every_parser_names_a_native_reader_that_is_asked_here(parser: str) -> None:
    [natives] = [known.natives for known in PARSERS if known.name == parser]
    assert natives, f"parser {parser!r} names no native reader; give its Parser natives="
    compared = {case.source for case in CASES.values()} | {source for source, _ in SOURCES.values()}
    assert parser in compared, f"no file of parser {parser!r} is compared; add a case of it"


def test_a_library_that_is_not_installed_has_no_name() -> None:
    assert NativeReader("no-such-library", engine="none").name is None


def test_a_native_reader_opens_files_in_one_way() -> None:
    with pytest.raises(ValueError, match="either open or engine"):
        NativeReader("numpy")
    with pytest.raises(ValueError, match="either open or engine"):
        replace(hdf5.PARSER.natives[-1], engine="h5netcdf")


def test_a_file_that_would_crash_the_netcdf_library_is_not_given_to_it(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_the_first = replace(hdf5.PARSER, natives=hdf5.PARSER.natives[1:])
    readers = tuple(without_the_first if r is hdf5.PARSER else r for r in READERS)
    monkeypatch.setattr("virtualds.datasets.location.READERS", readers)
    halves, others = of_case("every_float", archive), of_case("padded_chunks", archive)
    assert [name.split()[0] for name in halves.compared] == ["h5py"]
    assert [name.split()[0] for name in others.compared] == ["netCDF4"]


REMOTE = ["chunked_and_filtered", "classic_of_many_records", "zarr_v2"]


@pytest.mark.parametrize("name", others_soaked(REMOTE, REMOTE[::2]))
def test_remote_files_are_compared_where_readers_can(name: str, archive: Archive) -> None:
    path = archive.path(name)
    with counting_server(path.parent) as (url, _):
        found = verified(f"{url}/{path.name}")
    assert found.ok, found
    assert sum(found.compared.values()) > 0


def test_readers_of_local_files_only_are_named(tmp_path: Path) -> None:
    OTHERS["npy_of_fortran"].write(tmp_path / "a.npy")
    with counting_server(tmp_path) as (url, _):
        found = verified(f"{url}/a.npy")
    [problem] = found.problems
    assert (problem.kind, found.ok) == ("not compared", False)
    assert "local files only" in problem.message


# ---------------------------------------------------------------------- arrays that were changed


CHANGES: dict[str, Any] = {
    "cropped": lambda ds: ds.isel(x=slice(3, 41), time=slice(1, None)),
    "transposed": lambda ds: ds.transpose("x", "time", "y"),
    "one step": lambda ds: ds.isel(time=3),
    "backwards": lambda ds: ds.isel(time=slice(None, None, -1)),
    "an axis more": lambda ds: ds.expand_dims("member"),
    "joined": lambda ds: xr.concat([ds, ds.isel(time=slice(2))], "time"),
    "converted": lambda ds: ds.astype("f8"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_verify_compares_whole_chunks_of_every_view(change: str, archive: Archive) -> None:
    path = archive.path("larger_than_small")
    dataset = CHANGES[change](virtualds.open_virtual_dataset(path))
    found = dataset.virtual.verify(None, "native")
    assert found.ok, found
    assert found.sampled == sum(found.compared.values()) > 0


@pytest.mark.parametrize("suffix", few_quick(["json", "parquet", "zarr"], ["zarr"]))
def test_sets_are_compared_with_their_sources(
    suffix: str, archive: Archive, tmp_path: Path
) -> None:
    for name in ("larger_than_small", "zarr_v2", "classic_of_many_records"):
        url = tmp_path / f"{name}.{suffix}"
        virtualds.open_virtual_dataset(archive.path(name)).virtual.to_manifest(url)
        found = virtualds.open_virtual_dataset(url).virtual.verify(None, "native")
        assert found.ok, found
        assert found.sampled == sum(found.compared.values()) > 0


def test_a_chunk_that_another_tool_has_cut_is_compared(tmp_path: Path) -> None:
    # as sets of others do with one uncompressed array
    xr.Dataset({"v": (("y", "x"), numbers(6, 5))}).to_netcdf(tmp_path / "a.nc")
    [whole] = virtualds.open_virtual_dataset(tmp_path / "a.nc")["v"].data.fragments
    row = whole.manifest.lookup((0, 0))
    array = virtualds.ManifestArray.from_arrays(
        shape=(6, 5),
        chunks=(2, 5),
        dtype="<f4",
        path=str(tmp_path / "a.nc"),
        offsets=row.offset + 40 * np.arange(3).reshape(3, 1),
        lengths=40,
    )
    found = xr.Dataset({"v": (("y", "x"), array)}).virtual.verify(None, "native")
    assert found.ok, found
    assert sum(found.compared.values()) == 3


def test_small_variables_of_many_chunks_are_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read, reads = tmp_path / "a.nc", h5py.Dataset.__getitem__, list[str]()

    def counted(dataset: h5py.Dataset, key: Any) -> Any:
        reads.append(dataset.name)
        return read(dataset, key)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    # the bounds of days have a chunk for each day
    days = 2.0 * np.stack([np.arange(100), np.arange(1, 101)], 1)
    settings = {
        "bounds": {
            "chunksizes": (1, 2),
            "zlib": True,
            "dtype": "i2",
            "scale_factor": 2.0,
            "_FillValue": -1,
        }
    }
    xr.Dataset({"bounds": (("t", "n"), days)}).to_netcdf(path, encoding=settings)
    found = verified(path)
    assert found.ok and found.compared == {f"h5netcdf {version('h5netcdf')}": 100}, found
    assert len(reads) < 20
    with h5py.File(path) as file:
        place = file["bounds"].id.get_chunk_info(50).byte_offset
    with path.open("r+b") as stored:
        stored.seek(place)
        stored.write(b"\xff\xff")
    found = verified(path)
    # a damaged chunk keeps no others from being compared
    [problem] = found.problems
    assert (problem.kind, sum(found.compared.values())) == ("undecodable", 99)


def test_of_a_large_uncompressed_chunk_some_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.checks.verify.chunks.MAX_PART_BYTES", 2**12)
    xr.Dataset({"v": (("t", "y", "x"), numbers(5, 40, 60))}).to_netcdf(tmp_path / "a.nc")
    with counting_server(tmp_path) as (url, counts):
        dataset = virtualds.open_virtual_dataset(f"{url}/a.nc")
        before = counts.sent
        found = dataset.virtual.verify(None, "native")
    assert found.ok, found
    assert before < counts.sent
    assert sum(found.compared.values()) == found.sampled == 1
