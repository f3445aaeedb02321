"""Stores of a simulation: the verbs of a store, each made of requests that an explorer answers.

Three ways to keep writers apart: conditions of an object store (the code that ships sends them, and
looks for its own write after a refusal), a lock (as for memory), and nothing, for a single writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from protocol.explorer import Failed, Request, World, ask, remember

from virtualds.errors import make_exists_error
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.conditional import (
    ConditionFailedError,
    ContentVersioning,
    FileVersion,
    MemoryVersioning,
    ObjectVersioning,
    create,
)
from virtualds.stores.store import (
    ChangedError,
    ListedFile,
    Range,
    RequestError,
    RequestLimits,
    StoreError,
    hash_version,
)

SCHEME = "simulated"
"""The scheme of the urls of these stores."""

# ---------------------------------------------------------------------- the world


class File(NamedTuple):
    """An object: what it holds, how often its name was written, by which write, and when."""

    data: bytes | None
    generation: int
    writer: str | None
    modified: int


class Objects(NamedTuple):
    """All objects by name, in order, the time, and who holds the lock."""

    files: tuple[tuple[str, File], ...] = ()
    clock: int = 0
    holder: str = ""

    def find(self, name: str) -> File | None:
        """Return an object, also one that was removed."""
        return next((file for known, file in self.files if known == name), None)


TICK = 2.5
"""Seconds between two ticks of the clock: more than the patience for a first fence."""
BEGIN = 1_780_000_000
"""When the clock begins, in seconds since 1970."""


def to_seconds(time: int) -> float:
    """Return a time of the clock in seconds since 1970."""
    return BEGIN + TICK * time


class ObjectWorld(World):
    """The server of an object store: each request is one step.

    Parameters
    ----------
    numbered : bool
        Whether a version is a number that never comes again, as Google's generations; else the
        content gives a version its name, as in S3.
    conditions : bool
        Whether it heeds conditions.
    """

    lost = Failed(RequestError, "no answer")
    free = frozenset({"clock"})

    def __init__(self, *, numbered: bool = False, conditions: bool = True) -> None:
        self.numbered, self.conditions = numbered, conditions

    def changes(self, request: Request) -> bool:
        return request.verb in ("PUT", "PUT IF", "DELETE", "RENAME", "take the lock", "leave it")

    def is_sent(self, request: Request) -> bool:
        return request.verb not in ("sleep", "take the lock", "leave it")

    def tick(self, state: Objects) -> Objects:
        return state._replace(clock=state.clock + 1)

    def after_crash(self, state: Objects, actor: str) -> Objects:
        return state._replace(holder="") if state.holder == actor else state

    def version(self, file: File) -> str:
        assert file.data is not None
        return str(file.generation) if self.numbered else hash_version(file.data)

    def answer(self, state: Objects, actor: str, request: Request) -> tuple[Any, Any] | None:
        verb, name, detail = request
        return getattr(self, "_" + verb.lower().replace(" ", "_"))(state, actor, name, detail)

    def _there(self, state: Objects, name: str) -> File | None:
        found = state.find(name)
        return None if found is None or found.data is None else found

    def _put_file(
        self, state: Objects, name: str, data: bytes | None, writer: str | None
    ) -> Objects:
        known = state.find(name)
        generation = known.generation + 1 if known else 1
        if not self.numbered:
            # nobody can see how often a name was written
            generation = 0
        file = File(data, generation, writer, state.clock)
        rest = [pair for pair in state.files if pair[0] != name]
        if data is not None or self.numbered:
            rest.append((name, file))
        return state._replace(files=tuple(sorted(rest, key=lambda pair: pair[0])))

    def _get(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        found = self._there(state, name)
        if found is None:
            return Failed(FileNotFoundError, name), state
        return (found.data, self.version(found), found.writer), state

    def _head(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        found = self._there(state, name)
        if found is None:
            return Failed(FileNotFoundError, name), state
        assert found.data is not None
        return (len(found.data), self.version(found), found.writer), state

    def _put(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        then = self._put_file(state, name, detail, None)
        file = then.find(name)
        assert file is not None
        return self.version(file), then

    def _put_if(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        data, expected, writer = detail
        found = self._there(state, name)
        version = None if found is None else self.version(found)
        if self.conditions and version != expected:
            return Failed(ConditionFailedError, f"{name}: was changed by another writer"), state
        then = self._put_file(state, name, data, writer)
        file = then.find(name)
        assert file is not None
        return self.version(file), then

    def _delete(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        if self._there(state, name) is None:
            return None, state
        return None, self._put_file(state, name, None, None)

    def _list(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        found = tuple(
            (known.removeprefix(f"{name}/"), len(file.data), file.modified)
            for known, file in state.files
            if known.startswith(f"{name}/") and file.data is not None
        )
        return found, state

    def _clock(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        return state.clock, state

    def _sleep(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        # a sleeper finds what it found before, until the clock or the file has changed
        found = self._there(state, name)
        now = (state.clock, None if found is None else self.version(found))
        return None if detail == now else (None, state)

    def _rename(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        found = self._there(state, name)
        if found is None:
            return Failed(FileNotFoundError, name), state
        then = self._put_file(state, name, None, None)
        return None, self._put_file(then, detail, found.data, None)

    def _take_the_lock(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        return None if state.holder else (None, state._replace(holder=actor))

    def _leave_it(self, state: Objects, actor: str, name: str, detail: Any) -> Any:
        return None, state._replace(holder="")


# ---------------------------------------------------------------------- how writers are kept apart


class Filesystem:
    """What the versioning of files asks of fsspec: each method is one request."""

    protocol = "memory"

    def cat_file(self, path: str) -> bytes:
        return bytes(ask("GET", path)[0])

    def isfile(self, path: str) -> bool:
        try:
            ask("HEAD", path)
        except FileNotFoundError:
            return False
        return True

    exists = isfile

    def pipe_file(self, path: str, data: bytes) -> None:
        ask("PUT", path, bytes(data))

    def rm_file(self, path: str) -> None:
        ask("DELETE", path)

    def mv(self, path: str, new: str) -> None:
        ask("RENAME", path, new)

    def makedirs(self, path: str, exist_ok: bool) -> None:
        pass

    def invalidate_cache(self, path: str = "") -> None:
        pass

    def unstrip_protocol(self, path: str) -> str:
        return path


class FolderFilesystem(Filesystem):
    """A filesystem with folders, where files are written beside, and renamed."""

    protocol = SCHEME


class ObjectFilesystem(Filesystem):
    """What the versioning of objects asks of the filesystem of an object store."""

    conditions = ("If-None-Match", "If-Match")

    def find_bucket(self, path: str) -> tuple[str, str]:
        return SCHEME, path.split("/")[2]

    def read_with_version(self, path: str) -> tuple[bytes, str]:
        data, version, writer = ask("GET", path)
        return data, FileVersion.from_writer(version, writer)

    def find_writer(self, path: str) -> tuple[str | None, str]:
        _, version, writer = ask("HEAD", path)
        return writer, version

    def put_conditionally(self, path: str, data: bytes, expected: str | None, writer: str) -> str:
        return str(ask("PUT IF", path, (bytes(data), expected, writer)))

    def put_object(self, path: str, data: bytes) -> str:
        return str(ask("PUT", path, bytes(data)))

    def list_times(self, prefix: str) -> dict[str, float]:
        return {}

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.rm_file(path)


class Conditions(ObjectVersioning):
    """Conditional writes of the simulated server, which has been tried."""

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        return ""


class Lock:
    """The lock of the files in memory: to take it is a step."""

    def __enter__(self) -> None:
        ask("take the lock")

    def __exit__(self, *error: object) -> None:
        ask("leave it")


class Locked(MemoryVersioning):
    """Files in memory, whose writers exclude each other by a lock."""

    lock = Lock()  # type: ignore[assignment]


class SimulatedStore:
    """A store for one way of keeping writers apart."""

    request_limits = RequestLimits(max_gap=0, max_bytes=2**23, max_requests=0)

    def __init__(self, versions: ContentVersioning, filesystem: Filesystem) -> None:
        self.versions, self.filesystem = versions, filesystem

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        self.versions.check_conditions(self.filesystem, url)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        return self.filesystem.cat_file(url)

    def read_with_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        return self.versions.read(self.filesystem, url)

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        try:
            found = self.versions.find_version(self.filesystem, url)
        except FileNotFoundError:
            found = None
        remember(url, found)
        return found

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        return self.versions.write(self.filesystem, url, data, expected)

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        if replace:
            self.filesystem.pipe_file(url, data)
            return
        try:
            self.write_version(url, data, options, None)
        except ChangedError as error:
            raise make_exists_error(url) from error

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        create(self.filesystem, url, data)

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        return [
            ListedFile(
                path, SourceFile(f"{url}/{path}", size, options=options), BEGIN + TICK * time
            )
            for path, size, time in ask("LIST", url)
        ]

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        self.versions.remove(self.filesystem, list(urls))

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        try:
            data = self.filesystem.cat_file(file.url)
        except FileNotFoundError as error:
            raise StoreError(f"there is no file {file.url}") from error
        if any(offset + length > len(data) for offset, length in ranges):
            raise StoreError(f"the file has {len(data)} bytes")
        return [data[offset : offset + length] for offset, length in ranges]

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        pass

    def check_unchanged(self, file: SourceFile) -> None:
        pass

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        return SourceFile(url, ask("HEAD", url)[0], options=options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        data = self.filesystem.cat_file(url)
        return SourceFile(url, len(data), options=options), data[:length]


WAYS = {
    "conditions on etags": (ObjectWorld(), SimulatedStore(Conditions(), ObjectFilesystem())),
    "conditions on generations": (
        ObjectWorld(numbered=True),
        SimulatedStore(Conditions(), ObjectFilesystem()),
    ),
    "a lock": (ObjectWorld(), SimulatedStore(Locked(), Filesystem())),
    "nothing": (ObjectWorld(), SimulatedStore(ContentVersioning(), FolderFilesystem())),
}
"""Ways to keep writers apart: the world, and the store."""
