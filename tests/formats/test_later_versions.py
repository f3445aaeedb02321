"""Sets of later versions of zarr-v3 are refused where this version does not know what they say."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import FormatError, UnsupportedError

FILES = ((2, 0.5), (3, 0.5), (2, 0.5), (2, 0.25))
"""Days of each file, and how its values are packed."""
LISTED = ("lengths", "stored", "hidden")


def write_files(folder: Path) -> list[Path]:
    """Write files of ``v(time, member, x)``, a chunk each."""
    paths = [folder / f"{number}.nc" for number in range(len(FILES))]
    for path, (days, scale) in zip(paths, FILES, strict=True):
        values = np.arange(days * 6.0).reshape(days, 2, 3)
        packed = {
            "chunksizes": (days, 2, 3),
            "dtype": "i2",
            "scale_factor": scale,
            "_FillValue": -1,
        }
        ds = xr.Dataset({"v": (("time", "member", "x"), values)})
        ds.to_netcdf(path, encoding={"v": packed}, engine="netcdf4")
    return paths


@pytest.fixture
def refs(tmp_path: Path) -> Path:
    """A set whose one array has an object of every kind that `PLACES` names."""
    opened = [virtualds.open_virtual_dataset(path) for path in write_files(tmp_path)]
    vds = xr.concat(opened, "time").isel(member=1)
    for form in ("parquet", "json"):
        vds.virtual.to_manifest(tmp_path / f"{form}.zarr", manifest=form)
    return tmp_path / "parquet.zarr"


def change_set(refs: Path, change: Callable[[Any, Any], object]) -> None:
    """Change the root of a set, given to ``change`` with the metadata of its array."""
    document = json.loads((refs / "zarr.json").read_text())
    change(document, document["consolidated_metadata"]["metadata"]["v"])
    (refs / "zarr.json").write_text(json.dumps(document))


def grid(node: Any) -> Any:
    return node["chunk_grid"]["configuration"]


def pipelines(node: Any) -> Any:
    return node["codecs"][0]["configuration"]


def manifest(node: Any) -> Any:
    return node["storage_transformers"][0]["configuration"]


def pack_axis(node: Any) -> None:
    """Write the listed axis of an array as version 1.3 writes very long ones."""
    axis = axis_with("lengths", node)
    columns = [[n for n, count in axis.pop(k) for _ in range(count)] for k in LISTED]
    data = numcodecs.Zstd().encode(np.array(columns, "u1").tobytes())
    axis |= {"slabs": len(columns[0]), "type": "|u1", "packed": base64.b64encode(data).decode()}


def axis_with(key: str, node: Any) -> Any:
    return next(a for f in grid(node)["fragments"] for a in f["axes"] if key in a)


PLACES: dict[str, Callable[[Any], Any]] = {
    "grid": grid,
    "fragment": lambda node: grid(node)["fragments"][0],
    "even axis": lambda node: axis_with("size", node),
    "listed axis": lambda node: axis_with("lengths", node),
    "packed axis": lambda node: pack_axis(node) or axis_with("packed", node),
    "codec": pipelines,
    "pipeline": lambda node: pipelines(node)["pipelines"][0],
    "stored axis": lambda node: next(
        e for e in pipelines(node)["pipelines"][0]["layout"] if isinstance(e, dict)
    ),
    "packing": lambda node: pipelines(node)["pipelines"][0]["packing"],
    "manifest": manifest,
    "part": lambda node: manifest(node)["parts"][0],
    "table": lambda node: manifest(node)["parts"][0]["table"],
}
"""Where a later minor version may add a key."""


def read_values(refs: Path) -> Any:
    with xr.open_dataset(refs, engine="virtual") as ds:
        return ds["v"].values


@pytest.mark.parametrize("place", PLACES)
def test_a_key_of_a_later_version_is_refused_by_name(place: str, refs: Path) -> None:
    change_set(refs, lambda _, node: PLACES[place](node).update(compass=1))
    with pytest.raises(UnsupportedError, match=r"(?s)'compass'.*update virtualds"):
        read_values(refs)


@pytest.mark.parametrize("place", PLACES)
def test_a_key_that_need_not_be_understood_is_passed_over(place: str, refs: Path) -> None:
    expected = read_values(refs)
    change_set(refs, lambda _, n: PLACES[place](n).update(compass={"must_understand": False}))
    np.testing.assert_array_equal(read_values(refs), expected)


def test_a_key_of_a_json_manifest_is_refused_by_name(refs: Path) -> None:
    refs = refs.with_name("json.zarr")
    change_set(refs, lambda _, node: manifest(node).update(compass=1))
    with pytest.raises(UnsupportedError, match="'compass'"):
        read_values(refs)


def test_a_later_major_version_is_refused_as_a_whole(refs: Path) -> None:
    change_set(refs, lambda document, _: document["attributes"]["virtualds"].update(version=2))
    with pytest.raises(FormatError, match=r"(?s)version 2\n.*update virtualds"):
        read_values(refs)
