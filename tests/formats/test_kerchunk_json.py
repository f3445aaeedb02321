"""kerchunk JSON: every spelling is read, what is written is strict, whole, and reads the same."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numcodecs
import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive, numbers
from products import looped
from range_server import range_server
from registered_codecs import Case
from transforms import without_gaps
from zarr_stores import v3

import virtualds
from virtualds import AccessError, FormatError, ManifestArray, ReadError, UnsupportedError, streams
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import INLINE
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.formats import ReadOptions
from virtualds.formats.kerchunk import json as kerchunk_json
from virtualds.source_file import SourceFile

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")

CANNOT_BE_HELD = {
    # two ways to decode in one array
    "filter_mask_per_chunk": "codecs change",
    "compound_types": "bytes between its members",
    "shorter_without_any_fill": "without gaps",
    "virtual_datasets": "codecs change",
    "zarr_v3": "permuted",
}
STORED_OTHERWISE = {
    ("external_files", "in_rows"),  # several files are chunks
    ("integers_of_odd_precision", "w"),  # big-endian in the source, inline as h5py read it
}
CUT = {("unlimited_of_different_lengths", name) for name in ("short", "filled")}
"""Uncompressed variables that are cut to rows, since HDF5 pads their last chunk with anything."""
CAN_BE_HELD = [name for name in CASES if name not in CANNOT_BE_HELD]


def strict(text: str | bytes) -> Any:
    """Parse JSON that no reader of JSON refuses."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        assert len(found) == len(pairs), "a key stands twice"
        return found

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def written(group: ManifestGroup, path: Path) -> Any:
    kerchunk_json.write(group, f"file://{path}")
    return strict(path.read_bytes())


def read(path: Path, **options: Any) -> ManifestGroup:
    return kerchunk_json.read(SourceFile(f"file://{path}"), ReadOptions(**options))


def lazy(path: Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual", **options)


# ---------------------------------------------------------------------- read(write(g)) == g


@looped("name", CAN_BE_HELD, quick=len(CAN_BE_HELD) // 3)
def test_a_group_survives_being_written(name: str, archive: Archive, tmp_path: Path) -> None:
    group = open_group(Location.of(archive.path(name)), OpenOptions(CASES[name].group))
    written(group, tmp_path / "refs.json")
    again = read(tmp_path / "refs.json")
    assert list(again.variables) == list(group.variables)
    assert _typed(again.attributes) == _typed(group.attributes)
    assert again.encoding == group.encoding
    for variable, before in group.variables.items():
        after = again.variables[variable]
        assert after.dims == before.dims
        assert _typed(after.attributes) == _typed(before.attributes)
        # classic netCDF knows no filters, which the form spells out
        if (name, variable) not in {*STORED_OTHERWISE, *CUT} and CASES[name].source != "netcdf3":
            assert _typed(after.encoding) == _typed(before.encoding)
        if isinstance(before.data, ManifestArray):
            if (name, variable) not in CUT:
                assert _references(after.data) == _references(before.data)
            assert after.data.dtype == before.data.dtype
            assert np.asarray(after.data).tobytes() == np.asarray(before.data).tobytes()
        else:
            assert np.asarray(after.data).tolist() == before.data.tolist()


def _typed(values: Any) -> dict[str, tuple[Any, ...]]:
    """Spell values so that NaN equals NaN and types count; where from is another matter."""
    spelled = {}
    for name, value in values.items():
        if name in ("source", "least_significant_digit"):
            continue
        metadata = dict(value.metadata or {}) if isinstance(value, np.dtype) else {}
        kind = getattr(value, "dtype", None)
        spelled[name] = (type(value), kind, repr(value), metadata)
    return spelled


def _references(data: Any) -> Any:
    """Spell every reference into a file, and everything that decodes it."""
    if not isinstance(data, ManifestArray):
        return "values"
    manifest = data.manifest
    chunks = [
        (tuple(place), manifest.files[row.file], row.offset, row.length)
        for place in np.argwhere(manifest.file >= 0).tolist()
        for row in [manifest.lookup(tuple(place))]
    ]
    pipeline = data.pipelines[0]
    return chunks, pipeline.dtype, pipeline.codecs, pipeline.layout


@pytest.mark.full
@looped("name", CAN_BE_HELD)
def test_a_set_that_is_read_and_written_again_stays_the_same(
    name: str, archive: Archive, tmp_path: Path
) -> None:
    group = open_group(Location.of(archive.path(name)), OpenOptions(CASES[name].group))
    first = written(group, tmp_path / "first.json")
    second = written(read(tmp_path / "first.json"), tmp_path / "second.json")
    assert second["refs"] == first["refs"]
    assert second["virtualds"] == first["virtualds"]


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
@looped("loadable", [None, []])
def test_the_document_is_strict_json_of_version_1(
    name: str, loadable: Any, archive: Archive, tmp_path: Path
) -> None:
    try:
        ds = virtualds.open_virtual_dataset(
            archive.path(name), group=CASES[name].group, loadable_variables=loadable
        )
    except UnsupportedError:
        assert loadable == []
        return
    try:
        ds.virtual.to_manifest(tmp_path / "refs.json")
    except UnsupportedError:
        assert not (tmp_path / "refs.json").exists()
        ds.virtual.load().virtual.to_manifest(tmp_path / "refs.json", mode="w")
    document = strict((tmp_path / "refs.json").read_bytes())
    assert document["version"] == 1
    for key, value in document["refs"].items():
        assert isinstance(value, str | list), key
        if key.rpartition("/")[2].startswith(".z"):
            strict(value)


def test_nested_groups_are_a_tree_again(tmp_path: Path) -> None:
    leaf = ManifestGroup({"v": ManifestVariable(("x",), ManifestArray.full((3,), 0, "f4"))})
    tree = ManifestGroup(
        {"v": ManifestVariable(("x",), ManifestArray.full((5,), 0, "i2"))},
        {"title": "root"},
        {"a": replace(leaf, groups={"b": replace(leaf, attributes={"n": np.int16(3)})})},
    )
    written(tree, tmp_path / "refs.json")
    again = read(tmp_path / "refs.json")
    assert [path for path, _ in again.walk()] == ["", "a", "a/b"]
    assert again.attributes == {"title": "root"}
    assert again.group("a/b").attributes == {"n": 3}
    assert type(again.group("a/b").attributes["n"]) is np.int16
    assert read(tmp_path / "refs.json", group="/a/b/").variables["v"].data.shape == (3,)
    with pytest.raises(FileNotFoundError, match="there is no 'c'"):
        read(tmp_path / "refs.json", group="a/c")


def test_fingerprints_travel(archive: Archive, tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(archive.path("contiguous"), loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    again = virtualds.open_virtual_dataset(tmp_path / "refs.json", loadable_variables=[])
    assert again["v"].data.sources == ds["v"].data.sources
    found = os.stat(archive.path("contiguous"))
    assert again["v"].data.sources[0].size == found.st_size
    assert again["v"].data.sources[0].mtime == found.st_mtime_ns


@pytest.mark.parametrize("noted", [None, [], [True, None, None], [2**63, None, None]], ids=str)
def test_a_fingerprint_that_is_none_is_a_fault_of_the_set(noted: Any, tmp_path: Path) -> None:
    CASES["contiguous"].write(tmp_path / "a.nc")
    path = tmp_path / "refs.json"
    virtualds.open_virtual_dataset(tmp_path / "a.nc", loadable_variables=[]).virtual.to_manifest(
        path
    )
    document = json.loads(path.read_text())
    notes = json.loads(document["virtualds"])
    (url,) = notes["files"]
    document["virtualds"] = json.dumps({**notes, "files": {url: noted}})
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"a\.nc is .*, not a size, time and etag"):
        lazy(path).load()


def test_a_changed_source_is_found_out_through_the_set(tmp_path: Path) -> None:
    CASES["contiguous"].write(tmp_path / "a.nc")
    ds = virtualds.open_virtual_dataset(tmp_path / "a.nc", loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    os.utime(tmp_path / "a.nc", ns=(0, 0))
    with pytest.raises(ReadError, match="modified after"):
        lazy(tmp_path / "refs.json").load()


# ---------------------------------------------------------------------- writing is all or nothing


def two_way_dataset(folder: Path) -> xr.Dataset:
    """Two variables that the format cannot hold, and one that it can."""
    for number, kind in ((1, "f4"), (2, "f8")):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["t"] = numbers(4, dtype=kind)
            file.create_dataset("u", data=numbers(4), chunks=(3 - number,), compression="gzip")
            file["good"] = numbers(3)
    parts = [
        virtualds.open_virtual_dataset(folder / f"{n}.h5", loadable_variables=[]) for n in (1, 2)
    ]
    return xr.concat(
        parts, dim="phony_dim_0", data_vars=["t", "u"], coords="minimal", compat="override",
        join="override",
    )  # fmt: skip


def test_a_refusal_lists_every_variable_with_reason_and_files(tmp_path: Path) -> None:
    ds = two_way_dataset(tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        ds.virtual.to_manifest(tmp_path / "refs.json")
    text = str(caught.value)
    assert "\n  t: " in text
    assert "\n  u: " in text
    assert "good" not in text
    assert f"{tmp_path}/1.h5" in text
    assert f"{tmp_path}/2.h5" in text
    assert "refs.json" in text
    assert not (tmp_path / "refs.json").exists()


@pytest.mark.parametrize("name", CANNOT_BE_HELD)
def test_references_that_the_format_cannot_hold_are_refused(
    name: str, archive: Archive, tmp_path: Path
) -> None:
    ds = virtualds.open_virtual_dataset(archive.path(name), loadable_variables=[])
    with pytest.raises(UnsupportedError, match=CANNOT_BE_HELD[name]):
        ds.virtual.to_manifest(tmp_path / "refs.json")
    loaded = ds.virtual.load()
    loaded.virtual.to_manifest(tmp_path / "refs.json", mode="w")
    xr.testing.assert_identical(lazy(tmp_path / "refs.json").load(), archive.native(name))


def _bad_attribute(folder: Path) -> xr.Dataset:
    return xr.Dataset({"v": ("x", [1.0], {"odd": {"a": object()}})})


def _bad_strings(folder: Path) -> xr.Dataset:
    return xr.Dataset({"v": ("x", np.array(["a", 3.5], object))})


FAILURES: dict[str, Callable[[Path], xr.Dataset]] = {
    "refused": two_way_dataset,
    "attribute": _bad_attribute,
    "mixed objects": _bad_strings,
}


@pytest.mark.parametrize("which", FAILURES)
def test_a_failing_write_leaves_the_old_set(which: str, tmp_path: Path) -> None:
    target = tmp_path / "out" / "refs.json"
    target.parent.mkdir()
    target.write_bytes(b"the old set")
    ds = FAILURES[which](tmp_path)
    with pytest.raises((UnsupportedError, TypeError)):
        ds.virtual.to_manifest(target)
    assert target.read_bytes() == b"the old set"
    assert os.listdir(target.parent) == ["refs.json"]


def test_a_write_that_fails_at_the_last_step_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "refs.json").mkdir()
    with pytest.raises(OSError):
        xr.Dataset({"v": ("x", [1.0])}).virtual.to_manifest(tmp_path / "refs.json")
    assert os.listdir(tmp_path) == ["refs.json"]
    assert os.listdir(tmp_path / "refs.json") == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        xr.Dataset({"v": ("x", [1.0])}).virtual.to_manifest(tmp_path / "none" / "refs.json")


def test_an_existing_set_is_replaced_or_refused(tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    one, two = (xr.Dataset({"v": ("x", [n])}) for n in (1.0, 2.0))
    one.virtual.to_manifest(target, mode="w-")
    with pytest.raises(FileExistsError):
        two.virtual.to_manifest(target, mode="w-")
    assert lazy(target)["v"].values == [1.0]
    assert os.listdir(tmp_path) == ["refs.json"]
    two.virtual.to_manifest(target, mode="w")
    assert lazy(target)["v"].values == [2.0]
    assert os.listdir(tmp_path) == ["refs.json"]


def test_a_reader_keeps_the_set_that_it_opened(archive: Archive, tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(archive.path("contiguous"), loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    opened = lazy(tmp_path / "refs.json")
    xr.Dataset({"v": ("x", [1.0])}).virtual.to_manifest(tmp_path / "refs.json", mode="w")
    xr.testing.assert_identical(opened.load(), archive.native("contiguous"))


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
@pytest.mark.parametrize("templates", [False, True])
def test_the_suffix_compresses_and_templates_name_folders(
    suffix: str, templates: bool, archive: Archive, tmp_path: Path
) -> None:
    ds = virtualds.open_virtual_dataset(archive.path("contiguous"), loadable_variables=[])
    target = tmp_path / f"refs{suffix}"
    ds.virtual.to_manifest(target, templates=templates)
    data = target.read_bytes()
    assert data.startswith({".json": b"{", ".json.gz": b"\x1f\x8b"}.get(suffix, b"\x28\xb5"))
    document = strict(kerchunk_json.decompress(data, "refs"))
    folder = f"file://{archive.path('contiguous').parent}"
    assert document.get("templates") == ({"u0": folder} if templates else None)
    urls = {value[0] for value in document["refs"].values() if isinstance(value, list)}
    assert urls == {f"{'{{u0}}' if templates else folder}/{archive.path('contiguous').name}"}
    again = virtualds.open_virtual_dataset(target, loadable_variables=[])
    assert again["v"].data.sources == ds["v"].data.sources
    xr.testing.assert_identical(lazy(target).load(), archive.native("contiguous"))


@pytest.mark.parametrize("name", ["a{b}.nc", "a{{b}}.nc", "{{u0}}.nc"])
def test_braces_in_names_survive_templates(name: str, tmp_path: Path) -> None:
    parts = []
    for which in ("plain.nc", name):
        CASES["contiguous"].write(tmp_path / which)
        parts.append(virtualds.open_virtual_dataset(tmp_path / which, loadable_variables=[]))
    ds = xr.concat(parts, "part", data_vars="all", coords="minimal", compat="override")
    ds.virtual.to_manifest(tmp_path / "refs.json", templates=True)
    again = virtualds.open_virtual_dataset(tmp_path / "refs.json", loadable_variables=[])
    assert again["v"].data.sources == ds["v"].data.sources


def test_a_choice_that_the_format_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="kerchunk-json has no option 'tempaltes'"):
        xr.Dataset().virtual.to_manifest(tmp_path / "refs.json", tempaltes=True)


# ---------------------------------------------------------------------- every spelling is read

VALUES = np.arange(12, dtype="<i2").reshape(4, 3)
HEADER = 5
ZARRAY = {
    "zarr_format": 2, "shape": [4, 3], "chunks": [2, 3], "dtype": "<i2", "compressor": None,
    "filters": None, "fill_value": None, "order": "C",
}  # fmt: skip
ZATTRS = {"_ARRAY_DIMENSIONS": ["y", "x"]}
ROWS = VALUES[:2].tobytes(), VALUES[2:].tobytes()


def refs(data: str, **changes: Any) -> dict[str, Any]:
    """References to ``VALUES`` in a file, some of them changed; None leaves one out."""
    plain = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "v/.zarray": json.dumps(ZARRAY),
        "v/.zattrs": json.dumps(ZATTRS),
        "v/0.0": [data, HEADER, 12],
        "v/1.0": [data, HEADER + 12, 12],
    }
    found = plain | changes
    return {key: value for key, value in found.items() if value is not None}


def version_1(refs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "refs": refs} | more


def b64(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


SLASHES = json.dumps(ZARRAY | {"dimension_separator": "/"})
CONSOLIDATED = json.dumps(
    {
        "zarr_consolidated_format": 1,
        "metadata": {".zgroup": {"zarr_format": 2}, "v/.zarray": ZARRAY, "v/.zattrs": ZATTRS},
    }
)
WHOLE = json.dumps(ZARRAY | {"chunks": [4, 3]})

SPELLINGS: dict[str, Callable[[str], Any]] = {
    "version 0": lambda d: refs(d),
    "version 1": lambda d: version_1(refs(d)),
    "version 0 that says so": lambda d: {"version": 0, "refs": refs(d)},
    "without templates": lambda d: version_1(refs(d), templates={}, gen=[]),
    "templates": lambda d: version_1(refs("{{u}}"), templates={"u": d}),
    "template of a folder": lambda d: version_1(
        refs("{{dir}}/{{name}}"),
        templates={"dir": d.rpartition("/")[0], "name": d.rpartition("/")[2]},
    ),
    "template with arguments": lambda d: version_1(
        refs("{{f(c='data', e='bin')}}"),
        templates={"f": d.rpartition("/")[0] + "/{{c}}.{{e}}"},
    ),
    "generated": lambda d: version_1(
        refs(d, **{"v/0.0": None, "v/1.0": None}),
        gen=[
            {
                "key": "v/{{i}}.0", "url": d, "offset": "{{5 + 12 * i}}", "length": "12",
                "dimensions": {"i": {"stop": 2}},
            }
        ],
    ),
    "generated without refs of chunks": lambda d: version_1(
        refs(d, **{"v/0.0": None, "v/1.0": None}),
        templates={"dir": d.rpartition("/")[0], "file": "{{name}}.bin"},
        gen=[
            {
                "key": "v/{{i}}.{{j}}", "url": "{{dir}}/{{file(name='data')}}",
                "offset": "{{(i * 1 + j) * 12 + 10 // 2}}", "length": "{{24 / 2}}",
                "dimensions": {"i": [1, 0], "j": {"start": 0, "stop": 1, "step": 3}},
            }
        ],
    ),
    "template nobody uses": lambda d: version_1(refs(d), templates={"u": "s3://x/{{c}}"}),
    "JSON values": lambda d: refs(
        d, **{"v/.zarray": ZARRAY, "v/.zattrs": ZATTRS, ".zgroup": {"zarr_format": 2}}
    ),
    "metadata in base64": lambda d: refs(
        d, **{"v/.zarray": b64(json.dumps(ZARRAY).encode()), ".zgroup": None}
    ),
    "chunk in base64": lambda d: refs(d, **{"v/1.0": b64(ROWS[1])}),
    "chunk as text": lambda d: refs(d, **{"v/1.0": ROWS[1].decode("latin-1")}),
    "all chunks inline": lambda d: refs(d, **{"v/0.0": b64(ROWS[0]), "v/1.0": b64(ROWS[1])}),
    "whole file": lambda d: refs(
        d, **{"v/.zarray": WHOLE, "v/0.0": [d.replace("data", "whole")], "v/1.0": None}
    ),
    "consolidated metadata": lambda d: refs(
        d, **{".zmetadata": CONSOLIDATED, "v/.zarray": None, "v/.zattrs": None}
    ),
    "consolidated metadata beside": lambda d: refs(d, **{".zmetadata": json.loads(CONSOLIDATED)}),
    "slashes in chunk keys": lambda d: refs(
        d,
        **{
            "v/.zarray": SLASHES, "v/0.0": None, "v/1.0": None,
            "v/0/0": [d, HEADER, 12], "v/1/0": [d, HEADER + 12, 12],
        },
    ),
    "chunks before metadata": lambda d: dict(reversed(refs(d).items())),
    "keys of others": lambda d: version_1(refs(d), virtualds={}, comment="by hand"),
    "no attributes": lambda d: refs(d, **{"v/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]}}),
}  # fmt: skip


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda text: bytes(numcodecs.Zstd().encode(text)),
}


@pytest.mark.parametrize("name", ["refs.json", "refs"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_sets_are_known_by_their_bytes(
    compression: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    # so much noise that the first block is longer than what a format is found by
    noise = np.random.default_rng(0).bytes(60_000).hex()
    for comment in ("", noise):
        document = version_1(refs("data.bin"), comment=comment)
        text = json.dumps(document).encode()
        (tmp_path / name).write_bytes(COMPRESSIONS[compression](text))
        np.testing.assert_array_equal(lazy(tmp_path / name)["v"].values, VALUES)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_damaged_compression_is_a_format_error(compression: str, tmp_path: Path) -> None:
    whole = COMPRESSIONS[compression](json.dumps(refs("data.bin")).encode())
    for data in (whole[:-9], whole[:10], whole[:10] + b"nonsense" * 9):
        (tmp_path / "refs.json").write_bytes(data)
        with pytest.raises(FormatError, match=r"refs\.json"):
            lazy(tmp_path / "refs.json")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compression_bomb_is_a_format_error(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_RATIO", 100)
    bomb = COMPRESSIONS[compression](bytes(2**26 + 2**24))
    (tmp_path / "refs.json").write_bytes(bomb)
    with pytest.raises(FormatError, match="decompress to more"):
        virtualds.open_virtual_dataset(tmp_path / "refs.json", parser="kerchunk-json")


@looped("spelling", SPELLINGS)
def test_every_spelling_is_read(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    (tmp_path / "whole.bin").write_bytes(VALUES.tobytes())
    document = SPELLINGS[spelling](str(tmp_path / "data.bin"))
    (tmp_path / "refs.json").write_text(json.dumps(document))
    ds = lazy(tmp_path / "refs.json")
    assert list(ds.variables) == ["v"]
    assert ds["v"].dims == ("y", "x")
    np.testing.assert_array_equal(ds["v"].values, VALUES)


URLS: dict[str, Callable[[Path], str]] = {
    "absolute path": lambda folder: f"{folder}/data.bin",
    "url": lambda folder: f"file://{folder}/data.bin",
    "local url": lambda folder: f"local://{folder}/data.bin",
    "relative": lambda folder: "data.bin",
    "relative with dot": lambda folder: "./data.bin",
    "relative upwards": lambda folder: f"../{folder.name}/data.bin",
    "awkward name": lambda folder: "a b#c%20:d.bin",
}


@pytest.mark.parametrize("which", URLS)
def test_urls_are_seen_from_the_set(which: str, tmp_path: Path) -> None:
    for name in ("data.bin", "a b#c%20:d.bin"):
        (tmp_path / name).write_bytes(b"x" * HEADER + VALUES.tobytes())
    (tmp_path / "refs.json").write_text(json.dumps(refs(URLS[which](tmp_path))))
    np.testing.assert_array_equal(lazy(tmp_path / "refs.json")["v"].values, VALUES)


def test_a_moved_folder_takes_its_relative_references_along(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    (tmp_path / "a" / "refs.json").write_text(json.dumps(refs("data.bin")))
    (tmp_path / "a").rename(tmp_path / "b")
    np.testing.assert_array_equal(lazy(tmp_path / "b" / "refs.json")["v"].values, VALUES)


@pytest.mark.parametrize(("fill", "expected"), [(None, 0), (7, 7), (-1, -1)])
def test_missing_chunks_read_as_fill(fill: Any, expected: int, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    zarray = json.dumps(ZARRAY | {"fill_value": fill})
    document = refs(str(tmp_path / "data.bin"), **{"v/.zarray": zarray, "v/1.0": None})
    (tmp_path / "refs.json").write_text(json.dumps(document))
    ds = lazy(tmp_path / "refs.json", mask_and_scale=False)
    assert (ds["v"].values[:2] == VALUES[:2]).all()
    assert (ds["v"].values[2:] == expected).all()
    assert ds["v"].attrs == ({} if fill is None else {"_FillValue": fill})


def test_an_array_without_any_chunk_reads_as_fill(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(json.dumps(refs("", **{"v/0.0": None, "v/1.0": None})))
    assert (lazy(tmp_path / "refs.json")["v"].values == 0).all()


FILLS: dict[str, tuple[str, Any, Any]] = {
    "NaN": ("<f4", "NaN", np.nan),
    "infinity": ("<f8", "Infinity", np.inf),
    "minus infinity": (">f4", "-Infinity", -np.inf),
    "number": ("<f4", 0.1, np.float32(0.1)),
    "integer of a float": ("<f4", 3, 3.0),
    "boolean": ("|b1", True, True),
    "bytes": ("|S3", base64.b64encode(b"abc").decode(), b"abc"),
    "complex": ("<c8", [1.0, "NaN"], complex(1, np.nan)),
    "large": ("<u8", 2**64 - 1, np.uint64(2**64 - 1)),
}


@pytest.mark.parametrize("which", FILLS)
def test_fill_values_are_spelled_as_zarr_spells_them(which: str, tmp_path: Path) -> None:
    dtype, spelled, expected = FILLS[which]
    zarray = json.dumps(ZARRAY | {"dtype": dtype, "fill_value": spelled})
    document = refs("", **{"v/.zarray": zarray, "v/0.0": None, "v/1.0": None})
    (tmp_path / "refs.json").write_text(json.dumps(document))
    found = lazy(tmp_path / "refs.json", mask_and_scale=False)["v"].values
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(found, np.full((4, 3), expected, dtype))


def test_chunks_of_nothing_are_no_chunks(tmp_path: Path) -> None:
    zarray = json.dumps(ZARRAY | {"shape": [0, 3], "chunks": [0, 3]})
    document = refs("", **{"v/.zarray": zarray, "v/0.0": None, "v/1.0": None})
    (tmp_path / "refs.json").write_text(json.dumps(document))
    assert lazy(tmp_path / "refs.json")["v"].values.shape == (0, 3)


@pytest.mark.parametrize("key", ["v/0", "v/"])
def test_scalars_are_one_chunk(key: str, tmp_path: Path) -> None:
    zarray = json.dumps(ZARRAY | {"shape": [], "chunks": []})
    document = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": zarray,
        "v/.zattrs": {"_ARRAY_DIMENSIONS": []},
        key: b64(b"\x07\x00"),
    }
    (tmp_path / "refs.json").write_text(json.dumps(document))
    assert lazy(tmp_path / "refs.json")["v"].values == 7


# ---------------------------------------------------------------------- nonsense is refused


def _with_zarray(**changes: Any) -> dict[str, Any]:
    changed = {key: value for key, value in (ZARRAY | changes).items() if value is not ...}
    return refs("data.bin", **{"v/.zarray": json.dumps(changed)})


NONSENSE: dict[str, Any] = {
    "a list": [1, 2],
    "a number": 3,
    "an empty object": {},
    "no metadata": {"a": "b"},
    "version 2": {"version": 2, "refs": {}},
    "no refs": {"version": 1},
    "refs that are a list": {"version": 1, "refs": []},
    "chunk beyond the grid": refs("data.bin", **{"v/2.0": ["data.bin", 0, 12]}),
    "chunk far beyond": refs("data.bin", **{"v/0.99999999999": ["data.bin", 0, 12]}),
    "negative chunk": refs("data.bin", **{"v/-1.0": ["data.bin", 0, 12]}),
    "chunk of fewer axes": refs("data.bin", **{"v/1": ["data.bin", 0, 12]}),
    "chunk of more axes": refs("data.bin", **{"v/0.0.0": ["data.bin", 0, 12]}),
    "chunk that is no number": refs("data.bin", **{"v/a.b": ["data.bin", 0, 12]}),
    "two keys for one chunk": refs("data.bin", **{"v/00.0": ["data.bin", 0, 12]}),
    "two spellings for one chunk": refs("data.bin", **{"v/0/0": ["data.bin", 0, 12]}),
    "offset beyond 64 bits": refs("data.bin", **{"v/0.0": ["data.bin", 2**70, 12]}),
    "offset that is no integer": refs("data.bin", **{"v/0.0": ["data.bin", 1.5, 12]}),
    "length that is none": refs("data.bin", **{"v/0.0": ["data.bin", 0, None]}),
    "past the end of the file": version_1(
        refs("data.bin", **{"v/0.0": ["data.bin", 25, 12]}),
        virtualds={"files": {"data.bin": [29, None, None]}},
    ),
    "no bytes": refs("data.bin", **{"v/0.0": ["data.bin", 0, 0]}),
    "negative length": refs("data.bin", **{"v/0.0": ["data.bin", 0, -1]}),
    "negative offset": refs("data.bin", **{"v/0.0": ["data.bin", -5, 12]}),
    "two numbers missing": refs("data.bin", **{"v/0.0": []}),
    "one number missing": refs("data.bin", **{"v/0.0": ["data.bin", 3]}),
    "one number too many": refs("data.bin", **{"v/0.0": ["data.bin", 3, 4, 5]}),
    "offset that is text": refs("data.bin", **{"v/0.0": ["data.bin", "a", 12]}),
    "url that is a number": refs("data.bin", **{"v/0.0": [3, 0, 12]}),
    "bad base64": refs("data.bin", **{"v/0.0": "base64:!!!!!"}),
    "metadata that is no JSON": refs("data.bin", **{"v/.zarray": "{no"}),
    "metadata that is a list": refs("data.bin", **{"v/.zarray": "[1]"}),
    "no shape": _with_zarray(shape=...),
    "no chunks": _with_zarray(chunks=...),
    "no dtype": _with_zarray(dtype=...),
    "dtype that is not closed": _with_zarray(dtype="<i4,("),
    "no such dtype": _with_zarray(dtype="<q9"),
    "chunks of no length": _with_zarray(chunks=[0, 3]),
    "chunks of fewer axes": _with_zarray(chunks=[2]),
    "negative shape": _with_zarray(shape=[-4, 3]),
    "shape that is text": _with_zarray(shape="ab"),
    "dimensions of another number": refs("data.bin", **{"v/.zattrs": {"_ARRAY_DIMENSIONS": ["y"]}}),
    "fill that is no number": _with_zarray(fill_value="many"),
    "gen without dimensions": version_1(refs("data.bin"), gen=[{"key": "v/0.0", "url": "x"}]),
    "gen that is no list": version_1(refs("data.bin"), gen=3),
    "gen of a number": version_1(refs("data.bin"), gen=[3]),
    "gen that computes no key": version_1(
        refs("data.bin"), gen=[{"key": "v/{{i}}", "url": "x", "dimensions": {"i": [0]}}]
    ),
    "templates that are a list": version_1(refs("{{u}}"), templates=["u"]),
    "template of a number": version_1(refs("{{u}}"), templates={"u": 3}),
    "no such template": version_1(refs("{{v}}"), templates={"u": "x"}),
    "hostile template": version_1(refs("{{u.__class__}}"), templates={"u": "x"}),
    "two lengths of one dimension": refs(
        "data.bin", **{"w/.zarray": ZARRAY | {"shape": [5, 3]}, "w/.zattrs": ZATTRS}
    ),
}


@looped("which", NONSENSE)
def test_nonsense_is_a_format_error_that_names_the_set(which: str, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    (tmp_path / "refs.json").write_text(json.dumps(NONSENSE[which]))
    with pytest.raises(FormatError) as caught:
        virtualds.open_virtual_dataset(
            tmp_path / "refs.json", parser="kerchunk-json", loadable_variables=[]
        )
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "refs.json" in text


@pytest.mark.parametrize("text", ["", "{", '{"version": 1, "refs": {', '{"a": }', "\x00\x01"])
def test_bad_json_is_a_format_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(text)
    with pytest.raises(FormatError, match=r"refs\.json"):
        virtualds.open_virtual_dataset(tmp_path / "refs.json", parser="kerchunk-json")


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "unknown codec": (_with_zarray(compressor={"id": "nonsense"}), "nonsense"),
    "unknown filter": (_with_zarray(filters=[{"id": "pickle"}]), "pickle"),
    "pickled objects": (_with_zarray(dtype="|O", filters=[{"id": "pickle"}]), "pickle"),
}


@pytest.mark.parametrize("which", UNSUPPORTED)
def test_unsupported_references_are_refused_by_name(which: str, tmp_path: Path) -> None:
    document, cause = UNSUPPORTED[which]
    (tmp_path / "refs.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match=cause) as caught:
        virtualds.open_virtual_dataset(tmp_path / "refs.json", loadable_variables=[])
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "refs.json" in text


def test_a_variable_that_is_not_understood_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    odd = {"w/.zarray": ZARRAY | {"compressor": {"id": "nonsense"}}, "w/.zattrs": ZATTRS}
    (tmp_path / "refs.json").write_text(json.dumps(refs("data.bin", **odd)))
    assert list(lazy(tmp_path / "refs.json", drop_variables="w")) == ["v"]


# ---------------------------------------------------------------------- trust


@pytest.fixture
def memory() -> Any:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


LOCAL_IN_DISGUISE = [
    "/etc/passwd",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "local:///etc/passwd",
    "file://localhost/etc/passwd",
    "simplecache::file:///etc/passwd",
    "simplecache::/etc/passwd",
    "filecache::local:///etc/passwd",
    "blockcache::file:///etc/passwd",
    "zip://passwd::file:///etc/archive.zip",
    "dir::file:///etc/passwd",
]


@looped("url", LOCAL_IN_DISGUISE)
def test_a_remote_set_may_not_refer_to_local_files(url: str, tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(json.dumps(refs(url)))
    with (
        range_server(tmp_path) as (host, _),
        pytest.raises(AccessError, match="local file") as caught,
    ):
        virtualds.open_virtual_dataset(f"{host}/refs.json", loadable_variables=[])
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"{host}/refs.json" in text
    assert "variable 'v' of" in text


def test_a_set_refers_to_its_neighbours(memory: Any) -> None:
    memory.pipe("/bucket/data.bin", b"x" * HEADER + VALUES.tobytes())
    memory.pipe("/bucket/refs.json", json.dumps(refs("data.bin")).encode())
    ds = xr.open_dataset("memory://bucket/refs.json", engine="virtual")
    np.testing.assert_array_equal(ds["v"].values, VALUES)


def test_a_local_set_may_refer_to_remote_files(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/bucket/data.bin", b"x" * HEADER + VALUES.tobytes())
    (tmp_path / "refs.json").write_text(json.dumps(refs("memory://bucket/data.bin")))
    np.testing.assert_array_equal(lazy(tmp_path / "refs.json")["v"].values, VALUES)


def test_access_options_do_not_go_to_hosts_that_the_user_did_not_name(tmp_path: Path) -> None:
    document = refs("data.bin", **{"v/1.0": ["s3://elsewhere/data.bin", 0, 12]})
    (tmp_path / "refs.json").write_text(json.dumps(document))
    with range_server(tmp_path) as (host, _):
        ds = virtualds.open_virtual_dataset(
            f"{host}/refs.json",
            loadable_variables=[],
            storage_options={"skip_instance_cache": True},
        )
    options = {file.url: file.options for file in ds["v"].data.sources}
    assert options == {
        f"{host}/data.bin": {"skip_instance_cache": True},
        "s3://elsewhere/data.bin": None,
    }


def test_a_set_in_the_memory_of_the_process_is_trusted_like_a_local_one(
    memory: Any, tmp_path: Path
) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * HEADER + VALUES.tobytes())
    memory.pipe("/bucket/refs.json", json.dumps(refs(str(tmp_path / "data.bin"))).encode())
    where = "memory://bucket/refs.json"
    np.testing.assert_array_equal(lazy(where)["v"].values, VALUES)
    # unless the user says where the files lie
    with pytest.raises(AccessError, match="lies under none of"):
        lazy(where, allow=tmp_path / "elsewhere")
    with pytest.raises(AccessError, match="local file"):
        lazy(f"simplecache::{where}")


def test_options_do_not_get_into_the_set(memory: Any, tmp_path: Path, archive: Archive) -> None:
    memory.pipe("/bucket/a.nc", archive.path("contiguous").read_bytes())
    ds = virtualds.open_virtual_dataset(
        "memory://bucket/a.nc", loadable_variables=[], storage_options={"secret": "hunter2"}
    )
    ds.virtual.to_manifest(tmp_path / "refs.json")
    assert "hunter2" not in (tmp_path / "refs.json").read_text()
    assert "hunter2" not in repr(ds["v"].data.sources)


def test_a_set_is_written_to_and_read_from_any_store(memory: Any, archive: Archive) -> None:
    ds = virtualds.open_virtual_dataset(archive.path("contiguous"), loadable_variables="*")
    ds.virtual.to_manifest("memory://bucket/refs.json")
    strict(memory.cat("/bucket/refs.json"))
    again = xr.open_dataset("memory://bucket/refs.json", engine="virtual")
    xr.testing.assert_identical(again.load(), archive.native("contiguous"))
    with pytest.raises(FileExistsError):
        ds.virtual.to_manifest("memory://bucket/refs.json", mode="w-")


# ---------------------------------------------------------------------- inline values


@looped("name", CASES, quick=len(CASES) // 3)
def test_loaded_variables_are_held_inline(name: str, archive: Archive, tmp_path: Path) -> None:
    native = archive.native(name)
    native.virtual.to_manifest(tmp_path / "refs.json")
    again = lazy(tmp_path / "refs.json").load()
    native = without_gaps(native)
    xr.testing.assert_identical(again, native)
    for variable in native.variables:
        if native[variable].dtype.kind not in "OUT":
            assert again[variable].dtype == native[variable].dtype


def test_compact_data_are_held_inline(archive: Archive, tmp_path: Path) -> None:
    group = open_group(Location.of(archive.path("compact")))
    manifest = group.variables["v"].data.manifest
    assert (manifest.file == INLINE).all()
    document = written(group, tmp_path / "refs.json")
    assert document["refs"]["v/0.0"].startswith("base64:")


def test_many_missing_chunks_of_a_fill_without_attribute_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", (4096, 4096), "i4", chunks=(1024, 1024), fillvalue=42)
    ds = virtualds.open_virtual_dataset(tmp_path / "a.h5", loadable_variables=[])
    with pytest.raises(UnsupportedError, match="chunks are missing and read as 42"):
        ds.virtual.to_manifest(tmp_path / "refs.json")


# ---------------------------------------------------------------------- detection


@looped("spelling", SPELLINGS)
def test_every_spelling_is_detected(spelling: str) -> None:
    document = SPELLINGS[spelling]("/data.bin")
    for indent in (None, 2):
        assert kerchunk_json.detect(json.dumps(document, indent=indent).encode()[: 16 * 1024])


@pytest.mark.parametrize("head", [b"", b"{}", b"[1]", b"\x89HDF\r\n\x1a\n", b'{"zarr_format": 3}'])
def test_nothing_else_is_taken_for_a_reference_set(head: bytes) -> None:
    assert not kerchunk_json.detect(head)


def test_missing_chunks_of_negative_zeros_are_written_out(tmp_path: Path) -> None:
    """A reader of Zarr v2 would fill them with zeros, which are other numbers."""
    chunk = np.ones(2, "f4")
    store = Case(v3("float32", -0.0, shape=(4,), chunks=(2,)), chunk.tobytes(), chunk)
    found = virtualds.open_virtual_dataset(store.write(tmp_path / "s"), loadable_variables=[])
    found.virtual.to_manifest(tmp_path / "refs.json")
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual")
    assert again.a.values.tobytes() == np.array([1, 1, -0.0, -0.0], "f4").tobytes()


NAN = float("nan")


def test_a_place_in_no_file_is_damage_and_no_missing_chunk(tmp_path: Path) -> None:
    document = refs("data.bin") | {"v/0.0": [None, 5, 12]}
    (tmp_path / "refs.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="without a url"):
        virtualds.open_virtual_dataset(tmp_path / "refs.json", loadable_variables=[])


def test_a_chunk_outside_the_grid_is_damage_and_not_left_out(tmp_path: Path) -> None:
    # as kerchunk 0.0.8 joins variables whose chunks differ in length; its readers show fill values
    document = refs("data.bin")
    document["v/8.0"] = document.pop("v/1.0")
    (tmp_path / "refs.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"(?s)v/8\.0 lies outside the grid \(2, 1\).*scan"):
        virtualds.open_virtual_dataset(tmp_path / "refs.json", loadable_variables=[])


NO_BYTES: dict[str, Any] = {
    "null": None,
    "NaN": NAN,
    "a list of null": [None],
    "a row of null": [None, None, None],
    "a row of NaN": [NAN, NAN, NAN],
    "a row without a url": [None, 0, 0],
}


@looped("form", [0, 1])
@looped("name", NO_BYTES)
def test_references_to_nothing_are_missing_chunks(name: str, form: int, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abcd")
    array = {"zarr_format": 2, "shape": [12], "chunks": [4], "dtype": "|u1", "order": "C"}
    refs = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": array | {"compressor": None, "filters": None, "fill_value": 7},
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
        "v/0": NO_BYTES[name],
        "v/1": ["a.bin", 0, 4],
        "v/2": NO_BYTES[name],
    }
    document = {"version": 1, "refs": refs} if form else refs
    (tmp_path / "refs.json").write_text(json.dumps(document))
    found = virtualds.open_virtual_dataset(tmp_path / "refs.json", decode_cf=False)["v"]
    assert found.values.tolist() == [7] * 4 + [*b"abcd"] + [7] * 4
    assert np.isnan(virtualds.open_virtual_dataset(tmp_path / "refs.json")["v"][0])


def test_a_file_of_several_chunks_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(4))
    array = {"zarr_format": 2, "shape": [3], "chunks": [1], "dtype": "<i4", "order": "C"}
    array |= {"compressor": None, "filters": None, "fill_value": 0}
    refs = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps(array)}
    refs |= {"v/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}'}
    refs |= {f"v/{number}": [str(path)] for number in range(3)}  # type: ignore[dict-item]
    found = virtualds.open_virtual_dataset({"version": 1, "refs": refs})
    [fragment] = found["v"].variable.data.fragments
    assert [file.url for file in fragment.manifest.files] == [path.as_uri()]
