"""The adapter of the library Icechunk, imported only when a repository is opened.

It uses the documented interface alone: coroutines of stores for zarr-python, and references of
whole arrays. Coroutines run in a thread of their own, since the caller's may run a loop already.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import prod
from typing import Any, NamedTuple, TypeVar

import icechunk
import numpy as np
from zarr.core.buffer import default_buffer_prototype

from virtualds.chunks.projection import Ints
from virtualds.chunks.tables import is_sparse
from virtualds.errors import AccessError, ConflictError, FormatError, ReadError, UnsupportedError
from virtualds.formats.icechunk.locations import ObjectLocation
from virtualds.formats.icechunk.target import MAIN, Needs, Split
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile
from virtualds.urls import kind_of

NATIVE, INLINE = int(icechunk.ChunkType.native), int(icechunk.ChunkType.inline)
"""Kinds of chunks that do not lie in source files."""
PATIENCE, PAUSE = 3.0, 0.05
"""Seconds in which another writer has created a repository, and between two looks at it."""
REQUESTS_AT_ONCE = 256
"""Chunks that are written at a time."""
MARKER = "zarr.json"
Result = TypeVar("Result")


ERRORS: tuple[tuple[type[Exception], type[Exception], str], ...] = (
    (icechunk.RepositoryNotFoundError, FileNotFoundError, "there is no Icechunk repository"),
    (icechunk.NotFoundError, FileNotFoundError, "{said}"),
    (
        icechunk.ConflictError,
        ConflictError,
        "another writer has committed meanwhile; write again to what is there now",
    ),
    (icechunk.AlreadyExistsError, FileExistsError, "{said}"),
    (icechunk.ReadOnlyError, AccessError, "{said}; pass a writable session"),
    (icechunk.StorageError, ReadError, "{said}; check the path and the options"),
    (icechunk.IcechunkError, FormatError, f"Icechunk {icechunk.__version__} says: {{said}}"),
)
"""Errors of Icechunk, ours in their place, and what those say; the first that fits counts."""


@contextmanager
def describe_errors(url: str) -> Iterator[None]:
    """Turn errors of Icechunk into ours, with the url."""
    try:
        yield
    except icechunk.IcechunkError as error:
        lines = str(error.args[0] if error.args else error).strip().splitlines()
        kind, text = next((k, text) for of, k, text in ERRORS if isinstance(error, of))
        raise kind(f"{url}: {text.format(said=next(iter(lines), ''))}") from error


# ---------------------------------------------------------------------- repositories


def make_storage(place: ObjectLocation) -> Any:
    """Return Icechunk's storage for a place."""
    if place.kind == "local":
        return icechunk.local_filesystem_storage(place.arguments["path"])
    return getattr(icechunk, f"{place.kind}_storage")(**place.arguments)


def check_config(config: Any) -> None:
    """Raise an error if a configuration is none of Icechunk's."""
    if config is not None and not isinstance(config, icechunk.RepositoryConfig):
        raise TypeError(f"config={config!r:.80}: give an icechunk.RepositoryConfig")


def open_repository(place: ObjectLocation, url: str, config: Any = None) -> Any:
    """Open a repository; save a configuration in it, if one is given.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    with describe_errors(url):
        found = icechunk.Repository.open(make_storage(place))
        return found if config is None else _save_config(found, found.config.merge(config))


def is_repository(place: ObjectLocation, url: str) -> bool:
    """Say whether there is a repository."""
    with describe_errors(url):
        return bool(icechunk.Repository.exists(make_storage(place)))


def create_repository(place: ObjectLocation, url: str, needed: Needs, given: Any = None) -> Any:
    """Create a repository whose configuration has what is needed.

    Raises
    ------
    FileExistsError
        There are other files of this name.
    """
    config = icechunk.RepositoryConfig.default()
    config = config if given is None else config.merge(given)
    _add_needed(config, needed)
    storage = make_storage(place)
    try:
        with describe_errors(url):
            return icechunk.Repository.create(storage, config)
    except FormatError as error:
        # another writer may be creating it at the same time
        end = time.monotonic() + PATIENCE
        while not icechunk.Repository.exists(storage) and time.monotonic() < end:
            time.sleep(PAUSE)
        raise FileExistsError(
            f"{url}: there is something of this name that is not a repository ({error}); remove "
            f"it, or choose another name"
        ) from error


def configure(repository: Any, url: str, needed: Needs) -> Any:
    """Return a repository whose configuration also has what is needed."""
    with describe_errors(url):
        config = repository.config
        return _save_config(repository, config) if _add_needed(config, needed) else repository


def _save_config(repository: Any, config: Any) -> Any:
    changed = repository.reopen(config=config)
    changed.save_config()
    return changed


def list_containers(config: Any) -> list[str]:
    """Return the prefixes of the containers of a configuration."""
    return sorted(c.url_prefix for c in (config.virtual_chunk_containers or {}).values())


def list_uncovered(config: Any, prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that no container of a configuration covers."""
    known = tuple(list_containers(config))
    return [prefix for prefix in prefixes if not prefix.startswith(known)]


def _add_needed(config: Any, needed: Needs) -> bool:
    """Let a repository refer to files below some prefixes, and split arrays; say if this is new."""
    lacking = list_uncovered(config, needed.containers)
    for prefix in lacking:
        kind, arguments = needed.containers[prefix]
        if kind == "local":
            store = icechunk.local_filesystem_store(arguments["path"])
        elif kind == "gcs":
            store = icechunk.gcs_store()
        elif kind == "azure":
            account = {"account": arguments["account"], **arguments["config"]}
            store = icechunk.ObjectStoreConfig.Azure(account)
        else:
            compatible = {"s3_compatible": True} if arguments.get("endpoint_url") else {}
            stores = {"http": icechunk.http_store, "s3": icechunk.s3_store}
            store = stores[kind](**arguments, **compatible)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    return _add_splits(config, needed.splits) or bool(lacking)


def _add_splits(config: Any, splits: Mapping[str, Split]) -> bool:
    """Split the manifests of arrays, so that an append writes the last one; say if this is new.

    A repository whose owner has split its arrays is left as it is.
    """
    wanted = {
        icechunk.ManifestSplitCondition.path_matches(f"^/{re.escape(path)}$"): {
            icechunk.ManifestSplitDimCondition.Axis(split.axis): split.chunks
        }
        for path, split in splits.items()
    }
    manifest = config.manifest or icechunk.ManifestConfig()
    known = manifest.splitting.to_dict() if manifest.splitting else {}
    lacking = {condition: split for condition, split in wanted.items() if condition not in known}
    if not lacking or (known and len(lacking) == len(wanted)):
        return False
    manifest.splitting = icechunk.ManifestSplittingConfig.from_dict({**known, **lacking})
    config.manifest = manifest
    return True


# ---------------------------------------------------------------------- snapshots and branches


def find_snapshot(repository: Any, name: str, url: str) -> str:
    """Return the snapshot id of a branch, a tag or an id.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        Both a branch and a tag have this name.
    """
    with describe_errors(url):
        known = (
            (repository.list_branches(), repository.lookup_branch),
            (repository.list_tags(), repository.lookup_tag),
        )
        found = {look_up(name) for names, look_up in known if name in names}
        if len(found) > 1:
            raise ValueError(f"{url}: {name!r} is a branch and a tag; give the id of the snapshot")
        if found:
            return str(found.pop())
        try:
            return str(repository.lookup_snapshot(name).id)
        except icechunk.IcechunkError as error:
            raise FileNotFoundError(
                f"{url}: snapshot {name!r} is not one of the branches {sorted(known[0][0])}, of "
                f"the tags {sorted(known[1][0])}, or of the ids"
            ) from error


def list_snapshots(repository: Any, branch: str, url: str) -> list[tuple[str, str]]:
    """Return the ids and times of the snapshots of a branch, the newest last."""
    with describe_errors(url):
        found = list(repository.ancestry(branch=branch))[::-1]
        # the first snapshot is that of an empty repository
        return [(s.id, s.written_at.isoformat()) for s in found if s.parent_id is not None]


def find_parent(repository: Any, snapshot: str, url: str) -> str | None:
    """Return the id of the snapshot before one."""
    with describe_errors(url):
        found: str | None = repository.lookup_snapshot(snapshot).parent_id
        return found


def has_branch(repository: Any, branch: str, url: str) -> bool:
    """Say whether there is a branch."""
    with describe_errors(url):
        return branch in repository.list_branches()


def begin_branch(repository: Any, branch: str, before: str, url: str) -> bool:
    """Make a branch that begins where another one is; return False if there is one already."""
    with describe_errors(url):
        if has_branch(repository, branch, url):
            return False
        repository.create_branch(branch, repository.lookup_branch(before))
        return True


def remove_branch(repository: Any, branch: str, url: str) -> None:
    """Remove a branch."""
    with describe_errors(url):
        repository.delete_branch(branch)


def rewrite_manifests(repository: Any, branch: str, url: str) -> None:
    """Write the manifests of a branch anew, and commit them, unless another writer was faster."""
    with describe_errors(url):
        repository.rewrite_manifests("Manifests joined by virtualds", branch=branch)


# ---------------------------------------------------------------------- stores


def open_snapshot(repository: Any, snapshot: str | None, url: str) -> OpenStore:
    """Return the store of a snapshot by its id; by default of ``main``, with one request less."""
    with describe_errors(url):
        which = {"branch": MAIN} if snapshot is None else {"snapshot_id": snapshot}
        return OpenStore(repository.readonly_session(**which).store, url)


def open_writable_store(target: Any, branch: str, url: str) -> OpenStore:
    """Return the store of a writable session, opened here for a repository."""
    with describe_errors(url):
        if isinstance(target, icechunk.Repository):
            if branch not in (known := sorted(target.list_branches())):
                raise FileNotFoundError(
                    f"{url}: there is no branch {branch!r}, but {known}; create_branch=True makes "
                    f"one that begins where 'main' is"
                )
            return OpenStore(target.writable_session(branch).store, url)
        store = target.store if isinstance(target, icechunk.Session) else target
        if not isinstance(store, icechunk.IcechunkStore):
            raise UnsupportedError(
                f"{url}: references lie in a Repository, a Session or an IcechunkStore of Icechunk"
            )
        return OpenStore(store, url)


def open_readable_store(
    opened: Any, snapshot: str | None, url: str
) -> tuple[OpenStore, str | None]:
    """Return the store of an opened object, and the snapshot before it, if known.

    Raises
    ------
    ValueError
        A snapshot is named of a session, which has one.
    """
    if isinstance(opened, icechunk.Repository):
        found = find_snapshot(opened, MAIN if snapshot is None else snapshot, url)
        return open_snapshot(opened, found, url), find_parent(opened, found, url)
    if snapshot is not None:
        raise ValueError(f"{url}: snapshot={snapshot!r}, but it has one; leave it out")
    return open_writable_store(opened, "", url), None


def is_committed_here(target: Any) -> bool:
    """Say whether virtualds commits to a target; the owner of a session commits it."""
    return isinstance(target, icechunk.Repository)


class References(NamedTuple):
    """Where the existing chunks of an array lie.

    ``places`` has a row for each; ``path`` indexes ``paths``; ``inline`` holds inline chunks by
    row. The path of a native chunk is its name among the chunks of the repository.
    """

    places: Ints
    kind: Ints
    path: Ints
    offset: Ints
    length: Ints
    paths: list[str]
    inline: dict[int, bytes]


@dataclass(frozen=True, eq=False)
class OpenStore:
    """A store of Icechunk, whose coroutines are waited for.

    Parameters
    ----------
    store : IcechunkStore
    url : str
        Of the repository, or the name of an object, for errors.
    """

    store: Any
    url: str

    @property
    def snapshot(self) -> str:
        """The id of the snapshot that it began with."""
        return str(self.store.session.snapshot_id)

    @property
    def config(self) -> Any:
        """The configuration of its repository."""
        return self.store.session.config

    def _wait_for(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        with (
            describe_errors(self.url),
            ThreadPoolExecutor(1, thread_name_prefix="virtualds-icechunk") as pool,
        ):
            return pool.submit(asyncio.run, coroutine).result()

    # ------------------------------------------------------------------ reading

    def read_documents(self) -> dict[str, dict[str, Any]]:
        """Return the metadata of all nodes by path, groups before their members."""
        return self._wait_for(_fetch_documents(self.store))

    def read_document(self, path: str) -> dict[str, Any]:
        """Return the metadata of a node, nothing if there is none."""
        return self._wait_for(_fetch_document(self.store, path)) or {}

    def read_references(self, path: str) -> References:
        """Return where the chunks of an array lie."""
        return self._wait_for(_fetch_references(self.store, path))

    def read_chunks(self, path: str, places: Iterable[Sequence[int]]) -> list[bytes]:
        """Return chunks of an array by their places in its grid."""
        keys = ["/".join([path, "c", *map(str, place)]) for place in places]
        return self._wait_for(_fetch_chunks(self.store, keys))

    # ------------------------------------------------------------------ writing

    def clear(self) -> None:
        """Remove everything."""
        self._wait_for(self.store.clear())

    def remove(self, paths: Iterable[str]) -> None:
        """Remove nodes with their members."""
        self._wait_for(_remove_nodes(self.store, paths))

    def put(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write metadata and chunks, in order, by their keys."""
        self._wait_for(_put_files(self.store, iter(files)))

    def commit(self, message: str, metadata: Mapping[str, Any] | None) -> None:
        """Commit the written changes as a snapshot.

        Raises
        ------
        ConflictError
            Another writer was faster.
        """
        with describe_errors(self.url):
            known = None if metadata is None else dict(metadata)
            self.store.session.commit(message, known, allow_empty=True)

    def refer(
        self,
        path: str,
        chunks: tuple[tuple[int, ...], Ints],
        files: Sequence[SourceFile],
        locations: Sequence[str],
        columns: tuple[Ints, Ints, Ints],
    ) -> None:
        """Write the references of an array.

        Parameters
        ----------
        path : str
            Of the array.
        chunks : tuple of int, and int64 array
            Chunks per axis, and the numbers of those to write, rising, in C order.
        files, locations : sequence
            The table of files, with their fingerprints, and their urls for Icechunk.
        columns : three integer arrays
            File, offset and length of each of these chunks.
        """
        grid, numbers = chunks
        checks = [_to_checksum(source) for source in files]
        used = {checks[number] for number in np.unique(columns[0]).tolist()}
        if not used:
            return
        none = np.zeros((numbers.size, 0), np.int64)
        places = np.stack(np.unravel_index(numbers, grid), 1) if grid else none
        low = places.min(0)
        box = tuple((places.max(0) - low + 1).tolist())
        with describe_errors(self.url):
            if len(used) == 1 and grid and not is_sparse(prod(box), numbers.size):
                refused = self.store.set_virtual_refs_arr(
                    f"/{path}",
                    box,
                    *_spread_over_box(box, places - low, locations, columns),
                    arr_offset=tuple(low.tolist()),
                    checksum=used.pop(),
                )
            else:
                # chunks that are checked in different ways, one by one
                rows = zip(places.tolist(), *(column.tolist() for column in columns), strict=True)
                specs = [
                    icechunk.VirtualChunkSpec(
                        place, locations[n], offset, length, *_split_check(checks[n])
                    )
                    for place, n, offset, length in rows
                ]
                refused = self.store.set_virtual_refs(f"/{path}", specs)
        if refused:
            raise UnsupportedError(
                f"{self.url}: Icechunk refuses {len(refused)} references of {path}, the first of "
                f"chunk {tuple(refused[0])}: no container covers its url"
            )


# ---------------------------------------------------------------------- coroutines


async def _fetch_documents(store: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    level = [""]
    while level:
        texts = await asyncio.gather(*(_fetch_document(store, path) for path in level))
        nodes = {p: text for p, text in zip(level, texts, strict=True) if text is not None}
        found |= nodes
        groups = [p for p, node in nodes.items() if node.get("node_type") == "group"]
        listed = await asyncio.gather(*(_list_children(store, path) for path in groups))
        level = sorted(path for paths in listed for path in paths)
    return found


async def _fetch_document(store: Any, path: str) -> dict[str, Any] | None:
    """Return the metadata of one node, None if there is no such node."""
    data = await store.get(_make_key(path, MARKER), default_buffer_prototype())
    if data is None:
        return None
    where = f"metadata of {path or 'the root'!r} in the repository"
    found = parse_json(data.to_bytes(), where)
    if not isinstance(found, dict):
        raise FormatError(f"{where}: they are not a JSON object; the repository is damaged")
    return found


async def _list_children(store: Any, path: str) -> list[str]:
    return [_make_key(path, name) async for name in store.list_dir(path) if name != MARKER]


def _make_key(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


async def _fetch_references(store: Any, path: str) -> References:
    numbers: dict[str, int] = {}
    inline: dict[int, bytes] = {}
    batches: list[tuple[Any, ...]] = []
    total = 0
    async for where, kind, paths, offset, length, held in store.array_chunk_iterator(f"/{path}"):
        numbered = [numbers.setdefault(text, len(numbers)) for text in paths]
        batches.append((where, kind, np.array(numbered, np.int64), offset, length))
        inline |= {total + row: data for row, data in held.items()}
        total += len(paths)
    if not batches:
        none = np.zeros(0, np.int64)
        return References(none.reshape(0, 0), none, none, none, none, [], {})
    columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*batches, strict=True)]
    places, kinds, rows, offsets, lengths = columns
    return References(places, kinds, rows, offsets, lengths, list(numbers), inline)


async def _fetch_chunks(store: Any, keys: Sequence[str]) -> list[bytes]:
    found: list[bytes] = []
    for start in range(0, len(keys), REQUESTS_AT_ONCE):
        some = keys[start : start + REQUESTS_AT_ONCE]
        got = await asyncio.gather(*(store.get(k, default_buffer_prototype()) for k in some))
        found += [data.to_bytes() for data in got]
    return found


async def _remove_nodes(store: Any, paths: Iterable[str]) -> None:
    for path in paths:
        await store.delete_dir(path)


async def _put_files(store: Any, files: Iterator[tuple[str, bytes]]) -> None:
    buffer = default_buffer_prototype().buffer
    while batch := list(islice(files, REQUESTS_AT_ONCE)):
        if any(name.endswith(MARKER) for name, _ in batch):
            # write a group before its members
            for name, content in batch:
                await store.set(name, buffer.from_bytes(content))
        else:
            await asyncio.gather(*(store.set(n, buffer.from_bytes(c)) for n, c in batch))


# ---------------------------------------------------------------------- references for Icechunk


def _to_checksum(file: SourceFile) -> datetime | str | None:
    """Return the checksum of a file for Icechunk: mtime in full seconds, or etag."""
    if file.mtime is not None:
        return datetime.fromtimestamp(-(-file.mtime // 10**9), UTC)
    # our etag of a file in Google Cloud Storage is its generation, which Icechunk does not compare
    return None if kind_of(file.url) == "gs" else file.etag


def _split_check(check: datetime | str | None) -> tuple[str | None, datetime | None]:
    """Return a checksum as the etag or the time that it is."""
    return (None, check) if isinstance(check, datetime) else (check, None)


def _spread_over_box(
    box: tuple[int, ...], places: Ints, locations: Sequence[str], columns: tuple[Ints, Ints, Ints]
) -> tuple[list[str], Any, Any]:
    """Return the location, offset and length of every chunk of a box; an empty location is none."""
    flat = np.ravel_multi_index(tuple(places.T), box)
    names = np.full(prod(box), "", object)
    names[flat] = np.array([*locations, ""], object)[columns[0]]
    offset, length = (np.zeros(prod(box), np.uint64) for _ in columns[1:])
    offset[flat], length[flat] = columns[1:]
    return names.tolist(), offset, length
