"""The files of rewritten chunks: a folder beside the set, named by what they were made of.

A file holds the chunks of one block. Its name says variable, a hash of references and encoding, and
position. So a killed rewrite goes on where it stopped, and never takes chunks of another state of
the sources.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.columns import COLUMNS, digest
from virtualds.chunks.projection import compact
from virtualds.datasets.copies import SUFFIX
from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.errors import AccessError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.urls import normalise_url, scheme_of

MAGIC = b"VDSCHNK1"
"""The last bytes of a file of chunks."""
ROW, TAIL = 16, 16
"""Bytes of a row, and of what comes behind the rows."""


Rows = list[tuple[int, int]]
"""Chunks of a file, one after the other: the number of the cell in C order, and the length."""


def encode_file(chunks: Sequence[tuple[int, bytes]]) -> bytes:
    """Return chunks as a file: their bytes, then their rows, their count and `MAGIC`."""
    rows = np.array([(cell, len(data)) for cell, data in chunks], "<i8")
    tail = rows.tobytes() + np.array([len(chunks)], "<i8").tobytes() + MAGIC
    return b"".join([*(data for _, data in chunks), tail])


def decode_rows(read: Callable[[int, int], bytes], size: int) -> Rows | None:
    """Return the rows of a file of a size; None if the file is none of ours, or damaged.

    ``read`` takes an offset and a length.
    """
    if size < TAIL:
        return None
    tail = read(size - TAIL, TAIL)
    count = int.from_bytes(tail[:8], "little")
    if tail[8:] != MAGIC or count * ROW > size - TAIL:
        return None
    begin = size - TAIL - count * ROW
    rows = np.frombuffer(read(begin, count * ROW), "<i8").reshape(-1, 2)
    whole = bool((rows[:, 1] >= 0).all()) and int(rows[:, 1].sum()) == begin
    return list(map(tuple, rows.tolist())) if whole else None


@dataclass(frozen=True)
class ChunkFiles:
    """The folder of one variable's rewritten chunks.

    Parameters
    ----------
    folder : str
        Its url.
    options : StorageOptions, optional
    """

    folder: str
    options: StorageOptions | None

    @classmethod
    def of(cls, root: str, plan: VariablePlan, options: StorageOptions | None) -> ChunkFiles:
        """Return the folder of a variable below the folder of all."""
        return cls(f"{root}/{plan.path}/{_identify(plan)}", options)

    def list_present(self) -> dict[str, SourceFile]:
        """Return the files that an earlier run has written, by name."""
        found = find_store(self.folder).list_files(self.folder, self.options)
        return {one.path: one.file for one in found if one.file.size is not None}

    def read_rows(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file that an earlier run has written."""
        store = find_store(file.url)

        def read(offset: int, length: int) -> bytes:
            return store.get_ranges(file, [(offset, length)])[0] if length else b""

        return decode_rows(read, file.size or 0)

    def put(self, name: str, chunks: Sequence[tuple[int, bytes]]) -> SourceFile:
        """Write chunks to a file: under its name lies all of it or nothing."""
        url, data = f"{self.folder}/{name}", encode_file(chunks)
        find_store(url).write_file(url, data, self.options)
        return SourceFile(url, len(data), options=self.options)


def name_folder(target: Any) -> str:
    """Return the url of the folder of all rewritten chunks beside a set."""
    return f"{str(target).rstrip('/')}{SUFFIX}"


def choose_waiting_room(target: Any) -> str:
    """Return a folder where chunks wait until a format takes them into the set itself.

    It lies beside a local set, and else in a folder of temporary files that only this user owns.

    Raises
    ------
    AccessError
        Somebody else owns the folder.
    """
    if isinstance(target, str) and scheme_of(target) == "file":
        return name_folder(target)
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = os.path.join(tempfile.gettempdir(), f"virtualds-{user}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != user):
        raise AccessError(f"{path}: it belongs to another user; remove it, or set TMPDIR")
    name = hashlib.sha256(str(target).encode()).hexdigest()[:16] if isinstance(target, str) else "o"
    return normalise_url(os.path.join(path, f"{name}{SUFFIX}"))


def _identify(plan: VariablePlan) -> str:
    """Return a hash of all that decides about the bytes of rewritten chunks."""
    found = hashlib.sha256()
    for part in _list_identity(plan.array, plan):
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()[:16]


def _list_identity(array: ManifestArray, plan: VariablePlan) -> Iterator[Any]:
    yield repr((array.shape, array.dtype.str, repr(array.fill_value), plan.main)).encode()
    yield repr(_describe_packings([*array.pipelines, plan.main.pipeline])).encode()
    yield repr(array.pipelines).encode()
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        yield repr((fragment.start, digest(manifest.files)[0])).encode()
        for axis in fragment.axes:
            yield from (np.ascontiguousarray(column).data for column in axis.slabs())
        for name in COLUMNS:
            yield np.ascontiguousarray(compact(getattr(manifest, name))).data
        yield from manifest.inline


def _describe_packings(pipelines: Iterable[Any]) -> list[Any]:
    return [dict(p.packing.attributes) if p.packing else None for p in pipelines]
