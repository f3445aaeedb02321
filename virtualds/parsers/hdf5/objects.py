"""The groups and datasets of HDF5 files, and their object headers.

HDF5 File Format Specification 3.0, IV.A. Unknown forms raise `DeclinedError`. Then the file is read
again, with the links and datasets that HDF5 reports (`HDF5Files.by_library`); everything else is
always read as bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from errno import EMFILE, ENFILE
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import (
    AccessError,
    FormatError,
    UnsupportedError,
    VirtualdsError,
    make_damage_error,
)
from virtualds.parsers.hdf5.data_types import (
    StoredType,
    encode_type,
    get_type_name,
    parse_stored_type,
)
from virtualds.parsers.hdf5.structure.element_types import HDF5Type, check_elements, parse_type
from virtualds.parsers.hdf5.structure.file_bytes import (
    ByteNotes,
    DeclinedError,
    FileBytes,
    Message,
    read_messages,
)
from virtualds.parsers.hdf5.structure.messages import (
    EXTERNAL_FILES,
    MESSAGE_ERRORS,
    UNLIMITED,
    Dataspace,
    FillState,
    FillValue,
    Filter,
    Layout,
    LayoutClass,
    MessageError,
    SpaceClass,
    TypeClass,
    UnknownFormError,
    parse_layout,
    raise_with_file,
)
from virtualds.parsers.hdf5.structure.object_header import (
    DATASPACE,
    DATATYPE,
    DIMENSION_ONLY,
    EXTERNAL,
    HARD,
    LAYOUT,
    LINK_INFO,
    SHARED,
    SOFT,
    SYMBOL_TABLE,
    Attributes,
    DatasetHeader,
    Link,
    find_string_size,
    read_attributes,
    read_dataset_header,
    read_fill_values,
    read_links,
    read_message_data,
)
from virtualds.source_file import SourceFile, join_url, local_path, normalise_url, scheme_of
from virtualds.stores.block_cache import FetchError
from virtualds.stores.scan_cache import describe_file, open_remote

# ---------------------------------------------------------------------- files


PREFIX_VARIABLES = ("HDF5_VDS_PREFIX", "HDF5_EXTFILE_PREFIX", "HDF5_EXT_PREFIX")
"""Environment variables that change where HDF5 looks for files."""
HDF5_ERRORS = (OSError, RuntimeError, ValueError, OverflowError)
"""Errors that h5py raises for damaged files."""
SPECIFIC_ERRORS = (FileNotFoundError, PermissionError, VirtualdsError, FetchError)
"""Errors with a specific message, which are raised unchanged."""


@contextmanager
def open_hdf5(source: SourceFile) -> Iterator[Any]:
    """Open a file with h5py, and convert errors of HDF5 in the block to `FormatError`."""
    import h5py

    local = scheme_of(source.url) == "file"
    target: Any = local_path(source.url) if local else open_remote(source)
    try:
        with (
            describe_damage(source),
            h5py.File(target, "r", locking="best-effort" if local else None) as file,
        ):
            yield file
    finally:
        if not local:
            target.close()


@contextmanager
def describe_damage(source: SourceFile) -> Iterator[None]:
    """Convert errors of HDF5 in the block to `FormatError`."""
    try:
        yield
    except HDF5_ERRORS as error:
        if damage := find_damage_error(source, error):
            raise damage from damage.__cause__
        raise


def find_damage_error(source: SourceFile, error: BaseException) -> FormatError | None:
    """Return the `FormatError` for an error of HDF5, or None if its message is specific."""
    if isinstance(error, SPECIFIC_ERRORS) or getattr(error, "errno", None) in (EMFILE, ENFILE):
        return None
    damage = FormatError(
        f"{source.url}: HDF5 cannot read it ({error}); the file is damaged or truncated, fetch it "
        f"again"
    )
    # keep system errors as cause, since they may be temporary, unlike errors of HDF5
    damage.__cause__ = error if getattr(error, "errno", None) else None
    return damage


class HDF5Files:
    """A file and the other files to which it refers, each opened once.

    Parameters
    ----------
    source : SourceFile
    notes : ByteNotes, optional
        Records which bytes of the file are structure.
    defers : bool
        Whether to skip large chunk indexes; chunks are looked up when they are read.
    by_library : bool
        Whether to use the links and datasets that the HDF5 library reports.
    """

    def __init__(
        self,
        source: SourceFile,
        notes: ByteNotes | None = None,
        *,
        defers: bool = False,
        by_library: bool = False,
    ) -> None:
        self.source = source
        self.defers, self.by_library = defers, by_library
        self._notes = notes
        self._stack = ExitStack()
        self._open: dict[SourceFile, Any] = {}
        self._bytes: dict[SourceFile, FileBytes] = {}
        self.roots: dict[SourceFile, HDF5Location] = {}
        """The root groups of open files."""

    def __enter__(self) -> HDF5Files:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def open(self, source: SourceFile) -> Any:
        """Return a file opened with h5py, which stays open until `HDF5Files` is closed."""
        if source not in self._open:
            self._open[source] = self._stack.enter_context(open_hdf5(source))
        return self._open[source]

    @property
    def is_alone(self) -> bool:
        """Whether only the bytes of the file itself were read."""
        return not self._open and self._bytes.keys() == {self.source}

    def get_bytes(self, source: SourceFile) -> FileBytes:
        """Return the bytes of a file, which stays open until `HDF5Files` is closed."""
        if source not in self._bytes:
            file_bytes = FileBytes(source, self._notes if source == self.source else None)
            self._stack.callback(file_bytes.close)
            self._bytes[source] = file_bytes
        return self._bytes[source]

    @contextmanager
    def open_temporarily(self, source: SourceFile) -> Iterator[None]:
        """Close the files that the block opens at its end, to limit the number of open files."""
        if source in self._open or source in self._bytes:
            yield
            return
        state = self._stack, {**self._open}, {**self._bytes}, {**self.roots}
        with ExitStack() as self._stack:
            try:
                yield
            finally:
                self._stack, self._open, self._bytes, self.roots = state


ListCandidates = Callable[[str, SourceFile], list[str]]
"""A function that takes a name and the file that contains it, and returns candidate urls."""


def list_beside(name: str, holder: SourceFile) -> list[str]:
    """Return the urls next to the holder, and next to its target if the holder is a link."""
    if scheme_of(holder.url) != "file":
        return [join_url(holder.url, name)]
    folder, real = (os.path.dirname(p(local_path(holder.url))) for p in (str, os.path.realpath))
    return [normalise_url(os.path.join(parent, name)) for parent in dict.fromkeys((folder, real))]


def list_absolute(name: str, holder: SourceFile) -> list[str]:
    """Return the url of an absolute name, or no url for a relative name."""
    return [normalise_url(name)] if os.path.isabs(name) else []


def list_in_working_directory(name: str, holder: SourceFile) -> list[str]:
    """Return the url in the working directory, or no url if the holder is remote."""
    return [normalise_url(name)] if scheme_of(holder.url) == "file" else []


def find_referenced_file(
    name: str,
    holder: SourceFile,
    candidates: Sequence[ListCandidates] = (list_beside, list_in_working_directory),
) -> SourceFile:
    """Return the file that ``holder`` refers to by ``name``.

    HDF5 looks first in the folder of ``holder`` and then in the working directory (HDF5 reference
    manual, `H5Pset_virtual_prefix`, `H5Pset_elink_prefix`), for raw data only in the working
    directory (`H5Pset_efile_prefix`).

    Raises `AccessError` if a remote file refers to a local file, or a file refers to a url;
    `FormatError` if there is no such file; and `UnsupportedError` if an environment variable makes
    HDF5 look elsewhere.
    """
    if variables := [variable for variable in PREFIX_VARIABLES if os.environ.get(variable)]:
        raise UnsupportedError(
            f"{holder.url}: it refers to {name!r}, and {variables[0]} tells HDF5 to look "
            "elsewhere; unset it"
        )
    if "://" in name or (scheme_of(holder.url) != "file" and os.path.isabs(name)):
        raise AccessError(
            f"{holder.url}: it refers to {name!r}, which a file may not do (a url, or from a "
            f"server to a local disk); copy the files beside each other if you trust them"
        )
    for candidate in dict.fromkeys(
        url for list_urls in candidates for url in list_urls(name, holder)
    ):
        try:
            return describe_file(candidate, holder.options)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise AccessError(
                f"{candidate}: {holder.url} refers to it, and it may not be read ({error}); ask "
                f"for read access to it"
            ) from error
    folders = " and ".join(
        list_urls.__name__.removeprefix("list_").replace("_", " ") for list_urls in candidates
    )
    raise FormatError(
        f"{holder.url}: it refers to {name!r}, which is not there (looked {folders}); put it "
        f"beside the file, or leave the variable out with drop_variables"
    )


# ---------------------------------------------------------------------- objects


SCALE_CLASS = b"DIMENSION_SCALE"
"""Value of the attribute CLASS of a scale."""
MAX_TEXT_BYTES = 2**16
"""Maximum size in bytes of a string attribute of a scale; HDF5 writes at most a name."""
NULL_TERMINATED, PADDINGS = (0,), (0, 1, 2)
"""Paddings of fixed-length strings (IV.A.2.d); HDF5 recognises scales only by the first."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HDF5Location:
    """An object of a file: a group, a dataset, or a committed datatype.

    Parameters
    ----------
    files : HDF5Files
    source : SourceFile
        The file that contains the object.
    path : bytes
        The path of the object in that file.
    at : int
        The address of its object header.
    """

    files: HDF5Files
    source: SourceFile
    path: bytes
    at: int

    @cached_property
    def id(self) -> Any:
        """The h5py id of the object."""
        import h5py

        try:
            with describe_damage(self.source):
                return h5py.h5o.open(self.files.open(self.source).id, self.path)
        except KeyError as error:
            remedy = "" if self.path == b"/" else ", or leave it out with drop_variables"
            raise FormatError(
                f"{self.source.url}: HDF5 cannot open {self.path.decode('utf-8', 'replace')!r} "
                f"({error.args[0]}); the file is damaged, fetch it again{remedy}"
            ) from error

    @cached_property
    def attrs(self) -> Any:
        """The attributes as read by h5py."""
        import h5py

        return h5py.AttributeManager(self)

    @property
    def address(self) -> tuple[str, int]:
        """The url and address of the object, which do not depend on the link."""
        return self.source.url, int(self.at)

    @cached_property
    def file(self) -> FileBytes:
        """The bytes of the file that contains it."""
        return self.files.get_bytes(self.source)

    @cached_property
    def messages(self) -> list[Message]:
        """The messages of its object header."""
        return read_messages(self.file, self.at)

    @cached_property
    def kinds(self) -> frozenset[int]:
        """The types of the messages in its object header."""
        return frozenset([message.kind for message in self.messages])

    @cached_property
    def attributes(self) -> Attributes:
        """The attributes, in creation order if it is tracked."""
        return read_attributes(self.file, self.messages, int(self.at))

    @property
    def attribute_names(self) -> list[str]:
        """The names of all attributes, in creation order if it is tracked."""
        return [name.decode("utf-8", "surrogateescape") for name in self.attributes]

    @cached_property
    def links(self) -> list[Link]:
        """The links of a group, in creation order if it is tracked, otherwise by name."""
        if self.files.by_library:
            return _list_links_by_library(self)
        return read_links(self.file, self.messages)

    @cached_property
    def _links_by_name(self) -> dict[bytes, Link]:
        return {link.name: link for link in self.links}

    def find_link(self, name: bytes) -> Link | None:
        """Return the link of a group by its name, or None if there is none."""
        return self._links_by_name.get(name)


@dataclass(frozen=True, eq=False, kw_only=True)
class HDF5Dataset(HDF5Location):
    """A dataset.

    Parameters
    ----------
    name : str
        Its name in its group.
    header : DatasetHeader
    """

    name: str
    header: DatasetHeader

    @cached_property
    def plist(self) -> Any:
        """The creation properties as read by h5py."""
        return self.id.get_create_plist()

    @property
    def space(self) -> Dataspace:
        """The dataspace; HDF5 computes it from the sources of some virtual datasets."""
        return _read_space_by_library(self) if self.is_virtual else self.header.space

    @property
    def rank(self) -> int:
        """The number of axes, without those within elements."""
        return len(self.space.limits)

    @cached_property
    def type(self) -> HDF5Type:
        """The datatype of the elements."""
        return parse_type(self.file, self.header.kind)

    @cached_property
    def stored(self) -> StoredType:
        """The storage of its elements.

        Raises `UnsupportedError` if values of its type are not supported.
        """
        is_named = self.type.kind == TypeClass.ENUM and self._has_committed_type
        name = get_type_name(self.id.get_type()) if is_named else None
        try:
            return parse_stored_type(self.header.kind, name)
        except MESSAGE_ERRORS as error:
            raise_with_file(self.file, error)

    @property
    def _has_committed_type(self) -> bool:
        return any(m.kind == DATATYPE and m.flags & SHARED for m in self.messages)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes, including those within elements; () without a dataspace."""
        return (self.space.shape or ()) + self._inner_axes

    @cached_property
    def _inner_axes(self) -> tuple[int, ...]:
        axes: tuple[int, ...] = ()
        kind = self.type
        while kind.kind == TypeClass.ARRAY:
            axes, kind = axes + kind.dims, kind.base
        return axes

    @property
    def limits(self) -> tuple[int | None, ...]:
        """The maximum length of each axis, or None if it is unlimited."""
        return self.space.limits

    @cached_property
    def unlimited_axes(self) -> tuple[bool, ...]:
        """Whether each axis is unlimited."""
        return tuple(n is None for n in self.limits) + (False,) * len(self._inner_axes)

    @property
    def is_unlimited(self) -> bool:
        """Whether its first axis is unlimited."""
        return self.unlimited_axes[:1] == (True,)

    @cached_property
    def is_scale(self) -> bool:
        """Whether it is a dimension scale."""
        return self._read_text(b"CLASS", NULL_TERMINATED) == SCALE_CLASS

    @property
    def is_bare(self) -> bool:
        """Whether it is a scale that represents a dimension without a variable."""
        return self.is_scale and self._read_text(b"NAME", PADDINGS).startswith(DIMENSION_ONLY)

    def _read_text(self, name: bytes, paddings: tuple[int, ...]) -> bytes:
        """Return an attribute that is a fixed-length string with one of the paddings, or b"".

        `H5DSis_scale` of HDF5 crashes if the attribute has another type.
        """
        attribute = self.attributes.get(name)
        if attribute is None:
            return b""
        size = find_string_size(attribute.kind, paddings)
        if attribute.elements != 1 or not 0 < size <= min(MAX_TEXT_BYTES, len(attribute.data)):
            return b""
        return attribute.data[:size].partition(b"\0")[0]

    @property
    def is_virtual(self) -> bool:
        """Whether it is assembled from other datasets."""
        return self.header.layout.kind == LayoutClass.VIRTUAL

    @property
    def is_external(self) -> bool:
        """Whether its elements are in other files."""
        return EXTERNAL_FILES in self.kinds


def check_fill(location: HDF5Location, element_type: HDF5Type) -> None:
    """Raise an error for a dataset whose fill value refers to objects missing from the heap."""
    if not element_type.has_variable_length:
        return
    for raw in read_fill_values(location.file, location.messages):
        if len(raw) != element_type.size:
            location.file.raise_damaged(f"a fill value has {len(raw)} bytes of {element_type.size}")
        check_elements(location.file, element_type, np.frombuffer(raw, np.uint8)[None])


@dataclass(frozen=True)
class GroupMembers:
    """The members of a group, in creation order if it is tracked.

    Parameters
    ----------
    datasets : dict of str to HDF5Dataset
    groups : dict of str to HDF5Location
    broken : dict of str to VirtualdsError
        The errors of broken links and damaged members.
    """

    datasets: dict[str, HDF5Dataset] = field(default_factory=dict)
    groups: dict[str, HDF5Location] = field(default_factory=dict)
    broken: dict[str, VirtualdsError] = field(default_factory=dict)

    @property
    def scales(self) -> list[HDF5Dataset]:
        """The dimension scales, each with its first name."""
        distinct: dict[tuple[str, int], HDF5Dataset] = {}
        for dataset in self.datasets.values():
            if dataset.is_scale:
                distinct.setdefault(dataset.address, dataset)
        return list(distinct.values())


def make_dataset(name: str, location: HDF5Location) -> HDF5Dataset:
    """Return the dataset at a location."""
    if location.files.by_library:
        header = _read_header_by_library(location)
    else:
        header = read_dataset_header(location.file, location.messages, int(location.at))
    dataset = HDF5Dataset(
        files=location.files,
        source=location.source,
        path=location.path,
        at=location.at,
        name=name,
        header=header,
    )
    # share the cached properties of the location
    dataset.__dict__.update(location.__dict__)
    check_fill(dataset, dataset.type)
    return dataset


# ---------------------------------------------------------------------- members of groups


KNOWN_MESSAGES = frozenset(range(0x17)) - {0x09}
"""Types of messages of groups and datasets (IV.A.2)."""
LINK_COUNT = 0x16
"""Type of the message with the number of links."""
MAX_LINK_DEPTH = 16
"""Maximum number of soft and external links in a row, as in HDF5 (`H5Pset_nlinks`)."""


def open_root(files: HDF5Files, source: SourceFile) -> HDF5Location:
    """Return the root group of a file, always the same object while the file is open."""
    if (root := files.roots.get(source)) is None:
        root = files.roots[source] = _make_root(files, source)
    return root


def _make_root(files: HDF5Files, source: SourceFile) -> HDF5Location:
    if files.by_library:
        # raise the error of HDF5 if it cannot open the file
        files.open(source)
    file = files.get_bytes(source)
    superblock = file.superblock
    if file.unknown:
        file.raise_unsupported(file.unknown)
    if files.by_library:
        return HDF5Location(files=files, source=source, path=b"/", at=superblock.root)
    if superblock.is_being_written:
        file.raise_unsupported("a writer has it open, or died before it closed it")
    if file.is_defined(superblock.driver):
        file.raise_unsupported("a file that is split over others")
    if superblock.end > file.end:
        file.raise_damaged(f"it has {file.end} bytes of {superblock.end}")
    return HDF5Location(files=files, source=source, path=b"/", at=superblock.root)


def read_members(location: HDF5Location, skip: Collection[str] = ()) -> GroupMembers:
    """Return the members of a group, without soft and external links with a name in ``skip``."""
    result = GroupMembers()
    for link in location.links:
        name = link.name.decode("utf-8", "surrogateescape")
        if link.kind != HARD and name in skip:
            continue
        try:
            # the target of a link may not be a file, or be rejected by HDF5
            with describe_damage(location.source):
                member = follow_link(location, link)
                _check_supported(member)
                if is_group(member):
                    result.groups[name] = member
                elif is_dataset(member):
                    result.datasets[name] = make_dataset(name, member)
        except VirtualdsError as error:
            if isinstance(error, DeclinedError) and not location.files.by_library:
                raise
            result.broken[name] = error
    return result


def _check_supported(location: HDF5Location) -> None:
    """Raise `DeclinedError` for an object with an unknown feature, which HDF5 may reject."""
    if location.files.by_library:
        # accessing the id opens the object, which raises an error if it cannot be opened
        _ = location.id
        return
    if unknown := location.kinds - KNOWN_MESSAGES:
        location.file.raise_unsupported(f"a message of type {min(unknown):#x}")
    if LINK_COUNT in location.kinds:
        counts = [m.data[1:] for m in location.messages if m.kind == LINK_COUNT]
        if not all(map(any, counts)):
            location.file.raise_unsupported("an object without links")


def is_group(location: HDF5Location) -> bool:
    """Return whether an object is a group."""
    return not location.kinds.isdisjoint((LINK_INFO, SYMBOL_TABLE))


def is_dataset(location: HDF5Location) -> bool:
    """Return whether an object is a dataset."""
    return not is_group(location) and location.kinds.issuperset((DATASPACE, DATATYPE))


def descend_to(root: HDF5Location, path: str) -> list[HDF5Location]:
    """Return the groups from the root to the group at a path.

    Raises `FileNotFoundError` if there is no such group.
    """
    locations = [root]
    for part in filter(None, path.split("/")):
        link = locations[-1].find_link(part.encode("utf-8", "surrogateescape"))
        location = follow_link(locations[-1], link) if link else None
        if location is None or not is_group(location):
            raise FileNotFoundError(
                f"{root.source.url}: there is no group {path!r}; list its groups with "
                f"virtualds.open_virtual_datatree or ncdump -h"
            )
        locations.append(location)
    return locations


def find_dataset(files: HDF5Files, source: SourceFile, path: bytes) -> HDF5Dataset | None:
    """Return the dataset at a path of a file, or None if there is none."""
    member = _walk_path(open_root(files, source), path, MAX_LINK_DEPTH)
    if member is None or not is_dataset(member):
        return None
    _check_supported(member)
    return make_dataset(path.decode("utf-8", "surrogateescape"), member)


def follow_link(
    location: HDF5Location, link: Link, links_left: int = MAX_LINK_DEPTH
) -> HDF5Location:
    """Return the target of a link.

    Raises `FormatError` if the link is broken.
    """
    path = location.path.rstrip(b"/") + b"/" + link.name
    if link.kind == HARD:
        return HDF5Location(
            files=location.files, source=location.source, path=path, at=link.address
        )
    start, source, target = location, location.source, link.target
    if link.kind == EXTERNAL:
        name, target = _parse_external_link(location, link)
        source = find_referenced_file(os.fsdecode(name), location.source)
        start = open_root(location.files, source)
    if target.startswith(b"/"):
        start = open_root(location.files, start.source)
    # user-defined link types are treated as broken links
    member = _walk_path(start, target, links_left - 1) if target else None
    if member is None:
        raise FormatError(
            f"{location.source.url}: the link {link.name.decode('utf-8', 'replace')!r} leads to "
            f"{target.decode('utf-8', 'replace')!r} of {source.url}, where nothing is; leave it "
            f"out with drop_variables"
        )
    return member


def _walk_path(start: HDF5Location, path: bytes, links_left: int) -> HDF5Location | None:
    """Return the object at a path below a group, or None if there is none."""
    location = start
    for part in path.split(b"/"):
        if part in (b"", b"."):
            continue
        link = location.find_link(part) if is_group(location) else None
        if link is None or links_left < 0:
            return None
        location = follow_link(location, link, links_left)
    return location


def _parse_external_link(location: HDF5Location, link: Link) -> tuple[bytes, bytes]:
    """Return the file name and the path of an external link (IV.A.2.g) of version 0."""
    name, stop, tail = link.target[1:].partition(b"\0")
    path, end, _ = tail.partition(b"\0")
    if link.target[:1] != b"\0" or not (name and stop and path and end):
        location.file.raise_unsupported("an external link of an unknown form")
    return name, path


# ---------------------------------------------------------------------- read by HDF5


def _list_links_by_library(location: HDF5Location) -> list[Link]:
    import h5py

    group = location.id
    # HDF5 raises an error for an order that is not tracked
    tracked = group.get_create_plist().get_link_creation_order()
    for order in (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME)[not tracked :]:
        links: list[Link] = []

        def collect(name: bytes, info: Any, into: list[Link] = links) -> None:
            # copy the fields, since h5py reuses the info object
            is_hard = info.type == HARD
            target = b"" if is_hard else _read_target_by_library(group, name, info.type)
            into.append(Link(name, info.type, info.u if is_hard else 0, target))

        try:
            group.links.iterate(collect, idx_type=order, info=True)
        except (RuntimeError, UnicodeDecodeError):
            # error messages of HDF5 are not always valid UTF-8
            continue
        return links
    path = location.path.decode("utf-8", "replace")
    raise make_damage_error(f"{location.source.url}: HDF5 cannot list the group {path!r}")


def _read_target_by_library(group: Any, name: bytes, kind: int) -> bytes:
    """Return the target of a soft or external link, as in `Link`, or b"" for other links."""
    if kind not in (SOFT, EXTERNAL):
        return b""
    try:
        value = group.links.get_val(name)
    except (KeyError, *HDF5_ERRORS):
        return b""
    return b"\0".join((b"", *value, b"")) if kind == EXTERNAL else bytes(value)


def _read_header_by_library(location: HDF5Location) -> DatasetHeader:
    """Return the header of a dataset as HDF5 reports it."""
    kind = _find_type(location)
    # check the fill value first, since HDF5 reads it from the heap with the properties
    check_fill(location, parse_type(location.file, kind))
    with describe_damage(location.source):
        plist = location.id.get_create_plist()
        filters = (plist.get_filter(i) for i in range(plist.get_nfilters()))
        return DatasetHeader(
            _read_space_by_library(location),
            kind,
            _read_fill_by_library(plist, kind),
            tuple(Filter(number, flags, values) for number, flags, values, _ in filters),
            _find_layout(location, plist),
        )


def _read_space_by_library(location: HDF5Location) -> Dataspace:
    shape = location.id.shape
    space_class = SpaceClass.NULL if shape is None else SpaceClass(bool(shape))
    limits = location.id.get_space().get_simple_extent_dims(True) if shape else ()
    return Dataspace(space_class, shape, tuple(None if n == UNLIMITED else n for n in limits), 0)


def _find_type(location: HDF5Location) -> bytes:
    """Return the Datatype message of a dataset, or if its form is unknown, as encoded by h5py.

    In h5py, the sizes of variable-length types differ from those in the file.
    """
    type_messages = [m for m in location.messages if m.kind == DATATYPE]
    if len(type_messages) != 1:
        location.file.raise_damaged(f"a dataset has {len(type_messages)} types")
    try:
        kind = bytes(read_message_data(location.file, type_messages[0]))
        parse_type(location.file, kind)
    except DeclinedError:
        return encode_type(location.id.get_type())
    return kind


def _read_fill_by_library(plist: Any, kind: bytes) -> FillValue:
    """Return the fill value, with bytes only if the elements do not refer to the heap."""
    state = FillState(plist.fill_value_defined())
    if state != FillState.USER_DEFINED:
        return FillValue(state)
    try:
        stored = parse_stored_type(kind)
    except (UnsupportedError, MessageError, UnknownFormError):
        return FillValue(state)
    if stored.dtype.hasobject or not stored.in_chunks:
        return FillValue(state)
    return FillValue(state, read_storage_fill(plist, stored.dtype).tobytes())


def read_storage_fill(plist: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the user-defined storage fill value as an array of one element."""
    # numpy's dates are opaque bytes in HDF5
    fill_dtype = np.dtype(f"V{dtype.itemsize}") if dtype.kind in "mM" else dtype
    fill = np.zeros((1,), fill_dtype)
    plist.get_fill_value(fill)
    return fill.view(dtype)


def _find_layout(location: HDF5Location, plist: Any) -> Layout:
    """Return the data layout, without the chunk index if its form is unknown."""
    layouts = [m.data for m in location.messages if m.kind == LAYOUT]
    if len(layouts) != 1:
        location.file.raise_damaged(f"a dataset has {len(layouts)} layouts")
    try:
        return parse_layout(bytes(layouts[0]), location.file.offset_size, location.file.length_size)
    except MessageError as error:
        raise_with_file(location.file, error)
    except UnknownFormError:
        layout_class, offset = LayoutClass(plist.get_layout()), location.id.get_offset()
        if layout_class == LayoutClass.CHUNKED:
            return Layout(
                layout_class, dims=(*plist.get_chunk(), location.id.get_type().get_size())
            )
        return Layout(layout_class, None if offset is None else offset - location.file.base)
