"""Attributes that are read from object headers are those that h5py reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import virtualds
from virtualds.parsers.hdf5 import data_types, objects
from virtualds.parsers.hdf5.data_types import read_attribute
from virtualds.parsers.hdf5.objects import HDF5Files, HDF5Location
from virtualds.source_file import normalise_url
from virtualds.stores.scan_cache import describe_file

STRING = h5py.string_dtype()
VALUES: dict[str, Any] = {
    "numbers": dict.fromkeys("zebra", 1),
    "signed": {f"i{n}": np.array(-3, f"<i{n}")[()] for n in (1, 2, 4, 8)},
    "unsigned": {f"u{n}": np.array(200, f"<u{n}")[()] for n in (1, 2, 4, 8)},
    "floats": {f"f{n}": np.array([np.nan, -0.0, 1.5], f"<f{n}") for n in (2, 4, 8)},
    "foreign order": {f"{kind}": np.array([1, 2], f">{kind}") for kind in ("i4", "f8", "u2")},
    "shapes": {str(n): np.ones((1,) * n) for n in range(4)} | {"2, 2": np.ones((2, 2))},
    "nothing": {"none": np.zeros(0), "null": h5py.Empty("f4"), "text": h5py.Empty("S4")},
    "other types": {"bool": np.bool_(True), "complex": 1 + 2j},
    "strings": {"plain": "metres", "accents": "grün", "empty": "", "long": "x" * 300},
    "bytes": {"plain": b"abc", "odd": np.bytes_(b"a\0x"), "no text": np.bytes_(b"\xff\xfe")},
    "lists": {
        "one": np.array(["a"], STRING),
        "three": np.array(["a", "", "ü"], STRING),
        "square": np.array([["a", "b"], ["c", "d"]], STRING),
        "fixed": np.array([b"a", b"bb"]),
    },
    "more than eight": {f"a{n * 7 % 20}": "x" * n for n in range(20)},
}


def write_low_level(file: h5py.File) -> None:
    """Write what h5py's attributes have no words for."""
    scalar = h5py.h5s.create(h5py.h5s.SCALAR)
    group = file.create_group("paddings")
    texts = (b"abc", b"a\0c", b"a  ", b"", b"abcdef")
    for number, (padding, size, text) in enumerate(itertools.product(range(3), (1, 3, 6), texts)):
        kind = h5py.h5t.C_S1.copy()
        kind.set_size(size)
        kind.set_strpad(padding)
        made = h5py.h5a.create(file.create_group(f"padding {number}").id, b"a", kind, scalar)
        made.write(np.array(text, f"S{size}"), mtype=kind)
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(h5py.h5t.VARIABLE)
    # strings that nobody has written
    h5py.h5a.create(group.id, b"one", kind, scalar)
    h5py.h5a.create(group.id, b"three", kind, h5py.h5s.create_simple((3,)))
    file["type"] = np.dtype("f4")
    file.create_group("committed type").attrs.create("a", 1.0, dtype=file["type"])
    for tracked in (False, True):
        group = file.create_group(f"changed, {tracked}", track_order=tracked)
        group.attrs.update(dict.fromkeys("zebra", 1))
        del group.attrs["z"]
        group.attrs["z"] = 2
        group.attrs["q"] = "x" * 300


def places(path: Path) -> Iterator[HDF5Location]:
    """Yield every group."""
    source = describe_file(normalise_url(str(path)), {})
    with HDF5Files(source) as files:
        yield from objects.read_members(objects.open_root(files, source)).groups.values()


def listed(place: HDF5Location) -> list[str]:
    """Return the names of attributes as HDF5 lists them."""
    found: list[str] = []
    h5py.h5a.iterate(
        place.id, lambda raw, *_: found.append(raw.decode()), index_type=h5py.h5.INDEX_CRT_ORDER
    )
    return found


def outcome(place: HDF5Location, name: str) -> tuple[Any, ...]:
    value = read_attribute(place, name)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return type(value), value.dtype.str, value.shape, value.tobytes()
    return type(value), value


@pytest.mark.parametrize("libver", ["earliest", "latest", ("v108", "v110")], ids=str)
def test_attributes_in_headers_are_those_that_hdf5_reads(tmp_path: Path, libver: Any) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        for name, values in VALUES.items():
            file.create_group(name).attrs.update(values)
        write_low_level(file)
    count = 0
    for place in places(path):
        names = place.attribute_names
        assert names == listed(place)
        ours = [outcome(place, name) for name in names]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data_types, "STRING_TYPES", set())
            patch.setattr(data_types, "decode_inline_value", lambda attribute: None)
            assert ours == [outcome(place, name) for name in names]
        count += len(names)
    assert count > 90


def test_few_attributes_need_no_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    common = {"units": "m", "fixed": np.bytes_(b"m"), "n": 1, "range": np.arange(2.0)}
    with h5py.File(path, "w") as file:
        file.create_group("g").attrs.update(common)
    for ours in places(path):
        names = ours.attribute_names
        monkeypatch.setattr(h5py.h5a, "open", None)
        assert names == list(common)
        assert [read_attribute(ours, name) for name in names[:3]] == ["m", "m", 1]
        np.testing.assert_array_equal(read_attribute(ours, "range"), [0.0, 1.0])


@pytest.mark.parametrize("owner", ["", "v"])
def test_an_attribute_that_numpy_has_no_type_for_is_refused_by_its_name(
    owner: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    wide = h5py.h5t.STD_U64BE.copy()
    wide.set_size(16)
    wide.set_precision(128)
    with h5py.File(path, "w") as file:
        file["v"] = np.arange(3)
        place = file[f"/{owner}"]
        place.attrs["units"] = "K"
        h5py.h5a.create(place.id, b"wide", wide, h5py.h5s.create(h5py.h5s.SCALAR))
    said = rf"attribute '{owner}:wide' of .*a\.h5: its type cannot be read \(numpy has no such type"
    with pytest.raises(virtualds.UnsupportedError, match=said):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match=f"{owner}:wide"):
        found = virtualds.open_virtual_dataset(path, on_error="skip")
    assert (found[owner] if owner else found).attrs == {"units": "K"}
