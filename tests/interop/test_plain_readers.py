"""Readers of plain Zarr refuse the virtual arrays of a set, and read the native ones beside them.

They must not show fill values where there are values. What they can know of manifests is that
there is something in the metadata which they do not know.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.api.asynchronous
import zarr.registry
from products import looped
from programs import run_code

import virtualds
from virtualds import FormatError, ManifestArray, UnsupportedError
from virtualds.formats import zarr as chunk_keys

LAT = np.array([-45.0, 0.0, 45.0])
VALUES = np.arange(12.0).reshape(4, 3)


def source(folder: Path, name: str = "data.bin") -> xr.Dataset:
    """``t(y, x)`` in one file, virtual, and ``lat``, in memory."""
    (folder / name).write_bytes(VALUES.tobytes())
    array = ManifestArray.from_arrays(
        shape=(4, 3), chunks=(1, 3), dtype="<f8", path=str(folder / name),
        offsets=np.arange(4)[:, None] * 24, lengths=24,
    )  # fmt: skip
    return xr.Dataset({"t": (("y", "x"), array)}, coords={"lat": ("x", LAT)})


def written(ds: xr.Dataset, folder: Path, **choices: Any) -> Path:
    ds.virtual.to_manifest(folder / "refs.zarr", mode="w", **choices)
    return folder / "refs.zarr"


def of_a_store(folder: Path) -> Path:
    """All chunks of another store, behind one prefix."""
    xr.Dataset({"t": (("y", "x"), VALUES)}).to_zarr(folder / "store", zarr_format=3)
    path = written(source(folder), folder)
    # by hand: what is on a server that lists nothing is written so
    for file in (path / "zarr.json", path / "t/zarr.json"):
        document = json.loads(file.read_text())
        nodes = document.get("consolidated_metadata", {"metadata": {"t": document}})["metadata"]
        [said] = nodes["t"]["storage_transformers"]
        said["configuration"] = {"manifest": {"./": {"path": "../store/t/"}}}
        nodes["t"]["chunk_grid"]["configuration"]["chunk_shape"] = [4, 3]
        nodes["t"]["codecs"] = json.loads((folder / "store/t/zarr.json").read_text())["codecs"]
        file.write_text(json.dumps(document))
    virtualds.convert(path, folder / "again.zarr")
    assert list(transformer_of(folder / "again.zarr")["configuration"]["manifest"]) == ["./"]
    return folder / "again.zarr"


def of_values_written_again(folder: Path) -> Path:
    """An array of values that stand under other keys, since readers may need the former ones."""
    written(xr.Dataset({"t": (("y", "x"), -VALUES), "lat": ("x", LAT)}), folder)
    return written(xr.Dataset({"t": (("y", "x"), VALUES), "lat": ("x", LAT)}), folder)


def of_copies(folder: Path) -> Path:
    """Copies of the chunks, by their content."""
    source(folder).virtual.materialize(folder / "copy.zarr")
    return folder / "copy.zarr"


def of_an_earlier_version(folder: Path) -> Path:
    path = formerly(written(source(folder), folder))
    virtualds.edit(path, attributes={"title": "corrected"})
    return path


SETS: dict[str, Callable[[Path], Path]] = {
    "inline": lambda folder: written(source(folder), folder, manifest="inline"),
    "JSON": lambda folder: written(source(folder), folder, manifest="json"),
    "Parquet": lambda folder: written(source(folder), folder, manifest="parquet"),
    "fragments": lambda folder: written(
        xr.concat([source(folder).isel(x=slice(1, 3)), source(folder).isel(x=slice(1, 3))], "y"),
        folder,
    ),
    "all chunks of a store": of_a_store,
    "values written again": of_values_written_again,
    "copies by their content": of_copies,
    "of an earlier version": of_an_earlier_version,
}
"""Sets with a virtual array ``t`` and a native one ``lat``, perhaps."""


async def read_a_group(path: str) -> Any:
    group = await zarr.api.asynchronous.open_group(path, mode="r")
    found: Any = await group.getitem("t")
    return await found.getitem(...)


async def read_an_array(path: str) -> Any:
    found = await zarr.api.asynchronous.open_array(store=f"{path}/t", mode="r")
    return await found.getitem(...)


WAYS: dict[str, Callable[[str], Any]] = {
    "a group": lambda path: zarr.open_group(path, mode="r")["t"][...],
    "an array of a group": lambda path: zarr.open_group(path, mode="r", use_consolidated=False)[
        "t"
    ][...],
    "the members of a group": lambda path: list(
        zarr.open_group(path, mode="r", use_consolidated=False).arrays()
    ),
    "an array": lambda path: zarr.open_array(f"{path}/t", mode="r")[...],
    "whatever it is": lambda path: zarr.open(path, path="t", mode="r")[...],
    "the values alone": lambda path: zarr.load(path, path="t"),
    "a group, asynchronously": lambda path: asyncio.run(read_a_group(path)),
    "an array, asynchronously": lambda path: asyncio.run(read_an_array(path)),
    "dask": lambda path: dask.array.from_zarr(path, component="t").compute(),
    "xarray and dask": lambda path: xr.open_zarr(path, chunks={})["t"].values,
    "xarray": lambda path: xr.open_zarr(path)["t"].values,
    "xarray, consolidated": lambda path: xr.open_zarr(path, consolidated=True)["t"].values,
    "xarray, not consolidated": lambda path: xr.open_zarr(path, consolidated=False)["t"].values,
    "xarray's engine": lambda path: xr.open_dataset(path, engine="zarr")["t"].values,
    "a tree": lambda path: xr.open_datatree(path, engine="zarr")["t"].values,
}
"""Ways to the values of ``t`` that know nothing of manifests."""

ALONE = {"an array", "whatever it is", "the values alone", "an array, asynchronously", "dask"}
"""Those that open the array and no group. There zarr-python looks for storage transformers."""


def appended() -> xr.Dataset:
    return xr.Dataset({"t": (("y", "x"), np.ones((1, 3)))})


def opened(path: str, consolidated: bool | None = None) -> Any:
    return zarr.open_group(path, mode="r+", use_consolidated=consolidated)


CHANGES: dict[str, Callable[[str], Any]] = {
    "values": lambda path: opened(path)["t"].__setitem__(slice(None), 1),
    "values, not consolidated": lambda path: opened(path, False)["t"].__setitem__(slice(None), 1),
    "values of an array": lambda path: zarr.open_array(f"{path}/t", mode="r+").__setitem__(0, 1),
    "a longer shape": lambda path: opened(path, False)["t"].resize((6, 3)),
    "a shorter shape": lambda path: opened(path, False)["t"].resize((2, 3)),
    "values at the end": lambda path: opened(path, False)["t"].append(np.ones((1, 3))),
    "attributes": lambda path: opened(path, False)["t"].attrs.update(units="K"),
    "attributes of all": lambda path: opened(path).attrs.update(title="mine"),
    "a new array": lambda path: opened(path).create_array("u", shape=(1,), dtype="f8"),
    "a group without it": lambda path: opened(path).__delitem__("t"),
    "consolidated metadata": lambda path: zarr.consolidate_metadata(path),
    "xarray's append": lambda path: appended().to_zarr(path, append_dim="y"),
    "xarray's region": lambda path: appended().to_zarr(path, region={"y": slice(0, 1)}),
    "xarray's variable": lambda path: appended().rename(t="u").to_zarr(path, mode="a"),
}
"""Ways to change a set that know nothing of manifests."""


def formerly(path: Path) -> Path:
    """Bring a set to what was written before virtual arrays were marked."""
    files = [path / "zarr.json", *path.glob("__virtualds__/*/zarr.json"), path / "t/zarr.json"]
    for file in files:
        document = json.loads(file.read_text())
        nodes = document.get("consolidated_metadata", {"metadata": {"t": document}})["metadata"]
        for node in nodes.values():
            node["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}
        file.write_text(json.dumps(document))
    return path


def root_of(path: Path) -> Any:
    return json.loads((path / "zarr.json").read_text())


def transformer_of(path: Path) -> Any:
    [found] = root_of(path)["consolidated_metadata"]["metadata"]["t"]["storage_transformers"]
    return found


def everything(path: Path) -> dict[str, bytes]:
    """Return all files of a set, by path."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def ours(path: Path, **options: Any) -> Any:
    return xr.open_dataset(path, engine="virtual", **options)["t"].values


# ---------------------------------------------------------------------- what they refuse


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", SETS)
def test_zarr_python_refuses_every_virtual_array(which: str, way: str, tmp_path: Path) -> None:
    path = SETS[which](tmp_path)
    assert np.isfinite(ours(path)).all()
    # by name, and not as something that is not there
    with pytest.raises((ValueError, TypeError), match=r"virtualds\.|disallowed extra"):
        WAYS[way](str(path))


@looped("change", CHANGES)
def test_zarr_python_changes_nothing_of_a_set(change: str, tmp_path: Path) -> None:
    path = written(source(tmp_path), tmp_path, manifest="json")
    before = everything(path)
    with pytest.raises((ValueError, TypeError), match=r"virtualds\.|disallowed extra"):
        CHANGES[change](str(path))
    assert everything(path) == before


REGISTERED = """
import sys, zarr
from zarr.core.chunk_key_encodings import ChunkKeyEncoding

class Keys(ChunkKeyEncoding):
    name = "virtualds.manifest"

    @classmethod
    def from_dict(cls, data):
        return cls()

    def encode_chunk_key(self, chunk_coords):
        raise RuntimeError("no keys")

zarr.registry.register_chunk_key_encoding(Keys.name, Keys)
t = zarr.open_group(sys.argv[1], mode="r+")["t"]
try:
    t[:]
except RuntimeError as error:
    print(error)
t.resize((6, 3))
"""


@pytest.mark.skipif(
    not hasattr(zarr.registry, "register_chunk_key_encoding"),
    reason="zarr-python has no registry of chunk key encodings before 3.1.3",
)
def test_with_an_encoding_that_only_refuses_keys_zarr_python_would_change_the_set(
    tmp_path: Path,
) -> None:
    """Why none is registered: if this fails, decision 25 may be looked at again."""
    path = written(source(tmp_path), tmp_path)
    before = everything(path)
    assert run_code(REGISTERED, path, check=True).stdout == "no keys\n"
    after = everything(path)
    assert {name for name in after if after[name] != before.get(name)} == {"t/zarr.json"}
    assert json.loads(after["t/zarr.json"])["shape"] == [6, 3]


@pytest.mark.parametrize("way", WAYS)
def test_without_the_name_of_the_extension_other_readers_show_fill_values(
    way: str, tmp_path: Path
) -> None:
    """What the name is for: if this fails, readers have learnt to refuse storage transformers."""
    path = formerly(written(source(tmp_path), tmp_path))
    if way in ALONE:
        with pytest.raises(ValueError, match="storage transformers"):
            WAYS[way](str(path))
    elif way != "the members of a group":
        assert not np.nan_to_num(WAYS[way](str(path))).any()


def test_native_arrays_are_open_to_all_one_by_one(tmp_path: Path) -> None:
    path = str(written(source(tmp_path), tmp_path))
    found = zarr.open_array(f"{path}/lat", mode="r")[:]
    np.testing.assert_array_equal(found, LAT)
    group = zarr.open_group(path, mode="r", use_consolidated=False)
    np.testing.assert_array_equal(group["lat"][:], LAT)


def test_a_set_of_native_arrays_is_plain_zarr(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": ("x", LAT)})
    path = written(ds, tmp_path)
    with xr.open_zarr(path) as found:
        found.attrs.pop("virtualds")
        xr.testing.assert_identical(found.load(), ds)


def tensorstore(path: Path) -> Any:
    found = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return found.open(spec, open=True).result().read().result()


def gdal(path: Path) -> Any:
    rasterio = pytest.importorskip("rasterio")
    with warnings.catch_warnings():
        # arrays without a place on the globe
        warnings.simplefilter("ignore")
        with rasterio.open(f'ZARR:"{path.parent}":/{path.name}') as found:
            return found.read()


@pytest.mark.parametrize("transformers", ["as they are", "passed over"])
@pytest.mark.parametrize("reader", [tensorstore, gdal])
def test_other_libraries_refuse_virtual_arrays_alone(
    reader: Callable[[Path], Any], transformers: str, tmp_path: Path
) -> None:
    path = written(source(tmp_path), tmp_path)
    np.testing.assert_array_equal(np.ravel(reader(path / "lat")), LAT)
    if transformers == "passed over":
        # these libraries know that they know none; others may not look
        for file in (path / "zarr.json", path / "t/zarr.json"):
            text = file.read_text()
            assert '"storage_transformers":' in text
            file.write_text(text.replace('"storage_transformers":', '"attributes":'))
            document = json.loads(file.read_text())
            nodes = document.get("consolidated_metadata", {"metadata": {"t": document}})["metadata"]
            for node in nodes.values():
                node["attributes"] = {}
            file.write_text(json.dumps(document))
    with pytest.raises((ValueError, OSError), match=r"storage.transformers|chunk_key_encoding"):
        reader(path / "t")


def test_sets_in_formats_of_other_tools_do_not_hold_the_name(tmp_path: Path) -> None:
    """It says what is true of sets in this format alone."""
    path = written(source(tmp_path), tmp_path)
    with xr.open_zarr(virtualds.zarr_store(path)) as found:
        np.testing.assert_array_equal(found["t"].values, VALUES)
    virtualds.convert(path, tmp_path / "refs.json")
    assert chunk_keys.MANIFEST_KEYS not in (tmp_path / "refs.json").read_text()
    vds = virtualds.open_virtual_dataset(path, loadable_variables=[])
    vds.virtual.materialize(tmp_path / "copy.zarr", layout="chunks")
    with xr.open_zarr(tmp_path / "copy.zarr") as found:
        np.testing.assert_array_equal(found["t"].values, VALUES)


# ---------------------------------------------------------------------- what we read


def test_a_virtual_array_without_its_manifest_is_a_format_error(tmp_path: Path) -> None:
    path = written(source(tmp_path), tmp_path)
    document = root_of(path)
    document["consolidated_metadata"]["metadata"]["t"]["storage_transformers"] = []
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="no storage transformer"):
        ours(path)


@pytest.mark.parametrize(
    "said",
    [5, {"base_encoding": 5}, {"base_encoding": {"name": chunk_keys.MANIFEST_KEYS}}, [1]],
    ids=str,
)
def test_an_encoding_that_makes_no_sense_is_refused_by_name(said: Any, tmp_path: Path) -> None:
    path = written(source(tmp_path), tmp_path)
    document = root_of(path)
    node = document["consolidated_metadata"]["metadata"]["t"]
    node["chunk_key_encoding"]["configuration"] = said
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        ours(path)
    assert "refs.zarr" in str(caught.value)


def test_a_base_encoding_is_optional(tmp_path: Path) -> None:
    path = of_a_store(tmp_path)
    document = root_of(path)
    node = document["consolidated_metadata"]["metadata"]["t"]
    node["chunk_key_encoding"] = {"name": chunk_keys.MANIFEST_KEYS}
    (path / "zarr.json").write_text(json.dumps(document))
    np.testing.assert_array_equal(ours(path), VALUES)


# ---------------------------------------------------------------------- sets of earlier versions


@pytest.mark.parametrize("form", ["inline", "json", "parquet"])
def test_a_set_of_an_earlier_version_is_read_and_corrected_by_a_change(
    form: str, tmp_path: Path
) -> None:
    path = formerly(written(source(tmp_path), tmp_path, manifest=form))
    before = everything(path)
    [first] = virtualds.snapshots(path)["snapshot"]
    np.testing.assert_array_equal(ours(path), VALUES)
    virtualds.edit(path, attributes={"title": "corrected"})
    # one snapshot more, and no manifest is written again
    [earlier, now] = virtualds.snapshots(path)["snapshot"]
    assert earlier == first
    changed = {name for name, data in everything(path).items() if before.get(name) != data}
    assert changed == {"zarr.json", "t/zarr.json", f"__virtualds__/{now}/zarr.json.gz"}
    for snapshot in (earlier, now):
        np.testing.assert_array_equal(ours(path, snapshot=snapshot), VALUES)


def test_a_set_that_is_not_consolidated_is_corrected_by_a_change(tmp_path: Path) -> None:
    path = formerly(written(source(tmp_path), tmp_path))
    document = root_of(path)
    del document["consolidated_metadata"]
    (path / "zarr.json").write_text(json.dumps(document))
    virtualds.edit(path, attributes={"title": "corrected"})
    np.testing.assert_array_equal(ours(path), VALUES)
    with pytest.raises(ValueError, match="virtualds"):
        WAYS["an array of a group"](str(path))


def test_every_change_of_a_set_marks_all_of_its_virtual_arrays(tmp_path: Path) -> None:
    path = formerly(written(source(tmp_path).assign(u=source(tmp_path)["t"]), tmp_path))
    more = source(tmp_path, "more.bin")
    more.assign(u=more["t"]).virtual.to_manifest(path, append_dim="y")
    nodes = root_of(path)["consolidated_metadata"]["metadata"]
    named = {name: node["chunk_key_encoding"]["name"] for name, node in nodes.items()}
    assert named == {
        "t": "virtualds.manifest",
        "u": "virtualds.manifest",
        "lat": "default",
    }
