"""A change of kerchunk JSON edits the entries that differ, and leaves the others as they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import ManifestArray
from virtualds.datasets.conversion import group_from_dataset
from virtualds.datasets.location import FORMATS
from virtualds.formats import change_set


def numbers(folder: Path, begin: int, end: int, width: int = 3) -> xr.Dataset:
    """Numbers in chunks of one, in a file of their own."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{begin}.bin"
    path.write_bytes(np.arange(begin * width, end * width, dtype="<i4").tobytes())
    array = ManifestArray.from_arrays(
        shape=(end - begin, width), chunks=(1, 1), dtype="<i4", path=str(path),
        offsets=np.arange((end - begin) * width).reshape(-1, width) * 4, lengths=4,
    )  # fmt: skip
    return xr.Dataset({"v": (("time", "x"), array)})


def expected(end: int, width: int = 3) -> list[list[int]]:
    found: list[list[int]] = np.arange(end * width).reshape(-1, width).tolist()
    return found


def opened(target: Path) -> list[list[int]]:
    with xr.open_dataset(target, engine="virtual") as ds:
        found: list[list[int]] = ds["v"].values.tolist()
    return found


def foreign(folder: Path, separator: str = ".", **more: Any) -> dict[str, Any]:
    """A document of another tool: 2 rows of 3 numbers, with what we would not write."""
    numbers(folder, 0, 2)
    chunks = {
        f"v/{i}{separator}{j}": [f"{folder}/0.bin", (3 * i + j) * 4, 4]
        for i in range(2)
        for j in range(3)
    }
    metadata = {
        "chunks": [1, 1], "shape": [2, 3], "dtype": "<i4", "fill_value": None, "order": "C",
        "compressor": None, "filters": None, "zarr_format": 2, "tool": "theirs",
        "dimension_separator": separator,
    }  # fmt: skip
    refs = {
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"], "kept": [1, {"a": 2}]},
        **chunks,
        "notes.txt": "a text of theirs",
        "v/.zarray": metadata,
        ".zgroup": {"zarr_format": 2},
    }
    return {"refs": refs, "theirs": {"b": 1, "a": [2]}, "version": 1, **more}


@pytest.mark.parametrize("separator", [".", "/"])
def test_an_append_adds_entries_and_edits_one(separator: str, tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = foreign(folder, separator)
    target.write_text(json.dumps(document))
    numbers(folder, 2, 4).virtual.to_manifest(target, append_dim="time")
    assert opened(target) == expected(4)
    after = json.loads(target.read_bytes())
    del after["virtualds"]
    # keys stand in their order, and the new ones behind them
    assert list(after) == list(document)
    old = list(document["refs"])
    assert list(after["refs"])[: len(old)] == old
    added = [f"v/{i}{separator}{j}" for i in (2, 3) for j in range(3)]
    assert list(after["refs"])[len(old) :] == added
    changed = [key for key in old if after["refs"][key] != document["refs"][key]]
    assert changed == ["v/.zarray"]
    metadata = json.loads(after["refs"]["v/.zarray"])
    assert metadata == document["refs"]["v/.zarray"] | {"shape": [4, 3]}
    assert {k: after[k] for k in ("theirs", "version")} == {
        k: document[k] for k in ("theirs", "version")
    }


def test_an_append_along_another_axis_leaves_entries_too(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = foreign(folder)
    target.write_text(json.dumps(document))
    new = numbers(tmp_path / "more", 0, 2, 1)
    new.virtual.to_manifest(target, append_dim="x")
    assert opened(target) == [[0, 1, 2, 0], [3, 4, 5, 1]]
    after = json.loads(target.read_bytes())["refs"]
    changed = [key for key in document["refs"] if after[key] != document["refs"][key]]
    assert changed == ["v/.zarray"]


def test_chunks_named_otherwise_than_their_metadata_say_are_named_anew(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = foreign(folder, "/")
    del document["refs"]["v/.zarray"]["dimension_separator"]
    target.write_text(json.dumps(document))
    new = numbers(tmp_path / "other", 3, 6).isel(time=slice(1, 3))
    change_set(FORMATS[0], f"file://{target}", lambda old: group_from_dataset(new))
    assert opened(target) == expected(6)[4:]
    after = json.loads(target.read_bytes())["refs"]
    assert {key for key, value in after.items() if isinstance(value, list)} == {
        f"v/{i}.{j}" for i in range(2) for j in range(3)
    }


def test_attributes_are_edited_alone_and_variables_go_with_their_keys(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = foreign(folder, "/")
    target.write_text(json.dumps(document))
    virtualds.edit(target, attributes={"v:new": 1})
    after = json.loads(target.read_bytes())["refs"]
    assert list(after) == list(document["refs"])
    changed = [key for key in document["refs"] if after[key] != document["refs"][key]]
    assert changed == ["v/.zattrs"]
    attributes = json.loads(after["v/.zattrs"])
    assert attributes == document["refs"]["v/.zattrs"] | {"new": 1}
    xr.Dataset({"w": ("x", [1, 2, 3])}).virtual.to_manifest(target, mode="a")
    virtualds.edit(target, drop_variables="v")
    assert xr.open_dataset(target, engine="virtual")["w"].values.tolist() == [1, 2, 3]
    left = json.loads(target.read_bytes())["refs"]
    assert [key for key in left if key in document["refs"]] == ["notes.txt", ".zgroup"]
    assert not [key for key in left if key.startswith("v/")]


def test_templates_that_are_whole_urls_move_with_their_files(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = foreign(folder, templates={"u": str(folder / "0.bin"), "rest": "s3://bucket"})
    for key, value in document["refs"].items():
        if isinstance(value, list):
            document["refs"][key] = ["{{u}}", *value[1:]]
    target.write_text(json.dumps(document))
    folder.rename(tmp_path / "moved")
    assert virtualds.rename_paths(target, {str(folder): str(tmp_path / "moved")}) == 1
    after = json.loads(target.read_bytes())
    assert after["templates"] == {"u": f"file://{tmp_path}/moved/0.bin", "rest": "s3://bucket"}
    assert after["refs"] == document["refs"]
    assert opened(target) == expected(2)


def generated(folder: Path) -> dict[str, Any]:
    """A document whose references to numbers are generated."""
    document = foreign(folder, templates={"u": str(folder)})
    refs = {k: v for k, v in document["refs"].items() if not isinstance(v, list)}
    gen = {
        "key": "v/{{i}}.{{j}}", "url": "{{u}}/0.bin", "offset": "{{(3*i+j)*4}}", "length": "4",
        "dimensions": {"i": {"stop": 2}, "j": {"stop": 3}},
    }  # fmt: skip
    return document | {"refs": refs, "gen": [gen]}


def test_generators_stay_where_what_they_generate_stays(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = generated(folder)
    target.write_text(json.dumps(document))
    numbers(folder, 2, 4).virtual.to_manifest(target, append_dim="time")
    after = json.loads(target.read_bytes())
    assert after["gen"] == document["gen"]
    assert sorted(k for k, v in after["refs"].items() if isinstance(v, list)) == [
        f"v/{i}.{j}" for i in (2, 3) for j in range(3)
    ]
    assert opened(target) == expected(4)


def test_what_was_generated_is_written_out_where_some_of_it_changes(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    target.write_text(json.dumps(generated(folder)))
    numbers(folder, 2, 4).virtual.to_manifest(target, append_dim="time")
    folder.rename(tmp_path / "moved")
    virtualds.rename_paths(target, {str(folder): str(tmp_path / "moved")})
    after = json.loads(target.read_bytes())
    assert "gen" not in after
    assert after["theirs"] == {"b": 1, "a": [2]}
    assert opened(target) == expected(4)


def test_a_chunk_that_is_replaced_is_edited_where_it_stands(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.json", tmp_path / "in"
    document = foreign(folder)
    target.write_text(json.dumps(document))
    # its second row comes from another file
    other = tmp_path / "other"
    numbers(other, 1, 2)
    new = numbers(folder, 0, 2)
    second = ManifestArray.from_arrays(
        shape=(1, 3), chunks=(1, 1), dtype="<i4", path=str(other / "1.bin"),
        offsets=np.arange(3).reshape(1, 3) * 4, lengths=4,
    )  # fmt: skip
    both = xr.concat([new.isel(time=[0]), xr.Dataset({"v": (("time", "x"), second)})], "time")
    change_set(FORMATS[0], f"file://{target}", lambda old: group_from_dataset(both))
    assert opened(target) == expected(2)
    after = json.loads(target.read_bytes())["refs"]
    assert list(after)[: len(document["refs"])] == list(document["refs"])
    changed = [key for key in document["refs"] if after[key] != document["refs"][key]]
    assert [key for key in changed if not key.startswith("v/.z")] == [f"v/1.{j}" for j in range(3)]
