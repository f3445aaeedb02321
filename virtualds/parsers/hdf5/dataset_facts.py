"""What a dataset is, from the messages of its object header.

HDF5 File Format Specification 3.0, IV.A.2.
"""

from __future__ import annotations

from virtualds.parsers.hdf5.objects import Dataset, DatasetFacts, HDF5Location, check_fill
from virtualds.parsers.hdf5.structure.dataspace import Dataspace, parse_dataspace
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.fill_values import (
    NO_FILL,
    FillValue,
    parse_fill_value,
    parse_old_fill_value,
)
from virtualds.parsers.hdf5.structure.filter_pipeline import FILTERS, parse_filter_pipeline
from virtualds.parsers.hdf5.structure.layout import (
    FILTERED_SINGLE,
    IndexKind,
    Layout,
    LayoutClass,
    parse_layout,
)
from virtualds.parsers.hdf5.structure.message_bytes import blame_file
from virtualds.parsers.hdf5.structure.notes import note_slot
from virtualds.parsers.hdf5.structure.object_header import (
    DATASPACE,
    DATATYPE,
    FILL,
    LAYOUT,
    OLD_FILL,
    SHARED,
    Message,
)
from virtualds.parsers.hdf5.structure.shared_messages import read_unshared

LENGTH, ADDRESS, SIZE, DATA, CHUNK = "length", "address", "size", "data", "chunk"
LIMIT, CHUNK_LENGTH = "limit", "chunk length"
"""Slots of a dataset: the length of an axis; where its elements or the index of its chunks lie; how
many bytes are contiguous; compact elements; bytes and filter mask of a filtered single chunk; the
greatest length of an axis that is not unlimited; the length of a chunk along an axis."""

ONCE = frozenset({DATASPACE, DATATYPE, FILL, OLD_FILL, FILTERS, LAYOUT})
"""Messages that a dataset has once."""


def make_dataset(name: str, place: HDF5Location) -> Dataset:
    """Return the dataset at a place.

    Raises
    ------
    FormatError
        Its object header is damaged.
    DeclinedError
        Its object header has an unknown form.
    """
    facts = _parse_facts(place)
    check_fill(place, facts.kind)
    found = Dataset(
        files=place.files,
        source=place.source,
        path=place.path,
        at=place.at,
        name=name,
        facts=facts,
    )
    # what is known of the place is known of the dataset
    found.__dict__.update(file=place.file, messages=place.messages, kinds=place.kinds)
    return found


def _parse_facts(place: HDF5Location) -> DatasetFacts:
    file = place.file
    by_kind: dict[int, Message] = {}
    for message in place.messages:
        if message.kind in ONCE and message.kind in by_kind:
            file.refuse(f"a dataset has two messages of type {message.kind}")
        by_kind[message.kind] = message
    if LAYOUT not in by_kind or by_kind[LAYOUT].flags & SHARED:
        file.refuse("a dataset has no layout")
    with blame_file(file):
        space = _parse_space(place, by_kind[DATASPACE])
        kind = bytes(read_unshared(file, by_kind[DATATYPE]))
        filters = by_kind.get(FILTERS)
        return DatasetFacts(
            space,
            kind,
            _parse_fill(file, by_kind),
            parse_filter_pipeline(read_unshared(file, filters)) if filters else (),
            _parse_layout(place, by_kind[LAYOUT].data),
        )


def _parse_space(place: HDF5Location, message: Message) -> Dataspace:
    data, width = read_unshared(place.file, message), place.file.length_size
    space = parse_dataspace(data, width)
    rank, owner = len(space.limits), place.address[1]
    for axis, limit in enumerate(space.limits):
        note_slot(data, space.place + axis * width, width, (owner, LENGTH, axis))
        if space.has_limits and limit is not None:
            note_slot(data, space.place + (rank + axis) * width, width, (owner, LIMIT, axis))
    return space


def _parse_fill(file: FileBytes, by_kind: dict[int, Message]) -> FillValue:
    if FILL in by_kind:
        return parse_fill_value(read_unshared(file, by_kind[FILL]))
    if OLD_FILL in by_kind:
        return parse_old_fill_value(read_unshared(file, by_kind[OLD_FILL]))
    return NO_FILL


def _parse_layout(place: HDF5Location, data: bytes) -> Layout:
    offset, length = place.file.offset_size, place.file.length_size
    layout = parse_layout(data, offset, length)
    owner = place.address[1]
    if layout.kind == LayoutClass.VIRTUAL:
        # HDF5 computes the shape of some from their sources
        place.file.decline("a virtual dataset")
    if layout.kind == LayoutClass.COMPACT:
        note_slot(data, layout.place, len(layout.data), (owner, DATA))
    elif layout.kind in (LayoutClass.CONTIGUOUS, LayoutClass.CHUNKED):
        note_slot(data, layout.place, offset, (owner, ADDRESS))
    if layout.kind == LayoutClass.CONTIGUOUS and layout.size is not None:
        note_slot(data, layout.place + offset, length, (owner, SIZE))
    if layout.kind == LayoutClass.CHUNKED:
        begin, width = layout.dims_at
        for axis in range(len(layout.dims) - 1):
            note_slot(data, begin + axis * width, width, (owner, CHUNK_LENGTH, axis))
    if layout.index_kind == IndexKind.SINGLE and layout.flags & FILTERED_SINGLE:
        note_slot(data, layout.place - 4 - length, length + 4, (owner, CHUNK))
    return layout
