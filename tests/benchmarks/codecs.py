"""Compare the speed of the decoders of every codec; see the README beside this file."""

from __future__ import annotations

import argparse
import bz2
import gzip
import importlib
import lzma
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numcodecs
import numcodecs.blosc
import numpy as np

from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.checksums import crc32c, fletcher32
from virtualds.codecs.codec import Codec
from virtualds.codecs.hdf import Shuffle
from virtualds.codecs.numcodecs import STORED_BITS, STORED_BYTES, unshuffle_stored

Decode = Callable[[memoryview, int], Any]
Rates = dict[str, dict[tuple[str, int], float]]
SIZES = {"4 KiB": 4096, "1 MiB": 2**20}
THREADS = (1, 2)
TOTAL = 2**23
"""Decoded bytes of all chunks of one measurement; slow codecs decode a part of them."""
LEAST = 0.02
"""Seconds that a measurement takes at least: chunks are decoded again until it does."""
BEGIN, END = "<!-- measured by tests/benchmarks/codecs.py -->", "<!-- end of what was measured -->"
SHUFFLE = {"id": "shuffle", "elementsize": 4}


@dataclass(frozen=True)
class Work:
    """A codec: how chunks are encoded for it, and the ways to decode them by their names.

    Ways are told by functions that import what they need: what is missing is left out.
    """

    config: dict[str, Any]
    ways: dict[str, Callable[[], Decode]]
    encode: Callable[[bytes], bytes] | None = None
    shuffled: bool = True
    share: int = 1
    """What part of all chunks is decoded."""


_local = threading.local()


def scratch(n: int) -> Any:
    """Memory of the thread, which the reader unshuffles into as well."""
    if getattr(_local, "scratch", None) is None or _local.scratch.size != n:
        _local.scratch = np.empty(n, np.uint8)
    return _local.scratch


def imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def plain(module: str, name: str, **options: Any) -> Callable[[], Decode]:
    """A function that takes the data alone."""
    return lambda: (lambda function: lambda data, n: function(data, **options))(
        imported(module, name)
    )


def sized(module: str, name: str, extra: int = 0, **options: Any) -> Callable[[], Decode]:
    """A function of zlib's kind, told how much room to make."""

    def way() -> Decode:
        function = imported(module, name)
        return lambda data, n: function(data, bufsize=n + extra, **options)

    return way


def told(module: str, name: str) -> Callable[[], Decode]:
    """A function that takes the data and the decoded length."""
    return lambda: imported(module, name)


def into(module: str, name: str) -> Callable[[], Decode]:
    """A function that takes the data and where to write."""

    def way() -> Decode:
        function = imported(module, name)

        def decode(data: memoryview, n: int) -> Any:
            out = np.empty(n, np.uint8)
            function(data, out)
            return out

        return decode

    return way


def out_of(module: str, name: str, **options: Any) -> Callable[[], Decode]:
    """A function of imagecodecs, which takes the decoded length as ``out``."""

    def way() -> Decode:
        function = imported(module, name)
        return lambda data, n: function(data, out=n, **options)

    return way


def of_numcodecs(config: dict[str, Any]) -> Callable[[], Decode]:
    codec = numcodecs.get_codec(config)
    return lambda: lambda data, n: codec.decode(data)


def checked(module: str, name: str, width: int = 4) -> Callable[[], Decode]:
    """A checksum over all but the last bytes."""
    return lambda: (lambda function: lambda data, n: (function(data[:-width]), data[:-width])[1])(
        imported(module, name)
    )


def by_inflater(data: memoryview, n: int) -> Any:
    return zlib.decompressobj(wbits=31).decompress(bytes(data))


def by_planes(size: int, data: memoryview, n: int) -> Any:
    planes, out = np.frombuffer(data, np.uint8).reshape(size, -1), scratch(n)
    elements = out.reshape(-1, size)
    for rank in range(size):
        elements[:, rank] = planes[rank]
    return out


def by_transposition(size: int, data: memoryview, n: int) -> Any:
    out = scratch(n)
    np.copyto(out.reshape(-1, size), np.frombuffer(data, np.uint8).reshape(size, -1).T)
    return out


def by_zlib_into(size: int) -> Decode:
    unshuffle = imported("zlib_into", "unshuffle")

    def decode(data: memoryview, n: int) -> Any:
        out = scratch(n)
        unshuffle(data, out.data, size)
        return out

    return decode


def by_frame(size: int, data: memoryview, n: int) -> Any:
    """Have Blosc unshuffle what it takes for a block that did not get smaller."""
    out = scratch(n)
    unshuffle_stored(data, out, size, n, STORED_BYTES)
    return out


def by_frame_of_blocks(size: int, data: memoryview, n: int) -> Any:
    """Have Blosc unshuffle the bits of blocks of 2048 elements."""
    out = np.empty(n, np.uint8)
    unshuffle_stored(data, out, size, min(2048 * size, n), STORED_BITS)
    return out


def by_bits(size: int, data: memoryview, n: int) -> Any:
    """Unshuffle the bits of blocks of 2048 elements of ``size`` bytes."""
    planes = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    bits = planes.reshape(-1, 8 * size, min(2048, n // size)).transpose(0, 2, 1)
    return np.packbits(bits, bitorder="little").reshape(-1)


def bits_shuffled(data: bytes) -> bytes:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    planes = bits.reshape(-1, min(2048, len(data) // 4), 32)
    return np.packbits(planes.transpose(0, 2, 1), bitorder="little").tobytes()


def blosc(name: str, shuffle: int) -> Work:
    config = {"id": "blosc", "cname": name, "clevel": 5, "shuffle": shuffle, "blocksize": 0}
    ways = {
        "numcodecs": of_numcodecs(config),
        "numcodecs, out=": into("numcodecs.blosc", "decompress"),
        "imagecodecs": out_of("imagecodecs", "blosc_decode", numthreads=1),
    }
    return Work(config, ways, lambda data: bytes(
        numcodecs.get_codec(config).encode(np.frombuffer(data, "f4"))), shuffled=False)  # fmt: skip


def shuffle(size: int) -> Work:
    config = {"id": "shuffle", "elementsize": size}
    ways: dict[str, Callable[[], Decode]] = {
        "zlib-into": lambda: by_zlib_into(size),
        "Blosc, as stored": lambda: partial(by_frame, size),
        "numpy, by planes": lambda: partial(by_planes, size),
        "numpy, transposed": lambda: partial(by_transposition, size),
        "numcodecs": of_numcodecs(config),
    }
    if size not in (2, 4, 8):
        del ways["zlib-into"]
    if size & size - 1 == 0:
        ways["numpy, by pairs"] = lambda: partial(by_pairs, size)
    return Work(config, ways, shuffled=False)


def by_pairs(size: int, data: memoryview, n: int) -> Any:
    """Join planes of bytes to planes of words, these to planes of longer words, and so on."""
    planes = list(np.frombuffer(data, np.uint8).reshape(size, -1))
    width = 1
    while len(planes) > 1 and width < 8:
        width *= 2
        joined = []
        for low, high in zip(planes[0::2], planes[1::2], strict=True):
            word = high.astype(f"<u{width}")
            word <<= 4 * width
            word |= low
            joined.append(word)
        planes = joined
    whole = planes[0] if len(planes) == 1 else np.stack(planes, axis=1)
    return whole.reshape(-1).view(np.uint8)


ZSTD, LZ4 = {"id": "zstd", "level": 3}, {"id": "lz4", "acceleration": 1}
BZ2 = {"id": "bz2", "level": 9}
LZMA = {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}
WORKS: dict[str, Work] = {
    "zlib": Work(
        {"id": "zlib", "level": 4},
        {
            "deflate": told("deflate", "zlib_decompress"),
            "zlib-ng": sized("zlib_ng.zlib_ng", "decompress", 64),
            "isal": sized("isal.isal_zlib", "decompress", 64),
            "imagecodecs": out_of("imagecodecs", "deflate_decode", raw=False),
            "zlib-into": into("zlib_into", "decompress_into"),
            "Python": sized("zlib", "decompress"),
            "numcodecs": of_numcodecs({"id": "zlib"}),
        },
    ),
    "gzip": Work(
        {"id": "gzip", "level": 4},
        {
            "deflate": told("deflate", "gzip_decompress"),
            "zlib-ng": sized("zlib_ng.zlib_ng", "decompress", 64, wbits=31),
            "isal": sized("isal.isal_zlib", "decompress", 64, wbits=31),
            "imagecodecs": out_of("imagecodecs", "gzip_decode"),
            "Python": sized("zlib", "decompress", wbits=31),
            "Python, by member": lambda: by_inflater,
            "numcodecs": of_numcodecs({"id": "gzip"}),
        },
        lambda data: gzip.compress(data, 4),
    ),
    "zstd": Work(
        ZSTD,
        {
            "numcodecs": of_numcodecs(ZSTD),
            "numcodecs, out=": into("numcodecs.zstd", "decompress"),
            "imagecodecs": out_of("imagecodecs", "zstd_decode"),
            "Python": plain(
                "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
                "decompress",
            ),
            "zstandard": lambda: _zstandard(),
        },
    ),
    "lz4": Work(
        LZ4,
        {
            "numcodecs": of_numcodecs(LZ4),
            "numcodecs, out=": into("numcodecs.lz4", "decompress"),
            "imagecodecs": out_of("imagecodecs", "lz4_decode", header=True),
        },
    ),
    "blosc, lz4, shuffle": blosc("lz4", 1),
    "blosc, zstd, bitshuffle": blosc("zstd", 2),
    "bz2": Work(
        BZ2,
        {
            "Python": plain("bz2", "decompress"),
            "numcodecs": of_numcodecs(BZ2),
            "imagecodecs": out_of("imagecodecs", "bz2_decode"),
        },
        lambda data: bz2.compress(data),
        share=4,
    ),
    "lzma": Work(
        LZMA,
        {
            "Python": plain("lzma", "decompress"),
            "numcodecs": of_numcodecs(LZMA),
            "imagecodecs": out_of("imagecodecs", "lzma_decode"),
        },
        lambda data: lzma.compress(data),
        share=4,
    ),
    "shuffle of 2 bytes": shuffle(2),
    "shuffle of 4 bytes": shuffle(4),
    "shuffle of 8 bytes": shuffle(8),
    "shuffle of 16 bytes": shuffle(16),
    "bitshuffle": Work(
        {"id": "imagecodecs_bitshuffle", "itemsize": 4, "blocksize": 2048},
        {
            "imagecodecs": plain("imagecodecs", "bitshuffle_decode", itemsize=4, blocksize=2048),
            "numpy, by bits": lambda: partial(by_bits, 4),
            "Blosc, as stored": lambda: partial(by_frame_of_blocks, 4),
        },
        bits_shuffled,
        shuffled=False,
    ),
    "fletcher32": Work(
        {"id": "fletcher32"},
        {
            "numcodecs": of_numcodecs({"id": "fletcher32"}),
            "imagecodecs": checked("imagecodecs", "h5checksum_fletcher32"),
            "numpy": lambda: lambda data, n: (fletcher32(data[:-4]), data[:-4])[1],
        },
        shuffled=False,
    ),
    "crc32c": Work(
        {"id": "crc32c"},
        {
            "google-crc32c": lambda: (
                lambda value: lambda data, n: (value(bytes(data[:-4])), data[:-4])[1]
            )(imported("google_crc32c", "value")),
            "fastcrc": checked("fastcrc.crc32", "iscsi"),
            "numpy": lambda: lambda data, n: (crc32c(data[:-4]), data[:-4])[1],
        },
        lambda data: data + imported("google_crc32c", "value")(data).to_bytes(4, "little"),
        shuffled=False,
    ),
}


def _zstandard() -> Decode:
    cls = imported("zstandard", "ZstdDecompressor")
    local = threading.local()

    def decode(data: memoryview, n: int) -> Any:
        if not hasattr(local, "decompressor"):
            local.decompressor = cls()
        return local.decompressor.decompress(data)

    return decode


@cache
def payload() -> bytes:
    """A field of red noise: single floats whose last bits are noise."""
    rng = np.random.default_rng(7)
    steps = rng.normal(0, 1, TOTAL // 4).astype("f4")
    return (np.cumsum(steps, dtype="f4") / 64 + 280).astype("f4").tobytes()


def chunks(work: Work, size: int) -> tuple[list[memoryview], list[bytes]]:
    """Encoded chunks and what they decode to."""
    shuffler = numcodecs.get_codec(SHUFFLE)
    numcodec = work.encode or numcodecs.get_codec(work.config).encode
    parts = [payload()[i : i + size] for i in range(0, TOTAL // work.share, size)]
    if work.shuffled:
        parts = [bytes(shuffler.encode(part)) for part in parts]
    return [memoryview(bytes(numcodec(part))) for part in parts], parts


def of_virtualds(codec: Codec) -> Decode:
    if not isinstance(codec, Shuffle):
        return codec.decode

    def decode(data: memoryview, n: int) -> Any:
        codec.decode_into(data, out := scratch(n))
        return out

    return decode


def ways_of(work: Work) -> Iterator[tuple[str, Decode]]:
    yield "virtualds", of_virtualds(codec_from_zarr_v2(work.config))
    for name, way in work.ways.items():
        try:
            yield name, way()
        except ImportError:
            continue


def check(name: str, decode: Decode, encoded: memoryview, part: bytes) -> None:
    if memoryview(decode(encoded, len(part))).cast("B") != part:
        raise SystemExit(f"{name} decodes to something else")


def seconds(
    decode: Decode, encoded: Sequence[memoryview], size: int, pool: ThreadPoolExecutor, n: int
) -> float:
    """How long ``n`` threads take that share the chunks, once over."""
    again = 1
    while True:
        barrier = threading.Barrier(n)
        tasks = [pool.submit(_run, decode, encoded[i::n] * again, size, barrier) for i in range(n)]
        starts, ends = zip(*(task.result() for task in tasks), strict=True)
        if (took := max(ends) - min(starts)) > LEAST or again > 1:
            return took / again
        again = 1 + int(LEAST / max(took, 1e-6))


def _run(
    decode: Decode, mine: Sequence[memoryview], size: int, barrier: threading.Barrier
) -> tuple[float, float]:
    barrier.wait()
    start = time.perf_counter()
    for data in mine:
        decode(data, size)
    return start, time.perf_counter()


def measure(work: Work, rounds: int) -> Rates:
    """Return MB/s by way, and by chunk size and number of threads: the best of all rounds."""
    found: Rates = {}
    with ThreadPoolExecutor(max(THREADS)) as pool:
        for label, size in SIZES.items():
            encoded, parts = chunks(work, size)
            ways = dict(ways_of(work))
            for name, decode in ways.items():
                check(name, decode, encoded[0], parts[0])
            for _, (name, decode), threads in product(range(rounds), ways.items(), THREADS):
                took = seconds(decode, encoded, size, pool, threads)
                speed = size * len(parts) / took / 1e6
                rates = found.setdefault(name, {})
                rates[label, threads] = max(speed, rates.get((label, threads), 0))
    return found


def table(results: dict[str, Rates]) -> str:
    columns = [(label, threads) for label in SIZES for threads in THREADS]
    heads = [f"{label}, {n} thread{'s' * (n > 1)}" for label, n in columns]
    lines = [f"| codec | decoder | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for codec, ways in results.items():
        best = {c: max(rates.get(c, 0) for rates in ways.values()) for c in columns}
        order = sorted(ways, key=lambda w: (w != "virtualds", -ways[w].get(columns[-1], 0)))
        for i, name in enumerate(order):
            cells = [_cell(ways[name].get(c), best[c]) for c in columns]
            shown = "**virtualds**" if name == "virtualds" else name
            lines.append(f"| {codec if not i else ''} | {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rate: float | None, best: float) -> str:
    """A rate, in bold where it is within a tenth of the best."""
    if rate is None:
        return "–"
    text = f"{rate:,.0f}".replace(",", " ")
    return f"**{text}**" if rate > 0.9 * best else text


def write(page: Path, text: str) -> None:
    """Put the table between its marks on a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", help="prefixes of names; by default all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--page", type=Path, help="page to write the table to")
    chosen = parser.parse_args()
    numcodecs.blosc.use_threads = False
    names = [n for n in WORKS if not chosen.works or n.startswith(tuple(chosen.works))]
    results = {name: measure(WORKS[name], chosen.rounds) for name in names}
    text = table(results)
    print(text)
    if chosen.page:
        write(chosen.page, text)


if __name__ == "__main__":
    main()
