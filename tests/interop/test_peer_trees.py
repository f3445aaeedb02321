"""Trees of others: VirtualiZarr finds the same groups and the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from peers import peer
from trees import TREES, Forest

import virtualds
from virtualds.arrays.array import ManifestArray

virtualizarr = peer("virtualizarr")
stores = pytest.importorskip("obstore.store", reason="VirtualiZarr reads files through it")
registry = pytest.importorskip("obspec_utils.registry", reason="VirtualiZarr finds stores by it")
parsers = pytest.importorskip("virtualizarr.parsers")

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

NETCDF = ("parts_of_a_model", "names_that_mean_different_things", "a_tree_of_xarray")


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    return Forest(tmp_path_factory.mktemp("forest"))


def by_virtualizarr(path: Path, parser: Any, **options: Any) -> xr.DataTree:
    found = registry.ObjectStoreRegistry({"file://": stores.LocalStore()})
    tree: xr.DataTree = virtualizarr.open_virtual_datatree(
        f"file://{path}", registry=found, parser=parser, **options
    )
    return tree


def places(array: ManifestArray) -> dict[str, tuple[str, int, int]]:
    manifest = array.manifest.loaded()
    found = {}
    for place in np.argwhere(manifest.file >= 0).tolist():
        row = manifest.lookup(tuple(place))
        key = ".".join(map(str, place)) or "0"
        found[key] = (manifest.files[row.file].url, row.offset, row.length)
    return found


@pytest.mark.parametrize("name", NETCDF)
def test_virtualizarr_finds_the_same_groups_and_bytes(name: str, forest: Forest) -> None:
    path = forest.path(name)
    theirs = by_virtualizarr(path, parsers.HDFParser(), loadable_variables=[])
    ours = virtualds.open_virtual_datatree(path, loadable_variables=[])
    assert set(theirs.groups) == set(ours.groups)
    compared = 0
    for group in ours.groups:
        for key, variable in ours[group].to_dataset(inherit=False).variables.items():
            other = theirs[group].to_dataset(inherit=False).variables[key]
            assert other.dims == variable.dims
            if isinstance(variable._data, ManifestArray):
                entries = other._data.manifest.dict()
                said = {k or "0": (e["path"], e["offset"], e["length"]) for k, e in entries.items()}
                known = places(variable._data)
                if len(known) == 1 and [length for *_, length in said.values()] == [
                    variable.nbytes
                ]:
                    # of a bare chunk that is longer than its array they take what is shown
                    known = {k: (*place[:2], variable.nbytes) for k, place in known.items()}
                assert said == known, (group, key)
                compared += 1
    assert compared


@pytest.mark.parametrize("name", NETCDF)
def test_virtualizarr_reads_the_groups_of_our_json(
    name: str, forest: Forest, tmp_path: Path
) -> None:
    target = tmp_path / "refs.json"
    virtualds.convert(forest.path(name), target)
    for group in TREES[name].native(forest.path(name)).groups:
        native = xr.open_dataset(forest.path(name), group=group).load()
        parser = parsers.KerchunkJSONParser(group=group.strip("/") or None)
        found = virtualizarr.open_virtual_dataset(
            f"file://{target}",
            registry=registry.ObjectStoreRegistry({"file://": stores.LocalStore()}),
            parser=parser,
            loadable_variables=list(native.variables),
        )
        xr.testing.assert_identical(found.drop_attrs(), native.drop_attrs())
