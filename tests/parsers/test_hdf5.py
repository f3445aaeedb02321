"""HDF5 files: what netCDF4-python and h5py say of them, and what is refused by name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive, low_level, numbers
from products import looped
from programs import run_code
from range_server import range_server
from transforms import bits

import virtualds
from virtualds import AccessError, FormatError, ManifestArray, ReadError, UnsupportedError
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.parsers import hdf5
from virtualds.parsers.hdf5.structure.file_bytes import SIGNATURE

HDF5 = [name for name, case in CASES.items() if case.source == "hdf5"]
NETCDF = [name for name in HDF5 if CASES[name].engine == "netcdf4"]


def virtual(path: Path, **options: Any) -> xr.Dataset:
    """Everything virtual and as stored."""
    return virtualds.open_virtual_dataset(path, loadable_variables=[], decode_cf=False, **options)


def parsed(path: Path, group: str | None = None) -> ManifestGroup:
    return open_group(Location.of(path), OpenOptions(group, parser="hdf5"))


# ---------------------------------------------------------------------- every chunk of every case


@looped("name", HDF5, quick=len(HDF5) // 3)
def test_every_variable_reads_as_h5py_reads_it(name: str, archive: Archive) -> None:
    path, where = archive.path(name), CASES[name].group or "/"
    group = parsed(path, CASES[name].group)
    with h5py.File(path) as file:
        for variable, found in group.variables.items():
            dataset = file[where].get(f"_nc4_non_coord_{variable}") or file[where][variable]
            if h5py.check_string_dtype(dataset.dtype) and dataset.dtype.hasobject:
                assert found.data.ravel().tolist() == list(np.ravel(dataset.asstr()[()]))
                continue
            # along an unlimited dimension a shorter dataset reads as fill
            box = tuple(slice(0, n) for n in dataset.shape)
            values = np.asarray(dataset[()])
            native = values.dtype.newbyteorder("=")
            assert found.data.dtype.newbyteorder("=") == (native if native.kind != "b" else "i1")
            read = found.read()[box] if isinstance(found.data, np.ndarray) else found.data.read(box)
            assert bits(read) == bits(values.astype(native).astype(found.data.dtype))


# HDF5's own lists of chunks (`H5Dget_chunk_info`, `H5Dchunk_iter`) are wrong for these
LISTED_WRONG = {
    "chunk_index_second_axis_unlimited",
    "chunk_index_second_axis_unlimited_filtered",
    "chunk_index_second_axis_unlimited_sparse",
    "chunk_index_middle_axis_unlimited",
    "chunk_index_last_axis_unlimited",
}


@looped("name", sorted(set(HDF5) - LISTED_WRONG))
def test_every_written_chunk_is_found(name: str, archive: Archive) -> None:
    path, where = archive.path(name), CASES[name].group or "/"
    group = parsed(path, CASES[name].group)
    with h5py.File(path) as file:
        for variable, found in group.variables.items():
            dataset = file[where].get(f"_nc4_non_coord_{variable}") or file[where][variable]
            if not isinstance(found.data, ManifestArray) or dataset.chunks is None:
                continue
            manifest = found.data.manifest
            stored = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
            assert int((manifest.file >= 0).sum()) == len(stored)
            for info in stored:
                place = zip(info.chunk_offset, dataset.chunks, strict=True)
                chunk = manifest.lookup(tuple(o // c for o, c in place))
                assert (chunk.offset, chunk.length) == (info.byte_offset, info.size)


# ---------------------------------------------------------------------- structure


@looped("name", NETCDF)
def test_dimensions_and_order_are_those_of_netcdf4(name: str, archive: Archive) -> None:
    path, where = archive.path(name), CASES[name].group
    group = parsed(path, where)
    with netCDF4.Dataset(path) as file:
        node = file[where.strip("/")] if where else file
        assert {n: v.dims for n, v in group.variables.items()} == {
            n: v.dimensions for n, v in node.variables.items()
        }
        assert list(group.variables) == list(node.variables)
        assert list(group.attributes) == node.ncattrs()
        assert list(group.groups) == list(node.groups)
        for variable, found in group.variables.items():
            kept = [*found.attributes, *found.encoding]
            assert set(node[variable].ncattrs()) <= set(kept)
        unlimited = {n for n, d in node.dimensions.items() if d.isunlimited()}
        assert group.encoding["unlimited_dims"] == unlimited


Fill = Callable[[h5py.File], None]


def _scale_and_loose(file: h5py.File) -> None:
    file["y"] = np.arange(3.0)
    file["y"].make_scale("y")
    file["v"] = np.zeros((3, 4))
    file["w"] = np.zeros(4)


def _growing(file: h5py.File) -> None:
    for name, most in (("u", (None, None)), ("v", (3, 3)), ("w", (None, 3))):
        file.create_dataset(name, (3, 3), "f4", maxshape=most, chunks=(1, 1))
    file.create_dataset("x", (5, 3), "f4", maxshape=(None, 3), chunks=(1, 1))


def _squares(file: h5py.File) -> None:
    file["v"] = np.zeros((3, 3, 3))
    file["w"] = np.zeros((3, 3))
    file["u"] = np.zeros((4, 3, 3, 4))


def _empty_axes(file: h5py.File) -> None:
    file["none"] = np.zeros((0, 3))
    file.create_dataset("growing", (0, 3), "i2", chunks=(2, 3), maxshape=(None, 3))
    file["some"] = np.zeros(3)


def _scale_of_the_group(file: h5py.File) -> None:
    group = file.create_group("g")
    group["v"] = np.zeros((3, 4))
    group["z"] = np.arange(4.0)
    group["z"].make_scale("z")
    group["w"] = np.zeros((4, 3))


ANONYMOUS: dict[str, tuple[Fill, str | None]] = {
    "beside a scale of that length": (_scale_and_loose, None),
    "that may grow": (_growing, None),
    "of one length several times": (_squares, None),
    "of no length": (_empty_axes, None),
    "in a group": (_scale_of_the_group, "g"),
}


@looped("track_order", [True, False])
@looped("which", ANONYMOUS)
def test_anonymous_dimensions_are_named_as_netcdf4_names_them(
    which: str, track_order: bool, tmp_path: Path
) -> None:
    fill, where = ANONYMOUS[which]
    with h5py.File(tmp_path / "a.h5", "w", track_order=track_order) as file:
        fill(file)
    group = parsed(tmp_path / "a.h5", where)
    with netCDF4.Dataset(tmp_path / "a.h5") as file:
        node = file[where] if where else file
        assert {n: v.dims for n, v in group.variables.items()} == {
            n: v.dimensions for n, v in node.variables.items()
        }
        unlimited = {n for n, d in node.dimensions.items() if d.isunlimited()}
        assert group.encoding["unlimited_dims"] == unlimited


def test_one_dimension_may_stand_twice_in_a_variable(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("y", 2)
        file.createVariable("covariance", "f4", ("y", "y"))[:] = [[1, 2], [3, 4]]
    variable = parsed(tmp_path / "a.nc").variables["covariance"]
    assert variable.dims == ("y", "y")
    assert np.asarray(variable.data).tolist() == [[1, 2], [3, 4]]


def test_dimensions_of_the_groups_above_are_known(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        file.createDimension("t", None)
        deep = file.createGroup("a/b/c")
        deep.createVariable("v", "f4", ("t", "x"))[:2] = 1
    assert parsed(tmp_path / "a.nc", "a/b/c").variables["v"].dims == ("t", "x")


@pytest.mark.parametrize("spelling", ["a/b", "/a/b", "a/b/", "/a/b/"])
def test_groups_may_be_spelled_as_in_xarray(spelling: str, archive: Archive) -> None:
    assert list(parsed(archive.path("groups_root"), spelling).variables) == ["w"]


@pytest.mark.parametrize("missing", ["c", "a/c", "v", "a/b/w"])
def test_a_missing_group_is_named(missing: str, archive: Archive) -> None:
    with pytest.raises(FileNotFoundError, match=f"no group '{missing}'"):
        virtual(archive.path("groups_root"), group=missing)


def test_group_must_be_a_string(archive: Archive) -> None:
    with pytest.raises(ValueError, match="group must be a string"):
        virtual(archive.path("groups_root"), group=3)


# ---------------------------------------------------------------------- fill values


def test_storage_fill_is_not_the_attribute(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        v = file.create_dataset("v", (4,), "f4", chunks=(2,), fillvalue=1.5)
        v.attrs["_FillValue"] = np.float32(-1)
        v[:2] = -1
    ds = virtualds.open_virtual_dataset(tmp_path / "a.h5", loadable_variables=[])
    assert ds["v"].data.pipelines[0].fill_value == 1.5
    assert ds["v"].encoding["_FillValue"] == -1
    np.testing.assert_array_equal(ds["v"].values, np.array([np.nan, np.nan, 1.5, 1.5], "f4"))


def test_storage_fill_goes_through_the_packing(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 4)
        v = file.createVariable("v", "i2", ("x",), chunksizes=(2,))
        v.scale_factor = np.float64(0.5)
        v.set_auto_maskandscale(False)
        v[:2] = [1, 2]
    ds = virtualds.open_virtual_dataset(tmp_path / "a.nc", loadable_variables=[])
    default = netCDF4.default_fillvals["i2"]
    assert ds["v"].values.tolist() == [0.5, 1.0, default / 2, default / 2]


# ---------------------------------------------------------------------- attributes


def test_attributes_of_h5py_are_those_of_netcdf4(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        attrs = file.attrs
        attrs["null"] = h5py.Empty("f4")
        attrs["null_text"] = h5py.Empty("S1")
        attrs["big_endian"] = np.array([1, 2], ">i4")
        attrs["one_string"] = np.array(["a"], dtype=h5py.string_dtype())
        attrs["no_utf8"] = np.bytes_(b"caf\xe9")
        attrs["padded"] = np.bytes_(b"ab\0\0")
    found = parsed(tmp_path / "a.h5").attributes
    assert found["null"].shape == (0,)
    assert found["null_text"] == ""
    assert found["big_endian"].dtype == np.dtype("i4")
    assert found["one_string"] == "a"
    assert found["no_utf8"] == "caf\N{REPLACEMENT CHARACTER}"
    assert found["padded"] == "ab"


# ---------------------------------------------------------------------- refusals by name


def _good(file: h5py.File) -> None:
    file["good"] = numbers(3)


def _source_of_virtual_dataset_gone(file: h5py.File) -> None:
    _good(file)
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource("gone.h5", "v", (3,))
    file.create_virtual_dataset("bad", layout, fillvalue=-1)


def _dataset_of_virtual_dataset_gone(file: h5py.File) -> None:
    _good(file)
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(".", "gone", (3,), "f4")
    file.create_virtual_dataset("bad", layout)


def _virtual_dataset_of_itself(file: h5py.File) -> None:
    _good(file)
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(".", "bad", (3,), "f4")
    file.create_virtual_dataset("bad", layout)


def _virtual_dataset_of_a_pattern(file: h5py.File) -> None:
    _good(file)
    with h5py.File(Path(file.filename).with_name("part-0.h5"), "w") as part:
        part["v"] = numbers(1, 3)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    whole = h5py.h5s.create_simple((4, 3), (h5py.h5s.UNLIMITED, 3))
    whole.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 1), (1, 3))
    plist.set_virtual(whole, b"part-%b.h5", b"v", h5py.h5s.create_simple((1, 3)))
    h5py.h5d.create(file.id, b"bad", h5py.h5t.NATIVE_FLOAT, whole, plist)


def _external_file_gone(file: h5py.File) -> None:
    _good(file)
    outside = file.filename + ".raw"
    file.create_dataset("bad", (3,), "f4", external=[(outside, 0, h5py.h5f.UNLIMITED)])


def _external_file_too_short(file: h5py.File) -> None:
    outside = Path(file.filename + ".raw")
    outside.write_bytes(bytes(8))
    _external_file_gone(file)


def _references_to_regions(file: h5py.File) -> None:
    _good(file)
    file.create_dataset("bad", data=file["good"].regionref[:2], dtype=h5py.regionref_dtype)


def _references_in_a_compound(file: h5py.File) -> None:
    _good(file)
    file.create_dataset("bad", (2,), np.dtype([("to", h5py.ref_dtype), ("n", "i4")]))


def _times(file: h5py.File) -> None:
    _good(file)
    h5py.h5d.create(file.id, b"bad", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))


def _nothing(file: h5py.File) -> None:
    _good(file)
    file["bad"] = h5py.Empty("f4")


def _unknown_filter(file: h5py.File) -> None:
    _good(file)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((2,))
    plist.set_filter(32123, h5py.h5z.FLAG_OPTIONAL, ())
    h5py.h5d.create(file.id, b"bad", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((4,)), plist)


def _soft_link_to_nothing(file: h5py.File) -> None:
    _good(file)
    file["bad"] = h5py.SoftLink("/nowhere")


def _external_link_to_no_file(file: h5py.File) -> None:
    _good(file)
    file["bad"] = h5py.ExternalLink("elsewhere.h5", "/v")


def _external_link_to_nothing(file: h5py.File) -> None:
    _good(file)
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as there:
        there["w"] = 1
    file["bad"] = h5py.ExternalLink(other.name, "/v")


def _damaged_index(file: h5py.File) -> None:
    _good(file)
    file.create_dataset("bad", data=numbers(40, 40), chunks=(4, 4))
    path = Path(file.filename)
    file.close()
    raw = path.read_bytes()
    # a node of the B-tree of chunks has type 1 (HDF5 file format, III.A.1)
    assert b"TREE\x01" in raw
    path.write_bytes(raw.replace(b"TREE\x01", b"FREE\x01"))


def _contradicting_lengths(file: h5py.File) -> None:
    _good(file)
    file["good"].make_scale("good")
    file["bad"] = numbers(5)
    file["bad"].dims[0].attach_scale(file["good"])


REFUSED: dict[str, tuple[Fill, str]] = {
    "source of a virtual dataset gone": (_source_of_virtual_dataset_gone, "'gone.h5'"),
    "dataset of a virtual dataset gone": (_dataset_of_virtual_dataset_gone, "'gone'"),
    "virtual dataset of itself": (_virtual_dataset_of_itself, "part of itself"),
    "virtual dataset of a pattern": (_virtual_dataset_of_a_pattern, "part-%b.h5"),
    "external file gone": (_external_file_gone, ".raw"),
    "external file too short": (_external_file_too_short, "it has 8 bytes"),
    "references to regions": (_references_to_regions, "reference"),
    "references in a compound": (_references_in_a_compound, "compound"),
    "times": (_times, "time"),
    "null dataspace": (_nothing, "null dataspace"),
    "unknown filter": (_unknown_filter, "filter 32123"),
    "soft link to nothing": (_soft_link_to_nothing, "/nowhere"),
    "external link to no file": (_external_link_to_no_file, "elsewhere.h5"),
    "external link to nothing": (_external_link_to_nothing, "other.h5"),
    "lengths that contradict each other": (_contradicting_lengths, "contradicts itself"),
    "damaged index of chunks": (_damaged_index, "damaged"),
}
refused = pytest.mark.parametrize("which", REFUSED)


def _refused(which: str, folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        REFUSED[which][0](file)
    return folder / "a.h5"


@refused
def test_unreadable_variables_are_refused_by_name(which: str, tmp_path: Path) -> None:
    path = _refused(which, tmp_path)
    with pytest.raises((UnsupportedError, FormatError)) as caught:
        virtual(path)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert REFUSED[which][1] in text
    assert "'bad'" in text
    assert str(path) in text
    assert "drop_variables" in text or "scan" in text or "restore" in text or "fetch" in text


@refused
def test_a_refused_variable_can_be_left_out(which: str, tmp_path: Path) -> None:
    ds = virtual(_refused(which, tmp_path), drop_variables="bad")
    assert list(ds.variables) == ["good"]


@refused
def test_a_refused_variable_is_skipped_with_a_report(which: str, tmp_path: Path) -> None:
    path = _refused(which, tmp_path)
    with pytest.warns(UserWarning, match=r"(?s)could not be read.*bad: ") as caught:
        ds = virtual(path, on_error="skip")
    assert REFUSED[which][1] in str(caught[0].message)
    assert list(ds.variables) == ["good"]
    assert caught[0].filename == __file__


@refused
def test_a_refused_variable_may_be_kept_and_refuses_to_be_read(which: str, tmp_path: Path) -> None:
    path = _refused(which, tmp_path)
    with pytest.warns(UserWarning, match="bad: "):
        kept = virtual(path, on_error="keep")
    with pytest.warns(UserWarning, match="bad: "):
        lazy = xr.open_dataset(path, engine="virtual", on_error="keep")
    for ds in (kept, lazy, xr.concat([kept, kept], "new", data_vars="all")):
        np.testing.assert_array_equal(ds["good"].isel(new=0, missing_dims="ignore"), numbers(3))
        if "bad" in ds:  # a link that leads nowhere has no shape to show
            with pytest.raises(UnsupportedError, match=re.escape(REFUSED[which][1])):
                np.asarray(ds["bad"].isel({d: slice(1) for d in ds["bad"].dims}))
    if "bad" in kept:
        with pytest.raises(UnsupportedError, match=re.escape(REFUSED[which][1])):
            kept.virtual.to_manifest(tmp_path / "refs.json")
    with pytest.warns(UserWarning, match="bad: "):
        # what is loaded by default is not loaded if it cannot be
        assert set(virtualds.open_virtual_dataset(path, on_error="keep")) >= set(kept)


class CacheImage(ctypes.Structure):
    """`H5AC_cache_image_config_t` of HDF5's H5ACpublic.h."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("generate", ctypes.c_bool),
        ("save_sizes", ctypes.c_bool),
        ("ageout", ctypes.c_int),
    )


def test_a_file_that_neither_reader_knows_is_refused_as_a_whole(tmp_path: Path) -> None:
    """With an image of the metadata cache, metadata do not lie at their addresses."""
    hdf5 = _hdf5_library()
    hdf5.H5Pset_mdc_image_config.argtypes = [ctypes.c_int64, ctypes.POINTER(CacheImage)]
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    wanted = CacheImage(version=1, generate=True, save_sizes=False, ageout=-1)
    assert hdf5.H5Pset_mdc_image_config(access.id, ctypes.byref(wanted)) == 0
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, fapl=access)) as file:
        _good(file)
    for on_error in ("raise", "skip"):
        with pytest.raises(
            UnsupportedError, match=r"(?s)a metadata cache image.*h5repack"
        ) as found:
            virtual(path, on_error=on_error)
        assert found.type is UnsupportedError


@pytest.mark.filterwarnings("ignore:Duplicate dimension names")
def test_strings_that_xarray_cannot_decode_are_a_problem_like_any_other(tmp_path: Path) -> None:
    """Of their values no chunk holds the bytes."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("good", "f4", ("x",))[:] = 1
        file.createVariable("bad", str, ("x", "x"))
    with pytest.raises(FormatError, match=r"(?s)'bad'.*duplicate dimensions"):
        virtual(tmp_path / "a.nc")
    for on_error in ("skip", "keep"):
        with pytest.warns(UserWarning, match="bad: "):
            found = virtual(tmp_path / "a.nc", on_error=on_error)
        assert found["good"].values.tolist() == [1, 1]


def test_on_error_knows_three_answers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'raise', 'skip', 'keep'"):
        virtual(some_file(tmp_path), on_error="ignore")


@pytest.mark.parametrize("where", ["group", "variable"])
def test_an_attribute_that_cannot_be_read_costs_no_more_than_itself(
    where: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        _good(file)
        owner = file if where == "group" else file["good"]
        owner.attrs["points_to"] = file["good"].regionref[:1]
        owner.attrs["units"] = "K"
    with pytest.raises(UnsupportedError, match=r":points_to' of .*a\.h5: its type cannot be read"):
        virtual(tmp_path / "a.h5")
    with pytest.warns(UserWarning, match=":points_to: "):
        ds = virtual(tmp_path / "a.h5", on_error="skip")
    assert (ds if where == "group" else ds["good"]).attrs == {"units": "K"}
    np.testing.assert_array_equal(ds["good"], numbers(3))


# ---------------------------------------------------------------------- what only h5py reads


def _heap_strings(file: h5py.File) -> None:
    file.create_dataset("v", data=[["a", "é"], ["", "long"]], dtype=h5py.string_dtype())


def _heap_arrays(file: h5py.File) -> None:
    rows = file.create_dataset("v", (3,), h5py.vlen_dtype("i4"))
    for n in range(3):
        rows[n] = np.arange(n)


def _heap_in_compound(file: h5py.File) -> None:
    kind = np.dtype([("n", "i4"), ("name", h5py.string_dtype())])
    rows = file.create_dataset("v", (3,), kind)
    for n in range(3):
        rows[n] = (n, "x" * n)


def _object_references(file: h5py.File) -> None:
    file["there/w"] = 1
    to = np.array([file["there/w"].ref, file["there"].ref, None], h5py.ref_dtype)
    file.create_dataset("v", data=to, dtype=h5py.ref_dtype)


def _array_type_with_fill(file: h5py.File) -> None:
    values = np.arange(12.0).reshape(3, 2, 2)
    rows = file.create_dataset("v", (3,), np.dtype(("f8", (2, 2))), chunks=(2,))
    rows[...] = values


def _bfloat16(file: h5py.File) -> None:
    kind = h5py.h5t.IEEE_F16LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_ebias(127)
    low_level(file, "v", kind, np.array([1.5, -2.0, 1e30, np.inf], "f4"))


HEAPS: dict[str, Fill] = {
    "strings": _heap_strings,
    "arrays of varying length": _heap_arrays,
    "strings in a compound": _heap_in_compound,
    "references to objects": _object_references,
    "array type": _array_type_with_fill,
    "a float of odd layout": _bfloat16,
}


def _as_h5py_reads(path: Path) -> Any:
    with h5py.File(path) as file:
        dataset = file["v"]
        if h5py.check_string_dtype(dataset.dtype) and dataset.dtype.hasobject:
            return dataset.asstr()[()]
        if h5py.check_ref_dtype(dataset.dtype) is not None:
            return np.array([file[r].name if r else "" for r in dataset[()]], object)
        return dataset[()]


def _same(found: Any, expected: Any) -> bool:
    return np.shape(found) == np.shape(expected) and all(
        np.array_equal(a, b)
        for a, b in zip(np.ravel(found).tolist(), np.ravel(expected).tolist(), strict=True)
    )


@looped("limit", [0, 16384])
@looped("which", HEAPS)
def test_values_that_only_h5py_reads_are_loaded_or_deferred(
    which: str, limit: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        HEAPS[which](file)
    expected = _as_h5py_reads(path)
    with virtualds.set_options(small_variable=limit):
        found = parsed(path).variables["v"]
        lazy = xr.open_dataset(path, engine="virtual")["v"]
        kept = virtual(path)["v"]
    read_later = not isinstance(found.data, np.ndarray | ManifestArray)
    assert read_later == (limit == 0 and which != "array type")
    assert found.data.shape == expected.shape
    for values in (found.read(), lazy.values, kept.values, pickle.loads(pickle.dumps(lazy)).values):
        assert _same(values, expected)
    flat = not isinstance(expected.flat[0], np.ndarray)
    for key in ([0], slice(None, None, -1), [1, 0, 0], slice(0), -1 if flat else [-1]):
        again = xr.open_dataset(path, engine="virtual")["v"]
        assert _same(again[{again.dims[0]: key}].values, expected[key])


def _odd_integers(path: Path) -> Path:
    kind = h5py.h5t.STD_I16LE.copy()
    kind.set_precision(12)
    with h5py.File(path, "w") as file:
        low_level(file, "v", kind, np.array([[-1, 5], [-2000, 7]], "i2"))
    return path


def test_deferred_values_are_not_read_from_another_file(tmp_path: Path) -> None:
    path = _odd_integers(tmp_path / "a.h5")
    with virtualds.set_options(small_variable=0):
        first, second, third = (virtual(path)["v"] for _ in range(3))
    assert first.values.tolist() == [[-1, 5], [-2000, 7]]
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ReadError, match=r"(?s)a\.h5.*when it was scanned"):
        second.values.sum()
    path.unlink()
    with pytest.raises(ReadError, match="restore the file"):
        third.values.sum()


@pytest.mark.parametrize(
    ("case", "variable", "needed"),
    [
        ("virtual_datasets_that_references_cannot_hold", "strided", "*_1.h5"),
        ("external_files", "within_rows", "external_1.raw"),
    ],
)
def test_hdf5_fills_no_values_of_missing_files(
    case: str, variable: str, needed: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.nc"
    CASES[case].write(path)
    with virtualds.set_options(small_variable=0):
        first, second = (virtual(path)[variable] for _ in range(2))
    assert np.asarray(first).any()
    next(tmp_path.glob(needed)).unlink()
    with pytest.raises(ReadError, match=needed.strip("*")):
        np.asarray(second)


def test_deferred_values_are_written_inline_or_refused(tmp_path: Path) -> None:
    path = _odd_integers(tmp_path / "a.h5")
    with virtualds.set_options(small_variable=0):
        later = virtual(path)
    with virtualds.set_options(load_limit=7), pytest.raises(UnsupportedError, match="inline"):
        later.virtual.to_manifest(tmp_path / "refs.json")
    later.virtual.to_manifest(tmp_path / "refs.json", mode="w")
    path.unlink()
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual")
    assert again["v"].values.tolist() == [[-1, 5], [-2000, 7]]


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("which", ["arrays of varying length", "strings in a compound"])
def test_a_writer_that_cannot_hold_heaps_says_so(which: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        HEAPS[which](file)
    with pytest.raises(UnsupportedError) as caught:
        virtual(tmp_path / "a.h5").virtual.to_manifest(tmp_path / "refs.json")
    assert re.search(r"v: its |variable 'v'", str([caught.value, *_notes(caught.value)]))
    assert not (tmp_path / "refs.json").exists()


def test_virtual_and_external_datasets_are_references(archive: Archive) -> None:
    """And so they are combined without reading."""
    for case, variables in {
        "virtual_datasets": ("end_to_end", "side_by_side", "with_gaps", "of_virtual_ones"),
        "external_files": ("one", "in_rows"),
        "links": ("elsewhere", "elsewhere_and_on", "soft", "hard"),
    }.items():
        found = parsed(archive.path(case)).variables
        for name in variables:
            assert isinstance(found[name].data, ManifestArray), name
    joined = found["elsewhere"].data
    assert joined.sources[0].url.endswith("links_lead_here.h5")
    whole = parsed(archive.path("virtual_datasets")).variables["end_to_end"].data
    assert len(whole.fragments) == 2  # one source is contiguous, two are chunked alike
    assert len(whole.sources) == 3


@pytest.mark.parametrize("case", ["links", "virtual_datasets", "padded_strings"])
def test_files_that_refer_to_others_are_read_over_http(case: str, archive: Archive) -> None:
    path = archive.path(case)
    with range_server(path.parent) as (url, _):
        found = virtualds.open_virtual_dataset(f"{url}/{path.name}").virtual.load()
        xr.testing.assert_identical(found, archive.native(case))


def test_a_remote_file_may_not_lead_to_local_ones(archive: Archive) -> None:
    path = archive.path("external_files")
    with range_server(path.parent) as (url, _):
        with pytest.raises(AccessError, match="which a file may not do"):
            virtualds.open_virtual_dataset(f"{url}/{path.name}")
        with pytest.warns(UserWarning, match="in_rows: "):
            kept = virtualds.open_virtual_dataset(f"{url}/{path.name}", on_error="keep")
    with pytest.raises(UnsupportedError, match="which a file may not do"):
        kept["one"].values.sum()


def test_circles_of_groups_are_walked_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = numbers(3)
        file["round"] = h5py.SoftLink("/")
    assert list(virtual(tmp_path / "a.h5").variables) == ["v"]
    assert list(virtual(tmp_path / "a.h5", group="round/round").variables) == ["v"]


def test_circles_that_meet_are_walked_too(tmp_path: Path) -> None:
    """Every group is seen once on each way to it, or there would be 2^64 of them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = numbers(3)
        for name in ("one", "two"):
            file[f"a/{name}"] = h5py.SoftLink("/a")
    assert virtual(tmp_path / "a.h5")["v"].dims == ("phony_dim_0",)


def test_gaps_of_a_virtual_dataset_are_not_what_lies_past_its_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["source"] = np.ones((4, 2), "i2")
        layout = h5py.VirtualLayout((6, 2), "i2", maxshape=(None, 2))
        layout[1:5] = h5py.VirtualSource(".", "source", (4, 2), "i2")
        file.create_virtual_dataset("v", layout)
        file.create_dataset("t", data=np.arange(9.0), maxshape=(None,))
        file["t"].make_scale("t")
        file["v"].dims[0].attach_scale(file["t"])
    found = parsed(tmp_path / "a.h5").variables["v"].read()
    assert found[:, 0].tolist() == [0, 1, 1, 1, 1, 0, *[-32767] * 3]


def test_elements_of_a_virtual_dataset_may_be_arrays(tmp_path: Path) -> None:
    element = np.dtype(("i2", (2, 3)))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("source", (4,), element)[...] = np.arange(24).reshape(4, 2, 3)
        layout = h5py.VirtualLayout((5,), element)
        layout[:2] = h5py.VirtualSource(".", "source", (4,), element)[2:]
        layout[2:4] = h5py.VirtualSource(".", "source", (4,), element)[:2]
        file.create_virtual_dataset("v", layout)
    with h5py.File(tmp_path / "a.h5") as file:
        expected = file["v"][...]
    found = parsed(tmp_path / "a.h5").variables["v"]
    assert isinstance(found.data, virtualds.ManifestArray)
    np.testing.assert_array_equal(found.read(), expected)


MANY_SOURCES = """
import resource, sys
import virtualds
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
found = virtualds.open_virtual_dataset(sys.argv[1], loadable_variables=[])["v"].variable.data
print(len(found.sources), type(found).__name__)
"""


def test_a_virtual_dataset_may_have_more_files_than_may_be_open(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((150, 2), "i2")
    for n in range(150):
        with h5py.File(tmp_path / f"{n}.h5", "w") as file:
            file["v"] = np.full(2, n, "i2")
        layout[n] = h5py.VirtualSource(f"{n}.h5", "v", (2,), "i2")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    done = run_code(MANY_SOURCES, tmp_path / "all.h5", check=True)
    assert done.stdout.split() == ["150", "ManifestArray"]


def test_a_group_may_lie_in_another_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["deep/v"] = numbers(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["there"] = h5py.ExternalLink("b.h5", "/deep")
        file["v"] = numbers(3, seed=1)
    ds = virtual(tmp_path / "a.h5", group="there")
    assert ds["v"].data.sources[0].url.endswith("b.h5")
    np.testing.assert_array_equal(ds["v"], numbers(3))


def test_attributes_of_every_type_are_read(tmp_path: Path) -> None:
    pair = np.array([(1, 2.5)], [("a", ">i4"), ("b", "f8")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        _good(file)
        attrs = file.attrs
        attrs["compound"], attrs["compounds"] = pair[0], np.repeat(pair, 2)
        attrs["opaque"], attrs["bool"] = np.void(b"abc"), True
        attrs["to"] = file["good"].ref
        attrs.create("all_to", [file["good"].ref, file.ref], dtype=h5py.ref_dtype)
        rows = np.empty(2, object)
        rows[:] = [np.array([1, 2], "i4"), np.array([3], "i4")]
        attrs.create("rows", rows, dtype=h5py.vlen_dtype("i4"))
        attrs.create("row", rows[:1], dtype=h5py.vlen_dtype("i4"))
        attrs["table"] = np.array([[1.0, np.inf], [np.nan, -0.0]])
        attrs.create("level", 1, dtype=h5py.enum_dtype({"low": 0, "high": 1}))
    found = parsed(tmp_path / "a.h5").attributes
    assert found["compound"].tolist() == (1, 2.5)
    assert found["compounds"].dtype["a"] == "i4"
    assert found["compounds"].tolist() == [(1, 2.5)] * 2
    assert found["opaque"].tobytes() == b"abc"
    assert bool(found["bool"])
    assert found["to"] == "/good"
    assert found["all_to"] == ["/good", "/"]
    assert [row.tolist() for row in found["rows"]] == [[1, 2], [3]]
    assert found["row"].tolist() == [1, 2]
    assert found["table"].shape == (2, 2)
    assert found["level"] == 1


# ---------------------------------------------------------------------- files that are none


def some_file(folder: Path) -> Path:
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=numbers(64, 64), chunks=(8, 64), compression="gzip")
    return path


WRITES = """
import sys, h5py
with h5py.File(sys.argv[1], "a") as file:
    file["v"][0] = 1
    print("open", flush=True)
    sys.stdin.read()
"""


def open_handles(path: Path) -> int:
    """How many handles of this process are open on this file, and no other."""
    count = 0
    for handle in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the one that listed them is closed again
            count += os.path.samestat(os.fstat(int(handle)), path.stat())
    return count


@pytest.mark.parametrize("way", ["auto", "library"])
def test_a_file_that_a_writer_has_open_is_refused_by_name(way: Any, tmp_path: Path) -> None:
    path, pipe = some_file(tmp_path), subprocess.PIPE
    command = [sys.executable, "-c", WRITES, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with (
            virtualds.set_options(hdf5=way),
            pytest.raises(FormatError, match=rf"{path.name}.*unable to lock file"),
        ):
            virtual(path)
        assert open_handles(path) == 0
        writer.communicate("")
    assert virtual(path)["v"].shape == (64, 64)


@pytest.mark.parametrize("keep", [8, 100, 512, 2000, -1])
def test_a_truncated_file_is_a_format_error(keep: int, tmp_path: Path) -> None:
    path = some_file(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match="damaged or truncated") as caught:
        virtual(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"CDF\x01 a classic netCDF file", b"{not json", b"\x89HDF", bytes(range(99))]
)
def test_an_unknown_file_is_a_format_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.nc"):
        virtual(tmp_path / "a.nc")


def test_another_format_by_the_name_of_hdf5_is_a_format_error(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(b"no HDF5 at all")
    with pytest.raises(FormatError, match="HDF5 cannot read it"):
        virtual(tmp_path / "a.nc", parser="hdf5")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.nc"):
        virtual(tmp_path / "missing.nc")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises((FormatError, OSError), match=tmp_path.name):
        virtual(tmp_path)


AS_NOBODY = """
import os, sys
import h5py, virtualds.datasets.open, virtualds.parsers.dmrpp, xarray
os.setgid(65534)
os.setuid(65534)
try:
    virtualds.open_virtual_dataset(sys.argv[1])
except virtualds.AccessError as error:
    print(error)
"""


def test_a_file_without_permission_is_an_access_error(tmp_path: Path) -> None:
    path = some_file(tmp_path)
    path.chmod(0)
    if os.geteuid():
        with pytest.raises(AccessError, match="permission denied"):
            virtual(path)
        return
    # root may read everything: another process gives up being root
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    found = run_code(AS_NOBODY, path)
    assert "permission denied" in found.stdout, found.stderr
    assert str(path) in found.stdout


def damage(path: Path, variable: str, chunk: int) -> None:
    """Overwrite the bytes of one chunk."""
    with h5py.File(path) as file:
        info = file[variable].id.get_chunk_info(chunk)
    before = os.stat(path)
    with path.open("r+b") as raw:
        raw.seek(info.byte_offset)
        raw.write(b"\x5a" * info.size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_corrupt_chunk_is_a_read_error_and_its_neighbours_are_read(tmp_path: Path) -> None:
    path = some_file(tmp_path)
    ds = virtual(path)
    good = ds["v"][:8].values
    damage(path, "v", 3)
    with pytest.raises(ReadError, match="do not decode") as caught:
        np.asarray(ds["v"])
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert str(path) in text
    assert "v" in text
    assert "(3, 0)" in text
    np.testing.assert_array_equal(ds["v"][:8].values, good)


def test_a_wrong_checksum_is_a_read_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=numbers(64), chunks=(16,), fletcher32=True)
    ds = virtual(path)
    damage(path, "v", 1)
    with pytest.raises(ReadError, match="checksum"):
        np.asarray(ds["v"])


def test_a_deleted_source_is_a_read_error(tmp_path: Path) -> None:
    path = some_file(tmp_path)
    ds = virtual(path)
    path.unlink()
    with pytest.raises(ReadError, match=r"a\.h5"):
        np.asarray(ds["v"])


def test_a_source_cut_short_is_a_read_error(tmp_path: Path) -> None:
    path = some_file(tmp_path)
    ds = virtual(path)
    os.truncate(path, 4000)
    with pytest.raises(ReadError, match="4000 bytes"):
        np.asarray(ds["v"])
    with virtualds.set_options(check_sources=False), pytest.raises(ReadError, match="ends"):
        np.asarray(ds["v"])


def test_a_rewritten_source_is_a_read_error(tmp_path: Path) -> None:
    path = some_file(tmp_path)
    ds = virtual(path)
    os.utime(path, ns=(0, 0))
    with pytest.raises(ReadError, match="modified after it was scanned"):
        np.asarray(ds["v"])
    with virtualds.set_options(check_sources=False):
        np.testing.assert_array_equal(ds["v"].values, numbers(64, 64))


# ---------------------------------------------------------------------- detection


@pytest.mark.parametrize("offset", [0, 512, 1024, 4096])
def test_the_signature_is_found_behind_a_user_block(offset: int) -> None:
    assert hdf5.detect(b"\0" * offset + SIGNATURE)


@pytest.mark.parametrize("head", [b"", b"CDF\x01", b"\0" * 100 + SIGNATURE, b'{"version": 1'])
def test_nothing_else_is_taken_for_hdf5(head: bytes) -> None:
    assert not hdf5.detect(head)


def test_a_parser_is_known_by_its_name(archive: Archive) -> None:
    ds = virtual(archive.path("contiguous"), parser="hdf5")
    assert list(ds.variables) == ["v", "w"]


def test_an_unknown_parser_is_named(archive: Archive) -> None:
    with pytest.raises(ValueError, match="give one of"):
        virtual(archive.path("contiguous"), parser="bufr")


# ---------------------------------------------------------------------- bytes that are not values


def _member_type(*members: tuple[str, int, Any], size: int) -> Any:
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, size)
    for name, offset, member in members:
        kind.insert(name.encode(), offset, member)
    return kind


def _complex_the_wrong_way_round(file: h5py.File) -> None:
    float32 = h5py.h5t.IEEE_F32LE
    kind = _member_type(("i", 0, float32), ("r", 4, float32), size=8)
    low_level(file, "v", kind, np.array([1 + 2j, 3 - 4j], "c8"))


def _complex_with_a_gap(file: h5py.File) -> None:
    float32 = h5py.h5t.IEEE_F32LE
    kind = _member_type(("r", 0, float32), ("i", 8, float32), size=16)
    low_level(file, "v", kind, np.array([1 + 2j, 3 - 4j], "c8"))


def _wide_booleans_in_a_compound(file: h5py.File) -> None:
    wide = h5py.h5t.enum_create(h5py.h5t.STD_I16BE)
    wide.enum_insert(b"FALSE", 0)
    wide.enum_insert(b"TRUE", 1)
    kind = _member_type(("b", 0, wide), ("x", 8, h5py.h5t.IEEE_F64LE), size=16)
    values = np.array([(True, 1.5), (False, 2.5), (True, 3.5)], [("b", "?"), ("x", "f8")])
    low_level(file, "v", kind, values, h5py.h5t.py_create(values.dtype))


def _one_space(file: h5py.File) -> None:
    kind = h5py.h5t.C_S1.copy()
    kind.set_strpad(h5py.h5t.STR_SPACEPAD)
    low_level(file, "v", kind, np.array([b"a", b" ", b"b"], "S1"), kind)


def _big_endian_compound_with_text(file: h5py.File) -> None:
    kind = np.dtype([("n", ">i4"), ("name", h5py.string_dtype())])
    rows = file.create_dataset("v", (2,), kind)
    rows[0], rows[1] = (1, "x"), (2, "yy")


def _dates_with_a_fill(file: h5py.File) -> None:
    dates = np.array(["2001-01-01", "2002-02-02"], "M8[s]").astype(
        h5py.opaque_dtype(np.dtype("M8[s]"))
    )
    file.create_dataset("v", data=dates, chunks=(1,))


def _source_behind_a_link(file: h5py.File) -> None:
    folder = Path(file.filename).parent
    with h5py.File(folder / "real.h5", "w") as real:
        real["d"] = np.arange(3, dtype="i2")
    with h5py.File(folder / "via.h5", "w") as via:
        via["d"] = h5py.ExternalLink("real.h5", "/d")
        via["sevens"] = np.full(4000, 7, "i2")
    layout = h5py.VirtualLayout((3,), "i2")
    layout[:] = h5py.VirtualSource("via.h5", "d", (3,), "i2")
    file.create_virtual_dataset("v", layout)


def _mapping_without_end(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("s.h5"), "w") as source:
        source.create_dataset("d", data=numbers(2, 6, dtype="i2"), maxshape=(None, 6))
    unlimited = h5py.h5s.UNLIMITED
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    spaces = []
    for _ in range(2):
        space = h5py.h5s.create_simple((2, 6), (unlimited, 6))
        space.select_hyperslab((0, 0), (unlimited, 1), (1, 1), (1, 6))
        spaces.append(space)
    plist.set_virtual(spaces[0], b"s.h5", b"d", spaces[1])
    h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I16LE, spaces[0], plist)


AS_H5PY: dict[str, Fill] = {
    "complex, the wrong way round": _complex_the_wrong_way_round,
    "complex, with a gap": _complex_with_a_gap,
    "wide booleans in a compound": _wide_booleans_in_a_compound,
    "one space": _one_space,
    "big-endian compound with text": _big_endian_compound_with_text,
    "dates with a fill": _dates_with_a_fill,
    "a source behind a link": _source_behind_a_link,
    "a mapping without end": _mapping_without_end,
}


@pytest.mark.parametrize("which", AS_H5PY)
def test_converted_values_are_those_of_h5py(which: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        AS_H5PY[which](file)
    expected = _as_h5py_reads(path)
    for limit in (0, 16384):
        with virtualds.set_options(small_variable=limit):
            found = parsed(path).variables["v"].read()
            lazy = xr.open_dataset(path, engine="virtual", decode_cf=False)["v"].values
        for values in (found, lazy):
            assert values.dtype == expected.dtype.newbyteorder("=")
            assert values.tolist() == expected.tolist()


def test_floats_in_the_byte_order_of_a_vax_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.arange(3.0, dtype="f4")
        file["good"] = np.arange(3)
    raw = (tmp_path / "a.h5").read_bytes()
    # version 3 of the type, and both bits of the order (IV.A.2.d)
    one, other = b"\x11\x20\x1f\0\x04\0\0\0", b"\x31\x61\x1f\0\x04\0\0\0"
    assert raw.count(one) == 1
    (tmp_path / "a.h5").write_bytes(raw.replace(one, other))
    with pytest.warns(UserWarning, match="v: "):
        ds = virtual(tmp_path / "a.h5", on_error="skip")
    assert list(ds.variables) == ["good"]


def test_sequences_in_foreign_byte_order_are_refused(tmp_path: Path) -> None:
    """h5py reads [1, 2] as [256, 512]."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = 1.0
        rows = file.create_dataset("bad", (1,), h5py.vlen_dtype(np.dtype(">i2")))
        rows[0] = [1, 2]
        value = np.empty(1, object)
        value[0] = np.array([1, 2], ">i2")
        file["good"].attrs.create("bad", value, dtype=h5py.vlen_dtype(np.dtype(">i2")))
    with pytest.warns(UserWarning, match="byte order"):
        ds = virtual(tmp_path / "a.h5", on_error="skip")
    assert list(ds.variables) == ["good"]
    assert ds["good"].attrs == {}


def _hdf5_library() -> Any:
    """HDF5 itself, for what h5py does not offer."""
    beside = Path(h5py.__file__).parents[1] / "h5py.libs"
    found = sorted(beside.glob("libhdf5-*"))
    if not found:
        pytest.skip("this build of h5py does not bring HDF5 along as a library of its own")
    return ctypes.CDLL(str(found[0]))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("filters", ["shuffle", "deflate", "both"])
def test_unfiltered_chunks_at_edges_are_recognised(
    filters: str, constant: bool, tmp_path: Path
) -> None:
    """H5Pset_chunk_opts(H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS)."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4, 3))
    if filters != "deflate":
        plist.set_shuffle()
    if filters != "shuffle":
        plist.set_deflate(4)
    library = _hdf5_library()
    library.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    assert library.H5Pset_chunk_opts(plist.id, 2) == 0
    values = np.arange(70, dtype="<i4").reshape(10, 7) * 70_001
    if constant:
        values[8:] = values[:, 6:] = 0
        values[9, 6] = 1 << 24
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        space = h5py.h5s.create_simple(values.shape)
        found = h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32LE, space, plist)
        found.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    np.testing.assert_array_equal(parsed(tmp_path / "a.h5").variables["v"].read(), values)
