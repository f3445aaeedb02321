"""Codecs of Zarr, as numcodecs configures them, and bytes that numcodecs encoded."""

from __future__ import annotations

from typing import Any

import numcodecs

CONFIGS: dict[str, dict[str, Any]] = {
    "zlib": {"id": "zlib", "level": 1},
    "zlib 0": {"id": "zlib", "level": 0},
    "zlib 9": {"id": "zlib", "level": 9},
    "gzip": {"id": "gzip", "level": 1},
    "shuffle 4": {"id": "shuffle", "elementsize": 4},
    "shuffle 8": {"id": "shuffle", "elementsize": 8},
    "shuffle 3": {"id": "shuffle", "elementsize": 3},
    "fletcher32": {"id": "fletcher32"},
    "crc32c": {"id": "crc32c", "location": "end"},
    "crc32c before": {"id": "crc32c", "location": "start"},
    "zstd": {"id": "zstd", "level": 1},
    "zstd checksum": {"id": "zstd", "level": 1, "checksum": True},
    "lz4": {"id": "lz4", "acceleration": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc zstd": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
    "bz2": {"id": "bz2", "level": 1},
    "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None},
}

SZIP = {
    "id": "imagecodecs_szip",
    "header": True,
    "options_mask": 141,
    "pixels_per_block": 8,
    "bits_per_pixel": 16,
    "pixels_per_scanline": 64,
}

CHECKED = {
    *("zlib", "zlib 0", "zlib 9", "gzip", "bz2", "lzma"),
    *("fletcher32", "crc32c", "crc32c before", "zstd checksum"),
}
"""Codecs that notice a changed byte; the others cannot know."""


def encoded(config: dict[str, Any], data: bytes) -> bytes:
    if config["id"] == "imagecodecs_szip":
        import imagecodecs

        parameters = {k: v for k, v in config.items() if k != "id"}
        return bytes(imagecodecs.szip_encode(data, **parameters))
    # numcodecs shuffles whole elements only; HDF5 leaves the rest as it is
    end = len(data) - len(data) % config.get("elementsize", 1)
    return bytes(numcodecs.get_codec(config).encode(data[:end])) + data[end:]
