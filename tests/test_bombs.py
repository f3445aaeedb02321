"""With any codec, a chunk that decodes to far too many bytes does not take their memory."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from memory import peak

import virtualds
from virtualds import ReadError, streams
from virtualds.codecs import codec_from_zarr_v2, list_codec_names
from virtualds.codecs.codec import CodecError
from virtualds.codecs.numcodecs import ARRAY_IDS, CHECKSUM_IDS

imagecodecs = pytest.importorskip("imagecodecs")

SIZE = 2**25
"""Bytes that a bomb decodes to."""
BELONG = 800
ZEROS = bytes(SIZE)


def of_numcodecs(config: dict[str, Any]) -> Callable[[], bytes]:
    return lambda: bytes(numcodecs.get_codec(config).encode(ZEROS))


def in_many_frames() -> bytes:
    """Frames of zstd that do not say how long they get."""
    zstandard = pytest.importorskip("zstandard")
    made = zstandard.ZstdCompressor(write_content_size=False)
    return b"".join(made.compress(ZEROS[: SIZE // 4]) for _ in range(4))


def pcodec() -> bytes:
    standalone = pytest.importorskip("pcodec").standalone
    config = pytest.importorskip("pcodec").ChunkConfig()
    return bytes(standalone.simple_compress(np.zeros(SIZE // 8), config))


def blosc2() -> bytes:
    library = pytest.importorskip("blosc2")
    return bytes(library.SChunk(chunksize=SIZE, data=ZEROS).to_cframe())


def zip_member() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", ZEROS)
    return target.getvalue()[: archive.start_dir]


LZMA = {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None}
SZIP = {"options_mask": 141, "pixels_per_block": 8, "bits_per_pixel": 16}
SZIP |= {"pixels_per_scanline": 64}
BOMBS: dict[str, tuple[dict[str, Any], Callable[[], bytes]]] = {
    "zlib": ({"id": "zlib"}, of_numcodecs({"id": "zlib", "level": 1})),
    "gzip": ({"id": "gzip"}, of_numcodecs({"id": "gzip", "level": 1})),
    "bz2": ({"id": "bz2"}, of_numcodecs({"id": "bz2", "level": 9})),
    "lzma": (LZMA, of_numcodecs(LZMA)),
    "zstd": ({"id": "zstd"}, of_numcodecs({"id": "zstd", "level": 1})),
    "zstd, many frames": ({"id": "zstd"}, in_many_frames),
    "lz4": ({"id": "lz4"}, of_numcodecs({"id": "lz4", "acceleration": 1})),
    "blosc": ({"id": "blosc"}, of_numcodecs({"id": "blosc", "cname": "zstd", "clevel": 1})),
    "pcodec": ({"id": "pcodec"}, pcodec),
    "blosc2": ({"id": "virtualds_blosc2_frame"}, blosc2),
    "lzw": ({"id": "imagecodecs_lzw"}, lambda: imagecodecs.lzw_encode(ZEROS)),
    "packbits": ({"id": "imagecodecs_packbits"}, lambda: b"\x81\0" * (SIZE // 128)),
    "run-length of HDF4": ({"id": "virtualds_hdf4_rle"}, lambda: b"\xff\0" * (SIZE // 130)),
    "lzf": (
        {"id": "imagecodecs_lzf", "header": False},
        lambda: imagecodecs.lzf_encode(ZEROS, header=False),
    ),
    "szip": (
        {"id": "imagecodecs_szip", "header": True, **SZIP},
        lambda: imagecodecs.szip_encode(ZEROS, header=True, **SZIP),
    ),
    "zip_member": ({"id": "virtualds_zip_member", "skip": 0}, zip_member),
    "lz4h5": ({"id": "imagecodecs_lz4h5"}, lambda: imagecodecs.lz4h5_encode(ZEROS)),
    "bitshuffle of lz4": (
        {"id": "virtualds_bitshuffle", "itemsize": 2, "compressor": "lz4"},
        lambda: SIZE.to_bytes(8, "big") + (8192).to_bytes(4, "big") + bytes(8 * SIZE // 8192),
    ),
}
GIVE_THEIR_SIZE = {
    "fletcher32",
    "crc32c",
    "shuffle",
    "base64",
    "virtualds_bit_fields",
    "virtualds_cast_values",
    "virtualds_scaled_values",
    "virtualds_sign_flip",
    *("virtualds_logicals", "virtualds_padded_text", "virtualds_row_bits", "virtualds_row_bytes"),
    "virtualds_text_numbers",
    *("imagecodecs_bitorder", "imagecodecs_bitshuffle", "imagecodecs_packints"),
    "imagecodecs_delta",
    "imagecodecs_floatpred",
}
"""They make as many bytes as they take, or a few times as many."""
KNOW_THEIR_SIZE = {
    "virtualds_nbit",
    "virtualds_scaleoffset",
    "virtualds_zfp",
    "virtualds_zfp_chunk",
    "zfpy",
    "imagecodecs_jpegls",
    "imagecodecs_jpeg",
    "virtualds_jpeg",
    "virtualds_jpegxl",
    "virtualds_fax4",
    "virtualds_grib",
    *(f"imagecodecs_{name}" for name in ("jpeg2k", "jpegxl", "lerc", "png", "webp")),
    *("virtualds_fits_rice", "virtualds_fits_plio", "virtualds_fits_image"),
    "virtualds_hdf4_nbit",
    "virtualds_hdf4_skphuff",
}
"""Parameters or headers tell the size before a decoder is asked; their own tests damage these."""


@pytest.mark.parametrize("name", BOMBS)
def test_decoding_stops_at_the_length_that_belongs(name: str) -> None:
    config, made = BOMBS[name]
    codec, bomb = codec_from_zarr_v2(config), made()
    assert len(bomb) < SIZE // 8

    def refused() -> None:
        with pytest.raises(CodecError):
            codec.decode(bomb, BELONG)
        with pytest.raises(CodecError):
            codec.decode_into(bomb, np.empty(BELONG, np.uint8))

    assert peak(refused) < 2**22 + 2 * len(bomb)


@pytest.mark.parametrize("name", sorted(BOMBS.keys() - {"blosc2", "lzf"}))
def test_an_unknown_length_is_bounded_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the stream between two codecs, or of strings."""
    monkeypatch.setattr(streams, "MIN_LIMIT", 2**16)
    monkeypatch.setattr(streams, "MAX_RATIO", 2)
    config, made = BOMBS[name]
    codec, bomb = codec_from_zarr_v2(config), made()

    def refused() -> None:
        with pytest.raises(CodecError):
            codec.decode(bomb, None)

    assert peak(refused) < 2**22 + 4 * len(bomb)


def test_every_codec_that_decompresses_has_a_bomb() -> None:
    known = set(list_codec_names("zarr_v2")) - ARRAY_IDS - CHECKSUM_IDS
    tried = {config["id"] for config, _ in BOMBS.values()}
    assert tried <= known
    assert known - tried - GIVE_THEIR_SIZE - KNOW_THEIR_SIZE == set()


def test_a_bomb_in_a_file_is_a_read_error(tmp_path: Path) -> None:
    """Two compressors, one behind the other, the inner one of which is the bomb."""
    inner = BOMBS["bz2"][1]()
    data = bytes(numcodecs.Zlib().encode(inner))
    (tmp_path / "a.bin").write_bytes(data)
    array = {"zarr_format": 2, "shape": [100], "chunks": [100], "dtype": "<f8", "order": "C"}
    array |= {"fill_value": None, "filters": [{"id": "bz2"}], "compressor": {"id": "zlib"}}
    refs = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": array,
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
        "v/0": ["a.bin", 0, len(data)],
    }
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    opened = virtualds.open_virtual_dataset(tmp_path / "refs.json")

    def refused() -> None:
        with pytest.raises(ReadError, match="bz2"):
            opened["v"].to_numpy()

    assert peak(refused) < 2**23
