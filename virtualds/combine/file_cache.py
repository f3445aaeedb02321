"""A cache of opened files, stored in parts of many files each.

All parts in a folder were opened with the same options. An entry of a part is a `FileBatch` of
files of the same structure, with their fingerprints; datasets and trees are made from it as after a
scan. If a part is missing or damaged, or a file has changed, the file is opened without the cache.

The layout of a part, with a hash of its content::

    magic, 16 bytes of BLAKE2b of the rest, 8 bytes: length of the next, little-endian
    JSON compressed with zlib: of each entry its files, how many of them it is made of, how many
    others these refer to, and the length of the entry
    each entry: JSON compressed with zlib
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
from virtualds.datasets.decoding import UNNAMED, encoding_of
from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.location import Location
from virtualds.datasets.open import make_dataset_or_tree
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
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.streams import decode_stream
from virtualds.urls import join_path, normalise_url, scheme_of

MAX_OTHER_FILES = 8
"""Maximum number of other files to which a cached file may refer: each of them is checked, too."""
MAX_WAITING, MAX_WAIT = 256, 10.0
"""After how many files opened one by one, or seconds, a part is written: no more is ever lost."""
SUFFIX = ".part"


class FileCache:
    """A folder of opened files, which any number of processes and machines may use at once.

    ``folder`` is its url, ``opening`` how files are opened, and ``options`` are the access options
    of the files, which are never written. Raises `ValueError` for a function in
    ``loadable_variables``.
    """

    def __init__(
        self, folder: str, opening: OpenOptions, options: StorageOptions | None = None
    ) -> None:
        if callable(opening.loadable_variables):
            raise ValueError(
                "cache: loadable_variables is a function, whose results may change; give names or "
                "patterns"
            )
        # everything that determines the result of opening a file; access options are left out,
        # since they may be secret, and may change when the files do not
        how, versions = get_options(), [version(name) for name in ("virtualds", "xarray", "numpy")]
        decisive = repr((versions, how.small_variable, how.load_limit, opening))
        settings = decisive.encode("utf-8", "surrogatepass")
        parts = join_path(folder, hashlib.blake2b(settings, digest_size=20).hexdigest())
        # a worker uses the parts that existed when the build began
        self.__setstate__((parts, opening, options, uuid.uuid4().hex))

    def __getstate__(self) -> tuple[Any, ...]:
        # including the folder, which depends on settings of the process that started the build
        return self._parts, self.opening, self.options, self.build

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._parts, self.opening, self.options, self.build = state
        self._waiting: list[FileBatch] = []
        self._since, self._lock = time.monotonic(), threading.Lock()

    def look_up(self, items: Sequence[tuple[int, Any]]) -> list[FileBatch]:
        """Return those of some files that are cached and have not changed, as batches."""
        places, others = _index_parts(self.build, self._parts, self.options)
        files = dict(items)
        urls = {n: url for n, file in items if (url := normalise_url(file)) in places}
        by_entry: dict[tuple[str, int], dict[int, tuple[int, Any]]] = defaultdict(dict)
        states = self._list_fingerprints([*urls.values()])
        for (number, url), source in zip(urls.items(), states, strict=True):
            if source is not None and source in places[url]:
                part, entry, place = places[url][source]
                by_entry[part, entry][place] = number, files[number]
        found: list[FileBatch] = []
        for where, numbers in by_entry.items():
            if self._are_unchanged(others[where]):
                found += self._load(where, numbers)
        return found

    def add(self, opened: FileBatch) -> None:
        """Cache opened files, immediately or together with later ones."""
        try:
            batch = to_batch(opened)
        except UnsupportedError:
            return
        if len(batch) == 1:
            # a copy, since later changes of its values must not be cached
            batch = _copy_values(batch)
        with self._lock:
            self._waiting.append(batch)
            waits = time.monotonic() - self._since > MAX_WAIT
            if len(batch) == 1 and not waits and len(self._waiting) < MAX_WAITING:
                return
        self.finish()

    def finish(self) -> None:
        """Write the files that wait to be written; raise `OSError` if that is impossible."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._since = time.monotonic()
        entries = []
        listed = (entry for batch in _group_singles(waiting) for entry in _list_entries(batch))
        for sources, others, batch in listed:
            # folders, archives and sets may only refer to other files, and their own fingerprint
            # does not change when those do
            if len(others) <= MAX_OTHER_FILES and self._are_unchanged(others):
                with suppress(UnsupportedError):
                    entries.append(dump_entry(sources, others, batch, self.options))
        if entries:
            files = repr([row[0] for row, _ in entries]).encode("utf-8", "replace")
            place = join_path(self._parts, hashlib.blake2b(files).hexdigest()[:40] + SUFFIX)
            find_store(place).write_file(place, to_bytes(entries), None)

    def _list_fingerprints(self, urls: Sequence[str]) -> list[SourceFile | None]:
        if len(urls) < 2 or scheme_of(urls[0]) == "file":
            return list(map(self._fingerprint, urls))
        with ThreadPoolExecutor(min(get_options().max_requests, len(urls))) as pool:
            return list(pool.map(self._fingerprint, urls))

    def _are_unchanged(self, files: Sequence[SourceFile]) -> bool:
        """Return whether none of some files has changed."""
        return self._list_fingerprints([file.url for file in files]) == [*files]

    def _fingerprint(self, url: str) -> SourceFile | None:
        """Return the present fingerprint of a file, or None if it would not reveal changes."""
        try:
            source = find_store(url).describe(url, self.options)
        except OSError:
            # opening the file raises a better error
            return None
        return source if _shows_changes(source) else None

    def _load(
        self, where: tuple[str, int], files: Mapping[int, tuple[int, Any]]
    ) -> list[FileBatch]:
        """Return some files of an entry, by position with number and name; none if damaged."""
        try:
            size, columns = _read_entry(*where, self.options)
        except (FileNotFoundError, FormatError):
            return []
        numbers, urls = zip(*(files.get(place, (-1, "")) for place in range(size)), strict=True)
        batch = self._make_batch(urls, numbers, columns)
        if size == 1:
            batch = _copy_values(batch)
        planned = min(files)
        first = batch.cut(planned)
        if (batch.below is not None) == self.opening.below:
            with suppress(NeedsFullCombineError):
                batch = self._add_plans(batch, first)
                if len(files) == size:
                    return [batch]
                cut = [batch.cut(place, planned) for place in files]
                return [self._add_plans(f, f) if f.is_cut else f for f in cut]
        # it decodes without a plan
        decoded = make_dataset_or_tree(Location.of(first.urls[0]), first.group, self.opening)
        how = NO_PLAN, self.opening, first.numbers
        return [FileBatch(first.urls, first.group, *how, decoded=decoded)]

    def _make_batch(
        self, urls: tuple[Any, ...], numbers: tuple[int, ...], columns: dict[str, Any]
    ) -> FileBatch:
        if (below := columns["below"]) is not None:
            below = {path: self._make_batch(urls, numbers, group) for path, group in below.items()}
        own = {**columns, "below": below}
        return FileBatch(urls=urls, numbers=numbers, plan=NO_PLAN, opening=self.opening, **own)

    def _add_plans(self, batch: FileBatch, file: FileBatch) -> FileBatch:
        """Return a batch with the plans of one of its files."""
        groups = {path: one.group for path, one in file.walk()}
        plans = {
            path: find_plan(file.urls[0], group, self.opening, self.options)
            for path, group in groups.items()
        }
        return batch.map_groups(lambda one, path: replace(one, plan=plans[path], is_cut=False))


Places = dict[str, dict[SourceFile, tuple[str, int, int]]]
"""The part, entry and position of each file, by its url and fingerprint."""


@lru_cache(1)
def _index_parts(
    build: str, folder: str, options: StorageOptions | None
) -> tuple[Places, dict[tuple[str, int], Sequence[SourceFile]]]:
    """Return where a build finds each file in the parts, and the other files of each entry."""
    places: Places = defaultdict(dict)
    of_entries = dict[tuple[str, int], Sequence[SourceFile]]()
    store = find_store(folder)
    _read_part.cache_clear()
    for listed in store.list_files(folder, None):
        if listed.path.endswith(SUFFIX):
            part = join_path(folder, listed.path)
            with suppress(FormatError, FileNotFoundError):
                for number, (sources, others, *_) in enumerate(_read_part(part, options)):
                    of_entries[part, number] = others
                    for place, source in enumerate(sources):
                        places[source.url].setdefault(source, (part, number, place))
    return places, of_entries


@lru_cache(4)
def _read_entry(
    part: str, number: int, options: StorageOptions | None
) -> tuple[int, dict[str, Any]]:
    entry = _read_part(part, options)[number]
    return len(entry.sources), load_entry(entry)


@lru_cache(1)
def _read_part(part: str, options: StorageOptions | None) -> list[PartEntry]:
    return list_entries(find_store(part).read_all(part, None), options)


def _shows_changes(source: SourceFile | None) -> bool:
    return source is not None and bool(source.size and (source.mtime or source.etag))


# ---------------------------------------------------------------------- what is cached


Entry = tuple[Sequence[SourceFile], Sequence[SourceFile], FileBatch]
"""The files of a batch, the other files to which their arrays refer, and the batch."""


def _group_singles(opened: Sequence[FileBatch]) -> Iterator[FileBatch]:
    """Group opened files by structure, and yield each group as one batch."""
    singles: dict[Any, list[FileBatch]] = defaultdict(list)
    for one in opened:
        if len(one) == 1 and one.plan is not NO_PLAN:
            singles[tuple((path, id(part.plan.schema)) for path, part in one.walk())].append(one)
        else:
            yield one
    for alike in singles.values():
        try:
            yield from collect_files(JoinableFiles.of(alike)) if len(alike) > 1 else alike
        except NeedsFullCombineError:
            yield from alike


def _list_entries(batch: FileBatch) -> list[Entry]:
    """Split a batch into entries; files that refer to other files get an entry of their own."""
    every = [one for _, one in batch.walk()]
    groups = [part for one in every for _, part in one.group.walk()]
    data: list[Any] = [v.data for group in groups for v in group.variables.values()]
    data += [stacked for one in every for stacked in one.stacked.values()]
    arrays = [one for one in data if isinstance(one, ManifestArray)]
    used = {file.url: file for array in arrays for file in array.listed_sources}
    own = [used.pop(normalise_url(url), None) for url in batch.urls]
    if all(map(_shows_changes, own)) and (len(batch) == 1 or not used):
        return [([s for s in own if s is not None], [*used.values()], batch)]
    files = batch.list_files() if len(batch) > 1 else ()
    return [entry for file in files for entry in _list_entries(file)]


def _copy_values(batch: FileBatch) -> FileBatch:
    """Return a file with copies of its values in memory."""

    def copy(path: str, variable: ManifestVariable) -> ManifestVariable:
        data = variable.data
        return replace(variable, data=data.copy()) if isinstance(data, np.ndarray) else variable

    return batch.map_groups(lambda one, _: replace(one, group=one.group.map_variables(copy)))


def to_batch(opened: FileBatch) -> FileBatch:
    """Return an opened file as a batch with loaded values; lazy variables raise an error."""
    if opened.decoded is None:
        return opened
    return replace(opened, group=_restore_loaded_values(opened.group, opened.decoded), decoded=None)


def _restore_loaded_values(group: ManifestGroup, found: xr.Dataset | xr.DataTree) -> ManifestGroup:
    """Return a group with the values that were loaded, and the variables that did not decode."""
    below = {}
    if isinstance(found, xr.DataTree):
        nodes = found.children
        below = {
            name: _restore_loaded_values(child, nodes[name]) for name, child in group.groups.items()
        }
        found = found.to_dataset(inherit=False)
    variables = dict[str, ManifestVariable]()
    for name, stored in group.variables.items():
        shown = found.variables.get(None if name == UNNAMED else name)
        # in a tree, only the group above has the inherited coordinates
        array = None if shown is None else get_virtual_array(shown)
        if array is None and shown is not None and is_lazy(shown):
            raise UnsupportedError("values that are lazy")
        if array is None:
            data, encoding = stored.read(), encoding_of(stored)
            variables[name] = replace(stored, data=data, encoding=encoding)
        else:
            variables[name] = (
                replace(stored, data=array) if _find_unreadable_reason(array) else stored
            )
    return replace(group, variables=variables, groups=below)


# ---------------------------------------------------------------------- a part in bytes

MAGIC = b"virtualds-scan-4\n"
DIGEST, LENGTH = 16, 8
PER_FILE_FIELDS = ("attributes", "encodings", "stacked")
CACHED = ("group", "dim", "lengths", "same", *PER_FILE_FIELDS, "below")
"""The fields of a `FileBatch` that are cached; `PER_FILE_FIELDS` differ between its files."""
DAMAGE = (
    *(VirtualdsError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, RecursionError, zlib.error),
)
"""Errors of reading a group from damaged bytes."""


class PartEntry(NamedTuple):
    """An entry of a part: its files, the others to which they refer, its table, and its bytes."""

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
    """Return the row of an entry in the head of a part, and its body, both for `to_bytes`.

    ``options`` are the access options that files may have; they are not written. Raises
    `UnsupportedError` for anything that cannot be written.
    """
    notation = _JsonNotation([*sources, *others])
    try:
        text = json.dumps(notation.dump(_take_columns(batch)), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedError(f"a part of the cache: {error}") from error
    if any(file.options not in (None, options) for file in notation.numbers):
        raise UnsupportedError("a part of the cache: a file has access options of its own")
    files = [[*file[:-1], file.options is not None] for file in notation.numbers]
    body = zlib.compress(text.encode(), 1)
    return [files, len(sources), len(others), len(body)], body


def to_bytes(entries: Sequence[tuple[list[Any], bytes]]) -> bytes:
    """Return the bytes of a part with these entries, as `dump_entry` returns them."""
    rows, bodies = zip(*entries, strict=True)
    head = zlib.compress(json.dumps(rows).encode(), 1)
    rest = b"".join([len(head).to_bytes(LENGTH, "little"), head, *bodies])
    return MAGIC + hashlib.blake2b(rest, digest_size=DIGEST).digest() + rest


@contextmanager
def _explain_damage() -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise FormatError(f"a part of the cache: {error}; remove it") from error


def list_entries(data: bytes, options: StorageOptions | None = None) -> list[PartEntry]:
    """Parse a part, and return its entries; raise `FormatError` if it is damaged."""
    rest, found = data[len(MAGIC) + DIGEST :], list[PartEntry]()
    with _explain_damage():
        if data != MAGIC + hashlib.blake2b(rest, digest_size=DIGEST).digest() + rest:
            raise ValueError("its bytes have changed")
        begin = LENGTH + int.from_bytes(rest[:LENGTH], "little")
        for described, count, others, length in _load_json(rest[LENGTH:begin]):
            files = [
                SourceFile(url, size, mtime, etag, options if has else None)
                for url, size, mtime, etag, has in described
            ]
            own, more, body = files[:count], files[count : count + others], rest[begin:]
            found.append(PartEntry(own, more, files, body[:length]))
            begin += length
    return found


def load_entry(entry: PartEntry) -> dict[str, Any]:
    """Return the fields of a `FileBatch`; raise `FormatError` if the entry is damaged."""
    with _explain_damage():
        columns: dict[str, Any] = _JsonNotation(entry.files).load(_load_json(entry.body))
        return _check_columns(columns, len(entry.sources))


def _take_columns(batch: FileBatch) -> dict[str, Any]:
    """Return the cached fields of a batch and of the groups below it."""
    columns = {name: getattr(batch, name) for name in CACHED}
    for name in PER_FILE_FIELDS[:2]:
        # variables share one list of the names of their files
        lists = {id(values): list(values) for values in columns[name].values()}
        numbers = {one: n for n, one in enumerate(lists)}
        places = [[*key, numbers[id(values)]] for key, values in columns[name].items()]
        columns[name] = [[*lists.values()], places]
    if batch.below is not None:
        columns["below"] = {path: _take_columns(one) for path, one in batch.below.items()}
    return columns


def _check_columns(columns: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the cached fields of ``count`` files; raise `ValueError` if any is malformed."""
    for name in PER_FILE_FIELDS[:2]:
        lists, places = columns[name]
        columns[name] = {(owner, key): lists[n] for owner, key, n in places}
    arrays = all(isinstance(a, ManifestArray | np.ndarray) for a in columns["stacked"].values())
    of_each = [one for name in PER_FILE_FIELDS for one in columns[name].values()]
    whole = arrays and all(len(one) == count for one in of_each)
    if not (whole and tuple(columns) == CACHED and type(columns["group"]) is ManifestGroup):
        raise ValueError("it holds something else than files")
    if columns["below"] is not None:
        below = columns["below"].items()
        columns["below"] = {path: _check_columns(one, count) for path, one in below}
    return columns


def _load_json(data: bytes) -> Any:
    return json.loads(decode_stream(zlib.decompressobj(), data, None))


# ---------------------------------------------------------------------- values as JSON

PLAIN = frozenset({str, int, bool, float, type(None)})
"""Types whose values JSON represents unchanged."""
TYPE_MARK = "!"
"""The first character of the name of a type; alone, it stands for a manifest."""


class _JsonNotation:
    """Converts values to JSON and back, with their types; files become numbers in a table.

    Lists and dicts are unchanged. Any other value is an object with one member, whose name is that
    of its type in `KINDS`, and whose value has the parts of it. So loading cannot create objects of
    other types.
    """

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self.files = [*files]
        self.numbers = {file: number for number, file in enumerate(self.files)}

    def dump(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if value is str:
            return {TYPE_MARK + "text": []}
        if kind is list:
            return [item if type(item) in PLAIN else self.dump(item) for item in value]
        if kind is dict and all(type(key) is str and key[:1] != TYPE_MARK for key in value):
            return {key: self.dump(item) for key, item in value.items()}
        if isinstance(value, ChunkManifest):
            return {TYPE_MARK: self._dump_manifest(value.loaded())}
        for name, (of_kind, take_apart, _) in KINDS.items():
            if isinstance(value, of_kind):
                return {TYPE_MARK + name: [self.dump(part) for part in take_apart(value)]}
        raise UnsupportedError(f"{kind.__name__} has no form in the cache")

    def load(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.load(item) if isinstance(item, list | dict) else item for item in plain]
        if not isinstance(plain, dict):
            return plain
        [name, *more] = plain or [""]
        if more or name[:1] != TYPE_MARK:
            return {key: self.load(item) for key, item in plain.items()}
        parts = self.load(plain[name])
        return self._load_manifest(*parts) if name == TYPE_MARK else KINDS[name[1:]][2](*parts)

    def _dump_manifest(self, manifest: ChunkManifest) -> list[Any]:
        columns = {name: compact(getattr(manifest, name)) for name in COLUMNS}
        steps = {"offset": columns["length"]}
        packed = [self.dump(pack(column, steps.get(name))) for name, column in columns.items()]
        files = [self.numbers.setdefault(file, len(self.numbers)) for file in manifest.files]
        return [[*manifest.shape], files, self.dump([*manifest.inline]), packed]

    def _load_manifest(self, shape: Any, files: Any, inline: Any, packed: Any) -> ChunkManifest:
        columns = dict(zip(COLUMNS, packed, strict=True))
        steps = {"offset": unpack(columns["length"])}
        if any(number < 0 for number in files):
            raise ValueError(f"there is no file {min(files)}")
        return ChunkManifest.build(
            tuple(shape),
            files=[self.files[number] for number in files],
            inline=inline,
            **{name: unpack(column, steps.get(name)) for name, column in columns.items()},
        )


def _find_unreadable_reason(data: object) -> str | None:
    """Return why an array cannot be read, or None for other data."""
    pipelines = data.pipelines if isinstance(data, ManifestArray) else ()
    codecs = (codec for pipeline in pipelines for codec in pipeline.codecs)
    return next((codec.reason for codec in codecs if isinstance(codec, Unreadable)), None)


def _split_array(array: ManifestArray) -> list[Any]:
    if (refusal := _find_unreadable_reason(array)) is not None:
        return [[*array.shape], array.dtype, refusal]
    metadata, parts = extended_to_v3(array)
    return [metadata, array.dtype, [part.manifest for part in parts]]


def _make_array(about: Any, dtype: Any, manifests: Any) -> ManifestArray:
    if isinstance(manifests, str):
        return ManifestArray.unreadable(about, dtype, manifests)
    parts = [ManifestPart(n, (0,) * len(m.shape), m) for n, m in enumerate(manifests)]
    array = array_from_v3(about, lambda grids, pipelines: parts)
    # dtypes of Zarr v3 have no byte order
    return array if array.dtype == dtype else replace(array, dtype=dtype)


def _make_group(variables: Any, *others: Any) -> ManifestGroup:
    refusals = {name: _find_unreadable_reason(v.data) for name, v in variables.items()}
    problems = {name: UnsupportedError(text) for name, text in refusals.items() if text}
    attributes, groups, encoding, left_out = others
    return ManifestGroup(variables, attributes, groups, encoding, problems, left_out=left_out)


def _split_values(values: Any) -> list[Any]:
    """Return text unchanged, and other values as bytes."""
    dtype = values.dtype
    if dtype.kind == "O" and all(type(item) is str for item in values.flat):
        return [[*values.shape], dtype, values.reshape(-1).tolist()]
    if dtype.hasobject or dtype.kind == "T" or dtype.char in "gG":
        raise UnsupportedError(f"values of {dtype!r}")
    return [[*values.shape], dtype, values.tobytes()]


def _make_values(shape: Any, dtype: Any, data: Any) -> Any:
    # a copy, because the user may write to loaded values
    flat = np.array(data, dtype) if isinstance(data, list) else np.frombuffer(data, dtype).copy()
    return flat.reshape(shape)


def _make_dtype(plain: Any, metadata: Any) -> Any:
    dtype = np.dtype(object) if plain == "|O" else dtype_from_json(plain)
    return np.dtype(dtype, metadata=metadata) if metadata else dtype


KINDS: dict[str, tuple[Any, Callable[[Any], Iterable[Any]], Callable[..., Any]]] = {
    # some are numbers, bytes or text of Python, too
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
"""By name: a type, the function that splits its values into parts, and the one that rebuilds them.
"""
