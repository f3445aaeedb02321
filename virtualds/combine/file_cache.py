"""Cache opened files in a folder, in parts of many files each.

All files of a cache folder were opened with the same options. An entry of a part is a `FileBatch`
of files of the same structure, with their fingerprints. If a part is missing or damaged, or a file
has changed, the file is opened without the cache.

The layout of a part::

    magic bytes
    16 bytes: BLAKE2b hash of the rest
    8 bytes: length of the head, little-endian
    head: JSON compressed with zlib; for each entry the table of files, the number of its own files,
    the number of other files to which these refer, and the length of the entry in bytes
    entries: JSON compressed with zlib
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
import zlib
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import ABSENT, Absent
from virtualds.chunks.columns import COLUMNS, PackedColumn, SmallColumn, compact, pack, unpack
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.codec import Unreadable
from virtualds.combine.file_batch import (
    NO_PLAN,
    FileBatch,
    JoinableFiles,
    NeedsFullCombineError,
    collect_files,
    find_plan,
)
from virtualds.datasets.conversion import make_dataset_or_tree
from virtualds.datasets.decoding import UNNAMED, encoding_of
from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.location import Location
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.formats.zarr.v3_arrays import (
    ManifestPart,
    array_from_v3,
    dtype_from_json,
    dtype_to_json,
    extended_to_v3,
)
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions, join_path, normalise_url, scheme_of
from virtualds.stores import find_store
from virtualds.streams import decode_stream

MAX_OTHER_FILES = 8
"""Maximum number of other files to which a cached file may refer, as each has to be checked."""
MAX_WAITING, MAX_WAIT = 256, 10.0
"""Number of files opened one by one, and seconds, after which they are written to a part."""
SUFFIX = ".part"


class FileCache:
    """A folder of cached files, which processes and machines may share.

    ``folder`` is its url, ``opening`` are the options for opening files, and ``options`` are the
    access options of files, which are never written. Raises `ValueError` if ``loadable_variables``
    is a function.
    """

    def __init__(
        self, folder: str, opening: OpenOptions, options: StorageOptions | None = None
    ) -> None:
        if callable(opening.loadable_variables):
            raise ValueError(
                "cache: loadable_variables is a function, whose results may change; give names or "
                "patterns"
            )
        # all that determines the result of opening a file, except for access options, which
        # may be secret, and may change while files do not
        current = get_options()
        versions = [version(name) for name in ("virtualds", "xarray", "numpy")]
        key = repr((versions, current.small_variable, current.load_limit, opening))
        settings = key.encode("utf-8", "surrogatepass")
        parts = join_path(folder, hashlib.blake2b(settings, digest_size=20).hexdigest())
        # workers of the build with this id use the parts that existed when it began
        self.__setstate__((parts, opening, options, uuid.uuid4().hex))

    def __getstate__(self) -> tuple[Any, ...]:
        # the folder depends on settings of the process that started the build
        return self._parts, self.opening, self.options, self.build

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._parts, self.opening, self.options, self.build = state
        self._pending: list[FileBatch] = []
        self._since, self._lock = time.monotonic(), threading.Lock()

    def look_up(self, items: Sequence[tuple[int, Any]]) -> list[FileBatch]:
        """Return batches of the files that are cached and unchanged."""
        entries_by_url, other_files = _index_parts(self.build, self._parts, self.options)
        files = dict(items)
        urls = {n: url for n, file in items if (url := normalise_url(file)) in entries_by_url}
        files_by_entry: dict[tuple[str, int], dict[int, tuple[int, Any]]] = defaultdict(dict)
        fingerprints = self._fetch_fingerprints([*urls.values()])
        for (number, url), source in zip(urls.items(), fingerprints, strict=True):
            if source is not None and source in entries_by_url[url]:
                part, entry, file_index = entries_by_url[url][source]
                files_by_entry[part, entry][file_index] = number, files[number]
        batches: list[FileBatch] = []
        for entry_key, numbers in files_by_entry.items():
            if self._are_unchanged(other_files[entry_key]):
                batches += self._load(entry_key, numbers)
        return batches

    def add(self, opened: FileBatch) -> None:
        """Cache an opened batch; single files are written later, together with others."""
        try:
            batch = with_loaded_values(opened)
        except UnsupportedError:
            return
        if len(batch) == 1:
            # copy, since the values may change before they are written
            batch = _copy_values(batch)
        with self._lock:
            self._pending.append(batch)
            is_due = time.monotonic() - self._since > MAX_WAIT
            if len(batch) == 1 and not is_due and len(self._pending) < MAX_WAITING:
                return
        self.finish()

    def finish(self) -> None:
        """Write pending files to the cache; raise `OSError` if that is impossible."""
        with self._lock:
            pending, self._pending = self._pending, []
            self._since = time.monotonic()
        entries = []
        all_entries = (entry for batch in _group_singles(pending) for entry in _list_entries(batch))
        for sources, others, batch in all_entries:
            # the fingerprint of a folder, archive or set does not change with the other files to
            # which it refers
            if len(others) <= MAX_OTHER_FILES and self._are_unchanged(others):
                with suppress(UnsupportedError):
                    entries.append(dump_entry(sources, others, batch, self.options))
        if entries:
            files = repr([row[0] for row, _ in entries]).encode("utf-8", "replace")
            url = join_path(self._parts, hashlib.blake2b(files).hexdigest()[:40] + SUFFIX)
            find_store(url).write_file(url, to_bytes(entries), None)

    def _fetch_fingerprints(self, urls: Sequence[str]) -> list[SourceFile | None]:
        """Return the current fingerprints of files, see `_fetch_fingerprint`."""
        if len(urls) < 2 or scheme_of(urls[0]) == "file":
            return list(map(self._fetch_fingerprint, urls))
        with ThreadPoolExecutor(min(get_options().max_requests, len(urls))) as pool:
            return list(pool.map(self._fetch_fingerprint, urls))

    def _are_unchanged(self, files: Sequence[SourceFile]) -> bool:
        """Return whether all files still have their fingerprints."""
        return self._fetch_fingerprints([file.url for file in files]) == [*files]

    def _fetch_fingerprint(self, url: str) -> SourceFile | None:
        """Return the current fingerprint of a file, or None if it does not show changes."""
        try:
            source = find_store(url).describe(url, self.options)
        except OSError:
            # opening the file will raise a better error
            return None
        return source if _can_detect_changes(source) else None

    def _load(
        self, entry_key: tuple[str, int], files: Mapping[int, tuple[int, Any]]
    ) -> list[FileBatch]:
        """Load files, given by index in the entry; return [] if the part is missing or damaged."""
        try:
            size, fields = _read_entry(*entry_key, self.options)
        except (FileNotFoundError, FormatError):
            return []
        numbers, urls = zip(
            *(files.get(file_index, (-1, "")) for file_index in range(size)), strict=True
        )
        batch = self._make_batch(urls, numbers, fields)
        if size == 1:
            batch = _copy_values(batch)
        plan_index = min(files)
        first = batch.cut(plan_index)
        if (batch.below is not None) == self.opening.below:
            with suppress(NeedsFullCombineError):
                batch = self._add_plans(batch, first)
                if len(files) == size:
                    return [batch]
                cut = [batch.cut(file_index, plan_index) for file_index in files]
                return [self._add_plans(file, file) if file.needs_plan else file for file in cut]
        # a file that cannot be decoded by a plan
        decoded = make_dataset_or_tree(Location.of(first.urls[0]), first.group, self.opening)
        options = NO_PLAN, self.opening, first.numbers
        return [FileBatch(first.urls, first.group, *options, decoded=decoded)]

    def _make_batch(
        self, urls: tuple[Any, ...], numbers: tuple[int, ...], cached: dict[str, Any]
    ) -> FileBatch:
        """Create a batch, without a plan, from the fields of an entry."""
        if (below := cached["below"]) is not None:
            below = {path: self._make_batch(urls, numbers, group) for path, group in below.items()}
        fields = {**cached, "below": below}
        return FileBatch(urls=urls, numbers=numbers, plan=NO_PLAN, opening=self.opening, **fields)

    def _add_plans(self, batch: FileBatch, file: FileBatch) -> FileBatch:
        """Return a batch with the decoding plans of ``file``, which is one of its files."""
        groups = {path: batch.group for path, batch in file.walk()}
        plans = {
            path: find_plan(file.urls[0], group, self.opening, self.options)
            for path, group in groups.items()
        }
        return batch.map_groups(
            lambda group_batch, path: replace(group_batch, plan=plans[path], needs_plan=False)
        )


EntryIndex = dict[str, dict[SourceFile, tuple[str, int, int]]]
"""The part, the entry, and the index in the entry of each file, by url and fingerprint."""


@lru_cache(1)
def _index_parts(
    build: str, folder: str, options: StorageOptions | None
) -> tuple[EntryIndex, dict[tuple[str, int], Sequence[SourceFile]]]:
    """Return the index of the parts of a folder, and the other files of each entry."""
    index: EntryIndex = defaultdict(dict)
    other_files = dict[tuple[str, int], Sequence[SourceFile]]()
    store = find_store(folder)
    _read_part.cache_clear()
    for file in store.list_files(folder, None):
        if file.path.endswith(SUFFIX):
            part = join_path(folder, file.path)
            with suppress(FormatError, FileNotFoundError):
                for number, (sources, others, *_) in enumerate(_read_part(part, options)):
                    other_files[part, number] = others
                    for file_index, source in enumerate(sources):
                        index[source.url].setdefault(source, (part, number, file_index))
    return index, other_files


@lru_cache(4)
def _read_entry(
    part: str, number: int, options: StorageOptions | None
) -> tuple[int, dict[str, Any]]:
    """Return the number of files of an entry, and its fields."""
    entry = _read_part(part, options)[number]
    return len(entry.sources), load_entry(entry)


@lru_cache(1)
def _read_part(part: str, options: StorageOptions | None) -> list[PartEntry]:
    """Read and parse a part, given by its url."""
    return list_entries(find_store(part).read_all(part, None), options)


def _can_detect_changes(source: SourceFile | None) -> bool:
    """Return whether a fingerprint exists and shows changes of its file."""
    return source is not None and bool(source.size and (source.mtime or source.etag))


# ---------------------------------------------------------------------- entries


Entry = tuple[Sequence[SourceFile], Sequence[SourceFile], FileBatch]
"""The files of a batch, the other files to which its arrays refer, and the batch."""


def _group_singles(opened: Sequence[FileBatch]) -> Iterator[FileBatch]:
    """Join single files of the same structure; yield the batches, and all others unchanged."""
    singles: dict[Any, list[FileBatch]] = defaultdict(list)
    for batch in opened:
        if len(batch) == 1 and batch.plan is not NO_PLAN:
            key = tuple((path, id(group_batch.plan.schema)) for path, group_batch in batch.walk())
            singles[key].append(batch)
        else:
            yield batch
    for batches in singles.values():
        try:
            yield from collect_files(JoinableFiles.of(batches)) if len(batches) > 1 else batches
        except NeedsFullCombineError:
            yield from batches


def _list_entries(batch: FileBatch) -> list[Entry]:
    """Split a batch into entries; a file that refers to other files gets an entry of its own."""
    group_batches = [group_batch for _, group_batch in batch.walk()]
    groups = [group for group_batch in group_batches for _, group in group_batch.group.walk()]
    data: list[Any] = [v.data for group in groups for v in group.variables.values()]
    data += [stacked for group_batch in group_batches for stacked in group_batch.stacked.values()]
    arrays = [array for array in data if isinstance(array, ManifestArray)]
    used = {file.url: file for array in arrays for file in array.listed_sources}
    own_files = [used.pop(normalise_url(url), None) for url in batch.urls]
    if all(map(_can_detect_changes, own_files)) and (len(batch) == 1 or not used):
        return [([source for source in own_files if source is not None], [*used.values()], batch)]
    files = batch.list_files() if len(batch) > 1 else ()
    return [entry for file in files for entry in _list_entries(file)]


def _copy_values(batch: FileBatch) -> FileBatch:
    """Copy the values in memory, and return the new batch."""

    def copy(path: str, variable: ManifestVariable) -> ManifestVariable:
        data = variable.data
        return replace(variable, data=data.copy()) if isinstance(data, np.ndarray) else variable

    return batch.map_groups(lambda part, _: replace(part, group=part.group.map_variables(copy)))


def with_loaded_values(opened: FileBatch) -> FileBatch:
    """Replace the decoded dataset of a batch with stored values; raise if variables are lazy."""
    if opened.decoded is None:
        return opened
    return replace(opened, group=_restore_loaded_values(opened.group, opened.decoded), decoded=None)


def _restore_loaded_values(
    group: ManifestGroup, decoded: xr.Dataset | xr.DataTree
) -> ManifestGroup:
    """Return a group with the stored values of loaded variables, and with unreadable variables."""
    subgroups = {}
    if isinstance(decoded, xr.DataTree):
        nodes = decoded.children
        subgroups = {
            name: _restore_loaded_values(child, nodes[name]) for name, child in group.groups.items()
        }
        decoded = decoded.to_dataset(inherit=False)
    variables = dict[str, ManifestVariable]()
    for name, stored in group.variables.items():
        variable = decoded.variables.get(None if name == UNNAMED else name)
        # variables that the node lacks are coordinates inherited from a parent group
        array = None if variable is None else get_virtual_array(variable)
        if array is None and variable is not None and is_lazy(variable):
            raise UnsupportedError("values that are lazy")
        if array is None:
            data, encoding = stored.read(), encoding_of(stored)
            variables[name] = replace(stored, data=data, encoding=encoding)
        else:
            variables[name] = (
                replace(stored, data=array) if _find_unreadable_reason(array) else stored
            )
    return replace(group, variables=variables, groups=subgroups)


# ---------------------------------------------------------------------- serialization of parts

MAGIC = b"virtualds-scan-4\n"
DIGEST, LENGTH = 16, 8
PER_FILE_FIELDS = ("attributes", "encodings", "stacked")
CACHED_FIELDS = ("group", "dim", "lengths", "same", *PER_FILE_FIELDS, "below")
"""The fields of a `FileBatch` that are cached; `PER_FILE_FIELDS` have one item per file."""
DAMAGE_ERRORS = (
    *(VirtualdsError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, RecursionError, zlib.error),
)
"""Errors of loading an entry from damaged bytes."""


class PartEntry(NamedTuple):
    """An entry of a part: its own files, other files, its table of files, and its bytes."""

    sources: Sequence[SourceFile]
    others: Sequence[SourceFile]
    files: Sequence[SourceFile]
    body: bytes


def dump_entry(
    sources: Sequence[SourceFile],
    others: Sequence[SourceFile],
    batch: FileBatch,
    options: StorageOptions | None = None,
) -> tuple[list[Any], bytes]:
    """Serialize an entry, and return its head and body for `to_bytes`.

    ``options`` are the access options that files may have; they are not written. Raises
    `UnsupportedError` for objects that cannot be serialized.
    """
    serializer = _JsonSerializer([*sources, *others])
    try:
        text = json.dumps(serializer.dump(_get_cached_fields(batch)), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedError(f"a part of the cache: {error}") from error
    if any(file.options not in (None, options) for file in serializer.numbers):
        raise UnsupportedError("a part of the cache: a file has access options of its own")
    files = [[*file[:-1], file.options is not None] for file in serializer.numbers]
    body = zlib.compress(text.encode(), 1)
    return [files, len(sources), len(others), len(body)], body


def to_bytes(entries: Sequence[tuple[list[Any], bytes]]) -> bytes:
    """Serialize entries from `dump_entry` to a part of the cache."""
    heads, bodies = zip(*entries, strict=True)
    head = zlib.compress(json.dumps(heads).encode(), 1)
    content = b"".join([len(head).to_bytes(LENGTH, "little"), head, *bodies])
    return MAGIC + hashlib.blake2b(content, digest_size=DIGEST).digest() + content


@contextmanager
def _explain_damage() -> Iterator[None]:
    """Raise `FormatError` instead of the errors of damaged bytes."""
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise FormatError(f"a part of the cache: {error}; remove it") from error


def list_entries(data: bytes, options: StorageOptions | None = None) -> list[PartEntry]:
    """Parse the entries of a part; raise `FormatError` if it is damaged."""
    content, entries = data[len(MAGIC) + DIGEST :], list[PartEntry]()
    with _explain_damage():
        if data != MAGIC + hashlib.blake2b(content, digest_size=DIGEST).digest() + content:
            raise ValueError("its bytes have changed")
        start = LENGTH + int.from_bytes(content[:LENGTH], "little")
        for table, own_count, other_count, length in _load_json(content[LENGTH:start]):
            files = [
                SourceFile(url, size, mtime, etag, options if has_options else None)
                for url, size, mtime, etag, has_options in table
            ]
            own_files, other_files = files[:own_count], files[own_count : own_count + other_count]
            entries.append(
                PartEntry(own_files, other_files, files, content[start : start + length])
            )
            start += length
    return entries


def load_entry(entry: PartEntry) -> dict[str, Any]:
    """Load the fields of a `FileBatch`; raise `FormatError` if the entry is damaged."""
    with _explain_damage():
        fields: dict[str, Any] = _JsonSerializer(entry.files).load(_load_json(entry.body))
        return _restore_fields(fields, len(entry.sources))


def _get_cached_fields(batch: FileBatch) -> dict[str, Any]:
    """Return the fields of a batch to cache, with those of the groups below it."""
    fields = {name: getattr(batch, name) for name in CACHED_FIELDS}
    for name in PER_FILE_FIELDS[:2]:
        # variables share lists, such as one with the names of all files
        lists = {id(values): list(values) for values in fields[name].values()}
        numbers = {list_id: n for n, list_id in enumerate(lists)}
        items = [[*key, numbers[id(values)]] for key, values in fields[name].items()]
        fields[name] = [[*lists.values()], items]
    if batch.below is not None:
        fields["below"] = {
            path: _get_cached_fields(group_batch) for path, group_batch in batch.below.items()
        }
    return fields


def _restore_fields(fields: dict[str, Any], file_count: int) -> dict[str, Any]:
    """Restore the fields of a batch of ``file_count`` files; raise `ValueError` if malformed."""
    for name in PER_FILE_FIELDS[:2]:
        lists, items = fields[name]
        fields[name] = {(owner, key): lists[n] for owner, key, n in items}
    are_arrays = all(isinstance(a, ManifestArray | np.ndarray) for a in fields["stacked"].values())
    per_file = [values for name in PER_FILE_FIELDS for values in fields[name].values()]
    is_valid = are_arrays and all(len(values) == file_count for values in per_file)
    if not (is_valid and tuple(fields) == CACHED_FIELDS and type(fields["group"]) is ManifestGroup):
        raise ValueError("it does not hold a batch of files")
    if fields["below"] is not None:
        below = fields["below"].items()
        fields["below"] = {
            path: _restore_fields(group_fields, file_count) for path, group_fields in below
        }
    return fields


def _load_json(data: bytes) -> Any:
    """Decompress and parse JSON."""
    return json.loads(decode_stream(zlib.decompressobj(), data, None))


# ---------------------------------------------------------------------- values as JSON

JSON_TYPES = frozenset({str, int, bool, float, type(None)})
"""Types that JSON represents unchanged."""
TYPE_MARK = "!"
"""First character of the name of a type; alone, it stands for a manifest."""


class _JsonSerializer:
    """Converts values to JSON and back with their types; files become indexes into a table.

    Lists and dicts are unchanged. Any other value becomes a JSON object with one member: the name
    of its type in `TYPES`, and a list of its parts. Loading only creates objects of these types.
    """

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self.files = [*files]
        self.numbers = {file: number for number, file in enumerate(self.files)}

    def dump(self, value: Any) -> Any:
        """Convert a value to JSON; raise `UnsupportedError` for other types."""
        value_type = type(value)
        if value_type in JSON_TYPES:
            return value
        if value is str:
            return {TYPE_MARK + "text": []}
        if value_type is list:
            return [item if type(item) in JSON_TYPES else self.dump(item) for item in value]
        if value_type is dict and all(type(key) is str and key[:1] != TYPE_MARK for key in value):
            return {key: self.dump(item) for key, item in value.items()}
        if isinstance(value, ChunkManifest):
            return {TYPE_MARK: self._dump_manifest(value.loaded())}
        for name, (type_, split, _) in TYPES.items():
            if isinstance(value, type_):
                return {TYPE_MARK + name: [self.dump(part) for part in split(value)]}
        raise UnsupportedError(f"{value_type.__name__} cannot be represented in the cache")

    def load(self, json_value: Any) -> Any:
        """Convert JSON to a value."""
        if isinstance(json_value, list):
            return [
                self.load(item) if isinstance(item, list | dict) else item for item in json_value
            ]
        if not isinstance(json_value, dict):
            return json_value
        [name, *more] = json_value or [""]
        if more or name[:1] != TYPE_MARK:
            return {key: self.load(item) for key, item in json_value.items()}
        parts = self.load(json_value[name])
        return self._load_manifest(*parts) if name == TYPE_MARK else TYPES[name[1:]][2](*parts)

    def _dump_manifest(self, manifest: ChunkManifest) -> list[Any]:
        """Return the parts of a manifest as JSON: shape, files, inline chunks and columns."""
        columns = {name: compact(getattr(manifest, name)) for name in COLUMNS}
        deltas = {"offset": columns["length"]}
        packed = [self.dump(pack(column, deltas.get(name))) for name, column in columns.items()]
        files = [self.numbers.setdefault(file, len(self.numbers)) for file in manifest.files]
        return [[*manifest.shape], files, self.dump([*manifest.inline]), packed]

    def _load_manifest(self, shape: Any, files: Any, inline: Any, packed: Any) -> ChunkManifest:
        """Rebuild a manifest from the parts of `_dump_manifest`."""
        columns = dict(zip(COLUMNS, packed, strict=True))
        deltas = {"offset": unpack(columns["length"])}
        if any(number < 0 for number in files):
            raise ValueError(f"there is no file {min(files)}")
        return ChunkManifest.build(
            tuple(shape),
            files=[self.files[number] for number in files],
            inline=inline,
            **{name: unpack(column, deltas.get(name)) for name, column in columns.items()},
        )


def _find_unreadable_reason(data: object) -> str | None:
    """Return the reason why an array cannot be read, or None if it can."""
    pipelines = data.pipelines if isinstance(data, ManifestArray) else ()
    codecs = (codec for pipeline in pipelines for codec in pipeline.codecs)
    return next((codec.reason for codec in codecs if isinstance(codec, Unreadable)), None)


def _split_array(array: ManifestArray) -> list[Any]:
    """Return the metadata, the dtype and the manifests of an array, or why it is unreadable."""
    if (reason := _find_unreadable_reason(array)) is not None:
        return [[*array.shape], array.dtype, reason]
    metadata, parts = extended_to_v3(array)
    return [metadata, array.dtype, [part.manifest for part in parts]]


def _make_array(metadata: Any, dtype: Any, manifests: Any) -> ManifestArray:
    """Rebuild an array from the parts of `_split_array`."""
    if isinstance(manifests, str):
        return ManifestArray.unreadable(metadata, dtype, manifests)
    parts = [ManifestPart(n, (0,) * len(m.shape), m) for n, m in enumerate(manifests)]
    array = array_from_v3(metadata, lambda grids, pipelines: parts)
    # dtypes of Zarr v3 have no byte order
    return array if array.dtype == dtype else replace(array, dtype=dtype)


def _make_group(variables: Any, *others: Any) -> ManifestGroup:
    """Rebuild a group, with the problems of its unreadable variables."""
    reasons = {name: _find_unreadable_reason(v.data) for name, v in variables.items()}
    problems = {name: UnsupportedError(text) for name, text in reasons.items() if text}
    attributes, groups, encoding, left_out = others
    return ManifestGroup(variables, attributes, groups, encoding, problems, left_out=left_out)


def _split_values(values: Any) -> list[Any]:
    """Return the shape, the dtype, and the values: strings as a list, all others as bytes."""
    dtype = values.dtype
    if dtype.kind == "O" and all(type(item) is str for item in values.flat):
        return [[*values.shape], dtype, values.reshape(-1).tolist()]
    if dtype.hasobject or dtype.kind == "T" or dtype.char in "gG":
        raise UnsupportedError(f"values of {dtype!r}")
    return [[*values.shape], dtype, values.tobytes()]


def _make_values(shape: Any, dtype: Any, data: Any) -> Any:
    """Rebuild an array from the parts of `_split_values`."""
    # copy, since the array must be writable
    flat = np.array(data, dtype) if isinstance(data, list) else np.frombuffer(data, dtype).copy()
    return flat.reshape(shape)


def _make_dtype(json_dtype: Any, metadata: Any) -> Any:
    """Rebuild a dtype from JSON."""
    dtype = np.dtype(object) if json_dtype == "|O" else dtype_from_json(json_dtype)
    return np.dtype(dtype, metadata=metadata) if metadata else dtype


TYPES: dict[str, tuple[Any, Callable[[Any], Iterable[Any]], Callable[..., Any]]] = {
    # first, since some NumPy scalars are also instances of Python types
    "scalar": (np.generic, lambda value: [np.asarray(value)], lambda values: values[()]),
    "small": (SmallColumn, list, SmallColumn),
    "packed": (PackedColumn, list, PackedColumn),
    "tuple": (tuple, list, lambda *items: items),
    "set": (set, sorted, lambda *items: set(items)),
    "frozenset": (frozenset, sorted, lambda *items: frozenset(items)),
    "dict": (dict, lambda items: map(list, items.items()), lambda *items: dict(items)),
    "bytes": (bytes, lambda data: [b64encode(data).decode()], partial(b64decode, validate=True)),
    "complex": (complex, lambda value: [value.real, value.imag], complex),
    "absent": (Absent, lambda value: [], lambda: ABSENT),
    "text": ((), list, lambda: str),
    "dtype": (np.dtype, lambda d: [dtype_to_json(d), dict(d.metadata or {})], _make_dtype),
    "values": (np.ndarray, _split_values, _make_values),
    "array": (ManifestArray, _split_array, _make_array),
    "variable": (
        ManifestVariable,
        lambda v: [v.dims, v.data, dict(v.attributes), dict(v.encoding)],
        ManifestVariable,
    ),
    "group": (
        ManifestGroup,
        lambda g: map(dict, (g.variables, g.attributes, g.groups, g.encoding, g.left_out)),
        _make_group,
    ),
}
"""By name: a type, a function that splits its values into parts, and its inverse."""
