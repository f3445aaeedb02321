"""A cached group equals the opened file in everything; damage is always noticed."""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from memory import peak
from products import looped
from trees import TREES, Forest

from virtualds import FormatError, ManifestArray, SourceFile, UnsupportedError, streams
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import is_same_value
from virtualds.combine.batch_job import open_stored
from virtualds.combine.file_batch import FileBatch
from virtualds.combine.file_cache import (
    CACHED_FIELDS,
    MAGIC,
    NO_PLAN,
    dump_entry,
    list_entries,
    load_entry,
    to_bytes,
    with_loaded_values,
)
from virtualds.datasets.conversion import make_dataset_or_tree
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location
from virtualds.datasets.open_options import OpenOptions
from virtualds.source_file import StorageOptions


def there_and_back(path: Path, **options: Any) -> Any:
    """Return what is made of a file that was kept, and what was made of it when it was scanned."""
    opening = OpenOptions(**options)
    opened = open_stored(path, opening)
    group = from_bytes(to_part(with_loaded_values(opened).to_group()))
    return make_dataset_or_tree(Location.of(path), group, opening), opened.to_dataset()


def to_part(group: ManifestGroup, *files: SourceFile, options: Any = None) -> bytes:
    """Return a part of one entry."""
    batch = FileBatch(tuple(file.url for file in files), group, NO_PLAN, OpenOptions())
    return to_bytes([dump_entry(files, (), batch, options)])


def from_bytes(data: bytes) -> ManifestGroup:
    [entry] = list_entries(data)
    found: ManifestGroup = load_entry(entry)["group"]
    return found


def told(encoding: Any) -> str:
    """Return what stands in an encoding, sets in one order."""
    return repr({k: sorted(v) if isinstance(v, set) else v for k, v in encoding.items()})


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """In everything: values, references, dtypes, attributes, encoding, indexes, and order."""
    assert list(found.variables) == list(expected.variables)
    assert list(found.coords) == list(expected.coords)
    assert list(found.xindexes) == list(expected.xindexes)
    assert repr(found.attrs) == repr(expected.attrs)
    assert told(found.encoding) == told(expected.encoding)
    for name, variable in expected.variables.items():
        other = found.variables[name]
        assert type(other) is type(variable)
        assert (other.dims, other.dtype) == (variable.dims, variable.dtype)
        assert repr(other.attrs) == repr(variable.attrs)
        assert repr(other.encoding) == repr(variable.encoding)
        array, virtual = get_virtual_array(other), get_virtual_array(variable)
        if virtual is None:
            np.testing.assert_array_equal(other.values, variable.values)
        else:
            assert array is not None
            assert array.has_same_references(virtual)
            assert array.pipelines == virtual.pipelines
            assert repr(array.fill_value) == repr(virtual.fill_value)
            assert array.name == virtual.name
    for name, index in expected.xindexes.items():
        assert found.xindexes[name].equals(index)


@looped("name", CASES, quick=len(CASES) // 3)
def test_every_kind_of_file_is_kept_as_it_was_opened(name: str, archive: Archive) -> None:
    with warnings.catch_warnings():
        # what xarray says of some, opening the file or decoding dates of a model
        warnings.simplefilter("ignore")
        assert_same(*there_and_back(archive.path(name), group=CASES[name].group))


@pytest.mark.parametrize("name", TREES)
def test_every_kind_of_tree_is_kept_as_it_was_opened(name: str, tmp_path: Path) -> None:
    path = Forest(tmp_path).path(name)
    found, expected = there_and_back(path, below=True)
    assert [n.path for n in found.subtree] == [n.path for n in expected.subtree]
    for node, other in zip(found.subtree, expected.subtree, strict=True):
        assert_same(node.to_dataset(inherit=False), other.to_dataset(inherit=False))


NOT_KNOWN: dict[str, ManifestGroup] = {
    "objects": ManifestGroup({"v": ManifestVariable(("x",), np.array([b"", np.zeros(2)], object))}),
    "objects in fields": ManifestGroup({"v": ManifestVariable((), np.zeros((), [("a", "O")]))}),
    "an attribute of somebody's class": ManifestGroup(attributes={"a": object()}),
    "a class in an encoding": ManifestGroup(
        {
            "v": ManifestVariable(
                (), np.zeros(()), encoding={"dtype": np.dtype(object, metadata={"a": int})}
            )
        }
    ),
    "text of any length": ManifestGroup(
        {"v": ManifestVariable(("x",), np.array(["a"], np.dtypes.StringDType()))}
    ),
}


@pytest.mark.parametrize("which", NOT_KNOWN)
def test_objects_without_a_form_in_bytes_are_not_written(which: str) -> None:
    with pytest.raises(UnsupportedError):
        to_part(NOT_KNOWN[which])


def test_access_options_are_written_nowhere_and_come_back() -> None:
    options = StorageOptions(secret="do not write me down")
    file = SourceFile("s3://b/a", 1, None, "e", options)
    data = to_part(ManifestGroup(), file, options=options)
    assert not any(b"do not write" in text for text in texts_of(data))
    assert list_entries(data, options)[0].sources == [file]
    with pytest.raises(UnsupportedError, match="access options of its own"):
        to_part(ManifestGroup(), file, options=StorageOptions(another=1))


def texts_of(data: bytes) -> tuple[bytes, bytes]:
    """Return the two texts of a part."""
    rest = data[len(MAGIC) + 16 :]
    end = 8 + int.from_bytes(rest[:8], "little")
    return zlib.decompress(rest[8:end]), zlib.decompress(rest[end:])


def test_unreadable_variables_are_kept_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    times = ("time", [1.0, 2.0], {"units": "days since no date"})
    xr.Dataset({"t": times, "v": ("time", [1.0, 2.0])}).to_netcdf(path)
    with pytest.warns(UserWarning, match="could not be read"):
        found, expected = there_and_back(path, on_error="keep")
    assert_same(found, expected)
    refusing = get_virtual_array(found.variables["t"])
    assert refusing is not None
    with pytest.raises(UnsupportedError, match="no date"):
        refusing.read()


@pytest.fixture(scope="module")
def entry() -> bytes:
    array = ManifestArray.from_arrays(
        shape=(4,), chunks=(2,), dtype="f4", path="s3://b/a.nc", offsets=[8, 16], lengths=8
    )
    return to_part(ManifestGroup({"t": ManifestVariable(("x",), array, {"n": np.float32(1)})}))


def test_every_damaged_byte_is_noticed(entry: bytes) -> None:
    from_bytes(entry)
    for place in range(len(entry)):
        damaged = entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :]
        with pytest.raises(FormatError):
            from_bytes(damaged)
    for length in range(0, len(entry), 7):
        with pytest.raises(FormatError):
            from_bytes(entry[:length])


def group_of(data: Any) -> dict[str, Any]:
    """Return a group of one variable along x in JSON."""
    variable = {"!variable": [{"!tuple": ["x"]}, data, {}, {}]}
    return {"!group": [{"t": variable}, {}, {}, {}, {}]}


def values(shape: list[int], dtype: Any, data: Any) -> dict[str, Any]:
    return group_of({"!values": [shape, {"!dtype": [dtype, {}]}, {"!bytes": [data]}]})


def chunk(entry: bytes, *path: Any, value: Any) -> dict[str, Any]:
    """Return the group of an entry, in whose array something else stands somewhere."""
    group: dict[str, Any] = json.loads(texts_of(entry)[1])["group"]
    *above, last = path
    here = group["!group"][0]["t"]["!variable"][1]["!array"]
    for key in above:
        here = here[key]
    here[last] = value
    return group


HOSTILE: dict[str, Any] = {
    "no group": [],
    "no variable": {"!group": [{"t": []}, {}, {}, {}, {}]},
    "a kind that is none": group_of({"!os.system": ["true"]}),
    "a type that is none": group_of({"!text": ["os"]}),
    "a dtype that is none": values([1], "eval", ""),
    "objects in bytes": values([1], [["a", "|O"]], "AAAA"),
    "objects as bytes": values([1], "|O", "AAAAAAAAAAA="),
    "too few bytes": values([9], "<f4", "AAAA"),
    "no base64": values([1], "<f4", "?"),
    "as many axes as dims": values([1, 1], "<i1", "AA=="),
    "a codec that nobody knows": (
        "0 codecs 0 configuration pipelines 0 codecs",
        [{"name": "os.system"}],
    ),
    "a fragment that is not there": ("2", [{"!": [[2], [0], [], [0, 8, 8, 0, 0]]}] * 2),
    "a file that is not there": ("2 0 ! 1", [1]),
    "a file before the first": ("2 0 ! 1", [-1]),
    "too few columns": ("2 0 ! 3", [0, 0]),
}


def sealed(body: bytes) -> bytes:
    """Return a part of the entry that is given."""
    head = zlib.compress(
        json.dumps([[[["s3://b/a.nc", 1, 1, None, False]], 0, 1, len(body)]]).encode()
    )
    rest = len(head).to_bytes(8, "little") + head + body
    return MAGIC + hashlib.blake2b(rest, digest_size=16).digest() + rest


def entry_of(group: Any) -> bytes:
    columns = {"attributes": [[], []], "encodings": [[], []], "stacked": {}, "below": None}
    found = {"group": group, "dim": None, "lengths": [], "same": [], **columns}
    assert tuple(found) == CACHED_FIELDS
    return json.dumps(found).encode()


def test_an_entry_that_inflates_without_bound_is_refused(entry: bytes) -> None:
    """Anybody who may write to the folder of a cache can make one."""
    zeros = zlib.compress(bytes(2**27), 9)
    packed = base64.b64encode(zeros).decode()
    # the columns of a fragment: shape, way, first, least, width, data
    column = [{"!tuple": [2**27]}, 0, 0, 0, 1, {"!bytes": [packed]}]
    group = chunk(entry, 2, 0, "!", 3, value=[{"!packed": column}] * 5)
    inner = entry_of(group)
    for bomb in (zlib.compress(b" " * 2**27, 9), zlib.compress(inner, 9)):

        def refused(data: bytes = sealed(bomb)) -> None:
            with (
                pytest.MonkeyPatch.context() as patch,
                pytest.raises(FormatError, match="more than the expected"),
            ):
                patch.setattr(streams, "MIN_LIMIT", 2**16)
                patch.setattr(streams, "MAX_RATIO", 10)
                from_bytes(data)

        assert peak(refused) < 2**23


@pytest.mark.parametrize("which", HOSTILE)
def test_a_foreign_entry_makes_no_other_objects(which: str, entry: bytes) -> None:
    group = HOSTILE[which]
    if isinstance(group, tuple):
        path, value = group
        keys = [int(key) if key.isdecimal() else key for key in path.split()]
        group = chunk(entry, *keys, value=value)
    body = zlib.compress(entry_of(group))
    with pytest.raises(FormatError, match="remove"):
        from_bytes(sealed(body))


EXACT: dict[str, Any] = {
    "numbers of numpy": [np.float64(0.1), np.float32(-0.0), np.int8(3), np.bool_(True)],
    "not numbers": [np.float64("nan"), np.array([np.nan, -np.inf]), float("-inf")],
    "texts of numpy": [np.str_("a"), np.bytes_(b"a"), np.array(["a", "bc"]), np.array([b"a"])],
    "dates": [np.datetime64("2000-01-01", "s"), np.array(["NaT", "2000"], "M8[ns]")],
    "complex numbers": [np.complex64(1j), 1 + 2j],
    "containers": [(1, [2, (3,)]), {"a": {"b": ()}}, {1: "one"}, {"!a": 1}, {"b", "a"}, {}],
    "bytes and text": [b"\xff", "\ud800", "", None, True, 2**80],
    "byte orders": [np.array([1, 2], ">i2"), np.array([[1.0]], order="F")],
    "records": [np.array([(1, 2.0)], [("a", "<i2"), ("b", ">f8")])],
}


@pytest.mark.parametrize("which", EXACT)
def test_attributes_are_cached_with_their_types(which: str) -> None:
    attributes = {f"a{number}": value for number, value in enumerate(EXACT[which])}
    found = from_bytes(to_part(ManifestGroup(attributes=attributes))).attributes
    assert list(found) == list(attributes)
    for value, other in zip(attributes.values(), found.values(), strict=True):
        assert is_same_value(value, other)
