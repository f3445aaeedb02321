"""Filters of HDF5, and chunks that HDF5 encoded by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import hdf5plugin

from virtualds.codecs import codec_from_hdf5
from virtualds.codecs.codec import Codec

# netCDF4 has HDF5 load plugins of its own, some of which belong to another HDF5 than h5py's
hdf5plugin.register(force=True)

REAL = ("<f4", ">f8", "<f8")

WHOLE = ("i1", "u1", "<i2", ">u2", ">i4", "<u4", "<i8", ">u8")

SOME = (">f8", "<i2", "u1")
"""Types for filters that only see bytes."""

SHAPES = {
    "whole": ((8, 6), (4, 6)),
    "padded": ((7, 5, 9), (3, 2, 4)),
    "line": ((5003,), (2000,)),
    "image": ((1, 50, 70), (1, 30, 40)),
}


@dataclass(frozen=True)
class Filter:
    """How to make a dataset that is encoded by a filter."""

    number: int
    how: Mapping[str, Any]
    dtypes: tuple[str, ...] = SOME
    fill: Any = None
    shapes: tuple[str, ...] = tuple(SHAPES)


def scaled(factor: int, dtypes: tuple[str, ...], fill: Any = None) -> Filter:
    return Filter(6, {"scaleoffset": factor}, dtypes, fill)


def decimals(digits: int) -> Any:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1,))
    values = (h5py.h5z.SO_FLOAT_DSCALE, digits % 2**32)
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FLAG_MANDATORY, values)
    return plist


ZFP_TYPES = ("<f4", "<f8", "<i4", "<i8")

FILTERS: dict[str, Filter] = {
    "scaleoffset of integers": scaled(0, WHOLE),
    "scaleoffset of integers, fill": scaled(0, WHOLE, 7),
    "scaleoffset of integers, high fill": scaled(0, ("u1", "<u2", ">u4", "<u8"), 200),
    "scaleoffset of integers, negative fill": scaled(0, ("i1", ">i2", "<i4", ">i8"), -99),
    "scaleoffset of 1 bit": scaled(1, WHOLE),
    "scaleoffset of 5 bits": scaled(5, WHOLE, 7),
    "scaleoffset of 7 bits": scaled(7, WHOLE),
    "scaleoffset of 8 bits": scaled(8, WHOLE, 7),
    "scaleoffset of 15 bits": scaled(15, WHOLE[2:], 7),
    "scaleoffset of 16 bits": scaled(16, WHOLE[2:]),
    "scaleoffset of 31 bits": scaled(31, WHOLE[4:], 7),
    "scaleoffset of 32 bits": scaled(32, WHOLE[4:]),
    "scaleoffset of 63 bits": scaled(63, WHOLE[6:]),
    "scaleoffset of 64 bits": scaled(64, WHOLE[6:], 7),
    "scaleoffset of 2 decimals": scaled(2, REAL),
    "scaleoffset of 2 decimals, fill": scaled(2, REAL, -999.25),
    "scaleoffset of 0 decimals": scaled(0, REAL, 7.0),
    "scaleoffset of -1 decimals": Filter(6, {"dcpl": decimals(-1)}, REAL),
    "scaleoffset of 9 decimals": scaled(9, REAL),
    "scaleoffset of 30 decimals": scaled(30, REAL),
    "lzf": Filter(32000, {"compression": "lzf"}),
    "lzf of shuffled": Filter(32000, {"compression": "lzf", "shuffle": True}),
    "lzf of scaleoffset": Filter(32000, {"compression": "lzf", "scaleoffset": 4}, WHOLE[2:]),
    "bzip2": Filter(307, hdf5plugin.BZip2()),
    "bzip2 1": Filter(307, hdf5plugin.BZip2(blocksize=1)),
    "lz4": Filter(32004, hdf5plugin.LZ4()),
    "lz4 in blocks": Filter(32004, hdf5plugin.LZ4(nbytes=64)),
    "lz4 in odd blocks": Filter(32004, hdf5plugin.LZ4(nbytes=37)),
    "jpegls": Filter(
        32018, hdf5plugin.FciDecomp(), ("<u2", ">u2", "u1", "<i2"), shapes=("image",)
    ),
    "zstd": Filter(32015, hdf5plugin.Zstd()),
    "zstd 22": Filter(32015, hdf5plugin.Zstd(clevel=22)),
} | {
    f"bitshuffle {name or 'alone'}, blocks of {block}": Filter(
        32008, hdf5plugin.Bitshuffle(nelems=block, cname=name or "none")
    )
    for name in ("", "lz4", "zstd")
    for block in (0, 8, 64)
} | {
    f"blosc {name}, shuffle {shuffle}": Filter(32001, hdf5plugin.Blosc(name, 5, shuffle))
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    for shuffle in (0, 1, 2)
} | {
    f"blosc2 {name}, filter {how}": Filter(32026, hdf5plugin.Blosc2(name, 5, how))
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    for how in (0, 1, 2)
} | {
    f"zfp {name}": Filter(32013, hdf5plugin.Zfp(**how), types)
    for name, how, types in (
        ("rate 8", {"rate": 8.0}, ZFP_TYPES),
        ("rate 3", {"rate": 3.0}, ZFP_TYPES),
        ("rate 64", {"rate": 64.0}, ("<f8", "<i8")),
        ("precision", {"precision": 12}, ZFP_TYPES),
        ("accuracy", {"accuracy": 1e-3}, ZFP_TYPES[:2]),
        ("reversible", {"reversible": True}, (*ZFP_TYPES, ">f4", ">i8")),
        ("expert", {"minbits": 1, "maxbits": 900, "maxprec": 40, "minexp": -30}, ZFP_TYPES[:2]),
        ("long expert", {"minbits": 700, "maxbits": 9000, "maxprec": 60, "minexp": -99}, ZFP_TYPES),
    )
}  # fmt: skip


def store(file: h5py.File, name: str, chosen: Filter, data: Any, chunks: tuple[int, ...]) -> None:
    how = {"chunks": chunks, "fillvalue": chosen.fill, **chosen.how}
    file.create_dataset(name, data=data, **how)


def codecs_of(dataset: h5py.Dataset) -> list[Codec]:
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    return [codec_from_hdf5(n, values, dataset.dtype.itemsize) for n, _, values, _ in found]


def raw_chunks(dataset: h5py.Dataset) -> Iterator[tuple[tuple[slice, ...], int, bytes]]:
    for i in range(dataset.id.get_num_chunks()):
        info = dataset.id.get_chunk_info(i)
        mask, raw = dataset.id.read_direct_chunk(info.chunk_offset)
        ends = zip(info.chunk_offset, dataset.chunks, dataset.shape, strict=True)
        yield tuple(slice(a, min(a + n, end)) for a, n, end in ends), mask, raw
