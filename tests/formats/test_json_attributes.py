"""Attributes that are objects and nested lists stay what they are, in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from peers import peer
from products import looped

import virtualds
from virtualds import FormatError, ManifestArray, UnsupportedError
from virtualds.json_values import from_json, to_json

PROJ = {
    "type": "ProjectedCRS",
    "base_crs": {"datum": {"ellipsoid": {"radius": 6378137, "flattening": None}}, "id": [1, [2]]},
    "to/wgs~84": [0.5, None, {"": True}],
}
MULTISCALES = [
    {"axes": [{"name": "y", "type": "space"}], "datasets": [{"path": "0", "scale": [1.0, 0.5]}]}
]
VALUES: dict[str, Any] = {
    "an object": PROJ,
    "a list of objects": MULTISCALES,
    "an empty object": {},
    "an empty list": [],
    "lists in lists": [[1, 2], [3, [4.5, "five"]]],
    "a list with null": ["a", None, 3],
    "null": None,
    "an object with null": {"nodata": None},
    "a large integer": {"n": [2**70, -(2**100)]},
    "letters": {"ключ": "значение", "\ud800": "\U0001f9ca"},
    "infinities": {"range": [float("-inf"), float("inf")]},
    "infinities in a list": [1.0, float("inf")],
    "numbers of numpy": {"a": np.float32(0.1), "b": [np.int16(3), np.uint64(2**64 - 1)]},
    "a list of numbers of numpy": [np.float32(0.1), np.float32(0.2)],
    "an array": {"a/b": {"c~": np.array([[1, 2]], "i2")}},
    "dates": {"when": np.datetime64("2001-02-03", "D"), "how long": np.timedelta64(5, "s")},
    "complex numbers": {"z": np.complex64(1 + 2j)},
    "bytes": {"raw": b"\x00\xff"},
    "truth": {"yes": np.True_, "no": False},
    "an array of objects": np.array([{"a": 1}, None], object),
}
"""What comes back as it was."""


def same(found: Any, expected: Any) -> bool:
    """Say whether values are equal, and of the same type of numpy."""
    if isinstance(expected, np.ndarray) and expected.dtype == object:
        expected = expected.tolist()
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    if isinstance(expected, np.generic) and not isinstance(expected, np.float64):
        return type(found) is type(expected) and found == expected
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


def dataset(folder: Path, attributes: dict[str, Any]) -> xr.Dataset:
    """A virtual and a loaded variable and a dataset that have these attributes."""
    (folder / "data.bin").write_bytes(np.arange(6.0).tobytes())
    array = ManifestArray.from_arrays(
        shape=(6,), chunks=(3,), dtype="<f8", path=str(folder / "data.bin"),
        offsets=np.array([0, 24]), lengths=24,
    )  # fmt: skip
    variables = {"v": ("x", array, attributes), "w": ("x", np.arange(6), attributes)}
    return xr.Dataset(variables, attrs=attributes)


FORMATS = {
    "kerchunk-json": "refs.json",
    "kerchunk-parquet": "refs.parquet",
    "zarr-v3": "refs.zarr",
    "icechunk": "refs.icechunk",
}


@pytest.fixture(params=FORMATS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "icechunk":
        peer("icechunk")
    return tmp_path / FORMATS[request.param]


# ---------------------------------------------------------------------- what stays as it is


@looped("which", VALUES)
def test_a_value_comes_back_as_it_was(which: str) -> None:
    plain, types = to_json({"a": VALUES[which]})
    text = json.dumps([plain, types], allow_nan=False)
    plain, types = json.loads(text)
    assert same(from_json(plain["a"], types.get("a")), VALUES[which])


def test_nan_comes_back_as_nan() -> None:
    plain, types = to_json({"a": {"b": [float("nan"), np.float32("nan")]}})
    found = from_json(json.loads(json.dumps(plain, allow_nan=False))["a"], types["a"])["b"]
    assert np.isnan(found).all()
    assert isinstance(found[0], float) and isinstance(found[1], np.float32)


def test_every_format_keeps_nested_attributes(target: Path, tmp_path: Path) -> None:
    ds = dataset(tmp_path, VALUES)
    tree = xr.DataTree.from_dict({"/": ds, "/below": dataset(tmp_path, VALUES)})
    tree.virtual.to_manifest(target)
    found = xr.open_datatree(target, engine="virtual")
    for node in (found, found["below"]):
        for attributes in (node.attrs, node["v"].attrs, node["w"].attrs):
            assert attributes.keys() == VALUES.keys()
            for name, value in VALUES.items():
                assert same(attributes[name], value), name


@pytest.mark.parametrize("first", FORMATS)
def test_converting_keeps_nested_attributes(first: str, target: Path, tmp_path: Path) -> None:
    if first == "icechunk":
        peer("icechunk")
    origin = tmp_path / f"first.{FORMATS[first].partition('.')[2]}"
    dataset(tmp_path, VALUES).virtual.to_manifest(origin)
    virtualds.convert(origin, target)
    found = virtualds.open_virtual_dataset(target)
    for name, value in VALUES.items():
        assert same(found["v"].attrs[name], value), name
        assert same(found.attrs[name], value), name


def test_a_set_that_grows_keeps_nested_attributes(target: Path, tmp_path: Path) -> None:
    nested = {"crs": PROJ, "multiscales": MULTISCALES}
    dataset(tmp_path, nested).virtual.to_manifest(target)
    (tmp_path / "more").mkdir()
    dataset(tmp_path / "more", nested).virtual.to_manifest(target, append_dim="x")
    found = xr.open_dataset(target, engine="virtual")
    assert found.sizes["x"] == 12
    assert found.attrs == found["v"].attrs == nested


# ---------------------------------------------------------------------- other ways in and out


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("version", [2, 3])
def test_stores_of_zarr_python_keep_nested_attributes(
    version: int, target: Path, tmp_path: Path
) -> None:
    nested = {"crs": PROJ, "multiscales": MULTISCALES, "nodata": [None, 1]}
    native = xr.Dataset({"v": ("x", np.arange(6.0), nested)}, attrs=nested)
    native.to_zarr(tmp_path / "store", zarr_format=version)  # type: ignore[arg-type, call-overload]
    virtualds.convert(tmp_path / "store", target)
    xr.testing.assert_identical(xr.open_dataset(target, engine="virtual").load(), native)


def test_zarr_python_sees_nested_attributes(tmp_path: Path) -> None:
    nested = {"crs": PROJ, "multiscales": MULTISCALES, "nodata": [None, 1]}
    dataset(tmp_path, nested).virtual.to_manifest(tmp_path / "refs.json")
    with xr.open_zarr(virtualds.zarr_store(tmp_path / "refs.json")) as found:
        assert found.attrs == found["v"].attrs == nested


def test_joined_files_keep_nested_attributes(tmp_path: Path) -> None:
    nested = {"crs": PROJ, "nodata": [None, 1]}
    for name in ("a", "b"):
        native = xr.Dataset({"v": ("x", np.arange(6.0), nested)}, attrs=nested)
        native.to_zarr(tmp_path / f"{name}.zarr", zarr_format=3)
    paths = [str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")]
    found = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="x")
    assert found.attrs == found["v"].attrs == nested
    assert found.sizes["x"] == 12


def test_changing_an_attribute_leaves_other_datasets_alone(tmp_path: Path) -> None:
    nested = {"crs": PROJ}
    dataset(tmp_path, nested).virtual.to_manifest(tmp_path / "refs.json")
    first = xr.open_dataset(tmp_path / "refs.json", engine="virtual")
    first.attrs["crs"]["base_crs"]["id"].append("mine")
    assert xr.open_dataset(tmp_path / "refs.json", engine="virtual").attrs == nested


# ---------------------------------------------------------------------- what has no form


def endless() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int = 200) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an object of Python": (lambda: {"a": [object()]}, "object is not a JSON type"),
    "a set": (lambda: {"a": {1, 2}}, "set is not a JSON type"),
    "keys that are numbers": (lambda: {"a": {1: "one"}}, "1 is not"),
    "a list that holds itself": (endless, "nested objects and lists"),
    "too many objects in each other": (deep, "nested objects and lists"),
    "an integer without end": (lambda: {"a": 10**5000}, "an integer of"),
    "a long double": (lambda: {"a": np.longdouble(1)}, "not a JSON type"),
    "a compound value": (lambda: {"a": np.zeros((), "i4,f4")[()]}, "not a JSON type"),
    "a complex number of Python": (lambda: {"a": 1j}, "complex is not a JSON type"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_attributes_without_a_form_in_json_are_refused_by_name(which: str, tmp_path: Path) -> None:
    make, reason = REFUSED[which]
    ds = dataset(tmp_path, {"odd": make()})
    for path in ("refs.json", "refs.zarr", "refs.parquet"):
        with pytest.raises(UnsupportedError, match="cannot be represented in JSON") as caught:
            ds.virtual.to_manifest(tmp_path / path)
        assert reason in str(caught.value)
        assert "'odd'" in str(caught.value)
        assert not (tmp_path / path).exists()


def test_a_set_may_not_nest_without_end(tmp_path: Path) -> None:
    path = tmp_path / "refs.zarr"
    dataset(tmp_path, {"a": deep(100)}).virtual.to_manifest(path)
    assert xr.open_dataset(path, engine="virtual").attrs == {"a": deep(100)}
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["a"] = deep(900)
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="nested objects and lists"):
        xr.open_dataset(path, engine="virtual")


@pytest.mark.parametrize(
    "noted", [{"/none": "<f8"}, {"/b/7": "<f8"}, {"/b": "lost"}, {"": "<f8"}, 5]
)
def test_notes_that_lead_nowhere_are_a_fault_of_the_set(noted: Any, tmp_path: Path) -> None:
    dataset(tmp_path, {"a": {"b": [float("inf")]}}).virtual.to_manifest(tmp_path / "refs.zarr")
    document = json.loads((tmp_path / "refs.zarr/zarr.json").read_text())
    document["attributes"]["virtualds"]["arrays"]["v"]["attributes"] = {"a": noted}
    (tmp_path / "refs.zarr/zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"refs\.zarr"):
        xr.open_dataset(tmp_path / "refs.zarr", engine="virtual")
