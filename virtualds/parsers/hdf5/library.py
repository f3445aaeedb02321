"""The members of HDF5 groups, and what datasets are, as the HDF5 library gives them.

It reads the files that `objects` declines, and all files with ``set_options(hdf5="library")``.

Filters that HDF5 itself undoes, with those of the package hdf5plugin where it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.codecs import make_no_filter_error
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.hdf5.data_types import encode_type, parse_stored_type
from virtualds.parsers.hdf5.objects import (
    Dataset,
    DatasetFacts,
    GroupMembers,
    HDF5Files,
    HDF5Location,
    check_fill,
    describe_damage,
    find_referenced_file,
    make_no_group_error,
    make_no_target_error,
)
from virtualds.parsers.hdf5.structure.element_types import parse_type
from virtualds.parsers.hdf5.structure.file_bytes import DeclinedError
from virtualds.parsers.hdf5.structure.messages import (
    UNLIMITED,
    Dataspace,
    FillState,
    FillValue,
    Filter,
    Layout,
    LayoutClass,
    MessageError,
    SpaceClass,
    UnknownFormError,
    blame_file,
    parse_layout,
)
from virtualds.parsers.hdf5.structure.object_header import (
    DATATYPE,
    EXTERNAL,
    HARD,
    LAYOUT,
    SOFT,
    read_unshared,
)
from virtualds.source_file import SourceFile


def can_undo(numbers: Iterable[int]) -> bool:
    """Say whether h5py can undo all filters of such numbers."""
    return all(map(_is_there, numbers))


def check_filters(dataset: Any) -> None:
    """Refuse a dataset that h5py has opened, if it cannot undo a filter in this process.

    Raises
    ------
    UnsupportedError
        It cannot; the file may have been scanned in a process that could.
    """
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if missing := [number for number in numbers if not _is_there(number)]:
        raise make_no_filter_error(missing[0])


def _is_there(number: int) -> bool:
    return _is_known(number) or (_import_plugins() and _is_known(number))


def _is_known(number: int) -> bool:
    """Say whether HDF5 has a filter that decodes."""
    import h5py

    can_decode = h5py.h5z.FILTER_CONFIG_DECODE_ENABLED
    return bool(h5py.h5z.filter_avail(number) and h5py.h5z.get_filter_info(number) & can_decode)


@cache
def _import_plugins() -> bool:
    """Import hdf5plugin, which registers its filters with HDF5; say whether it is installed."""
    try:
        import_module("hdf5plugin")
    except ImportError:
        return False
    return True


# ---------------------------------------------------------------------- library


def open_root(files: HDF5Files, source: SourceFile) -> HDF5Location:
    """Return the root group of a file."""
    import h5py

    return _locate(files, source, b"/", h5py.h5g.open(files.open(source).id, b"/"))


def _locate(
    files: HDF5Files, source: SourceFile, path: bytes, found: Any, at: int | None = None
) -> HDF5Location:
    """Return an object that h5py has opened."""
    import h5py

    address = h5py.h5o.get_info(found).addr if at is None else at
    place = HDF5Location(files=files, source=source, path=path, at=address)
    place.__dict__["id"] = found
    return place


def list_members(place: HDF5Location, skip: Collection[str] = ()) -> GroupMembers:
    """Return the members of a group, without soft and external links of the names to skip."""
    import h5py

    result = GroupMembers()
    for raw, link, address in _list_links(place):
        name = raw.decode("utf-8", "surrogateescape")
        if link != HARD and name in skip:
            continue
        try:
            with describe_damage(place.source):
                found = follow_link(place, raw, link, address)
                if isinstance(found.id, h5py.h5d.DatasetID):
                    result.datasets[name] = make_dataset(name, found)
                elif isinstance(found.id, h5py.h5g.GroupID):
                    result.groups[name] = found
        except VirtualdsError as error:
            result.broken[name] = error
    return result


def _list_links(place: HDF5Location) -> list[tuple[bytes, int, int]]:
    """Return the name, type and address of each link of a group.

    They are in the order of creation where the file kept it, else by name.
    """
    import h5py

    # HDF5 refuses an order that the file did not keep
    tracked = place.id.get_create_plist().get_link_creation_order()
    for order in (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME)[not tracked :]:
        found: list[tuple[bytes, int, int]] = []
        try:
            # h5py reuses one object for the facts of all links
            place.id.links.iterate(
                lambda raw, info, into=found: into.append((raw, info.type, info.u)),
                idx_type=order,
                info=True,
            )
        except (RuntimeError, UnicodeDecodeError):
            # error messages of HDF5 are not always text
            continue
        return found
    path = place.path.decode("utf-8", "replace")
    raise FormatError(
        f"{place.source.url}: HDF5 cannot list the group {path!r}; the file is damaged, fetch it "
        f"again"
    )


def descend_to(root: HDF5Location, path: str) -> list[HDF5Location]:
    """Return the groups from the root to the one at a path.

    Raises
    ------
    FileNotFoundError
        There is no such group.
    """
    import h5py

    places = [root]
    for part in filter(None, path.split("/")):
        raw, links = part.encode("utf-8", "surrogateescape"), places[-1].id.links
        there = links.exists(raw)
        if there:
            places.append(follow_link(places[-1], raw, links.get_info(raw).type))
        if not there or not isinstance(places[-1].id, h5py.h5g.GroupID):
            raise make_no_group_error(root.source, path)
    return places


def follow_link(
    place: HDF5Location, raw: bytes, link: int, address: int | None = None
) -> HDF5Location:
    """Return the target of a link, whose address is known if it is a hard one.

    Raises
    ------
    FormatError
        It leads nowhere.
    """
    import h5py

    base, path, source, files = place.id, raw, place.source, place.files
    if link == EXTERNAL:
        name, path = base.links.get_val(raw)
        source = find_referenced_file(os.fsdecode(name), source)
        base = files.open(source).id
    try:
        found = h5py.h5o.open(base, path)
    except KeyError as error:
        if link == HARD:
            raise FormatError(
                f"{source.url}: HDF5 cannot open {raw.decode('utf-8', 'replace')!r} "
                f"({error.args[0]}); the file is damaged, fetch it again, or leave it out with "
                f"drop_variables"
            ) from error
        path = base.links.get_val(raw) if link == SOFT else path
        raise make_no_target_error(place.source, raw, path, source) from error
    if link != HARD:
        source, address = file_of(found, base, source), None
    return _locate(files, source, h5py.h5i.get_name(found), found, address)


def file_of(found: Any, base: Any, source: SourceFile) -> SourceFile:
    """Return the file that an object lies in: soft links may pass through external ones."""
    import h5py

    name = h5py.h5f.get_name(found)
    if name == h5py.h5f.get_name(base):
        return source
    return find_referenced_file(os.fsdecode(name), source)


def make_dataset(name: str, place: HDF5Location) -> Dataset:
    """Return the dataset that h5py has opened at a place."""
    kind = _find_type(place)
    # HDF5 follows a fill value into the heap as soon as it reads the properties
    check_fill(place, parse_type(place.file, kind))
    found = Dataset(
        files=place.files,
        source=place.source,
        path=place.path,
        at=place.at,
        name=name,
        facts=_ask_facts(place, kind),
    )
    found.__dict__.update(id=place.id, messages=place.messages)
    return found


def open_dataset(files: HDF5Files, source: SourceFile, file: Any, path: bytes) -> Dataset | None:
    """Return the dataset at a path of a file that h5py has opened, None if there is none."""
    import h5py

    try:
        found = h5py.h5o.open(file.id, path)
    except KeyError:
        return None
    if not isinstance(found, h5py.h5d.DatasetID):
        return None
    lies_in = file_of(found, file.id, source)
    place = _locate(files, lies_in, h5py.h5i.get_name(found), found)
    return make_dataset(os.fsdecode(path), place)


def _find_type(place: HDF5Location) -> bytes:
    """Return the message of the type of a dataset, made by h5py if its form is unknown.

    h5py gives types of varying length other sizes than they have in the file.
    """
    found = [m for m in place.messages if m.kind == DATATYPE]
    if len(found) != 1:
        place.file.refuse(f"a dataset has {len(found)} types")
    try:
        kind = bytes(read_unshared(place.file, found[0]))
        parse_type(place.file, kind)
    except DeclinedError:
        return encode_type(place.id.get_type())
    return kind


def _ask_facts(place: HDF5Location, kind: bytes) -> DatasetFacts:
    """Return what a dataset is, from h5py."""
    shape, plist = place.id.shape, place.id.get_create_plist()
    of_class = SpaceClass.NULL if shape is None else SpaceClass(bool(shape))
    limits = place.id.get_space().get_simple_extent_dims(True) if shape else ()
    most = tuple(None if n == UNLIMITED else n for n in limits)
    filters = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return DatasetFacts(
        Dataspace(of_class, shape, most, 0),
        kind,
        _ask_fill(plist, kind),
        tuple(Filter(number, flags, values) for number, flags, values, _ in filters),
        _find_layout(place, plist),
    )


def _ask_fill(plist: Any, kind: bytes) -> FillValue:
    """Return the fill value, with bytes only where those of the file are values."""
    state = FillState(plist.fill_value_defined())
    if state != FillState.CHOSEN:
        return FillValue(state)
    try:
        stored = parse_stored_type(kind)
    except (UnsupportedError, MessageError, UnknownFormError):
        return FillValue(state)
    if stored.dtype.hasobject or not stored.in_chunks:
        return FillValue(state)
    return FillValue(state, ask_chosen_fill(plist, stored.dtype).tobytes())


def ask_chosen_fill(plist: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the storage fill value that the writer chose, as an array of one element."""
    # numpy's dates are opaque bytes to HDF5
    known = np.dtype(f"V{dtype.itemsize}") if dtype.kind in "mM" else dtype
    fill = np.zeros((1,), known)
    plist.get_fill_value(fill)
    return fill.view(dtype)


def _find_layout(place: HDF5Location, plist: Any) -> Layout:
    """Return where elements lie; without an index of chunks if its form is unknown."""
    found = [m.data for m in place.messages if m.kind == LAYOUT]
    if len(found) != 1:
        place.file.refuse(f"a dataset has {len(found)} layouts")
    try:
        return parse_layout(bytes(found[0]), place.file.offset_size, place.file.length_size)
    except MessageError as error:
        blame_file(place.file, error)
    except UnknownFormError:
        of_class, offset = LayoutClass(plist.get_layout()), place.id.get_offset()
        if of_class == LayoutClass.CHUNKED:
            return Layout(of_class, dims=(*plist.get_chunk(), place.id.get_type().get_size()))
        return Layout(of_class, None if offset is None else offset - place.file.base)
