"""The codecs of numcodecs: zstd, lz4, bzip2, LZMA, Blosc, Pcodec and others.

Zarr v2 ids are those of numcodecs; Zarr v3 names are ``numcodecs.<id>``, and for zstd, Blosc and
bitround also the bare id, whose configuration a Zarr v3 specification defines.
HDF5 filters 32015 (zstd; client data: level), 307 (bzip2; client data: block size in units of
100 000 bytes) and 32001 (Blosc; client data: revision, version, type size, chunk size, level,
shuffle, compressor), registered with The HDF Group.

Streams of Pcodec have pco's standalone format, which contains the type of the numbers and has an
end marker. ``docs/explanation/performance.md`` has the measurements by which libraries are chosen.
"""

from __future__ import annotations

import bz2
import json
import lzma
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Self

import numpy as np
import zstandard

from virtualds.codecs.codec import (
    DECODE_ERRORS,
    NUMCODECS_PREFIX,
    Codec,
    CodecError,
    CodecName,
    MakeCodec,
    Namespace,
    Order,
    SelfDescribingCodec,
    to_json,
)
from virtualds.errors import LIBRARY_ERRORS, UnsupportedError
from virtualds.importing import import_package
from virtualds.streams import (
    PIECE_BYTES,
    Buffer,
    Bytes,
    check_decoded_size,
    decode_streams,
    limit_decoded_size,
)

MIN_NUMCODECS_BYTES = 2**18
"""Minimum size in bytes at which numcodecs' zstd is as fast as zstandard, despite its contexts."""

MAX_LZ4_RATIO = 256
"""Limit for the ratio of decoded to encoded length of LZ4."""

STORED_BYTES, STORED_BITS = 0x11, 0x14
"""Blosc's flags for blocks that are not split, and whose bytes, or bits, are shuffled."""

MAX_BLOSC_BYTES = 2**24
"""Maximum number of bytes that Blosc unshuffles: it uses three times the memory of its block."""

_threads = threading.local()


# ---------------------------------------------------------------------- zstd and LZ4


def decode_zstd(data: Buffer, nbytes: int | None) -> Buffer:
    """Decode zstd frames.

    numcodecs creates a context for every call, which takes longer than decoding 100 KB; of
    zstandard, each thread keeps one. Data that zstandard does not decode to ``nbytes`` go to
    numcodecs.
    """
    # no memory is allocated for a damaged length
    if nbytes and _find_zstd_size(data) in (-1, nbytes):
        try:
            decoded: bytes = _get_decompressor().decompress(
                data, max_output_size=nbytes, allow_extra_data=False
            )
            if len(decoded) == nbytes:
                return decoded
        except zstandard.ZstdError:
            # the data may have several frames
            pass
    _check_decoded_size(data, limit_decoded_size(len(data)) if nbytes is None else nbytes)
    return _import_numcodecs_zstd()(data)


def _check_decoded_size(data: Buffer, max_bytes: int) -> None:
    """Raise an error if zstd frames decode to more than ``max_bytes`` bytes."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
            while part := stream.read(PIECE_BYTES):
                max_bytes -= len(part)
                if max_bytes < 0:
                    raise ValueError("decoded to more bytes than expected")
    except zstandard.ZstdError:
        # numcodecs raises the error
        return


def decode_zstd_into(data: Buffer, out: Bytes) -> None:
    """Decode zstd frames into a contiguous buffer of their exact length."""
    if out.size >= MIN_NUMCODECS_BYTES and _find_zstd_size(data) == out.size:
        _import_numcodecs_zstd()(data, out)
        return
    decoded = decode_zstd(data, out.size)
    if len(decoded) != out.size:
        raise ValueError(f"decodes to {len(decoded)} bytes, not {out.size}")
    out[:] = np.frombuffer(decoded, np.uint8)


def _find_zstd_size(data: Buffer) -> int | None:
    """Return the decoded length of the first frame, -1 if it is not stored, or None if invalid."""
    try:
        return int(zstandard.frame_content_size(data))
    except zstandard.ZstdError:
        return None


def _get_decompressor() -> zstandard.ZstdDecompressor:
    """Return the decompressor of the current thread, as threads must not share one."""
    try:
        decompressor: zstandard.ZstdDecompressor = _threads.zstd
    except AttributeError:
        decompressor = _threads.zstd = zstandard.ZstdDecompressor()
    return decompressor


@cache
def _import_numcodecs_zstd() -> Callable[..., Buffer]:
    from numcodecs import zstd

    decompress: Callable[..., Buffer] = zstd.decompress
    return decompress


def decode_lz4(data: Buffer, nbytes: int | None, out: Bytes | None = None) -> Buffer:
    """Decode an LZ4 block preceded by its decoded length, the format of numcodecs.

    The length takes four bytes, little-endian. The result is written to ``out``, if that is given.
    """
    size = int.from_bytes(data[:4], "little")
    check_decoded_size(size, nbytes, len(data))
    if size > MAX_LZ4_RATIO * len(data):
        raise ValueError(
            f"{len(data)} bytes say they decode to {size}, more than LZ4 can make of them"
        )
    return _import_numcodecs_lz4()(data, out)


def decode_lz4_block(data: Buffer, nbytes: int) -> Buffer:
    """Decode an LZ4 block without a header."""
    return decode_lz4(b"".join((nbytes.to_bytes(4, "little"), data)), nbytes)


@cache
def _import_numcodecs_lz4() -> Callable[..., Buffer]:
    from numcodecs import lz4

    decompress: Callable[..., Buffer] = lz4.decompress
    return decompress


# ---------------------------------------------------------------------- bzip2 and LZMA


def decode_bzip2(data: Buffer, nbytes: int | None) -> bytes:
    """Decode bzip2 streams."""
    return decode_streams(bz2.BZ2Decompressor, data, nbytes, ignore_trailing=True)


def decode_lzma(data: Buffer, nbytes: int | None, config: Mapping[str, Any]) -> bytes:
    """Decode LZMA streams that numcodecs encoded with a configuration."""
    form = config.get("format", lzma.FORMAT_XZ)
    chain = config.get("filters") if form == lzma.FORMAT_RAW else None
    make = partial(lzma.LZMADecompressor, format=form, filters=chain)
    return decode_streams(make, data, nbytes, ignore_trailing=True)


# ---------------------------------------------------------------------- Blosc


def compress_zarr_v3(data: Buffer, codec: Mapping[str, Any]) -> Buffer:
    """Compress bytes with the codec ``zstd`` or ``blosc`` of the metadata of an array.

    Equal input gives equal output, unless the user has switched on the threads of Blosc, which
    write blocks in any order.
    """
    import numcodecs

    configuration = codec["configuration"]
    if codec["name"] == "zstd":
        encoded: Buffer = numcodecs.Zstd(level=configuration["level"]).encode(data)
        return encoded
    # Blosc takes the size of elements from the array
    elements = np.frombuffer(data, np.dtype(("V", configuration["typesize"])))
    settings = (configuration[name] for name in ("cname", "clevel", "shuffle", "blocksize"))
    name, level, shuffle, block = settings
    number = BLOSC_SHUFFLES.index(shuffle)
    compressed: Buffer = _import_blosc().compress(elements, name.encode(), level, number, block)
    return compressed


def decode_blosc(data: Buffer, nbytes: int | None, out: Bytes | None = None) -> Buffer:
    """Decode a Blosc chunk, into ``out`` if that is given.

    A chunk that is shorter than the length in its header is rejected: Blosc would read past its
    end. In Blosc's chunk format 2, bytes 4 to 7 are the decoded length, 12 to 15 the length of the
    chunk.
    """
    decoded, encoded = (int.from_bytes(data[i : i + 4], "little") for i in (4, 12))
    if len(data) < 16 or encoded > len(data):
        raise ValueError(f"{len(data)} bytes of a chunk of {max(encoded, 16)}")
    check_decoded_size(decoded, nbytes, len(data))
    if decoded >= 2**31:
        raise ValueError(f"{decoded} bytes are more than a chunk of Blosc may have")
    result: Buffer = _import_blosc().decompress(data, out)
    return result


def unshuffle_stored(data: Buffer, out: Bytes, itemsize: int, block: int, flags: int) -> None:
    """Unshuffle bytes or bits with Blosc, which gets them as a chunk of uncompressed blocks.

    Blosc treats a block as uncompressed if it is as long as its decoded bytes; each block follows
    its length. All blocks have ``block`` bytes; the last may be shorter.

    Parameters
    ----------
    data : buffer
        Shuffled, in blocks of ``block`` bytes.
    out : array of bytes
        As long as ``data``, at most `MAX_BLOSC_BYTES`.
    itemsize : int
        Below 256.
    block : int
        A multiple of ``itemsize``.
    flags : int
        `STORED_BYTES` or `STORED_BITS`.
    """
    size = len(data)
    block_count, last_length = divmod(size, block)
    count = block_count + (last_length > 0)
    start = 16 + 4 * count
    frame = np.empty(start + 4 * count + size, np.uint8)
    frame[:4] = 2, 1, flags, itemsize
    frame[4:16].view("<u4")[:] = size, block, frame.size
    frame[16:start].view("<u4")[:] = start + np.arange(count) * (4 + block)
    source = np.frombuffer(data, np.uint8)
    end = start + block_count * (4 + block)
    blocks = frame[start:end].reshape(block_count, 4 + block)
    blocks[:, :4] = np.frombuffer(block.to_bytes(4, "little"), np.uint8)
    blocks[:, 4:] = source[: block_count * block].reshape(block_count, block)
    if last_length:
        frame[end : end + 4] = np.frombuffer(last_length.to_bytes(4, "little"), np.uint8)
        frame[end + 4 :] = source[block_count * block :]
    _import_blosc().decompress(frame, out)


@cache
def _import_blosc() -> Any:
    from numcodecs import blosc

    # Blosc has one thread pool with a lock per process, and chunks are decoded in parallel anyway.
    # If the user has set it, the value is kept.
    if blosc.use_threads is None:
        blosc.use_threads = False
    return blosc


# ---------------------------------------------------------------------- numcodecs

SELF_DESCRIBING = frozenset({"zstd", "lz4", "blosc", "bz2"})
"""Codecs whose streams contain everything that decoding needs."""

INPUT_DTYPE_KEYS = {
    "astype": "decode_dtype",
    "delta": "dtype",
    "fixedscaleoffset": "dtype",
    "quantize": "dtype",
}
"""The parameter for the input dtype of array-to-array codecs, by id."""

OUTPUT_DTYPE_KEYS = {
    "astype": "encode_dtype",
    "delta": "astype",
    "fixedscaleoffset": "astype",
    "quantize": "astype",
}
"""The parameter for the encoded dtype, by id; its default is the input dtype."""

PACKBITS_DTYPES = (np.dtype("?"), np.dtype("u1"))
"""The input and the encoded dtype of the codec ``packbits``."""

ARRAY_IDS = INPUT_DTYPE_KEYS.keys() | {"bitround", "packbits"}
"""Array-to-array codecs of Zarr v3."""

CHECKSUM_IDS = frozenset({"adler32", "crc32", "jenkins_lookup3"})
"""Codecs that prepend a four-byte checksum, and verify it."""

NUMCODECS_IDS = SELF_DESCRIBING | {"lzma", "base64"} | CHECKSUM_IDS | ARRAY_IDS
"""Ids of the codecs of numcodecs that `Numcodecs` decodes, apart from plugins."""

NUMCODECS_ERRORS: tuple[type[Exception], ...] = (*DECODE_ERRORS, *LIBRARY_ERRORS, SyntaxError)
"""Errors of numcodecs for invalid bytes or parameters."""

NUMCODECS_GROUP = "numcodecs.codecs"
"""The entry point group of numcodecs' plugins."""

BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
"""Blosc's shuffles in the order of their numbers in Zarr v2."""

BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
"""Blosc's compressors in the order of their numbers in its HDF5 filter."""

BLOSC_DECODED = frozenset(BLOSC_COMPRESSORS) - {"snappy"}
"""Blosc's compressors with which numcodecs is built."""

DECODE_DIRECTLY: dict[str, Callable[[Buffer, int | None], Buffer]] = {
    "zstd": decode_zstd,
    "lz4": decode_lz4,
    "blosc": decode_blosc,
    "bz2": decode_bzip2,
}
"""Codecs that are decoded without numcodecs' codec objects, which are slow for small chunks, or
do not stop at the expected length."""

DECODE_INTO: dict[str, Callable[[Buffer, Bytes], object]] = {
    "zstd": decode_zstd_into,
    "lz4": lambda data, out: decode_lz4(data, out.size, out),
    "blosc": lambda data, out: decode_blosc(data, out.size, out),
}
"""Codecs that can decode into an existing buffer."""


@dataclass(frozen=True)
class Numcodecs(Codec):
    """A codec of numcodecs or of one of its plugins.

    Parameters
    ----------
    id : str
        Its name in numcodecs.
    parameters : str
        The parameters that decoding needs, as JSON.
    config : str
        The whole configuration, as JSON.
    """

    id: str
    parameters: str
    config: str = field(compare=False)

    zarr_v2_id = "numcodecs"
    decode_errors = NUMCODECS_ERRORS

    @classmethod
    def names(cls) -> Iterator[CodecName]:
        for name in NUMCODECS_IDS:
            yield CodecName("zarr_v2", name, cls.from_zarr_v2)
            yield CodecName("zarr_v3", NUMCODECS_PREFIX + name, partial(cls._from_prefixed, name))
        yield from (CodecName("zarr_v3", name, make) for name, make in ZARR_V3_NAMES.items())
        yield from (CodecName("hdf5", number, make) for number, make in HDF5_FILTERS.items())
        yield from (CodecName("tiff", number, make) for number, make in TIFF_COMPRESSIONS.items())

    @classmethod
    def find_plugin(cls, namespace: Namespace, name: str | int) -> MakeCodec | None:
        if namespace == "zarr_v2" and is_from_plugin(str(name)):
            return cls.from_zarr_v2
        inner = str(name).removeprefix(NUMCODECS_PREFIX)
        if namespace == "zarr_v3" and inner != name and is_from_plugin(inner):
            return partial(cls._from_prefixed, inner)
        return None

    @classmethod
    def _from_prefixed(
        cls,
        name: str,
        config: Mapping[str, Any],
        dtype: np.dtype[Any],
        shape: tuple[int, ...] | None,
    ) -> Self:
        """Build the codec with the Zarr v3 name ``numcodecs.<name>``."""
        entries = dict(config)
        if name in INPUT_DTYPE_KEYS:
            entries[INPUT_DTYPE_KEYS[name]] = config.get(INPUT_DTYPE_KEYS[name]) or dtype.str
        for table in (INPUT_DTYPE_KEYS, OUTPUT_DTYPE_KEYS):
            # raise the error for an invalid dtype here
            np.dtype(entries.get(table.get(name, "")) or dtype)
        return cls.from_zarr_v2({**entries, "id": name})

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        text = to_json(config)
        name = str(config["id"])
        return cls(name, "" if name in SELF_DESCRIBING else text, text)

    def to_zarr_v2(self) -> dict[str, Any]:
        return dict(json.loads(self.config))

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        config = self.to_zarr_v2()
        if self.id == "zstd":
            named = {"level": config.get("level", 1), "checksum": config.get("checksum", False)}
            return {"name": "zstd", "configuration": named}
        if self.id == "blosc":
            return {"name": "blosc", "configuration": _blosc_to_zarr_v3(config, itemsize)}
        del config["id"]
        return {"name": NUMCODECS_PREFIX + self.id, "configuration": config}

    @property
    def label(self) -> str:
        return self.id

    @property
    def is_array_to_array(self) -> bool:
        return self.id in ARRAY_IDS

    def get_encoded_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        if self.id not in INPUT_DTYPE_KEYS:
            input_dtype, output_dtype = PACKBITS_DTYPES if self.id == "packbits" else (dtype, dtype)
        else:
            config = self.to_zarr_v2()
            input_dtype = np.dtype(config.get(INPUT_DTYPE_KEYS[self.id]) or dtype)
            output_dtype = np.dtype(config.get(OUTPUT_DTYPE_KEYS[self.id]) or input_dtype)
        return output_dtype if input_dtype == dtype else None

    def with_byte_order(self, order: Order) -> Self:
        config = self.to_zarr_v2()
        names = [
            table[self.id] for table in (INPUT_DTYPE_KEYS, OUTPUT_DTYPE_KEYS) if self.id in table
        ]
        dtypes = {name: config[name] for name in names if config.get(name) is not None}
        swapped = {name: np.dtype(text).newbyteorder(order).str for name, text in dtypes.items()}
        return self.from_zarr_v2(config | swapped)

    @property
    def encoding(self) -> dict[str, Any]:
        config = self.to_zarr_v2()
        if self.id == "zstd":
            return {"zstd": True, "complevel": config.get("level", 0)}
        if self.id == "bz2":
            return {"bzip2": True, "complevel": config.get("level", 0)}
        if self.id == "blosc":
            name = config.get("cname", "")
            blosc_encoding = {
                "compressor": f"blosc_{name.removeprefix('blosc')}",
                "shuffle": config.get("shuffle"),
            }
            return {"blosc": blosc_encoding, "complevel": config.get("clevel", 0)}
        return {}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes + 4 if self.id in CHECKSUM_IDS else None

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if self.id == "lzma":
            return decode_lzma(data, nbytes, self.to_zarr_v2())
        if (direct := DECODE_DIRECTLY.get(self.id)) is not None:
            return direct(data, nbytes)
        try:
            codec = _make_codec(self.parameters or json.dumps({"id": self.id}))
            out = memoryview(codec.decode(data))
            if "O" in out.format:
                raise TypeError("it makes Python objects, which are not numbers")
            return out.cast("B")
        except NUMCODECS_ERRORS as error:
            shown = f", {self.parameters}" if self.parameters else ""
            raise ValueError(f"{error} (decoded by numcodecs{shown})") from error

    @property
    def fills_output(self) -> bool:
        return self.id in DECODE_INTO

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        if self.id not in DECODE_INTO:
            super().decode_into(data, out)
            return
        try:
            DECODE_INTO[self.id](data, out)
        except DECODE_ERRORS as error:
            raise CodecError(f"{self.id}: {error}") from error


@cache
def is_from_plugin(name: str) -> bool:
    """Return whether a plugin of numcodecs provides a codec of this name."""
    points = entry_points(group=NUMCODECS_GROUP, name=name)
    return any(point.dist is None or point.dist.name != "numcodecs" for point in points)


def _make_numcodecs(name: str, /, **config: Any) -> Numcodecs:
    """Build a codec of numcodecs from its configuration."""
    return Numcodecs.from_zarr_v2({**config, "id": name})


def _blosc_from_hdf5(values: Sequence[int], itemsize: int) -> Numcodecs:
    """Build the codec of HDF5 filter 32001 from its client data."""
    # older writers omit default values
    level, shuffle, number = [*values[4:7], *(5, 1, 0)[len(values[4:7]) :]]
    name = BLOSC_COMPRESSORS[number] if number < len(BLOSC_COMPRESSORS) else f"compressor {number}"
    if name not in BLOSC_DECODED:
        raise UnsupportedError(
            f"HDF5 filter 32001 (Blosc) with {name}: numcodecs decodes only "
            f"{sorted(BLOSC_DECODED)}; leave the variable out with drop_variables"
        )
    return _make_numcodecs("blosc", cname=name, clevel=level, shuffle=shuffle, blocksize=0)


def _blosc_from_zarr_v3(
    config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
) -> Numcodecs:
    """Build the codec of Zarr v3 ``blosc``, without the type size, which only encoders need."""
    others = {name: config[name] for name in ("cname", "clevel", "blocksize") if name in config}
    return _make_numcodecs(
        "blosc", **others, shuffle=BLOSC_SHUFFLES.index(config.get("shuffle", "noshuffle"))
    )


ZARR_V3_NAMES: dict[str, MakeCodec] = {
    # decoding does nothing
    "bitround": lambda config, dtype, shape: _make_numcodecs(
        "bitround", keepbits=int(config["keepbits"])
    ),
    "blosc": _blosc_from_zarr_v3,
    "zstd": lambda config, dtype, shape: _make_numcodecs("zstd", **config),
}
"""Constructors by the names in the Zarr v3 specifications and in zarr-extensions."""

HDF5_FILTERS: dict[int, MakeCodec] = {
    307: lambda values, itemsize: _make_numcodecs("bz2", level=values[0] if values else 9),
    32001: _blosc_from_hdf5,
    32015: lambda values, itemsize: _make_numcodecs("zstd", level=values[0] if values else 0),
}
"""Constructors by HDF5 filter number."""

TIFF_COMPRESSIONS: dict[int, MakeCodec] = {
    34925: lambda page: _make_numcodecs("lzma"),
    **dict.fromkeys((34926, 50000), lambda page: _make_numcodecs("zstd", level=0)),
}
"""Constructors by the number in the TIFF tag Compression."""


def _blosc_to_zarr_v3(config: Mapping[str, Any], itemsize: int) -> dict[str, Any]:
    """Return Blosc's configuration in Zarr v3, where all parameters are required."""
    # numcodecs shuffles bits for -1 if elements are single bytes
    shuffle = config.get("shuffle", 1)
    shuffle = (2 if itemsize == 1 else 1) if shuffle == -1 else shuffle
    return {
        "typesize": itemsize,
        "cname": config.get("cname", "lz4"),
        "clevel": config.get("clevel", 5),
        "shuffle": BLOSC_SHUFFLES[shuffle],
        "blocksize": config.get("blocksize", 0),
    }


@cache
def _make_codec(config: str) -> Any:
    import numcodecs

    return numcodecs.get_codec(json.loads(config))


# ---------------------------------------------------------------------- pcodec

PCODEC_TYPES = ("f4", "f8", "i4", "i8", "i2", "u4", "u8", "u2", "f2", "i1", "u1")
"""Dtypes that a stream may have."""

WRONG_DTYPE_MESSAGE = "does not match"
"""Part of pco's error message for a buffer of another dtype."""


@dataclass(frozen=True)
class Pcodec(SelfDescribingCodec):
    """A stream of pco's standalone format."""

    zarr_v2_id = "pcodec"
    is_array_to_bytes = True

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        standalone, stream = import_package("pcodec", "pcodec").standalone, bytes(data)
        max_bytes = limit_decoded_size(len(stream)) if nbytes is None else nbytes
        failure = ValueError("the numbers have no known type")
        for name in PCODEC_TYPES:
            # allocate the memory here, since pco would allocate as much as a stream asks for; one
            # more number reveals a stream that is too long
            out = np.empty(max_bytes // np.dtype(name).itemsize + 1, name)
            try:
                progress = standalone.simple_decompress_into(stream, out)
            except RuntimeError as error:
                if WRONG_DTYPE_MESSAGE not in str(error):
                    failure = ValueError(f"{error}")
                continue
            decoded = out[: progress.n_processed].tobytes()
            if not progress.finished or len(decoded) > max_bytes:
                raise ValueError(f"{len(stream)} bytes decode to more than {max_bytes}")
            return decoded
        raise failure
