"""Granules of different lengths become one dataset: the shorter ones are missing at their end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from daily_files import HOLDING
from netCDF4 import Dataset

import virtualds
from virtualds.datasets.lazy import get_virtual_array
from virtualds_cli.program import main

SCANLINES = (7, 12, 5, 12)
"""The lengths of granules; the first is not the longest."""
PIXELS = 4
SWATH = ("time", "scanline", "ground_pixel")
MINIMAL: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "equals"}
HOW: dict[str, Any] = {"combine": "nested", "concat_dim": "time", "pad": "scanline"}


def write_granule(path: Path, number: int, scanlines: int, chunk: int = 5) -> Path:
    """A granule as those of Sentinel-5P: groups, one time, scanlines that differ."""
    random = np.random.default_rng([number, scanlines, chunk])
    shape = (1, scanlines, PIXELS)
    chunks = (1, max(min(chunk, scanlines), 1), PIXELS)
    with Dataset(path, "w") as root:
        root.title = "granule"
        product = root.createGroup("PRODUCT")
        for dim, size in (("time", 1), ("scanline", scanlines), ("ground_pixel", PIXELS)):
            product.createDimension(dim, size)
        time = product.createVariable("time", "i4", ("time",))
        time.units = "days since 2010-01-01"
        time[:] = [number]
        product.createVariable("ground_pixel", "i4", ("ground_pixel",))[:] = np.arange(PIXELS)
        how = {"chunksizes": chunks, "zlib": True}
        no2 = product.createVariable("no2", "f4", SWATH, fill_value=np.float32(9.96921e36), **how)
        no2[:] = random.normal(size=shape)
        quality = product.createVariable("qa", "u1", SWATH, fill_value=np.uint8(255), **how)
        quality.scale_factor = np.float32(0.01)
        quality[:] = random.integers(0, 101, shape)
        delta = product.createVariable("delta", "i4", SWATH[:2], fill_value=np.int32(-(2**31) + 1))
        delta.units = "milliseconds since 2010-01-01"
        delta[:] = random.integers(0, 10**6, shape[:2])
        utc = product.createVariable("utc", str, SWATH[:2])
        utc[:] = np.array([[f"{number}-{n}" for n in range(scanlines)]], object).reshape(shape[:2])
        below = product.createGroup("GEOLOCATIONS")
        angle = below.createVariable("angle", "f8", SWATH, **how)
        angle[:] = random.normal(size=shape)
    return path


def write_granules(folder: Path, lengths: Sequence[int] = SCANLINES) -> list[Path]:
    return [write_granule(folder / f"g{n}.nc", n, lines) for n, lines in enumerate(lengths)]


def pad_natively(
    files: Iterable[Path], group: str = "PRODUCT", least: int = 0, **how: Any
) -> xr.Dataset:
    """What xarray makes of the files: NaN and NaT, and of text what netCDF reads as missing."""
    opened = [xr.open_dataset(f, group=group, engine="netcdf4", **how) for f in files]
    longest = max([least, *(ds.sizes["scanline"] for ds in opened)])
    padded = [ds.pad(scanline=(0, longest - ds.sizes["scanline"])) for ds in opened]
    joined = xr.concat(padded, "time", **MINIMAL)
    text = {name: joined[name].fillna("") for name in joined if joined[name].dtype == object}
    return joined.assign(text).sortby("time").load() if "time" in joined.coords else joined.load()


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Values bit for bit, and types, except that of text."""
    assert list(found.variables) == list(expected.variables)
    for name, variable in expected.variables.items():
        got = found.variables[name]
        assert got.dims == variable.dims
        if variable.dtype == object:
            assert got.values.tolist() == variable.values.tolist()
        else:
            assert (got.dtype, got.values.tobytes()) == (variable.dtype, variable.values.tobytes())


@pytest.fixture
def granules(tmp_path: Path) -> list[Path]:
    return write_granules(tmp_path)


@pytest.mark.parametrize("lengths", [SCANLINES, (12, 7), (5, 0, 6), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_shorter_granules_are_missing_at_their_end(tmp_path: Path, lengths: Sequence[int]) -> None:
    files = write_granules(tmp_path, lengths)
    found = virtualds.open_virtual_mfdataset(files, group="PRODUCT", **HOW)
    for name in ("no2", "qa", "delta"):
        assert get_virtual_array(found[name].variable) is not None, "nothing is copied"
    assert_same(found, pad_natively(files))


def test_only_zarr_sets_hold_chunks_that_end_at_different_scanlines(
    granules: list[Path], tmp_path: Path
) -> None:
    found = virtualds.open_virtual_mfdataset(granules, group="PRODUCT", **HOW)
    for form, suffix in HOLDING.items():
        target = tmp_path / f"refs{suffix}"
        if form == "zarr-v3":
            found.virtual.to_manifest(target)
            opened = xr.open_dataset(target, engine="virtual")
            assert_same(opened, pad_natively(granules))
            assert_same(opened.chunk().compute(), pad_natively(granules))
        else:
            with pytest.raises(virtualds.UnsupportedError, match=r"no2: its .* fragments"):
                found.virtual.to_manifest(target)


def test_lengths_of_whole_chunks_fit_the_other_formats(tmp_path: Path) -> None:
    files = [write_granule(tmp_path / f"g{n}.nc", n, lines) for n, lines in enumerate((5, 10, 5))]
    found = virtualds.open_virtual_mfdataset(files, group="PRODUCT", **HOW)
    for form, suffix in HOLDING.items():
        target = tmp_path / f"refs{suffix}"
        # chunked by 5 scanlines, a granule of 5 lacks its second chunk
        chunked = found[["no2", "qa"]]
        chunked.virtual.to_manifest(target)
        opened = xr.open_dataset(target, engine="virtual")
        xr.testing.assert_equal(opened.load(), pad_natively(files)[["no2", "qa"]])
        assert form in HOLDING


def test_all_groups_of_a_tree_are_padded(granules: list[Path]) -> None:
    how = {name: value for name, value in HOW.items() if name != "combine"}
    tree = virtualds.open_virtual_mfdatatree(granules, **how)
    assert_same(tree["PRODUCT"].to_dataset(), pad_natively(granules))
    below = tree["PRODUCT/GEOLOCATIONS"].to_dataset(inherit=False)
    assert_same(below, pad_natively(granules, "PRODUCT/GEOLOCATIONS"))


@pytest.mark.parametrize(
    "how", [{"cache": "cache"}, {"parallel": 2}, {"to": "built.zarr"}, {"overlap": "last"}]
)
def test_other_options_of_a_build_pad_alike(
    granules: list[Path], tmp_path: Path, how: dict[str, Any]
) -> None:
    given = {n: str(tmp_path / v) if n in ("cache", "to") else v for n, v in how.items()}
    for _ in range(1 + ("cache" in how)):
        found = virtualds.open_virtual_mfdataset(granules, group="PRODUCT", **HOW, **given)
        xr.testing.assert_equal(found.load(), pad_natively(granules))


def test_files_without_pad_name_it(granules: list[Path], tmp_path: Path) -> None:
    how = HOW | {"group": "PRODUCT"}
    plain = {name: value for name, value in how.items() if name != "pad"}
    with pytest.raises(ValueError) as caught:
        virtualds.open_virtual_mfdataset(granules, **plain)
    assert any("pass pad='scanline'" in note for note in caught.value.__notes__)
    target = tmp_path / "refs.zarr"
    first, second = (virtualds.open_virtual_dataset(f, group="PRODUCT") for f in granules[:2])
    first.virtual.to_manifest(target)
    with pytest.raises(virtualds.CombineError, match=r"no2: it has 7 .* 12 .* pad='scanline'"):
        second.virtual.to_manifest(target, append_dim="time")


def write_table(path: Path, number: int, **variables: Any) -> Path:
    """A file without groups, along a joined dimension of one element, and x."""
    made = xr.Dataset(
        {name: value for name, value in variables.items() if name != "x"},
        {"time": [number], **({"x": variables["x"]} if "x" in variables else {})},
    )
    made.to_netcdf(path, engine="netcdf4")
    return path


def open_tables(*files: Path, **how: Any) -> xr.Dataset:
    given: dict[str, Any] = {"combine": "nested", "concat_dim": "time", "pad": "x", **how}
    return virtualds.open_virtual_mfdataset([*files], **given)


def test_integers_need_a_fill_value(tmp_path: Path) -> None:
    files = [
        write_table(tmp_path / f"{n}.nc", n, k=(("time", "x"), np.arange(n + 2, dtype="i2")[None]))
        for n in range(2)
    ]
    with pytest.raises(virtualds.CombineError) as caught:
        open_tables(*files)
    for said in ("k: ", "0.nc has 2 of 3 elements along 'x'", "int16", "fill_value={'k': -1}"):
        assert said in str(caught.value)
    found = open_tables(*files, fill_value={"k": -1})
    assert found["k"].dtype == np.dtype("i2")
    assert found["k"].values.tolist() == [[0, 1, -1], [0, 1, 2]]
    found.virtual.to_manifest(tmp_path / "refs.zarr")
    opened = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual")
    assert opened["k"].values.tolist() == [[0, 1, -1], [0, 1, 2]]
    # the remedies of the message
    as_float = open_tables(*files, preprocess=lambda ds: ds.assign(k=ds.k.astype("f8")))
    np.testing.assert_array_equal(as_float["k"], [[0, 1, np.nan], [0, 1, 2]])
    assert get_virtual_array(as_float["k"].variable) is not None
    assert "k" not in open_tables(*files, drop_variables="k")
    with pytest.raises(virtualds.CombineError, match=r"-1\.5 is not a value of int16"):
        open_tables(*files, fill_value={"k": -1.5})


@pytest.mark.parametrize(("kind", "value"), [("u1", 255), ("?", False), ("i8", -1)])
def test_the_fill_value_of_the_message_is_one_of_the_type(
    tmp_path: Path, kind: str, value: Any
) -> None:
    files = [
        write_table(tmp_path / f"{n}.nc", n, k=(("time", "x"), np.ones((1, n + 2), kind)))
        for n in range(2)
    ]
    with pytest.raises(virtualds.CombineError) as caught:
        open_tables(*files)
    assert f"fill_value={{'k': {value}}}" in str(caught.value)
    found = open_tables(*files, fill_value={"k": value})
    assert found["k"].values.tolist() == [[1, 1, value], [1, 1, 1]]


def test_stored_values_are_padded_with_their_fill_value(granules: list[Path]) -> None:
    found = virtualds.open_virtual_mfdataset(
        granules, group="PRODUCT", **HOW, decode_cf=False, drop_variables=["utc"]
    )
    assert found["qa"].dtype == np.dtype("u1")
    decoded = xr.decode_cf(found.load())
    expected = pad_natively(granules).drop_vars("utc")
    xr.testing.assert_equal(decoded, expected)


def test_the_coordinate_of_the_longest_file_is_used(tmp_path: Path) -> None:
    lengths = (2, 4, 3)
    files = [
        write_table(
            *(tmp_path / f"{n}.nc", n),
            v=(("time", "x"), np.full((1, size), float(n))),
            height=("x", np.arange(size) * 1.5),
            x=np.arange(size) * 10,
        )
        for n, size in enumerate(lengths)
    ]
    found = open_tables(*files)
    assert found["x"].values.tolist() == [0, 10, 20, 30]
    assert found["height"].values.tolist() == [0, 1.5, 3, 4.5]
    np.testing.assert_array_equal(
        found["v"], [[0, 0, np.nan, np.nan], [1, 1, 1, 1], [2, 2, 2, np.nan]]
    )
    # as xarray aligns them by this coordinate
    alone = [xr.open_dataset(file).drop_vars("height") for file in files]
    aligned = xr.concat(alone, "time", join="outer", **MINIMAL)
    xr.testing.assert_equal(found.drop_vars("height").load(), aligned.load())


@pytest.mark.parametrize("name", ["x", "height"])
def test_coordinates_that_differ_are_an_error(tmp_path: Path, name: str) -> None:
    files = []
    for n, size in enumerate((3, 4)):
        values = {"x": np.arange(size), "height": np.arange(size) * 1.5}
        values[name] = values[name] + n
        v = (("time", "x"), np.zeros((1, size)))
        written = {"v": v, "height": ("x", values["height"]), "x": values["x"]}
        files.append(write_table(tmp_path / f"{n}.nc", n, **written))
    with pytest.raises(virtualds.CombineError) as caught:
        open_tables(*files)
    remedy = "join='outer'" if name == "x" else "data_vars='different'"
    for said in (f"{name}: ", "0.nc", "1.nc", remedy):
        assert said in str(caught.value)
    if name == "height":
        kept = open_tables(*files, data_vars="different")
        np.testing.assert_array_equal(kept["height"], [[0, 1.5, 3, np.nan], [1, 2.5, 4, 5.5]])
        taken = open_tables(*files, compat="override")
        assert taken["height"].values.tolist() == [1, 2.5, 4, 5.5]


def test_a_coordinate_that_only_shorter_files_have_is_an_error(tmp_path: Path) -> None:
    files = [
        write_table(tmp_path / "0.nc", 0, v=(("time", "x"), np.zeros((1, 2))), x=np.arange(2)),
        write_table(tmp_path / "1.nc", 1, v=(("time", "x"), np.zeros((1, 3)))),
    ]
    with pytest.raises(virtualds.CombineError, match=r"x: .*1\.nc has 3 elements .*0\.nc has one"):
        open_tables(*files)


def test_types_are_promoted_and_text_is_as_long_as_the_longest(tmp_path: Path) -> None:
    files = [
        write_table(
            *(tmp_path / f"{n}.nc", n),
            v=(("time", "x"), np.ones((1, n + 1), kind)),
            s=(("time", "x"), np.array([["a" * (n + 1)] * (n + 1)], object)),
        )
        for n, kind in enumerate(("f4", "f8"))
    ]
    found = open_tables(*files)
    assert found["v"].dtype == np.dtype("f8")
    np.testing.assert_array_equal(found["v"], [[1, np.nan], [1, 1]])
    assert found["s"].values.tolist() == [["a", ""], ["aa", "aa"]]
    marked = open_tables(*files, fill_value={"s": "missing"})
    assert marked["s"].values.tolist() == [["a", "missing"], ["aa", "aa"]]


def test_joined_and_misspelt_dimensions_are_errors(granules: list[Path]) -> None:
    how = HOW | {"group": "PRODUCT"}
    with pytest.raises(ValueError, match="pad='time': files are joined along it"):
        virtualds.open_virtual_mfdataset(granules, **how | {"pad": ["scanline", "time"]})
    with pytest.raises(virtualds.CombineError, match="did you mean 'scanline'"):
        virtualds.open_virtual_mfdataset(granules, **how | {"pad": "scanlines"})


def test_a_grid_and_a_new_dimension_are_padded(tmp_path: Path) -> None:
    files, parts = [], {}
    for n, size in enumerate((3, 5, 4, 2)):
        member, time = divmod(n, 2)
        part = xr.Dataset(
            {"v": (("member", "time", "x"), np.full((1, 1, size), float(n)))},
            {"member": [member], "time": [time]},
        )
        files.append(tmp_path / f"{n}.nc")
        part.to_netcdf(files[-1], engine="netcdf4")
        parts[n] = part.pad(x=(0, 5 - size))
    found = open_tables(*files, concat_dim=["member", "time"])
    expected = xr.combine_by_coords([*parts.values()], **MINIMAL)
    xr.testing.assert_equal(found.load(), expected)  # type: ignore[arg-type]
    by_coords = virtualds.open_virtual_mfdataset(files, pad="x")
    xr.testing.assert_equal(by_coords.load(), expected)  # type: ignore[arg-type]

    def squeeze(ds: xr.Dataset) -> xr.Dataset:
        return ds.squeeze(drop=True)

    stacked = open_tables(*files, concat_dim="run", preprocess=squeeze)
    xr.testing.assert_equal(
        stacked.load(),
        xr.concat([squeeze(part) for part in parts.values()], "run", data_vars="all"),
    )


def test_two_dimensions_are_padded_at_once(tmp_path: Path) -> None:
    parts = []
    for n, shape in enumerate([(2, 5), (4, 3)]):
        parts.append(xr.Dataset({"v": (("time", "x", "y"), np.full((1, *shape), float(n)))}))
        parts[-1].to_netcdf(tmp_path / f"{n}.nc", engine="netcdf4")
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    found = open_tables(*files, pad=["x", "y"])
    expected = [ds.pad(x=(0, 4 - ds.sizes["x"]), y=(0, 5 - ds.sizes["y"])) for ds in parts]
    xr.testing.assert_equal(found.load(), xr.concat(expected, "time"))
    with pytest.raises(ValueError) as caught:
        open_tables(*files, pad=["x"])
    assert any("pad='y'" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- appending


def test_appending_makes_the_set_or_the_granule_longer(
    granules: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    for number, file in enumerate(granules):
        ds = virtualds.open_virtual_dataset(file, group="PRODUCT")
        ds.virtual.to_manifest(target, append_dim="time", **({"pad": "scanline"} if number else {}))
        opened = xr.open_dataset(target, engine="virtual")
        assert_same(opened, pad_natively(granules[: number + 1]))
    with pytest.raises(ValueError, match="pad"):
        ds.virtual.to_manifest(tmp_path / "other.zarr", pad="scanline")


def test_a_tree_is_appended_with_padding(granules: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    for number, file in enumerate(granules[:3]):
        tree = virtualds.open_virtual_datatree(file)
        padding = {"pad": "scanline"} if number else {}
        tree.virtual.to_manifest(target, append_dim="time", **padding)
    for group in ("PRODUCT", "PRODUCT/GEOLOCATIONS"):
        opened = xr.open_dataset(target, engine="virtual", group=group)
        xr.testing.assert_equal(opened.load(), pad_natively(granules[:3], group))


def test_the_command_line_pads(granules: list[Path], tmp_path: Path) -> None:
    runner, files = CliRunner(), [str(path) for path in granules]
    options = ["--pad", "scanline", "--group", "PRODUCT"]
    scanned, grown, kept = (str(tmp_path / f"{name}.zarr") for name in ("scan", "append", "sync"))
    for given in (
        ["scan", *files, "-o", scanned, "--concat-dim", "time", *options],
        ["append", grown, *files[:2], "--dim", "time", *options],
        ["append", grown, *files[2:], "--dim", "time", *options],
        ["sync", *files, kept, "--concat-dim", "time", "--settle", "0", *options],
    ):
        ran = runner.invoke(main, given)
        assert not ran.exit_code, ran.output
    for target in (scanned, grown, kept):
        assert_same(xr.open_dataset(target, engine="virtual"), pad_natively(granules))


# ---------------------------------------------------------------------- syncing

SYNC: dict[str, Any] = {"concat_dim": "time", "pad": "scanline", "group": "PRODUCT", "settle": 0}


@contextmanager
def unreadable(files: Iterable[Path]) -> Iterator[None]:
    """Empty files of the same sizes and times, which nobody can open."""
    held = [(file, file.read_bytes(), file.stat().st_mtime_ns) for file in files]
    for file, content, mtime in held:
        file.write_bytes(bytes(len(content)))
        os.utime(file, ns=(mtime, mtime))
    yield
    for file, content, mtime in held:
        file.write_bytes(content)
        os.utime(file, ns=(mtime, mtime))


def test_sync_grows_with_the_longest_granule_and_opens_no_earlier_one(tmp_path: Path) -> None:
    target, pattern = tmp_path / "refs.zarr", f"{tmp_path}/g*.nc"
    files = list[Path]()
    for number, scanlines in enumerate((7, 12, 5, 13)):
        files.append(write_granule(tmp_path / f"g{number}.nc", number, scanlines))
        with unreadable(files[:-1]):
            report = virtualds.sync(pattern, target, **SYNC)
        assert report.added == (files[-1].as_uri(),)
        assert_same(xr.open_dataset(target, engine="virtual"), pad_natively(files))
        assert len(virtualds.snapshots(str(target))) == number + 1
    assert not virtualds.sync(pattern, target, **SYNC).is_written


def test_a_granule_that_becomes_shorter_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    target, pattern = tmp_path / "refs.zarr", f"{tmp_path}/g*.nc"
    files = write_granules(tmp_path, (7, 12, 6))
    virtualds.sync(pattern, target, **SYNC)
    write_granule(files[1], 1, 4)
    assert virtualds.sync(pattern, target, **SYNC).replaced == (files[1].as_uri(),)
    assert_same(xr.open_dataset(target, engine="virtual"), pad_natively(files, least=12))
    write_granule(files[1], 1, 14)
    virtualds.sync(pattern, target, **SYNC)
    assert_same(xr.open_dataset(target, engine="virtual"), pad_natively(files))
    files[0].unlink()
    virtualds.sync(pattern, target, **SYNC, on_removed="drop")
    assert_same(xr.open_dataset(target, engine="virtual"), pad_natively(files[1:]))


def write_cell(path: Path, member: int, time: int, size: int) -> None:
    """A cell of a grid, with integers, and variables that all cells share."""
    random = np.random.default_rng([member, time, size])
    dims = ("member", "time", "x")
    ds = xr.Dataset(
        {
            "v": (dims, random.normal(size=(1, 1, size))),
            "k": (dims, random.integers(0, 99, (1, 1, size)).astype("i2")),
            "height": ("x", np.arange(size) * 1.5),
        },
        {"member": [member], "time": [time], "x": np.arange(size)},
    )
    settings = {"v": {"chunksizes": (1, 1, min(size, 3)), "zlib": True}}
    ds.to_netcdf(path, engine="netcdf4", encoding=settings)


def test_cells_of_a_grid_are_padded_by_sync(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"

    def check(least: int, known: int) -> None:
        how: dict[str, Any] = {"concat_dim": ["member", "time"], "pad": "x", "settle": 0}
        virtualds.sync(f"{tmp_path}/*.nc", target, **how, fill_value={"k": -1})
        cells = [xr.open_dataset(file).load() for file in sorted(tmp_path.glob("*.nc"))]
        padded = []
        for cell in cells:
            missing = {"x": (0, least - cell.sizes["x"])}
            alone = cell.drop_vars(["x", "height"])
            k = alone.k.pad(missing, constant_values=-1)
            padded.append(alone[["v"]].pad(missing).assign(k=k))
        expected: Any = xr.combine_by_coords(padded, **MINIMAL)
        found = xr.open_dataset(target, engine="virtual").load()
        xr.testing.assert_equal(found.drop_vars(["x", "height"]), expected)
        assert found["k"].dtype == np.dtype("i2")
        assert found["x"].values.tolist() == list(range(least))
        height = np.where(np.arange(least) < known, np.arange(least) * 1.5, np.nan)
        np.testing.assert_array_equal(found["height"], height)

    for member, time, size in ((0, 0, 4), (0, 1, 7), (1, 0, 5), (1, 1, 7)):
        write_cell(tmp_path / f"{member}{time}.nc", member, time, size)
    check(7, 7)
    write_cell(tmp_path / "02.nc", 0, 2, 6)
    write_cell(tmp_path / "12.nc", 1, 2, 10)
    check(10, 10)
    # the only file that had the end of what all share is now shorter
    write_cell(tmp_path / "12.nc", 1, 2, 3)
    check(10, 7)
    write_cell(tmp_path / "03.nc", 0, 3, 4)
    write_cell(tmp_path / "13.nc", 1, 3, 10)
    check(10, 10)


def test_a_changed_cell_may_own_what_all_cells_share(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    for member in (0, 1):
        for time in (0, 1):
            write_cell(tmp_path / f"{member}{time}.nc", member, time, 4)
    how: dict[str, Any] = {"concat_dim": ["member", "time"], "settle": 0}
    virtualds.sync(f"{tmp_path}/*.nc", target, **how)
    write_cell(tmp_path / "00.nc", 0, 0, 4)
    report = virtualds.sync(f"{tmp_path}/*.nc", target, **how)
    assert report.replaced == ((tmp_path / "00.nc").as_uri(),)
    found = xr.open_dataset(target, engine="virtual")
    cells = [xr.open_dataset(file) for file in sorted(tmp_path.glob("*.nc"))]
    expected: Any = xr.combine_by_coords(cells, **MINIMAL)
    xr.testing.assert_equal(found.load(), expected.load())
