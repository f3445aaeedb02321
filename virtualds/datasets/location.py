"""Locations of files and sets, and the parser or format that reads them.

A `Location` is created once, from what a user passes to a function. Its reader is also determined
once: by the name of a parser or format, or by the content of the file.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.metadata import entry_points
from typing import Any

from virtualds.arrays.parser import NativeReader, Parser
from virtualds.errors import (
    LIBRARY_ERRORS,
    FormatError,
    UnsupportedError,
    format_details,
    without_secrets,
)
from virtualds.formats import Format, Parts, is_never_recognised
from virtualds.formats.zarr import FOLDER as SET_FOLDER
from virtualds.formats.zarr import MARKER as SET_MARKER
from virtualds.formats.zarr import STORE_MARKERS, ZMETADATA
from virtualds.importing import LazyFunction, LazyTable
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile, StorageOptions, join_path, normalise_url, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy
from virtualds.stores.archive import check_uncompressed, is_tar, is_zip
from virtualds.stores.block_cache import (
    FIRST_PAGES,
    PAGE_SIZE,
    HeldObject,
    MemoryBytes,
    MemoryFile,
    make_options,
)
from virtualds.stores.fence import is_claim
from virtualds.stores.listing import list_folder_names
from virtualds.stores.object_access import extract_options
from virtualds.stores.scan_cache import cache_scan
from virtualds.stores.store import Store, StoreError

# ---------------------------------------------------------------------- parsers and formats

ICECHUNK_MARKERS = ("repo", "refs/branch.main/ref.json")
"""Files that mark a folder as an Icechunk repository, of version 2 and of version 1."""
ICECHUNK_FOLDERS = ("snapshots", "transactions", "chunks", "manifests")
"""The folders of a repository (Icechunk specification, "File layout")."""
WITH_ICECHUNK = partial(
    LazyFunction,
    needs=(
        "icechunk: it needs Python 3.12 or newer, and icechunk 2.0.5 or newer",
        "pip install --upgrade icechunk"
        if sys.version_info >= (3, 12)
        else "pip install icechunk in an environment of such a Python",
    ),
)
PLAIN_ZARR = Parser(
    "zarr",
    # no suffix: a folder named .zarr may also be a reference set
    (),
    LazyFunction("virtualds.formats.zarr_manifests.plain_zarr:detect"),
    LazyFunction("virtualds.formats.zarr_manifests.plain_zarr:read"),
    markers=STORE_MARKERS,
    natives=(NativeReader("zarr", engine="zarr", remote=True),),
)
"""Plain Zarr stores, which modules of `virtualds.formats` read."""

PARSERS = LazyTable[Parser](
    "virtualds.parsers.hdf5:PARSER",
    "virtualds.parsers.netcdf3:PARSER",
    "virtualds.parsers.flat_arrays:NPY",
    "virtualds.parsers.flat_arrays:NPZ",
    "virtualds.parsers.flat_arrays:SAFETENSORS",
    "virtualds.parsers.tiff:PARSER",
    "virtualds.parsers.fits:PARSER",
    "virtualds.parsers.grib:PARSER",
    "virtualds.parsers.grib.index:PARSER",
    "virtualds.parsers.dmrpp:PARSER",
    "virtualds.parsers.hdf4:PARSER",
    PLAIN_ZARR,
)
"""The source formats; to add one, write one module with a `Parser`, and one line here."""


PLUGIN_GROUP = "virtualds.parsers"
"""The entry point group under which other packages register parsers."""


PARSER_ERRORS = (*LIBRARY_ERRORS, RuntimeError, SyntaxError, ValueError)
"""Errors of plugins, which must not prevent other files from opening."""


@cache
def load_plugins() -> tuple[Parser, ...]:
    """Import and return the parsers of other packages; warn about those that fail."""
    points = entry_points(group=PLUGIN_GROUP)
    # only an import of all our parsers shows whether a plugin takes one of their names
    used_names = {parser.name for parser in PARSERS} if points else set()
    parser_of_name: dict[str, Parser] = {}
    for point in points:
        try:
            parser = point.load()
        except PARSER_ERRORS as error:
            reason = f"it cannot be imported ({type(error).__name__}: {error})"
        else:
            if isinstance(parser, Parser) and parser.name not in used_names:
                parser_of_name[parser.name] = parser
                used_names.add(parser.name)
                continue
            reason = f"it is {parser!r:.80}, not a virtualds.Parser"
            if isinstance(parser, Parser):
                reason = f"there is a parser {parser.name!r} already"
        package = point.dist.name if point.dist is not None else "an unknown package"
        warnings.warn(
            f"parser {point.name!r} of {package} ({point.value}): {reason}; it is left out, update "
            f"or remove that package",
            stacklevel=3,
        )
    return tuple(parser_of_name.values())


def is_recognised(parser: Parser, head: bytes) -> bool:
    """Return whether a parser of another package recognises the first bytes of a file.

    If the parser fails, this warns, and returns False.
    """
    try:
        return bool(parser.detect(head))
    except PARSER_ERRORS as error:
        warnings.warn(
            f"parser {parser.name!r}: its detect() failed ({type(error).__name__}: {error}); "
            f"update or remove the package that provides it",
            stacklevel=2,
        )
        return False


SUBCHUNK, INLINE_THRESHOLD = CHANGES = "subchunk", "inline_threshold"
"""Options of every format whose chunks `virtualds.writing` splits or stores inline."""

ZARR_V3 = Format(
    "zarr-v3",
    (".zarr",),
    LazyFunction("virtualds.formats.zarr_manifests.snapshots:detect"),
    LazyFunction("virtualds.formats.zarr_manifests.snapshots:read"),
    LazyFunction("virtualds.formats.zarr_manifests:write"),
    read_version=LazyFunction("virtualds.formats.zarr_manifests:read_version"),
    compact=LazyFunction("virtualds.formats.zarr_manifests:compact"),
    markers=(SET_MARKER,),
    first_written=(SET_FOLDER,),
    choices=("manifest", "relative_paths", *CHANGES),
    history=LazyFunction("virtualds.formats.zarr_manifests.snapshots:read_history"),
    expire=LazyFunction("virtualds.formats.zarr_manifests.snapshots:expire"),
    parts=Parts(
        LazyFunction("virtualds.formats.zarr_manifests:begin_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:write_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:commit_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:abandon_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:is_table_inside"),
    ),
)
"""The format that can store every array, and also the package's own metadata."""

FORMATS: tuple[Format, ...] = (
    Format(
        "kerchunk-json",
        (".json", ".json.gz", ".json.zst"),
        LazyFunction("virtualds.formats.kerchunk.json:detect"),
        LazyFunction("virtualds.formats.kerchunk.json:read"),
        LazyFunction("virtualds.formats.kerchunk.json:write"),
        read_version=LazyFunction("virtualds.formats.kerchunk.json:read_version"),
        choices=("templates", "relative_paths", "zarr_format", *CHANGES),
        to_dict=LazyFunction("virtualds.formats.kerchunk.json:to_dict"),
        obstacles=LazyFunction("virtualds.formats.zarr.write_plan:list_obstacles_of_kerchunk"),
    ),
    Format(
        "kerchunk-parquet",
        (".parquet", ".parq"),
        LazyFunction("virtualds.formats.kerchunk.parquet:detect"),
        LazyFunction("virtualds.formats.kerchunk.parquet:read"),
        LazyFunction("virtualds.formats.kerchunk.parquet:write"),
        read_version=LazyFunction("virtualds.formats.kerchunk.parquet:read_version"),
        compact=LazyFunction("virtualds.formats.kerchunk.parquet:compact"),
        markers=(ZMETADATA,),
        choices=("record_size", "relative_paths", *CHANGES),
        obstacles=LazyFunction("virtualds.formats.zarr.write_plan:list_obstacles_of_kerchunk"),
    ),
    ZARR_V3,
    Format(
        "icechunk",
        (".icechunk",),
        LazyFunction("virtualds.formats.icechunk:detect"),
        WITH_ICECHUNK("virtualds.formats.icechunk.references:read"),
        WITH_ICECHUNK("virtualds.formats.icechunk.write:write"),
        read_version=WITH_ICECHUNK("virtualds.formats.icechunk.write:read_version"),
        compact=WITH_ICECHUNK("virtualds.formats.icechunk.write:compact"),
        markers=ICECHUNK_MARKERS,
        first_written=ICECHUNK_FOLDERS,
        choices=(
            *("message", "metadata", "branch", "create_branch", "config"),
            *("rectilinear", SUBCHUNK),
        ),
        history=WITH_ICECHUNK("virtualds.formats.icechunk.references:read_history"),
        expire=LazyFunction("virtualds.formats.icechunk:expire"),
        version_choices=("branch", "create_branch", "config", "staging_folder"),
        library="icechunk",
        read_object=WITH_ICECHUNK("virtualds.formats.icechunk.references:read_object"),
        holds=WITH_ICECHUNK("virtualds.formats.icechunk.write:is_occupied"),
        obstacles=LazyFunction("virtualds.formats.zarr.write_plan:list_obstacles_of_icechunk"),
    ),
    Format(
        "cfa",
        (".nca",),
        is_never_recognised,
        LazyFunction("virtualds.datasets.aggregation.writing:read"),
        LazyFunction("virtualds.datasets.aggregation.writing:write"),
        read_version=LazyFunction("virtualds.datasets.aggregation.writing:read_version"),
        choices=("relative_paths",),
        obstacles=LazyFunction("virtualds.datasets.aggregation.writing:list_obstacles"),
        has_rewritten_chunks=False,
        is_set=LazyFunction("virtualds.datasets.open:is_aggregation_file"),
    ),
)


def format_of_object(opened: Any) -> Format | None:
    """Return the format whose library an object belongs to, or None for a path or other object."""
    library = type(opened).__module__.partition(".")[0]
    return next((format_ for format_ in FORMATS if format_.library == library), None)


# ---------------------------------------------------------------------- objects instead of paths
# Objects that users pass instead of paths, and the file or set that each refers to.
#
# An open file with a path or url stands for the file of that name, so that references to it can be
# written. Bytes, other open files and dicts of references get a url that is valid only in this
# process.


LOCAL = (None, "file", "local")
"""Protocols of paths."""

FILESYSTEM_OPTIONS = {
    "fo",
    "target_protocol",
    "target_options",
    "remote_protocol",
    "remote_options",
    "fs",
} | {*("ref_storage_args", "template_overrides")}
"""Options of fsspec's ``reference`` filesystem that determine what it opens."""
IGNORED_OPTIONS = {
    "simple_templates",
    "max_gap",
    "max_block",
    "cache_size",
    "asynchronous",
    "loop",
} | {*("lazy", "batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time")}
"""Options of the same filesystem that only tune how it works, and are ignored."""


def resolve_object(given: Any, options: Mapping[str, Any] | None = None) -> Location | None:
    """Return the location of an object, or None for a path and for objects that are not files.

    The object may be a ``reference://`` url, bytes, an open binary file, a file, mapper or
    filesystem of fsspec, or a dict of kerchunk references. In that case ``options`` are for the
    files that the dict refers to.

    Examples
    --------
    >>> resolve_object(b"CDF").url.startswith("held://")
    True
    """
    if isinstance(given, str) and scheme_of(given) == "reference":
        return _open_reference_url(given, options or {})
    if isinstance(given, str | os.PathLike):
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return _register_object(MemoryBytes(given))
    if (filesystem := _filesystem_of(given)) is not None:
        return _resolve_fsspec_object(given, filesystem, options)
    # datasets of xarray are mappings, too
    if isinstance(given, dict):
        return _register_references(given, options)
    return _resolve_open_file(given)


def _register_object(held: HeldObject, policy: AccessPolicy = DEFAULT_POLICY) -> Location:
    """Return the location of an object that is kept in memory."""
    return Location(held.url, make_options(held), policy=policy)


# ---------------------------------------------------------------------- open files


def _resolve_open_file(given: Any) -> Location | None:
    """Return the location of an open Python file, or None if the object is not one."""
    if not (hasattr(given, "read") and hasattr(given, "seek")):
        return None
    if isinstance(given, io.TextIOBase):
        raise TypeError(f"{given!r:.80} is open as text; open it in mode 'rb'")
    if (path := _find_path(given)) is not None:
        return Location(normalise_url(path))
    if isinstance(given, io.BytesIO):
        # a snapshot: the user may change or close it later
        return _register_object(MemoryBytes(given.getbuffer(), "BytesIO"))
    return _register_object(MemoryFile(given))


def _find_path(file: Any) -> str | None:
    """Return the path of an open local file, or None if the path no longer leads to that file."""
    name = getattr(file, "name", None)
    if not isinstance(file, io.BufferedReader | io.FileIO | io.BufferedRandom):
        return None
    if not isinstance(name, str | os.PathLike):
        return None
    try:
        is_same_file = os.path.samestat(os.fstat(file.fileno()), os.stat(name))
    except OSError:
        return None
    return os.fspath(name) if is_same_file else None


# ---------------------------------------------------------------------- fsspec


def _filesystem_of(given: Any) -> Any:
    """Return the filesystem of an fsspec object, or None for other objects."""
    # if fsspec has not been imported, the object is not from fsspec
    spec: Any = sys.modules.get("fsspec.spec")
    if spec is None:
        return None
    if isinstance(given, spec.AbstractFileSystem):
        return given
    found = getattr(given, "fs", None)
    return found if isinstance(found, spec.AbstractFileSystem) else None


def _resolve_fsspec_object(
    given: Any, filesystem: Any, options: Mapping[str, Any] | None
) -> Location | None:
    """Return the location of a file, mapper or filesystem of fsspec, or None for other objects."""
    path = getattr(given, "root", None) if hasattr(given, "root") else getattr(given, "path", None)
    if _is_reference_filesystem(filesystem) and not (path or "").strip("/"):
        positional = dict(zip(("fo",), filesystem.storage_args, strict=False))
        return _open_references({**positional, **filesystem.storage_options}, options)
    if given is filesystem:
        raise TypeError(
            f"{type(given).__name__}: a filesystem is not a file; give its url, or a mapper of it "
            f"(fs.get_mapper(path)); only a ReferenceFileSystem is a set by itself"
        )
    if (location := _find_location(given, filesystem, path)) is not None:
        return location
    return _resolve_open_file(given)


def _is_reference_filesystem(filesystem: Any) -> bool:
    """Return whether an fsspec filesystem is a ``ReferenceFileSystem``."""
    protocol = filesystem.protocol
    return "reference" in ((protocol,) if isinstance(protocol, str) else protocol)


def _find_location(given: Any, filesystem: Any, path: Any) -> Location | None:
    """Return the location of a path, or None if fsspec would open another file by its url."""
    import fsspec

    if not isinstance(path, str) or _is_reference_filesystem(filesystem):
        return None
    if getattr(given, "compression", None):
        # the object returns different bytes from the file of this name
        return None
    url, options = filesystem.unstrip_protocol(path), dict(filesystem.storage_options)
    try:
        found_again = fsspec.core.url_to_fs(url, **options)[0]
    except (ImportError, TypeError, ValueError):
        return None
    if found_again != filesystem:
        return None
    return Location(normalise_url(url), extract_options(filesystem, url))


# ---------------------------------------------------------------------- references


def _open_reference_url(url: str, options: Mapping[str, Any]) -> Location:
    """Return the location of the set that a ``reference://`` or ``reference::URL`` url opens."""
    _, _, rest = url.partition("::")
    given = {**options, **({"fo": rest} if rest else {})}
    path = url.partition("::")[0].removeprefix("reference").strip(":/")
    if path or "fo" not in given:
        raise ValueError(
            f"{url}: give the set as storage_options={{'fo': ...}}, a url or a dict, and a group "
            f"in it with group="
        )
    return _open_references(given, None)


def _open_references(given: Mapping[str, Any], options: Mapping[str, Any] | None) -> Location:
    """Return the location of the set that options of fsspec's ``reference`` filesystem open."""
    if other := sorted(given.keys() - FILESYSTEM_OPTIONS - IGNORED_OPTIONS):
        raise UnsupportedError(
            f"reference://: virtualds does not know the options {other} of fsspec's filesystem of "
            f"references, which has {sorted(FILESYSTEM_OPTIONS)}; open the set by its url or as a "
            f"dict"
        )
    policy = _find_policy(given, options)
    if isinstance(given["fo"], Mapping):
        document = given["fo"]
        if overrides := given.get("template_overrides"):
            document = {**document, "templates": {**document.get("templates", {}), **overrides}}
        return _register_references(document, None, policy)
    if given.get("template_overrides"):
        raise UnsupportedError(
            "reference://: template_overrides need the references as a dict; give fo= the loaded "
            "JSON, or change the references with ds.virtual.rename_paths"
        )
    access = given.get("target_options") or given.get("ref_storage_args")
    fo, protocol = given["fo"], given.get("target_protocol")
    needs_protocol = isinstance(fo, str) and protocol not in LOCAL and scheme_of(fo) == "file"
    url = normalise_url(f"{protocol}://{fo}" if needs_protocol else fo)
    return Location(url, StorageOptions.of(access), policy=policy)


def _find_policy(given: Mapping[str, Any], options: Mapping[str, Any] | None) -> AccessPolicy:
    """Return the policy for opening the files of a set, from the options of fsspec's filesystem."""
    protocol, access = given.get("remote_protocol"), given.get("remote_options")
    if (filesystem := given.get("fs")) is not None:
        if isinstance(filesystem, Mapping):
            raise UnsupportedError(
                "reference://: virtualds takes one filesystem for the files of a set, and fs= has "
                "several; open the set by its url or as a dict, with storage_options="
            )
        protocols = filesystem.protocol
        protocol = protocols if isinstance(protocols, str) else protocols[0]
        access = filesystem.storage_options
    file_options = StorageOptions.of(options if options is not None else access)
    return AccessPolicy(options=file_options, protocol=None if protocol in LOCAL else protocol)


def _register_references(
    document: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    policy: AccessPolicy | None = None,
) -> Location:
    """Register a dict of references as a set of this process, and return its location."""
    text = json.dumps(dict(document), default=_to_json).encode()
    return _register_object(
        MemoryBytes(text, "references"), policy or AccessPolicy(options=StorageOptions.of(options))
    )


def _to_json(value: Any) -> Any:
    """Convert values of reference dicts that JSON lacks: bytes and numpy numbers."""
    if isinstance(value, bytes):
        # as in fsspec, the text of an inline value may be given as bytes
        is_encoded = value.startswith(b"base64:")
        return value.decode() if is_encoded else f"base64:{base64.b64encode(value).decode()}"
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"references hold {type(value).__name__}, which is neither JSON nor bytes; give a dict of "
        f"kerchunk references"
    )


# ---------------------------------------------------------------------- detection
# Detecting the parser or format of a file or folder: by the suffix of a set, or by its content.
#
# For remote files, the bytes that are always needed are requested first, then, in one round, all
# others that may be needed: a request takes as long as the transfer of hundreds of kilobytes.


DetectedReader = tuple[Parser | Format, SourceFile]
"""The reader of a file or folder, and the source that it reads."""

ARCHIVES = {"zip": is_zip, "tar": is_tar}
"""Functions that recognise archives by their first bytes, by the scheme of the files in them."""

MOST_COMMON, *ALL_OTHERS = PARSERS.entries
READERS = LazyTable[Parser | Format](MOST_COMMON, *FORMATS, *ALL_OTHERS)
"""Every reader: HDF5, the format of most files, comes first."""

FOLDER_READERS: tuple[Parser | Format, ...] = (*FORMATS, PLAIN_ZARR)
"""Readers of folders, reference sets first, since some of them also look like Zarr stores."""

SET_SUFFIXES = tuple(suffix for format_ in FORMATS for suffix in format_.suffixes)
"""Suffixes of the names of reference sets."""

HEAD_BYTES = 4096
"""Number of first bytes of a file that are read to detect its format; most formats need no more."""


@dataclass(frozen=True)
class _Candidate:
    """A file or folder whose reader is being detected, and its store."""

    url: str
    options: StorageOptions | None
    store: Store

    def find_by_marker(self, tried: Sequence[str] = ()) -> DetectedReader | None:
        """Return the reader of a folder, or None; files in ``tried`` were checked before.

        If no reader recognises it, and access to one of its files is denied, that error is raised.
        """
        # plugins are imported only if no other reader recognises the folder
        own: Callable[[], Sequence[Parser | Format]] = lambda: FOLDER_READERS  # noqa: E731
        denied: PermissionError | None = None
        for list_readers in (own, load_plugins):
            try:
                if (found := self.find_by_markers_of(list_readers(), tried)) is not None:
                    return found
            except PermissionError as error:
                denied = denied or error
        if denied is not None:
            raise denied
        return None

    def find_by_markers_of(
        self, readers: Sequence[Parser | Format], tried: Sequence[str] = ()
    ) -> DetectedReader | None:
        """Return the first of some readers that recognises a folder, or None if none does."""
        names = list(dict.fromkeys(name for reader in readers for name in reader.markers))
        if names and (listed := list_folder_names(self.url, self.options)) is not None:
            names = [name for name in names if name.partition("/")[0] in listed]
        return self.find_by_files(readers, [name for name in names if name not in tried])

    def find_by_files(
        self, readers: Sequence[Parser | Format], names: Sequence[str]
    ) -> DetectedReader | None:
        """Return the first reader that recognises a folder by one of some files in it, or None."""
        # local files are read one by one, remote files concurrently
        read: Iterable[bytes | PermissionError | None] = map(self._read_marker, names)
        if self.store.request_limits.max_requests:
            read = fetch_many(names, lambda name: self.url, self._read_marker)
        denied: PermissionError | None = None
        for name, marker in zip(names, read, strict=True):
            if isinstance(marker, PermissionError):
                denied = marker
            for reader in readers:
                if isinstance(marker, bytes) and name in reader.markers and reader.detect(marker):
                    return reader, SourceFile(self.url.rstrip("/"), options=self.options)
        if denied is not None:
            raise denied
        return None

    def _read_marker(self, name: str) -> bytes | PermissionError | None:
        """Return a file of a folder, None if it does not exist, or the error that denies access."""
        url = join_path(self.url, name)
        try:
            return self.store.read_all(url, self.options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except PermissionError as error:
            # the user named the folder, not this file
            denied = type(error)(str(error).replace(url, self.url.rstrip("/")))
            denied.__cause__ = error
            return denied

    def check_finished(self) -> None:
        """Raise `FileNotFoundError` for a folder in which a set was begun but not finished."""
        is_unfinished = False
        for name in (name for format_ in FORMATS for name in format_.first_written):
            with suppress(OSError):
                is_unfinished |= bool(
                    self.store.list_files(join_path(self.url, name), self.options)
                )
        for name in (name for format_ in FORMATS for name in format_.markers):
            with suppress(OSError):
                is_unfinished |= is_claim(
                    self.store.read_all(join_path(self.url, name), self.options)
                )
        if is_unfinished:
            raise FileNotFoundError(
                f"{self.url}: this folder is not a complete reference set; if a writer is creating "
                f"the set, open it later; if that writer has failed, create the set again; else "
                f"check the path"
            )


def detect_reader(url: str, options: StorageOptions | None) -> DetectedReader:
    """Return the reader of a file, a folder, or the only content of an archive."""
    store, path = find_store(url), url.rstrip("/")
    markers: tuple[str, ...] = ()
    if scheme_of(url) != "file":
        # if the suffix of a remote folder is that of a format, the marker of this format is tried
        # first; checking a local folder takes no time
        named = (f.markers[:1] for f in FORMATS if f.markers and path.endswith(f.suffixes))
        markers = next(named, ())
    candidate = _Candidate(url, options, store)
    try:
        if markers and (found := candidate.find_by_files(FOLDER_READERS, markers)) is not None:
            return found
    except PermissionError:
        # servers may deny access to files that do not exist; another request shows it below
        markers = ()
    head = b""
    try:
        source, head = store.read_head(url, options, HEAD_BYTES)
        reader = _find_by_bytes(head)
        is_hdf5 = reader is READERS[0]
        if not is_hdf5 and len(head) == HEAD_BYTES != source.size:
            source, head = store.read_head(url, options, FIRST_PAGES * PAGE_SIZE)
            reader = _find_by_bytes(head)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        # object stores have no folders, and may deny access to them
        if (found := candidate.find_by_marker(markers)) is not None:
            return found
        if not isinstance(error, FileNotFoundError):
            candidate.check_finished()
        raise
    if reader is not None:
        return add_options(reader, source, options)
    for scheme, is_archive in ARCHIVES.items():
        if is_archive(head):
            return _find_only_content(f"{scheme}://::{url}", options)
    # web servers return a page for a folder
    is_page = head.lstrip()[:1] == b"<"
    if (not head or is_page) and (found := candidate.find_by_marker(markers)) is not None:
        return found
    if not head:
        candidate.check_finished()
    for parser in load_plugins():
        if not parser.markers and is_recognised(parser, head):
            return parser, source
    check_first_bytes(url, head)
    check_uncompressed(url, head, options)
    if head.lstrip()[:1] == b"{":
        raise FormatError(
            f"{url}: the file is JSON, but not a reference set; check the path, or give a set that "
            f"kerchunk or virtualds has written"
        )
    names = ", ".join(reader.name for reader in (*READERS, *load_plugins()))
    raise FormatError(
        f"{url}: begins with {head[:8]!r}, which no known format does; name the format with "
        f"parser=, or open the file with one of xarray's other engines\n  known: {names}"
    )


def add_options(
    reader: Parser | Format, source: SourceFile, options: StorageOptions | None
) -> DetectedReader:
    """Pass the access options on to a set, whose files may need them even if the set does not."""
    return reader, source._replace(options=options) if isinstance(reader, Format) else source


def check_first_bytes(url: str, head: bytes) -> None:
    """Raise an error for an empty file, or a web page in place of a file, by its first bytes."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:200].lower()
    if not head:
        raise FormatError(f"{url}: the file is empty; fetch it again, or write it again")
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        raise FormatError(
            f"{url}: the file is an HTML page, such as a server shows in place of a file (a login, "
            f"an error, a list of files); check the url, and log in with storage_options"
        )
    if text.startswith((b"<?xml", b"<error")):
        raise FormatError(
            f"{url}: the file is an XML document, such as a server sends in place of a file (an "
            f"error); open it in a browser to see what it says, check the url and storage_options"
        )


def _find_by_bytes(head: bytes) -> Parser | Format | None:
    """Return the parser or format that recognises the first bytes of a file, or None."""
    return next((r for r in READERS if not r.markers and r.detect(head)), None)


def _find_only_content(root: str, options: StorageOptions | None) -> DetectedReader:
    """Return the reader of the only file or folder in an archive, and its source."""
    # the archive may have been replaced since, so its members are listed again
    candidate = _Candidate(root, options, find_store(root))
    names = [file.path for file in candidate.store.list_files(root, options)]
    if (found := candidate.find_by_marker()) is not None:
        return found
    folders = {name.partition("/")[0] for name in names}
    if len(names) == 1 or (len(folders) == 1 and all("/" in name for name in names)):
        only = names[0] if len(names) == 1 else folders.pop()
        return detect_reader(join_path(root, only), options)
    scheme, _, url = root.partition("::")
    if not names:
        raise FormatError(f"{url}: the archive is empty; fetch it again, or pack it again")
    raise FormatError(
        format_details(
            f"{url}: the archive holds {len(names)} files; name one of them, such as "
            f"{scheme}{names[0]}::{url}",
            names,
        )
    )


# ---------------------------------------------------------------------- locations


@contextmanager
def explain_both_options(target: Any) -> Iterator[None]:
    """Name the options for files and for a set in errors about credentials, if both exist."""
    try:
        yield
    except PermissionError as error:
        if target is not None and "storage_options" in str(error):
            error.add_note(
                f"storage_options are for the files that are opened, target_options for the set "
                f"{without_secrets(str(target))}"
            )
        raise


@dataclass(frozen=True, repr=False)
class Location:
    """The location of a file or a set: an absolute url with scheme, and access options.

    ``opened`` is an object of a format's library, such as an Icechunk session; ``url`` is then its
    name. ``given`` is the location as the user wrote it. ``policy`` is how the files of a set are
    opened, if an object or a ``reference://`` url determines it.

    Examples
    --------
    >>> Location.of("s3://bucket/2001.nc", {"anon": True})
    Location('s3://bucket/2001.nc', <options ['anon']>)
    """

    url: str
    options: StorageOptions | None = None
    opened: Any = None
    given: str = ""
    policy: AccessPolicy = DEFAULT_POLICY

    def __repr__(self) -> str:
        return f"Location({without_secrets(self.url)!r}, {self.options!r})"

    @classmethod
    def of(cls, given: Any, options: Mapping[str, Any] | None = None) -> Location:
        """Return the location of what a user passes: a path, a url, or an object."""
        if (location := resolve_object(given, options)) is not None:
            return replace(location, given=given if isinstance(given, str) else location.url)
        is_path = isinstance(given, str | os.PathLike)
        if is_path or (format_ := format_of_object(given)) is None:
            return cls.of_url(given, options)
        name = f"<{type(given).__name__} of {format_.name}>"
        return cls(name, StorageOptions.of(options), given, name)

    @classmethod
    def of_url(
        cls, given: str | os.PathLike[str], options: Mapping[str, Any] | None = None
    ) -> Location:
        """Return the location of a path or url; a `TypeError` is raised for other objects."""
        return cls(normalise_url(given), StorageOptions.of(options), None, os.fspath(given))

    @property
    def target(self) -> Any:
        """The url, or the object, that formats write to."""
        return self.url if self.opened is None else self.opened

    @property
    def format(self) -> Format | None:
        """The format whose library the object belongs to, or None for a url."""
        return None if self.opened is None else format_of_object(self.opened)

    @cached_property
    def is_local(self) -> bool:
        """Whether it is a file or folder on this machine."""
        return scheme_of(self.url) == "file"

    def cache_scan(self) -> AbstractContextManager[None]:
        """Cache what is fetched of a remote file until the end of the block."""
        return nullcontext() if self.is_local else cache_scan(self.url, self.options)


# ---------------------------------------------------------------------- readers


def reader_of(location: Location, name: str | None = None) -> DetectedReader:
    """Return the named reader, or the one that recognises the file or folder, and its source.

    A file is recognised by its first bytes, a folder by its metadata file. Raises `ValueError` for
    an unknown name, and `FormatError` for an unknown format.
    """
    if not name:
        return detect_reader(location.url, location.options)
    url, options = location.url, location.options
    # plugins are imported only if needed, and cannot replace a parser of this package
    readers_by_priority = (
        reader for readers in (lambda: READERS, load_plugins) for reader in readers()
    )
    reader = next((r for r in readers_by_priority if r.name == name), None)
    if reader is None:
        known = sorted(reader.name for reader in (*READERS, *load_plugins()))
        raise ValueError(f"parser={name!r}: give one of {', '.join(map(repr, known))}")
    if reader.markers:
        return reader, SourceFile(url, options=options)
    return add_options(reader, find_store(url).describe(url, options), options)


def format_for(location: Location, name: str | None = None) -> Format:
    """Return the format by name, else by the object's library, by suffix, or of the existing set.

    Raises `ValueError` if there is no such format, or none can be inferred.
    """
    if name is not None:
        known = {format_.name: format_ for format_ in FORMATS}
        if name not in known:
            raise ValueError(f"format={name!r}: give one of {', '.join(map(repr, sorted(known)))}")
        return known[name]
    path = location.url.rstrip("/")
    by_suffix = next((format_ for format_ in FORMATS if path.endswith(format_.suffixes)), None)
    if (found := location.format or by_suffix or find_existing_format(location)) is not None:
        return found
    suffixes = (f"{format_.name} ({', '.join(format_.suffixes)})" for format_ in FORMATS)
    raise ValueError(
        f"{location.url}: its name has no suffix of a format; pass format=, or give it a "
        f"suffix of {', '.join(suffixes)}"
    )


def find_existing_format(location: Location) -> Format | None:
    """Return the format of the existing set, or None if there is none."""
    if location.format is not None:
        return location.format
    try:
        found, _ = set_reader_of(location)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, StoreError):
        return None
    except (FormatError, UnsupportedError):
        return None
    return found if isinstance(found, Format) else None


def set_reader_of(location: Location, name: str | None = None) -> DetectedReader:
    """Return the reader as `reader_of` does, but a format for a source file that is also a set.

    To find out, this reads the structure of the source file.
    """
    reader, source = reader_of(location, name)
    if not name and isinstance(reader, Parser):
        for format_ in FORMATS:
            if format_.is_set is not None and format_.is_set(reader, source):
                return add_options(format_, source, location.options)
    return reader, source


def find_set_above(location: Location) -> tuple[Location, str]:
    """Return the set that contains a path, and the path of the group in it.

    ``refs.zarr/model/daily`` is the group ``model/daily`` of ``refs.zarr``. The name of the set
    must end in the suffix of a format. The group of any other path is ``""``.
    """
    parts = location.url.rstrip("/").split("/")
    if location.opened is None and "::" not in location.url:
        for number in range(len(parts) - 1, 0, -1):
            if parts[number - 1].endswith(SET_SUFFIXES):
                found = replace(location, url="/".join(parts[:number]))
                if find_existing_format(found) is not None:
                    return found, "/".join(parts[number:])
    return location, ""


def check_content(location: Location, reader: Parser | Format) -> None:
    """Raise a clear error for empty and compressed files and web pages, after a reader failed."""
    try:
        _, head = find_store(location.url).read_head(location.url, location.options, HEAD_BYTES)
    except OSError:
        return
    check_first_bytes(location.url, head)
    if isinstance(reader, Parser):
        check_uncompressed(location.url, head, location.options)


def is_set_folder(url: str) -> bool:
    """Return whether a folder is a reference set, by its metadata file."""
    return _Candidate(url, None, find_store(url)).find_by_markers_of(FORMATS) is not None
