"""Trees: opening, combining and writing files with groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import safetensors.numpy
import xarray as xr
from cases import netcdf
from counting_server import counting_server
from daily_files import SUFFIXES
from products import looped
from transforms import assert_identical
from trees import TREES, Forest, parts_of_a_model, written_by_xarray

import virtualds
from virtualds import CombineError, UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # fsspec reads parquet with what pandas is about to drop
    pytest.mark.filterwarnings("ignore:The .fastparquet. engine"),
    pytest.mark.filterwarnings("ignore:.*Consolidated metadata:UserWarning"),
]

REFUSED = dict.fromkeys(
    ("kerchunk-json", "kerchunk-parquet", "icechunk"), ("unlimited_dimensions_that_groups_share",)
) | {"cfa": tuple(name for name in TREES if "zarr" in name)}
"""What a format has no form for: arrays that are longer than what is stored of them, and of an
aggregation of netCDF files those of others."""
JOIN: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    return Forest(tmp_path_factory.mktemp("forest"))


def same(found: xr.DataTree, expected: xr.DataTree) -> None:
    """Compare trees: groups, values, dtypes, attributes."""
    # Icechunk keeps no order
    assert sorted(found.groups) == sorted(expected.groups)
    assert found.name == expected.name
    for node in expected.subtree:
        path = node.path
        assert_identical(
            found[path].to_dataset(inherit=False), node.to_dataset(inherit=False).load()
        )
    xr.testing.assert_identical(found.virtual.load().load(), expected)


def lazily(path: Path, **options: Any) -> xr.DataTree:
    return xr.open_datatree(path, engine="virtual", **options)


OPENERS: dict[str, Callable[..., xr.DataTree]] = {
    "virtual": virtualds.open_virtual_datatree,
    "lazy": lazily,
}

# ---------------------------------------------------------------------- in


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_what_xarray_opens(name: str, opener: str, forest: Forest) -> None:
    found = OPENERS[opener](forest.path(name))
    if TREES[name].engine != "zarr":
        # zarr-python lists groups as the disk does
        assert found.groups == forest.native(name).groups
    same(found, forest.native(name))


@looped("opener", OPENERS, quick=1)
@looped("name", [name for name in TREES if TREES[name].engine == "netcdf4"])
def test_encoding_is_what_xarray_says(name: str, opener: str, forest: Forest) -> None:
    path = forest.path(name)
    with xr.open_datatree(path, engine=TREES[name].engine, **TREES[name].options) as native:
        found = OPENERS[opener](path)
        for node in native.subtree:
            assert unlimited(found[node.path]) == unlimited(node)
            for key, variable in node.to_dataset(inherit=False).variables.items():
                ours = found[node.path].dataset.variables[key].encoding
                known = {k: v for k, v in variable.encoding.items() if k in ours}
                known.pop("source", None)
                assert variable.encoding.keys() - ours.keys() <= {"preferred_chunks"}
                for what in known.keys() - {"preferred_chunks"}:
                    assert repr(ours[what]) == repr(known[what]), (node.path, key, what)


def unlimited(node: xr.DataTree) -> set[Any]:
    return set(node.encoding.get("unlimited_dims", ()))


@looped("name", TREES, quick=len(TREES) // 3)
def test_groups_open_one_by_one_as_well(name: str, forest: Forest) -> None:
    case, path = TREES[name], forest.path(name)
    native = xr.open_groups(path, engine=case.engine, **case.options)
    found = xr.open_groups(path, engine="virtual")
    assert found.keys() == native.keys()
    if case.engine != "zarr":
        # zarr-python lists groups as the disk does
        assert list(found) == list(native)
    for group, dataset in native.items():
        expected = dataset.load()
        assert_identical(found[group], expected)
        assert_identical(virtualds.open_virtual_dataset(path, group=group), expected)
        dataset.close()


@pytest.mark.parametrize("group", ["surface", "/surface/", "surface/soil"])
def test_a_group_may_be_the_root(group: str, forest: Forest) -> None:
    path = forest.path("parts_of_a_model")
    case = TREES["parts_of_a_model"]
    for opener in OPENERS.values():
        same(opener(path, group=group), case.native(path, group=group))
    native = xr.open_groups(path, engine="netcdf4", group=group)
    assert list(xr.open_groups(path, engine="virtual", group=group)) == list(native)
    for dataset in native.values():
        dataset.close()
    with pytest.raises(FileNotFoundError, match="there is no group 'no'"):
        virtualds.open_virtual_datatree(path, group="no")


def test_variables_are_left_out_of_every_group(forest: Forest) -> None:
    name, drop = "names_that_mean_different_things", ["v"]
    expected = TREES[name].native(forest.path(name), drop_variables=drop)
    for opener in OPENERS.values():
        same(opener(forest.path(name), drop_variables=drop), expected)


def test_options_reach_every_group(forest: Forest) -> None:
    path = forest.path("parts_of_a_model")
    tree = virtualds.open_virtual_datatree(path, loadable_variables=[], decode_cf=False)
    native = TREES["parts_of_a_model"].native(path, decode_cf=False)
    assert tree["v"].dtype == native["v"].dtype == "i2"
    assert tree["surface/t"].attrs == native["surface/t"].attrs
    assert_identical(lazily(path, decode_times=False)["/"].to_dataset(), native_times(path))
    assert lazily(path, chunks={})["surface/t"].chunks == ((2, 2), (3,))
    assert tree.encoding["source"] == str(path)


def native_times(path: Path) -> xr.Dataset:
    return TREES["parts_of_a_model"].native(path, decode_times=False)["/"].to_dataset()


def test_a_tree_that_xarray_has_no_form_for_says_how_to_open_it(tmp_path: Path) -> None:
    """Lengths of one dimension that differ between parent and child: xarray refuses, too."""
    with netcdf(tmp_path / "a.nc", x=3) as file:
        file.createVariable("v", "f4", ("x",))[:] = 1
        child = file.createGroup("child")
        child.createDimension("x", 2)
        child.createVariable("v", "f4", ("x",))[:] = 1
    with pytest.raises(ValueError, match="not aligned with its parents"):
        TREES["parts_of_a_model"].native(tmp_path / "a.nc")
    for opener in OPENERS.values():
        with pytest.raises(CombineError, match=r"(?s)'/child' is not aligned.*xr.open_groups") as c:
            opener(tmp_path / "a.nc")
        assert str(tmp_path / "a.nc") in f"{c.value}"
        assert "Dimensions:  (x: 2)" in "".join(c.value.__notes__)
    apart = xr.open_groups(tmp_path / "a.nc", engine="virtual")
    assert {name: ds.sizes["x"] for name, ds in apart.items()} == {"/": 3, "/child": 2}


def test_a_name_with_a_slash_is_refused_in_a_tree_and_read_outside(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"layer/w": np.arange(3)}, path)
    for opener in OPENERS.values():
        with pytest.raises(UnsupportedError, match="'layer/w' has a slash"):
            opener(path)
    found = virtualds.open_virtual_dataset(path)
    assert found["layer/w"].values.tolist() == [0, 1, 2]


# ---------------------------------------------------------------------- what cannot be read


@pytest.fixture
def partly_unreadable(tmp_path: Path) -> Path:
    """A file of which a variable, a link and a group that leads in circles cannot be read."""
    path = tmp_path / "partly.h5"
    with h5py.File(path, "w") as file:
        file["a/good"] = np.arange(3.0)
        file["a/none"] = h5py.Empty("f4")
        file["a/b/link"] = h5py.SoftLink("/nowhere")
        file["a/b/good"] = np.arange(3.0)
        file["a/b/round"] = file["a"]
    return path


UNREADABLE = ("a/none", "a/b/link", "a/b/round")


def test_all_unreadable_variables_are_named_with_their_groups(partly_unreadable: Path) -> None:
    with pytest.raises(virtualds.VirtualdsError) as caught:
        virtualds.open_virtual_datatree(partly_unreadable)
    told = str(caught.value) + "".join(caught.value.__notes__)
    assert "leads back" in told
    assert "nowhere" in told
    for on_error, kept in (("skip", ["good"]), ("keep", ["good", "none"])):
        with pytest.warns(UserWarning) as warned:
            tree = virtualds.open_virtual_datatree(partly_unreadable, on_error=on_error)
        [message] = [str(w.message) for w in warned]
        assert all(f"  {name}: " in message for name in UNREADABLE)
        assert sorted(tree["a"].data_vars) == kept
        assert tree.groups == ("/", "/a", "/a/b")
    # one group is not bothered by others
    assert list(virtualds.open_virtual_dataset(partly_unreadable)) == []


def test_unreadable_variables_can_be_dropped(partly_unreadable: Path) -> None:
    names = [name.rpartition("/")[2] for name in UNREADABLE]
    tree = virtualds.open_virtual_datatree(partly_unreadable, drop_variables=names)
    assert list(tree["a/b"].data_vars) == ["good"]


def test_a_damaged_group_is_one_of_the_problems(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        file["good/v"] = np.arange(3.0)
        file["bad/v"] = np.arange(3.0)
    data = path.read_bytes()
    # the names of the members of the group that was made last
    last = data.rindex(b"HEAP")
    path.write_bytes(data[:last] + b"XXXX" + data[last + 4 :])
    with pytest.raises(virtualds.FormatError):
        virtualds.open_virtual_datatree(path)
    with pytest.warns(UserWarning, match="  bad: "):
        tree = virtualds.open_virtual_datatree(path, on_error="skip")
    assert sorted(tree.groups) == ["/", "/good"]
    np.testing.assert_array_equal(tree["good/v"], np.arange(3.0))


# ---------------------------------------------------------------------- out


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("form", SUFFIXES)
@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_back_from_every_format(
    name: str, form: str, forest: Forest, tmp_path: Path
) -> None:
    target = tmp_path / f"refs{SUFFIXES[form]}"
    tree = virtualds.open_virtual_datatree(forest.path(name))
    if name in REFUSED.get(form, ()):
        with pytest.raises(virtualds.UnsupportedError, match=f"{form} cannot hold"):
            tree.virtual.to_manifest(target)
        tree = tree.virtual.load()
    tree.virtual.to_manifest(target, mode="w")
    for opener in OPENERS.values():
        same(opener(target), forest.native(name))


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("form", SUFFIXES)
@pytest.mark.parametrize("name", TREES)
def test_files_are_converted_with_all_their_groups(
    name: str, form: str, forest: Forest, tmp_path: Path
) -> None:
    target, again = tmp_path / f"refs{SUFFIXES[form]}", tmp_path / "again.zarr"
    if name in REFUSED.get(form, ()):
        with pytest.raises(virtualds.UnsupportedError, match=f"{form} cannot hold"):
            virtualds.convert(forest.path(name), target)
        return
    virtualds.convert(forest.path(name), target, mode="w")
    same(virtualds.open_virtual_datatree(target), forest.native(name))
    virtualds.convert(target, again, drop_variables="v")
    expected = TREES[name].native(forest.path(name), drop_variables="v")
    same(virtualds.open_virtual_datatree(again), expected)


TRANSFORMS: dict[str, Callable[[xr.DataTree], xr.DataTree]] = {
    "first": lambda tree: tree.isel(time=slice(1)),
    "last": lambda tree: tree.isel(time=-1),
    "crop": lambda tree: tree.isel(time=slice(1, 3), x=slice(1, None)),
    "day": lambda tree: tree.sel(time="2000-01-02"),
    "subtree": lambda tree: tree["surface"],
    "renamed": lambda tree: xr.DataTree.from_dict({"/model": tree}),
    "pruned": lambda tree: tree.filter(lambda node: bool(node.data_vars)),
    "assigned": lambda tree: tree.assign(new=tree["v"] * 2),
    "twice": lambda tree: xr.concat([tree, tree], "time", **JOIN),
}


def on_its_own(tree: xr.DataTree) -> xr.DataTree:
    """A part of a tree with what it inherits from the rest."""
    if tree.parent is None:
        return tree
    return xr.DataTree.from_dict(
        {path: node.to_dataset() for path, node in tree.subtree_with_keys}, name=tree.name
    )


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("form", SUFFIXES)
def test_the_square_commutes(form: str, transform: str, forest: Forest, tmp_path: Path) -> None:
    change, name = TRANSFORMS[transform], "parts_of_a_model"
    expected = on_its_own(change(forest.native(name)))
    tree = change(virtualds.open_virtual_datatree(forest.path(name)))
    xr.testing.assert_identical(tree.virtual.load(), expected)
    target = tmp_path / f"refs{SUFFIXES[form]}"
    try:
        tree.virtual.to_manifest(target)
    except virtualds.UnsupportedError:
        assert form != "zarr-v3"
        tree.virtual.load().virtual.to_manifest(target, mode="w")
    expected.name = None
    xr.testing.assert_identical(lazily(target).load(), expected)


@pytest.mark.parametrize("form", SUFFIXES)
def test_trees_are_joined_group_by_group(form: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{first}.nc" for first in (0, 4, 8)]
    for path in paths:
        parts_of_a_model(path, int(path.stem))
    native = [TREES["parts_of_a_model"].native(path) for path in paths]
    expected = xr.concat(native, "time", **JOIN)
    joined = xr.concat([virtualds.open_virtual_datatree(path) for path in paths], "time", **JOIN)
    assert joined.virtual.nchunks > 0
    assert sorted(joined.virtual.sources["url"]) == sorted(path.as_uri() for path in paths)
    joined.virtual.to_manifest(tmp_path / f"refs{SUFFIXES[form]}")
    same(lazily(tmp_path / f"refs{SUFFIXES[form]}"), expected)
    assert "time" not in joined["fixed/c"].dims


def test_many_files_are_opened_as_one_tree(tmp_path: Path) -> None:
    for first in (0, 4):
        parts_of_a_model(tmp_path / f"{first}.nc", first)
    paths = [tmp_path / "0.nc", tmp_path / "4.nc"]
    expected = xr.concat([TREES["parts_of_a_model"].native(p) for p in paths], "time", **JOIN)
    same(virtualds.open_virtual_mfdatatree(f"{tmp_path}/*.nc", concat_dim="time"), expected)
    with ThreadPoolExecutor(2) as pool:
        found = virtualds.open_virtual_mfdatatree(
            paths, concat_dim="time", parallel=pool, preprocess=lambda tree: tree.isel(x=slice(2))
        )
    same(found, expected.isel(x=slice(2)))
    with counting_server(tmp_path) as (url, _):
        urls = [f"{url}/{path.name}" for path in paths]
        same(virtualds.open_virtual_mfdatatree(urls, concat_dim="time"), expected)
    with pytest.raises(FileNotFoundError, match="no file matches"):
        virtualds.open_virtual_mfdatatree(f"{tmp_path}/*.h5", concat_dim="time")


def test_trees_of_many_files_take_the_options_of_datasets() -> None:
    of_trees = set(inspect.signature(virtualds.open_virtual_mfdatatree).parameters)
    of_datasets = set(inspect.signature(virtualds.open_virtual_mfdataset).parameters)
    # trees are nested, and are written as a whole; the rest of a dataset's options are xarray's
    of_targets = {"to", "mode", "target_options", "keep_query"}
    assert of_datasets - of_trees == {"kwargs"} | of_targets
    assert of_trees - of_datasets == {"tree"}


def test_the_attributes_of_all_groups_are_those_of_a_file(tmp_path: Path) -> None:
    paths = [tmp_path / "0.nc", tmp_path / "4.nc"]
    for path in paths:
        parts_of_a_model(path, int(path.stem))
        with netCDF4.Dataset(path, "a") as file:
            file.title = f"from {path.stem}"
            file["surface"].setncattr("part", f"surface of {path.stem}")
    found = virtualds.open_virtual_mfdatatree(paths, concat_dim="time", attrs_file=paths[1])
    assert found.attrs["title"] == "from 4"
    assert found["surface"].attrs["part"] == "surface of 4"
    plain = virtualds.open_virtual_mfdatatree(paths, concat_dim="time")
    assert plain.attrs["title"] == "from 0"
    with pytest.raises(ValueError, match=r"attrs_file .*8\.nc: it is not one of the 2 files"):
        virtualds.open_virtual_mfdatatree(paths, concat_dim="time", attrs_file=tmp_path / "8.nc")


def test_trees_are_opened_by_the_parser_that_is_named(tmp_path: Path) -> None:
    parts_of_a_model(tmp_path / "0.nc")
    opened = partial(virtualds.open_virtual_mfdatatree, tmp_path / "0.nc", concat_dim="time")
    xr.testing.assert_identical(opened(parser="hdf5"), opened())
    with pytest.raises(virtualds.FormatError):
        opened(parser="netcdf3")


def test_trees_of_earlier_snapshots_are_joined(tmp_path: Path) -> None:
    for first in (0, 4):
        parts_of_a_model(tmp_path / f"{first}.nc", first)
        tree = virtualds.open_virtual_datatree(tmp_path / f"{first}.nc")
        tree.virtual.to_manifest(tmp_path / "refs.zarr", mode="w")
    ids = virtualds.snapshots(tmp_path / "refs.zarr")["snapshot"]
    opened = partial(virtualds.open_virtual_mfdatatree, tmp_path / "refs.zarr", concat_dim="time")
    for snapshot, first in zip(ids, (0, 4), strict=True):
        expected = virtualds.open_virtual_datatree(tmp_path / f"{first}.nc").virtual.load()
        same(opened(snapshot=snapshot), expected)


def test_files_whose_groups_differ_do_not_combine(tmp_path: Path) -> None:
    for name in ("0.nc", "1.nc"):
        parts_of_a_model(tmp_path / name)
    with netCDF4.Dataset(tmp_path / "1.nc", "a") as file:
        file.createGroup("surface/more")
    with pytest.raises(ValueError, match="isomorphic") as caught:
        virtualds.open_virtual_mfdatatree(f"{tmp_path}/*.nc", concat_dim="time", overlap="keep")
    assert "while combining 2 files" in caught.value.__notes__[0]


@pytest.mark.parametrize("form", SUFFIXES)
def test_inherited_coordinates_are_written_once(form: str, tmp_path: Path) -> None:
    tree, target = written_by_xarray(), tmp_path / f"refs{SUFFIXES[form]}"
    tree.virtual.to_manifest(target)
    below = xr.open_dataset(target, engine="virtual", group="below/more")
    assert set(below.variables) == {"w", "y"}
    xr.testing.assert_identical(lazily(target).load(), tree)
    tree.virtual.to_manifest(target, write_inherited_coords=True, mode="w")
    below = xr.open_dataset(target, engine="virtual", group="below/more")
    assert set(below.variables) == {"w", "y", "time", "x"}
    xr.testing.assert_identical(lazily(target).load(), tree)
    # a part of a tree has what it inherits: nobody else would hold it
    tree["below"].virtual.to_manifest(target, mode="w")
    assert set(lazily(target).coords) == {"time", "x"}


def test_wrong_modes_of_trees_are_named(forest: Forest, tmp_path: Path) -> None:
    tree, target = virtualds.open_virtual_datatree(forest.path("only_groups")), tmp_path / "a.zarr"
    tree.virtual.to_manifest(target)
    with pytest.raises(virtualds.UnsupportedError, match="'replace-source' is for datasets"):
        tree.virtual.to_manifest(target, mode="replace-source")
    with pytest.raises(FileExistsError):
        tree.virtual.to_manifest(target, mode="w-")
    with pytest.raises(ValueError, match="mode='x'"):
        tree.virtual.to_manifest(target, mode="x")
    with pytest.raises(ValueError, match="on_duplicate='skip'"):
        tree.virtual.to_manifest(target, on_duplicate="skip")
    with pytest.raises(ValueError, match="dimension 'height': the new dataset has"):
        tree.virtual.to_manifest(target, append_dim="height")


def test_an_array_that_a_format_cannot_hold_is_named_with_its_group(tmp_path: Path) -> None:
    paths = [tmp_path / "0.nc", tmp_path / "3.nc"]
    for path in paths:
        parts_of_a_model(path, int(path.stem), days=3)
    joined = xr.concat([virtualds.open_virtual_datatree(path) for path in paths], "time", **JOIN)
    with pytest.raises(virtualds.UnsupportedError, match="surface/t: chunk lengths along"):
        joined.virtual.to_manifest(tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()
    joined.virtual.to_manifest(tmp_path / "a.zarr")
    native = [TREES["parts_of_a_model"].native(path) for path in paths]
    same(lazily(tmp_path / "a.zarr"), xr.concat(native, "time", **JOIN))


# ---------------------------------------------------------------------- tree.virtual


def test_a_tree_counts_the_sum_of_its_groups(forest: Forest) -> None:
    path = forest.path("parts_of_a_model")
    tree = virtualds.open_virtual_datatree(path)
    groups = [virtualds.open_virtual_dataset(path, group=group) for group in tree.groups]
    assert tree.virtual.nchunks == sum(ds.virtual.nchunks for ds in groups)
    assert tree.virtual.nbytes == sum(ds.virtual.nbytes for ds in groups)
    [source] = tree.virtual.sources.to_dict("records")
    assert source["url"] == path.as_uri()
    assert source["chunks"] == sum(ds.virtual.sources["chunks"].sum() for ds in groups)


def test_paths_are_renamed_in_every_group(forest: Forest, tmp_path: Path) -> None:
    path, moved = forest.path("parts_of_a_model"), tmp_path / "moved"
    moved.mkdir()
    (moved / path.name).write_bytes(path.read_bytes())
    tree = virtualds.open_virtual_datatree(path).virtual.rename_paths({path.parent: moved})
    assert tree.virtual.sources["url"].to_list() == [(moved / path.name).as_uri()]
    same(tree, forest.native("parts_of_a_model"))
    with pytest.raises(ValueError, match="no source begins with"):
        tree.virtual.rename_paths({"/elsewhere": "/"})


@pytest.mark.parametrize("chunks", [None, {}, {"time": 2}])
def test_a_tree_becomes_lazy_or_dask(chunks: Any, forest: Forest) -> None:
    tree = virtualds.open_virtual_datatree(forest.path("parts_of_a_model"))
    lazy = tree.virtual.to_lazy(chunks)
    assert bool(lazy["surface/t"].chunks) == (chunks is not None)
    xr.testing.assert_identical(lazy.load(), forest.native("parts_of_a_model"))


@pytest.mark.parametrize("layout", ["content", "chunks"])
def test_a_tree_is_copied(layout: str, forest: Forest, tmp_path: Path) -> None:
    parts_of_a_model(tmp_path / "a.nc")
    tree = virtualds.open_virtual_datatree(tmp_path / "a.nc")
    own = tree.virtual.materialize(tmp_path / "own.zarr", layout=layout)
    (tmp_path / "a.nc").unlink()
    xr.testing.assert_identical(own.virtual.load(), forest.native("parts_of_a_model"))


def test_a_tree_shows_itself(forest: Forest) -> None:
    tree = virtualds.open_virtual_datatree(forest.path("parts_of_a_model"))
    assert "virtual: 2 chunks of 1 file" in repr(tree)
    assert "Group: /surface/soil" in repr(tree)
    assert "virtual: 2 chunks of 1 file" in tree._repr_html_()


# ---------------------------------------------------------------------- others


@pytest.mark.parametrize("name", [n for n in TREES if n != "strings_and_attributes"])
def test_zarr_python_opens_the_tree_of_a_file(name: str, forest: Forest, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    virtualds.convert(forest.path(name), tmp_path / "refs.zarr")
    for path in (forest.path(name), tmp_path / "refs.zarr"):
        found = xr.open_datatree(virtualds.zarr_store(path), engine="zarr", chunks=None)
        xr.testing.assert_identical(found.load(), forest.native(name))


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_zarr_python_finds_the_groups_of_kerchunks_formats(
    suffix: str, forest: Forest, tmp_path: Path
) -> None:
    pytest.importorskip("zarr")
    target = tmp_path / f"refs{suffix}"
    virtualds.convert(forest.path("parts_of_a_model"), target)
    options = {"fo": str(target), "remote_protocol": "file"}
    found = xr.open_datatree(
        "reference://", engine="zarr", storage_options=options, chunks=None, consolidated=True
    )
    xr.testing.assert_identical(found.load(), forest.native("parts_of_a_model"))


# ---------------------------------------------------------------------- cost


def test_a_remote_tree_takes_few_requests(tmp_path: Path) -> None:
    """The file is opened once, however many groups it has."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        for number in range(20):
            group = file.createGroup(f"g{number}")
            group.createDimension("x", 5)
            group.createVariable("x", "f4", ("x",))[:] = np.arange(5)
            group.createVariable("v", "f4", ("x",))[:] = np.arange(5)
    with counting_server(tmp_path) as (url, counts):
        tree = virtualds.open_virtual_datatree(f"{url}/a.nc")
        assert counts.of("a.nc") <= 3
    assert len(tree.children) == 20


def test_a_group_costs_no_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.nc"
    with netcdf(path, x=3, time=None) as file:
        file.createVariable("v", "f4", ("x",))[:] = 1
        for number in range(5):
            file.createGroup(f"g{number}").createVariable("v", "f4", ("x",))[:] = 1
    looked: list[Any] = []
    from virtualds.parsers.hdf5 import group_reader, netcdf_rules, objects

    for module in (group_reader, netcdf_rules):
        monkeypatch.setattr(module, "read_members", _counted(objects.read_members, looked))
    virtualds.open_virtual_dataset(path, group="g3")
    assert len(looked) == 2


def _counted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    return counted
