"""Where the chunks of HDF5 datasets lie: what is read of their indexes is what `H5Dread` reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numcodecs.jenkins import jenkins_lookup3
from range_server import range_server
from written_chunks import full, sparse

import virtualds
from virtualds import FormatError, ManifestArray, UnsupportedError
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.parsers.hdf5.structure.messages import UnknownFormError

LIBVERS = ("earliest", "v108", "v110", "latest")
FILTERS = (None, "gzip")
Limits = tuple[int | None, ...]


def array(path: Path | str) -> ManifestArray:
    data = open_group(Location.of(path), OpenOptions(parser="hdf5")).variables["v"].data
    assert isinstance(data, ManifestArray)
    return data


def native(path: Path) -> np.ndarray[Any, Any]:
    with h5py.File(path) as file:
        found: np.ndarray[Any, Any] = file["v"][()]
    return found


def create(
    path: Path,
    shape: tuple[int, ...],
    limits: Limits,
    chunks: tuple[int, ...],
    libver: str,
    compression: str | None = None,
    dtype: str = "i4",
    **options: Any,
) -> h5py.File:
    file = h5py.File(path, "w", libver=libver, **options)
    file.create_dataset(
        "v", shape, dtype, maxshape=limits, chunks=chunks, compression=compression, fillvalue=-1
    )
    return file


def longer(dataset: h5py.Dataset) -> None:
    full(dataset)
    resize(dataset, lambda n: n + 9)
    dataset[tuple(n - 1 for n in dataset.shape)] = 7


def shorter(dataset: h5py.Dataset) -> None:
    full(dataset)
    resize(dataset, lambda n: n - 2)


def shorter_and_longer(dataset: h5py.Dataset) -> None:
    full(dataset)
    resize(dataset, lambda n: 1)
    resize(dataset, lambda n: 12)
    dataset[tuple(n - 1 for n in dataset.shape)] = 7


def emptied(dataset: h5py.Dataset) -> None:
    full(dataset)
    if None in dataset.maxshape:
        resize(dataset, lambda n: 0)


def resize(dataset: h5py.Dataset, change: Callable[[int], int]) -> None:
    pairs = zip(dataset.shape, dataset.maxshape, strict=True)
    dataset.resize(tuple(change(n) if most is None else n for n, most in pairs))


WRITTEN = (full, sparse, longer, shorter, shorter_and_longer, emptied)
# every axis fixed, unlimited, or with room to grow up to a limit
KINDS: list[tuple[str, ...]] = [
    kinds for ndim in (1, 2, 3) for kinds in itertools.product("fug", repeat=ndim)
]


def limits_of(shape: tuple[int, ...], kinds: tuple[str, ...]) -> Limits:
    more: dict[str, Callable[[int], int | None]] = {
        "f": lambda n: n, "u": lambda n: None, "g": lambda n: n + 11,
    }  # fmt: skip
    return tuple(more[kind](n) for n, kind in zip(shape, kinds, strict=True))


@pytest.mark.product
@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("write", WRITTEN, ids=lambda write: write.__name__)
def test_any_axis_may_be_unlimited(write: Any, libver: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    # every way to write, version and kinds of axes with each filter, but not all three with both
    first = WRITTEN.index(write) + LIBVERS.index(libver)
    for number, kinds in enumerate(KINDS, first):
        compression = FILTERS[number % len(FILTERS)]
        shape = (5, 6, 7)[: len(kinds)]
        chunks = (2, 4, 3)[: len(kinds)]
        with create(path, shape, limits_of(shape, kinds), chunks, libver, compression) as file:
            write(file["v"])
        np.testing.assert_array_equal(
            array(path).read(), native(path), err_msg=f"{kinds} {compression}"
        )


@pytest.mark.product
@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
@pytest.mark.parametrize("compression", FILTERS)
@pytest.mark.parametrize("first", [True, False])
def test_an_index_of_ten_thousand_chunks_is_read(
    first: bool, compression: str | None, libver: str, tmp_path: Path
) -> None:
    shape, limits = ((5000, 2), (None, 2)) if first else ((2, 5000), (2, None))
    path = tmp_path / "a.h5"
    with create(path, shape, limits, (1, 1), libver, compression, "i2") as file:
        file["v"][...] = np.arange(10_000).reshape(shape)
    assert array(path).nchunks == 10_000
    np.testing.assert_array_equal(array(path).read(), native(path))


@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
@pytest.mark.parametrize("compression", FILTERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_few_of_a_million_chunks_are_found(
    first: bool, compression: str | None, libver: str, tmp_path: Path
) -> None:
    # with more than 2**17 chunks the blocks of an extensible array have pages
    shape, limits = ((2**19, 2), (None, 2)) if first else ((2, 2**19), (2, None))
    path = tmp_path / "a.h5"
    places = np.unique(np.random.default_rng(2).integers(0, 2**20, 300))
    with create(path, shape, limits, (1, 1), libver, compression, "i1") as file:
        for place in places.tolist():
            file["v"][np.unravel_index(place, shape)] = place % 100
    found = array(path)
    manifest = found.manifest
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(manifest.file) >= 0), places)
    some = places[::30].tolist()
    assert [int(found.read(np.unravel_index(p, shape))) for p in some] == [p % 100 for p in some]


# with addresses of 4 bytes HDF5 does not read its own extensible arrays
@pytest.mark.parametrize(
    "size, libver", [(4, "earliest"), (4, "v108"), (8, "earliest"), (8, "v108"), (8, "latest")]
)
def test_addresses_of_four_bytes_behind_a_user_block_are_read(
    size: int, libver: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_userblock(2048)
    plist.set_sizes(size, size)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    low = {"earliest": h5py.h5f.LIBVER_EARLIEST, "v108": h5py.h5f.LIBVER_V18}
    access.set_libver_bounds(low.get(libver, h5py.h5f.LIBVER_LATEST), h5py.h5f.LIBVER_LATEST)
    made = h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, plist, access)
    with h5py.File(made) as file:
        for name, compression in (("v", None), ("w", "gzip")):
            file.create_dataset(
                name, (6, 300), "f8", maxshape=(6, None), chunks=(4, 2), compression=compression
            )
            file[name][...] = np.arange(1800.0).reshape(6, 300)
    found = open_group(Location.of(path), OpenOptions(parser="hdf5")).variables
    for name in ("v", "w"):
        np.testing.assert_array_equal(found[name].data.read(), np.arange(1800.0).reshape(6, 300))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_an_index_is_read_over_http(libver: str, tmp_path: Path) -> None:
    with create(tmp_path / "a.h5", (2, 9000), (2, None), (1, 1), libver, "gzip", "i2") as file:
        full(file["v"])
    with range_server(tmp_path) as (url, _):
        found = array(f"{url}/a.h5")
        np.testing.assert_array_equal(found.read(), native(tmp_path / "a.h5"))


def test_headers_in_many_pieces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    for libver in LIBVERS:
        with create(path, (5, 6), (5, None), (2, 4), libver) as file:
            file["w"] = np.zeros(3)
            for number in range(60):
                # so that neither header finds room beside itself
                file["v"].attrs[f"a{number}"] = "x" * number
                file["w"].attrs[f"a{number}"] = "x" * number
            full(file["v"])
        np.testing.assert_array_equal(array(path).read(), native(path))


# ---------------------------------------------------------------------- damage


def node_of(path: Path) -> int:
    """Where the first node of a B-tree of chunks lies."""
    return path.read_bytes().index(b"TREE\x01")


HEAD, KEY, CHILD = 24, 8 + 8 * 3, 8


def test_a_key_out_of_order_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, (8, 8), (8, 8), (2, 4), "earliest") as file:
        full(file["v"])
    sound, node = path.read_bytes(), node_of(path)
    expected = array(path).read()
    for entry, axis, value in itertools.product(range(9), range(3), (0, 1, 2, 4, 6, 64, 2**40)):
        raw = bytearray(sound)
        place = node + HEAD + entry * (KEY + CHILD) + 8 + 8 * axis
        raw[place : place + 8] = value.to_bytes(8, "little")
        path.write_bytes(raw)
        try:
            found = array(path).read()
        except FormatError:
            continue
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(native(path), expected)


WRONG_NODES: dict[str, tuple[int, bytes]] = {
    "another signature": (0, b"X"),
    "a node of names": (4, b"\0"),
    "a level that has no end": (5, b"\x09"),
    "more entries than there is room for": (6, b"\xff\xff"),
    "a neighbour of the root": (8, bytes(8)),
    "a child past the end": (HEAD + KEY, b"\xff" * 7),
    "a child at no address": (HEAD + KEY, b"\xff" * 8),
    "a position within an element": (HEAD + 8 + 16, b"\1"),
    "a position beyond all numbers": (HEAD + 8, b"\xfe" + b"\xff" * 7),
}


@pytest.mark.parametrize("which", WRONG_NODES)
def test_a_node_that_contradicts_itself_is_an_error(which: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, (8, 8), (8, 8), (2, 4), "earliest") as file:
        full(file["v"])
    place, value = WRONG_NODES[which]
    raw, node = bytearray(path.read_bytes()), node_of(path)
    raw[node + place : node + place + len(value)] = value
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        array(path)


def test_keys_of_upper_nodes_are_compared_with_those_below(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, (400, 2), (400, 2), (1, 1), "earliest") as file:
        full(file["v"])
    sound = path.read_bytes()
    root = sound.index(b"TREE\x01\x01")
    expected = array(path).read()
    refused = 0
    for entry, value in itertools.product(range(1, 12), (0, 1, 399, 2**33)):
        raw = bytearray(sound)
        place = root + HEAD + entry * (KEY + CHILD) + 8
        raw[place : place + 8] = value.to_bytes(8, "little")
        path.write_bytes(raw)
        try:
            found = array(path).read()
        except FormatError:
            refused += 1
            continue
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(native(path), expected)
    assert refused


def test_a_node_with_two_parents_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, (400, 2), (400, 2), (1, 1), "earliest") as file:
        full(file["v"])
    raw = bytearray(path.read_bytes())
    child = raw.index(b"TREE\x01\x01") + HEAD + KEY
    raw[child : child + 8] = raw[child + KEY + CHILD : child + KEY + CHILD + 8]
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="two parents"):
        array(path)


@pytest.mark.parametrize("signature", [b"EAHD", b"EAIB", b"EADB", b"EASB"])
def test_a_wrong_checksum_of_an_extensible_array_is_an_error(
    signature: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with create(path, (2, 3000), (2, None), (1, 1), "latest") as file:
        full(file["v"])
    raw = bytearray(path.read_bytes())
    raw[raw.index(signature) + 15] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="checksum"):
        array(path)


# where the fields of the header of an extensible array are (VII.D)
VERSION, CLIENT, ELEMENT, MAX_BITS, LEAST, POINTERS, USED, INDEX_BLOCK = 4, 5, 6, 7, 9, 10, 44, 60
EAHD, OWNER, ELEMENTS = 72, 6, 14
"""Bytes of the header; where a block names its header; where the elements of an index begin."""
SELF_CONTRADICTIONS: dict[str, tuple[int, bytes, type[Exception], str]] = {
    "another version": (VERSION, b"\1", UnsupportedError, "version 1 and client 0"),
    "another client": (CLIENT, b"\2", UnsupportedError, "version 0 and client 2"),
    "elements shorter than an address": (ELEMENT, b"\4", FormatError, "contradicts itself"),
    "elements longer than any": (ELEMENT, b"\x10", FormatError, "contradicts itself"),
    "blocks of three elements": (LEAST, b"\3", FormatError, "contradicts itself"),
    "more in the index than there is": (MAX_BITS, b"\4", FormatError, "contradicts itself"),
    "numbers of more than 64 bits": (MAX_BITS, b"\x41", FormatError, "contradicts itself"),
    "more than can be counted": (USED, b"\xff" * 8, FormatError, "contradicts itself"),
}


def put(path: Path, place: int, value: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[place : place + len(value)] = value
    path.write_bytes(raw)


def seal(path: Path, begin: int, size: int) -> None:
    """Make the last bytes of a block the checksum of the others, as whoever forges a file would."""
    raw = path.read_bytes()
    checksum = jenkins_lookup3(raw[begin : begin + size - 4])
    put(path, begin + size - 4, checksum.to_bytes(4, "little"))


def forge(path: Path, begin: int, size: int, place: int, value: bytes) -> None:
    put(path, begin + place, value)
    seal(path, begin, size)


def size_of_index(path: Path, element: int = 8) -> int:
    """Return the bytes of an index block, as its header says."""
    raw = path.read_bytes()
    head = raw[raw.index(b"EAHD") :]
    bits, in_index, least, pointers = head[7:11]
    listed = 2 * (pointers - 1)
    supers = 1 + bits - (least.bit_length() - 1) - 2 * (pointers.bit_length() - 1)
    return ELEMENTS + in_index * element + 8 * (listed + supers) + 4


@pytest.fixture
def extensible(tmp_path: Path) -> Path:
    path = tmp_path / "a.h5"
    with create(path, (2, 60), (2, None), (1, 1), "latest") as file:
        full(file["v"])
    return path


@pytest.mark.parametrize("which", SELF_CONTRADICTIONS)
def test_a_header_that_contradicts_itself_is_an_error(which: str, extensible: Path) -> None:
    place, value, kind, reason = SELF_CONTRADICTIONS[which]
    forge(extensible, extensible.read_bytes().index(b"EAHD"), EAHD, place, value)
    with pytest.raises(kind, match=reason):
        array(extensible)


@pytest.mark.parametrize("place, value", [(0, b"EAIX"), (OWNER, b"\1" * 8)])
def test_a_block_of_another_kind_or_array_is_an_error(
    place: int, value: bytes, extensible: Path
) -> None:
    begin = extensible.read_bytes().index(b"EAIB")
    forge(extensible, begin, size_of_index(extensible), place, value)
    with pytest.raises(FormatError, match="block EAIB"):
        array(extensible)


def test_a_data_block_that_is_listed_twice_is_an_error(extensible: Path) -> None:
    raw = extensible.read_bytes()
    begin = raw.index(b"EAIB")
    # behind the elements come the blocks of one, one and two, of which the last are equally long
    place = ELEMENTS + 8 * raw[raw.index(b"EAHD") + 8] + 8 * 2
    again = raw[begin + place : begin + place + 8]
    forge(extensible, begin, size_of_index(extensible), place + 8, again)
    with pytest.raises(FormatError, match="data block twice"):
        array(extensible)


def test_a_chunk_of_an_extensible_array_lies_in_the_file(extensible: Path) -> None:
    begin = extensible.read_bytes().index(b"EAIB")
    past = extensible.stat().st_size.to_bytes(8, "little")
    forge(extensible, begin, size_of_index(extensible), ELEMENTS, past)
    with pytest.raises(FormatError, match="lies past"):
        array(extensible)


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """A file of two columns, whose index of four elements has one beyond them."""
    path = tmp_path / "a.h5"
    with create(path, (2, 1), (2, None), (1, 1), "latest") as file:
        full(file["v"])
    raw = path.read_bytes()
    begin = raw.index(b"EAIB")
    forge(path, begin, size_of_index(path), ELEMENTS + 16, raw[begin + ELEMENTS :][:8])
    return path


def test_an_element_beyond_the_shape_does_not_count(forged: Path) -> None:
    forge(forged, forged.read_bytes().index(b"EAHD"), EAHD, USED, (4).to_bytes(8, "little"))
    np.testing.assert_array_equal(array(forged).read(), native(forged))


def test_unused_elements_may_hold_any_bytes(forged: Path) -> None:
    np.testing.assert_array_equal(array(forged).read(), native(forged))


def test_a_filtered_chunk_is_no_longer_than_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, (1, 2), (1, None), (1, 1), "latest", "gzip") as file:
        full(file["v"])
    raw = path.read_bytes()
    head, begin = raw.index(b"EAHD"), raw.index(b"EAIB")
    width, count = raw[head + ELEMENT], raw[head + 8]
    # an index of the same elements whose lengths have eight bytes, behind all else
    rows = [raw[begin + ELEMENTS :][n * width : (n + 1) * width] for n in range(count)]
    wide = [row[:8] + b"\xff" * 8 + row[-4:] for row in rows]
    rest = raw[begin + ELEMENTS + count * width : begin + size_of_index(path, width)]
    path.write_bytes(raw + raw[begin : begin + ELEMENTS] + b"".join(wide) + rest)
    seal(path, len(raw), size_of_index(path, 20))
    forge(path, head, EAHD, ELEMENT, bytes([20]))
    forge(path, head, EAHD, INDEX_BLOCK, len(raw).to_bytes(8, "little"))
    with pytest.raises(FormatError, match="longer than any file"):
        array(path)


def test_a_page_with_a_wrong_checksum_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, (2**19, 1), (None, 1), (1, 1), "latest", None, "i1") as file:
        file["v"][2**19 - 1] = 7
        place = file["v"].id.get_chunk_info(0).byte_offset
    assert array(path).manifest.size == 2**19
    raw = path.read_bytes()
    put(path, raw.rindex(place.to_bytes(8, "little")), (place + 1).to_bytes(8, "little"))
    with pytest.raises(FormatError, match="a page of an extensible array"):
        array(path)


def test_an_unknown_layout_is_declined_where_hdf5_would_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: Any) -> Any:
        raise UnknownFormError("a data layout of version 6")

    for module in ("objects", "structure.object_header"):
        monkeypatch.setattr(f"virtualds.parsers.hdf5.{module}.parse_layout", parse)
    for limits in ((5, None), (None, 6)):
        with create(tmp_path / "a.h5", (5, 6), limits, (2, 4), "latest") as file:
            full(file["v"])
        if limits[0] is None:
            np.testing.assert_array_equal(
                array(tmp_path / "a.h5").read(), native(tmp_path / "a.h5")
            )
            continue
        with pytest.raises(UnsupportedError, match="an unknown index of chunks"):
            virtualds.open_virtual_dataset(tmp_path / "a.h5")
