"""The adapter of the library Icechunk, imported only when a repository is opened.

It uses the documented interface alone: coroutines of stores for zarr-python, and references of
whole arrays. Coroutines run in a thread of their own, since the caller's may run a loop already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, TypeVar

import icechunk
import numpy as np

from virtualds.chunks.projection import Ints
from virtualds.chunks.sparse_manifest import is_sparse
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.icechunk.configuration import add_containers, add_splits
from virtualds.formats.icechunk.library_errors import describe_errors
from virtualds.formats.icechunk.locations import ObjectLocation
from virtualds.formats.icechunk.needs import Split
from virtualds.formats.icechunk.nodes import (
    References,
    fetch_chunks,
    fetch_document,
    fetch_documents,
    fetch_references,
    put_files,
    remove_nodes,
    spread_over_box,
    to_checksum,
    to_virtual_chunk,
)
from virtualds.source_file import SourceFile

NATIVE, INLINE = int(icechunk.ChunkType.native), int(icechunk.ChunkType.inline)
"""Kinds of chunks that do not lie in source files."""
PATIENCE, PAUSE = 3.0, 0.05
"""Seconds in which another writer has created a repository, and between two looks at it."""
Result = TypeVar("Result")


def wait_for(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine."""
    with ThreadPoolExecutor(1, thread_name_prefix="virtualds-icechunk") as pool:
        return pool.submit(asyncio.run, coroutine).result()


# ---------------------------------------------------------------------- repositories


def make_storage(place: ObjectLocation) -> Any:
    """Return Icechunk's storage for a place."""
    kinds = {
        "http": icechunk.http_storage,
        "s3": icechunk.s3_storage,
        "gcs": icechunk.gcs_storage,
        "azure": icechunk.azure_storage,
    }
    if place.kind == "local":
        return icechunk.local_filesystem_storage(place.arguments["path"])
    return kinds[place.kind](**place.arguments)


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


def check_config(config: Any) -> None:
    """Raise an error if a configuration is none of Icechunk's."""
    if config is not None and not isinstance(config, icechunk.RepositoryConfig):
        raise TypeError(f"config={config!r:.80}: give an icechunk.RepositoryConfig")


def _save_config(repository: Any, config: Any) -> Any:
    changed = repository.reopen(config=config)
    changed.save_config()
    return changed


def is_repository(place: ObjectLocation, url: str) -> bool:
    """Say whether there is a repository."""
    with describe_errors(url):
        return bool(icechunk.Repository.exists(make_storage(place)))


def create_repository(
    place: ObjectLocation,
    url: str,
    needed: Mapping[str, ObjectLocation],
    splits: Mapping[str, Split],
    given: Any = None,
) -> Any:
    """Create a repository that may refer to files below some prefixes, and splits arrays.

    Raises
    ------
    FileExistsError
        There are other files of this name.
    """
    config = icechunk.RepositoryConfig.default()
    config = config if given is None else config.merge(given)
    add_containers(config, _list_lacking(config, needed))
    add_splits(config, splits)
    storage = make_storage(place)
    try:
        with describe_errors(url):
            return icechunk.Repository.create(storage, config)
    except FormatError as error:
        _await_other_writer(storage)
        raise FileExistsError(
            f"{url}: there is something of this name that is not a repository ({error}); remove "
            f"it, or choose another name"
        ) from error


def _await_other_writer(storage: Any) -> None:
    """Wait until a repository is there, if another writer creates it at the same time."""
    end = time.monotonic() + PATIENCE
    while not icechunk.Repository.exists(storage) and time.monotonic() < end:
        time.sleep(PAUSE)


def configure(
    repository: Any, url: str, needed: Mapping[str, ObjectLocation], splits: Mapping[str, Split]
) -> Any:
    """Return a repository that may also refer to files below some prefixes, and splits arrays."""
    lacking = _list_lacking(repository.config, needed)
    with describe_errors(url):
        config = repository.config
        add_containers(config, lacking)
        return (
            _save_config(repository, config)
            if add_splits(config, splits) or lacking
            else repository
        )


def list_uncovered(config: Any, prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that no container of a configuration covers."""
    return [prefix for prefix in prefixes if not _is_covered(config, prefix)]


def list_containers(config: Any) -> list[str]:
    """Return the prefixes of the containers of a configuration."""
    return sorted(c.url_prefix for c in (config.virtual_chunk_containers or {}).values())


def _list_lacking(config: Any, needed: Mapping[str, ObjectLocation]) -> dict[str, ObjectLocation]:
    return {prefix: needed[prefix] for prefix in list_uncovered(config, needed)}


def _is_covered(config: Any, prefix: str) -> bool:
    known = config.virtual_chunk_containers or {}
    return any(prefix.startswith(container.url_prefix) for container in known.values())


def open_snapshot(repository: Any, name: str | None, url: str) -> Any:
    """Return a session for reading a branch, a tag or a snapshot; by default ``main``.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        Both a branch and a tag have this name.
    """
    with describe_errors(url):
        if name is None:
            # one request, where looking for the name takes one for each kind of names
            return repository.readonly_session("main")
        return repository.readonly_session(snapshot_id=find_snapshot(repository, name, url))


def find_snapshot(repository: Any, name: str | None, url: str) -> str:
    """Return the snapshot id of a branch, a tag or an id; by default of ``main``.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        Both a branch and a tag have this name.
    """
    with describe_errors(url):
        name = "main" if name is None else name
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
                f"the "
                f"tags {sorted(known[1][0])}, or of the ids"
            ) from error


def list_snapshots(repository: Any, branch: str, url: str) -> list[tuple[str, str]]:
    """Return the ids and times of the snapshots of a branch, the newest last."""
    with describe_errors(url):
        found = list(repository.ancestry(branch=branch))[::-1]
        # the first snapshot is that of an empty repository
        return [(s.id, s.written_at.isoformat()) for s in found if s.parent_id is not None]


def open_writable_store(target: Any, branch: str, url: str) -> Any:
    """Return the store of a writable session, opened here for a repository."""
    with describe_errors(url):
        if isinstance(target, icechunk.Repository):
            if branch not in (known := sorted(target.list_branches())):
                raise FileNotFoundError(
                    f"{url}: there is no branch {branch!r}, but {known}; create_branch=True makes "
                    f"one that begins where 'main' is"
                )
            return target.writable_session(branch).store
        store = target.store if isinstance(target, icechunk.Session) else target
        if not isinstance(store, icechunk.IcechunkStore):
            raise UnsupportedError(
                f"{url}: references lie in a Repository, a Session or an IcechunkStore of Icechunk"
            )
        return store


def open_readable_store(opened: Any, snapshot: str | None, url: str) -> tuple[Any, str | None]:
    """Return the store of an opened object, and the snapshot before it, if known.

    Raises
    ------
    ValueError
        A snapshot is named of a session, which has one.
    """
    if isinstance(opened, icechunk.Repository):
        found = find_snapshot(opened, snapshot, url)
        with describe_errors(url):
            return opened.readonly_session(snapshot_id=found).store, find_parent(opened, found, url)
    if snapshot is not None:
        raise ValueError(f"{url}: snapshot={snapshot!r}, but it has one; leave it out")
    return open_writable_store(opened, "", url), None


def find_parent(repository: Any, snapshot: str, url: str) -> str | None:
    """Return the id of the snapshot before one."""
    with describe_errors(url):
        found: str | None = repository.lookup_snapshot(snapshot).parent_id
        return found


def is_committed_here(target: Any) -> bool:
    """Say whether virtualds commits to a target; the owner of a session commits it."""
    return isinstance(target, icechunk.Repository)


# ---------------------------------------------------------------------- reading


def read_documents(store: Any, url: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of all nodes by path, groups before their members."""
    with describe_errors(url):
        return wait_for(fetch_documents(store))


def read_document(store: Any, path: str, url: str) -> dict[str, Any]:
    """Return the metadata of a node, nothing if there is none."""
    with describe_errors(url):
        return wait_for(fetch_document(store, path)) or {}


def read_references(store: Any, path: str, url: str) -> References:
    """Return where the chunks of an array lie."""
    with describe_errors(url):
        return wait_for(fetch_references(store, path))


def read_chunks(store: Any, keys: Sequence[str], url: str) -> list[bytes]:
    """Return chunks by their keys."""
    with describe_errors(url):
        return wait_for(fetch_chunks(store, keys))


# ---------------------------------------------------------------------- writing


def clear_store(store: Any, url: str) -> None:
    """Remove everything from a store."""
    with describe_errors(url):
        wait_for(store.clear())


def remove_paths(store: Any, paths: Sequence[str], url: str) -> None:
    """Remove nodes with their members."""
    with describe_errors(url):
        wait_for(remove_nodes(store, paths))


def put_documents(store: Any, files: Iterable[tuple[str, bytes]], url: str) -> None:
    """Write metadata and chunks, in order, by their keys."""
    with describe_errors(url):
        wait_for(put_files(store, iter(files)))


def write_references(
    store: Any,
    path: str,
    chunks: tuple[tuple[int, ...], Ints],
    files: Sequence[SourceFile],
    locations: Sequence[str],
    columns: tuple[Ints, Ints, Ints],
    url: str,
) -> None:
    """Write the references of an array.

    Parameters
    ----------
    store : IcechunkStore
    path : str
        Of the array.
    chunks : tuple of int, and int64 array
        Chunks per axis, and the numbers of those to write, rising, in C order.
    files, locations : sequence
        The table of files, with their fingerprints, and their urls for Icechunk.
    columns : three integer arrays
        File, offset and length of each of these chunks.
    url : str
        Of the repository, for errors.
    """
    grid, numbers = chunks
    checks = [to_checksum(source) for source in files]
    used = {checks[number] for number in np.unique(columns[0]).tolist()}
    if not used:
        return
    places = (
        np.stack(np.unravel_index(numbers, grid), 1)
        if grid
        else np.zeros((numbers.size, 0), np.int64)
    )
    low = places.min(0)
    box = tuple((places.max(0) - low + 1).tolist())
    with describe_errors(url):
        if len(used) == 1 and grid and not is_sparse(prod(box), numbers.size):
            refused = store.set_virtual_refs_arr(
                f"/{path}",
                box,
                *spread_over_box(box, places - low, locations, columns),
                arr_offset=tuple(low.tolist()),
                checksum=used.pop(),
            )
        else:
            refused = to_virtual_chunk(store, path, places.tolist(), checks, locations, columns)
    if refused:
        raise UnsupportedError(
            f"{url}: Icechunk refuses {len(refused)} references of {path}, the first of chunk "
            f"{tuple(refused[0])}: no container covers its url"
        )


def commit(store: Any, message: str, metadata: Mapping[str, Any] | None, url: str) -> None:
    """Commit the written changes as a snapshot.

    Raises
    ------
    ConflictError
        Another writer was faster.
    """
    with describe_errors(url):
        known = None if metadata is None else dict(metadata)
        store.session.commit(message, known, allow_empty=True)


def rewrite_manifests(repository: Any, branch: str, url: str) -> None:
    """Write the manifests of a branch anew, and commit them, unless another writer was faster."""
    with describe_errors(url):
        repository.rewrite_manifests("Manifests joined by virtualds", branch=branch)
