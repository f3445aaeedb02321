"""The global heap of HDF5, which holds strings and sequences of varying length.

HDF5 File Format Specification 3.0, III.E, "Global Heap". HDF5 trusts the heap: damage there can end
the process, or keep it busy for ever. So this module checks the heap before HDF5 reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from operator import add, gt
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.parsers.hdf5.data_types import TypeClass
from virtualds.parsers.hdf5.structure.file_bytes import (
    FORMS,
    FileBytes,
    cut,
    free,
    keep,
    note_address,
    note_heap_objects,
    note_heap_reference,
    note_same,
)
from virtualds.parsers.hdf5.structure.object_header import MOST_BYTES, Attribute
from virtualds.parsers.hdf5.structure.type_messages import HDF5Type

REFERENCES = {size: Struct(f"<I{form}I") for size, form in FORMS.items()}
"""References as they are read one by one, and below, as many are."""
REFERENCE_DTYPES = {
    size: np.dtype([("length", "<u4"), ("address", f"<u{size}"), ("number", "<u4")])
    for size in FORMS
}
"""A reference, by the bytes of an address: elements of the sequence, address of the collection that
holds it, and its number there (IV.B)."""
REFERENCE_SIZES = Struct("<4xI4xI")
"""Bytes of a reference, and of an element of the sequence, in a type of sequences (IV.A.2.d)."""
SEQUENCE_KINDS = (0, 1)
"""Sorts of types of varying length: sequences and strings (IV.A.2.d)."""
LEAST_COLLECTION = 2**12
"""Fewest bytes that HDF5 gives a collection."""
HEAD = 16
"""Bytes before the first object of a collection: signature, version and size, padded to 8 bytes."""
OBJECT_STRUCTS = {size: Struct(f"<H6x{form}{8 - size}x") for size, form in FORMS.items()}
"""The number and length before an object, padded to 8 bytes, by the bytes of a length.

The specification (III.E) does not show the padding; it is `H5HG_SIZEOF_OBJHDR` of HDF5.
"""

Elements = npt.NDArray[np.uint8]


class Collection(NamedTuple):
    """A collection of the heap: where its objects begin, and how long they are, by number."""

    address: int
    data: bytes
    begins: dict[int, int]
    lengths: dict[int, int]


class Budget:
    """How many more bytes sequences may have: all together hardly more than the file.

    In a sound file no two elements share an object. A damaged file could name an object of a
    megabyte a million times.
    """

    def __init__(self, file: FileBytes) -> None:
        self.file = file
        self.left = file.end + MOST_BYTES

    def locate(self, collection: Collection, number: int, nbytes: int) -> int:
        """Return where an object begins in a collection; it must have at least so many bytes."""
        there = collection.lengths.get(number, -1)
        if there < nbytes:
            where = f"the global heap at {collection.address}"
            if there < 0:
                self.file.refuse(f"{where} has no object {number}")
            self.file.refuse(f"{where} has {there} bytes of an object of {nbytes}")
        self._spend(nbytes)
        return collection.begins[number]

    def locate_all(
        self, collection: Collection, numbers: list[int], nbytes: list[int]
    ) -> list[int]:
        """Return where objects begin, like `locate`."""
        # a file may have many strings, so there is no Python loop over them
        found = map(collection.lengths.get, numbers, repeat(-1))
        if any(map(gt, nbytes, found)):
            return [self.locate(collection, *one) for one in zip(numbers, nbytes, strict=True)]
        self._spend(sum(nbytes))
        return list(map(collection.begins.__getitem__, numbers))

    def _spend(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            self.file.refuse("its sequences have more bytes than the file")


def is_sequence(kind: bytes) -> bool:
    """Say whether elements of a type are strings or sequences of varying length (IV.A.2.d)."""
    return len(kind) >= 16 and kind[0] & 0x0F == TypeClass.VLEN and kind[1] & 0x0F in SEQUENCE_KINDS


def read_sequences(file: FileBytes, attribute: Attribute, *, is_value: bool = False) -> list[bytes]:
    """Return the bytes of each element of an attribute of sequences.

    With ``is_value`` they may differ between files of one structure; without, nothing else about
    the file depends on them than what the caller notes.

    Raises
    ------
    FormatError
        The heap does not hold them.
    """
    kind, data, count = attribute.kind, attribute.data, attribute.elements
    budget = Budget(file)
    form = REFERENCES[file.offset_size]
    of_reference, size = REFERENCE_SIZES.unpack_from(kind)
    if of_reference != form.size or count * form.size > len(data):
        file.refuse(f"an attribute has {len(data)} bytes for {count} sequences")
    rows = list(form.iter_unpack(data[: count * form.size]))
    file.prepare((address, LEAST_COLLECTION) for _, address, _ in rows if address)
    found: list[bytes] = []
    for place, (length, address, number) in enumerate(rows):
        if not address and not length:
            found.append(b"")
            continue
        at = place * form.size + 4
        if address not in file.collections:
            known = note_address(data, at, file.offset_size, address)
            file.collections[address] = read_collection(file, known)
        elif file.notes is not None:
            note_same(data, at, file.offset_size, address)
        collection = file.collections[address]
        begin = budget.locate(collection, number, length * size)
        if file.notes is None:
            found.append(collection.data[begin : begin + length * size])
            continue
        if is_value:
            note_heap_reference(data, at - 4, collection.data, number, size, attribute.key)
        else:
            keep(collection.data, begin, begin + length * size)
        found.append(cut(collection.data, begin, begin + length * size))
    return found


def check_elements(file: FileBytes, kind: HDF5Type, elements: Elements) -> None:
    """Refuse elements that refer to objects missing from the heap.

    Parameters
    ----------
    file : FileBytes
    kind : HDF5Type
    elements : array of bytes
        As they lie in the file, one a row.

    Raises
    ------
    FormatError
        The heap is damaged, or lacks an object.
    """
    _check_within_budget(Budget(file), kind, elements)


def _check_within_budget(budget: Budget, kind: HDF5Type, elements: Elements) -> None:
    if kind.kind == TypeClass.VLEN:
        _check_references(budget, kind, elements)
        return
    for offset, part in kind.parts:
        if part.refers:
            width = kind.size if kind.kind == TypeClass.ARRAY else part.size
            within = elements[:, offset : offset + width]
            _check_within_budget(budget, part, within.reshape(-1, part.size))


def _check_references(budget: Budget, kind: HDF5Type, elements: Elements) -> None:
    base = kind.base
    for part in _find_parts(budget, kind, elements):
        if base.refers:
            for begin, length in zip(part.begins, part.nbytes, strict=True):
                within = np.frombuffer(part.data, np.uint8, length, begin)
                _check_within_budget(budget, base, within.reshape(-1, base.size))


def read_texts(
    budget: Budget, kind: HDF5Type, elements: Elements, encoding: str
) -> npt.NDArray[np.object_]:
    """Return elements that are strings of varying length, each up to its first NUL.

    Bytes that are no text become the replacement character. Parameters and errors are those of
    `check_elements`.
    """
    found = np.full(len(elements), "", object)
    for part in _find_parts(budget, kind, elements):
        ends = map(add, part.begins, part.nbytes)
        raw = [part.data[i:j] for i, j in zip(part.begins, ends, strict=True)]
        found[part.which] = [one.partition(b"\0")[0].decode(encoding, "replace") for one in raw]
    return found


class _Part(NamedTuple):
    """Elements that lie in one collection: their numbers, and where they begin in its data."""

    which: npt.NDArray[np.intp]
    data: bytes
    begins: list[int]
    nbytes: list[int]


def _find_parts(budget: Budget, kind: HDF5Type, elements: Elements) -> Iterator[_Part]:
    """Yield the elements of each collection; those that refer to nothing are in no part."""
    file = budget.file
    form = REFERENCE_DTYPES[file.offset_size]
    if kind.sort not in SEQUENCE_KINDS or kind.size != form.itemsize:
        file.refuse(f"a type of varying length is of sort {kind.sort} and {kind.size} bytes")
    references = np.ascontiguousarray(elements).view(form)[:, 0]
    address, length = references["address"], references["length"]
    there = np.flatnonzero((length != 0) | (address != 0))
    there = there[np.argsort(address[there], kind="stable")]
    edges = np.flatnonzero(np.diff(address[there])) + 1
    for which in np.split(there, edges) if there.size else ():
        collection = read_collection(file, int(address[which[0]]))
        nbytes = (length[which].astype(np.int64) * kind.base.size).tolist()
        begins = budget.locate_all(collection, references["number"][which].tolist(), nbytes)
        yield _Part(which, collection.data, begins, nbytes)


def read_collection(file: FileBytes, address: int) -> Collection:
    """Return the collection at an address.

    Raises
    ------
    FormatError
        There is none, or it is damaged.
    """
    begin = HEAD
    head = file.peek(address, begin)
    if head[:4] != b"GCOL" or head[4] != 1:
        file.refuse(f"there is no global heap at {address}")
    size = file.unpack_length(head, 8)
    data = file.take(address, size)
    free(data, begin, size)
    begins: dict[int, int] = {}
    lengths: dict[int, int] = {}
    form = OBJECT_STRUCTS[file.length_size]
    prefix, unpack, count, stop = form.size, form.unpack_from, 0, begin
    # a shorter rest is too small to be free space
    last = size - prefix
    while begin <= last:
        number, length = unpack(data, begin)
        if number:
            count += 1
            begins[number] = begin + prefix
            lengths[number] = length
            stop = begin + prefix + length
            begin += prefix + (length + 7 & -8)
        else:
            # the length of free space includes its header; with less, HDF5 would loop for ever
            stop = begin = begin + length if length >= prefix else size + 1
    if stop > size or count > len(begins):
        file.refuse(f"the global heap at {address} contradicts itself")
    note_heap_objects(data, begins, lengths)
    return Collection(address, data, begins, lengths)
