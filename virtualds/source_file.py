"""Source files: url, fingerprint, access options, checksums of chunks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.errors import public, without_secrets

NO_NUMBER = np.iinfo(np.int64).min
"""An unknown size or time, in a column of integers."""


class StorageOptions(dict[str, Any]):
    """Access options of a file: hashable, with a repr that hides their values."""

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> StorageOptions | None:
        """Return the access options that a user has passed, or None for none."""
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(
                f"storage_options: got {type(options).__name__}; give a dict of options for fsspec"
            )
        if not options:
            return None
        return options if isinstance(options, cls) else cls(options)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self)))

    def __repr__(self) -> str:
        return f"<options {sorted(self)}>"


@public
class SourceFile(NamedTuple):
    """A file with chunks, and its fingerprint when it was scanned.

    ``size`` is in bytes, ``mtime`` in nanoseconds since 1970; None is unknown.

    Examples
    --------
    >>> SourceFile("s3://bucket/a.nc", size=2048).size
    2048
    """

    url: str
    size: int | None = None
    mtime: int | None = None
    etag: str | None = None
    options: StorageOptions | None = None

    def __repr__(self) -> str:
        shown = (f"{n}={v!r}" for n, v in zip(self._fields[1:], self[1:], strict=True))
        return f"SourceFile({', '.join((f'url={without_secrets(self.url)!r}', *shown))})"

    @property
    def fingerprint(self) -> tuple[int | None, int | None, str | None]:
        """Size, modification time and etag."""
        return self.size, self.mtime, self.etag

    def merged_with(self, other: SourceFile) -> SourceFile | None:
        """Merge two scans of a file, or return None if they contradict each other.

        Examples
        --------
        >>> file = SourceFile("s3://bucket/a.nc", size=2048)
        >>> file.merged_with(file._replace(etag="e")).etag
        'e'
        >>> file.merged_with(file._replace(size=1))
        """
        if self.fingerprint == other.fingerprint:
            return self
        pairs = list(zip(self.fingerprint, other.fingerprint, strict=True))
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            return None
        known: list[Any] = [a if b is None else b for a, b in pairs]
        size, mtime, etag = known
        return self._replace(size=size, mtime=mtime, etag=etag)


PRESENT = 2**32
"""The number that is added to a CRC-32, so that 0 means "no checksum"."""


def checksum_of(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum that a manifest stores for these bytes (CRC-32: RFC 1952, section 8).

    Examples
    --------
    >>> hex(checksum_of(b"123456789"))
    '0x1cbf43926'
    """
    return PRESENT + zlib.crc32(data)


def find_mismatch(data: bytes | bytearray | memoryview, expected: int) -> str | None:
    """Describe how bytes differ from a checksum; return None if they match, or if it is 0.

    Examples
    --------
    >>> find_mismatch(b"123456789", checksum_of(b"12345678"))
    'their CRC-32 is 0xcbf43926, the reference says 0x9ae0daaf'
    """
    if not expected or (found := checksum_of(data)) == expected:
        return None
    return f"their CRC-32 is {found - PRESENT:#010x}, the reference says {expected - PRESENT:#010x}"


def compute_checksum_behind(head: bytes, whole: int, count: int) -> int:
    """Return the checksum of the last ``count`` bytes of data that begin with ``head``.

    Parameters
    ----------
    head : bytes
        All bytes before them.
    whole : int
        The checksum of all the data.
    count : int

    Notes
    -----
    A CRC is linear: the CRC of two pieces is the CRC of the first, continued over as many zeros as
    the second has bytes, xor the CRC of the second.

    Examples
    --------
    >>> compute_checksum_behind(b"12345", checksum_of(b"123456789"), 4) == checksum_of(b"6789")
    True
    """
    # zlib inverts the register before and after
    inverted = PRESENT - 1
    continued = zlib.crc32(bytes(count), zlib.crc32(head) ^ inverted) ^ inverted
    return PRESENT + ((whole - PRESENT) ^ continued)


def from_crc32(values: npt.ArrayLike | None) -> npt.NDArray[np.uint64]:
    """Convert CRC-32 values to checksums of a manifest; None means no checksum.

    Raises
    ------
    ValueError
        The values are not integers of 32 bits.

    Examples
    --------
    >>> from_crc32([0, None]).tolist()
    [4294967296, 0]
    """
    given: npt.NDArray[Any] = np.asarray(values)
    known = np.array(True)
    if given.dtype == object:
        known = np.array([v is not None for v in given.ravel()], bool).reshape(given.shape)
        given = np.array(np.where(known, given, 0).tolist())
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"checksums: {given.dtype} given; give integers, or None for none")
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < PRESENT:
        raise ValueError(
            f"checksums: {given.min()} to {given.max()} are not CRC-32 values; give 0 to 2**32 - 1"
        )
    return np.where(known, given.astype(np.uint64) + np.uint64(PRESENT), np.uint64(0))


def find_valid_checksums(checksums: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that are valid checksums: 0, or `PRESENT` plus a CRC-32."""
    found: npt.NDArray[np.bool_] = (checksums == 0) | (checksums >> 32 == 1)
    return found
