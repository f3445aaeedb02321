"""The commuting square: transforming what we open is what xarray makes of the file, transformed.

Cases, ways to open and transforms: every pair of these three is tried. A new case is a function in
`cases`, a new way to open or a new transform one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from other_sources import OTHERS
from products import every_pair, looped
from transforms import TRANSFORMS, assert_identical, bits

import virtualds
from virtualds.datasets.location import PARSERS

SQUARE = CASES | OTHERS
"""The cases of netCDF and Zarr, and those that no engine of xarray reads."""

pytestmark = [
    # xarray warns of the same files whoever reads them
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The files of all cases, each made once; do not write to them."""
    return Archive(tmp_path_factory.mktemp("square"), SQUARE)


# ---------------------------------------------------------------------- ways to open


@cache
def virtually(archive: Archive, name: str) -> xr.Dataset:
    """As virtual as can be: only dimension coordinates are loaded."""
    path, group = archive.path(name), SQUARE[name].group
    try:
        return virtualds.open_virtual_dataset(
            path, group=group, loadable_variables=lambda name, v: v.dims == (name,)
        )
    except virtualds.UnsupportedError:
        # what decodes only as a whole (characters, cftime) has to be loaded
        return virtualds.open_virtual_dataset(path, group=group)


@cache
def references(archive: Archive, name: str, suffix: str) -> Path:
    """A reference set of the file, with as few values inline as can be."""
    path, group = archive.path(name), SQUARE[name].group
    target = path.with_suffix(suffix)
    try:
        vds = virtualds.open_virtual_dataset(path, group=group, loadable_variables=[])
        vds.virtual.to_manifest(target)
    except virtualds.UnsupportedError:
        # characters, or chunks that decode in several ways: their values go inline
        vds = virtualds.open_virtual_dataset(path, group=group)
        vds.virtual.load().virtual.to_manifest(target, mode="w")
    return target


def from_the_source(archive: Archive, name: str) -> xr.Dataset:
    return xr.open_dataset(archive.path(name), engine="virtual", group=SQUARE[name].group)


def through_kerchunk_json(archive: Archive, name: str) -> xr.Dataset:
    return xr.open_dataset(references(archive, name, ".json"), engine="virtual")


def through_kerchunk_parquet(archive: Archive, name: str) -> xr.Dataset:
    return xr.open_dataset(references(archive, name, ".parquet"), engine="virtual")


def virtually_through_kerchunk_parquet(archive: Archive, name: str) -> xr.Dataset:
    path = references(archive, name, ".parquet")
    try:
        return virtualds.open_virtual_dataset(
            path, loadable_variables=lambda name, v: v.dims == (name,)
        )
    except virtualds.UnsupportedError:
        return virtualds.open_virtual_dataset(path)


def through_zarr_v3(archive: Archive, name: str) -> xr.Dataset:
    return xr.open_dataset(references(archive, name, ".zarr"), engine="virtual")


def virtually_through_zarr_v3(archive: Archive, name: str) -> xr.Dataset:
    return virtualds.open_virtual_dataset(references(archive, name, ".zarr"))


OPENERS: dict[str, Callable[[Archive, str], xr.Dataset]] = {
    "source": from_the_source,
    "virtual": virtually,
    "kerchunk-json": through_kerchunk_json,
    "kerchunk-parquet": through_kerchunk_parquet,
    "kerchunk-parquet, virtual": virtually_through_kerchunk_parquet,
    "zarr-v3": through_zarr_v3,
    "zarr-v3, virtual": virtually_through_zarr_v3,
}

XARRAY_DIFFERS = {
    # what xarray decodes lazily to nanoseconds it decodes to seconds if nothing is left of it
    ("timedelta_of_xarray", "isel_nothing"),
    # and it only finds out that durations are finer than declared when they are loaded
    *(
        ("durations_finer_than_declared", transform)
        for transform in ("isel_nothing", "concat", "concat_parts", "reindex", "align_outer")
    ),
}

# ---------------------------------------------------------------------- the square


OWN_SQUARES = {
    "grib": "tests/parsers/test_grib.py says what is expected, coordinates included",
    "grib-index": "tests/parsers/test_grib_index.py: datasets are those of the files themselves",
}
"""Parsers whose cases are elsewhere, and why."""


@pytest.mark.parametrize("parser", [parser.name for parser in PARSERS])
def test_every_parser_has_a_case(parser: str) -> None:
    known = {case.source for case in SQUARE.values()} | OWN_SQUARES.keys()
    assert parser in known, f"parser {parser!r} has no case; add one to tests/other_sources.py"


def test_every_case_is_of_a_parser() -> None:
    assert {case.source for case in SQUARE.values()} <= {parser.name for parser in PARSERS}


TURNS = {
    (name, transform): opener
    for name, transform, opener in every_pair(SQUARE, TRANSFORMS, list(OPENERS))
}
"""How the file of a case is opened for a transform."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", SQUARE)
@looped("transform", TRANSFORMS, quick=2)
def test_transforming_and_opening_commute(name: str, transform: str, archive: Archive) -> None:
    opener = TURNS[name, transform]
    if (name, transform) in XARRAY_DIFFERS and "virtual" not in opener:
        return
    opened = OPENERS[opener](archive, name)
    change = TRANSFORMS[transform]
    try:
        expected = change(archive.native(name))
    except (TypeError, ValueError) as error:
        # what xarray cannot do with any array it cannot do with ours
        with pytest.raises(type(error)):
            change(opened).virtual.load().load()
    else:
        assert_identical(change(opened), expected)


@pytest.mark.every
@pytest.mark.parametrize("name", SQUARE)
@looped("opener", OPENERS, quick=2)
def test_values_are_the_same_bits(name: str, opener: str, archive: Archive) -> None:
    opened = OPENERS[opener](archive, name).virtual.load()
    for variable, expected in archive.native(name).variables.items():
        if expected.dtype.kind not in "OUT":
            found = opened.variables[variable].values
            assert bits(found) == bits(expected.values)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("name", SQUARE)
@looped("opener", ["source", "virtual"])
def test_variables_come_in_the_order_of_the_native_engine(
    name: str, opener: str, archive: Archive
) -> None:
    opened = OPENERS[opener](archive, name)
    expected = archive.native(name)
    assert list(opened.variables) == list(expected.variables)
    assert list(opened.attrs) == list(expected.attrs)
    for variable in expected.variables:
        assert list(opened[variable].attrs) == list(expected[variable].attrs)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("name", SQUARE)
@looped("opener", OPENERS)
def test_attributes_have_the_types_of_the_native_engine(
    name: str, opener: str, archive: Archive
) -> None:
    opened = OPENERS[opener](archive, name)
    expected = archive.native(name)
    owners = [(opened.attrs, expected.attrs)]
    owners += [(opened[v].attrs, expected[v].attrs) for v in expected.variables]
    for found, wanted in owners:
        assert {n: _kind(v) for n, v in found.items()} == {n: _kind(v) for n, v in wanted.items()}


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.engine == "netcdf4"])
@looped("opener", ["source", "virtual"])
def test_encoding_is_that_of_the_native_engine(name: str, opener: str, archive: Archive) -> None:
    opened = OPENERS[opener](archive, name)
    expected = archive.native(name)
    assert opened.encoding["unlimited_dims"] == expected.encoding["unlimited_dims"]
    for variable in expected.variables:
        found, wanted = dict(opened[variable].encoding), expected[variable].encoding
        if not wanted.get("chunksizes"):
            # what lies in several pieces may be read in several blocks, which only we know
            found.pop("preferred_chunks", None)
        assert {n: _spelled(v) for n, v in found.items()} == {
            n: _spelled(v) for n, v in wanted.items()
        }


def _kind(value: Any) -> Any:
    return type(value), getattr(value, "dtype", None), np.shape(value)


def _spelled(value: Any) -> Any:
    """Spell an encoding so that NaN equals NaN and arrays compare, types included."""
    if isinstance(value, dict):
        # `preferred_chunks` also knows blocks of far chunks
        value = dict(value)
    if isinstance(value, np.dtype) and value.names:
        return value.names, [value[name] for name in value.names]
    if isinstance(value, np.dtype) and value.metadata and "enum" in value.metadata:
        # the name of an enum type is the netCDF library's guess
        return value, value.metadata["enum"]
    return type(value), getattr(value, "dtype", None), repr(value)


# ---------------------------------------------------------------------- ways to write with xarray

XARRAY_WRITERS: dict[str, Callable[[xr.Dataset, Path], xr.Dataset]] = {}
"""How xarray writes a dataset, and what it reads back."""


def _netcdf(engine: Any) -> Callable[[xr.Dataset, Path], xr.Dataset]:
    def write(dataset: xr.Dataset, path: Path) -> xr.Dataset:
        dataset.to_netcdf(path, engine=engine)
        return xr.load_dataset(path, engine=engine)

    return write


def _zarr(version: Any) -> Callable[[xr.Dataset, Path], xr.Dataset]:
    def write(dataset: xr.Dataset, path: Path) -> xr.Dataset:
        dataset.to_zarr(path, zarr_format=version)
        return xr.load_dataset(path, engine="zarr")

    return write


XARRAY_WRITERS |= {engine: _netcdf(engine) for engine in ("netcdf4", "h5netcdf")}
XARRAY_WRITERS |= {f"zarr{version}": _zarr(version) for version in (2, 3)}

SET_OPENERS: dict[str, Callable[[Path], xr.Dataset]] = {
    "lazy": lambda target: xr.open_dataset(target, engine="virtual"),
    "virtual": virtualds.open_virtual_dataset,
}

WRITTEN = (
    "unlimited_of_different_lengths", "chunked_and_filtered", "strings_of_varying_length",
    "character_arrays", "time_in_days", "packed_bytes", "booleans", "scalars",
    "partly_written", "string_coordinate",
)  # fmt: skip
"""Cases that have each kind of variable that xarray encodes in its own way."""


@pytest.mark.filterwarnings("ignore:String dimension length mismatch:UserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("name", WRITTEN)
def test_xarray_writes_every_set_as_it_writes_the_file(
    name: str, archive: Archive, tmp_path: Path
) -> None:
    native = SQUARE[name].native(archive.path(name))
    wanted = {way: write(native, tmp_path / way) for way, write in XARRAY_WRITERS.items()}
    for turn, suffix in enumerate((".zarr", ".json", ".parquet")):
        target = references(archive, name, suffix)
        for number, (kind, opener) in enumerate(SET_OPENERS.items(), turn):
            # one of netCDF and one of Zarr: both openers meet all four
            for way, write in list(XARRAY_WRITERS.items())[number % 2 :: 2]:
                got = write(opener(target), tmp_path / f"{kind}{suffix}.{way}")
                assert_identical(got, wanted[way])
            if native.sizes:
                assert opener(target).to_dataframe().equals(native.to_dataframe())
