"""Read and write kerchunk references in Parquet: metadata, and records that are read on demand.

kerchunk documentation, "References specification", section "Parquet references", as implemented by
fsspec's ``LazyReferenceMapper``: ``.zmetadata`` has the metadata of the whole hierarchy and the
size of a record, ``<path>/refs.<n>.parq`` the references of chunks from ``n * record_size`` on, in
C order over the chunk grid, in columns ``path``, ``offset``, ``size`` and ``raw``. Records are
numbered in steps of one (the specification's prose says two).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any
from uuid import uuid4

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.axes import find_runs
from virtualds.chunks.columns import ReferenceTable
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import FormatError, UnsupportedError, make_exists_error
from virtualds.formats import READ_ALL, ReadOptions, explain_malformed
from virtualds.formats.kerchunk.records import (
    EARLIER,
    WRITTEN,
    ArrayChunks,
    RecordChanges,
    RecordFolder,
    RecordTable,
    encode_record,
    find_changed_records,
    find_record_ranges,
    find_same_rows,
    hash_document,
    iterate_other_sources,
    join_record_path,
    split_like,
)
from virtualds.formats.zarr import NOTES, ZMETADATA
from virtualds.formats.zarr.groups import (
    V2,
    GroupBuilder,
    make_single_manifest_finder,
    merge_zarr_v2,
)
from virtualds.formats.zarr.v2_arrays import read_chunk_grid
from virtualds.formats.zarr.write_plan import RELATIVE, Hierarchy, suggest_zarr_v3
from virtualds.json_values import parse_json
from virtualds.progress import count_array_chunks
from virtualds.source_file import SourceFile, StorageOptions, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy
from virtualds.stores.fence import (
    WriteLease,
    create_folder,
    explain_vanished_files,
    is_claim,
    make_conflict_error,
    read_marker,
)
from virtualds.stores.store import ChangedError

RECORD_SIZE = 100_000
"""The number of references in a record of a new set, unless all arrays have fewer chunks."""
DISPLACED = "displaced"
"""A key in the notes of a fence: the number of fences that it displaced in succession."""
MAX_EARLIER = 64
"""Maximum number of earlier names of a set in its records; with more, all are rewritten."""
MIN_RECORD_SIZE = 10_000
"""Minimum number of references in a record after records were joined, since sets mostly grow."""
MAX_EMPTY = 16
"""Maximum number of records without chunks that are written, for readers that list all keys."""


def detect(marker: bytes) -> bool:
    """Return whether the ``.zmetadata`` of a folder belongs to a reference set, not plain Zarr."""
    return b'"record_size"' in marker and b'"metadata"' in marker


# ---------------------------------------------------------------------- reading


def read(source: SourceFile, read_options: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read the reference set in a folder: its metadata immediately, records on demand.

    Records are checked against ``read_options.allow`` when they are read.
    """
    # relative urls start from the parent of the folder of the set
    source = SourceFile(source.url.rstrip("/"), options=source.options)
    raw = find_store(source.url).read_all(f"{source.url}/{ZMETADATA}", source.options)
    check_no_claim(raw, source.url)
    return ParquetSet.parse(raw, source, read_options.allow).read_tree(
        read_options.group, read_options.skip
    )


def count_displaced(marker: bytes) -> int | None:
    """Return the number of fences in succession that a fence displaced; None for other markers."""
    if f'"{DISPLACED}"'.encode() not in marker or is_claim(marker):
        return None
    document = parse_json(marker, ZMETADATA)
    notes = document.get(NOTES) if isinstance(document, Mapping) else None
    count = notes.get(DISPLACED) if isinstance(notes, Mapping) else None
    return count if type(count) is int and count >= 0 else None


def check_no_claim(marker: bytes, url: str) -> None:
    """Raise an error for a set that another writer is creating."""
    if is_claim(marker):
        raise FileNotFoundError(
            f"{url}: a writer is creating this set; open it later, or, if that writer has failed, "
            f"create the set again"
        )


@dataclass(frozen=True)
class ParquetSet:
    """The content of the ``.zmetadata`` of a set.

    For a writer, it also has the ``version``, and the number of fences that the fence of the writer
    displaces.
    """

    source: SourceFile
    document: Mapping[str, Any]
    metadata: Mapping[str, Any]
    notes: Mapping[str, Any]
    records: RecordFolder
    version: str = ""
    displaced: int = 0

    @classmethod
    def parse(cls, raw: bytes, source: SourceFile, allow: AccessPolicy) -> ParquetSet:
        """Parse the set in a folder."""
        document = parse_json(raw, source.url)
        with explain_malformed(source.url):
            size = document["record_size"]
            if type(size) is not int or size < 1:
                raise FormatError(f"{source.url}: record_size is {size!r}; write the set again")
            metadata = {
                # other tools have written metadata as strings that contain JSON
                key: parse_json(v, f"{source.url}: key {key!r}") if isinstance(v, str) else v
                for key, v in document["metadata"].items()
            }
            notes = document.get(NOTES) or {}
            records = RecordFolder(source, size, notes, allow, hash_document(document))
            return cls(source, document, metadata, notes, records)

    @cached_property
    def group(self) -> ManifestGroup:
        """The whole set."""
        return self.read_tree()

    @property
    def is_relative(self) -> bool:
        """Whether urls of sources are written relative to the set."""
        return bool(self.notes.get(RELATIVE))

    def is_current(self) -> bool:
        marker = f"{self.source.url}/{ZMETADATA}"
        return find_store(marker).find_version(marker, self.source.options) == self.version

    def read_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array."""
        if any(part in ("", ".", "..") or "\\" in part for part in path.split("/")):
            raise FormatError(
                f"{self.source.url}: the path {path!r} of an array leads out of the set"
            )
        if not prod(grid):
            return ChunkManifest.missing(grid)
        return ChunkManifest.from_table(RecordTable(self.records, path, prod(grid)), grid)

    def read_tree(
        self, group: str | None = None, skip: frozenset[str] = frozenset()
    ) -> ManifestGroup:
        """Return a group with its subgroups."""
        nodes, find_parts = (
            merge_zarr_v2(self.metadata),
            make_single_manifest_finder(self.read_manifest),
        )
        builder = GroupBuilder(self.source.url, nodes, self.notes, find_parts, skip, V2)
        return builder.read_group(group)

    def read_arrays(self) -> dict[str, ArrayChunks]:
        """Return all arrays by their paths."""
        return {
            path: ArrayChunks(metadata, self.read_manifest(path, read_chunk_grid(metadata)))
            for key, metadata in self.metadata.items()
            if (path := key.removesuffix("/.zarray")) != key
        }

    def find_written_ranges(self, existing: Mapping[str, list[tuple[int, int]]]) -> dict[str, Any]:
        """Return the ranges of existing records of each array that lacks records."""
        ranges = {}
        for path, array in self.read_arrays().items():
            count = -(-array.manifest.size // self.records.size)
            all_records = [(0, count)] if count else []
            if (runs := existing.get(path, [])) != all_records:
                ranges[path] = runs
        return ranges

    @cached_property
    def encoded_files(self) -> bytes | None:
        """The recorded fingerprints of files, as the members of a JSON object, if there are any.

        Other tools record none.
        """
        fingerprints = self.notes.get("files")
        return None if fingerprints is None else encode_members(fingerprints)

    def to_fence(self, writer: str, displaced: int) -> bytes:
        """Return the ``.zmetadata`` as the fence of a writer, with the name of the writer."""
        notes = {**self.notes, "writer": writer, DISPLACED: displaced}
        return encode_marker(self.document, notes, self.encoded_files)

    def check_record(self, rows: ChunkManifest, data: bytes) -> None:
        """Raise an error if an encoded record does not contain the references ``rows``."""
        url = self.source.url
        parsed = self.records.parse(data, url).take(0, slice(0, rows.size))
        if not find_same_rows(rows, parsed).all():
            raise FormatError(
                f"{url}: a record would hold other references than the set should; nothing has "
                f"been written, please report it"
            )

    def holds(self, table: ReferenceTable) -> bool:
        """Return whether a table of references belongs to this set."""
        return table.owner == self.records.name


# ---------------------------------------------------------------------- writing


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = DEFAULT_POLICY
) -> ParquetSet:
    """Read a set in order to change it."""
    url = url.rstrip("/")
    raw, version, displaced = read_marker(f"{url}/{ZMETADATA}", options, count_displaced)
    check_no_claim(raw, url)
    parquet_set = ParquetSet.parse(raw, SourceFile(url, options=options), allow)
    if parquet_set.records.token is None:
        # other tools do not record the records that they left out, so list the folder
        parquet_set.records.written = parquet_set.find_written_ranges(
            find_record_ranges(url, options)
        )
    return replace(parquet_set, version=version, displaced=displaced)


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    base: ParquetSet | None = None,
    record_size: int | None = None,
    relative_paths: bool | None = None,
) -> None:
    """Write a reference set record by record: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        The url of the folder.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing set may be replaced. Any other file of this name is never replaced.
    base : ParquetSet, optional
        The version to change: only records whose rows differ from it are written.
    record_size : int, optional
        References in a record. By default as in ``base``; in a new set `RECORD_SIZE`, or fewer if
        no array has as many chunks.
    relative_paths : bool, optional
        Whether urls of sources are written relative to the parent folder of the set. By default as
        in ``base``; False in a new set.

    Raises
    ------
    UnsupportedError
        Zarr v2 metadata cannot describe some variables; the message names all of them. Or rows of
        an existing set that is not on local disk would change, or the store has no conditional
        writes.
    FileExistsError
        There is something other than a set, or a set that may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    ValueError
        ``record_size`` is not a positive number.
    """
    if record_size is not None and (type(record_size) is not int or record_size < 1):
        raise ValueError(f"record_size={record_size!r}: give a number of references, at least 1")
    url = url.rstrip("/")
    if base is None:
        _create(group, url, options, replace, record_size, bool(relative_paths))
        return
    size = record_size or base.records.size
    relative = base.is_relative if relative_paths is None else relative_paths
    is_same_form = (size, relative) == (base.records.size, base.is_relative)
    with explain_vanished_files(base.is_current, url):
        extended = _NextVersion.extending(base, group) if is_same_form else None
        if extended is None:
            check_can_replace(url)
            hierarchy = build_hierarchy(group, url, relative=relative)
            _NextVersion.replacing(base, hierarchy, size, is_same_form).replace_set(
                base, is_checked=group is base.group
            )
            return
    extended.write_in_place(base)


def compact(base: ParquetSet) -> dict[str, Any] | None:
    """Return the choices that reduce the number of records, or None if none do."""
    counts = [array.manifest.size for array in base.read_arrays().values()]
    size = min(RECORD_SIZE, max([MIN_RECORD_SIZE, *counts]))
    count, new_count = (sum(-(-n // rows) for n in counts) for rows in (base.records.size, size))
    return {"record_size": size} if new_count < count else None


def _create(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None,
    replace: bool,
    size: int | None,
    relative: bool,
) -> None:
    """Write a new set, or replace an existing set."""
    hierarchy = build_hierarchy(group, url, relative=relative)
    replaces = _is_set(url, options)
    if replaces and not replace:
        raise make_exists_error(url)
    if replaces:
        check_can_replace(url)
    largest = max((manifest.size for manifest in hierarchy.manifests.values()), default=1)
    new = _NextVersion.new(hierarchy, size or max(1, min(RECORD_SIZE, largest)))
    files = ((path, data) for path, data in new.iterate_files() if data is not None)
    try:
        if scheme_of(url) != "file":
            create_folder(url, ZMETADATA, files, options)
        else:
            find_store(url).write_folder(url, files, options, replace=replaces)
    except FileExistsError as error:
        if not _is_set(url, options):
            # no mode replaces files that do not belong to a set
            raise FileExistsError(
                f"{url}: exists already, and is not a Parquet reference set; remove it, or choose "
                f"another name"
            ) from error
        if replace:
            raise make_conflict_error(url) from error
        raise


def build_hierarchy(group: ManifestGroup, url: str, **options: Any) -> Hierarchy:
    """Return the hierarchy of a group; raise an error for paths that cannot be folders."""
    with suggest_zarr_v3(group, url):
        hierarchy = Hierarchy.of(group, url, "kerchunk-parquet", **options)
    if invalid := [path for path in hierarchy.manifests if not {"\\", "\0"}.isdisjoint(path)]:
        raise UnsupportedError(
            f"{url}: the variable {invalid[0]!r} cannot be the name of a folder; rename it with "
            f"ds.rename"
        )
    return hierarchy


def _is_set(url: str, options: StorageOptions | None) -> bool:
    """Return whether there is a set at a url."""
    try:
        return detect(find_store(url).read_all(f"{url}/{ZMETADATA}", options))
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_can_replace(url: str) -> None:
    """Raise an error if references would be replaced where no store can do that atomically."""
    if scheme_of(url) != "file":
        raise UnsupportedError(
            f"{url}: in a store a kerchunk Parquet set can only grow, at the end of the first axis "
            f"of its arrays, since its records have fixed names, and no store replaces several "
            f"files in one step; write to another url, change a copy on local disk, remove the set "
            f"first, or use format='zarr-v3', which changes sets in any store"
        )


@dataclass(frozen=True)
class _NextVersion:
    """The next version of a set, with ``size`` references per record.

    ``names`` are the notes ``set``, the name of the set in new records, and ``earlier``, its names
    in older records. ``changed`` are the records to write, by array; of other arrays, all records
    are written. ``files`` are the recorded fingerprints of files, as members of a JSON object.
    """

    hierarchy: Hierarchy
    size: int
    names: Mapping[str, Any]
    changed: Mapping[str, set[int]]
    files: bytes

    @classmethod
    def new(cls, hierarchy: Hierarchy, size: int) -> _NextVersion:
        """Return the first version of a set."""
        files = encode_members(hierarchy.notes["files"])
        return cls(hierarchy, size, {"set": secrets.token_hex(8)}, {}, files)

    @classmethod
    def extending(cls, base: ParquetSet, group: ManifestGroup) -> _NextVersion | None:
        """Return a version that keeps all old rows unchanged, or None if that is impossible."""
        new, size = partial(iterate_other_sources, is_known=base.holds), base.records.size
        hierarchy = build_hierarchy(group, base.source.url, sources=new, relative=base.is_relative)
        before = base.read_arrays()
        old_files, files = base.notes.get("files", {}), hierarchy.notes["files"]
        # readers of a removed array would read records of a new one; and a file may have changed
        # although its chunks have the same offsets
        if before.keys() - hierarchy.manifests.keys() or any(
            files[name] != old_files[name] for name in files.keys() & old_files.keys()
        ):
            return None
        changed = {}
        for path, old_array in before.items():
            changes = _compare_array(old_array, hierarchy, path, size)
            if not changes.keeps:
                return None
            changed[path] = changes.records
        # keep all recorded files, since only a read of all records shows whether they are used
        added = encode_members({name: f for name, f in files.items() if name not in old_files})
        names = {key: base.notes.get(key) for key in ("set", EARLIER)}
        members = b", ".join(filter(None, (base.encoded_files, added)))
        return cls(hierarchy, size, names, changed, members)

    @classmethod
    def replacing(
        cls, base: ParquetSet, hierarchy: Hierarchy, size: int, same_storage: bool
    ) -> _NextVersion:
        """Return a version that keeps the records whose rows do not change."""
        token = base.records.token
        new, earlier = cls.new(hierarchy, size), [token, *base.records.earlier]
        # records of other tools have no name, so readers could not tell them from new ones
        if token is None or not same_storage or len(earlier) > MAX_EARLIER:
            return new
        changed = {
            path: _compare_array(old_array, hierarchy, path, size).records
            for path, old_array in base.read_arrays().items()
            if path in hierarchy.manifests
        }
        return replace(new, names={**new.names, EARLIER: earlier}, changed=changed)

    def _is_written(self, path: str, number: int) -> bool:
        """Return whether a record is to be written."""
        return path not in self.changed or number in self.changed[path]

    def iterate_files(
        self,
        writer: str | None = None,
        checked: ParquetSet | None = None,
    ) -> Iterator[tuple[str, bytes | None]]:
        """Yield the paths and content of files, the marker last; None stands for an unchanged file.

        With ``checked``, every record is parsed as that set would parse it, and compared.
        """
        hierarchy, size = self.hierarchy, self.size
        for path, manifest in hierarchy.manifests.items():
            with count_array_chunks(manifest.size) as advance:
                for number in list_records(manifest, size):
                    data = None
                    if self._is_written(path, number):
                        end = min(number * size + size, manifest.size)
                        rows = manifest.at(np.arange(number * size, end))
                        name, token = hierarchy.name_file, self.names["set"]
                        data = encode_record(rows, name, size, token, writer)
                        if checked is not None:
                            checked.check_record(rows, data)
                    yield join_record_path(path, number), data
                    advance(min(size, manifest.size - number * size))
        names_written = {
            key: name for key, name in {**self.names, "writer": writer}.items() if name
        }
        records_by_array = {path: list_records(m, size) for path, m in hierarchy.manifests.items()}
        ranges = {
            p: find_runs(np.array(n))
            for p, n in records_by_array.items()
            if not isinstance(n, range)
        }
        notes = names_written | hierarchy.get_notes() | ({WRITTEN: ranges} if ranges else {})
        document = {"metadata": hierarchy.metadata, "record_size": size}
        yield ZMETADATA, encode_marker(document, notes, self.files)

    def replace_set(self, base: ParquetSet, is_checked: bool) -> None:
        """Replace the set ``base`` by this version."""
        url, options, version = base.source.url, base.source.options, base.version
        files = self.iterate_files(checked=base if is_checked else None)
        try:
            find_store(url).write_folder(url, files, options, replace=True, expected=version)
        except ChangedError as error:
            raise make_conflict_error(url) from error

    def write_in_place(self, base: ParquetSet) -> None:
        """Write records, then the metadata that makes all of them valid at once."""
        source, writer = base.source, secrets.token_hex(8)
        paths = [
            join_record_path(path, number)
            for path, manifest in self.hierarchy.manifests.items()
            for number in list_records(manifest, self.size)
            if self._is_written(path, number)
        ]
        fence = WriteLease(source.url, ZMETADATA, source.options, base.version, paths)
        fence.replace_marker(base.to_fence(writer, base.displaced))
        with explain_vanished_files(fence.is_current, source.url):
            for path, data in self.iterate_files(writer):
                if path == ZMETADATA and data is not None:
                    fence.replace_marker(data)
                elif data is not None:
                    fence.put(path, data)


def _compare_array(
    before: ArrayChunks, hierarchy: Hierarchy, path: str, size: int
) -> RecordChanges:
    """Return the changes of records of an array; split its new values into chunks as in the set."""
    key = f"{path}/.zarray"
    after = split_like(before, ArrayChunks(hierarchy.metadata[key], hierarchy.manifests[path]))
    hierarchy.metadata[key], hierarchy.manifests[path] = after.metadata, after.manifest
    changes = find_changed_records(before, after, size)
    old_records, new_records = ({*list_records(a.manifest, size)} for a in (before, after))
    return changes._replace(records=changes.records | (new_records - old_records))


def list_records(manifest: ChunkManifest, size: int) -> Sequence[int]:
    """Return the indices of the records to write: all, or those with chunks if many have none.

    fsspec's ``LazyReferenceMapper._load_one_key`` treats a record that does not exist as one of
    missing chunks; its ``_generate_record``, which lists all keys, does not.
    """
    all_records, existing = range(-(-manifest.size // size)), manifest.find_existing()
    if existing is None:
        return all_records
    # the indices are ascending
    records = existing // size
    nonempty: list[int] = records[np.diff(records, prepend=-1) > 0].tolist()
    return nonempty if len(all_records) - len(nonempty) > MAX_EMPTY else all_records


def encode_members(mapping: Mapping[str, Any]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return json.dumps(mapping, allow_nan=False)[1:-1].encode()


def encode_marker(
    document: Mapping[str, Any], notes: Mapping[str, Any], files: bytes | None
) -> bytes:
    """Encode the marker of a set.

    ``files`` are the encoded members of its object ``files``, or None to leave that out. They are
    most of the marker of a large set, and an append writes the marker twice, so they are encoded
    only once.
    """
    placeholder = uuid4().hex
    files_note = {} if files is None else {"files": placeholder}
    text = json.dumps({**document, NOTES: {**notes, **files_note}}, allow_nan=False)
    if files is None:
        return text.encode()
    before, _, after = text.partition(f'"{placeholder}"')
    return b"".join([before.encode(), b"{", files, b"}", after.encode()])
