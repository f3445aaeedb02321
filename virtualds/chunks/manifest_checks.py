"""Checks of the references of a manifest, made when it is built."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.projection import compact
from virtualds.errors import FormatError
from virtualds.source_file import SourceFile, sound


class References(Protocol):
    """The columns of `virtualds.ChunkManifest`, and the tables that they count."""

    @property
    def files(self) -> tuple[SourceFile, ...]: ...
    @property
    def file(self) -> npt.NDArray[Any]: ...
    @property
    def offset(self) -> npt.NDArray[Any]: ...
    @property
    def length(self) -> npt.NDArray[Any]: ...
    @property
    def checksum(self) -> npt.NDArray[Any]: ...
    @property
    def inline(self) -> tuple[bytes, ...]: ...


def check_references(manifest: References) -> None:
    """Refuse references that cannot be right, naming the first.

    Raises
    ------
    FormatError
        A reference is empty, negative, or reaches past the end of its file, or a checksum is
        neither 0 nor 2**32 + CRC-32.
    """
    if not _lies_in_one_file(manifest):
        _check_places(manifest)
    _check_checksums(compact(manifest.checksum))


def _lies_in_one_file(manifest: References) -> bool:
    """Say whether all chunks lie in the only file, and all references are valid."""
    file = compact(manifest.file)
    if file.size != 1 or file.flat[0] != 0 or len(manifest.files) != 1:
        return False
    offset, length = compact(manifest.offset), compact(manifest.length)
    size = manifest.files[0].size
    last = (2**62 if size is None else size) - length
    return bool(offset.min() >= 0 and length.min() > 0 and (offset <= last).all())


def _check_places(manifest: References) -> None:
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    if file.size and not INLINE <= int(file.min()) <= int(file.max()) < len(manifest.files):
        raise FormatError(
            f"ChunkManifest: file numbers {file.min()} to {file.max()} of {len(manifest.files)} "
            f"files; {MISSING} is a missing chunk, {INLINE} an inline one"
        )
    sizes = [f.size if f.size is not None else 2**62 for f in manifest.files]
    # negative codes index from the end; offsets of inline chunks are indices, not bytes
    ends = np.array([*sizes, len(manifest.inline), 2**62])[file]
    inside = (offset >= 0) & np.where(
        file == INLINE, offset < ends, (length > 0) & (offset <= ends - length)
    )
    bad = ~inside & (file != MISSING)
    if bad.any():
        _refuse(manifest, tuple(int(i) for i in np.argwhere(bad)[0]))


def _check_checksums(column: npt.NDArray[Any]) -> None:
    if column.size == 1 and not column.flat[0]:
        return
    wrong = ~sound(column)
    if wrong.any():
        raise FormatError(
            f"chunk {tuple(np.argwhere(wrong)[0].tolist())}: {column[wrong][0]} is not a checksum; "
            f"give 2**32 + CRC-32 of its bytes, or 0 for none"
        )


def _refuse(manifest: References, chunk_id: tuple[int, ...]) -> NoReturn:
    columns = (manifest.file, manifest.offset, manifest.length)
    file, offset, length = (int(column[chunk_id]) for column in columns)
    if file == INLINE:
        raise FormatError(
            f"chunk {chunk_id}: number {offset} of {len(manifest.inline)} inline chunks does "
            f"not exist; the reference is wrong"
        )
    source = manifest.files[file]
    raise FormatError(
        f"chunk {chunk_id}: bytes {offset} to {offset + length} of {source.url} "
        f"(size {source.size}) cannot be a chunk; fetch the source again if it is truncated, or "
        f"scan it "
        f"anew"
    )
