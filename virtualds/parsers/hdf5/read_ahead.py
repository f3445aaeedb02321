"""What is read of a remote HDF5 file, fetched level by level before it is read in earnest.

Each function is a `Work` (`virtualds.parsers.hdf5.structure.file_bytes`): it reads one thing, and
returns what that leads to. What is not foreseen here costs requests of its own, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from virtualds.parsers.hdf5.chunk_indexes.dataset_chunks import read_chunks
from virtualds.parsers.hdf5.dataset_facts import make_dataset
from virtualds.parsers.hdf5.deferred_chunks import can_defer
from virtualds.parsers.hdf5.members import follow_link, is_dataset, is_group
from virtualds.parsers.hdf5.objects import HDF5Location
from virtualds.parsers.hdf5.structure.attribute_messages import UNREAD, Attribute
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, Work
from virtualds.parsers.hdf5.structure.global_heap import is_sequence, read_sequences
from virtualds.parsers.hdf5.structure.layout import LayoutClass
from virtualds.parsers.hdf5.structure.links import HARD


def fetch_groups(
    above: Sequence[HDF5Location], here: HDF5Location, skip: Collection[str], *, below: bool
) -> None:
    """Fetch what is read of a group, and of the groups above it or all below it.

    Parameters
    ----------
    above : sequence of HDF5Location
    here : HDF5Location
    skip : collection of str
        Names of variables that are left out.
    below : bool
        Whether groups below are read, too.
    """
    scales, all_of_it = _Visitor(None), _Visitor(skip, below)
    works: list[Work] = [partial(scales.visit_links, replace(place)) for place in above]
    here.file.read_ahead([*works, partial(all_of_it.visit_links, replace(here))])


@dataclass(frozen=True)
class _Visitor:
    """Reads the objects of groups, each once.

    Parameters
    ----------
    skip : collection of str or None
        Datasets whose chunks nobody needs; None where that is all of them.
    below : bool
        Whether groups below are read, too.
    """

    skip: Collection[str] | None
    below: bool = False
    seen: set[tuple[str, int]] = field(default_factory=set)

    def visit_links(self, place: HDF5Location) -> list[Work]:
        """Read the links of a group."""
        works: list[Work] = [partial(_visit_attributes, place)]
        for link in place.links:
            if link.kind != HARD:
                continue
            member = follow_link(place, link)
            if member.address not in self.seen:
                self.seen.add(member.address)
                works.append(partial(self.visit_member, link.name, member))
        return works

    def visit_member(self, name: bytes, place: HDF5Location) -> list[Work]:
        """Read the header of a member of a group."""
        if is_group(place):
            return [partial(self.visit_links, place)] if self.below else []
        works: list[Work] = [partial(_visit_attributes, place)]
        if self.skip is not None and name.decode("utf-8", "surrogateescape") not in self.skip:
            works.append(partial(_visit_chunks, place))
        return works if is_dataset(place) else []


def _visit_attributes(place: HDF5Location) -> list[Work]:
    """Read the attributes of an object."""
    return [
        partial(_visit_heap, place.file, one)
        for one in place.attributes.values()
        if is_sequence(one.kind) and one.name not in UNREAD
    ]


def _visit_heap(file: FileBytes, attribute: Attribute) -> list[Work]:
    """Read what an attribute refers to in the global heap."""
    for _ in read_sequences(file, attribute):
        pass
    return []


def _visit_chunks(place: HDF5Location) -> list[Work]:
    """Read where the chunks of a dataset lie."""
    dataset = make_dataset("", place)
    layout = dataset.facts.layout
    if place.files.defers and can_defer(dataset):
        return []
    # HDF5 lists the chunks of indexes of other kinds
    if layout.kind == LayoutClass.CHUNKED and layout.index_kind is not None:
        read_chunks(dataset)
    return []
