"""Resolve and check the files to which a reference set refers.

A reference set may come from an untrusted source, so its urls are resolved and checked before any
file is opened. References that must not be written to a set are rejected before a format writes
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import is_
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE, ReferenceTable, drop_repeated_tables
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import iterate_other_parts, iterate_parts
from virtualds.errors import (
    AccessError,
    AccessWarning,
    FormatError,
    ReadError,
    UnsupportedError,
    format_count,
    warn_user,
    without_secrets,
)
from virtualds.formats import make_unreachable_error
from virtualds.source_file import (
    OBJECT_SCHEME,
    SourceFile,
    StorageOptions,
    describe_mismatch,
    host_of,
    is_in_folder,
    scheme_of,
)
from virtualds.stores import find_store
from virtualds.stores.access_rules import (
    DEFAULT_POLICY,
    AccessPolicy,
    is_same_host,
    is_trusted,
    resolve_url,
)
from virtualds.stores.block_cache import check_permanent
from virtualds.stores.local import FOLDERS_OPTION

KEEP_QUERY = "keep_query"
"""The choice of every format that allows urls with secrets to be written."""
IsKnown = Callable[[ReferenceTable], bool]
"""A function that returns whether a table is in the target set already, and thus checked."""


def knows_no_table(table: ReferenceTable) -> bool:
    """Return False, since a new set has no tables."""
    return False


def check_admissible(
    group: ManifestGroup,
    target: str,
    *,
    keep_query: bool = False,
    is_known: IsKnown = knows_no_table,
) -> None:
    """Raise an error for a group that refers to objects of this process, or to urls with secrets.

    With ``keep_query``, urls may contain a password, or a signature or token in their query.
    """
    arrays = group.list_arrays()
    check_permanent(_iterate_files(arrays, is_known), target)
    if not keep_query:
        check_unsigned(arrays, target, is_known)


def check_unsigned(arrays: Iterable[Any], target: str, is_known: IsKnown = knows_no_table) -> None:
    """Raise an error for urls with a password, or with a signature or token in their query.

    Sets are shared with others, and everyone who reads such a url can use it. All files in the
    tables of arrays are checked, without reading references.
    """
    for file in _iterate_files(arrays, is_known):
        if (clean_url := without_secrets(file.url)) != file.url:
            raise UnsupportedError(
                f"{target}: {clean_url} has a password, or a signature or token in its query, and "
                f"everybody who reads the set could use it; open the source by its plain url with "
                f"storage_options, rename_paths to plain urls, or write it all the same: "
                f"keep_query=True of to_manifest, virtualds.convert and to=, or --keep-query of "
                f"the command line"
            )


def warn_of_unreadable(files: Iterable[SourceFile], target: str, allow: AccessPolicy) -> None:
    """Warn once if a remote set would refer to files that it may not, such as local files.

    Such a set is valid, but can only be opened with ``allow``.
    """
    is_forbidden: dict[str, bool] = {}
    # several arrays may each have a table that lists the same files
    forbidden = {file.url for file in files if _is_forbidden(file, target, allow, is_forbidden)}
    if not forbidden:
        return
    example = without_secrets(min(forbidden))
    warn_user(
        f"{without_secrets(target)}: whoever opens this set will get an AccessError: it "
        f"refers to {format_count(len(forbidden), 'file')} of this machine or its network, such as "
        f"{example}, which a remote set may not; put copies where the set is and name them with "
        f"rename_paths, write the set beside the files, or read it with "
        f"allow=[{example.rpartition('/')[0]!r}]",
        AccessWarning,
    )


def _is_forbidden(
    file: SourceFile, target: str, allow: AccessPolicy, is_forbidden: dict[str, bool]
) -> bool:
    """Return whether a set may not refer to a file; results are cached by host if that decides."""
    if is_in_folder(file.url, target):
        return False
    key = file.url if allow.prefixes is not None or "::" in file.url else host_of(file.url)
    if key not in is_forbidden:
        try:
            allow.check(file.url, target)
            is_forbidden[key] = False
        except AccessError:
            is_forbidden[key] = True
    return is_forbidden[key]


def iterate_new_files(group: ManifestGroup, is_known: IsKnown) -> Iterator[SourceFile]:
    """Yield the files to which a group refers, without those of known tables."""
    return _iterate_files(group.list_arrays(), is_known)


def iterate_first_files(group: ManifestGroup) -> Iterator[SourceFile]:
    """Yield the files of the first manifest, since reading the tables of all workers takes long."""
    yield from (
        file for m in islice(_iterate_manifests(group.list_arrays()), 1) for file in m.listed_files
    )


def make_known_check(group: ManifestGroup) -> IsKnown:
    """Return a function that checks if a table belongs to a group read from the target set."""
    manifests = _iterate_manifests(group.list_arrays())
    # keep the tables alive, so that no new object gets the id of one of them
    known = {
        id(part.table): part.table for manifest in manifests for part in iterate_parts(manifest)
    }
    return lambda table: id(table) in known


def _iterate_files(arrays: Iterable[Any], is_known: IsKnown) -> Iterator[SourceFile]:
    """Yield the files in the tables of arrays, without those of known tables."""
    manifests = (
        m for part in _iterate_manifests(arrays) for m in iterate_other_parts(part, is_known)
    )
    return chain.from_iterable(drop_repeated_tables(m.listed_files for m in manifests))


def _iterate_manifests(arrays: Iterable[Any]) -> Iterator[ChunkManifest]:
    """Yield the manifests of virtual arrays."""
    for array in arrays:
        for fragment in getattr(array, "fragments", ()):
            yield fragment.manifest


# ---------------------------------------------------------------------- written files

Fingerprint = tuple[int | None, int | None, str | None]
"""Size in bytes, modification time in nanoseconds since 1970, and etag of a file."""


MAX_NUMBERED_TUPLES = 256
"""Maximum number of tuples of files whose numbers are cached."""


class NumberedFiles:
    """The files of new references, numbered in the order in which they occur.

    ``name`` returns the path to write for a url.
    """

    def __init__(self, name: Callable[[str], str] = str) -> None:
        self.name = name
        self.files: list[SourceFile] = []
        self._numbers: dict[str, int] = {}
        self._numbers_by_files: dict[tuple[int, ...], tuple[tuple[SourceFile, ...], list[int]]] = {}

    def number(self, file: SourceFile) -> int:
        """Return the index of a file; raise an error if its fingerprint has changed."""
        number = self._numbers.setdefault(file.url, len(self.files))
        if number == len(self.files):
            self.files.append(file)
            return number
        existing = self.files[number]
        if (merged := existing.merge(file)) is None:
            raise UnsupportedError(
                f"{file.url}: it was scanned twice, and changed in between (size, time, etag "
                f"{list(existing.fingerprint)} and {list(file.fingerprint)}); scan it again"
            )
        self.files[number] = merged
        return number

    def number_all(self, files: tuple[SourceFile, ...]) -> list[int]:
        """Return the indexes of files; results are cached, since arrays share tuples of files."""
        key = (len(files), *map(id, files[:1] + files[-1:]))
        numbered_files, numbers = self._numbers_by_files.get(key, ((), []))
        if len(numbered_files) != len(files) or not all(map(is_, numbered_files, files)):
            numbers = list(map(self.number, files))
            if len(self._numbers_by_files) >= MAX_NUMBERED_TUPLES:
                # each tuple may have millions of files
                self._numbers_by_files.clear()
            self._numbers_by_files[key] = files, numbers
        return numbers

    def iterate_rows(self) -> Iterator[tuple[str, Fingerprint]]:
        """Yield the path to write and the fingerprint of every file, in order of their indexes."""
        return ((self.name(file.url), file.fingerprint) for file in self.files)


def collect_fingerprints(
    manifests: Iterable[ChunkManifest], name: Callable[[str], str], *, include_unknown: bool = False
) -> dict[str, Fingerprint]:
    """Return fingerprints by the path to write; unknown ones only with ``include_unknown``."""
    numbered = NumberedFiles(name)
    for manifest in manifests:
        numbered.number_all(manifest.sources)
    rows = numbered.iterate_rows()
    return {path: fingerprint for path, fingerprint in rows if include_unknown or any(fingerprint)}


# ---------------------------------------------------------------------- referenced files

NO_FINGERPRINT = (None, None, None)
"""The fingerprint (size, time and etag) of a file for which the set has recorded none."""


class ReferencedFiles:
    """The files behind the urls of one set, each checked once.

    Relative urls are resolved against the set ``source``. ``recorded`` are the fingerprints that
    the set has recorded, by url, and ``allow`` says to which files it may refer.
    """

    def __init__(
        self, source: SourceFile, recorded: Mapping[str, Any], allow: AccessPolicy = DEFAULT_POLICY
    ) -> None:
        self._source = source
        self._recorded = recorded
        self._allow = allow
        self._files: dict[str, SourceFile] = {}
        self._sizes: dict[SourceFile, int | None] = {}

    def get_file(self, url: str) -> SourceFile:
        """Return the file for a url in the set, with its recorded fingerprint."""
        if url not in self._files:
            protocol, full_url = self._allow.protocol, url
            if protocol and "://" not in url:
                # a protocol that the user has given
                full_url = f"{protocol}://{url.lstrip('/')}"
            resolved = resolve_url(full_url, self._source.url)
            self._allow.check(resolved, self._source.url)
            fingerprint = self._check_fingerprint(url, self._recorded.get(url, NO_FINGERPRINT))
            self._files[url] = SourceFile(resolved, *fingerprint, self._get_options(resolved))
        return self._files[url]

    def make_file(self, url: str, fingerprint: Any) -> SourceFile:
        """Return the file for a url in the set, with the given fingerprint."""
        file = self.get_file(url)
        size, mtime, etag = self._check_fingerprint(url, fingerprint)
        return file._replace(size=size, mtime=mtime, etag=etag)

    def _check_fingerprint(self, url: str, noted: Any) -> Fingerprint:
        """Return a fingerprint, or raise an error if it is malformed."""
        match noted:
            case (size, mtime, (str() | None) as etag) if _is_int64(size) and _is_int64(mtime):
                return size, mtime, etag
        raise FormatError(
            f"{self._source.url}: the fingerprint of {url} is {noted!r:.80}, not a size, time and "
            f"etag; write the set again"
        )

    def _get_options(self, url: str) -> StorageOptions | None:
        """Return the access options for a url; only hosts that the user named get them."""
        if scheme_of(url) == "file":
            folders = self._allow.folders
            return StorageOptions({FOLDERS_OPTION: folders}) if folders else None
        if self._allow.options is not None or scheme_of(self._source.url) == OBJECT_SCHEME:
            return self._allow.options
        is_named = is_trusted(self._source.url) or is_same_host(url, self._source.url)
        return self._source.options if is_named else None

    def get_size(self, file: SourceFile) -> int | None:
        """Return the size of a file, for a chunk that is a whole file."""
        if file.size is not None:
            return file.size
        if file not in self._sizes:
            try:
                described = find_store(file.url).describe(file.url, file.options)
            except OSError as error:
                raise make_unreachable_error(file.url, error) from error
            self._sizes[file] = described.size
        return self._sizes[file]


def _is_int64(value: Any) -> bool:
    """Return whether a value is None or an integer of 64 bits."""
    return value is None or (type(value) is int and abs(value) < 2**63)


def fetch_chunk(manifest: ChunkManifest, chunk_id: tuple[int, ...]) -> bytes:
    """Return the verified bytes of one chunk of a loaded manifest; it must not be missing."""
    row = manifest.lookup(chunk_id)
    if row.file == INLINE:
        data, location = manifest.inline[row.offset], "bytes held inline"
    else:
        file, end = manifest.files[row.file], row.offset + row.length
        data = fetch_bytes(file, row.offset, row.length)
        location = f"{file.url}, bytes {row.offset} to {end}"
    if reason := describe_mismatch(data, row.checksum):
        raise ReadError(f"{location}: {reason}; restore the file, or scan it again")
    return data


def fetch_bytes(file: SourceFile | bytes, offset: int, length: int) -> bytes:
    """Return a range of the bytes of a file, or of bytes that a manifest holds."""
    if isinstance(file, bytes):
        return file[offset : offset + length]
    try:
        return find_store(file.url).get_ranges(file, [(offset, length)])[0]
    except OSError as error:
        raise make_unreachable_error(file.url, error) from error
