"""Values in memory are written so that they come back, or are refused by an error that helps.

Each case is written in every format, and compared with what comes back of xarray's own formats.
"""

from __future__ import annotations

import json
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from products import looped

import virtualds
from virtualds import UnsupportedError
from virtualds.codecs import cf
from virtualds.datasets.conversion import encode_like_xarray
from virtualds.errors import VirtualdsError

SUFFIXES = (".json", ".parquet", ".zarr")
Make = Callable[[Path], xr.Dataset]
DAYS = xr.date_range("2000-01-01", periods=4)
CFTIME = xr.coders.CFDatetimeCoder(use_cftime=True)


def dated(folder: Path, **attributes: str) -> Path:
    """Write ``t(time)``, with dates of four days, or numbers with attributes."""
    time = xr.Variable("time", np.arange(4), attributes) if attributes else DAYS
    ds = xr.Dataset({"t": ("time", np.arange(4.0))}, {"time": time})
    ds.to_netcdf(folder / "dates.nc")
    return folder / "dates.nc"


def undecoded(folder: Path, names: Any = "*") -> xr.Dataset:
    return virtualds.open_virtual_dataset(dated(folder), decode_cf=False, loadable_variables=names)


def monthly(folder: Path) -> Path:
    return dated(folder, units="months since 2000-01-01", calendar="360_day")


def text_of_zarr_v2(folder: Path, **how: Any) -> xr.Dataset:
    text = np.array(["a", "bcd", ""], object)
    xr.Dataset({"s": ("x", text)}).to_zarr(folder / "a.zarr", zarr_format=2)
    return virtualds.open_virtual_dataset(folder / "a.zarr", **how)


def one(values: Any, **encoding: Any) -> Make:
    return lambda folder: xr.Dataset({"v": xr.Variable("x", values, encoding=encoding)})


def characters(folder: Path, decode_cf: bool) -> xr.Dataset:
    with netCDF4.Dataset(folder / "c.nc", "w") as file:
        file.createDimension("x", 3)
        file.createDimension("n", 4)
        variable = file.createVariable("v", "S1", ("x", "n"))
        variable[:] = np.array([list("abcd"), [*"ef", "", ""], [""] * 4], "S1")
    return virtualds.open_virtual_dataset(folder / "c.nc", decode_cf=decode_cf)


def with_gaps(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign_coords(x=[0, 1, 4]).reindex(x=range(5))


def compound(folder: Path, kind: Any) -> xr.Dataset:
    values = np.array([(1, b"ab"), (2, b"c")], kind)
    with h5py.File(folder / "k.h5", "w") as file:
        file.create_dataset("v", data=values)
    return virtualds.open_virtual_dataset(folder / "k.h5")


def ragged(folder: Path) -> xr.Dataset:
    with h5py.File(folder / "r.h5", "w") as file:
        rows = file.create_dataset("v", (2,), h5py.vlen_dtype("i4"))
        rows[0], rows[1] = [1, 2], [3, 4]
    return virtualds.open_virtual_dataset(folder / "r.h5")


# what is written, and whether it is decoded when it is compared
WRITTEN: dict[str, tuple[Make, bool]] = {
    "undecoded, all loaded": (undecoded, False),
    "undecoded, time loaded": (lambda p: undecoded(p, ["time"]), False),
    "decoded elsewhere": (
        lambda p: undecoded(p).assign_coords(time=xr.open_dataset(dated(p))["time"]),
        True,
    ),
    "decoded afterwards": (lambda p: xr.decode_cf(undecoded(p)), True),
    "months of 360 days": (lambda p: virtualds.open_virtual_dataset(monthly(p)), True),
    "months, lazily": (lambda p: xr.open_dataset(monthly(p), engine="virtual"), True),
    "months, undecoded": (
        lambda p: virtualds.open_virtual_dataset(monthly(p), decode_cf=False),
        False,
    ),
    "big-endian floats": (one(np.arange(3, dtype=">f4")), True),
    "big-endian integers": (one(np.arange(3, dtype=">i2")), True),
    "big-endian dates": (one(np.array([1, 2], ">M8[ns]")), True),
    "big-endian text": (one(np.array(["a", "bé"], ">U3")), True),
    "big-endian members": (one(np.array([(1, b"ab")], [("n", ">i4"), ("s", "S2")])), True),
    "bytes": (one(np.array([b"a", b"bcd"], "S3")), True),
    "bytes with an empty fill": (one(np.array([b"a", b"bcd"], "S3"), _FillValue=""), True),
    "bytes with a fill": (one(np.array([b"a", b"bcd"], "S3"), _FillValue=b"zz"), True),
    "text with a fill": (one(np.array(["a", "bcd"]), _FillValue="zz"), True),
    "text of varying length": (one(np.array(["a", "bcd"], np.dtypes.StringDType())), True),
    "text of Zarr v2": (text_of_zarr_v2, True),
    "text of Zarr v2, undecoded": (lambda p: text_of_zarr_v2(p, decode_cf=False), False),
    "text of Zarr v2, undecoded, not loaded": (
        lambda p: text_of_zarr_v2(p, decode_cf=False, loadable_variables=[]),
        False,
    ),
    "characters": (lambda p: characters(p, True), True),
    "characters, undecoded": (lambda p: characters(p, False), False),
    "members of fixed length": (lambda p: compound(p, [("n", "i4"), ("s", "S3")]), True),
    "members of text": (one(np.array([(1, "ab")], [("n", "i4"), ("s", "U2")])), True),
    "booleans": (one(np.array([True, False])), True),
    "dates beyond nanoseconds": (
        one(np.array(["2000-01-01T00:00:00.000001", "NaT", "1500-01-01", "99999-01-01"], "M8[us]")),
        True,
    ),
    "durations": (one(np.array([1, "NaT", 3], "m8[s]")), True),
}


@looped("suffix", SUFFIXES, quick=1)
@looped("name", WRITTEN)
def test_values_come_back(name: str, suffix: str, tmp_path: Path) -> None:
    make, decode_cf = WRITTEN[name]
    dataset, target = make(tmp_path), tmp_path / f"refs{suffix}"
    dataset.virtual.to_manifest(target)
    again = xr.open_dataset(target, engine="virtual", decode_cf=decode_cf).load()
    xr.testing.assert_equal(again, dataset.virtual.load())
    plain = zarr.open_group(virtualds.zarr_store(target), mode="r")
    for variable in plain.array_keys():
        assert plain[variable].shape == dataset[variable].shape or not decode_cf


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "name", ["undecoded, all loaded", "months of 360 days", "big-endian dates"]
)
def test_written_values_read_as_those_that_xarray_writes(
    name: str, suffix: str, tmp_path: Path
) -> None:
    dataset, target = WRITTEN[name][0](tmp_path).virtual.load(), tmp_path / f"refs{suffix}"
    dataset.virtual.to_manifest(target)
    dataset.drop_encoding().to_netcdf(tmp_path / "own.nc")
    xr.testing.assert_equal(
        xr.open_dataset(target, engine="virtual").load(), xr.load_dataset(tmp_path / "own.nc")
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_dates_of_the_standard_calendar_may_be_objects(suffix: str, tmp_path: Path) -> None:
    """They are told to be objects when they are read, as for a file of xarray's own."""
    path = dated(tmp_path)
    objects = xr.load_dataset(path, decode_times=CFTIME)["time"]
    dataset = virtualds.open_virtual_dataset(path).assign_coords(time=objects)
    dataset.virtual.to_manifest(tmp_path / f"refs{suffix}")
    for how in ({}, {"decode_times": CFTIME}):
        again = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual", **how)
        xr.testing.assert_equal(again.load(), xr.load_dataset(path, **how))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_dates_of_any_unit_are_written_by_their_units_of_cf(suffix: str, tmp_path: Path) -> None:
    """pandas 3 makes dates of microseconds, where those of a file are of nanoseconds."""
    ds = virtualds.open_virtual_dataset(dated(tmp_path))
    days = pd.date_range("2000-01-01", periods=6)
    for unit in ("s", "ms", "us", "ns"):
        longer = ds.reindex(time=days.as_unit(unit))
        # one with the encoding of the file, one without
        longer = longer.assign(again=("time", days.as_unit(unit)))
        longer.virtual.to_manifest(tmp_path / f"refs{suffix}", mode="w")
        again = xr.load_dataset(tmp_path / f"refs{suffix}", engine="virtual")
        for name in ("time", "again"):
            assert (again[name].values == days.values).all()
            assert again[name].encoding["units"].endswith("since 2000-01-01 00:00:00")
        np.testing.assert_array_equal(again["t"], [0, 1, 2, 3, np.nan, np.nan])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_padded_members_in_arrays_of_members_come_back(suffix: str, tmp_path: Path) -> None:
    padded = np.dtype([("a", "i1"), ("b", "i4")], align=True)
    deep = np.dtype([("y", "i1"), ("z", padded, (2,))], align=True)
    values = np.zeros(2, [("q", "i2"), ("p", deep, (3,))])
    values["q"] = [1, 2]
    values["p"]["z"]["a"] = np.arange(12).reshape(2, 3, 2)
    values["p"]["z"]["b"] = np.arange(12).reshape(2, 3, 2) - 70_000
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file["v"] = values
    dataset = virtualds.open_virtual_dataset(tmp_path / "k.h5")
    for how in ("error", "rewrite"):
        # chunks are encoded anew, or values in memory are written
        written = dataset if how == "rewrite" else dataset.virtual.load()
        target = tmp_path / f"{how}{suffix}"
        written.virtual.to_manifest(target, on_unsupported=how)
        found = xr.load_dataset(target, engine="virtual")["v"].values
        np.testing.assert_array_equal(found["q"], values["q"])
        for name in ("a", "b"):
            np.testing.assert_array_equal(found["p"]["z"][name], values["p"]["z"][name])


VARYING = [("n", "i4"), ("s", h5py.string_dtype())]
REFUSED: dict[str, tuple[Make, str]] = {
    "None among text": (one(np.array(["a", None, "b"], object)), "fillna.*nan where only"),
    "nan among text": (one(np.array(["a", np.nan, "b"], object)), "fillna.*nan where only"),
    "None among bytes": (one(np.array([b"a", None], object)), r"astype\('S'\)"),
    "nothing but None": (one(np.array([None, None], object)), "fillna.*None where only"),
    "numbers among text": (one(np.array([1, "a"], object)), r"astype\(str\).*1 where only"),
    "lists": (one(np.array([[1], [1, 2]], object)), "where only strings"),
    "characters with gaps": (lambda p: with_gaps(characters(p, False)), r"astype\('S'\)"),
    "strings of characters with gaps": (lambda p: with_gaps(characters(p, True)), r"astype"),
    "members of varying length": (lambda p: compound(p, VARYING), "drop_vars.*members"),
    "objects as members": (one(np.array([(1, "ab")], [("n", "i4"), ("s", "O")])), "members"),
    "categories": (one(pd.Categorical(["a", "b"])), "type category .*numpy array"),
    "periods": (one(pd.period_range("2000", periods=2, freq="M")), r"type period\[M\]"),
    "numbers of pandas": (one(pd.array([1, None], "Int64")), "type Int64 .*numpy array"),
    "arrays of varying length": (ragged, "convert them, or leave it out"),
}


@looped("suffix", SUFFIXES)
@looped("name", REFUSED)
def test_values_without_a_form_in_sets_are_refused(name: str, suffix: str, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    dataset, target = make(tmp_path), tmp_path / f"refs{suffix}"
    with pytest.raises(UnsupportedError, match=f"(?s){reason}") as caught:
        dataset.virtual.to_manifest(target)
    assert "v" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert not target.exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_are_refused_when_written_if_readers_refuse_them(suffix: str, tmp_path: Path) -> None:
    for name in (".", ".."):
        target = tmp_path / f"refs{suffix}"
        odd = one([1, 2])(tmp_path).rename(v=name)
        for whole in (odd, xr.DataTree.from_dict({"a": odd})):
            with pytest.raises(UnsupportedError, match="rename it"):
                whole.virtual.to_manifest(target)
        assert not target.exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_dimension_may_have_an_empty_name(suffix: str, tmp_path: Path) -> None:
    ds = one([1, 2])(tmp_path).rename_dims(x="")
    ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
    found = xr.load_dataset(tmp_path / f"refs{suffix}", engine="virtual")
    xr.testing.assert_identical(found, ds)


def test_types_nested_too_deeply_are_refused_by_name(tmp_path: Path) -> None:
    for depth in (30, 300, 900):
        array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<i4", "order": "C"}
        array |= {"compressor": None, "filters": None, "fill_value": None}
        # the writer of JSON could not nest it
        text = json.dumps(array).replace('"<i4"', '[["a",' * depth + '"<i4"' + "]]" * depth)
        refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": text, "x/0": "abcd"}
        path = tmp_path / f"{depth}.json"
        path.write_text(json.dumps({"version": 1, "refs": refs}))
        if depth == 30:
            assert virtualds.open_virtual_dataset(path)["x"].dtype.itemsize == 4
            continue
        with pytest.raises(
            VirtualdsError, match=r"x.*(in each other|nested too deeply|levels of nested)"
        ):
            virtualds.open_virtual_dataset(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("make", [ragged, lambda p: compound(p, VARYING)])
def test_files_of_varying_length_are_not_converted(make: Make, suffix: str, tmp_path: Path) -> None:
    source = make(tmp_path).encoding["source"]
    with pytest.raises(VirtualdsError, match="v: it") as caught:
        virtualds.convert(source, tmp_path / f"refs{suffix}")
    assert isinstance(caught.value, UnsupportedError)


def copies(ds: xr.Dataset, target: Path, **how: Any) -> list[str]:
    """Write a dataset; return how many bytes of which variables the writer said it copies."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ds.virtual.to_manifest(target, **how)
    found = [w for w in said if w.category is virtualds.CopyWarning]
    assert all(w.filename == __file__ and "open_virtual_dataset" in str(w.message) for w in found)
    return [" ".join(str(w.message).split()[:5]) for w in found]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_writer_says_which_lazy_values_it_copies(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.datasets.conversion.COPY_WARNING_BYTES", 2000)
    paths = [tmp_path / name for name in ("a.nc", "b.nc")]
    for n, path in enumerate(paths):
        values = np.arange(400.0).reshape(4, 100) + n
        days = xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(4) + 4 * n})
        days.to_netcdf(path, encoding={"t": {"chunksizes": (2, 100)}})
    first, second = map(virtualds.open_virtual_dataset, paths)

    def opened(**how: Any) -> xr.Dataset:
        return xr.open_dataset(paths[1], **how)

    kinds: dict[str, Callable[[], xr.Dataset]] = {
        "of another engine": opened,
        "flipped by another engine": lambda: opened().isel(x=slice(None, None, -1)),
        "computed by dask": lambda: opened(chunks={}) + 1,
        "in memory": lambda: opened().load(),
        "virtual": lambda: second,
        "of the engine": lambda: opened(engine="virtual").isel(x=slice(2, 90)).isel(x=slice(88)),
    }
    target = tmp_path / f"refs{suffix}"
    once = ["t: writing loads 3.2 kB,"]
    for kind, make in kinds.items():
        said = once if kind not in ("in memory", "virtual", "of the engine") else []
        assert copies(make(), target, mode="w") == said, kind
        copies(first.drop_vars("t"), target, mode="w")
        assert copies(make()[["t"]].drop_vars("time"), target, mode="a") == said, kind
        copies(first, target, mode="w")
        if kind in ("virtual", "of the engine"):
            continue
        # the set has references of the variable, which become values too
        assert copies(make(), target, append_dim="time") == [*said, *once], kind
        later = make().assign_coords(time=np.arange(4) + 20)
        assert copies(later, target, append_dim="time") == said, kind
        here = {"region": {"time": slice(4, 8)}, "on_duplicate": "replace"}
        assert copies(make(), target, **here) == said, kind
    points = {"time": xr.DataArray([0, 1], dims="p"), "x": xr.DataArray([5, 2], dims="p")}
    computed = opened(engine="virtual").isel(points)
    with pytest.raises(UnsupportedError, match="variable 't': references cannot express"):
        computed.virtual.to_manifest(target, mode="w")


def test_the_remedy_for_what_cannot_be_written_helps(tmp_path: Path) -> None:
    opened = virtualds.open_virtual_dataset(dated(tmp_path), loadable_variables=[])
    load = "ds.virtual.load"
    for odd in ("..", "__t", "zarr.json"):
        for ds in (opened, opened.load()):
            with pytest.raises(UnsupportedError, match=r"rename it with ds\.rename") as caught:
                ds.rename(t=odd).virtual.to_manifest(tmp_path / "refs.zarr")
            assert load not in str(caught.value)
    odd_text = opened.assign(w=("x", [1.0], {"plan": (1, object())}))
    for suffix in SUFFIXES:
        with pytest.raises(UnsupportedError, match=r"change it with ds\.attrs") as caught:
            odd_text.virtual.to_manifest(tmp_path / f"refs{suffix}")
        assert load not in str(caught.value)
    both = odd_text.rename(t="__t")
    with pytest.raises(UnsupportedError, match="each line says what to do") as caught:
        both.virtual.to_manifest(tmp_path / "refs.zarr")
    assert "ds.rename" in str(caught.value) and "ds.attrs" in str(caught.value)
    ds = both.rename(__t="t").assign(w=both["w"].assign_attrs(plan="1"))
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    xr.testing.assert_equal(xr.load_dataset(tmp_path / "refs.zarr", engine="virtual"), ds.load())


def test_dates_whose_units_suit_most_of_them_but_not_all_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xarray chooses the unit from all values, so that a check of some is none.

    It decodes such dates in seven seconds a million, so parts of which each could be checked are
    made small instead.
    """
    part = 2**10
    monkeypatch.setattr(cf, "DATES_AT_ONCE", part)
    most = [
        "2131-06-14T05:25:20",
        "1706-09-29T05:50:46.290448384",
        "2102-07-01T10:13:20",
        "2140-05-22T07:49:20",
    ]
    last = ["2054-12-20T14:24", "2108-05-19T12:00", "2186-02-05T09:36", "2209-04-12T19:12"]
    dates = np.concatenate(
        [np.resize(np.array(most, "M8[ns]"), 16 * part), np.array(last, "M8[ns]")]
    )
    dataset = xr.Dataset(coords={"t": ("t", dates, {}, {"units": "minutes since 1900-01-01"})})
    dataset.virtual.to_manifest(tmp_path / "refs.zarr")
    found = virtualds.open_virtual_dataset(tmp_path / "refs.zarr")["t"].values
    assert (found == dates).all()


def test_many_dates_are_written_and_opened_with_few_copies_of_them(tmp_path: Path) -> None:
    """xarray makes three copies of dates on its way, of archives with as many as thirty million."""

    def make_dataset(size: int) -> xr.Dataset:
        dates = np.datetime64("2000-01-01", "ns") + np.arange(size) * np.timedelta64(60, "s")
        return xr.Dataset(coords={"t": ("t", dates, {}, {"units": "minutes since 2000-01-01"})})

    def count_copies(work: Callable[[], object]) -> float:
        tracemalloc.start()
        work()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak / dates.nbytes

    make_dataset(9).virtual.to_manifest(tmp_path / "few.zarr")
    virtualds.open_virtual_dataset(tmp_path / "few.zarr")
    dataset, target = make_dataset(2**20), tmp_path / "many.zarr"
    dates = dataset["t"].values
    assert count_copies(lambda: dataset.virtual.to_manifest(target)) < 2.75
    # the stored numbers, the dates, and a chunk in the cache
    assert count_copies(lambda: virtualds.open_virtual_dataset(target)) < 4
    assert count_copies(lambda: xr.open_dataset(target, engine="virtual")) < 4
    assert (xr.open_dataset(target, engine="virtual")["t"].values == dates).all()


FIRST = np.datetime64("2000-02-28", "ns")
DATES = {
    "days": FIRST + np.arange(9) * np.timedelta64(1, "D"),
    "hours": FIRST + np.arange(9) * np.timedelta64(1, "h"),
    "not sorted": FIRST + np.array([1, 70_000_000, 2]) * np.timedelta64(60, "s"),
    "some are missing": np.array([FIRST, "NaT", FIRST], "M8[ns]"),
    "not whole": np.array([FIRST, FIRST + 1, FIRST + np.timedelta64(1, "D")]),
    "old": np.array(["1690-01-01", "2000-01-01", "2001-01-01"], "M8[ns]"),
    "one": np.array([FIRST]),
    "none": np.array([], "M8[ns]"),
}
UNITS: tuple[dict[str, Any], ...] = (
    {"units": "days since 1999-12-31"},
    {"units": "hours since 2000-01-01 06:00:00", "calendar": "standard"},
    {"units": "minutes since 1850-01-01", "calendar": "proleptic_gregorian"},
    {"units": "seconds since 1970-01-01", "calendar": "gregorian"},
    {"units": "days since 2000-01-01", "calendar": "noleap"},
    {"units": "hours since 2000-01-01", "scale_factor": 2.0},
    {"units": "days since 2000-01-01", "add_offset": 10.0, "_FillValue": np.nan},
    {"units": "days since 2000-01-01", "_FillValue": np.nan},
    {},
)


@looped("name", DATES)
@looped("units", UNITS)
@looped("dtype", ("", "i2", "i4", "i8", "u4", "f4", "f8"), quick=2)
def test_dates_are_encoded_as_by_xarray(name: str, units: dict[str, Any], dtype: str) -> None:
    encoding = {"_FillValue": None, **units, **({"dtype": np.dtype(dtype)} if dtype else {})}
    variable = xr.Variable("t", DATES[name], {"long_name": "time"}, encoding)

    def encode(work: Callable[[], xr.Variable]) -> xr.Variable | None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            # numpy's, of dates that are missing
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                return work()
            except (ValueError, OverflowError, KeyError, UserWarning):
                return None

    ours = encode(lambda: encode_like_xarray("t", variable))
    theirs = encode(lambda: xr.conventions.encode_cf_variable(variable, name="t"))
    if ours is None or theirs is None:
        assert ours is theirs
    else:
        xr.testing.assert_identical(ours, theirs)
        assert (ours.dtype, ours.encoding) == (theirs.dtype, theirs.encoding)


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_dates_whose_fill_value_is_a_text_open(tmp_path: Path, name: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        time = file.create_dataset("time", data=np.arange(4.0))
        time.make_scale("time")
        time.attrs["units"] = "days since 2000-01-01"
        time.attrs[name] = "none"
    opened = virtualds.open_virtual_dataset(tmp_path / "a.h5")
    assert (opened["time"].values == DAYS.values).all()


@pytest.mark.parametrize("dtype", ["<M8[h]", ">M8[ns]", "<M8[D]"])
def test_dates_that_a_source_stores_as_numpy_does_keep_their_type(
    tmp_path: Path, dtype: str
) -> None:
    values = DAYS.values.astype(dtype)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    array = group.create_array("t", shape=values.shape, chunks=values.shape, dtype=dtype)
    array.attrs["_ARRAY_DIMENSIONS"] = ["t"]
    array[:] = values
    opened = virtualds.open_virtual_dataset(tmp_path / "a.zarr")
    expected = xr.open_dataset(tmp_path / "a.zarr", engine="zarr", consolidated=False)
    xr.testing.assert_identical(opened, expected)
    assert opened["t"].dtype == expected["t"].dtype
