"""Source files: url, fingerprint, access options, checksums of chunks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.errors import public, without_secrets

NO_NUMBER = np.iinfo(np.int64).min
"""The value for an unknown size or time in a column of integers."""


class StorageOptions(dict[str, Any]):
    """Access options of a file: hashable, with a repr that hides their values."""

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> StorageOptions | None:
        """Return the access options of a user, or None if there are none."""
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
    """A file with chunks, and its fingerprint at the time of the scan.

    ``size`` is in bytes, ``mtime`` in nanoseconds since 1970; None means unknown.

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
        pairs = zip(self._fields, (without_secrets(self.url), *self[1:]), strict=True)
        return f"SourceFile({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    @property
    def fingerprint(self) -> tuple[int | None, int | None, str | None]:
        """Size, modification time and etag."""
        return self.size, self.mtime, self.etag

    def merge(self, other: SourceFile) -> SourceFile | None:
        """Merge two scans of a file, or return None if they contradict each other.

        Examples
        --------
        >>> file = SourceFile("s3://bucket/a.nc", size=2048)
        >>> file.merge(file._replace(etag="e")).etag
        'e'
        >>> file.merge(file._replace(size=1))
        """
        if self.fingerprint == other.fingerprint:
            return self
        pairs = list(zip(self.fingerprint, other.fingerprint, strict=True))
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            return None
        merged: list[Any] = [a if b is None else b for a, b in pairs]
        size, mtime, etag = merged
        return self._replace(size=size, mtime=mtime, etag=etag)


CHECKSUM_FLAG = 2**32
"""The number that is added to a CRC-32, so that 0 can mean "no checksum"."""


def compute_checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of bytes as in manifests: `CHECKSUM_FLAG` + CRC-32 (RFC 1952, section 8).

    Examples
    --------
    >>> hex(compute_checksum(b"123456789"))
    '0x1cbf43926'
    """
    return CHECKSUM_FLAG + zlib.crc32(data)


def describe_mismatch(data: bytes | bytearray | memoryview, expected: int) -> str | None:
    """Return how the checksum of bytes differs, or None if it is as expected or 0 is expected.

    Examples
    --------
    >>> describe_mismatch(b"123456789", compute_checksum(b"12345678"))
    'their CRC-32 is 0xcbf43926, the reference says 0x9ae0daaf'
    """
    if not expected or (actual := compute_checksum(data)) == expected:
        return None
    crc32, expected_crc32 = actual - CHECKSUM_FLAG, expected - CHECKSUM_FLAG
    return f"their CRC-32 is {crc32:#010x}, the reference says {expected_crc32:#010x}"


def compute_tail_checksum(head: bytes, checksum: int, tail_length: int) -> int:
    """Return the checksum of a tail from its length, the head, and the checksum of head + tail.

    Parameters
    ----------
    head : bytes
        The bytes before the tail.
    checksum : int
        The checksum of head and tail.
    tail_length : int

    Notes
    -----
    A CRC is linear: the CRC of head and tail is the CRC of the head, continued over as many zeros
    as the tail has bytes, xor the CRC of the tail.

    Examples
    --------
    >>> tail = compute_tail_checksum(b"12345", compute_checksum(b"123456789"), 4)
    >>> tail == compute_checksum(b"6789")
    True
    """
    # zlib inverts the register before and after
    inverted = CHECKSUM_FLAG - 1
    continued = zlib.crc32(bytes(tail_length), zlib.crc32(head) ^ inverted) ^ inverted
    return CHECKSUM_FLAG + ((checksum - CHECKSUM_FLAG) ^ continued)


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
    crcs: npt.NDArray[Any] = np.asarray(values)
    is_present = np.array(True)
    if crcs.dtype == object:
        is_present = np.array([crc is not None for crc in crcs.ravel()], bool).reshape(crcs.shape)
        crcs = np.array(np.where(is_present, crcs, 0).tolist())
    if crcs.size and crcs.dtype.kind not in "iu":
        raise ValueError(f"checksums: {crcs.dtype} given; give integers, or None for none")
    if crcs.size and not 0 <= int(crcs.min()) <= int(crcs.max()) < CHECKSUM_FLAG:
        raise ValueError(
            f"checksums: {crcs.min()} to {crcs.max()} are not CRC-32 values; give 0 to 2**32 - 1"
        )
    return np.where(is_present, crcs.astype(np.uint64) + np.uint64(CHECKSUM_FLAG), np.uint64(0))


def find_valid_checksums(checksums: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that are valid checksums: 0, or `CHECKSUM_FLAG` plus a CRC-32."""
    is_valid: npt.NDArray[np.bool_] = (checksums == 0) | (checksums >> 32 == 1)
    return is_valid
