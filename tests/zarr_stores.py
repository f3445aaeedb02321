"""Zarr stores, metadata as they stand on disk, chunks by zarr-python: one line is one array.

The array is called ``a``; chunks at its end are missing. `STORES` is what the parser is compared
with zarr-python and xarray by; `IN_THE_SQUARE` of them take part in the commuting square.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

SHAPE, CHUNKS = (7, 10), (3, 4)


@dataclass(frozen=True)
class Store:
    """A store of one array.

    Parameters
    ----------
    version : int
        Of the format.
    array : dict
        The metadata of the array.
    attributes : dict
        Those of the array.
    """

    version: int
    array: dict[str, Any]
    attributes: dict[str, Any]

    def write(self, path: Path, consolidated: bool = False) -> None:
        """Write the store."""
        (path / "a").mkdir(parents=True)
        if self.version == 2:
            files = {
                ".zgroup": {"zarr_format": 2},
                ".zattrs": {"title": "one array"},
                "a/.zarray": self.array,
                "a/.zattrs": self.attributes,
            }
        else:
            title = {"title": "one array"}
            files = {
                "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": title},
                "a/zarr.json": self.array | {"attributes": self.attributes},
            }
        for name, document in files.items():
            (path / name).write_text(json.dumps(document))
        array = zarr.open_array(path / "a", mode="r+")
        part = tuple(slice(max(n - 2, 0)) for n in array.shape[:1])
        array[(*part, ...)] = values_of(array.dtype, array.shape)[(*part, ...)]
        if consolidated:
            zarr.consolidate_metadata(path, zarr_format=self.version)


def values_of(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return reproducible values of any type."""
    count = int(np.prod(shape))
    kind = np.dtype(dtype)
    if kind.names:
        found = np.empty(shape, kind)
        for name in kind.names:
            inner = kind[name]
            found[name] = values_of(inner.base, (*shape, *inner.shape))
        return found
    if kind.kind in "OT":
        found = np.array([f"ü{i}" * (i % 3) for i in range(count)], object)
    elif kind.kind in "SVU":
        texts = [str(i + 3) for i in range(count)]
        found = np.array(texts if kind.kind == "U" else [t.encode() for t in texts])
        found = found.astype(kind if kind.kind != "V" else f"S{kind.itemsize}").view(kind)
    elif kind.kind == "c":
        found = np.arange(count) * (1 - 0.5j)
    else:
        found = np.arange(count) % 97
    return found.reshape(shape).astype(kind)


# ---------------------------------------------------------------------- version 2


def v2(
    dtype: Any, fill: Any = None, shape: Any = SHAPE, chunks: Any = CHUNKS, **more: Any
) -> Store:
    """An array of version 2; the keywords are those of ``.zarray``."""
    array = {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": dtype,
        "fill_value": fill,
        "order": "C",
        "filters": None,
        "compressor": None,
    }
    dims = ["z", "y", "x"][-len(shape) :] if shape else []
    return Store(2, array | more, {"units": "m", "_ARRAY_DIMENSIONS": dims})


ZLIB = {"id": "zlib", "level": 3}
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
DELTA = {"id": "delta", "dtype": "<i4", "astype": "<i4"}
SHUFFLE = {"id": "shuffle", "elementsize": 4}
LZMA = {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}
PACKED = {"id": "fixedscaleoffset", "scale": 10, "offset": 1, "dtype": "<f8", "astype": "<i2"}
ROUGH = {"id": "quantize", "digits": 3, "dtype": "<f8", "astype": "<f4"}
HALVED = {"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f8"}
RECORD = [["a", "<i2"], ["b", ">f4"]]

V2 = {
    "v2 bool": v2("|b1", True),
    "v2 int8": v2("|i1", -7),
    "v2 uint16 big": v2(">u2", 65535),
    "v2 int32": v2("<i4", 0),
    "v2 int64 big": v2(">i8", -5),
    "v2 uint64": v2("<u8", 2**64 - 1),
    "v2 half": v2("<f2", 1.5),
    "v2 float NaN": v2("<f4", "NaN"),
    "v2 float Infinity": v2(">f8", "Infinity"),
    "v2 float -Infinity": v2("<f8", "-Infinity"),
    "v2 float null": v2("<f4"),
    "v2 float as integer": v2("<f4", 3),
    "v2 complex": v2("<c16", ["NaN", -1.5]),
    "v2 complex64 big": v2(">c8", [1.0, "Infinity"]),
    "v2 datetime": v2("<M8[ns]", 86400),
    "v2 datetime big days": v2(">M8[D]", -1),
    "v2 datetime none": v2("<M8[s]"),
    "v2 timedelta": v2("<m8[ms]", 1500),
    "v2 bytes": v2("|S4", "YWI="),
    "v2 bytes null": v2("|S4"),
    "v2 bytes empty": v2("|S4", ""),
    "v2 text": v2("<U3", "xyz"),
    "v2 text big": v2(">U3", ""),
    "v2 order F": v2("<i4", 9, order="F"),
    "v2 order F in 3-D": v2("<i4", 9, (4, 5, 6), (2, 3, 4), order="F", compressor=ZLIB),
    "v2 zlib": v2("<f4", -1, compressor=ZLIB),
    "v2 gzip": v2("<f4", -1, compressor={"id": "gzip", "level": 2}),
    "v2 zstd": v2("<f4", -1, compressor={"id": "zstd", "level": 2}),
    "v2 bz2": v2("<f4", -1, compressor={"id": "bz2", "level": 2}),
    "v2 lz4": v2("<f4", -1, compressor={"id": "lz4", "acceleration": 1}),
    "v2 lzma": v2("<f4", -1, compressor=LZMA),
    "v2 blosc": v2("<f4", -1, compressor=BLOSC),
    "v2 delta": v2("<i4", -1, filters=[DELTA], compressor=ZLIB),
    "v2 delta of order F": v2("<i4", -1, filters=[DELTA], order="F"),
    "v2 shuffle": v2("<i4", -1, filters=[SHUFFLE], compressor=ZLIB),
    "v2 delta and shuffle": v2("<i4", -1, filters=[DELTA, SHUFFLE]),
    "v2 packed": v2("<f8", -1, filters=[PACKED]),
    "v2 quantize": v2("<f8", -1, filters=[ROUGH]),
    "v2 bitround": v2("<f4", -1, filters=[{"id": "bitround", "keepbits": 5}]),
    "v2 fletcher32": v2("<i4", -1, filters=[{"id": "fletcher32"}]),
    "v2 crc32": v2("<i4", -1, filters=[{"id": "crc32"}]),
    "v2 crc32 at the end": v2("<i4", -1, filters=[{"id": "crc32", "location": "end"}]),
    "v2 crc32c": v2("<i4", -1, filters=[{"id": "crc32c", "location": "end"}]),
    "v2 adler32": v2("<i4", -1, compressor={"id": "adler32"}),
    "v2 jenkins": v2("<i4", -1, compressor={"id": "jenkins_lookup3", "initval": 3}),
    "v2 astype": v2("<f8", -1, filters=[HALVED]),
    "v2 packbits": v2("|b1", False, filters=[{"id": "packbits"}]),
    "v2 pcodec": v2("<f4", -1, compressor={"id": "pcodec", "level": 4}),
    "v2 pcodec of order F": v2("<f4", -1, order="F", compressor={"id": "pcodec", "level": 4}),
    "v2 delta and pcodec": v2("<i4", -1, filters=[DELTA, {"id": "pcodec"}], compressor=ZLIB),
    "v2 base64": v2("<i4", -1, compressor={"id": "base64"}),
    "v2 separator": v2("<i4", -1, dimension_separator="/"),
    "v2 scalar": v2("<f4", 2.5, (), ()),
    "v2 no elements": v2("<f4", 2.5, (0, 4), (1, 4)),
    "v2 one dimension": v2("<f4", 2.5, (9,), (4,)),
    "v2 chunks beyond": v2("<f4", 2.5, (3, 3), (10, 10)),
    "v2 text objects": v2("|O", "x", filters=[{"id": "vlen-utf8"}]),
    "v2 text objects, F": v2("|O", None, filters=[{"id": "vlen-utf8"}], compressor=ZLIB, order="F"),
}  # fmt: skip

# ---------------------------------------------------------------------- version 3

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
PLAIN = {"name": "bytes"}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}


def named(name: str, **configuration: Any) -> dict[str, Any]:
    """An extension with a configuration."""
    return {"name": name, "configuration": configuration}


def v3(
    data_type: Any,
    fill: Any = 0,
    *codecs: Any,
    shape: Any = SHAPE,
    chunks: Any = CHUNKS,
    **more: Any,
) -> Store:
    """An array of version 3; the keywords are those of ``zarr.json``."""
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": named("regular", chunk_shape=list(chunks)),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill,
        "codecs": list(codecs or (LITTLE,)),
        "dimension_names": ["t", "z", "y", "x"][-len(shape) :] if shape else [],
    }
    return Store(3, array | more, {"units": "m"})


def sharded(*inner: Any, chunk: Any = (1, 2), at: str = "end", index: Any = (LITTLE, CRC)) -> Any:
    """The codec of shards that hold chunks of so many elements."""
    return named(
        "sharding_indexed",
        chunk_shape=list(chunk),
        codecs=list(inner or (LITTLE,)),
        index_codecs=list(index),
        index_location=at,
    )


def blosc(**how: Any) -> Any:
    given = {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
    return {"name": "blosc", "configuration": given | how}


def numcodec(id: str, **how: Any) -> Any:
    return {"name": f"numcodecs.{id}", "configuration": how}


FIELDS = [["a", "int16"], ["b", "float32"]]
V3_PACKED = numcodec("fixedscaleoffset", scale=10, offset=0, dtype="<f8", astype="<i2")
V3_ROUGH = numcodec("quantize", digits=2, dtype="<f8")
V3_DELTA = numcodec("delta", dtype="<i4")
V3_HALVED = numcodec("astype", encode_dtype="<f4", decode_dtype="<f8")
IN_3D = {"shape": (4, 5, 6), "chunks": (2, 3, 4)}
TURNED_3D, TURNED_INDEX = (named("transpose", order=order) for order in ([2, 0, 1], [1, 2, 0]))
KEYS_OF_V2 = {"name": "v2"}
SCALAR = {"shape": (), "chunks": ()}
CUBE = {"shape": (5, 7, 7), "chunks": (2, 4, 6)}
START = sharded(TURNED, LITTLE, ZSTD, at="start")
UTF8, BYTES = {"name": "vlen-utf8"}, {"name": "vlen-bytes"}

V3 = {
    "v3 bool": v3("bool", True, PLAIN),
    "v3 int8": v3("int8", -7, PLAIN),
    "v3 uint16": v3("uint16", 65535, BIG),
    "v3 int32": v3("int32", -3),
    "v3 int64": v3("int64", -(2**63)),
    "v3 uint64": v3("uint64", 2**64 - 1),
    "v3 half": v3("float16", "0x7e01"),
    "v3 float NaN": v3("float32", "NaN"),
    "v3 float Infinity": v3("float64", "Infinity", BIG),
    "v3 float -Infinity": v3("float64", "-Infinity"),
    "v3 complex": v3("complex64", ["NaN", 1.5]),
    "v3 complex128": v3("complex128", [0.0, "-Infinity"], BIG),
    "v3 datetime": v3(named("numpy.datetime64", unit="ns", scale_factor=1), 86400),
    "v3 timedelta": v3(named("numpy.timedelta64", unit="us", scale_factor=1), "NaT"),
    "v3 bytes": v3(named("null_terminated_bytes", length_bytes=4), "YWI=", PLAIN),
    "v3 text": v3(named("fixed_length_utf32", length_bytes=12), "xyz", BIG),
    "v3 gzip": v3("float32", -1.0, LITTLE, GZIP),
    "v3 zstd with checksum": v3("float32", -1.0, LITTLE, named("zstd", level=1, checksum=True)),
    "v3 blosc": v3("float32", -1.0, LITTLE, blosc()),
    "v3 blosc bits": v3("float32", -1.0, LITTLE, blosc(cname="zstd", shuffle="bitshuffle")),
    "v3 blosc bytes": v3("float32", -1.0, LITTLE, blosc(cname="blosclz", shuffle="noshuffle")),
    "v3 crc32c": v3("float32", -1.0, LITTLE, ZSTD, CRC),
    "v3 transpose": v3("int32", 5, TURNED, BIG, ZSTD),
    "v3 transpose in 3-D": v3("int32", 5, TURNED_3D, LITTLE, **IN_3D),
    "v3 numcodecs.zlib": v3("int32", 5, LITTLE, numcodec("zlib", level=2)),
    "v3 numcodecs.bz2": v3("int32", 5, LITTLE, numcodec("bz2", level=2)),
    "v3 numcodecs.lz4": v3("int32", 5, LITTLE, numcodec("lz4", acceleration=1)),
    "v3 numcodecs.lzma": v3("int32", 5, LITTLE, numcodec("lzma", preset=1)),
    "v3 numcodecs.zstd": v3("int32", 5, LITTLE, numcodec("zstd", level=1)),
    "v3 numcodecs.shuffle": v3("int32", 5, LITTLE, numcodec("shuffle", elementsize=4)),
    "v3 numcodecs.fletcher32": v3("int32", 5, LITTLE, numcodec("fletcher32")),
    "v3 numcodecs.crc32": v3("int32", 5, LITTLE, numcodec("crc32")),
    "v3 numcodecs.adler32": v3("int32", 5, LITTLE, numcodec("adler32")),
    "v3 numcodecs.jenkins_lookup3": v3("int32", 5, LITTLE, numcodec("jenkins_lookup3")),
    "v3 numcodecs.delta": v3("int32", 5, numcodec("delta", dtype="<i4"), LITTLE),
    "v3 numcodecs.bitround": v3("float32", 5.0, numcodec("bitround", keepbits=5), LITTLE),
    "v3 numcodecs.quantize": v3("float64", 5.0, V3_ROUGH, LITTLE),
    "v3 numcodecs.fixedscaleoffset": v3("float64", 5.0, V3_PACKED, LITTLE),
    "v3 numcodecs.astype": v3("float64", 5.0, V3_HALVED, LITTLE),
    "v3 numcodecs.packbits": v3("bool", False, numcodec("packbits"), PLAIN),
    "v3 numcodecs.pcodec": v3("float32", 5.0, numcodec("pcodec", level=4)),
    "v3 numcodecs.pcodec of halves": v3("float16", 5.0, numcodec("pcodec", level=4)),
    "v3 delta, pcodec, gzip": v3("int32", 5, V3_DELTA, numcodec("pcodec"), GZIP),
    "shard of pcodec": v3("int32", -5, sharded(numcodec("pcodec", level=4))),
    "v3 keys with dots": v3("int32", 5, chunk_key_encoding=named("default", separator=".")),
    "v3 keys of v2": v3("int32", 5, chunk_key_encoding=named("v2", separator=".")),
    "v3 keys of v2 with slashes": v3("int32", 5, chunk_key_encoding=named("v2", separator="/")),
    "v3 scalar": v3("float32", 2.5, shape=(), chunks=()),
    "v3 scalar with keys of v2": v3("float32", 2.5, **SCALAR, chunk_key_encoding=KEYS_OF_V2),
    "v3 no elements": v3("float32", 2.5, shape=(0, 4), chunks=(1, 4)),
    "v3 chunks beyond": v3("float32", 2.5, shape=(3, 3), chunks=(10, 10)),
    "v3 what need not be understood": v3("int32", 5, hint={"must_understand": False, "why": 3}),
    "v3 strings": v3("string", "x", UTF8, ZSTD),
    "v3 strings transposed": v3("string", "", TURNED, UTF8),
    "shard": v3("int32", -5, sharded()),
    "shard, index first": v3("int32", -5, sharded(LITTLE, ZSTD, at="start")),
    "shard, index without checksum": v3("int32", -5, sharded(LITTLE, ZSTD, index=[BIG])),
    "shard, index transposed": v3("int32", -5, sharded(index=[TURNED_INDEX, LITTLE, CRC])),
    "shard of transposed chunks": v3("int32", -5, sharded(TURNED, BIG, GZIP, CRC)),
    "shard transposed": v3("int32", -5, TURNED, sharded(chunk=(2, 3)), chunks=(6, 6)),
    "shards of shards": v3("int32", -5, sharded(START, chunk=(3, 2))),
    "shard of a filter": v3("int32", -5, sharded(numcodec("delta", dtype="<i4"), LITTLE)),
    "shard of strings": v3("string", "", sharded(UTF8, ZSTD)),
    "shard in 3-D": v3("float32", "NaN", sharded(chunk=(1, 2, 3)), **CUBE),
    "shard longer than the array": v3("int32", -5, sharded(chunk=(2, 4)), chunks=(20, 20)),
    "shard of one chunk": v3("int32", -5, sharded(chunk=(3, 4))),
}  # fmt: skip

STORES = V2 | V3

BYTE_BY_BYTE = {
    "v2 raw": v2("|V3", "AQID"),
    "v2 raw null": v2("|V3"),
    "v2 record": v2(RECORD, "AQACAAAA"),
    "v2 record null, order F": v2(RECORD, None, order="F", compressor=ZLIB),
    "v3 raw": v3(named("raw_bytes", length_bytes=3), "AQID", PLAIN),
    "v3 record": v3(named("structured", fields=FIELDS), "AQACAAAA"),
}
"""Types that xarray does not compare."""


def write_good_and_bad(path: Path, version: int) -> zarr.Group:
    """Write a store of two sound arrays, ``good`` and ``bad``; tests damage the second."""
    group = zarr.open_group(path, mode="w", zarr_format=version)
    names = {"dimension_names": ["x"]} if version == 3 else {}
    for name in ("good", "bad"):
        made = group.create_array(name, shape=3, dtype="f4", chunks=3, fill_value=0, **names)
        made[:] = [1, 2, 3]
        if version == 2:
            made.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    return group
