"""zarr-python, and the zarr engine of xarray, read everything that virtualds opens."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import xarray as xr
from archives import KINDS, Archives
from cases import CASES, Archive
from products import looped
from programs import run_code
from transforms import TRANSFORMS, without_gaps
from virtual_arrays import counted_reads

import virtualds
from virtualds import ManifestArray, ManifestGroup, ManifestVariable, ReadError, UnsupportedError
from virtualds.arrays.group import Data
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.zarr_adapter import StoreOrigin, VirtualStore
from virtualds.formats.zarr_export import _iterate_decoded_grids
from virtualds.stores import STORES
from virtualds.stores.local import LocalStore

zarr = pytest.importorskip("zarr", minversion="3.0", reason="the store is one of zarr-python 3")
from zarr.abc.store import (  # noqa: E402
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)
from zarr.core.buffer import default_buffer_prototype  # noqa: E402

pytestmark = [
    # xarray warns of the same values whoever reads them
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully"),
    # zarr-python warns of what Zarr has not settled yet, whatever the store
    pytest.mark.filterwarnings("ignore:.*Zarr V3 specification.*"),
    pytest.mark.filterwarnings("ignore:.*Zarr version 3 specification.*"),
]

# ---------------------------------------------------------------------- the square

SUFFIXES = ("source", ".json", ".parquet", ".zarr")

# JSON has one kind of number, so xarray unpacks to 64 bits what a scale of 32 bits packed.
WIDER = {"big_endian", "larger_than_small"}
WIDER |= {"packed_bytes", "packed_int16", "packed_int32_and_floats"}
# Nor has it infinities.
ATTRIBUTES_DIFFER = {"attributes"}
# Members that are arrays: Zarr has no such data type.
REFUSED = {"compound_types_within_others"}


def opened(archive: Archive, name: str, suffix: str) -> VirtualStore:
    path, group = archive.path(name), CASES[name].group
    if suffix == "source":
        return virtualds.zarr_store(path, group=group)
    target = path.with_name(f"{path.stem}-store{suffix}")
    if not target.exists():
        try:
            vds = virtualds.open_virtual_dataset(path, group=group, loadable_variables=[])
            vds.virtual.to_manifest(target)
        except UnsupportedError:
            vds = virtualds.open_virtual_dataset(path, group=group)
            vds.virtual.load().virtual.to_manifest(target, mode="w")
    return virtualds.zarr_store(target)


def compare(found: xr.Dataset, expected: xr.Dataset, name: str = "") -> None:
    found, expected = without_gaps(found.load()), without_gaps(expected.load())
    if name in WIDER:
        xr.testing.assert_allclose(found, expected, rtol=1e-6)
    elif name in ATTRIBUTES_DIFFER:
        xr.testing.assert_equal(found, expected)
    else:
        xr.testing.assert_identical(found, expected)
        for variable, values in expected.variables.items():
            if values.dtype.kind in "biufcmM":
                assert found[variable].dtype == values.dtype, variable


@pytest.mark.sampled(6)
@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
@looped("suffix", SUFFIXES)
def test_xarray_makes_of_the_store_what_it_makes_of_the_file(
    name: str, suffix: str, archive: Archive
) -> None:
    store = opened(archive, name, suffix)
    compare(xr.open_zarr(store, chunks=None), archive.native(name), name)


def assert_holds_what_is_stored(root: zarr.Group, path: Path, group: str | None) -> None:
    """A hierarchy of zarr-python has every array of a file as it is stored, to the bit."""
    for below, part in open_group(Location.of(path), OpenOptions(group)).walk():
        for variable, stored in part.variables.items():
            expected = stored.read()
            found = np.asarray(root[f"{below}/{variable}".strip("/")][...])
            if expected.dtype.kind in "OUT":
                assert found.tolist() == expected.tolist()
            else:
                same = found.astype(expected.dtype.newbyteorder("=")).tobytes()
                assert same == expected.astype(expected.dtype.newbyteorder("=")).tobytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_zarr_reads_every_array_as_it_is_stored(name: str, archive: Archive) -> None:
    path, group = archive.path(name), CASES[name].group
    root = zarr.open_group(virtualds.zarr_store(path, group=group), mode="r")
    assert_holds_what_is_stored(root, path, group)


# What the reference set itself does not hold as the archive has it.
SETS_DIFFER = {"unsigned_bytes_next_to_signed_ones", "a_variable_that_some_files_lack"}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in SETS_DIFFER])
@looped("transform", ["identity", "isel_slice", "isel_positions", "concat"])
def test_archives_that_zarr_cannot_describe_are_decoded(
    name: str, transform: str, archives: Archives
) -> None:
    target = archives.folder / f"{name}.zarr"
    if not target.exists():
        parts = [virtualds.open_virtual_dataset(p) for p in archives.files(name)]
        KINDS[name].combine(parts).virtual.to_manifest(target)
    change = TRANSFORMS[transform]
    found = xr.open_zarr(virtualds.zarr_store(target), chunks=None)
    xr.testing.assert_identical(change(found.load()), change(archives.native(name).load()))


# ---------------------------------------------------------------------- forms for other readers

FORMS: dict[str, dict[str, Any]] = {
    "decoded": {"decode": True},
    "decoded, v2": {"decode": True, "zarr_format": 2},
    "for any reader": {"readers": "any"},
    "for any reader, v2": {"readers": "any", "zarr_format": 2},
    "decoded for any reader": {"decode": True, "readers": "any"},
    "v2": {"zarr_format": 2},
}
"""Arguments of `zarr_store` that choose another form than that for zarr-python."""


def check_form(store: VirtualStore, decode: bool, readers: str, zarr_format: int) -> None:
    """Check that metadata promise what was asked for."""
    for key in listed(store.list()):
        document = json.loads(get(store, key) or b"") if key.endswith((".json", ".zarray")) else {}
        if document.get("node_type") == "array":
            assert zarr_format == 3
            names = {codec["name"] for codec in document["codecs"]}
            if decode or readers == "any":
                assert document["chunk_grid"]["name"] == "regular"
                assert names <= {"bytes", "transpose", "vlen-utf8", "gzip", "zstd", "blosc"}
            if decode:
                assert names <= {"bytes", "vlen-utf8"} | ({"zstd"} if readers == "any" else set())
        elif key.endswith(".zarray"):
            assert zarr_format == 2
            steps = [*(document["filters"] or ()), document["compressor"]]
            ids = {step["id"] for step in steps if step is not None}
            if decode:
                assert ids <= {"vlen-utf8"} | ({"zstd"} if readers == "any" else set())
            if readers == "any":
                assert ids <= {"zlib", "gzip", "zstd", "blosc", "shuffle", "vlen-utf8"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
@looped("form", FORMS)
def test_every_form_has_the_values_of_the_file(name: str, form: str, archive: Archive) -> None:
    path, group = archive.path(name), CASES[name].group
    asked = {"decode": False, "readers": "zarr-python", "zarr_format": 3, **FORMS[form]}
    store = virtualds.zarr_store(path, group=group, **asked)
    check_form(store, **asked)
    if asked["decode"]:
        assert set(store.decoded) == set(dict(store._view.arrays))
    root = zarr.open_group(store, mode="r")
    assert_holds_what_is_stored(root, path, group)


@pytest.mark.sampled(6)
@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
@looped("form", FORMS)
def test_xarray_makes_of_every_form_what_it_makes_of_the_file(
    name: str, form: str, archive: Archive
) -> None:
    if name == "compound_types" and form == "v2":
        pytest.skip("xarray reads no big-endian compound types in Zarr v2")
    store = virtualds.zarr_store(archive.path(name), group=CASES[name].group, **FORMS[form])
    compare(xr.open_zarr(store, chunks=None), archive.native(name), name)


def test_forms_differ_and_are_kept_in_pickles(archive: Archive) -> None:
    path = archive.path(next(iter(CASES)))
    stores = [virtualds.zarr_store(path, **how) for how in ({}, *FORMS.values())]
    assert len(set(stores)) == len(stores)
    for store in stores:
        again = pickle.loads(pickle.dumps(store))
        assert again == store
        assert listed(again.list()) == listed(store.list())


UNKNOWN = [({"zarr_format": 4}, "zarr_format=4: give 3"), ({"readers": "x"}, "readers='x': give")]


@looped("wrong, message", UNKNOWN)
def test_an_unknown_form_is_refused(wrong: dict[str, Any], message: str, archive: Archive) -> None:
    with pytest.raises(ValueError, match=message):
        virtualds.zarr_store(archive.path(next(iter(CASES))), **wrong)


def write_zarr(path: Path, zarr_format: int, values: np.ndarray[Any, Any], **how: Any) -> Path:
    """Write ``v``, two rows to a chunk; zarr-python leaves out chunks of fill."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    chunks = (2, *values.shape[1:])
    names = [f"d{i}" for i in range(values.ndim)]
    if zarr_format == 3:
        how["dimension_names"] = names
    array = group.create_array("v", shape=values.shape, dtype=values.dtype, chunks=chunks, **how)
    if zarr_format == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = names
    array[...] = values
    return path


LARGE = 2**60 + 1
FILLS = {
    "large": (3, "i8", LARGE, (False, False)),
    "unsigned": (3, "u8", 2**64 - 2, (False, False)),
    "an exact double": (3, "i8", 2**60, (True, False)),
    "null of 64 bits": (3, "i8", 0, (True, False)),
    "null of 32 bits": (3, "i4", 0, (True, True)),
    "large in both": (2, "i8", LARGE, (False, False)),
    "exact in both": (2, "i8", -(2**63), (True, True)),
    "NaN": (2, "f4", np.nan, (True, True)),
    "text": (2, "S2", b"xy", (True, False)),
}
"""The version of the source, a type, its fill value, and whether a missing chunk stays missing in
Zarr v3 and in v2, since all readers fill it alike.

A fill value of Zarr v3 that is not zero is none of v2, so that such chunks are written out.
"""


@looped("name", FILLS)
def test_missing_chunks_are_served_if_a_reader_would_fill_them_otherwise(
    name: str, tmp_path: Path
) -> None:
    source, dtype, fill, stays = FILLS[name]
    values = np.zeros(4, dtype)
    values[:2], values[2:] = [1, 2], fill
    path = write_zarr(tmp_path / name, source, values, fill_value=fill, compressors=None)
    for zarr_format, key, is_missing in zip((3, 2), ("v/c/1", "v/1"), stays, strict=True):
        store = virtualds.zarr_store(path, readers="any", zarr_format=zarr_format)
        assert (get(store, key) is None) == is_missing, zarr_format
        found = np.asarray(zarr.open_group(store, mode="r")["v"][...])
        assert found.tobytes() == values.tobytes()


def test_bits_of_a_nan_that_json_has_as_text_are_served(tmp_path: Path) -> None:
    odd = np.frombuffer(b"\1\0\xc0\x7f", "<f4")[0]
    for number, fill in enumerate((odd, np.float32(np.nan))):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("v", (4,), "<f4", chunks=(2,), fillvalue=fill)[:2] = [1, 2]
        store = virtualds.zarr_store(path, readers="any")
        assert (get(store, "v/c/1") is None) == (number == 1)
        found = np.asarray(zarr.open_group(store, mode="r")["v"][2:])
        assert found.tobytes() == 2 * fill.tobytes()


def test_of_many_chunks_nobody_counts_which_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(1, 5)
    path = write_zarr(tmp_path / "a.zarr", 3, values, fill_value=LARGE, compressors=None)
    assert virtualds.zarr_store(path, readers="any").decoded == ()
    monkeypatch.setattr("virtualds.formats.zarr_export.CHUNKS_PER_STEP", 1)
    assert virtualds.zarr_store(path, readers="any").decoded == ("v",)


def test_orders_that_gdal_takes_for_others_are_decoded(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4, dtype="i2").reshape(2, 3, 4)
    for order in itertools.permutations(range(3)):
        filters = [zarr.codecs.TransposeCodec(order=order)]
        path = write_zarr(tmp_path / f"{order}.zarr", 3, values, filters=filters)
        store = virtualds.zarr_store(path, readers="any")
        assert store.decoded == (("v",) if order in {(1, 2, 0), (2, 0, 1)} else ())
        np.testing.assert_array_equal(zarr.open_group(store, mode="r")["v"][...], values)


@pytest.mark.parametrize("size", [4, 8])
def test_a_shuffle_of_parts_of_elements_is_decoded(size: int, tmp_path: Path) -> None:
    filters = [numcodecs.Shuffle(size)]
    path = write_zarr(tmp_path / "a.zarr", 2, np.arange(4.0), filters=filters)
    store = virtualds.zarr_store(path, readers="any", zarr_format=2)
    assert store.decoded == (() if size == 8 else ("v",))
    assert zarr.open_group(store, mode="r")["v"][...].tolist() == [0, 1, 2, 3]


def test_text_of_a_fixed_length_is_known_to_more_readers_as_any_text(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", 3, np.array(["ö", "日本語", "", ""]))
    expected = virtualds.open_virtual_dataset(path).load()
    for zarr_format, key, kind in ((3, "v/zarr.json", "string"), (2, "v/.zarray", "<U3")):
        store = virtualds.zarr_store(path, readers="any", zarr_format=zarr_format)
        said = json.loads(get(store, key) or b"")
        assert said.get("data_type", said.get("dtype")) == kind
        xr.testing.assert_identical(xr.open_zarr(store, chunks=None).load(), expected)


def test_options_of_zstd_that_tensorstore_refuses_are_left_out(tmp_path: Path) -> None:
    how = {"compressors": zarr.codecs.ZstdCodec(level=3, checksum=True)}
    path = write_zarr(tmp_path / "a.zarr", 3, np.arange(4.0), **how)
    store = virtualds.zarr_store(path, readers="any", zarr_format=2)
    said = json.loads(get(store, "v/.zarray") or b"")
    assert store.decoded == () and said["compressor"] == {"id": "zstd", "level": 3}


ODD_NAMES = ("a#b", "a?b", "a%20b", "a\\b", "a\nb")
USUAL_NAMES = ("a b", "ö", "100%", "x+y", "a&b=c;d", "[x]", "a%2g")


@looped("name, is_odd", [*((n, True) for n in ODD_NAMES), *((n, False) for n in USUAL_NAMES)])
def test_a_name_that_readers_misread_in_urls_is_refused(
    name: str, is_odd: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file[f"group/{name}/v"] = np.arange(3)
    assert virtualds.zarr_store(path, group="group").problems == {}
    for zarr_format in (3, 2):
        store = virtualds.zarr_store(path, readers="any", zarr_format=zarr_format)
        assert list(store.problems) == ([f"group/{name}/v"] if is_odd else [])
        if is_odd:
            with pytest.raises(UnsupportedError, match="which readers do not encode in urls"):
                get(store, f"group/{name}/v/{'zarr.json' if zarr_format == 3 else '.zarray'}")


UNITS = ("D", "h", "m", "s", "ms", "us", "ns")


@looped("kind, unit", itertools.product("Mm", UNITS))
def test_times_of_numpy_are_numbers_with_units(kind: str, unit: str, tmp_path: Path) -> None:
    values = np.array([1, 5, "NaT", -3], f"{kind}8[{unit}]")
    path = write_zarr(tmp_path / f"{kind}{unit}.zarr", 3, values)
    expected = virtualds.open_virtual_dataset(path).load()
    for zarr_format in (3, 2):
        store = virtualds.zarr_store(path, readers="any", zarr_format=zarr_format)
        stored = zarr.open_group(store, mode="r")["v"]
        assert stored.dtype == "i8" and stored[...].tolist() == values.view("i8").tolist()
        xr.testing.assert_identical(xr.open_zarr(store, chunks=None).load(), expected)


def test_times_that_cf_has_no_unit_for_stay_those_of_numpy(tmp_path: Path) -> None:
    values = np.array([1, 5, "NaT", -3], "M8[10us]")
    path = write_zarr(tmp_path / "a.zarr", 3, values)
    store = virtualds.zarr_store(path, readers="any")
    assert zarr.open_group(store, mode="r")["v"].dtype == values.dtype
    path = write_zarr(tmp_path / "b.zarr", 3, values.astype("M8[s]"), attributes={"units": "s"})
    store = virtualds.zarr_store(path, readers="any")
    assert zarr.open_group(store, mode="r")["v"].dtype == "M8[s]"


# ---------------------------------------------------------------------- arrays of all forms


def store_of(data: Data, name: str = "v", **more: Data) -> VirtualStore:
    arrays = {name: data, **more}
    variables = {
        key: ManifestVariable(tuple(f"{key}{i}" for i in range(d.ndim)), d)
        for key, d in arrays.items()
    }
    return VirtualStore(ManifestGroup(variables), StoreOrigin(f"memory://{name}"))


def array_in(
    path: Path, checksums: bool = False, months: tuple[int, ...] = (4, 4)
) -> ManifestArray:
    """Chunks of a file one after the other, joined along the first axis."""
    values = np.arange(3 * sum(months), dtype="<i2").reshape(-1, 3)
    path.write_bytes(values.tobytes())
    begin, parts = 0, []
    for length in months:
        chunk = values[begin : begin + length].tobytes()
        parts.append(
            ManifestArray.from_arrays(
                shape=(length, 3),
                chunks=(length, 3),
                dtype="<i2",
                path=path.as_uri(),
                offsets=begin * 6,
                lengths=length * 6,
                checksums=zlib.crc32(chunk) if checksums else None,
            )
        )
        begin += length
    joined: ManifestArray = np.concatenate(parts)
    return joined


def get(store: VirtualStore, key: str, request: Any = None) -> bytes | None:
    data = asyncio.run(store.get(key, default_buffer_prototype(), request))
    return None if data is None else data.to_bytes()


def listed(names: Any) -> list[str]:
    async def collect() -> list[str]:
        return [name async for name in names]

    return asyncio.run(collect())


def test_a_chunk_costs_one_request_for_its_range(tmp_path: Path) -> None:
    store = store_of(array_in(tmp_path / "a"))
    assert store.decoded == ()
    array = zarr.open_group(store, mode="r")["v"]
    with counted_reads() as counted:
        assert array[4:6].tolist() == [[12, 13, 14], [15, 16, 17]]
    assert counted.ranges == [(24, 24)]


REQUESTS = {
    "whole": (None, slice(None)),
    "range": (RangeByteRequest(3, 11), slice(3, 11)),
    "range beyond the end": (RangeByteRequest(20, 90), slice(20, None)),
    "offset": (OffsetByteRequest(5), slice(5, None)),
    "suffix": (SuffixByteRequest(4), slice(-4, None)),
    "longer suffix": (SuffixByteRequest(90), slice(None)),
    "no suffix": (SuffixByteRequest(0), slice(0, 0)),
}


@looped("request_", REQUESTS)
@looped("form", ["referenced", "checked", "inline", "decoded", "values"])
def test_parts_of_chunks(form: str, request_: str, tmp_path: Path) -> None:
    array = array_in(tmp_path / "a", checksums=form == "checked")
    values = array.read()[:4]
    data: Data = array
    if form == "inline":
        data = ManifestArray.from_values(values)
    elif form == "decoded":
        data = array[:, 1:]
        values = data.read()[:4]
    elif form == "values":
        data = values
    asked, expected = REQUESTS[request_]
    store = store_of(data)
    assert (store.decoded == ("v",)) == (form in ("decoded", "values"))
    assert get(store, "v/c/0/0", asked) == values.tobytes()[expected]


def test_only_the_requested_part_of_a_chunk_is_fetched(tmp_path: Path) -> None:
    store = store_of(array_in(tmp_path / "a"))
    with counted_reads() as counted:
        get(store, "v/c/1/0", RangeByteRequest(2, 5))
    assert counted.ranges == [(26, 3)]


@pytest.mark.parametrize("byte_range", [(0, 2), [0, 2], 3, slice(0, 2)])
def test_other_byte_requests_are_refused(byte_range: Any, tmp_path: Path) -> None:
    # not taken for a request for all bytes
    with pytest.raises(TypeError, match="RangeByteRequest"):
        get(store_of(array_in(tmp_path / "a")), "v/c/1/0", byte_range)


def test_several_keys_at_once(tmp_path: Path) -> None:
    store = store_of(array_in(tmp_path / "a"))
    asked = [("v/c/0/0", RangeByteRequest(0, 2)), ("v/c/9/0", None)]
    found = asyncio.run(store.get_partial_values(default_buffer_prototype(), asked))
    assert [f and f.to_bytes() for f in found] == [b"\0\0", None]


MONTHS = (31, 28, 31, 30)


def test_months_are_read_whatever_grids_zarr_knows(tmp_path: Path) -> None:
    array = array_in(tmp_path / "a", months=MONTHS)
    store = store_of(array)
    assert store.decoded == ("v",)
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["v"][...], array.read())


def test_months_are_passed_on_to_a_zarr_that_reads_them(tmp_path: Path) -> None:
    if zarr.config.get("array.rectilinear_chunks", None) is None:
        pytest.skip("this zarr-python knows regular grids only")
    array = array_in(tmp_path / "a", months=MONTHS)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        store = store_of(array)
        assert store.decoded == ()
        np.testing.assert_array_equal(zarr.open_group(store, mode="r")["v"][31:59], array[31:59])


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "", "grüße"], object),
        np.array(["ab", "c"]),
        np.array(7.5),
        np.zeros((0, 3), "f4"),
        np.array([b"ab", b"c"]),
        np.array([True, False]),
        np.array(["2001-01-01", "NaT"], "M8[s]"),
    ],
    ids=lambda v: f"{v.dtype.kind}{v.shape}",
)
def test_values_in_memory_are_chunks_too(values: np.ndarray[Any, Any]) -> None:
    found = zarr.open_group(store_of(values), mode="r")["v"][...]
    assert np.asarray(found).tolist() == values.tolist()


def test_large_values_are_cut_along_their_first_axis() -> None:
    values = np.arange(5 * 2**20, dtype="f8").reshape(5, -1)
    array = zarr.open_group(store_of(values), mode="r")["v"]
    assert array.chunks == (2, 2**20)
    np.testing.assert_array_equal(array[...], values)


def test_a_huge_chunk_that_is_not_compressed_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
        file.seek(60 * 2**20)
        file.write(b"\1\0\2\0")
    array = ManifestArray.from_arrays(
        shape=(100, 2**19),
        chunks=(100, 2**19),
        dtype="<i2",
        path=path.as_uri(),
        offsets=0,
        lengths=100 * 2**20,
    )
    served = zarr.open_group(store_of(array), mode="r")["v"]
    assert served.chunks == (16, 2**19)
    with counted_reads() as counted:
        assert served[60, :3].tolist() == [1, 2, 0]
    assert counted.nbytes == 16 * 2**20


def test_shuffled_checksums_which_zarr_cannot_read_are_decoded(tmp_path: Path) -> None:
    """numcodecs shuffles whole elements; HDF5 leaves the bytes behind the last one as they are."""
    values = np.arange(96.0).reshape(2, 48)
    filters = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    filters.set_chunk((1, 48))
    filters.set_fletcher32()
    filters.set_shuffle()
    filters.set_deflate(4)
    with h5py.File(tmp_path / "a.nc", "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        written = h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_DOUBLE, space, filters)
        h5py.Dataset(written)[...] = values
    store = virtualds.zarr_store(tmp_path / "a.nc")
    assert store.decoded == ("v",)
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["v"][...], values)


class NotingStore(LocalStore):
    """Local files, and a note of every one that is read whole."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def read_all(self, url: str, options: Any) -> bytes:
        self.names.append(url.rpartition("/")[2])
        return super().read_all(url, options)


def test_references_stay_in_their_set_until_their_chunk_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "a", tmp_path / "refs.parquet"
    path.write_bytes(np.arange(100, dtype="<i4").tobytes())
    array = ManifestArray.from_arrays(
        shape=(100,),
        chunks=(1,),
        dtype="<i4",
        path=path.as_uri(),
        offsets=np.arange(100) * 4,
        lengths=4,
    )
    xr.Dataset({"v": ("x", array)}).virtual.to_manifest(target, record_size=10)
    noting = NotingStore()
    monkeypatch.setitem(STORES, "file", noting)
    served = zarr.open_group(virtualds.zarr_store(target), mode="r")["v"]
    assert set(noting.names) == {".zmetadata"}
    assert served[57] == 57
    assert noting.names[-1:] == ["refs.5.parq"]
    assert len([name for name in noting.names if name != ".zmetadata"]) == 1


# ---------------------------------------------------------------------- missing, unreachable, wrong


def test_a_missing_chunk_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\1\0\2\0")
    array = ManifestArray.from_arrays(
        shape=(4,),
        chunks=(2,),
        dtype="<i2",
        path=["", path.as_uri()],
        offsets=[0, 0],
        lengths=[4, 4],
        fill_value=-9,
    )
    store = store_of(array)
    assert zarr.open_group(store, mode="r")["v"][...].tolist() == [-9, -9, 1, 2]
    assert get(store, "v/c/0") is None
    assert not asyncio.run(store.exists("v/c/0"))
    assert listed(store.list()) == ["zarr.json", "v/zarr.json", "v/c/1"]


@pytest.mark.parametrize("decoded", [False, True])
def test_a_file_that_is_gone_is_an_error_and_never_fill(tmp_path: Path, decoded: bool) -> None:
    array = array_in(tmp_path / "a")
    store = store_of(array[:, 1:] if decoded else array)
    (tmp_path / "a").unlink()
    with pytest.raises(ReadError, match="restore the file") as caught:
        zarr.open_group(store, mode="r")["v"][...]
    assert any("v" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("decoded", [False, True])
def test_bytes_that_are_not_those_of_the_reference_are_an_error(
    tmp_path: Path, decoded: bool
) -> None:
    array = array_in(tmp_path / "a", checksums=True)
    store = store_of(array[:, 1:] if decoded else array)
    raw = bytearray((tmp_path / "a").read_bytes())
    raw[3] ^= 1
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(ReadError, match="CRC-32"):
        zarr.open_group(store, mode="r")["v"][...]
    if not decoded:
        with pytest.raises(ReadError, match="CRC-32"):
            get(store, "v/c/0/0", RangeByteRequest(0, 2))


def test_an_array_that_zarr_cannot_hold_is_an_error_that_names_it(tmp_path: Path) -> None:
    strange = np.zeros(2, np.dtype([("a", "i4", (3,))]))
    store = store_of(np.arange(3), strange=strange)
    with pytest.raises(UnsupportedError, match=r"(?s)variable strange.*drop_variables"):
        xr.open_zarr(store, chunks=None)
    root = zarr.open_group(store, mode="r")
    assert root["v"][...].tolist() == [0, 1, 2]
    with pytest.raises(UnsupportedError, match="strange"):
        root["strange"]
    assert "strange" in listed(store.list_dir(""))


def test_an_array_that_zarr_cannot_hold_can_be_left_out(archive: Archive) -> None:
    path = archive.path("compound_types_within_others")
    names = set(open_group(Location.of(path)).variables)
    store = virtualds.zarr_store(path, drop_variables=names)
    assert list(xr.open_zarr(store, chunks=None).variables) == []


# ---------------------------------------------------------------------- as a store


@pytest.fixture
def nested() -> VirtualStore:
    leaf = ManifestGroup({"t": ManifestVariable(("x",), np.arange(3.0), {"units": "K"})})
    middle = ManifestGroup(groups={"c": leaf}, attributes={"level": np.int16(2)})
    root = ManifestGroup({"n": ManifestVariable((), np.array(4))}, groups={"b": middle})
    return VirtualStore(root, StoreOrigin("memory://nested"))


def test_keys(nested: VirtualStore) -> None:
    keys = ["zarr.json", "b/zarr.json", "b/c/zarr.json", "n/zarr.json", "b/c/t/zarr.json"]
    assert listed(nested.list()) == [*keys, "n/c", "b/c/t/c/0"]
    assert listed(nested.list_prefix("b/c/t")) == ["b/c/t/zarr.json", "b/c/t/c/0"]
    assert listed(nested.list_dir("")) == ["zarr.json", "b", "n"]
    assert listed(nested.list_dir("b/")) == ["zarr.json", "c"]
    assert listed(nested.list_dir("b/c/t")) == ["zarr.json", "c"]
    assert listed(nested.list_dir("b/c/t/c")) == ["0"]
    assert asyncio.run(nested.getsize("b/c/t/c/0")) == 24
    assert asyncio.run(nested.is_empty("nowhere"))
    for key in listed(nested.list()):
        assert asyncio.run(nested.exists(key))
        assert len(get(nested, key) or b"") == asyncio.run(nested.getsize(key))


@pytest.mark.parametrize(
    "key", ["", "x", "n/c/0", "b/c/t/c", "b/c/t/c/1", "b/c/t/c/00", "b/c/t/c/-1", "b/c/t/c/0/0"]
)
def test_a_key_that_stands_for_nothing(nested: VirtualStore, key: str) -> None:
    assert get(nested, key) is None
    assert not asyncio.run(nested.exists(key))
    with pytest.raises(FileNotFoundError):
        asyncio.run(nested.getsize(key))


def test_metadata_are_consolidated_in_every_group(nested: VirtualStore) -> None:
    for path, below in {"": {"b", "b/c", "n", "b/c/t"}, "b/": {"c", "c/t"}}.items():
        found = json.loads(get(nested, f"{path}zarr.json") or b"")
        assert set(found["consolidated_metadata"]["metadata"]) == below
    tree = xr.open_datatree(nested, engine="zarr", chunks=None)
    assert tree["b/c/t"].values.tolist() == [0, 1, 2]
    assert xr.open_zarr(nested, group="b", chunks=None).attrs == {"level": 2}


def test_nothing_can_be_written(nested: VirtualStore) -> None:
    assert nested.read_only and not nested.supports_writes and not nested.supports_deletes
    with pytest.raises(ValueError, match=r"read.only"):
        zarr.open_group(nested, mode="a")
    with pytest.raises(UnsupportedError, match="does not support writing"):
        nested.with_read_only(False)
    assert nested.with_read_only(True) == nested


def test_writes_raise_what_stores_of_zarr_python_raise(
    nested: VirtualStore, tmp_path: Path
) -> None:
    some = default_buffer_prototype().buffer.from_bytes(b"{}")
    local = zarr.storage.LocalStore(tmp_path, read_only=True)
    writes: tuple[Callable[[Any], Any], ...] = (
        lambda store: store.set("zarr.json", some),
        lambda store: store.set("n/c/0", some),
        lambda store: store.delete("zarr.json"),
        lambda store: store.delete_dir("b"),
        lambda store: store.clear(),
        lambda store: store.set_if_not_exists("new", some),
    )
    for write in writes:
        for store in (nested, local):
            with pytest.raises(ValueError, match="opened in read-only mode and does not support"):
                asyncio.run(write(store))


@pytest.mark.parametrize("dtype", ["V2", [("a", "<i4"), ("b", "<f8")]], ids=str)
@pytest.mark.parametrize("filled", [False, True])
def test_raw_bytes_and_compound_types_of_zarr_v2_are_shown_and_written(
    dtype: Any, filled: bool, tmp_path: Path
) -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(5 * np.dtype(dtype).itemsize), dtype)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    fill = values[4] if filled else None
    array = group.create_array("v", shape=(7,), chunks=(2,), dtype=values.dtype, fill_value=fill)
    array[:4], array.attrs["_ARRAY_DIMENSIONS"] = values[:4], ["x"]
    expected = array[:].tobytes()
    found = virtualds.open_virtual_dataset(tmp_path / "a.zarr")
    assert found["v"].values.tobytes() == expected and found["v"].dtype == values.dtype
    store = virtualds.zarr_store(tmp_path / "a.zarr")
    assert np.asarray(zarr.open_array(store, path="v", mode="r")[:]).tobytes() == expected
    assert xr.open_zarr(store, chunks=None)["v"].values.tobytes() == expected
    for name in ("b.zarr", "b.json", "b.parquet"):
        found.virtual.to_manifest(tmp_path / name)
        again = xr.open_dataset(tmp_path / name, engine="virtual")
        assert again["v"].values.tobytes() == expected


def test_stores_of_one_origin_are_equal(archive: Archive) -> None:
    path = archive.path("contiguous")
    assert virtualds.zarr_store(path) == virtualds.zarr_store(path)
    assert virtualds.zarr_store(path) != virtualds.zarr_store(archive.path("padded_chunks"))
    assert hash(virtualds.zarr_store(path)) == hash(virtualds.zarr_store(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_store_can_be_pickled(suffix: str, archive: Archive) -> None:
    store = opened(archive, "padded_chunks", suffix)
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    xr.testing.assert_identical(
        xr.open_zarr(copy, chunks=None).load(), xr.open_zarr(store, chunks=None).load()
    )


@pytest.mark.full
def test_workers_in_other_processes_read_the_store(archive: Archive) -> None:
    import dask

    store = opened(archive, "padded_chunks", ".parquet")
    with dask.config.set(scheduler="processes", num_workers=2):
        found = xr.open_zarr(store).compute()
    xr.testing.assert_identical(found, archive.native("padded_chunks"))


def test_dask_distinguishes_stores_by_content(tmp_path: Path) -> None:
    from dask.base import tokenize

    one, same, other = (store_of(np.arange(3) + n) for n in (0, 0, 1))
    assert tokenize(one) == tokenize(same) != tokenize(other)


def test_an_earlier_snapshot(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    for number in (1, 2):
        xr.Dataset({"v": ("x", [number])}).virtual.to_manifest(target, mode="w")
    notes = json.loads((target / "zarr.json").read_text())["attributes"]["virtualds"]
    [[earlier, _]] = notes["history"]
    assert zarr.open_group(virtualds.zarr_store(target), mode="r")["v"][0] == 2
    store = virtualds.zarr_store(target, snapshot=earlier)
    assert zarr.open_group(store, mode="r")["v"][0] == 1
    assert store != virtualds.zarr_store(target)


def test_a_source_has_no_snapshots(archive: Archive) -> None:
    with pytest.raises(virtualds.UnsupportedError, match="hdf5 has no snapshots"):
        virtualds.zarr_store(archive.path("contiguous"), snapshot="x")


def test_a_set_may_name_allowed_files_only(archive: Archive, tmp_path: Path) -> None:
    target = archive.path("contiguous").with_suffix(".store.json")
    virtualds.open_virtual_dataset(
        archive.path("contiguous"), loadable_variables=[]
    ).virtual.to_manifest(target)
    with pytest.raises(virtualds.AccessError):
        zarr.open_group(virtualds.zarr_store(target, allow=tmp_path), mode="r")["v"][...]


def test_zarr_is_optional(monkeypatch: pytest.MonkeyPatch, archive: Archive) -> None:
    monkeypatch.delitem(sys.modules, "virtualds.datasets.zarr_adapter")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(UnsupportedError, match=r"pip install --upgrade zarr$"):
        virtualds.zarr_store(archive.path("contiguous"))


def test_importing_virtualds_does_not_import_zarr() -> None:
    code = "import virtualds, sys; print('zarr' in sys.modules)"
    done = run_code(code, check=True)
    assert done.stdout.strip() == "False"


def test_the_grid_of_months_comes_before_a_regular_one(tmp_path: Path) -> None:
    found = list(_iterate_decoded_grids(array_in(tmp_path / "a", months=MONTHS)))
    assert [grid["name"] for grid in found] == ["rectilinear", "regular"]
