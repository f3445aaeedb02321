"""What xarray does with a virtual dataset is what it does with the natively opened one."""

import operator
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
from products import looped
from virtual_arrays import counted_reads, no_reads

import virtualds
from virtualds import ManifestArray, UnsupportedError

KINDS = ("f4", "f8", "i2", "i8", "u1", "S3", "M8[ns]", "m8[ns]", "b1", "packed")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A variable of every kind, ``(time, y, x)`` of ``(9, 4, 5)``, in chunks of four days."""
    file = tmp_path_factory.mktemp("operations") / "a.nc"
    numbers = np.random.default_rng(3).integers(0, 100, (9, 4, 5))
    ds = xr.Dataset(
        {k: (("time", "y", "x"), numbers.astype("f8" if k == "packed" else k)) for k in KINDS},
        {"time": np.arange(9), "y": np.arange(4.0)},
    )
    ds["f4"][0, 1, 2] = np.nan
    encoding: dict[str, Any] = {k: {"chunksizes": (4, 4, 5)} for k in KINDS if k != "S3"}
    encoding["packed"] |= {"dtype": "i2", "scale_factor": 0.5, "_FillValue": 7}
    for kind in ("M8[ns]", "m8[ns]"):
        unit = "hours since 1970-01-01" if kind[0] == "M" else "hours"
        ds[kind].data[:] = (numbers * 3600).astype(f"{kind[0]}8[s]").astype(kind)
        encoding[kind] |= {"units": unit}
    ds.to_netcdf(file, encoding=encoding)
    return file


@pytest.fixture
def native(path: Path) -> xr.Dataset:
    return xr.load_dataset(path).copy(deep=True)


@pytest.fixture
def vds(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


def same(found: Any, expected: Any) -> None:
    """Demand identical values of one dtype."""
    if isinstance(expected, xr.DataArray | xr.Dataset):
        xr.testing.assert_identical(found.compute(), expected)
        for name, variable in getattr(expected, "variables", {None: expected}).items():
            other = found if name is None else found.variables[name]
            assert other.dtype == variable.dtype
    else:
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)


def outcome(do: Callable[[xr.Dataset], Any], ds: xr.Dataset) -> Any:
    """What an operation gives, or how it fails."""
    try:
        return do(ds)
    except (TypeError, ValueError) as error:
        return error


def assert_alike(do: Callable[[xr.Dataset], Any], vds: xr.Dataset, native: xr.Dataset) -> None:
    found, expected = outcome(do, vds), outcome(do, native)
    if isinstance(expected, Exception):
        assert type(found) is type(expected), found
        assert str(found) == str(expected)
    else:
        assert not isinstance(found, Exception), repr(found)
        same(found, expected)


# ---------------------------------------------------------------------- comparing

OTHERS: dict[str, Callable[[xr.Dataset], Any]] = {
    "text": lambda ds: "x",
    "bytes": lambda ds: b"x",
    "a number": lambda ds: 3,
    "none": lambda ds: None,
    "a date": lambda ds: np.datetime64("1970-01-01"),
    "floats": lambda ds: ds["f4"],
    "whole numbers": lambda ds: ds["i2"],
    "texts": lambda ds: ds["S3"],
    "dates": lambda ds: ds["M8[ns]"],
    "durations": lambda ds: ds["m8[ns]"],
    "texts in memory": lambda ds: np.full((9, 4, 5), "x"),
    "another shape": lambda ds: np.full((9, 4, 2), "x"),
}


# numpy, which both ask, means to give up durations without a unit
@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
@looped("compare", [operator.eq, operator.ne, operator.lt])
@looped("other", OTHERS, quick=3)
def test_operands_that_cannot_be_compared_are_unequal(
    vds: xr.Dataset, native: xr.Dataset, kind: str, other: str, compare: Any
) -> None:
    assert_alike(lambda ds: compare(ds[kind], OTHERS[other](ds)), vds, native)
    assert_alike(lambda ds: compare(ds[kind].data, _values(OTHERS[other](ds))), vds, native)
    assert_alike(lambda ds: compare(_values(OTHERS[other](ds)), ds[kind].data), vds, native)


def test_a_ufunc_of_operands_that_do_not_fit_fails_at_once(
    vds: xr.Dataset, native: xr.Dataset
) -> None:
    assert_alike(lambda ds: np.equal(ds["f4"].data, ds["M8[ns]"].data), vds, native)
    assert_alike(lambda ds: np.isnat(ds["f4"].data), vds, native)


# ---------------------------------------------------------------------- in place

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "wider": lambda a: operator.iadd(a, np.arange(5.0)),
    "a fraction": lambda a: operator.iadd(a, 1.5),
    "a number": lambda a: operator.imul(a, 2),
    "divided": lambda a: operator.itruediv(a, 2),
    "a power": lambda a: operator.ipow(a, 2),
    "floored": lambda a: operator.ifloordiv(a, 3),
    "itself": lambda a: operator.isub(a, a),
    "too large a shape": lambda a: operator.iadd(a, np.ones((2, 9, 4, 5))),
    "somewhere": lambda a: np.negative(a, out=(a,), where=np.arange(5) > 2),
}


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("kind", ["f4", "f8", "i2", "u1", "b1", "m8[ns]", "M8[ns]"])
@pytest.mark.parametrize("which", IN_PLACE)
def test_an_operation_in_place_keeps_the_dtype(
    vds: xr.Dataset, native: xr.Dataset, kind: str, which: str
) -> None:
    assert_alike(lambda ds: IN_PLACE[which](ds[kind].data), vds, native)


def test_a_variable_is_changed_in_place_as_natively(vds: xr.Dataset, native: xr.Dataset) -> None:
    for ds in (vds, native):
        ds["f4"] += np.arange(5.0)
        with pytest.raises(TypeError, match="same_kind"):
            ds["i2"] += 1.5
    same(vds["f4"], native["f4"])
    same(vds["i2"], native["i2"])


def test_an_error_of_assigning_to_items_says_what_to_do(vds: xr.Dataset) -> None:
    for assign in (
        lambda: operator.setitem(vds["f4"], (0, 0), 1.0),
        lambda: operator.setitem(vds["f4"], Ellipsis, np.ones((9, 4, 5))),
        lambda: operator.setitem(vds["f4"].data, 0, 1.0),
        lambda: operator.setitem(vds["f4"].loc, {"time": 3}, 1.0),
    ):
        with no_reads(), pytest.raises(TypeError, match=r"item assignment.*ds\.virtual\.load"):
            assign()
    loaded = vds.virtual.load()
    loaded["f4"][0, 0] = 1.0
    assert (loaded["f4"][0, 0] == 1).all()


# ---------------------------------------------------------------------- methods

METHODS: dict[str, Callable[[xr.Dataset], Any]] = {
    "round": lambda ds: ds.f4.round(2),
    "argsort": lambda ds: ds.f4.argsort(),
    "conj": lambda ds: ds.f4.conj(),
    "conjugate of booleans": lambda ds: ds["b1"].conjugate(),
    "real": lambda ds: ds.f4.real,
    "imag": lambda ds: ds.i2.imag,
    "item": lambda ds: ds.f4[0, 0, 0].item(),
    "item at": lambda ds: ds.f4.item(5),
    "clip": lambda ds: ds.f4.clip(3, 40),
    "searchsorted": lambda ds: ds.f8[:, 0, 0].sortby(ds.f8[:, 0, 0]).searchsorted(40.0),
    "polyfit": lambda ds: ds.f8.polyfit("time", 2),
    "mean of the data": lambda ds: xr.apply_ufunc(
        lambda a: a.mean(-1), ds.f4, input_core_dims=[["x"]]
    ),
    "std of the data": lambda ds: ds.f4.data.std(axis=0, ddof=1),
    "sum of a virtual mask": lambda ds: ds.f8.data.sum(where=ds["b1"].data),
    "all": lambda ds: ds["b1"].data.all(),
    "max": lambda ds: ds.f4.data.max(0),
    "dot": lambda ds: ds.f8.data[0].dot(np.ones(5)),
    "tolist": lambda ds: ds.i2.data.tolist(),
    "astype": lambda ds: ds.f4.astype("f2", order="F", subok=False),
    "astype without": lambda ds: ds.f4.astype("f8", casting="safe", copy=False),
    "view": lambda ds: ds["M8[ns]"].data.view("i8"),
    "stack": lambda ds: ds.f4.stack(p=("y", "x")),
    "interpolate_na": lambda ds: ds.f4.interpolate_na("time"),
    "quantile": lambda ds: ds.f4.quantile(0.5, "time"),
    "concatenate a list": lambda ds: np.concatenate([ds.i2.data[0, 0], [1, 2]]).astype("i8"),
    "stack lists": lambda ds: np.stack([ds.i2.data[0, 0], [1, 2, 3, 4, 5]]).astype("i8"),
    "reshape": lambda ds: ds.i2.data.reshape(36, -1),
    "reshape by a tuple": lambda ds: ds.i2.data.reshape((36, 5), order="F"),
    "ravel": lambda ds: ds.i2.data.ravel(),
    "flatten": lambda ds: ds.i2.data.flatten(),
    "nonzero": lambda ds: ds.i2.data.nonzero()[0],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("which", METHODS)
def test_methods_of_arrays_are_numpys(vds: xr.Dataset, native: xr.Dataset, which: str) -> None:
    def do(ds: xr.Dataset) -> Any:
        found = METHODS[which](ds)
        return np.asarray(found) if isinstance(found, ManifestArray) else found

    assert_alike(do, vds, native)


def _values(found: Any) -> Any:
    found = getattr(found, "variable", found)
    return np.asarray(found) if isinstance(found, ManifestArray | xr.Variable) else found


SHAPING: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda a: a.reshape(9, 1, 4, 5),
    "reshape by a tuple": lambda a: a.reshape((1, 9, 4, 5)),
    "ravel": lambda a: a[2, 0].ravel(),
    "flatten": lambda a: a[2:3, 1:2].flatten(),
    "squeeze": lambda a: a[:1].squeeze(),
    "squeeze one": lambda a: a[:1, :, :1].squeeze(axis=0),
    "swapaxes": lambda a: a.swapaxes(0, 2),
    "real": lambda a: a.real,
    "imag": lambda a: a.imag,
    "conj": lambda a: a.conj(),
    "conjugate": lambda a: a.conjugate(),
    "concatenate a list": lambda a: np.concatenate([a[0, 0], [1.0, 2.0]]),
    "stack a list": lambda a: np.stack([a[0, 0], [1.0] * 5], axis=1),
}


@pytest.mark.parametrize("which", SHAPING)
def test_methods_that_change_no_value_read_nothing(
    vds: xr.Dataset, native: xr.Dataset, which: str
) -> None:
    with no_reads():
        found = SHAPING[which](vds["f4"].data)
    assert isinstance(found, ManifestArray)
    same(np.asarray(found), SHAPING[which](native["f4"].data))


def test_methods_respect_the_limit_and_looking_for_them_reads_nothing(vds: xr.Dataset) -> None:
    array = vds["f4"].data
    with no_reads():
        assert all(hasattr(array, n) for n in ("mean", "item", "ravel", "real", "tolist", "copy"))
        assert not hasattr(array, "sort")
        assert not hasattr(array, "chunks")
    with virtualds.set_options(load_limit=100), no_reads():
        for name in ("mean", "tolist", "argsort"):
            with pytest.raises(UnsupportedError, match="limit of 100"):
                getattr(array, name)()


def test_a_virtual_dataset_is_written_natively(
    vds: xr.Dataset, native: xr.Dataset, tmp_path: Path
) -> None:
    names = ["f4", "i2", "packed", "M8[ns]", "b1"]
    for ds, folder in ((vds, "virtual"), (native, "native")):
        ds[names].drop_encoding().to_zarr(tmp_path / folder, consolidated=False)
        ds[names].to_netcdf(tmp_path / f"{folder}.nc")
    written = [
        xr.load_dataset(tmp_path / f, engine="zarr", consolidated=False)
        for f in ("virtual", "native")
    ]
    xr.testing.assert_identical(*written)
    xr.testing.assert_identical(*(xr.load_dataset(p) for p in sorted(tmp_path.glob("*.nc"))))


# ---------------------------------------------------------------------- filling

FILLING: dict[str, Callable[[xr.DataArray], Any]] = {
    "shift": lambda a: a.shift(time=1),
    "shift back": lambda a: a.shift(time=-2, x=1),
    "shift by all": lambda a: a.shift(time=12),
    "pad": lambda a: a.pad(time=1),
    "pad unevenly": lambda a: a.pad(time=(0, 2), y=3),
    "where": lambda a: a.where(a.time > 3),
    "where of two dims": lambda a: a.where((a.time > 3) & (a.y < 2)),
    "where in several stretches": lambda a: a.where(a.time.isin([0, 1, 5, 8])),
    "where nothing": lambda a: a.where(a.time > 99),
    "where everything": lambda a: a.where(a.time > -1),
    "where one says": lambda a: a.where(np.bool_(False)),
    "where a new dim": lambda a: a.where(xr.DataArray([True, False], dims="run")),
    "twice": lambda a: a.shift(time=1).where(a.y > 0).pad(x=1),
}
PADS: dict[str, dict[str, Any]] = {
    "zero": {"constant_values": 0},
    "one": {"constant_values": 1},
    "a fraction": {"constant_values": 1.5},
    "too large": {"constant_values": 300},
    "negative": {"constant_values": -1},
    "two values": {"constant_values": (1, 2)},
    "of a dimension": {"constant_values": {"time": 4}},
    "edge": {"mode": "edge"},
    "reflect": {"mode": "reflect"},
    "mean": {"mode": "mean"},
}
HOLDS_GAPS = ("f4", "f8", "i2", "u1", "M8[ns]", "m8[ns]", "packed")


@pytest.mark.parametrize("kind", KINDS)
@looped("which", FILLING, quick=2)
def test_crops_and_stretches_are_filled(
    vds: xr.Dataset, native: xr.Dataset, kind: str, which: str
) -> None:
    assert_alike(lambda ds: FILLING[which](ds[kind]), vds, native)
    if kind in HOLDS_GAPS:
        with no_reads():
            found = FILLING[which](vds[kind])
        assert isinstance(found.data, ManifestArray)
        assert pickle.loads(pickle.dumps(found.data)).has_same_references(found.data)


@pytest.mark.parametrize("kind", KINDS)
@looped("which", PADS, quick=2)
def test_borders_are_numpys(vds: xr.Dataset, native: xr.Dataset, kind: str, which: str) -> None:
    assert_alike(lambda ds: ds[kind].pad(time=(1, 2), **PADS[which]), vds, native)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        (1,), ((1, 2),), ((0, 0),), ([(1, 2)] * 3,), (-1,), (1.0,), ((1, 2, 3),), ({0: 1},),
        ([[1], [2], [0]],), (1, "wrap"), (1, "nonsense"), (True,),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"constant_values": 3}, {"stat_length": 2}], ids=str)
def test_every_width_of_a_border_is_numpys(
    vds: xr.Dataset, native: xr.Dataset, arguments: Any, options: Any
) -> None:
    assert_alike(lambda ds: np.asarray(np.pad(ds["f4"].data, *arguments, **options)), vds, native)


def test_gaps_of_two_values_are_kept_apart(vds: xr.Dataset, native: xr.Dataset) -> None:
    def do(ds: xr.Dataset) -> xr.DataArray:
        return ds["f4"].pad(time=1, constant_values=5).pad(time=1, constant_values=6).shift(x=1)

    with no_reads():
        found = do(vds)
    same(found, do(native))


def test_a_mask_of_very_many_stretches_reads(tmp_path: Path) -> None:
    xr.Dataset({"v": ("x", np.arange(1000.0))}).to_netcdf(tmp_path / "a.nc")
    vds = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    mask = xr.DataArray(np.arange(1000) % 2 == 0, dims="x")
    assert isinstance(vds["v"].where(mask).data, np.ndarray)
    assert isinstance(vds["v"].where(mask | (mask.x > 40)).data, ManifestArray)


# ---------------------------------------------------------------------- dask

CHUNKED: dict[str, Callable[[xr.Dataset], Any]] = {
    "std": lambda ds: ds.std(),
    "var along": lambda ds: ds.var("time"),
    "mean": lambda ds: ds.mean(),
    "sum along": lambda ds: ds.sum("time"),
    "max": lambda ds: ds.max("x"),
    "anomaly": lambda ds: ds - ds.mean("time"),
    "shift": lambda ds: ds.shift(time=1),
    "where": lambda ds: ds.where(ds.time > 3),
    "index": lambda ds: ds.isel(time=[5, 1], x=2),
    "nothing": lambda ds: ds,
    "cumsum": lambda ds: ds.cumsum("time"),
    "rolling": lambda ds: ds.rolling(time=3).sum(),
    "groupby": lambda ds: ds.groupby(ds.time % 2).sum(),
    "coarsen": lambda ds: ds.coarsen(time=3).max(),
    "concat": lambda ds: xr.concat([ds, ds], "time"),
    "diff": lambda ds: ds.diff("time"),
}


CHUNKS: list[Any] = [{"time": 5}, {"time": 4, "x": 2}, {}, -1, "auto"]
TURNS = [
    (which, CHUNKS[(n + turn) % len(CHUNKS)]) for n, which in enumerate(CHUNKED) for turn in (0, 2)
]
"""What is done with chunks of dask, each with two kinds of chunks: it is dask that does it."""


@looped("which, chunks", [("nothing", chunks) for chunks in CHUNKS] + TURNS, quick=8)
def test_chunks_of_dask_are_numpys(
    vds: xr.Dataset, native: xr.Dataset, which: str, chunks: Any
) -> None:
    names = ["f4", "f8", "i2", "packed"]
    with no_reads():
        chunked = vds[names].chunk(chunks)
        found = CHUNKED[which](chunked)
    computed = found.compute()
    for name in names:
        assert type(chunked[name].data._meta) is np.ndarray
        assert type(found[name].data._meta) is np.ndarray
        assert isinstance(computed[name].data, np.ndarray)
    xr.testing.assert_identical(computed, CHUNKED[which](native[names].chunk(chunks)).compute())


def test_chunks_of_dask_are_lazy_small_and_limited(tmp_path: Path) -> None:
    values = np.arange(100_000.0).reshape(1000, 100)
    xr.Dataset({"v": (("t", "x"), values)}).to_netcdf(
        tmp_path / "a.nc", encoding={"v": {"chunksizes": (10, 100), "zlib": True}}
    )
    vds = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    with no_reads():
        chunked = vds.chunk(t=100)["v"]
        assert chunked.data.name == vds.chunk(t=100)["v"].data.name
        assert chunked.data.name != vds.chunk(t=50)["v"].data.name
        assert len(pickle.dumps(chunked)) < 20_000
    with counted_reads() as store:
        same(chunked[205].load(), xr.DataArray(values[205], dims="x", name="v"))
    assert len(store.ranges) == 1
    with virtualds.set_options(load_limit=100 * 100 * 8):
        assert float(chunked.sum()) == values.sum()
        with pytest.raises(UnsupportedError, match="limit"):
            vds.chunk(t=101)["v"].sum().compute()
    same(
        pickle.loads(pickle.dumps(chunked)).load(), xr.DataArray(values, dims=("t", "x"), name="v")
    )


def test_an_array_without_axes_is_chunked(vds: xr.Dataset, native: xr.Dataset) -> None:
    for key in ((), (0, 0, 0)):
        with no_reads():
            found = dask.array.from_array(vds["f4"].data[key])
        assert not isinstance(found.compute(), ManifestArray)
        np.testing.assert_array_equal(found.compute(), native["f4"].data[key])


def test_chunks_of_dask_and_virtual_arrays_mix(vds: xr.Dataset, native: xr.Dataset) -> None:
    for combine in (operator.add, operator.eq, lambda a, b: xr.concat([a, b], "time")):
        with no_reads():
            chunked = vds["f4"].chunk(time=5)
        expected = combine(native["f4"], native["f4"])
        same(combine(chunked, vds["f4"]), expected)
        same(combine(vds["f4"], chunked), expected)


def test_a_copy_gives_values_when_it_is_indexed(vds: xr.Dataset, native: xr.Dataset) -> None:
    with no_reads():
        copied = vds["f4"].data.copy()
        assert isinstance(copied, ManifestArray)
        assert "EagerArray" in repr(copied)
        assert type(copied[:0]) is np.ndarray
    for key in (0, (slice(2), 1), ([3, 1], slice(None), 0), (0, 0, 0), Ellipsis):
        found = copied[key]
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, native["f4"].data[key])
    assert not isinstance(vds["f4"].copy(deep=True).data[:2], np.ndarray)


def test_a_comparison_reads_each_array_once(tmp_path: Path) -> None:
    times = {"units": "days since 2000-01-01"}
    for n in range(2):
        bounds = xr.Dataset({"b": (("time", "n"), np.arange(400.0).reshape(200, 2), times)})
        bounds.to_netcdf(tmp_path / f"{n}.nc", encoding={"b": {"chunksizes": (1, 2)}})
    arrays = [
        virtualds.open_virtual_dataset(tmp_path / f"{n}.nc", loadable_variables=[])["b"].variable
        for n in range(2)
    ]
    with virtualds.set_options(chunk_cache=0):
        with counted_reads() as alone:
            for array in arrays:
                np.asarray(array.data)
        with counted_reads() as store:
            assert arrays[0].equals(arrays[1])  # type: ignore[no-untyped-call]
    assert store.nbytes == alone.nbytes > 0


def test_a_stride_and_a_cast_of_much_warn_with_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).random((200, 90, 8)).astype("f4")
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    ds.to_netcdf(tmp_path / "a.nc", encoding={"t": {"chunksizes": (1, 90, 8)}})
    t = virtualds.open_virtual_dataset(tmp_path / "a.nc")["t"]
    loading: dict[str, Callable[[Any], Any]] = {
        "stride": lambda t: t[:, ::2],
        "stride backwards": lambda t: t[:, ::-2],
        "positions": lambda t: t[:, np.random.default_rng(0).permutation(90)],
        "points": lambda t: t[np.r_[:200], np.r_[:200] % 90],
        "cast": lambda t: t.astype("i2"),
    }
    virtual: dict[str, Callable[[Any], Any]] = {
        "slice": lambda t: t[:, 3:40],
        "flip": lambda t: t[:, ::-1],
        "integer": lambda t: t[3],
        "longer numbers": lambda t: t.astype("f8"),
        "all values": lambda t: t.values,
        "mean": lambda t: t.mean(),
        "dask": lambda t: t.chunk({"time": 50})[:, ::-1].compute(),
        "loaded before": lambda t: t.compute()[:, ::-1],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", virtualds.CopyWarning)
        for change in loading.values():
            change(t)  # few bytes
        monkeypatch.setattr("virtualds.arrays.array.COPY_WARNING_BYTES", 1000)
        for change in virtual.values():
            change(t)
    for name, change in loading.items():
        with pytest.warns(virtualds.CopyWarning, match=r"^t .* loads [\d.,]+ [kM]B") as said:
            found = change(t)
        assert len(said) == 1 and said[0].filename == __file__, name
        np.testing.assert_array_equal(found.values, change(ds["t"]).values)
    assert "after" in str(said[0].message) and "to_lazy" in str(said[0].message)
