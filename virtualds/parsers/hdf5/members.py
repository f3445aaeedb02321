"""The members of HDF5 groups, found by our own reader of the structure.

HDF5 File Format Specification 3.0, IV.A. What this module does not know it declines; then h5py
lists the members (`virtualds.parsers.hdf5.library`).
"""

from __future__ import annotations

import os
from collections.abc import Collection

from virtualds.errors import FormatError, VirtualdsError
from virtualds.parsers.hdf5.dataset_facts import make_dataset
from virtualds.parsers.hdf5.file import HDF5Files, find_referenced_file
from virtualds.parsers.hdf5.objects import Dataset, GroupMembers, HDF5Location, make_no_group_error
from virtualds.parsers.hdf5.structure.file_bytes import DeclinedError
from virtualds.parsers.hdf5.structure.links import (
    EXTERNAL,
    HARD,
    LINK_INFO,
    SYMBOL_TABLE,
    Link,
)
from virtualds.parsers.hdf5.structure.object_header import DATASPACE, DATATYPE
from virtualds.source_file import SourceFile

KNOWN_MESSAGES = frozenset(range(0x17)) - {0x09}
"""Types of messages of groups and datasets (IV.A.2)."""
LINK_COUNT = 0x16
"""The type of the message that counts links."""
MOST_LINKS = 16
"""Soft and external links that may follow each other, as in HDF5 (`H5Pset_nlinks`)."""


def open_root(files: HDF5Files, source: SourceFile) -> HDF5Location:
    """Return the root group of a file.

    Raises
    ------
    FormatError
        The file is damaged.
    DeclinedError
        It has an unknown form.
    """
    file = files.get_bytes(source)
    if file.unknown:
        file.decline(file.unknown)
    superblock = file.superblock
    if superblock.is_being_written:
        file.decline("a writer has it open, or died before it closed it")
    if file.is_defined(superblock.driver):
        file.decline("a file that is split over others")
    if superblock.end > file.end:
        file.refuse(f"it has {file.end} bytes of {superblock.end}")
    return HDF5Location(files=files, source=source, path=b"/", at=file.superblock.root)


def list_members(place: HDF5Location, skip: Collection[str] = ()) -> GroupMembers:
    """Return the members of a group, without soft and external links of the names to skip.

    Raises
    ------
    DeclinedError
        The group, or a member, has an unknown form.
    """
    result = GroupMembers()
    for link in place.links:
        name = link.name.decode("utf-8", "surrogateescape")
        if link.kind != HARD and name in skip:
            continue
        try:
            found = follow_link(place, link)
            _decline_unknown_messages(found)
            if is_group(found):
                result.groups[name] = found
            elif is_dataset(found):
                result.datasets[name] = make_dataset(name, found)
        except DeclinedError:
            raise
        except VirtualdsError as error:
            result.broken[name] = error
    return result


def _decline_unknown_messages(place: HDF5Location) -> None:
    """Decline an object that HDF5 may refuse because of what it does not know either."""
    if unknown := place.kinds - KNOWN_MESSAGES:
        place.file.decline(f"a message of type {min(unknown):#x}")
    if LINK_COUNT in place.kinds:
        counts = [m.data[1:] for m in place.messages if m.kind == LINK_COUNT]
        if not all(map(any, counts)):
            place.file.decline("an object without links")


def is_group(place: HDF5Location) -> bool:
    """Say whether an object is a group."""
    return not place.kinds.isdisjoint((LINK_INFO, SYMBOL_TABLE))


def is_dataset(place: HDF5Location) -> bool:
    """Say whether an object is a dataset."""
    return not is_group(place) and place.kinds.issuperset((DATASPACE, DATATYPE))


def descend_to(root: HDF5Location, path: str) -> list[HDF5Location]:
    """Return the groups from the root to the one at a path.

    Raises
    ------
    FileNotFoundError
        There is no such group.
    """
    places = [root]
    for part in filter(None, path.split("/")):
        link = places[-1].find_link(part.encode("utf-8", "surrogateescape"))
        place = follow_link(places[-1], link) if link else None
        if place is None or not is_group(place):
            raise make_no_group_error(root.source, path)
        places.append(place)
    return places


def find_dataset(files: HDF5Files, source: SourceFile, path: bytes) -> Dataset | None:
    """Return the dataset at a path of a file, None if there is none."""
    found = _walk_path(open_root(files, source), path, MOST_LINKS)
    if found is None or not is_dataset(found):
        return None
    _decline_unknown_messages(found)
    return make_dataset(path.decode("utf-8", "surrogateescape"), found)


def follow_link(place: HDF5Location, link: Link, left: int = MOST_LINKS) -> HDF5Location:
    """Return the target of a link.

    Raises
    ------
    FormatError
        It leads nowhere.
    """
    path = place.path.rstrip(b"/") + b"/" + link.name
    if link.kind == HARD:
        return HDF5Location(files=place.files, source=place.source, path=path, at=link.address)
    start, source, target = place, place.source, link.target
    if link.kind == EXTERNAL:
        name, target = _split_external(place, link)
        source = find_referenced_file(os.fsdecode(name), place.source)
        start = open_root(place.files, source)
    if target.startswith(b"/"):
        start = open_root(place.files, start.source)
    found = _walk_path(start, target, left - 1)
    if found is None:
        raise make_no_target_error(place.source, link.name, target, source)
    return found


def _walk_path(start: HDF5Location, path: bytes, left: int) -> HDF5Location | None:
    """Return what lies at a path below a group, None if nothing does."""
    place = start
    for part in path.split(b"/"):
        if part in (b"", b"."):
            continue
        link = place.find_link(part) if is_group(place) else None
        if link is None or left < 0:
            return None
        place = follow_link(place, link, left)
    return place


def _split_external(place: HDF5Location, link: Link) -> tuple[bytes, bytes]:
    """Return the file name and the path of an external link (IV.A.2.g): version 0, no flags."""
    name, stop, rest = link.target[1:].partition(b"\0")
    path, end, _ = rest.partition(b"\0")
    if link.target[:1] != b"\0" or not (name and stop and path and end):
        place.file.decline("an external link of an unknown form")
    return name, path


def make_no_target_error(
    holder: SourceFile, link: bytes, path: bytes, source: SourceFile
) -> FormatError:
    """Return the error of a link that leads nowhere."""
    return FormatError(
        f"{holder.url}: the link {link.decode('utf-8', 'replace')!r} leads to "
        f"{path.decode('utf-8', 'replace')!r} of {source.url}, where nothing is; leave it out "
        f"with drop_variables"
    )
