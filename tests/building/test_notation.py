"""What is kept of a file is what opening it gave, in everything; damage is always noticed."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from trees import TREES, Forest

import virtualds
from virtualds import FormatError, ManifestArray, SourceFile
from virtualds.building.notation import MAGIC, UnknownError, noted, read_noted
from virtualds.building.records import recorded, restored
from virtualds.lazy import virtual_data
from virtualds.manifest import StorageOptions


def there_and_back(opened: Any) -> Any:
    return restored(read_noted(noted(recorded(opened))))


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
        array, virtual = virtual_data(other), virtual_data(variable)
        if virtual is None:
            np.testing.assert_array_equal(other.values, variable.values)
        else:
            assert array is not None
            assert array.same_references(virtual)
            assert array.pipelines == virtual.pipelines
            assert repr(array.fill_value) == repr(virtual.fill_value)
            assert array.name == virtual.name
    for name, index in expected.xindexes.items():
        assert found.xindexes[name].equals(index)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_file_is_kept_as_it_was_opened(name: str, archive: Archive) -> None:
    with warnings.catch_warnings():
        # what xarray says of some, opening the file or decoding dates of a model
        warnings.simplefilter("ignore")
        expected = virtualds.open_virtual_dataset(archive.path(name), group=CASES[name].group)
    assert_same(there_and_back(expected), expected)


@pytest.mark.parametrize("name", TREES)
def test_every_kind_of_tree_is_kept_as_it_was_opened(name: str, tmp_path: Path) -> None:
    expected = virtualds.open_virtual_datatree(Forest(tmp_path).path(name))
    found = there_and_back(expected)
    assert [n.path for n in found.subtree] == [n.path for n in expected.subtree]
    for node, other in zip(found.subtree, expected.subtree, strict=True):
        assert_same(node.to_dataset(inherit=False), other.to_dataset(inherit=False))


class Told:
    """Tells on itself when somebody makes one, or calls it."""

    def __reduce__(self) -> Any:
        raise AssertionError("nobody pickles")


NOT_KNOWN: dict[str, Any] = {
    "an object of somebody's class": Told(),
    "a function": print,
    "a class": Told,
    "text of any length": np.array(["a"], np.dtypes.StringDType()),
    "objects within": {"a": [np.array([Told()], object)]},
    "a file with access options of its own": SourceFile("s3://b/a", 1, options=StorageOptions(a=1)),
}


@pytest.mark.parametrize("which", NOT_KNOWN)
def test_what_the_notation_has_no_words_for_is_not_written(which: str) -> None:
    with pytest.raises(UnknownError):
        noted(NOT_KNOWN[which])


def test_access_options_are_written_nowhere_and_come_back() -> None:
    options = StorageOptions(secret="do not write me down")
    data = noted([SourceFile("s3://b/a", 1, None, "e", options)], options)
    assert b"do not write" not in data
    assert read_noted(data, options) == [SourceFile("s3://b/a", 1, None, "e", options)]


@pytest.fixture(scope="module")
def entry() -> bytes:
    array = ManifestArray.from_arrays(
        shape=(4,), chunks=(2,), dtype="f4", path="s3://b/a.nc", offsets=[8, 16], lengths=8
    )
    return noted(recorded(xr.Dataset({"t": ("x", array, {"n": np.float32(0.1)})})))


def test_every_damaged_byte_is_noticed(entry: bytes) -> None:
    read_noted(entry)
    for place in range(len(entry)):
        damaged = entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :]
        with pytest.raises(FormatError):
            read_noted(damaged)
    for length in range(0, len(entry), 7):
        with pytest.raises(FormatError):
            read_noted(entry[:length])


HOSTILE: dict[str, str] = {
    "a class that is not of the table": '["record","Popen","sh"]',
    "an unknown tag": '["call","os.system","sh"]',
    "another type": '["type","eval"]',
    "bytes outside": '["bytes",0,1000000]',
    "a negative place": '["bytes",-8,4]',
    "objects in bytes": '["array",["dtype","|O"],[1],0,8]',
    "a chunk outside its file": (
        '["manifest",["tuple",1],["tuple",["file","s3://b/a",4,null,null,false]],["tuple"],'
        '["array",["dtype","<i4"],[1],0,4],["array",["dtype","<i8"],[1],0,8],'
        '["array",["dtype","<i8"],[1],4,8],["array",["dtype","<u2"],[1],0,2],'
        '["array",["dtype","<u8"],[1],0,8]]'
    ),
    "too few fields": '["record","Hidden",1]',
    "no date": '["date","real_datetime","standard",false,2000,1,1,0,0,0,0]',
    "no text": "[",
}


@pytest.mark.parametrize("which", HOSTILE)
def test_what_somebody_put_there_makes_no_other_objects(which: str) -> None:
    text = HOSTILE[which].encode()
    body = len(text).to_bytes(8, "little") + text + b"\0" * 32
    data = MAGIC + hashlib.blake2b(body, digest_size=16).digest() + body
    with pytest.raises(FormatError, match="remove it"):
        read_noted(data)
