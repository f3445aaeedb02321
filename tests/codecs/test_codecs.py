"""Codecs take back what was encoded, and never pass damage on as data."""

import gzip
import sys
import zlib
from collections.abc import Callable
from typing import Any

import google_crc32c
import h5py
import imagecodecs
import numcodecs
import numpy as np
import pytest
from effort import times
from encoded_bytes import CHECKED, CONFIGS, SZIP, encoded
from hypothesis import given, settings
from hypothesis import strategies as st
from products import looped
from registered_images import IMAGES, WRITTEN, drawn

from virtualds import FormatError, UnsupportedError
from virtualds.codecs import codec_from_hdf5, codec_from_zarr_v2, codec_from_zarr_v3
from virtualds.codecs.checksums import crc32c, fletcher32
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.grib import select_field
from virtualds.codecs.hdf import Shuffle, SkippingHuffman, unshuffle_by_planes, unshuffle_portably
from virtualds.codecs.images import JPEGLS_FRAME_MARKERS, parse_jpeg_header
from virtualds.codecs.zfp import Zfp
from virtualds.codecs.zlib import Zlib, find_libdeflate

DTYPES = ("u1", "<i2", ">i4", "<f4", "f8", "S3", "M8[ns]", "c16")
SIZES = (1, 2, 7, 1000, 65_537)


def sample(dtype: str, size: int) -> bytes:
    rng = np.random.default_rng(size)
    smooth = np.cumsum(rng.integers(0, 9, size))
    return smooth.astype("i8").astype(dtype).tobytes()


def returned(codec: Codec, data: bytes, nbytes: int) -> bytes:
    return bytes(codec.decode(data, nbytes))


def put(codec: Codec, data: bytes, nbytes: int) -> bytes:
    """Decode into memory between other memory, which must stay as it is."""
    room = np.full(nbytes + 64, 171, np.uint8)
    codec.decode_into(data, room[32:-32])
    assert (room[:32] == 171).all()
    assert (room[-32:] == 171).all()
    return room[32:-32].tobytes()


ALL = pytest.mark.parametrize("name", CONFIGS)
WAYS = pytest.mark.parametrize("decode", [returned, put], ids=lambda way: way.__name__)
Way = Callable[[Codec, bytes, int], bytes]


def config_of(name: str) -> dict[str, Any]:
    return SZIP if name == "szip" else CONFIGS[name]


# ---------------------------------------------------------------------- round trips


@ALL
@looped("dtype", DTYPES, quick=2)
def test_decoding_takes_back_encoding(name: str, dtype: str) -> None:
    codec = codec_from_zarr_v2(CONFIGS[name])
    for size in SIZES:
        data = sample(dtype, size)
        there = encoded(CONFIGS[name], data)
        for nbytes in (len(data), None):
            assert bytes(codec.decode(there, nbytes)) == data
            assert bytes(codec.decode(memoryview(there), nbytes)) == data
            assert bytes(codec.decode(bytearray(there), nbytes)) == data
        for form in (bytes, memoryview, bytearray):
            assert put(codec, form(there), len(data)) == data
        known = codec.encoded_size(len(data))
        assert known in (None, len(there))


def test_szip_takes_back_szip() -> None:
    codec = codec_from_zarr_v2(SZIP)
    for size in (64, 640):
        data = sample("<i2", size)
        assert bytes(codec.decode(encoded(SZIP, data), len(data))) == data


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<i8", "<f4", ">f8", "i1"])
def test_delta_takes_back_delta(dtype: str) -> None:
    config = {"id": "delta", "dtype": dtype, "astype": dtype}
    values = np.arange(50).astype(dtype)
    there = numcodecs.get_codec(config).encode(values).tobytes()
    assert bytes(codec_from_zarr_v2(config).decode(there, values.nbytes)) == values.tobytes()


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f8"])
def test_fixedscaleoffset_takes_back_what_it_rounded(dtype: str) -> None:
    config = {"id": "fixedscaleoffset", "scale": 10, "offset": 2, "dtype": dtype, "astype": "<i2"}
    filter_ = numcodecs.get_codec(config)
    values = (np.arange(50) / 10).astype(dtype)
    there = filter_.encode(values).tobytes()
    expected = filter_.decode(there).tobytes()
    assert bytes(codec_from_zarr_v2(config).decode(there, values.nbytes)) == expected


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize(
    "config", [{"id": "quantize", "digits": 2}, {"id": "bitround", "keepbits": 5}]
)
def test_codecs_that_only_round_decode_to_the_stored_bytes(
    config: dict[str, Any], dtype: str
) -> None:
    if config["id"] == "quantize":
        config = config | {"dtype": dtype, "astype": dtype}
    values = (np.arange(50) / 7).astype(dtype)
    there = numcodecs.get_codec(config).encode(values).tobytes()
    assert bytes(codec_from_zarr_v2(config).decode(there, values.nbytes)) == there


@ALL
def test_the_configuration_survives(name: str) -> None:
    codec = codec_from_zarr_v2(CONFIGS[name])
    assert codec_from_zarr_v2(codec.to_zarr_v2()) == codec
    assert CONFIGS[name].items() <= codec.to_zarr_v2().items()
    numcodecs.get_codec(codec.to_zarr_v2())


def test_levels_are_not_compared_but_parameters_of_decoding_are() -> None:
    assert codec_from_zarr_v2(CONFIGS["zlib"]) == codec_from_zarr_v2(CONFIGS["zlib 9"])
    assert codec_from_zarr_v2(CONFIGS["zstd"]) == codec_from_zarr_v2({"id": "zstd", "level": 9})
    assert codec_from_zarr_v2(CONFIGS["shuffle 4"]) != codec_from_zarr_v2(CONFIGS["shuffle 8"])
    assert codec_from_zarr_v2(CONFIGS["zlib"]) != codec_from_zarr_v2(CONFIGS["gzip"])
    delta = {"id": "delta", "dtype": "<i4", "astype": "<i4"}
    assert codec_from_zarr_v2(delta) != codec_from_zarr_v2(delta | {"dtype": "<i8"})
    equal = {codec_from_zarr_v2(CONFIGS["zlib"]), codec_from_zarr_v2(CONFIGS["zlib 9"])}
    assert len(equal) == 1


def test_what_streams_say_themselves_is_not_compared() -> None:
    """So chunks that were written with other levels have one pipeline."""
    for name, option in [("pcodec", "level"), ("zfpy", "tolerance"), ("imagecodecs_png", "level")]:
        one, other = (codec_from_zarr_v2({"id": name, option: number}) for number in (1, 2))
        assert one == other and hash(one) == hash(other)


DEFAULTS = ("zlib", "gzip", "bz2", "lzma", "blosc", "zstd", "lz4", "shuffle", "crc32c")


@looped("name", [*DEFAULTS, "fletcher32", "adler32"])
def test_what_a_configuration_leaves_out_is_what_numcodecs_takes(name: str) -> None:
    theirs = numcodecs.get_codec({"id": name})
    short, whole = codec_from_zarr_v2({"id": name}), codec_from_zarr_v2(theirs.get_config())
    data = sample("<i4", 1000)
    assert returned(short, bytes(theirs.encode(data)), len(data)) == data
    if name == "blosc":
        assert short.to_zarr_v3(4) == whole.to_zarr_v3(4)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(UnsupportedError, match="'jpeg9'"):
        codec_from_zarr_v2({"id": "jpeg9"})
    with pytest.raises(UnsupportedError, match=r"HDF5 filter 305 \(LZO\)"):
        codec_from_hdf5(305, (), 4)


# ---------------------------------------------------------------------- damage

LONG = sample("<i2", 4096)


def damaged_or_right(codec: Codec, data: bytes, original: bytes, decode: Way) -> None:
    """Demand an error, or the very data; for codecs that cannot know, at least the length."""
    try:
        found = decode(codec, data, len(original))
    except CodecError:
        return
    assert found == original


@pytest.mark.full
@ALL
@looped("decode", [returned, put])
@looped("keep", [0, 1, 2, 3, 4, 8, 12, 15, 16, 17, 40, -9, -8, -5, -4, -2, -1])
def test_a_truncated_chunk_does_not_decode(name: str, decode: Way, keep: int) -> None:
    """Shuffle does not change lengths: the reader compares these."""
    if name.startswith("shuffle") and decode is returned:
        return
    codec = codec_from_zarr_v2(CONFIGS[name])
    with pytest.raises(CodecError):
        decode(codec, encoded(CONFIGS[name], LONG)[:keep], len(LONG))


@pytest.mark.full
@pytest.mark.parametrize("name", [*CONFIGS, "szip"])
@looped("decode", [returned, put])
@looped("wrong", [-2, -1, 1, 2, 4096])
def test_another_length_than_expected_is_refused(name: str, decode: Way, wrong: int) -> None:
    if name.startswith(("shuffle", "fletcher32")) and decode is returned:
        return
    codec = codec_from_zarr_v2(config_of(name))
    with pytest.raises(CodecError):
        decode(codec, encoded(config_of(name), LONG), len(LONG) + wrong)


@pytest.mark.product
@pytest.mark.parametrize("name", sorted(CHECKED))
@WAYS
@given(st.data())
def test_a_changed_byte_is_noticed(name: str, decode: Way, data: st.DataObject) -> None:
    there = bytearray(encoded(CONFIGS[name], LONG))
    place = data.draw(st.integers(0, len(there) - 1))
    there[place] ^= data.draw(st.integers(1, 255))
    damaged_or_right(codec_from_zarr_v2(CONFIGS[name]), bytes(there), LONG, decode)


@pytest.mark.product
@pytest.mark.parametrize("name", sorted(CHECKED))
@WAYS
@given(st.binary(min_size=1, max_size=9))
def test_bytes_behind_the_end_do_not_become_data(name: str, decode: Way, more: bytes) -> None:
    there = encoded(CONFIGS[name], LONG) + more
    damaged_or_right(codec_from_zarr_v2(CONFIGS[name]), there, LONG, decode)


@pytest.mark.parametrize("name", [*sorted(set(CONFIGS) - CHECKED), "szip"])
@given(st.data())
def test_damage_that_cannot_be_seen_keeps_the_length(name: str, data: st.DataObject) -> None:
    there = bytearray(encoded(config_of(name), LONG))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(there) - 1) | st.integers(0, 20))
        there[place] = data.draw(st.integers(0, 255))
    try:
        found = codec_from_zarr_v2(config_of(name)).decode(bytes(there), len(LONG))
    except CodecError:
        return
    assert len(found) == len(LONG)


@pytest.mark.parametrize(
    "name", [*CONFIGS, "szip", "delta", "fixedscaleoffset", "quantize", "bitround"]
)
@given(st.binary(max_size=60), st.sampled_from([0, 1, 8, 64, None]))
def test_noise_raises_nothing_but_codec_errors(name: str, noise: bytes, nbytes: int | None) -> None:
    config = {
        "delta": {"id": "delta", "dtype": "<i4", "astype": "<i4"},
        "quantize": {"id": "quantize", "digits": 2, "dtype": "<f8", "astype": "<f4"},
        "bitround": {"id": "bitround", "keepbits": 5},
        "fixedscaleoffset": {
            "id": "fixedscaleoffset",
            "scale": 10,
            "offset": 2,
            "dtype": "<f8",
            "astype": "<i2",
        },
    }
    codec = codec_from_zarr_v2(config.get(name) or config_of(name))
    try:
        found = codec.decode(noise, nbytes)
    except CodecError:
        return
    assert isinstance(found, bytes | bytearray | memoryview)


def test_a_length_beyond_all_memory_is_damage() -> None:
    """A zstd frame whose header announces 2**60 bytes, and a Blosc header of almost 2**32."""
    frame = bytes.fromhex("28b52ffd e0") + (2**60).to_bytes(8, "little") + bytes(8)
    with pytest.raises(CodecError):
        codec_from_zarr_v2(CONFIGS["zstd"]).decode(frame, None)
    there = bytearray(encoded(CONFIGS["blosc"], LONG))
    there[4:8] = b"\xf0\xff\xff\xff"
    with pytest.raises(CodecError):
        codec_from_zarr_v2(CONFIGS["blosc"]).decode(bytes(there), None)


SENSELESS: dict[str, dict[str, Any]] = {
    "an unknown parameter": {"id": "adler32", "more": 1},
    "a parameter that there is not": {"id": "base64", "level": 1},
    "no dtype": {"id": "delta", "dtype": "C", "astype": "<i4"},
    "a dtype that is not closed": {"id": "delta", "dtype": "<f4,(", "astype": "<i4"},
    "bits that are none": {"id": "bitround", "keepbits": None},
    "an offset of text": {
        "id": "fixedscaleoffset", "scale": 1, "offset": "+9", "dtype": "<f8", "astype": "<f8",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SENSELESS)
def test_parameters_that_make_no_sense_are_an_error_of_the_codec(name: str) -> None:
    codec = codec_from_zarr_v2(SENSELESS[name])
    with pytest.raises(CodecError, match=SENSELESS[name]["id"]):
        codec.decode(sample("f8", 8), None)


DELTA = {"id": "imagecodecs_delta", "shape": [3, 4, 1], "dtype": "<u2", "axis": -2}
SCALED = {"id": "virtualds_scaleoffset", "dtype": "<i4", "factor": 0, "elements": 9, "fill": 11}
NBIT = {"id": "virtualds_nbit", "precision": 16, "offset": 0, "elements": 9}
UNSOUND: dict[str, tuple[dict[str, Any], str]] = {
    "an element that is text": ({"id": "shuffle", "elementsize": "x"}, "elementsize"),
    "rows of no pixels": (DELTA | {"shape": [3, 0, 1]}, "no differences"),
    "rows of fewer pixels than none": (DELTA | {"shape": [3, -4, -1]}, "no differences"),
    "differences of text": (DELTA | {"dtype": "<U2"}, "no differences"),
    "a dtype that there is not": (DELTA | {"dtype": "<f\x14"}, "not understood"),
    "a dtype that is not closed": (DELTA | {"dtype": "<u2,("}, "never closed"),
    "tables that are a number": ({"id": "imagecodecs_jpeg", "tables": 0.5}, "tables"),
    "colours that are a list": ({"id": "imagecodecs_jpeg", "colorspace_data": [1]}, "colour"),
    "offsets of text": (SCALED | {"dtype": "<U1"}, "cannot be scaled"),
    "offsets of a dtype that there is not": (SCALED | {"dtype": "<i4\0"}, "not understood"),
    "bits of objects": (NBIT | {"dtype": "|O"}, "not unsigned integers"),
    "bits of nine bytes": (NBIT | {"dtype": "<V9"}, "not unsigned integers"),
    "a fill beyond the type": (SCALED | {"dtype": "|u1", "fill": -1}, "out of bounds"),
}


@looped("name", UNSOUND)
def test_a_configuration_of_which_no_codec_is_made_is_named(name: str) -> None:
    config, reason = UNSOUND[name]
    with pytest.raises(FormatError, match=f"'{config['id']}'.*{reason}"):
        codec_from_zarr_v2(config)


def test_integers_have_as_many_bits_as_their_type_holds() -> None:
    config = {"id": "imagecodecs_packints", "runlen": 4}
    for dtype, most in [("|b1", 1), ("|u1", 8), ("<u2", 16), ("<u4", 31)]:
        codec_from_zarr_v2(config | {"dtype": dtype, "bitspersample": most})
        for bits in (0, most + 1):
            with pytest.raises(FormatError, match=f"of {bits} bits"):
                codec_from_zarr_v2(config | {"dtype": dtype, "bitspersample": bits})


def test_deflate_has_a_level_even_without_client_data() -> None:
    data = sample("<i4", 100)
    for values in ((), (1,)):
        codec = codec_from_hdf5(1, values, 4)
        assert codec.to_zarr_v2() == {"id": "zlib", "level": 1}
        assert returned(codec, zlib.compress(data), len(data)) == data


def test_client_data_of_which_no_codec_is_made_are_named() -> None:
    with pytest.raises(FormatError, match=r"HDF5 filter 4.*\(1, 2\)"):
        codec_from_hdf5(4, (1, 2), 4)


def test_differences_of_no_rows_are_nothing() -> None:
    assert bytes(codec_from_zarr_v2(DELTA).decode(b"", None)) == b""


def test_a_padding_larger_than_all_bits_is_damage() -> None:
    codec = codec_from_zarr_v2(
        {
            "id": "virtualds_bit_fields", "dtype": "|b1", "padding_encoding": "first_byte",
            "first_bit": 0, "last_bit": 0,
        }
    )  # fmt: skip
    with pytest.raises(CodecError, match="3 padding bits"):
        codec.decode(b"\x03", None)


@pytest.mark.parametrize("dtype", ["|O", "O"])
@pytest.mark.parametrize("nbytes", [None, 16])
def test_codecs_that_make_python_objects_give_no_addresses_as_numbers(
    dtype: str, nbytes: int | None
) -> None:
    codec = codec_from_zarr_v2({"id": "astype", "encode_dtype": "<f8", "decode_dtype": dtype})
    with pytest.raises(CodecError, match="Python objects"):
        codec.decode(np.array([np.nan, 3.0]).tobytes(), nbytes)


@looped("nbytes", [1280, None])
@looped("keep", [-1, -100, 60, 5, 4])
def test_szip_of_a_truncated_stream_shows_no_other_memory(nbytes: int | None, keep: int) -> None:
    """libaec leaves what it has no bits for as it was."""
    codec = codec_from_zarr_v2(SZIP)
    data = np.random.default_rng(0).integers(0, 2**14, 640).astype("<i2").tobytes()
    there = encoded(SZIP, data)
    assert bytes(codec.decode(there, nbytes)) == data
    with pytest.raises(CodecError, match="szip"):
        codec.decode(there[:keep], nbytes)


SCANLINES = [(15, 8), (33, 32), (100, 16), (255, 2), (4095, 32)]
"""Pixels of a scanline and of a block, of which the first is no multiple."""


@pytest.mark.parametrize(("scanline", "block"), SCANLINES)
@looped("mask", [141, 169])
@looped("bits", [4, 8, 12, 16, 24, 32, 64])
def test_szip_of_scanlines_that_are_no_whole_blocks_is_decoded_or_refused(
    scanline: int, block: int, bits: int, mask: int
) -> None:
    """libaec returns memory that it never wrote where such a stream ends early."""
    shape = {"pixels_per_block": block, "bits_per_pixel": bits, "pixels_per_scanline": scanline}
    config = SZIP | shape | {"options_mask": mask}
    codec = codec_from_zarr_v2(config)
    dtype = f"u{1 if bits <= 8 else 2 if bits <= 16 else 4 if bits <= 32 else 8}"
    for count in (1, scanline, 2 * scanline + 7):
        values = np.random.default_rng(count).integers(0, 2 ** min(bits, 31), count)
        data = values.astype(dtype).tobytes()
        there = encoded(config, data)
        assert bytes(codec.decode(there, len(data))) == data
        assert put(codec, there, len(data)) == data
    for keep in (-20, len(there) // 2, 5, 4):
        with pytest.raises(CodecError, match="szip"):
            codec.decode(there[:keep], len(data))


def test_szip_of_a_stream_for_other_scanlines_is_refused() -> None:
    data = (np.arange(960) % 50).astype("<u2").tobytes()
    there = encoded(SZIP | {"pixels_per_scanline": 32}, data)
    with pytest.raises(CodecError, match="szip"):
        codec_from_zarr_v2(SZIP | {"pixels_per_scanline": 255}).decode(there, len(data))


@looped("block", [0, -8, 7])
@looped("scanline", [0, -5, 33, 2**31 - 1])
def test_parameters_that_szip_cannot_have_are_damage(scanline: int, block: int) -> None:
    codec = codec_from_zarr_v2(SZIP | {"pixels_per_block": block, "pixels_per_scanline": scanline})
    with pytest.raises(CodecError, match="szip"):
        codec.decode((64).to_bytes(4, "little") + bytes(100), 64)


def test_blocks_that_szip_cannot_have_take_no_memory() -> None:
    codec = codec_from_zarr_v2(SZIP | {"pixels_per_block": 2**32, "pixels_per_scanline": 32})
    chunk = (1920).to_bytes(4, "little") + bytes(500)
    with pytest.raises(CodecError, match="szip"):
        codec.decode(chunk, 1920)


def test_szip_without_its_header_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="decoded length"):
        codec_from_zarr_v2(SZIP | {"header": False})


def test_the_first_code_of_a_huffman_tree_is_the_byte_itself() -> None:
    values = bytes([0, 1, 128, 255])
    bits = "".join(f"1{value:08b}" for value in values).ljust(40, "0")
    assert SkippingHuffman(4).decode(int(bits, 2).to_bytes(5, "big"), 4) == values


SOME = ["uint16", "uint8 in a container", "three channels", "turned frames", "frames of float32"]
EIGHTS = np.arange(16 * 24, dtype="u2").reshape(16, 24)


@looped(
    "stream, values",
    [
        *((one.chunk, one.values) for one in (IMAGES[f"jpegxl, {name}"] for name in SOME)),
        # the header counts eights
        (drawn(EIGHTS), EIGHTS),
    ],
)
def test_a_jpegxl_image_decodes_to_its_chunk(stream: bytes, values: Any) -> None:
    codec = codec_from_zarr_v3("jpegxl", WRITTEN, values.dtype, values.shape)
    assert bytes(codec.decode(stream, values.nbytes)) == values.tobytes()


@looped("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_differences_of_floats_are_taken_back_in_either_byte_order(dtype: str) -> None:
    values = np.linspace(-5, 7, 12).reshape(3, 4, 1).astype(dtype)
    stream = imagecodecs.floatpred_encode(values, axis=-2).tobytes()
    config = {"id": "imagecodecs_floatpred", "shape": [3, 4, 1], "dtype": dtype, "axis": -2}
    assert bytes(codec_from_zarr_v2(config).decode(stream, len(stream))) == values.tobytes()


def test_a_png_image_decodes_to_its_pixels() -> None:
    pixels = np.arange(24, dtype="u1").reshape(4, 6)
    stream, codec = imagecodecs.png_encode(pixels), codec_from_zarr_v2({"id": "imagecodecs_png"})
    assert bytes(codec.decode(stream, 24)) == pixels.tobytes()
    with pytest.raises(CodecError, match="24 pixels, not of 23"):
        codec.decode(stream, 23)


def test_a_jpegls_stream_without_an_end_is_not_decoded() -> None:
    """CharLS would look for the end of a number in memory that is not the stream's."""
    there = imagecodecs.jpegls_encode(np.arange(1230).astype("u1").reshape(30, 41))
    codec = codec_from_zarr_v2({"id": "imagecodecs_jpegls"})
    assert len(codec.decode(there, 1230)) == 1230
    with pytest.raises(CodecError, match="no end"):
        codec.decode(there[:99], 1230)


def test_parameters_that_only_encoding_uses_may_be_anything() -> None:
    data = encoded(CONFIGS["bz2"], LONG)
    assert (
        bytes(codec_from_zarr_v2({"id": "bz2", "level": "?", "more": 1}).decode(data, None)) == LONG
    )


@pytest.mark.parametrize(
    "config",
    [
        {"id": "imagecodecs_bitshuffle", "itemsize": 2**64, "blocksize": 8},
        {"id": "imagecodecs_bitshuffle", "itemsize": 4, "blocksize": 2**64},
        {"id": "virtualds_bitshuffle", "itemsize": 2**64, "compressor": "lz4"},
    ],
    ids=str,
)
def test_huge_elements_and_blocks_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="bitshuffle"):
        codec_from_zarr_v2(config)


# ---------------------------------------------------------------------- laws

LEVELS: dict[str, list[dict[str, Any]]] = {
    "zlib": [{"level": level} for level in range(-1, 10)],
    "gzip": [{"level": level} for level in range(-1, 10)],
    "zstd": [{"level": n, "checksum": c} for n in (-7, -1, 0, 1, 3, 9) for c in (False, True)],
    "lz4": [{"acceleration": n} for n in (1, 9, 100)],
    "blosc": [
        {"cname": name, "clevel": level, "shuffle": shuffle, "blocksize": size}
        for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for level in (0, 1, 9)
        for shuffle in (0, 1, 2)
        for size in (0, 4096)
    ],
    "bz2": [{"level": n} for n in (1, 9)],
    "lzma": [
        {"format": n, "check": -1, "preset": preset, "filters": None}
        for n in (1, 2)
        for preset in (0, 6)
    ],
    "shuffle": [{"elementsize": n} for n in (1, 2, 3, 4, 8, 16)],
    "fletcher32": [{}],
    "crc32c": [{"location": place} for place in ("start", "end")],
}
TYPES = st.sampled_from(["u1", "<i2", "S3", "<f4", "<f8", "c16"])
EMPTY = {"zlib", "gzip", "bz2", "lzma", "shuffle", "crc32c"}
"""Codecs of which numcodecs encodes nothing to something that it decodes."""


@st.composite
def payloads(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Noise, smooth or constant values of many types; up to some 100 KB."""
    dtype = np.dtype(draw(TYPES))
    size = draw(st.integers(0, 300) | st.integers(0, 300_000 // dtype.itemsize))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["noise", "smooth", "constant"]))
    if kind == "noise" or dtype.kind == "S":
        return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype)
    return np.cumsum(rng.integers(0, 3, size) * (kind == "smooth")).astype(dtype)


@pytest.mark.parametrize("name", LEVELS)
@settings(max_examples=times(20), deadline=None)
@given(st.data(), payloads(), st.binary(max_size=3))
def test_all_that_numcodecs_encodes_is_decoded(
    name: str, data: st.DataObject, values: Any, tail: bytes
) -> None:
    config = {"id": name, **data.draw(st.sampled_from(LEVELS[name]))}
    if not values.size and name not in EMPTY:
        return
    if name == "shuffle":
        whole = values.tobytes()
        whole = whole[: len(whole) // config["elementsize"] * config["elementsize"]]
        tail = tail[: config["elementsize"] - 1]
        there, expected = bytes(numcodecs.get_codec(config).encode(whole)) + tail, whole + tail
    else:
        there, expected = bytes(numcodecs.get_codec(config).encode(values)), values.tobytes()
    codec = codec_from_zarr_v2(config)
    for nbytes in (len(expected), None):
        assert bytes(codec.decode(there, nbytes)) == expected
        assert bytes(codec.decode(memoryview(b"?" + there)[1:], nbytes)) == expected


@settings(max_examples=times(20), deadline=None)
@given(st.lists(st.tuples(payloads(), st.integers(0, 9)), min_size=1, max_size=5))
def test_any_gzip_members_are_joined(parts: list[tuple[Any, int]]) -> None:
    there = b"".join(gzip.compress(values.tobytes(), level) for values, level in parts)
    expected = b"".join(values.tobytes() for values, _ in parts)
    codec = codec_from_zarr_v2({"id": "gzip"})
    for nbytes in (len(expected), None):
        assert bytes(codec.decode(there, nbytes)) == expected


FILTERED: list[dict[str, Any]] = [
    {"shuffle": shuffle, "fletcher32": check, **compression}
    for shuffle in (False, True)
    for check in (False, True)
    for compression in ({}, *({"compression": "gzip", "compression_opts": n} for n in (0, 4, 9)))
    if shuffle or check or compression
]


@settings(max_examples=times(33), deadline=None)
@given(payloads(), st.sampled_from(FILTERED), st.integers(1, 3))
def test_all_that_hdf5_encodes_is_decoded(values: Any, how: dict[str, Any], chunks: int) -> None:
    if not values.size:
        return
    with h5py.File("nowhere", "w", driver="core", backing_store=False) as file:
        shape = (max(values.size // chunks, 1),)
        dataset = file.create_dataset("v", data=values, chunks=shape, **how)
        plist = dataset.id.get_create_plist()
        found = [plist.get_filter(i) for i in range(plist.get_nfilters())]
        codecs = [codec_from_hdf5(n, given, values.itemsize) for n, _, given, _ in found]
        info = dataset.id.get_chunk_info(0)
        mask, data = dataset.id.read_direct_chunk(info.chunk_offset)
    used = [codec for i, codec in enumerate(codecs) if not mask >> i & 1]
    sizes: list[int | None] = [shape[0] * values.itemsize]
    for codec in used:
        sizes.append(None if sizes[-1] is None else codec.encoded_size(sizes[-1]))
    for codec, size in reversed(list(zip(used, sizes, strict=False))):
        data = codec.decode(data, size)
    assert bytes(data) == values[: shape[0]].tobytes()


@given(st.binary(max_size=5000))
def test_the_checksum_without_libraries_is_that_of_google(data: bytes) -> None:
    assert crc32c(data) == google_crc32c.value(data)


def test_the_checksum_without_libraries_of_much_data() -> None:
    for size in (1025, 2**16 - 1, 2**16, 2**16 + 1023, 10**6 + 1):
        data = np.random.default_rng(size).bytes(size)
        assert crc32c(data) == google_crc32c.value(data)


# ---------------------------------------------------------------------- zfp and pcodec

ZFPY = {
    "float32": (
        "7a667005260000100000c0ca052d71510a698409001200000000000000000000",
        np.arange(6, dtype="f4") * 1.5,
    ),
    "int32": (
        "7a667005240000100000d081000000e01000000000000000",
        np.repeat(np.array([0, 8], "i4"), 3),
    ),
}
"""What the package zfpy 1.0.1 wrote of (2, 3) numbers, and the numbers it reads of that."""


@pytest.mark.parametrize("dtype", ZFPY)
def test_streams_of_zfpy_are_read_as_zfpy_reads_them(dtype: str) -> None:
    stream, values = ZFPY[dtype]
    codec = codec_from_zarr_v2({"id": "zfpy", "mode": 4, "tolerance": 0.01})
    for nbytes in (values.nbytes, None):
        assert bytes(codec.decode(bytes.fromhex(stream), nbytes)) == values.tobytes()


@looped("shape", [(70,), (7, 10), (4, 5, 6), (2, 3, 4, 5), (1, 9)])
@looped("dtype", ["i4", "i8", "f4", "f8"])
def test_zfp_without_loss_is_taken_back(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.cumsum(np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
    stream = imagecodecs.zfp_encode(values)
    codec = codec_from_zarr_v2({"id": "zfpy"})
    assert bytes(codec.decode(memoryview(stream), values.nbytes)) == values.tobytes()
    with pytest.raises(CodecError, match=r"bytes, not|expected"):
        codec.decode(stream, values.nbytes + 8)
    with pytest.raises(CodecError, match="zfp"):
        codec.decode(stream[:11], values.nbytes)


def test_zfp_reads_no_memory_behind_a_truncated_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads as many bits as blocks may have, so that many are given to it."""
    given: list[bytes] = []

    def decode(codec: Zfp, stream: bytes) -> bytes:
        given.append(stream)
        return bytes(8 * 64)

    monkeypatch.setattr(Zfp, "decode_whole", decode)
    stream = imagecodecs.zfp_encode(np.arange(64.0))[:60]
    codec_from_zarr_v2({"id": "zfpy"}).decode(stream, 8 * 64)
    # 16 blocks of 4 numbers of 64 bits
    assert given[0].rstrip(b"\0") == stream and len(given[0]) > 16 * 4 * 8


NUMBERS = {
    "zfpy": imagecodecs.zfp_encode(np.arange(70.0)),
    "pcodec": numcodecs.get_codec({"id": "pcodec"}).encode(np.arange(70.0)),
}


@pytest.mark.parametrize("name", NUMBERS)
@given(st.data())
def test_damaged_streams_of_numbers_keep_the_length(name: str, data: st.DataObject) -> None:
    there = bytearray(NUMBERS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        there[data.draw(st.integers(0, len(there) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(there)))
    codec = codec_from_zarr_v2({"id": name})
    for damaged in (there, there[:cut]):
        try:
            found = codec.decode(bytes(damaged), 560)
        except CodecError:
            continue
        assert len(found) == 560


def test_pcodec_of_nothing_is_nothing() -> None:
    there = numcodecs.get_codec({"id": "pcodec"}).encode(np.arange(0.0))
    assert bytes(codec_from_zarr_v2({"id": "pcodec"}).decode(there, 0)) == b""


@pytest.mark.parametrize(("name", "package"), [("zfpy", "imagecodecs"), ("pcodec", "pcodec")])
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=rf"{package}\npip install {package}$"):
        codec_from_zarr_v2({"id": name}).decode(NUMBERS[name], 560)


# ---------------------------------------------------------------------- zlib and gzip


def test_a_short_stream_is_refused_though_it_is_sound() -> None:
    with pytest.raises(CodecError, match="decoded to 5 bytes, not 9"):
        Zlib().decode(zlib.compress(b"short"), 9)


@pytest.mark.parametrize("between", [b"", b"\0", b"\0" * 512], ids=len)
def test_gzip_members_are_joined(between: bytes) -> None:
    codec = codec_from_zarr_v2(CONFIGS["gzip"])
    parts = [b"one", b"", b"three" * 1000]
    data = between.join(map(gzip.compress, parts)) + between
    assert bytes(codec.decode(data, sum(map(len, parts)))) == b"".join(parts)


def test_of_two_gzip_members_one_alone_is_no_chunk() -> None:
    codec = codec_from_zarr_v2(CONFIGS["gzip"])
    with pytest.raises(CodecError, match="decoded to more than the expected 3 bytes"):
        codec.decode(gzip.compress(b"one") + gzip.compress(b"three"), 3)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"garbage", "header"),
        (gzip.compress(b"two")[:-3], "end mark"),
        (gzip.compress(b"two")[:4], "end mark"),
        (gzip.compress(b"two")[:-8] + bytes(8), "check"),
    ],
    # gzip writes the time into its header, so the bytes are no name for a test
    ids=["no member", "cut at the end", "cut in the header", "wrong checksum"],
)
def test_a_bad_second_member_is_damage(tail: bytes, reason: str) -> None:
    codec = codec_from_zarr_v2(CONFIGS["gzip"])
    with pytest.raises(CodecError, match=reason):
        codec.decode(gzip.compress(b"one") + tail, 6)


# ---------------------------------------------------------------------- shuffle


def unshuffle(data: bytes, out: Any, itemsize: int) -> None:
    Shuffle(itemsize).decode_into(data, out)


@looped(
    "way",
    [unshuffle, unshuffle_portably, unshuffle_by_planes],
)
@looped("itemsize", [1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 255, 256, 300])
def test_all_ways_to_unshuffle_agree_with_numcodecs(way: Any, itemsize: int) -> None:
    for count in (1, 2, 15, 16, 17, 31, 33, 255, 10_001):
        data = np.random.default_rng(count).bytes(count * itemsize)
        there = bytes(numcodecs.Shuffle(itemsize).encode(data))
        out = np.empty(len(data), np.uint8)
        way(there, out, itemsize)
        assert out.tobytes() == data


def test_chunks_too_large_for_blosc_are_unshuffled() -> None:
    data = np.random.default_rng(0).bytes(2**24 + 12)
    out = np.empty(len(data), np.uint8)
    unshuffle_portably(bytes(numcodecs.Shuffle(4).encode(data)), out, 4)
    assert out.tobytes() == data


@looped("itemsize", [1, 2, 3, 4, 8, 16])
@looped("extra", range(4))
def test_trailing_bytes_of_a_shuffle_stay_where_they_are(itemsize: int, extra: int) -> None:
    whole = np.random.default_rng(itemsize).bytes(10 * itemsize)
    tail = b"xyz"[: min(extra, itemsize - 1)]
    there = bytes(numcodecs.Shuffle(itemsize).encode(whole)) + tail
    assert bytes(Shuffle(itemsize).decode(there, len(there))) == whole + tail


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_a_shuffle_of_nothing_is_nothing(itemsize: int) -> None:
    assert bytes(Shuffle(itemsize).decode(b"", 0)) == b""


def test_a_shuffle_within_memory_that_is_not_aligned() -> None:
    data = np.random.default_rng(1).bytes(4 * 1001)
    there = b"?" + bytes(numcodecs.Shuffle(4).encode(data))
    out = np.empty(len(data) + 3, np.uint8)
    Shuffle(4).decode_into(memoryview(there)[1:], out[3:])
    assert out[3:].tobytes() == data


# ---------------------------------------------------------------------- fletcher32


def checksum(data: bytes) -> int:
    """By numcodecs, which pads nothing: an odd byte is the high half of a word."""
    padded = data + b"\0" * (len(data) % 2)
    return int.from_bytes(bytes(numcodecs.Fletcher32().encode(padded))[-4:], "little")


@given(st.binary(min_size=1, max_size=2000))
def test_the_checksum_is_that_of_numcodecs(data: bytes) -> None:
    assert fletcher32(data) == checksum(data)


@pytest.mark.parametrize("size", [1, 2, 3, 719, 720, 721, 1440, 7201, 2 * 65535, 10**6 + 1])
@looped("byte", [0, 1, 0x7F, 0x80, 0xFE, 0xFF])
def test_the_checksum_of_one_byte_repeated(byte: int, size: int) -> None:
    """Sums that are multiples of 65535 are where ways to reduce them part."""
    data = bytes([byte]) * size
    assert fletcher32(data) == checksum(data)


def test_the_checksum_of_much_data() -> None:
    for size in (10**6, 5 * 10**6 + 7):
        data = np.random.default_rng(size).bytes(size)
        assert fletcher32(data) == checksum(data)
    big = np.full(2 * 10**7, 0xFF, np.uint8)
    big[::3] = 0xFE
    assert fletcher32(big.data) == checksum(big.tobytes())


def test_the_checksum_of_nothing_is_zero() -> None:
    assert fletcher32(b"") == 0


def test_a_checksum_of_old_hdf5_with_swapped_halves_is_right_too() -> None:
    data = sample("<i4", 100)
    low, high = (checksum(data) & 0xFFFF), checksum(data) >> 16
    old = low.to_bytes(2, "big") + high.to_bytes(2, "big")
    codec = codec_from_zarr_v2({"id": "fletcher32"})
    assert bytes(codec.decode(data + old, len(data))) == data


def test_an_error_of_a_checksum_shows_both_checksums() -> None:
    codec = codec_from_zarr_v2({"id": "fletcher32"})
    with pytest.raises(CodecError, match=r"0x00010001.*0x00000002"):
        codec.decode(b"\0\1" + b"\2\0\0\0", 2)


def test_the_package_of_libdeflate_exports_its_functions() -> None:
    """Without them all works, and takes more memory: see whether the package has changed."""
    assert find_libdeflate() is not None
    assert Zlib().fills_output


@WAYS
def test_an_error_of_the_length_of_zstd_shows_both_lengths(decode: Way) -> None:
    codec = codec_from_zarr_v2(CONFIGS["zstd"])
    with pytest.raises(CodecError, match=f"{len(LONG)} bytes, not {len(LONG) + 2}"):
        decode(codec, encoded(CONFIGS["zstd"], LONG), len(LONG) + 2)


def test_lengths_that_make_no_sense_are_errors_of_the_codec() -> None:
    texts = codec_from_zarr_v2(
        {"id": "virtualds_text_numbers", "width": 12, "dtype": "<f8", "null": ""}
    )
    assert len(texts.decode(b"", 0)) == 0
    with pytest.raises(CodecError, match="0 bytes, not 16"):
        texts.decode(b"", 16)
    rice = codec_from_zarr_v2({"id": "virtualds_fits_rice", "dtype": ">i2", "block": 32, "word": 2})
    with pytest.raises(CodecError, match="too large"):
        rice.decode(bytes(8), 2**34)


def test_a_frame_header_at_the_end_of_the_data_counts() -> None:
    header = b"\xff\xf7" + bytes([0, 11, 8, 0, 2, 0, 3, 1])
    found = parse_jpeg_header(memoryview(b"\xff\xd8" + header), JPEGLS_FRAME_MARKERS)
    assert found[:4] == (2, 3, 1, 8)


def test_a_message_with_one_field_is_taken_as_it_is() -> None:
    field = b"".join((5).to_bytes(4, "big") + bytes([number]) for number in (3, 5, 7))
    length = 16 + len(field) + 4
    message = memoryview(b"GRIB\0\0\0\2" + length.to_bytes(8, "big") + field + b"7777")
    assert select_field(message, 0) is message
