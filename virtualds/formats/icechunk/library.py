"""Wrap the Icechunk library: repositories, sessions and stores.

No other module opens a repository or writes to it. Only the documented interface is used:
coroutines of stores for zarr-python, and references of whole arrays. Coroutines run in a separate
thread, since the caller may already be running an event loop.

Urls and options of fsspec are translated to those of Icechunk, without any request. Options that
are not in the tables raise an error.
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
from virtualds.formats.zarr import MARKER, join_node_path, unravel_in_grid
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions, kind_of, local_path, scheme_of
from virtualds.stores import find_store
from virtualds.stores.fsspec import resolve_options
from virtualds.stores.local import get_lock_path, hold_lock
from virtualds.stores.object_access import convert_anon_option, translate_options

PERCENT_ENCODED = ("http", "https")
"""Schemes whose urls are already percent-encoded."""
UNQUOTED = "/:@!$&'()*+,;=~"
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
    """A kind of storage, and the keyword arguments of Icechunk's constructor for it."""

    kind: str
    arguments: dict[str, Any]


def quote_url(url: str) -> str:
    """Return a url in the form that Icechunk expects: with percent-encoded names.

    Examples
    --------
    >>> quote_url("file:///data/a b#1.nc")
    'file:///data/a%20b%231.nc'
    """
    if scheme_of(url) in PERCENT_ENCODED:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(rest, safe=UNQUOTED)}"


def unquote_url(location: str) -> str:
    """Return the location of an Icechunk reference as a url with decoded names.

    Examples
    --------
    >>> unquote_url("file:///data/a%20b%231.nc")
    'file:///data/a b#1.nc'
    """
    return location if scheme_of(location) in PERCENT_ENCODED else unquote(location)


def find_storage(url: str, options: Mapping[str, Any] | None) -> ObjectLocation:
    """Return the location of a repository."""
    locate = _find_locator(url, "cannot have a repository")
    return locate(url.rstrip("/"), dict(resolve_options(options) or {}))


def _find_locator(url: str, lack: str) -> Callable[[str, dict[str, Any]], ObjectLocation]:
    """Return the locator for a url, or raise an error for storage that Icechunk lacks."""
    scheme = scheme_of(url)
    if "::" in url or scheme not in LOCATORS:
        raise UnsupportedError(f"{url}: Icechunk {lack} there; it supports {sorted(LOCATORS)}")
    return LOCATORS[scheme]


def find_container(url: str, options: Mapping[str, Any] | None) -> tuple[str, ObjectLocation]:
    """Return the url prefix of the container for a source file, and the location of its storage."""
    _find_locator(url, "cannot refer to files")
    scheme = scheme_of(url)
    if scheme == "file":
        folder = _find_plain_folder(posixpath.dirname(local_path(url)))
        if folder == "/":
            raise UnsupportedError(
                f"{url}: Icechunk cannot refer to files in the root folder, nor below a folder of "
                f"it whose name must be percent-encoded; write a set of zarr-v3, or move the file "
                f"and change its path with ds.virtual.rename_paths"
            )
        return f"file://{folder}", ObjectLocation("local", {"path": folder})
    host = "/".join(url.split("/")[:3]) + "/"
    if scheme == "abfss" or (scheme in ("az", "abfs") and "@" in host):
        raise UnsupportedError(
            f"{url}: Icechunk cannot refer to files by such a url; name the file "
            f"az://container/path, and give account_name in storage_options"
        )
    storage = find_storage(host, options)
    arguments = {
        n: v for n, v in storage.arguments.items() if n in CONTAINER_OPTIONS.get(storage.kind, ())
    }
    return host, ObjectLocation(storage.kind, arguments)


def _find_plain_folder(folder: str) -> str:
    """Return the innermost folder whose path needs no percent-encoding, so that Icechunk finds it.

    Examples
    --------
    >>> _find_plain_folder("/data/in put/2001"), _find_plain_folder("/data/2001")
    ('/data/', '/data/2001/')
    """
    names = folder.strip("/").split("/")
    quoted = (n for n, name in enumerate(names) if quote(name, safe=UNQUOTED) != name)
    return "/".join(["", *names[: next(quoted, len(names))], ""]).replace("//", "/")


def find_containers(
    files: Iterable[tuple[str, Mapping[str, Any] | None]],
) -> dict[str, ObjectLocation]:
    """Return the fewest containers that cover files, by url prefix; none is inside another.

    Examples
    --------
    >>> list(find_containers([("file:///data/2001/a.nc", None), ("file:///data/b.nc", None)]))
    ['file:///data/']
    """
    candidates: dict[str, ObjectLocation] = {}
    seen: set[tuple[str, int]] = set()
    for url, options in files:
        folder = (url.rpartition("/")[0], id(options))
        if folder not in seen:
            seen.add(folder)
            prefix, location = find_container(url, options)
            candidates.setdefault(prefix, location)
    containers: dict[str, ObjectLocation] = {}
    for prefix in sorted(candidates, key=len):
        if not prefix.startswith(tuple(containers)):
            containers[prefix] = candidates[prefix]
    return containers


def _locate_local(url: str, options: dict[str, Any]) -> ObjectLocation:
    """Return the location of a local folder."""
    _check_no_options(url, {n: v for n, v in options.items() if n != "auto_mkdir"})
    return ObjectLocation("local", {"path": local_path(url)})


def _locate_http(url: str, options: dict[str, Any]) -> ObjectLocation:
    """Return the location of a folder on a web server."""
    headers = options.pop("headers", None)
    client = dict(options.pop("client_kwargs", None) or {})
    headers = {**(client.pop("headers", None) or {}), **(headers or {})}
    _check_no_options(url, options | client)
    return ObjectLocation("http", {"base_url": url, "headers": headers or None})


def _locate_s3(url: str, options: dict[str, Any]) -> ObjectLocation:
    """Return the location of a prefix in an S3 bucket."""
    client = dict(options.pop("client_kwargs", None) or {})
    secure = options.pop("use_ssl", True)
    remaining = options | client
    arguments = {S3_NAMES[n]: remaining.pop(n) for n in list(remaining) if n in S3_NAMES}
    _check_no_options(url, remaining)
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if arguments.get("endpoint_url"):
        is_plain = str(arguments["endpoint_url"]).startswith("http://") or not secure
        arguments |= {"force_path_style": True, "allow_http": is_plain}
        arguments.setdefault("region", "us-east-1")
    if not any(arguments.get(name) for name in S3_SECRETS):
        arguments["from_env"] = True
    return ObjectLocation("s3", {"bucket": bucket, "prefix": prefix or None, **arguments})


def _locate_gcs(url: str, options: dict[str, Any]) -> ObjectLocation:
    """Return the location of a prefix in a bucket of Google Cloud Storage."""
    options = convert_anon_option(options)
    token = options.pop("token", None)
    options.pop("project", None)
    _check_no_options(url, options)
    if token not in (None, "anon") and not isinstance(token, str):
        _check_no_options(url, {"token": token})
    bucket, _, prefix = url.partition("://")[2].partition("/")
    access = {None: {"from_env": True}, "anon": {"anonymous": True}}.get(
        token, {"application_credentials": token}
    )
    return ObjectLocation("gcs", {"bucket": bucket, "prefix": prefix or None, **access})


def _locate_azure(url: str, options: dict[str, Any]) -> ObjectLocation:
    """Return the location of a prefix in a container of Azure Blob Storage."""
    scheme, _, rest = url.partition("://")
    container, _, prefix = rest.partition("/")
    is_public = bool(options.get("anon"))
    # unlike obstore, for which options are translated here, Icechunk finds a login by itself
    needs_login = not is_public and not AZURE_SECRETS & options.keys()
    try:
        translated = translate_options(
            f"{scheme}://{container}", options | {"anon": is_public or needs_login}
        )
    except ValueError as error:
        raise UnsupportedError(str(error)) from error
    # Icechunk accepts neither objects that return tokens nor client secrets of applications
    _check_no_options(url, translated.login)
    account = translated.config["account_name"]
    access: dict[str, Any] = {"account": account, **translated.secrets}
    access |= {"from_env": True} if needs_login else {"anonymous": True} if is_public else {}
    arguments: dict[str, Any] = {"container": translated.bucket, "prefix": prefix, "config": {}}
    if (endpoint := translated.config["endpoint"]) != f"https://{account}.blob.core.windows.net":
        is_plain = endpoint.startswith("http://")
        arguments["config"] = {"endpoint": endpoint, "allow_http": str(is_plain).lower()}
    return ObjectLocation("azure", arguments | access)


def _check_no_options(url: str, remaining: Mapping[str, Any]) -> None:
    """Raise an error for options that Icechunk lacks."""
    if remaining:
        raise UnsupportedError(
            f"{url}: Icechunk has no name for the option {min(remaining)!r}; leave it out, or open "
            f"the repository with icechunk and pass that"
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
"""Functions that locate a url with its options, by scheme."""
CONTAINER_OPTIONS = {
    "s3": (
        *("region", "endpoint_url", "allow_http"),
        *("force_path_style", "requester_pays", "anonymous"),
    ),
    "azure": ("account", "config"),
}
"""Options that are stored with a container, by kind; readers pass their own credentials."""


# ---------------------------------------------------------------------- library

NATIVE, INLINE = int(icechunk.ChunkType.native), int(icechunk.ChunkType.inline)
"""Kinds of chunks that are not in source files."""
CREATION_TIMEOUT, CREATION_PAUSE = 3.0, 0.05
"""How long to wait for another writer that creates a repository, and how often to look, in
seconds."""
MAX_REQUESTS = 256
"""The maximum number of concurrent requests."""
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
        "another writer has committed meanwhile; write again to the current version",
    ),
    (icechunk.AlreadyExistsError, FileExistsError, "{message}"),
    (icechunk.ReadOnlyError, AccessError, "{message}; pass a writable session"),
    (icechunk.StorageError, ReadError, "{message}; check the path and the options"),
    (icechunk.IcechunkError, FormatError, f"Icechunk {icechunk.__version__} says: {{message}}"),
)
"""Errors of Icechunk, the errors raised instead, and their messages; the first match is used."""


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Replace errors of Icechunk by errors of virtualds, with the url."""
    try:
        yield
    except icechunk.IcechunkError as error:
        lines = str(error.args[0] if error.args else error).strip().splitlines()
        new_class, text = next(
            (k, text) for error_class, k, text in ERRORS if isinstance(error, error_class)
        )
        raise new_class(f"{url}: {text.format(message=next(iter(lines), ''))}") from error


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
    """Return the Icechunk storage of a location."""
    if location.kind == "local":
        return icechunk.local_filesystem_storage(location.arguments["path"])
    return getattr(icechunk, f"{location.kind}_storage")(**location.arguments)


def open_repository(url: str, options: StorageOptions | None) -> Any:
    """Open a repository."""
    with translate_errors(url):
        return icechunk.Repository.open(_make_storage(find_storage(url, options)))


def _create_repository(
    location: ObjectLocation, url: str, required: RequiredConfig, user_config: Any = None
) -> Any:
    """Create a repository with the required configuration."""
    config = icechunk.RepositoryConfig.default()
    config = config if user_config is None else config.merge(user_config)
    _add_required(config, required)
    storage = _make_storage(location)
    try:
        with translate_errors(url):
            return icechunk.Repository.create(storage, config)
    except FormatError as error:
        # another writer may be creating it at the same time
        end = time.monotonic() + CREATION_TIMEOUT
        while not icechunk.Repository.exists(storage) and time.monotonic() < end:
            time.sleep(CREATION_PAUSE)
        raise FileExistsError(
            f"{url}: exists already, and is not a repository ({error}); remove it, or choose "
            f"another name"
        ) from error


def _save_config(repository: Any, config: Any) -> Any:
    """Save a configuration in a repository, and return the repository with it."""
    reopened = repository.reopen(config=config)
    reopened.save_config()
    return reopened


def _list_containers(config: Any) -> list[str]:
    """Return the url prefixes of the containers in a configuration."""
    return sorted(c.url_prefix for c in (config.virtual_chunk_containers or {}).values())


def _list_uncovered(config: Any, prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that no container of a configuration covers."""
    covered = tuple(_list_containers(config))
    return [prefix for prefix in prefixes if not prefix.startswith(covered)]


def _add_required(config: Any, required: RequiredConfig) -> bool:
    """Add required containers and splits to a configuration; return whether it changed."""
    missing = _list_uncovered(config, required.containers)
    for prefix in missing:
        kind, arguments = required.containers[prefix]
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
    return _add_splits(config, required.splits) or bool(missing)


def _add_splits(config: Any, splits: Mapping[str, Split]) -> bool:
    """Configure splits of manifests, and return whether the configuration changed.

    With splits, an append rewrites only the last manifest of an array. A repository whose owner has
    configured splits is not changed.
    """
    required = {
        icechunk.ManifestSplitCondition.path_matches(f"^/{re.escape(path)}$"): {
            icechunk.ManifestSplitDimCondition.Axis(split.axis): split.chunks
        }
        for path, split in splits.items()
    }
    manifest = config.manifest or icechunk.ManifestConfig()
    configured = manifest.splitting.to_dict() if manifest.splitting else {}
    missing = {
        condition: split for condition, split in required.items() if condition not in configured
    }
    if not missing or (configured and len(missing) == len(required)):
        return False
    manifest.splitting = icechunk.ManifestSplittingConfig.from_dict({**configured, **missing})
    config.manifest = manifest
    return True


# ---------------------------------------------------------------------- stores


class References(NamedTuple):
    """The references of the existing chunks of an array.

    ``chunk_ids`` has one row per chunk, its position in the grid. ``path`` are indices into
    ``paths``, and ``inline`` maps rows to inline chunks. The path of a native chunk is its name in
    the folder of native chunks.
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
    """Decorate a coroutine method to run in a separate thread and wait for the result."""

    @wraps(method)
    def run(self: OpenStore, /, *args: Given.args, **options: Given.kwargs) -> Result:
        with (
            translate_errors(self.url),
            ThreadPoolExecutor(1, thread_name_prefix="virtualds-icechunk") as pool,
        ):
            return pool.submit(asyncio.run, method(self, *args, **options)).result()

    return run


@dataclass(frozen=True, eq=False)
class OpenStore:
    """An Icechunk store with blocking methods.

    ``url`` is the url of the repository, or the name of an object, for errors.
    """

    store: Any
    url: str

    @property
    def snapshot(self) -> str:
        """The id of the snapshot on which the session is based."""
        return str(self.store.session.snapshot_id)

    # ------------------------------------------------------------------ reading

    @_blocking
    async def read_documents(self) -> dict[str, dict[str, Any]]:
        """Return the metadata of all nodes by path, groups before their members."""
        documents: dict[str, dict[str, Any]] = {}
        level = [""]
        while level:
            texts = await asyncio.gather(*map(self._fetch_document, level))
            nodes = {p: text for p, text in zip(level, texts, strict=True) if text is not None}
            documents |= nodes
            groups = [p for p, node in nodes.items() if node.get("node_type") == "group"]
            listed = await asyncio.gather(*map(self._list_children, groups))
            level = sorted(path for paths in listed for path in paths)
        return documents

    @_blocking
    async def read_document(self, path: str) -> dict[str, Any]:
        """Return the metadata of a node, or an empty dict if there is none."""
        return await self._fetch_document(path) or {}

    async def _fetch_document(self, path: str) -> dict[str, Any] | None:
        """Return the metadata of a node, or None if there is none."""
        data = await self.store.get(join_node_path(path, MARKER), default_buffer_prototype())
        if data is None:
            return None
        where = f"metadata of {path or 'the root'!r} in the repository"
        document = parse_json(data.to_bytes(), where)
        if not isinstance(document, dict):
            raise FormatError(f"{where}: they are not a JSON object; the repository is damaged")
        return document

    async def _list_children(self, path: str) -> list[str]:
        """Return the paths of the nodes directly below a group."""
        names = [name async for name in self.store.list_dir(path)]
        return [join_node_path(path, name) for name in names if name != MARKER]

    @_blocking
    async def read_references(self, path: str) -> References:
        """Return the references of an array."""
        numbers: dict[str, int] = {}
        inline: dict[int, bytes] = {}
        batches: list[tuple[Any, ...]] = []
        total = 0
        batches_of_store = self.store.array_chunk_iterator(f"/{path}")
        async for (
            chunk_ids_of_batch,
            kind,
            paths,
            offset,
            length,
            inline_chunks,
        ) in batches_of_store:
            path_numbers = [numbers.setdefault(text, len(numbers)) for text in paths]
            batches.append(
                (chunk_ids_of_batch, kind, np.array(path_numbers, np.int64), offset, length)
            )
            inline |= {total + row: data for row, data in inline_chunks.items()}
            total += len(paths)
        if not batches:
            empty = np.zeros(0, np.int64)
            return References(empty.reshape(0, 0), empty, empty, empty, empty, [], {})
        columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*batches, strict=True)]
        chunk_ids, kinds, rows, offsets, lengths = columns
        return References(chunk_ids, kinds, rows, offsets, lengths, list(numbers), inline)

    @_blocking
    async def read_chunks(self, path: str, chunk_ids: Iterable[Sequence[int]]) -> list[bytes]:
        """Return chunks of an array by their positions in its grid."""
        keys = ("/".join([path, "c", *map(str, chunk_id)]) for chunk_id in chunk_ids)
        chunks: list[bytes] = []
        while batch := list(islice(keys, MAX_REQUESTS)):
            gets = (self.store.get(key, default_buffer_prototype()) for key in batch)
            chunks += [data.to_bytes() for data in await asyncio.gather(*gets)]
        return chunks

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
        while batch := list(islice(files, MAX_REQUESTS)):
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
            properties = None if metadata is None else dict(metadata)
            self.store.session.commit(message, properties, allow_empty=True)

    def write_references(
        self,
        path: str,
        chunks: tuple[tuple[int, ...], Ints],
        files: Sequence[SourceFile],
        locations: Sequence[str],
        columns: tuple[Ints, Ints, Ints],
    ) -> None:
        """Write the references of an array.

        ``chunks`` are the grid shape, and the flat indices of the chunks to write, ascending;
        ``columns`` are the file, offset and length of each. ``locations`` are the urls of files in
        the form that Icechunk expects.
        """
        grid, indices = chunks
        checksums = [_to_checksum(source) for source in files]
        used_checksums = {checksums[number] for number in np.unique(columns[0]).tolist()}
        if not used_checksums:
            return
        positions = unravel_in_grid(indices, grid)
        origin = positions.min(0)
        box = tuple((positions.max(0) - origin + 1).tolist())
        with translate_errors(self.url):
            if len(used_checksums) == 1 and grid and not is_sparse(prod(box), indices.size):
                rejected = self.store.set_virtual_refs_arr(
                    f"/{path}",
                    box,
                    *_spread_over_box(box, positions - origin, locations, columns),
                    arr_offset=tuple(origin.tolist()),
                    checksum=used_checksums.pop(),
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
                        checksums[n] if isinstance(checksums[n], str) else None,
                        checksums[n] if isinstance(checksums[n], datetime) else None,
                    )
                    for chunk, n, offset, length in rows
                ]
                rejected = self.store.set_virtual_refs(f"/{path}", specs)
        if rejected:
            raise UnsupportedError(
                f"{self.url}: Icechunk refuses {len(rejected)} references of {path}, the first of "
                f"chunk {tuple(rejected[0])}: no container covers its url"
            )


def _to_checksum(file: SourceFile) -> datetime | str | None:
    """Return the checksum of a file for Icechunk: mtime in whole seconds, or etag."""
    if file.mtime is not None:
        return datetime.fromtimestamp(-(-file.mtime // 10**9), UTC)
    # the etag of files in Google Cloud Storage is the generation, which Icechunk cannot compare
    return None if kind_of(file.url) == "gs" else file.etag


def _spread_over_box(
    box: tuple[int, ...],
    positions: Ints,
    locations: Sequence[str],
    columns: tuple[Ints, Ints, Ints],
) -> tuple[list[str], Any, Any]:
    """Return location, offset and length of all chunks in a box, with "" for missing chunks."""
    flat = np.ravel_multi_index(tuple(positions.T), box)
    names = np.full(prod(box), "", object)
    names[flat] = np.array([*locations, ""], object)[columns[0]]
    offset, length = (np.zeros(prod(box), np.uint64) for _ in columns[1:])
    offset[flat], length[flat] = columns[1:]
    return names.tolist(), offset, length


# ---------------------------------------------------------------------- targets


@contextmanager
def exclude_other_writers(
    location: ObjectLocation | None, url: str, options: StorageOptions | None
) -> Iterator[None]:
    """Prevent commits of other writers to a repository during the block from being overwritten.

    Icechunk commits by a conditional write. Local disks have none, so writers of virtualds take a
    lock. An object store may ignore conditions, so it is tested first. The location of an Icechunk
    object is unknown, so its owner is responsible.
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

    ``location`` is the location of the repository, ``root`` its url, and ``opened`` the repository
    once it is open; if the user passed an object, that is ``opened``, and the others are None.
    ``name`` is for errors. ``config`` is saved in the repository. With ``create_branch``, a missing
    branch is created at the snapshot of ``main``, and removed if writing fails. ``staging_folder``
    is the url of a folder whose chunks are moved into the repository. ``has_new_branch`` says
    whether the branch was created.
    """

    location: ObjectLocation | None
    opened: Any
    root: str | None
    name: str
    branch: str
    options: StorageOptions | None = None
    config: Any = None
    create_branch: bool = False
    staging_folder: str | None = None
    has_new_branch: bool = False

    @classmethod
    def of(
        cls, url: Any, options: StorageOptions | None, branch: str = MAIN, **more: Any
    ) -> Target:
        """Return the target for the url or object that a user passes."""
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
        has_succeeded = False
        try:
            with translate_errors(self.name):
                yield
            has_succeeded = True
        finally:
            if self.has_new_branch and not (has_succeeded and keep):
                self.opened.delete_branch(self.branch)
                self.has_new_branch = False

    @property
    def repository(self) -> Any:
        """The repository to which virtualds commits, or None for a session of the user."""
        return self.opened if isinstance(self.opened, icechunk.Repository) else None

    def exists(self) -> bool:
        """Return whether the repository exists."""
        with translate_errors(self.name):
            return self.location is None or icechunk.Repository.exists(_make_storage(self.location))

    def open_store(
        self,
        required: RequiredConfig = NO_REQUIREMENTS,
        before: OpenStore | None = None,
        *,
        may_create_branch: bool = True,
    ) -> OpenStore:
        """Return a writable store of the repository, which gets the required configuration.

        The store must be based on the same snapshot as ``before``. A missing branch is created if
        ``may_create_branch``; otherwise the store of ``main`` is returned.
        """
        with translate_errors(self.name):
            if self.location is not None:
                self._open_repository(self.location, required)
            else:
                self._check_covered(required.containers)
                if before is not None:
                    return before
            store = OpenStore(self._open_branch(may_create_branch), self.name)
        if before is not None and store.snapshot != before.snapshot:
            raise ConflictError(
                f"{self.name}: another writer has committed meanwhile; write again to the "
                f"current version"
            )
        return store

    def _open_repository(self, location: ObjectLocation, required: RequiredConfig) -> None:
        """Open the repository, or create it, with the required configuration."""
        if not self.exists():
            self.opened = _create_repository(location, self.name, required, self.config)
            return
        self.opened = icechunk.Repository.open(_make_storage(location))
        if self.config is not None:
            self.opened = _save_config(self.opened, self.opened.config.merge(self.config))
        config = self.opened.config
        if _add_required(config, required):
            self.opened = _save_config(self.opened, config)

    def _open_branch(self, may_create: bool) -> Any:
        """Return a writable Icechunk store of the branch."""
        if (repository := self.repository) is None:
            return get_store(self.opened, self.name)
        branches, branch = sorted(repository.list_branches()), self.branch
        if self.create_branch and branch not in branches:
            if may_create:
                repository.create_branch(branch, repository.lookup_branch(MAIN))
                self.has_new_branch = True
            else:
                branch = MAIN
        elif branch not in branches:
            raise FileNotFoundError(
                f"{self.name}: there is no branch {branch!r}, only {branches}; create_branch=True "
                f"creates it at the snapshot of 'main'"
            )
        return repository.writable_session(branch).store

    def _check_covered(self, containers: Mapping[str, ObjectLocation]) -> None:
        """Raise an error for files that no container of the user's own repository covers."""
        config = (
            self.opened.config if hasattr(self.opened, "config") else self.opened.session.config
        )
        if missing := _list_uncovered(config, containers):
            existing = _list_containers(config)
            raise make_unsupported_error(
                self.name,
                "it",
                [
                    f"files below {prefix}: no virtual chunk container covers them, only {existing}"
                    for prefix in missing
                ],
                f"call config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("
                f"{missing[0]!r}, ...)), save the configuration and open the repository with it; "
                f"or write to the url of the repository, and virtualds sets them up",
            )

    def is_own(self, url: str) -> bool:
        """Return whether a file is, or will become, a native chunk of the repository."""
        folders = ([f"{self.root}/{CHUNKS}/"] if self.root else []) + (
            [f"{self.staging_folder}/"] if self.staging_folder else []
        )
        return any(url.startswith(folder) for folder in folders)


def name_object(opened: Any) -> str:
    """Return the name of an Icechunk object for errors."""
    return f"{type(opened).__name__} of Icechunk"


def get_store(opened: Any, name: str) -> Any:
    """Return the store of an Icechunk object that is not a repository."""
    store = opened.store if isinstance(opened, icechunk.Session) else opened
    if not isinstance(store, icechunk.IcechunkStore):
        raise UnsupportedError(
            f"{name}: give a Repository, a Session or an IcechunkStore of Icechunk"
        )
    return store
