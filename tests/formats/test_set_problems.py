"""One bad variable of a set does not cost the others: ``on_error`` decides, as for source files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr_stores import write_good_and_bad

import virtualds
from virtualds.errors import ReadError, UnsupportedError, VirtualdsError

Metadata = dict[str, Any]


class Damage:
    """What is wrong with a variable, in the metadata of both versions of Zarr, and its message."""

    def __init__(
        self,
        message: str,
        v2: Mapping[str, Any] | None = None,
        v3: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        length: int | None = None,
        chunk: int | None = None,
    ) -> None:
        self.message, self.attributes = message, dict(attributes or {})
        self.v2, self.v3 = dict(v2 or {}), dict(v3 or {})
        if length is not None:
            # a coordinate of its own
            chunk = chunk or length
            grid = {"name": "regular", "configuration": {"chunk_shape": [chunk]}}
            self.v2 |= {"shape": [length], "chunks": [chunk]}
            self.v3 |= {"shape": [length], "chunk_grid": grid, "dimension_names": ["bad"]}
            self.attributes |= {"_ARRAY_DIMENSIONS": ["bad"]}


DAMAGES = {
    "a codec that is not known": Damage(
        "magic", {"compressor": {"id": "magic"}}, {"codecs": [{"name": "magic"}]}
    ),
    "a type that is not known": Damage("magic", {"dtype": "magic"}, {"data_type": "magic"}),
    "a shape that is none": Damage("shape", {"shape": "abc"}, {"shape": "abc"}),
    "a fill value that is none": Damage("many", {"fill_value": "many"}, {"fill_value": "many"}),
    "attributes that are none": Damage("is damaged", None, {"attributes": [5]}),
    "units that mean nothing": Damage("nonsense", attributes={"units": "days since nonsense"}),
    "a huge grid": Damage("a grid of", length=2 * 10**7, chunk=1),
    "a huge coordinate": Damage("this coordinate has", length=2**40),
}


def source(folder: Path) -> Path:
    path = folder / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        for name in ("good", "bad"):
            file.createVariable(name, "f4", ("x",), contiguous=True)[:] = [1, 2, 3]
    return path


def with_v2(metadata: Metadata, damage: Damage) -> None:
    """Damage the metadata of all keys of a hierarchy of version 2."""
    metadata["bad/.zarray"].update(damage.v2)
    metadata["bad/.zattrs"].update(damage.attributes)


def with_v3(node: Metadata, damage: Damage) -> None:
    """Damage the metadata of one array of version 3."""
    node["attributes"] = {**node.get("attributes", {}), **damage.attributes}
    node.update(damage.v3)


def kerchunk_json(folder: Path, damage: Damage) -> Path:
    path = folder / "refs.json"
    virtualds.open_virtual_dataset(source(folder)).virtual.to_manifest(path)
    document = json.loads(path.read_text())
    refs = document["refs"]
    metadata = {key: json.loads(refs[key]) for key in ("bad/.zarray", "bad/.zattrs")}
    with_v2(metadata, damage)
    refs.update({key: json.dumps(value) for key, value in metadata.items()})
    path.write_text(json.dumps(document))
    return path


def kerchunk_v3(folder: Path, damage: Damage) -> Path:
    """References whose metadata are those of Zarr v3, as VirtualiZarr writes them."""
    (folder / "a.bin").write_bytes(np.array([1, 2, 3], "<f4").tobytes())
    node = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [3],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": ["x"],
    }
    bad = dict(node)
    with_v3(bad, damage)
    refs: dict[str, Any] = {"zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"})}
    for name, metadata in (("good", node), ("bad", bad)):
        refs[f"{name}/zarr.json"] = json.dumps(metadata)
        refs[f"{name}/c/0"] = [str(folder / "a.bin"), 0, 12]
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return folder / "refs.json"


def kerchunk_parquet(folder: Path, damage: Damage) -> Path:
    path = folder / "refs.parquet"
    virtualds.open_virtual_dataset(source(folder)).virtual.to_manifest(path)
    document = json.loads((path / ".zmetadata").read_text())
    with_v2(document["metadata"], damage)
    (path / ".zmetadata").write_text(json.dumps(document))
    return path


def zarr_v3(folder: Path, damage: Damage) -> Path:
    path = folder / "refs.zarr"
    virtualds.open_virtual_dataset(source(folder)).virtual.to_manifest(path)
    document = json.loads((path / "zarr.json").read_text())
    with_v3(document["consolidated_metadata"]["metadata"]["bad"], damage)
    (path / "zarr.json").write_text(json.dumps(document))
    return path


def icechunk(folder: Path, damage: Damage) -> Path:
    library = pytest.importorskip("icechunk")
    path = folder / "refs.icechunk"
    virtualds.open_virtual_dataset(source(folder)).virtual.to_manifest(path)
    repository = library.Repository.open(library.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="r+")
    array = group.create_array("bad", shape=3, dtype="f4", dimension_names=["x"], overwrite=True)
    array[:] = [1, 2, 3]
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    kind = default_buffer_prototype()
    node = json.loads(sync(session.store.get("bad/zarr.json", kind)).to_bytes())
    with_v3(node, damage)
    text = json.dumps(node).encode()
    try:
        sync(session.store.set("bad/zarr.json", kind.buffer.from_bytes(text)))
    except ValueError as error:
        pytest.skip(f"Icechunk itself refuses it: {error}")
    session.commit("damaged")
    return path


def plain(version: int) -> Callable[[Path, Damage], Path]:
    def write(folder: Path, damage: Damage) -> Path:
        path = folder / "store"
        write_good_and_bad(path, version)
        files = ["bad/.zarray", "bad/.zattrs"] if version == 2 else ["bad/zarr.json"]
        metadata = {name: json.loads((path / name).read_text()) for name in files}
        if version == 2:
            with_v2(metadata, damage)
        else:
            with_v3(metadata["bad/zarr.json"], damage)
        for name, document in metadata.items():
            (path / name).write_text(json.dumps(document))
        return path

    return write


FORMATS: dict[str, Callable[[Path, Damage], Path]] = {
    "kerchunk JSON": kerchunk_json,
    "kerchunk JSON of Zarr v3": kerchunk_v3,
    "kerchunk Parquet": kerchunk_parquet,
    "zarr-v3": zarr_v3,
    "icechunk": icechunk,
    "Zarr v2": plain(2),
    "Zarr v3": plain(3),
}
V2 = ("kerchunk JSON", "kerchunk Parquet", "Zarr v2")
LAZY = (
    "kerchunk JSON",
    "kerchunk JSON of Zarr v3",
    "kerchunk Parquet",
    "zarr-v3",
    "icechunk",
)
CASES = [
    (form, what)
    for form in FORMATS
    for what in DAMAGES
    # few references on a huge grid are held by position, or looked at when they are read
    if not (what == "a huge grid" and form in LAZY)
    and not (what == "attributes that are none" and form in V2)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "what"), CASES)
def test_on_error_decides_about_one_bad_variable_of_a_set(
    form: str, what: str, tmp_path: Path
) -> None:
    damage = DAMAGES[what]
    path = FORMATS[form](tmp_path, damage)
    with pytest.raises(VirtualdsError, match=damage.message) as caught:
        virtualds.open_virtual_dataset(path)
    assert "variable 'bad'" in str(caught.value)
    with pytest.warns(UserWarning, match=rf"could not be read\n  bad: .*({damage.message})"):
        skipped = virtualds.open_virtual_dataset(path, on_error="skip")
    assert list(skipped.variables) == ["good"]
    np.testing.assert_array_equal(skipped.good, [1, 2, 3])
    with pytest.warns(UserWarning, match="  bad: "):
        kept = virtualds.open_virtual_dataset(path, on_error="keep")
    np.testing.assert_array_equal(kept.good, [1, 2, 3])
    with pytest.raises((UnsupportedError, ReadError), match=f"{damage.message}|would load"):
        kept.bad.to_numpy()
    with pytest.warns(UserWarning, match="  bad: "):
        tree = virtualds.open_virtual_datatree(path, on_error="skip")
    assert list(tree.to_dataset().variables) == ["good"]
    if what != "a huge coordinate":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lazy = xr.open_dataset(path, engine="virtual", on_error="skip")
        assert list(lazy.variables) == ["good"]


@pytest.mark.parametrize("form", ["kerchunk JSON", "zarr-v3"])
def test_a_set_with_a_bad_variable_is_not_changed(form: str, tmp_path: Path) -> None:
    path = FORMATS[form](tmp_path, DAMAGES["a codec that is not known"])
    files = sorted(path.rglob("*")) if path.is_dir() else path.read_bytes()
    new = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    with pytest.raises(VirtualdsError, match="magic"):
        new.virtual.to_manifest(path, append_dim="x")
    with pytest.raises(VirtualdsError, match="magic"):
        virtualds.convert(path, tmp_path / "other.zarr")
    assert (sorted(path.rglob("*")) if path.is_dir() else path.read_bytes()) == files


def test_all_bad_variables_are_named(tmp_path: Path) -> None:
    path = kerchunk_json(tmp_path, DAMAGES["a codec that is not known"])
    document = json.loads(path.read_text())
    array = document["refs"]["good/.zarray"]
    document["refs"]["good/.zarray"] = json.dumps({**json.loads(array), "dtype": "<q9"})
    path.write_text(json.dumps(document))
    with pytest.raises(VirtualdsError) as caught:
        virtualds.open_virtual_dataset(path)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "<q9" in told and "magic" in told


def test_a_coordinate_of_a_source_file_that_is_too_large_is_decided_of(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 2**31)
        file.createDimension("y", 3)
        # nothing of it is written
        file.createVariable("x", "f8", ("x",), chunksizes=(2**27,))
        file.createVariable("good", "f4", ("y",))[:] = [1, 2, 3]
    with pytest.raises(UnsupportedError, match="'x': this coordinate has"):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match="'x': this coordinate has"):
        found = virtualds.open_virtual_dataset(path, on_error="skip")
    assert list(found.variables) == ["good"]
    with pytest.warns(UserWarning, match="'x': this coordinate has"):
        kept = virtualds.open_virtual_dataset(path, on_error="keep")
    assert kept.sizes == {"x": 2**31, "y": 3}
