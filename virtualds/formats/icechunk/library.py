"""The only module that calls the Icechunk library: repositories, sessions and stores.

It uses the documented interface only: coroutines of stores for zarr-python, and references of whole
arrays. Coroutines run in a separate thread, since the caller may already be running an event loop.

It also translates urls and options of fsspec to those of Icechunk, without any request. Raises an
error for options that are not in the tables, instead of guessing.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from math import prod
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote

import icechunk
import numpy as np
from zarr.core.buffer import default_buffer_prototype

from virtualds.chunks.columns import Ints
from virtualds.chunks.tables import is_sparse
from virtualds.errors import (
    AccessError,
    ConflictError,
    FormatError,
    ReadError,
    UnsupportedError,
    make_unsupported_error,
)
from virtualds.formats.zarr.document import MARKER, join_node_path, unravel_in_grid
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.fsspec import resolve_options
from virtualds.stores.local import get_lock_path, hold_lock
from virtualds.stores.object_access import name_anonymous, translate_options
from virtualds.urls import kind_of, local_path, scheme_of

VERBATIM = ("http", "https")
"""Schemes whose urls are already percent-encoded."""
SAFE = "/:@!$&'()*+,;=~"
"""Characters of a name that are not percent-encoded in a url."""
S3_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "anonymous",
    "endpoint_url": "endpoint_url",
    "region_name": "region",
    "requester_pays": "requester_pays",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Icechunk's names for options of s3fs and botocore."""
S3_SECRETS = ("access_key_id", "secret_access_key", "session_token", "anonymous")
"""Credentials, which are not stored with the location of a bucket in a repository."""
AZURE_SECRETS = frozenset({"account_key", "sas_token", "connection_string", "credential"})
"""Options of adlfs with credentials."""


class ObjectLocation(NamedTuple):
    """A kind of storage, and the keyword arguments of Icechunk's functions for it."""

    kind: str
    arguments: dict[str, Any]


def quote_url(url: str) -> str:
    """Return a url in the form that Icechunk expects: with percent-encoded names.

    Examples
    --------
    >>> quote_url("file:///data/a b#1.nc")
    'file:///data/a%20b%231.nc'
    """
    if scheme_of(url) in VERBATIM:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(rest, safe=SAFE)}"


def unquote_url(location: str) -> str:
    """Return the location of an Icechunk reference as a url with decoded names.

    Examples
    --------
    >>> unquote_url("file:///data/a%20b%231.nc")
    'file:///data/a b#1.nc'
    """
    return location if scheme_of(location) in VERBATIM else unquote(location)


def find_storage(url: str, options: Mapping[str, Any] | None) -> ObjectLocation:
    """Return the location of a repository."""
    locate = _find_locator(url, "keeps no repository")
    return locate(url.rstrip("/"), dict(resolve_options(options) or {}))


def _find_locator(url: str, lack: str) -> Callable[[str, dict[str, Any]], ObjectLocation]:
    """Return the translator for a url; raise an error for storage unsupported by Icechunk."""
    scheme = scheme_of(url)
    if "::" in url or scheme not in LOCATORS:
        raise UnsupportedError(f"{url}: Icechunk {lack} there; these are known: {sorted(LOCATORS)}")
    return LOCATORS[scheme]


def find_container(url: str, options: Mapping[str, Any] | None) -> tuple[str, ObjectLocation]:
    """Return the url prefix of the container for a source file, and the location of its storage."""
    _find_locator(url, "refers to no files")
    scheme = scheme_of(url)
    if scheme == "file":
        folder = _find_plain_folder(posixpath.dirname(local_path(url)))
        if folder == "/":
            raise UnsupportedError(
                f"{url}: Icechunk refers to no files in the root folder, nor in a folder of it "
                f"whose name it quotes; write a set of zarr-v3, or move the file and change its "
                f"path with ds.virtual.rename_paths"
            )
        return f"file://{folder}", ObjectLocation("local", {"path": folder})
    host = "/".join(url.split("/")[:3]) + "/"
    if scheme == "abfss" or (scheme in ("az", "abfs") and "@" in host):
        raise UnsupportedError(
            f"{url}: Icechunk refers to no files by such a url; name the file az://container/path, "
            f"and give account_name in storage_options"
        )
    storage = find_storage(host, options)
    told = {n: v for n, v in storage.arguments.items() if n in CONTAINER.get(storage.kind, ())}
    return host, ObjectLocation(storage.kind, told)


def _find_plain_folder(folder: str) -> str:
    """Return the innermost folder that Icechunk can find: no name up to it needs percent-encoding.

    Examples
    --------
    >>> _find_plain_folder("/data/in put/2001"), _find_plain_folder("/data/2001")
    ('/data/', '/data/2001/')
    """
    names = folder.strip("/").split("/")
    quoted = (n for n, name in enumerate(names) if quote(name, safe=SAFE) != name)
    return "/".join(["", *names[: next(quoted, len(names))], ""]).replace("//", "/")


def find_containers(
    files: Iterable[tuple[str, Mapping[str, Any] | None]],
) -> dict[str, ObjectLocation]:
    """Return the fewest containers that cover the files: none is inside another.

    Examples
    --------
    >>> list(find_containers([("file:///data/2001/a.nc", None), ("file:///data/b.nc", None)]))
    ['file:///data/']
    """
    found: dict[str, ObjectLocation] = {}
    known: set[tuple[str, int]] = set()
    for url, options in files:
        folder = (url.rpartition("/")[0], id(options))
        if folder not in known:
            known.add(folder)
            prefix, location = find_container(url, options)
            found.setdefault(prefix, location)
    kept: dict[str, ObjectLocation] = {}
    for prefix in sorted(found, key=len):
        if not prefix.startswith(tuple(kept)):
            kept[prefix] = found[prefix]
    return kept


def _locate_local(url: str, options: dict[str, Any]) -> ObjectLocation:
    _check_nothing_left(url, {n: v for n, v in options.items() if n != "auto_mkdir"})
    return ObjectLocation("local", {"path": local_path(url)})


def _locate_http(url: str, options: dict[str, Any]) -> ObjectLocation:
    headers = options.pop("headers", None)
    client = dict(options.pop("client_kwargs", None) or {})
    headers = {**(client.pop("headers", None) or {}), **(headers or {})}
    _check_nothing_left(url, options | client)
    return ObjectLocation("http", {"base_url": url, "headers": headers or None})


def _locate_s3(url: str, options: dict[str, Any]) -> ObjectLocation:
    client = dict(options.pop("client_kwargs", None) or {})
    secure = options.pop("use_ssl", True)
    left = options | client
    found = {S3_NAMES[n]: left.pop(n) for n in list(left) if n in S3_NAMES}
    _check_nothing_left(url, left)
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if found.get("endpoint_url"):
        plain = str(found["endpoint_url"]).startswith("http://") or not secure
        found |= {"force_path_style": True, "allow_http": plain}
        found.setdefault("region", "us-east-1")
    if not any(found.get(name) for name in S3_SECRETS):
        found["from_env"] = True
    return ObjectLocation("s3", {"bucket": bucket, "prefix": prefix or None, **found})


def _locate_gcs(url: str, options: dict[str, Any]) -> ObjectLocation:
    options = name_anonymous(options)
    token = options.pop("token", None)
    options.pop("project", None)
    _check_nothing_left(url, options)
    if token not in (None, "anon") and not isinstance(token, str):
        _check_nothing_left(url, {"token": token})
    bucket, _, prefix = url.partition("://")[2].partition("/")
    access = {None: {"from_env": True}, "anon": {"anonymous": True}}.get(
        token, {"application_credentials": token}
    )
    return ObjectLocation("gcs", {"bucket": bucket, "prefix": prefix or None, **access})


def _locate_azure(url: str, options: dict[str, Any]) -> ObjectLocation:
    scheme, _, rest = url.partition("://")
    box, _, prefix = rest.partition("/")
    is_public = bool(options.get("anon"))
    # Icechunk searches this machine for a login; obstore, for which these are translated, does not
    needs_login = not is_public and not AZURE_SECRETS & options.keys()
    try:
        found = translate_options(f"{scheme}://{box}", options | {"anon": is_public or needs_login})
    except ValueError as error:
        raise UnsupportedError(str(error)) from error
    # Icechunk accepts neither objects that return tokens nor client secrets of applications
    _check_nothing_left(url, found.login)
    account = found.config["account_name"]
    access: dict[str, Any] = {"account": account, **found.secrets}
    access |= {"from_env": True} if needs_login else {"anonymous": True} if is_public else {}
    arguments: dict[str, Any] = {"container": found.bucket, "prefix": prefix, "config": {}}
    if (endpoint := found.config["endpoint"]) != f"https://{account}.blob.core.windows.net":
        is_plain = endpoint.startswith("http://")
        arguments["config"] = {"endpoint": endpoint, "allow_http": str(is_plain).lower()}
    return ObjectLocation("azure", arguments | access)


def _check_nothing_left(url: str, left: Mapping[str, Any]) -> None:
    if left:
        raise UnsupportedError(
            f"{url}: Icechunk has no name for the option {min(left)!r}; leave it out, or open the "
            f"repository with icechunk and pass that"
        )


LOCATORS: dict[str, Callable[[str, dict[str, Any]], ObjectLocation]] = {
    "file": _locate_local,
    "http": _locate_http,
    "https": _locate_http,
    "s3": _locate_s3,
    "gs": _locate_gcs,
    "gcs": _locate_gcs,
    "az": _locate_azure,
    "abfs": _locate_azure,
    "abfss": _locate_azure,
}
"""Translators of urls and options, by scheme."""
CONTAINER = {
    "s3": (
        *("region", "endpoint_url", "allow_http"),
        *("force_path_style", "requester_pays", "anonymous"),
    ),
    "azure": ("account", "config"),
}
"""Options of a server that are stored with a container; readers pass their own credentials."""


# ---------------------------------------------------------------------- library

NATIVE, INLINE = int(icechunk.ChunkType.native), int(icechunk.ChunkType.inline)
"""Kinds of chunks that are not in source files."""
CREATION_TIMEOUT, PAUSE = 3.0, 0.05
"""The number of seconds to wait for another writer that creates a repository, and the number of
seconds between two attempts."""
REQUESTS_AT_ONCE = 256
"""The number of chunks that are written at a time."""
MAIN = "main"
CHUNKS = "chunks"
"""The folder of a repository's native chunks (Icechunk specification, "Layout")."""
Given = ParamSpec("Given")
Result = TypeVar("Result")

ERRORS: tuple[tuple[type[Exception], type[Exception], str], ...] = (
    (icechunk.RepositoryNotFoundError, FileNotFoundError, "there is no Icechunk repository"),
    (icechunk.NotFoundError, FileNotFoundError, "{message}"),
    (
        icechunk.ConflictError,
        ConflictError,
        "another writer has committed meanwhile; write again to what is there now",
    ),
    (icechunk.AlreadyExistsError, FileExistsError, "{message}"),
    (icechunk.ReadOnlyError, AccessError, "{message}; pass a writable session"),
    (icechunk.StorageError, ReadError, "{message}; check the path and the options"),
    (icechunk.IcechunkError, FormatError, f"Icechunk {icechunk.__version__} says: {{message}}"),
)
"""Errors of Icechunk, the errors raised instead, and their messages; the first match is used."""


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Replace errors of Icechunk by ours, with the url."""
    try:
        yield
    except icechunk.IcechunkError as error:
        lines = str(error.args[0] if error.args else error).strip().splitlines()
        kind, text = next((k, text) for of, k, text in ERRORS if isinstance(error, of))
        raise kind(f"{url}: {text.format(message=next(iter(lines), ''))}") from error


# ---------------------------------------------------------------------- repositories


class Split(NamedTuple):
    """The axis along which the manifests of an array are split, and the chunks per manifest."""

    axis: int
    chunks: int


class RequiredConfig(NamedTuple):
    """The settings that a repository must have before references are written.

    ``containers`` are locations of files, by the prefix of their urls, and ``splits`` are splits of
    manifests, by the path of the array.
    """

    containers: Mapping[str, ObjectLocation]
    splits: Mapping[str, Split]


NO_REQUIREMENTS = RequiredConfig({}, {})


def _make_storage(location: ObjectLocation) -> Any:
    if location.kind == "local":
        return icechunk.local_filesystem_storage(location.arguments["path"])
    return getattr(icechunk, f"{location.kind}_storage")(**location.arguments)


def open_repository(url: str, options: StorageOptions | None) -> Any:
    """Open a repository."""
    with translate_errors(url):
        return icechunk.Repository.open(_make_storage(find_storage(url, options)))


def _create_repository(
    location: ObjectLocation, url: str, needed: RequiredConfig, given: Any = None
) -> Any:
    """Create a repository whose configuration contains what is needed."""
    config = icechunk.RepositoryConfig.default()
    config = config if given is None else config.merge(given)
    _add_needed(config, needed)
    storage = _make_storage(location)
    try:
        with translate_errors(url):
            return icechunk.Repository.create(storage, config)
    except FormatError as error:
        # another writer may be creating it at the same time
        end = time.monotonic() + CREATION_TIMEOUT
        while not icechunk.Repository.exists(storage) and time.monotonic() < end:
            time.sleep(PAUSE)
        raise FileExistsError(
            f"{url}: there is something of this name that is not a repository ({error}); remove "
            f"it, or choose another name"
        ) from error


def _save_config(repository: Any, config: Any) -> Any:
    changed = repository.reopen(config=config)
    changed.save_config()
    return changed


def _list_containers(config: Any) -> list[str]:
    """Return the url prefixes of the containers in a configuration."""
    return sorted(c.url_prefix for c in (config.virtual_chunk_containers or {}).values())


def _list_uncovered(config: Any, prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that are not covered by a container in a configuration."""
    known = tuple(_list_containers(config))
    return [prefix for prefix in prefixes if not prefix.startswith(known)]


def _add_needed(config: Any, needed: RequiredConfig) -> bool:
    """Add the needed containers and splits to a configuration; return whether it changed."""
    lacking = _list_uncovered(config, needed.containers)
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
    """Configure splits of manifests, so that an append rewrites only the last; return if changed.

    A repository whose owner has configured splits is not changed.
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


# ---------------------------------------------------------------------- stores


class References(NamedTuple):
    """The references of the existing chunks of an array.

    ``chunk_ids`` has one row per chunk, its position in the grid. ``path`` are indices into
    ``paths``, and ``inline`` maps rows to inline chunks. The path of a native chunk is its name
    among the chunks of the repository.
    """

    chunk_ids: Ints
    kind: Ints
    path: Ints
    offset: Ints
    length: Ints
    paths: list[str]
    inline: dict[int, bytes]


def _blocking(
    method: Callable[Concatenate[OpenStore, Given], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[OpenStore, Given], Result]:
    """Convert a coroutine method to a method that runs it in a separate thread, and waits."""

    @wraps(method)
    def wait(self: OpenStore, /, *given: Given.args, **options: Given.kwargs) -> Result:
        with (
            translate_errors(self.url),
            ThreadPoolExecutor(1, thread_name_prefix="virtualds-icechunk") as pool,
        ):
            return pool.submit(asyncio.run, method(self, *given, **options)).result()

    return wait


@dataclass(frozen=True, eq=False)
class OpenStore:
    """An Icechunk store with blocking methods.

    ``url`` is the url of the repository, or the name of an object, for errors.
    """

    store: Any
    url: str

    @property
    def snapshot(self) -> str:
        """The id of the snapshot on which it is based."""
        return str(self.store.session.snapshot_id)

    # ------------------------------------------------------------------ reading

    @_blocking
    async def read_documents(self) -> dict[str, dict[str, Any]]:
        """Return the metadata of all nodes by path, groups before their members."""
        found: dict[str, dict[str, Any]] = {}
        level = [""]
        while level:
            texts = await asyncio.gather(*map(self._fetch_document, level))
            nodes = {p: text for p, text in zip(level, texts, strict=True) if text is not None}
            found |= nodes
            groups = [p for p, node in nodes.items() if node.get("node_type") == "group"]
            listed = await asyncio.gather(*map(self._list_children, groups))
            level = sorted(path for paths in listed for path in paths)
        return found

    @_blocking
    async def read_document(self, path: str) -> dict[str, Any]:
        """Return the metadata of a node, or an empty dict if there is none."""
        return await self._fetch_document(path) or {}

    async def _fetch_document(self, path: str) -> dict[str, Any] | None:
        data = await self.store.get(join_node_path(path, MARKER), default_buffer_prototype())
        if data is None:
            return None
        where = f"metadata of {path or 'the root'!r} in the repository"
        found = parse_json(data.to_bytes(), where)
        if not isinstance(found, dict):
            raise FormatError(f"{where}: they are not a JSON object; the repository is damaged")
        return found

    async def _list_children(self, path: str) -> list[str]:
        names = [name async for name in self.store.list_dir(path)]
        return [join_node_path(path, name) for name in names if name != MARKER]

    @_blocking
    async def read_references(self, path: str) -> References:
        """Return the references of an array."""
        numbers: dict[str, int] = {}
        inline: dict[int, bytes] = {}
        batches: list[tuple[Any, ...]] = []
        total = 0
        found = self.store.array_chunk_iterator(f"/{path}")
        async for where, kind, paths, offset, length, inline_chunks in found:
            numbered = [numbers.setdefault(text, len(numbers)) for text in paths]
            batches.append((where, kind, np.array(numbered, np.int64), offset, length))
            inline |= {total + row: data for row, data in inline_chunks.items()}
            total += len(paths)
        if not batches:
            none = np.zeros(0, np.int64)
            return References(none.reshape(0, 0), none, none, none, none, [], {})
        columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*batches, strict=True)]
        chunk_ids, kinds, rows, offsets, lengths = columns
        return References(chunk_ids, kinds, rows, offsets, lengths, list(numbers), inline)

    @_blocking
    async def read_chunks(self, path: str, chunk_ids: Iterable[Sequence[int]]) -> list[bytes]:
        """Return chunks of an array by their positions in its grid."""
        keys = ("/".join([path, "c", *map(str, chunk_id)]) for chunk_id in chunk_ids)
        found: list[bytes] = []
        while some := list(islice(keys, REQUESTS_AT_ONCE)):
            gets = (self.store.get(key, default_buffer_prototype()) for key in some)
            found += [data.to_bytes() for data in await asyncio.gather(*gets)]
        return found

    # ------------------------------------------------------------------ writing

    @_blocking
    async def clear(self) -> None:
        """Remove all nodes."""
        await self.store.clear()

    @_blocking
    async def remove(self, paths: Iterable[str]) -> None:
        """Remove nodes and their members."""
        for path in paths:
            await self.store.delete_dir(path)

    @_blocking
    async def put(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write metadata and chunks under their keys, in the given order."""
        buffer, files = default_buffer_prototype().buffer, iter(files)
        while batch := list(islice(files, REQUESTS_AT_ONCE)):
            if any(name.endswith(MARKER) for name, _ in batch):
                # write a group before its members
                for name, content in batch:
                    await self.store.set(name, buffer.from_bytes(content))
            else:
                sets = (self.store.set(n, buffer.from_bytes(c)) for n, c in batch)
                await asyncio.gather(*sets)

    def commit(self, message: str, metadata: Mapping[str, Any] | None) -> None:
        """Commit the written changes as a snapshot."""
        with translate_errors(self.url):
            known = None if metadata is None else dict(metadata)
            self.store.session.commit(message, known, allow_empty=True)

    def write_references(
        self,
        path: str,
        chunks: tuple[tuple[int, ...], Ints],
        files: Sequence[SourceFile],
        locations: Sequence[str],
        columns: tuple[Ints, Ints, Ints],
    ) -> None:
        """Write the references of an array.

        ``chunks`` are the number of chunks per axis, and the indexes of those to write, in
        ascending C order; ``columns`` are file, offset and length of each. ``locations`` are the
        urls of files in the form that Icechunk expects.
        """
        grid, numbers = chunks
        checks = [_to_checksum(source) for source in files]
        used = {checks[number] for number in np.unique(columns[0]).tolist()}
        if not used:
            return
        positions = unravel_in_grid(numbers, grid)
        low = positions.min(0)
        box = tuple((positions.max(0) - low + 1).tolist())
        with translate_errors(self.url):
            if len(used) == 1 and grid and not is_sparse(prod(box), numbers.size):
                refused = self.store.set_virtual_refs_arr(
                    f"/{path}",
                    box,
                    *_spread_over_box(box, positions - low, locations, columns),
                    arr_offset=tuple(low.tolist()),
                    checksum=used.pop(),
                )
            else:
                # chunks whose files have different kinds of checksums are written one by one
                rows = zip(
                    positions.tolist(), *(column.tolist() for column in columns), strict=True
                )
                specs = [
                    icechunk.VirtualChunkSpec(
                        chunk,
                        locations[n],
                        offset,
                        length,
                        checks[n] if isinstance(checks[n], str) else None,
                        checks[n] if isinstance(checks[n], datetime) else None,
                    )
                    for chunk, n, offset, length in rows
                ]
                refused = self.store.set_virtual_refs(f"/{path}", specs)
        if refused:
            raise UnsupportedError(
                f"{self.url}: Icechunk refuses {len(refused)} references of {path}, the first of "
                f"chunk {tuple(refused[0])}: no container covers its url"
            )


def _to_checksum(file: SourceFile) -> datetime | str | None:
    """Return the checksum of a file for Icechunk: mtime in whole seconds, or etag."""
    if file.mtime is not None:
        return datetime.fromtimestamp(-(-file.mtime // 10**9), UTC)
    # for files in Google Cloud Storage, our etag is the generation, which Icechunk does not compare
    return None if kind_of(file.url) == "gs" else file.etag


def _spread_over_box(
    box: tuple[int, ...],
    positions: Ints,
    locations: Sequence[str],
    columns: tuple[Ints, Ints, Ints],
) -> tuple[list[str], Any, Any]:
    """Return location, offset and length of all chunks of a box; "" stands for a missing chunk."""
    flat = np.ravel_multi_index(tuple(positions.T), box)
    names = np.full(prod(box), "", object)
    names[flat] = np.array([*locations, ""], object)[columns[0]]
    offset, length = (np.zeros(prod(box), np.uint64) for _ in columns[1:])
    offset[flat], length[flat] = columns[1:]
    return names.tolist(), offset, length


# ---------------------------------------------------------------------- what is written to


@contextmanager
def exclude_other_writers(
    location: ObjectLocation | None, url: str, options: StorageOptions | None
) -> Iterator[None]:
    """Exclude unnoticed commits of other writers to a repository during the block.

    Icechunk commits by a conditional write. Local disks have none, so our own writers take a lock.
    An object store may ignore conditions, so it is tested first. The location of an Icechunk object
    is unknown, so its owner is responsible.
    """
    if location is not None and location.kind == "local":
        path = os.path.realpath(location.arguments["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with hold_lock(get_lock_path(path)):
            yield
        return
    if location is not None and location.kind in ("s3", "gcs", "azure"):
        find_store(url).check_conditions(url, options)
    yield


@dataclass
class Target:
    """A repository at a url, or an Icechunk object, to write to.

    ``location`` is the location of the repository, ``root`` its url, and ``given`` the repository
    once it is open; if the user passed an object, only ``given`` is known. ``name`` is for errors.
    ``config`` is saved in the repository. With ``create_branch``, a missing branch is created at
    the snapshot of ``main``, and removed if writing fails. ``staging_folder`` is the url of a
    folder whose chunks are moved into the repository.
    """

    location: ObjectLocation | None
    given: Any
    root: str | None
    name: str
    branch: str
    options: StorageOptions | None = None
    config: Any = None
    create_branch: bool = False
    staging_folder: str | None = None
    begun: bool = False

    @classmethod
    def of(
        cls, url: Any, options: StorageOptions | None, branch: str = MAIN, **more: Any
    ) -> Target:
        """Create the target from the argument that a user passes."""
        config = more.get("config")
        if config is not None and not isinstance(config, icechunk.RepositoryConfig):
            raise TypeError(f"config={config!r:.80}: give an icechunk.RepositoryConfig")
        if isinstance(url, str):
            root = url.rstrip("/")
            return cls(find_storage(root, options), None, root, root, branch, options, **more)
        if branch != MAIN and not isinstance(url, icechunk.Repository):
            raise ValueError(f"branch {branch!r}: a session has its own; leave it out")
        if config is not None:
            raise ValueError("config: an open repository has its own; leave it out")
        return cls(None, url, None, name_object(url), branch, **more)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude other writers in the block; if it fails, remove a branch created in it."""
        with (
            exclude_other_writers(self.location, self.name, self.options),
            self.remove_branch_on_error(),
        ):
            yield

    @contextmanager
    def remove_branch_on_error(self, *, keep: bool = True) -> Iterator[None]:
        """Remove a branch created in the block if the block fails, or if it is not to be kept."""
        done = False
        try:
            with translate_errors(self.name):
                yield
            done = True
        finally:
            if self.begun and not (done and keep):
                self.given.delete_branch(self.branch)
                self.begun = False

    @property
    def committed(self) -> Any:
        """The repository to which virtualds commits, or None for a session of the user."""
        return self.given if isinstance(self.given, icechunk.Repository) else None

    def exists(self) -> bool:
        """Return whether the repository exists."""
        with translate_errors(self.name):
            return self.location is None or icechunk.Repository.exists(_make_storage(self.location))

    def open_store(
        self,
        needed: RequiredConfig = NO_REQUIREMENTS,
        before: OpenStore | None = None,
        *,
        begins: bool = True,
    ) -> OpenStore:
        """Return a writable store of a repository whose configuration contains what is needed.

        It must be based on the same snapshot as ``before``. A missing branch is created if
        ``begins`` is true; otherwise the store of ``main`` is returned.
        """
        with translate_errors(self.name):
            if self.location is not None:
                self._open_repository(self.location, needed)
            else:
                self._check(needed.containers)
                if before is not None:
                    return before
            store = OpenStore(self._open_branch(begins), self.name)
        if before is not None and store.snapshot != before.snapshot:
            raise ConflictError(
                f"{self.name}: another writer has committed meanwhile; write again to what is "
                f"there now"
            )
        return store

    def _open_repository(self, location: ObjectLocation, needed: RequiredConfig) -> None:
        """Open the repository, or create it, with the configuration that is needed."""
        if not self.exists():
            self.given = _create_repository(location, self.name, needed, self.config)
            return
        self.given = icechunk.Repository.open(_make_storage(location))
        if self.config is not None:
            self.given = _save_config(self.given, self.given.config.merge(self.config))
        config = self.given.config
        if _add_needed(config, needed):
            self.given = _save_config(self.given, config)

    def _open_branch(self, begins: bool) -> Any:
        """Return a writable Icechunk store."""
        if (repository := self.committed) is None:
            return store_of(self.given, self.name)
        known, branch = sorted(repository.list_branches()), self.branch
        if self.create_branch and branch not in known:
            if begins:
                repository.create_branch(branch, repository.lookup_branch(MAIN))
                self.begun = True
            else:
                branch = MAIN
        elif branch not in known:
            raise FileNotFoundError(
                f"{self.name}: there is no branch {branch!r}, but {known}; create_branch=True "
                f"makes one that begins where 'main' is"
            )
        return repository.writable_session(branch).store

    def _check(self, needed: Mapping[str, ObjectLocation]) -> None:
        """Raise an error for references that no container of the user's own repository covers."""
        config = self.given.config if hasattr(self.given, "config") else self.given.session.config
        if lacking := _list_uncovered(config, needed):
            known = _list_containers(config)
            raise make_unsupported_error(
                self.name,
                "it",
                [
                    f"files below {prefix}: no virtual chunk container covers them, only {known}"
                    for prefix in lacking
                ],
                f"call config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("
                f"{lacking[0]!r}, ...)), save the configuration and open the repository with it; "
                f"or write to the url of the repository, and virtualds sets them up",
            )

    def is_own(self, url: str) -> bool:
        """Return whether a file is a native chunk of the repository, or is to become one."""
        folders = ([f"{self.root}/{CHUNKS}/"] if self.root else []) + (
            [f"{self.staging_folder}/"] if self.staging_folder else []
        )
        return any(url.startswith(folder) for folder in folders)


def name_object(opened: Any) -> str:
    """Return the name of an Icechunk object for errors."""
    return f"{type(opened).__name__} of Icechunk"


def store_of(opened: Any, name: str) -> Any:
    """Return the store of an Icechunk object that is not a repository."""
    store = opened.store if isinstance(opened, icechunk.Session) else opened
    if not isinstance(store, icechunk.IcechunkStore):
        raise UnsupportedError(
            f"{name}: references lie in a Repository, a Session or an IcechunkStore of Icechunk"
        )
    return store
