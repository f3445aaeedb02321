"""The compressions of HDF4 that no other format has: run-length, skipping Huffman, n-bit.

HDF Specification and Developer's Guide (HDF 4.2), section 10.6 (compressed elements). Zarr has no
names for them; they begin with ``virtualds_`` in Zarr v2. Deflate is zlib, which is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualds.bounds import Buffer, limit_decoded_size
from virtualds.codecs.codec import Codec

RUN, COUNT = 0x80, 0x7F
"""Bits of a byte before a run or before plain bytes: which it is, and how many bytes more than the
least."""
LEAST_RUN, LEAST_PLAIN = 3, 1
SYMBOLS = 256
"""Bytes that a tree of the Huffman code has at its leaves."""


@dataclass(frozen=True)
class RunLength(Codec):
    """Runs of equal bytes, and plain bytes between them."""

    zarr_v2_id = "virtualds_hdf4_rle"

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        source, place, out = bytes(data), 0, bytearray()
        most = limit_decoded_size(len(source)) if nbytes is None else nbytes
        while place < len(source) and len(out) < most:
            head = source[place]
            if head & RUN:
                out += source[place + 1 : place + 2] * ((head & COUNT) + LEAST_RUN)
                place += 2
            else:
                stop = place + 1 + (head & COUNT) + LEAST_PLAIN
                out += source[place + 1 : stop]
                place = stop
        if nbytes is None and place < len(source):
            raise ValueError(f"{len(source)} bytes decode to more than {most}")
        return out


@dataclass(frozen=True)
class SkippingHuffman(Codec):
    """Bytes in adaptive Huffman codes, one tree for each byte of a number.

    The trees are splayed around each byte (Jones 1988, "Application of splay trees to data
    compression", Communications of the ACM 31).

    Parameters
    ----------
    skip : int
        How many trees take turns.
    """

    skip: int

    zarr_v2_id = "virtualds_hdf4_skphuff"

    def __post_init__(self) -> None:
        if not 1 <= self.skip <= 64:
            raise ValueError(f"skipping Huffman: {self.skip} trees")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None:
            raise ValueError("the decoded length is not known")
        if nbytes > 8 * len(data):
            raise ValueError(f"{len(data)} bytes are no codes of {nbytes} bytes")
        bits = iter(np.unpackbits(np.frombuffer(data, np.uint8)).tolist())
        trees = [_SplayTree() for _ in range(self.skip)]
        try:
            # a generator would turn the end of the bits into another error
            return bytes([trees[number % self.skip].take(bits) for number in range(nbytes)])
        except StopIteration:
            raise ValueError(f"the codes end before {nbytes} bytes") from None


class _SplayTree:
    """A binary tree of bytes: node 0 is the root, nodes from 256 on are leaves."""

    def __init__(self) -> None:
        self.left = [2 * node for node in range(SYMBOLS)]
        self.right = [2 * node + 1 for node in range(SYMBOLS)]
        self.up = [node // 2 for node in range(2 * SYMBOLS)]

    def take(self, bits: Any) -> int:
        """Return the next byte, and move it up."""
        node = 0
        while node < SYMBOLS:
            node = self.right[node] if next(bits) else self.left[node]
        self._splay(node)
        return node - SYMBOLS

    def _splay(self, node: int) -> None:
        left, right, up = self.left, self.right, self.up
        while node:
            parent = up[node]
            if not parent:
                return
            above = up[parent]
            other = left[above]
            if parent == other:
                other = right[above]
                right[above] = node
            else:
                left[above] = node
            if left[parent] == node:
                left[parent] = other
            else:
                right[parent] = other
            up[node], up[other] = above, parent
            node = above


@dataclass(frozen=True)
class BitField(Codec):
    """Numbers of which some neighbouring bits are stored, the highest bit and byte first.

    Parameters
    ----------
    size : int
        Bytes of a number.
    first : int
        The highest bit that is stored, 0 being the lowest of a number.
    count : int
        How many bits are stored.
    extends_sign : bool
        Whether the bits above are equal to the highest stored one.
    fills_ones : bool
        Whether other bits are ones.
    """

    size: int
    first: int
    count: int
    extends_sign: bool
    fills_ones: bool

    zarr_v2_id = "virtualds_hdf4_nbit"

    def __post_init__(self) -> None:
        if self.size not in (1, 2, 4, 8) or not 1 <= self.count <= self.first + 1 <= 8 * self.size:
            raise ValueError(
                f"n-bit: {self.count} bits from bit {self.first} of {self.size} bytes downwards"
            )

    def encoded_size(self, nbytes: int) -> int | None:
        return -(-(nbytes // self.size) * self.count // 8)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        numbers = (8 * len(data) // self.count) if nbytes is None else nbytes // self.size
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        if bits.size < numbers * self.count:
            raise ValueError(f"{len(data)} bytes are no {numbers} times {self.count} bits")
        stored = bits[: numbers * self.count].reshape(numbers, self.count)
        whole = np.full((numbers, 8 * self.size), self.fills_ones, np.uint8)
        above = 8 * self.size - 1 - self.first
        if self.extends_sign:
            whole[:, :above] = stored[:, :1]
        whole[:, above : above + self.count] = stored
        return np.packbits(whole).tobytes()
