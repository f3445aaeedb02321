"""Names of other libraries: what the pages say to type in their place works, row by row."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import xarray as xr
import zarr
from products import looped
from transforms import assert_identical

import virtualds
from virtualds import ManifestArray

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = [GUIDES / "from-kerchunk.md", GUIDES / "from-virtualizarr.md"]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
ROWS = dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", TEXT, re.MULTILINE))
"""What stands in the pages: what one types there, and what here."""


class Work:
    """A folder with two files, and what users have at hand."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self.folder = folder
        self.first, self.second = [Path(shutil.copy2(path, folder)) for path in files]
        xr.load_dataset(self.first).rename(t="u").to_netcdf(folder / "other.nc")
        self.vds = virtualds.open_virtual_dataset(self.first)
        self.refs: Any = self.vds.virtual.to_manifest(None)

    def native(self) -> xr.Dataset:
        return xr.load_dataset(self.first)

    def lazy(self, name: str) -> xr.Dataset:
        return xr.open_dataset(self.folder / name, engine="virtual")


def says(owner: Any, name: str, *words: str) -> None:
    """An attribute is none, and the error says what to type."""
    assert not hasattr(owner, name)
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert all(word in str(caught.value) for word in words)


def refuses_keyword(name: str, word: str) -> None:
    with pytest.raises(TypeError, match=word):
        virtualds.open_virtual_dataset("a.nc", **{name: None})


Row = Callable[[Work], object]
CASES: dict[str, Row] = {}


def row(there: str) -> Callable[[Row], Row]:
    def enter(test: Row) -> Row:
        assert there not in CASES
        CASES[there] = test
        return test

    return enter


@row('SingleHdf5ToZarr("a.nc").translate()')
def _(work: Work) -> None:
    assert_identical(virtualds.open_virtual_dataset(work.refs), work.native())


@row("SingleHdf5ToZarr(file, inline_threshold=300)")
def _(work: Work) -> None:
    work.vds.virtual.to_manifest(work.folder / "refs.json", inline_threshold=300)
    assert not work.lazy("refs.json").virtual.arrays["t"].sources


@row('MultiZarrToZarr(refs, concat_dims=["time"])')
def _(work: Work) -> None:
    many = virtualds.open_virtual_mfdataset(
        str(work.folder / "200?.nc"), combine="nested", concat_dim="time"
    )
    assert many.sizes["time"] == 24


@row("kerchunk.combine.merge_vars([a, b])")
def _(work: Work) -> None:
    parts = [virtualds.open_virtual_dataset(work.folder / n) for n in ("2001.nc", "other.nc")]
    assert set(xr.merge(parts).virtual.arrays) == {"t", "u"}


@row('kerchunk.df.refs_to_dataframe(refs, "refs.parq")')
def _(work: Work) -> None:
    virtualds.convert(work.refs, work.folder / "refs.parq")
    assert_identical(work.lazy("refs.parq"), work.native())


@row('kerchunk.utils.subchunk(refs, "t", 31)')
def _(work: Work) -> None:
    work.native().to_netcdf(work.folder / "plain.nc", encoding={"t": {"zlib": False}})
    vds = virtualds.open_virtual_dataset(work.folder / "plain.nc")
    vds.virtual.to_manifest(work.folder / "cut.json", subchunk={"t": {"time": 1}})
    assert work.lazy("cut.json")["t"].encoding["chunksizes"][0] == 1


@row("kerchunk.utils.do_inline(refs, 300)")
def _(work: Work) -> None:
    virtualds.convert(work.refs, work.folder / "inline.json", inline_threshold=300)
    assert not work.lazy("inline.json").virtual.arrays["t"].sources


@row("kerchunk.utils.rename_target(refs, {old: new})")
def _(work: Work) -> None:
    moved = work.vds.virtual.rename_paths({f"file://{work.folder}": "s3://bucket"})
    assert moved.virtual.sources["url"].tolist() == ["s3://bucket/2001.nc"]


@row("kerchunk.utils.consolidate(refs)")
def _(work: Work) -> None:
    tree = xr.DataTree.from_dict({"/": xr.Dataset(), "/a": work.vds})
    refs = tree.virtual.to_manifest(None)
    assert refs is not None
    assert ".zmetadata" in refs["refs"]


@row('xr.open_dataset("refs.json", engine="kerchunk")')
def _(work: Work) -> None:
    work.vds.virtual.to_manifest(work.folder / "refs.json")
    assert_identical(work.lazy("refs.json"), work.native())


@row('xr.open_dataset("reference://", engine="zarr", storage_options={"fo": refs})')
def _(work: Work) -> None:
    options = {"fo": work.refs}
    found = xr.open_dataset("reference://", engine="virtual", storage_options=options)
    assert_identical(found, work.native())


@row('fsspec.filesystem("reference", fo=refs)')
def _(work: Work) -> None:
    given = fsspec.filesystem("reference", fo=work.refs)
    assert_identical(virtualds.open_virtual_dataset(given), work.native())


@row('fs.get_mapper("")')
def _(work: Work) -> None:
    given = fsspec.filesystem("reference", fo=work.refs).get_mapper("")
    assert_identical(virtualds.open_virtual_dataset(given), work.native())


@row("open_virtual_dataset(url, registry=registry, parser=HDFParser())")
def _(work: Work) -> None:
    for name, word in {
        "registry": "storage_options=",
        "reader_options": "storage_options=",
        "indexes": "loadable_variables",
        "filetype": "parser=",
        "backend": "parser=",
    }.items():
        refuses_keyword(name, word)


@row('vds.vz.to_kerchunk("refs.json")')
def _(work: Work) -> None:
    says(work.vds.virtual, "to_kerchunk", "to_manifest('refs.json')", "to_manifest(None")
    tree = xr.DataTree.from_dict({"/a": work.vds})
    says(tree.virtual, "to_kerchunk", "to_manifest('refs.json')")
    work.vds.virtual.to_manifest(work.folder / "refs.json")
    assert_identical(work.lazy("refs.json"), work.native())


@row('vds.vz.to_kerchunk("refs.parquet", format="parquet")')
def _(work: Work) -> None:
    work.vds.virtual.to_manifest(work.folder / "refs.parquet")
    assert_identical(work.lazy("refs.parquet"), work.native())


@row('vds.vz.to_kerchunk(format="dict")')
def _(work: Work) -> None:
    assert work.vds.virtual.to_manifest(None, format="kerchunk-json") == work.refs


@row('vds.vz.to_kerchunk("refs.json", zarr_format=3)')
def _(work: Work) -> None:
    work.vds.virtual.to_manifest(work.folder / "refs.json", zarr_format=3)
    assert_identical(work.lazy("refs.json"), work.native())


@row("vds.vz.to_icechunk(session.store)")
def _(work: Work) -> None:
    says(work.vds.virtual, "to_icechunk", "to_manifest(session)")
    says(work.vds.virtual, "to_zarr", "to_manifest('refs.zarr')", "materialize")


@row("vds.vz.rename_paths(function)")
def _(work: Work) -> None:
    moved = work.vds.virtual.rename_paths(lambda url: "s3://bucket/a.nc")
    assert moved.virtual.sources["url"].tolist() == ["s3://bucket/a.nc"]
    says(work.vds["t"].data, "rename_paths", "ds.virtual.rename_paths")


@row("vds.vz.nbytes")
def _(work: Work) -> None:
    assert 0 < work.vds.virtual.nbytes < work.vds.nbytes


@row("vds.vz.nrefs")
def _(work: Work) -> None:
    says(work.vds.virtual, "nrefs", ".nchunks")
    assert work.vds.virtual.nchunks == 12


@row("manifest_array.chunks")
def _(work: Work) -> None:
    array = work.vds["t"].data
    says(array, "chunks", ".blocks", ".fragments[0].axes")
    assert array.blocks[0] == (1,) * 12
    # xarray would take the array for one of dask
    assert work.vds["t"].chunks is None
    assert isinstance(work.vds.copy()["t"].data, ManifestArray)


@row("manifest_array.manifest.dict()")
def _(work: Work) -> None:
    found = work.vds["t"].data.manifest.dict()
    assert len(found) == 12
    assert found["3.0.0"].keys() == {"path", "offset", "length"}
    assert ManifestArray.from_values(work.native()["lat"].values).manifest.dict()["0"]["data"]
    assert ManifestArray.full((2,), 0, "f4").fragments == ()


@row("manifest.shape_chunk_grid")
def _(work: Work) -> None:
    manifest = work.vds["t"].data.manifest
    says(manifest, "shape_chunk_grid", ".shape")
    says(manifest, "get_entry", "lookup")
    assert manifest.shape == (12, 1, 1)


@row("ManifestStore")
def _(work: Work) -> None:
    assert zarr.open_group(virtualds.zarr_store(work.vds), mode="r")["t"].shape == (12, 6, 8)


@looped("there", CASES, quick=len(CASES) // 3)
def test_the_row_holds(there: str, tmp_path: Path, archive_files: list[Path]) -> None:
    CASES[there](Work(tmp_path, archive_files))


def test_every_row_of_the_pages_has_a_test() -> None:
    assert list(ROWS) == list(CASES)


def test_names_that_nobody_has_are_errors_as_everywhere(archive_files: list[Path]) -> None:
    vds = virtualds.open_virtual_dataset(archive_files[0])
    for owner in (vds.virtual, vds["t"].data, vds["t"].data.manifest):
        with pytest.raises(AttributeError, match=r"object has no attribute 'unheard_of'"):
            owner.unheard_of  # noqa: B018
    assert not hasattr(vds, "vz") or "virtualizarr" in type(vds.vz).__module__


def test_completion_shows_what_users_may_call(archive_files: list[Path]) -> None:
    vds = virtualds.open_virtual_dataset(archive_files[0])
    tree = virtualds.open_virtual_datatree(archive_files[0])
    for owner in (vds.virtual, tree.virtual, vds["t"].data, vds["t"].data.manifest):
        shown = {name for name in dir(owner) if not name.startswith("__")}
        public = {name for name in object.__dir__(owner) if not name.startswith("_")}
        assert shown == public
    assert {"load", "report", "sources", "to_manifest"} <= set(dir(vds.virtual))


def test_help_says_what_every_public_name_does() -> None:
    for name in virtualds.__all__:
        assert getattr(virtualds, name).__doc__
