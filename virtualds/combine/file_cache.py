"""A cache of opened files, in parts of many files each.

Parts that were opened with the same options lie in one folder. An entry of a part holds files of
one structure as columns, with their fingerprints, their groups and the loaded values; from these
datasets and trees are made as after a scan. If a part is missing or damaged, or a file has changed,
the file is opened without the cache.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.alike_files import ABSENT, OfEachFile
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data, ManifestGroup, ManifestVariable
from virtualds.bounds import decode_stream
from virtualds.chunks.columns import COLUMNS, PackedColumn, SmallColumn, pack, unpack
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import compact
from virtualds.codecs.codec import Unreadable
from virtualds.combine.alike_files import (
    JoinableFiles,
    NeedsFullCombineError,
    collect_files,
    find_plan,
)
from virtualds.combine.file_batch import FileBatch, OpenedAlone
from virtualds.datasets.decoding import NO_NAME, encoding_of
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.lazy import get_virtual_array, is_unread
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
from virtualds.json_values import from_json, to_json
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.urls import join_path, normalise_url, scheme_of

MAGIC = b"virtualds-scan-2\n"
DIGEST, LENGTH = 16, 8
TEXT = {"type": "str"}
"""The Python class that stands for dtypes of text of any length."""
DAMAGE = (
    *(VirtualdsError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, RecursionError, zlib.error),
)
"""Errors of making a group from other bytes."""


@dataclass(frozen=True)
class Entry:
    """Files that were opened, as one group.

    ``sources`` are the files, ``others`` the files besides to which their arrays refer. The rest is
    as `FileBatch` has it; a single file may have groups below.
    """

    sources: Sequence[SourceFile]
    others: Sequence[SourceFile]
    group: ManifestGroup
    dim: str | None = None
    lengths: Sequence[int] = ()
    attributes: OfEachFile = field(default_factory=dict)
    encodings: OfEachFile = field(default_factory=dict)
    stacked: Mapping[str, ManifestArray | npt.NDArray[Any]] = field(default_factory=dict)
    same: frozenset[str] = frozenset()


class Listed(NamedTuple):
    """An entry of a part: its files, and the other files that it refers to."""

    sources: Sequence[SourceFile]
    others: Sequence[SourceFile]


def dump_entry(entry: Entry, options: StorageOptions | None = None) -> dict[str, Any]:
    """Return an entry as JSON values.

    ``options`` are the access options that files may have. They are not written.

    Raises
    ------
    UnsupportedError
        Something in the group cannot be written.
    """
    notes = _Notes(options)
    said = {
        "group": notes.dump_group(entry.group),
        "dim": entry.dim,
        "lengths": [*entry.lengths],
        "attributes": _dump_columns(entry.attributes),
        "encodings": _dump_columns(entry.encodings),
        "stacked": {name: notes.dump_data(data) for name, data in entry.stacked.items()},
        "same": sorted(entry.same),
        "sources": list(map(notes.dump_file, entry.sources)),
        "others": list(map(notes.dump_file, entry.others)),
    }
    return {**said, "files": list(map(notes.describe_file, notes.table))}


def to_bytes(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Return entries, as `dump_entry` gives them, as the bytes of a part."""
    listed = [[entry[name] for name in ("files", "sources", "others")] for entry in entries]
    try:
        texts = [json.dumps(said, separators=(",", ":")) for said in (listed, entries)]
    except TypeError as error:
        raise UnsupportedError(f"a part of the cache: {error}") from error
    head, body = (zlib.compress(text.encode(), 1) for text in texts)
    rest = len(head).to_bytes(LENGTH, "little") + head + body
    return MAGIC + hashlib.blake2b(rest, digest_size=DIGEST).digest() + rest


def list_entries(data: bytes, options: StorageOptions | None = None) -> list[Listed]:
    """Return the files of each entry of a part.

    Raises
    ------
    FormatError
        The bytes are not those that were written.
    """
    head, _ = _split(data)
    try:
        return [_load_listed(_Notes(options), *one) for one in _load_json(head)]
    except DAMAGE as error:
        raise FormatError(f"a part of the cache: {error}; remove it") from error


def load_entry(data: bytes, number: int, options: StorageOptions | None = None) -> Entry:
    """Return an entry of a part.

    Raises
    ------
    FormatError
        The bytes are not those that were written.
    """
    _, body = _split(data)
    try:
        said = _load_json(body)[number]
        notes = _Notes(options)
        listed = _load_listed(notes, *(said[name] for name in ("files", "sources", "others")))
        return Entry(
            *listed,
            notes.load_group(said["group"]),
            said["dim"],
            tuple(map(int, said["lengths"])),
            _load_columns(said["attributes"], len(listed.sources), of_encodings=False),
            _load_columns(said["encodings"], len(listed.sources), of_encodings=True),
            {name: _demand_array(notes.load_data(data)) for name, data in said["stacked"].items()},
            frozenset(said["same"]),
        )
    except DAMAGE as error:
        raise FormatError(f"a part of the cache: {error}; remove it") from error


def _split(data: bytes) -> tuple[bytes, bytes]:
    rest = data[len(MAGIC) + DIGEST :]
    digest = hashlib.blake2b(rest, digest_size=DIGEST).digest()
    if data[: len(MAGIC) + DIGEST] != MAGIC + digest:
        raise FormatError("a part of the cache: its bytes have changed; remove it")
    end = LENGTH + int.from_bytes(rest[:LENGTH], "little")
    return rest[LENGTH:end], rest[end:]


def _load_json(data: bytes) -> Any:
    return json.loads(decode_stream(zlib.decompressobj(), data, None))


def _load_listed(notes: _Notes, files: Any, sources: Any, others: Any) -> Listed:
    notes.table.extend(map(notes.load_file, files))
    return Listed(list(map(notes.find_file, sources)), list(map(notes.find_file, others)))


def _demand_array(data: Data) -> ManifestArray | npt.NDArray[Any]:
    if not isinstance(data, ManifestArray | np.ndarray):
        raise TypeError("an array is none")
    return data


def _dump_columns(columns: OfEachFile) -> list[Any]:
    """Return what differs between files: who has it, its name, the places, and the values there."""
    found, known = list[Any](), dict[int, int]()
    for (owner, name), values in columns.items():
        if (like := known.setdefault(id(values), len(found))) < len(found):
            # variables share the names of their files
            found.append([owner, name, None, {"like": like}])
            continue
        places = [place for place, value in enumerate(values) if value is not ABSENT]
        present = [values[place] for place in places]
        if all(type(value) is str for value in present):
            said: Any = {"texts": present}
        elif all(value is str or isinstance(value, np.dtype) for value in present):
            said = {"dtypes": list(map(_dtype, present))}
        elif all(isinstance(value, set) for value in present):
            said = {"sets": list(map(sorted, present))}
        else:
            said = {"values": to_json({name: present})}
        found.append([owner, name, None if len(places) == len(values) else places, said])
    return found


def _load_columns(said: Any, count: int, *, of_encodings: bool) -> OfEachFile:
    found = dict[tuple[str, str], Sequence[Any]]()
    for owner, name, places, one in said:
        [(kind, present)] = one.items()
        if kind == "like":
            found[owner, name] = list(found.values())[present]
            continue
        if kind == "values":
            present = _attributes(*present)[name]
            present = list(map(_tuples, present)) if of_encodings else present
        elif kind != "texts":
            make: Any = {"dtypes": _dtype_of, "sets": set}[kind]
            present = list(map(make, present))
        values: list[Any] = [ABSENT] * count
        for place, value in zip(range(count) if places is None else places, present, strict=True):
            values[place] = value
        found[owner, name] = values
    return found


def refusal(data: object) -> str | None:
    """Return why an array cannot be read, None for other data."""
    pipelines = data.pipelines if isinstance(data, ManifestArray) else ()
    codecs = (codec for pipeline in pipelines for codec in pipeline.codecs)
    return next((codec.reason for codec in codecs if isinstance(codec, Unreadable)), None)


@dataclass(frozen=True)
class _Notes:
    """Converts groups to JSON, and back; files are numbers in a table."""

    options: StorageOptions | None
    table: list[SourceFile] = field(default_factory=list)
    numbers: dict[SourceFile, int] = field(default_factory=dict)

    def dump_group(self, group: ManifestGroup) -> dict[str, Any]:
        return {
            "attributes": to_json(group.attributes),
            "unlimited": sorted(group.encoding.get("unlimited_dims", ())),
            "variables": {name: self._dump_variable(v) for name, v in group.variables.items()},
            "groups": {name: self.dump_group(child) for name, child in group.groups.items()},
            "left_out": {name: self._dump_variable(v) for name, v in group.left_out.items()},
        }

    def load_group(self, said: Mapping[str, Any]) -> ManifestGroup:
        variables = {name: self._load_variable(*v) for name, v in said["variables"].items()}
        reasons = {name: refusal(v.data) for name, v in variables.items()}
        return ManifestGroup(
            variables,
            _attributes(*said["attributes"]),
            {name: self.load_group(child) for name, child in said["groups"].items()},
            {"unlimited_dims": set(said["unlimited"])},
            {name: UnsupportedError(reason) for name, reason in reasons.items() if reason},
            left_out={name: self._load_variable(*v) for name, v in said["left_out"].items()},
        )

    def _dump_variable(self, variable: ManifestVariable) -> list[Any]:
        encoding = {**variable.encoding}
        if "dtype" in encoding:
            encoding["dtype"] = _dtype(encoding["dtype"])
        data, attributes = self.dump_data(variable.data), to_json(variable.attributes)
        return [variable.dims, data, attributes, to_json(encoding)]

    def _load_variable(
        self, dims: Any, data: Any, attributes: Any, encoding: Any
    ) -> ManifestVariable:
        # JSON has no tuples, which encodings use
        found = {name: _tuples(value) for name, value in _attributes(*encoding).items()}
        if "dtype" in encoding[0]:
            found["dtype"] = _dtype_of(encoding[0]["dtype"])
        return ManifestVariable(tuple(dims), self.load_data(data), _attributes(*attributes), found)

    def dump_data(self, data: Data) -> dict[str, Any]:
        if isinstance(data, np.ndarray):
            return {"shape": data.shape, "dtype": _dtype(data.dtype), "values": _values(data)}
        if not isinstance(data, ManifestArray):
            raise UnsupportedError("its values are lazy")
        if reason := refusal(data):
            return {"shape": data.shape, "dtype": _dtype(data.dtype), "refusal": reason}
        array, parts = extended_to_v3(data)
        dtype = _dtype(data.dtype)
        return {"array": array, "dtype": dtype, "parts": list(map(self._dump_part, parts))}

    def load_data(self, said: Mapping[str, Any]) -> Data:
        dtype = _dtype_of(said["dtype"])
        if "array" in said:
            parts = [self._load_part(*part) for part in said["parts"]]
            array = array_from_v3(said["array"], lambda grids, pipelines: parts)
            # types of Zarr v3 have no byte order
            return array if array.dtype == dtype else replace(array, dtype=dtype)
        shape = said["shape"]
        if "refusal" in said:
            return ManifestArray.unreadable(shape, dtype, said["refusal"])
        if dtype.hasobject:
            return np.array(said["values"], object).reshape(shape)
        # a copy, because the user may write into loaded values
        return np.frombuffer(_bytes(said["values"]), dtype).reshape(shape).copy()

    def _dump_part(self, part: ManifestPart) -> list[Any]:
        manifest = part.manifest.loaded()
        columns = {name: compact(getattr(manifest, name)) for name in COLUMNS}
        steps = {"offset": columns["length"]}
        packed = [pack(column, steps.get(name)) for name, column in columns.items()]
        kept = [p if isinstance(p, int) else [*p[:-1], _text(p[-1])] for p in packed]
        files, inline = map(self.dump_file, manifest.files), map(_text, manifest.inline)
        return [part.fragment, part.origin, manifest.shape, list(files), list(inline), kept]

    def _load_part(
        self, fragment: int, origin: Any, shape: Any, files: Any, inline: Any, kept: Any
    ) -> ManifestPart:
        given = dict(zip(COLUMNS, map(_packed_of, kept), strict=True))
        steps = {"offset": unpack(given["length"])}
        manifest = ChunkManifest.build(
            tuple(shape),
            files=tuple(map(self.find_file, files)),
            inline=tuple(map(_bytes, inline)),
            **{name: unpack(column, steps.get(name)) for name, column in given.items()},
        )
        return ManifestPart(fragment, tuple(origin), manifest)

    def dump_file(self, file: SourceFile) -> int:
        number = self.numbers.setdefault(file, len(self.table))
        if number == len(self.table):
            self.table.append(file)
        return number

    def find_file(self, number: int) -> SourceFile:
        if number < 0:
            raise ValueError(f"there is no file {number}")
        return self.table[number]

    def describe_file(self, file: SourceFile) -> list[Any]:
        if file.options not in (None, self.options):
            raise UnsupportedError(f"{file.url}: it has access options of its own")
        return [file.url, *file.fingerprint, file.options is not None]

    def load_file(self, said: Any) -> SourceFile:
        url, size, mtime, etag, has_options = said
        return SourceFile(url, size, mtime, etag, self.options if has_options else None)


def _attributes(plain: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_json(value, types.get(name)) for name, value in plain.items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _dtype(dtype: Any) -> Any:
    """Return a dtype with its metadata, or ``str``."""
    if dtype is str:
        return TEXT
    said = {name: TEXT if value is str else value for name, value in (dtype.metadata or {}).items()}
    return [dtype_to_json(dtype), said]


def _dtype_of(said: Any) -> Any:
    if said == TEXT:
        return str
    spelled, metadata = said
    dtype = np.dtype(object) if spelled == "|O" else dtype_from_json(spelled)
    known = {name: str if value == TEXT else value for name, value in metadata.items()}
    return np.dtype(dtype, metadata=known) if known else dtype


def _values(values: npt.NDArray[Any]) -> Any:
    """Return values in memory: text unchanged, other values as text of their bytes."""
    if values.dtype == object and all(type(item) is str for item in values.flat):
        return values.reshape(-1).tolist()
    if values.dtype.hasobject or values.dtype.kind == "T":
        raise UnsupportedError(f"values of {values.dtype!r}")
    return _text(values.tobytes())


def _packed_of(said: Any) -> int | SmallColumn | PackedColumn:
    if isinstance(said, int):
        return said
    shape, *rest, data = said
    kind: Any = SmallColumn if len(said) == len(SmallColumn._fields) else PackedColumn
    found: SmallColumn | PackedColumn = kind(tuple(shape), *rest, _bytes(data))
    return found


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


OTHERS = 8
"""Most other files that a cached file may refer to: each is checked too."""
MOST_WAITING, LONGEST_WAIT = 256, 10.0
"""Files opened one by one, and seconds, after which a part is written: no more is ever lost."""
SUFFIX = ".part"
NO_PLAN = DecodingPlan({}, frozenset(), frozenset())


class Place(NamedTuple):
    """Where a file is in the cache: the url of the part, the entry, and the place in that."""

    part: str
    entry: int
    place: int


@dataclass
class Index:
    """What is in the parts of a folder, by the url of the file."""

    build: str
    places: dict[str, list[tuple[SourceFile, Place]]] = field(default_factory=dict)
    others: dict[tuple[str, int], Sequence[SourceFile]] = field(default_factory=dict)


_index: list[Index] = []
"""The index of the last build of this process."""


class FileCache:
    """A folder of opened files.

    Parameters
    ----------
    folder : str
        Its url; any number of processes and machines may use it at the same time.
    opening : OpenOptions
        How files are opened.
    options : StorageOptions or None
        Access options of the files. They are never written.

    Raises
    ------
    ValueError
        ``loadable_variables`` is a function.
    """

    def __init__(
        self, folder: str, opening: OpenOptions, options: StorageOptions | None = None
    ) -> None:
        settings = _format_settings(opening).encode("utf-8", "surrogatepass")
        parts = join_path(folder, hashlib.blake2b(settings, digest_size=20).hexdigest())
        # a worker sees the parts that were there when the build began
        self.__setstate__((parts, opening, options, uuid.uuid4().hex))

    def __getstate__(self) -> tuple[Any, ...]:
        # with its folder, which goes by the settings of the process that began
        return self._parts, self.opening, self.options, self.build

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._parts, self.opening, self.options, self.build = state
        self._waiting: list[FileBatch | OpenedAlone] = []
        self._since, self._lock = time.monotonic(), threading.Lock()

    def look_up(self, items: Sequence[tuple[int, Any]]) -> list[FileBatch | OpenedAlone]:
        """Return those of some files that are cached and have not changed."""
        index = self._load_index()
        urls = {number: normalise_url(file) for number, file in items}
        known = [(number, url) for number, url in urls.items() if url in index.places]
        states = self._list_fingerprints([url for _, url in known])
        by_entry: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for (number, url), state in zip(known, states, strict=True):
            for source, place in index.places[url] if state is not None else ():
                if source == state:
                    by_entry[place[:2]][place.place] = number
                    break
        files = dict(items)
        found: list[FileBatch | OpenedAlone] = []
        for where, numbers in by_entry.items():
            if self._are_as_before(index.others[where]):
                found += self._load(where, {p: (n, files[n]) for p, n in numbers.items()})
        return found

    def add(self, opened: FileBatch | OpenedAlone) -> None:
        """Cache files that were opened, now or with those that follow.

        Raises
        ------
        OSError
            The folder cannot be written to.
        """
        if len(opened) == 1:
            # what is done with the file before it is written must not be cached
            try:
                opened = replace(opened, group=_own_values(load_group(opened)))
            except UnsupportedError:
                return
        with self._lock:
            self._waiting.append(opened)
            waits = time.monotonic() - self._since > LONGEST_WAIT
            if len(opened) == 1 and not waits and len(self._waiting) < MOST_WAITING:
                return
        self.finish()

    def finish(self) -> None:
        """Write the files that wait.

        Raises
        ------
        OSError
            The folder cannot be written to.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._since = time.monotonic()
        entries = []
        for entry in _list_entries_of(waiting):
            others = entry.others
            # folders, archives and sets refer only to other files: their own fingerprint does not
            # change when these do
            if len(others) <= OTHERS and self._are_as_before(others):
                with suppress(UnsupportedError):
                    entries.append(dump_entry(entry, self.options))
        if entries:
            name = hashlib.blake2b(repr([e["files"] for e in entries]).encode("utf-8", "replace"))
            place = join_path(self._parts, name.hexdigest()[:40] + SUFFIX)
            find_store(place).write_file(place, to_bytes(entries), None)

    def _load_index(self) -> Index:
        with self._lock:
            if _index and _index[0].build == self.build:
                return _index[0]
            index = Index(self.build)
            store = find_store(self._parts)
            for listed in store.list_files(self._parts, None):
                if listed.path.endswith(SUFFIX):
                    part = join_path(self._parts, listed.path)
                    with suppress(FormatError, FileNotFoundError):
                        entries = list_entries(store.read_all(part, None), self.options)
                        _add_to_index(index, part, entries)
            _index[:] = [index]
            return index

    def _list_fingerprints(self, urls: Sequence[str]) -> list[SourceFile | None]:
        if len(urls) < 2 or scheme_of(urls[0]) == "file":
            return list(map(self._fingerprint, urls))
        with ThreadPoolExecutor(min(get_options().max_requests, len(urls))) as pool:
            return list(pool.map(self._fingerprint, urls))

    def _are_as_before(self, files: Sequence[SourceFile]) -> bool:
        """Say whether none of some files has changed."""
        return self._list_fingerprints([file.url for file in files]) == [*files]

    def _fingerprint(self, url: str) -> SourceFile | None:
        """Return the present state of a file, None if it does not show changes."""
        try:
            source = find_store(url).describe(url, self.options)
        except OSError:
            # opening the file raises a better error
            return None
        return source if _shows_changes(source) else None

    def _load(
        self, where: tuple[str, int], wanted: Mapping[int, tuple[int, Any]]
    ) -> list[FileBatch | OpenedAlone]:
        """Return some files of an entry: by their places, numbers and names; none if damaged."""
        try:
            entry = _read_entry(*where, self.options)
        except (FileNotFoundError, FormatError):
            return []
        group = entry.group if len(entry.sources) > 1 else _own_values(entry.group)
        names = [wanted.get(place, (-1, "")) for place in range(len(entry.sources))]
        numbers, urls = zip(*names, strict=True)
        batch = FileBatch(
            urls,
            group,
            NO_PLAN,
            self.opening,
            numbers,
            entry.dim,
            tuple(entry.lengths),
            entry.attributes,
            entry.encodings,
            entry.stacked,
            entry.same,
        )
        known = min(wanted)
        first = batch.cut(known)
        if not self.opening.below:
            with suppress(NeedsFullCombineError):
                batch = replace(batch, plan=self._find_plan(first))
                if len(wanted) == len(batch):
                    return [batch]
                files = [batch.cut(place, known) for place in wanted]
                return [
                    replace(f, plan=self._find_plan(f), is_cut=False) if f.is_cut else f
                    for f in files
                ]
        # it decodes by itself
        decoded = make_dataset_or_tree(Location.of(first.urls[0]), first.group, self.opening)
        return [OpenedAlone(first.urls[0], first.group, decoded, first.numbers)]

    def _find_plan(self, file: FileBatch) -> DecodingPlan:
        return find_plan(file.urls[0], file.group, self.opening, self.options)


@lru_cache(4)
def _read_entry(part: str, number: int, options: StorageOptions | None) -> Entry:
    return load_entry(find_store(part).read_all(part, None), number, options)


def _add_to_index(index: Index, part: str, entries: Sequence[Listed]) -> None:
    for number, entry in enumerate(entries):
        index.others[part, number] = entry.others
        for place, source in enumerate(entry.sources):
            places = index.places.setdefault(source.url, [])
            places.append((source, Place(part, number, place)))


def _shows_changes(source: SourceFile) -> bool:
    return bool(source.size and (source.mtime or source.etag))


# ---------------------------------------------------------------------- what is cached


def _list_entries_of(opened: Sequence[FileBatch | OpenedAlone]) -> list[Entry]:
    """Return opened files as entries: those of one structure as one."""
    alone, batches = [], []
    singles: dict[int, list[FileBatch]] = defaultdict(list)
    for one in opened:
        if isinstance(one, OpenedAlone):
            alone.append(one)
        elif len(one) == 1:
            singles[id(one.plan)].append(one)
        else:
            batches.append(one)
    for alike in singles.values():
        try:
            batches += collect_files(JoinableFiles.of(alike)) if len(alike) > 1 else alike
        except NeedsFullCombineError:
            batches += alike
    entries = [entry for batch in batches for entry in _make_entries(batch)]
    for one in alone:
        entries += _make_single(one.url, one.group)
    return entries


def load_group(opened: FileBatch | OpenedAlone) -> ManifestGroup:
    """Return the group of a file with its loaded values, and its undecodable variables.

    Raises
    ------
    UnsupportedError
        Some values are lazy.
    """
    if isinstance(opened, FileBatch):
        return opened.group
    return _as_opened(opened.group, opened.decoded)


def _own_values(group: ManifestGroup) -> ManifestGroup:
    """Return a group whose values in memory are copies."""
    variables = {
        name: replace(v, data=v.data.copy()) if isinstance(v.data, np.ndarray) else v
        for name, v in group.variables.items()
    }
    below = {name: _own_values(child) for name, child in group.groups.items()}
    return replace(group, variables=variables, groups=below)


def _make_entries(batch: FileBatch) -> list[Entry]:
    """Return a batch as an entry; files that refer to other files have entries of their own."""
    if len(batch) == 1:
        return _make_single(batch.urls[0], batch.group)
    used = _list_sources(batch.group, batch.stacked.values())
    own = [used.pop(normalise_url(url), None) for url in batch.urls]
    sources = [source for source in own if source is not None and _shows_changes(source)]
    if used or len(sources) < len(own):
        return [entry for file in batch.list_files() for entry in _make_entries(file)]
    columns = batch.attributes, batch.encodings, batch.stacked, batch.same
    return [Entry(sources, (), batch.group, batch.dim, batch.lengths, *columns)]


def _make_single(url: Any, group: ManifestGroup) -> list[Entry]:
    used = _list_sources(group, ())
    own = used.pop(normalise_url(url), None)
    if own is None or not _shows_changes(own):
        return []
    return [Entry([own], [*used.values()], group)]


def _list_sources(group: ManifestGroup, more: Any) -> dict[str, SourceFile]:
    """Return the files that the virtual arrays of a group refer to, by url."""
    data = [v.data for _, part in group.walk() for v in part.variables.values()]
    arrays = [one for one in (*data, *more) if isinstance(one, ManifestArray)]
    return {file.url: file for array in arrays for file in array.listed_sources}


def _as_opened(group: ManifestGroup, found: xr.Dataset | xr.DataTree) -> ManifestGroup:
    """Return a group as it was decoded to a dataset or tree."""
    below = {}
    if isinstance(found, xr.DataTree):
        nodes = found.children
        below = {name: _as_opened(child, nodes[name]) for name, child in group.groups.items()}
        found = found.to_dataset(inherit=False)
    variables = {
        name: _variable_as_opened(v, found.variables.get(None if name == NO_NAME else name))
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables, groups=below)


def _variable_as_opened(stored: ManifestVariable, found: xr.Variable | None) -> ManifestVariable:
    # a tree holds inherited coordinates only in the parent group
    array = None if found is None else get_virtual_array(found)
    if array is not None:
        return stored if refusal(array) is None else replace(stored, data=array)
    if found is not None and is_unread(found):
        raise UnsupportedError("values that are lazy")
    return replace(stored, data=stored.read(), encoding=encoding_of(stored))


def _format_settings(opening: OpenOptions) -> str:
    """Return all options that decide what opening a file gives, as text.

    Access options are left out: they may be secret, and change while the files do not.

    Raises
    ------
    ValueError
        An argument is a function.
    """
    if callable(opening.loadable_variables):
        raise ValueError(
            "cache: loadable_variables is a function, whose results may change; give names or "
            "patterns"
        )
    options = get_options()
    versions = [version(library) for library in ("virtualds", "xarray", "numpy")]
    return repr((versions, options.small_variable, options.load_limit, opening))
