"""What ``ds.virtual`` and ``tree.virtual`` look like, and what it costs to look."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from markup import Tags, pictures_of, rectangles_of, text_of

import virtualds
from virtualds import ChunkManifest, CodecPipeline, Fragment, ManifestArray, SourceFile
from virtualds.chunks.axes import make_regular_axes
from virtualds.codecs.cf import Packing
from virtualds.codecs.zlib import Zlib

HOSTILE = "<script>alert(1)"
FILES = tuple(SourceFile(f"s3://bucket/{n:05}.nc", size=10**8) for n in range(10**4))


def array(shape: tuple[int, ...], chunks: tuple[int, ...], **columns: Any) -> ManifestArray:
    axes = make_regular_axes(shape, chunks)
    grid = tuple(axis.nchunks for axis in axes)
    given = {"files": FILES[:1], "offset": 100, "length": 10, **columns}
    fragment = Fragment((0,) * len(axes), axes, ChunkManifest.build(grid, **given))
    pipeline = CodecPipeline(np.dtype("f4"), (Zlib(4),), layout=tuple(range(len(axes))))
    return ManifestArray.from_fragment(fragment, pipeline)


@pytest.fixture
def ds() -> xr.Dataset:
    dims = ("time", "lat", "lon")
    whole = array((10, 8, 8), (1, 8, 8))
    return xr.Dataset(
        {
            "t": (dims, whole),
            "u": (dims, whole),
            "z": (("lat", "lon"), array((8, 8), (4, 8))),
            "n": ("lat", np.arange(8)),
        },
        {"time": np.arange(10)},
    )


def large(variables: int = 200, chunks: int = 5000) -> xr.Dataset:
    """A dataset of a million chunks in ten thousand files."""
    made = {}
    for number in range(variables):
        file = (np.arange(chunks) * 2 + number % 2).reshape(chunks, 1, 1)
        file[number : number + 40] = -1
        rng = np.random.default_rng(number)
        lengths = rng.integers(2000, 4000, (chunks, 1, 1))
        made[f"variable_{number}"] = (
            ("time", "lat", "lon"),
            array((2 * chunks, 180, 360), (2, 180, 360), files=FILES, file=file, length=lengths),
        )
    return xr.Dataset(made)


# ---------------------------------------------------------------------- what is told


def test_a_dataset_is_told_in_a_few_lines(ds: xr.Dataset) -> None:
    assert repr(ds.virtual).splitlines() == [
        "<ds.virtual: 3 virtual variables, 22 chunks of 1 file>",
        "    t (time 10, lat 8, lon 8) float32: 10 chunks of 1 × 8 × 8",
        "    u (time 10, lat 8, lon 8) float32: 10 chunks of 1 × 8 × 8",
        "    z (lat 8, lon 8) float32: 2 chunks of 4 × 8",
    ]
    assert repr(xr.Dataset().virtual) == "<ds.virtual: 0 virtual variables>"
    assert len(repr(large(50, 20).virtual).splitlines()) == 14
    assert repr(large(50, 20).virtual).endswith("and 38 more")


def test_a_tree_is_told_in_a_few_lines(ds: xr.Dataset) -> None:
    tree = xr.DataTree.from_dict({"/": ds[["n"]], "/a": ds, "/b/c": ds[["z"]]})
    assert repr(tree.virtual).splitlines() == [
        "<tree.virtual: 4 virtual variables, 24 chunks of 1 file>",
        "    /a: 3 virtual variables, 22 chunks of 1 file",
        "    /b/c: 1 virtual variable, 2 chunks of 1 file",
    ]


def test_variables_that_are_cut_alike_share_a_picture(ds: xr.Dataset) -> None:
    page = ds.virtual._repr_html_()
    assert len(pictures_of(page)) == 2
    told = text_of(page)
    for words in (
        "3 virtual variables, 22 chunks of 1 file",
        "t, u (time 10, lat 8, lon 8)",
        "Stored 220 bytes, 24.4× smaller",
        "In memory 2 other variables",
        "time 10",
        "Variables 3",
        "z lat 8, lon 8 float32 4 × 8 2 0 20 bytes 256 bytes",
        "s3://bucket/00000.nc 22 100.0 MB",
    ):
        assert words in told, told


def rows_with_files(files: str) -> ManifestArray:
    """Eight rows, each in the file of its letter; a dot is a missing chunk."""
    paths = [["" if letter == "." else f"s3://bucket/{letter}"] for letter in files]
    return ManifestArray.from_arrays(
        shape=(8, 4), chunks=(1, 4), dtype="f4", offsets=0, lengths=8, path=paths
    )


@pytest.mark.parametrize(
    ("one", "other", "pictures"),
    [
        (".aaaaaaa", "aaaaa.aa", 2),
        (".aaaaaaa", ".bbbbbbb", 1),
        ("aaaabbbb", "abababab", 2),
        ("aaaabbbb", "ccccdddd", 1),
    ],
)
def test_variables_share_a_picture_only_if_theirs_look_alike(
    one: str, other: str, pictures: int
) -> None:
    dims = ("time", "x")
    ds = xr.Dataset({"a": (dims, rows_with_files(one)), "b": (dims, rows_with_files(other))})
    grids = [p for p in pictures_of(ds.virtual._repr_html_()) if "vds-grid" in p.get("class", "")]
    assert len(grids) == pictures


def test_a_dataset_without_virtual_variables_is_no_error() -> None:
    for empty in (xr.Dataset(), xr.Dataset({"a": ("x", [1, 2])})):
        assert "0 virtual variables" in text_of(empty.virtual._repr_html_())
    assert "0 virtual variables" in text_of(xr.DataTree().virtual._repr_html_())


def test_gaps_in_times_are_told(ds: xr.Dataset) -> None:
    days = np.datetime64("2001-01-01") + np.r_[0:6, 16:20]
    page = ds.assign_coords(time=days.astype("datetime64[ns]")).virtual._repr_html_()
    assert "'time' has nothing between 2001-01-06 and 2001-01-17" in text_of(page)


def test_of_many_gaps_three_are_told() -> None:
    days = np.concatenate([np.arange(3) + 30 * n for n in range(9)]) + np.datetime64("2001-01-01")
    ds = xr.Dataset({"t": ("time", array((27,), (3,)))}, {"time": days.astype("M8[ns]")})
    told = text_of(ds.virtual._repr_html_())
    assert told.count("has nothing between") == 3 and "2001-04-01; and 5 more" in told


def test_variables_that_differ_in_scale_share_a_picture_that_names_some(ds: xr.Dataset) -> None:
    page = packed_variables(5).virtual._repr_html_()
    assert len(pictures_of(page)) == 1
    told = "int16 × 1.5, uncompressed; int16 × 2.5, uncompressed; int16 × 3.5, uncompressed; 2 more"
    assert told in text_of(page)


def packed_variables(count: int) -> xr.Dataset:
    """Variables of one chunk grid, each with a scale of its own."""
    stored, values = np.dtype("i2"), np.dtype("f8")
    found = {}
    for number in range(count):
        packing = Packing.from_attributes(stored, {"scale_factor": number + 1.5}, values)
        pipeline = CodecPipeline(stored, packing=packing, layout=(0,))
        one = replace(array((8,), (2,)), dtype=values, fill_value=np.nan, pipelines=(pipeline,))
        found[f"v{number}"] = ("x", one)
    return xr.Dataset(found)


def test_names_come_out_as_text() -> None:
    dims = (f"x{HOSTILE}", "y\"'>")
    hostile = xr.Dataset({HOSTILE: (dims, array((4, 4), (2, 2), files=(SourceFile(HOSTILE),)))})
    tree = xr.DataTree.from_dict({"/<script>": hostile})
    for page in (hostile.virtual._repr_html_(), tree.virtual._repr_html_()):
        assert "script" not in Tags(page).tags
        assert HOSTILE in text_of(page)


def test_a_tree_shows_a_section_for_each_group(ds: xr.Dataset) -> None:
    tree = xr.DataTree.from_dict({"/": ds, "/a/b": ds[["z"]], "/nothing": ds[["n"]]})
    page = tree.virtual._repr_html_()
    told = text_of(page)
    assert "/ 3 virtual variables, 22 chunks" in told and "/a/b 1 virtual variable" in told
    assert "/nothing" not in told and len(pictures_of(page)) == 3


def test_a_tree_of_many_groups_stays_short(ds: xr.Dataset) -> None:
    tree = xr.DataTree.from_dict({f"/g{n}": ds for n in range(150)})
    page = tree.virtual._repr_html_()
    assert "and 130 more groups" in text_of(page)
    assert len(page) < 100_000 and len(pictures_of(page)) <= 6
    assert len(repr(tree.virtual).splitlines()) < 20
    # the groups share the rows of one table
    many = xr.Dataset({f"v{n}": ("x", array((4,), (2,))) for n in range(80)})
    told = text_of(xr.DataTree.from_dict({"/a": many, "/b": many}).virtual._repr_html_())
    assert told.count("... and 30 more") == 2


def test_the_view_of_xarray_shows_the_picture_of_each_array(ds: xr.Dataset) -> None:
    page = ds._repr_html_()
    assert page.count("vds-grid") == 3 and "virtual: 10 chunks of 1 file" in page


# ---------------------------------------------------------------------- what it costs


def test_a_million_chunks_in_ten_thousand_files_take_few_bytes() -> None:
    million = large()
    assert million.virtual.nchunks == 10**6
    page = million.virtual._repr_html_()
    assert len(page) < 200_000
    told = text_of(page)
    assert "200 virtual variables, 1,000,000 chunks of 10,000 files" in told
    assert "Missing 8,000 chunks" in told and "and 9,980 more" in told and "and 100 more" in told
    assert all(len(list(rectangles_of(p))) <= 1000 for p in pictures_of(page))


def test_a_thousand_kinds_of_variables_have_a_few_pictures() -> None:
    ways = xr.Dataset({f"v{n}": (f"x{n}", array((n + 1,), (1,))) for n in range(1000)})
    page = ways.virtual._repr_html_()
    assert len(pictures_of(page)) == 6 and len(page) < 100_000
    assert "chunks of 994 more variables are not drawn" in text_of(page)


def test_looking_at_a_set_makes_no_request(tmp_path: Path) -> None:
    values = xr.Dataset({"v": (("t", "x"), np.arange(120.0).reshape(12, 10))})
    values.to_netcdf(tmp_path / "a.nc", encoding={"v": {"chunksizes": (1, 5), "zlib": True}})
    vds = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    vds.virtual.to_manifest(tmp_path / "refs.zarr")
    vds.virtual.to_manifest(tmp_path / "refs.parquet")
    with counting_server(tmp_path) as (url, counts):
        for name in ("a.nc", "refs.zarr", "refs.parquet"):
            lazy = xr.open_dataset(f"{url}/{name}", engine="virtual")
            tree = virtualds.open_virtual_datatree(f"{url}/{name}")
            before = list(counts.requests)
            pages = [lazy.virtual._repr_html_(), tree.virtual._repr_html_(), tree._repr_html_()]
            texts = [repr(lazy.virtual), repr(tree.virtual)]
            assert list(counts.requests) == before
            assert all(pictures_of(page) for page in pages[:2])
            assert all("24 chunks" in text for text in texts)


def test_a_lazy_variable_of_which_a_part_is_selected_is_counted_and_not_drawn(
    tmp_path: Path,
) -> None:
    xr.Dataset({"v": ("x", np.arange(10.0))}).to_netcdf(tmp_path / "a.nc")
    lazy = xr.open_dataset(tmp_path / "a.nc", engine="virtual")
    assert "1 virtual variable" in repr(lazy.virtual)
    part = lazy.isel(x=slice(2, 5))
    assert "Lazy 1 other variable" in text_of(part.virtual._repr_html_())
