"""Anything else that fsspec knows: http, s3, gs, memory and so on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from virtualds.manifest import SourceFile, StorageOptions
from virtualds.store import Range, StoreError


class FsspecStore:
    """The files of any fsspec filesystem."""

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, fetched together."""
        starts = [offset for offset, _ in ranges]
        ends = [offset + length for offset, length in ranges]
        try:
            filesystem, path = _locate(file.url, file.options)
            found = filesystem.cat_ranges([path] * len(ranges), starts, ends, on_error="return")
        except OSError as error:
            raise StoreError(str(error)) from error
        for item, (data, (_, length)) in enumerate(zip(found, ranges, strict=True)):
            if isinstance(data, BaseException):
                raise StoreError(f"{type(data).__name__}: {data}", item) from data
            if len(data) != length:
                raise StoreError(f"the store sent {len(data)} of {length} bytes", item)
        return list(found)

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its size and, where the store has one, its etag."""
        filesystem, path = _locate(url, options)
        info = filesystem.info(path)
        return SourceFile(url, info.get("size"), None, info.get("ETag"), options)

    def open(self, url: str, options: StorageOptions | None) -> Any:
        """Return the file opened for reading, with fsspec's cache behind it."""
        filesystem, path = _locate(url, options)
        return filesystem.open(path, "rb")

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file."""
        filesystem, path = _locate(url, options)
        return bytes(filesystem.cat_file(path))

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Put a file; object stores show it whole or not at all."""
        filesystem, path = _locate(url, options)
        if not replace and filesystem.exists(path):
            raise FileExistsError(f"{url}: exists already; pass mode='w' to replace it")
        filesystem.pipe_file(path, data)

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes]],
        options: StorageOptions | None,
        *,
        replace: bool,
    ) -> None:
        """Put the files of a folder, the last one when all others are there."""
        filesystem, root = _locate(url, options)
        before = set(filesystem.find(root)) if filesystem.exists(root) else set()
        if before and not replace:
            raise FileExistsError(
                f"{url}: exists already; pass mode='w' to replace a reference set, remove anything "
                f"else"
            )
        put: dict[str, None] = {}
        try:
            for inside, data in files:
                path = f"{root.rstrip('/')}/{inside}"
                put[path] = None
                filesystem.pipe_file(path, data)
        except BaseException:
            _remove(filesystem, set(put) - before)
            raise
        _remove(filesystem, before - set(put))


def _remove(filesystem: Any, paths: Iterable[str]) -> None:
    for path in paths:
        if filesystem.exists(path):
            filesystem.rm_file(path)


def _locate(url: str, options: StorageOptions | None) -> tuple[Any, str]:
    # here, because importing it takes as long as importing the rest of virtualds
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, **dict(options or {}))  # type: ignore[no-any-return]
    except (ImportError, TypeError, ValueError) as error:
        raise StoreError(f"no filesystem for {url}: {error}") from error
