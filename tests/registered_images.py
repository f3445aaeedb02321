"""Chunks that are one stream of the registry zarr-extensions each, written by imagecodecs.

What is expected of JPEG is what imagecodecs makes of the stream; of streams without loss, and of
numbers that zfp keeps, it is what was written. No shape is symmetric.
"""

from __future__ import annotations

from typing import Any

import imagecodecs
import numpy as np
from registered_codecs import Case, case
from zarr_stores import named

LINES, SAMPLES = 21, 34
GREY = (np.add.outer(np.arange(LINES) * 5, np.arange(SAMPLES) * 3) % 256).astype("u1")
COLOURS = np.stack([GREY, GREY[::-1], 255 - GREY], -1)
TO_THE_END = named("transpose", order=[1, 2, 0])

# ---------------------------------------------------------------------- jpeg

FULL, HALF = [[1, 1]] * 3, [[2, 2], [1, 1], [1, 1]]
YCBCR = {"encoded_color_space": "ycbcr", "subsampling": HALF}
RGB = {"encoded_color_space": "rgb", "subsampling": FULL}
JFIF = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
ADOBE = b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00"
JPEGS = {
    "grey": imagecodecs.jpeg8_encode(GREY, level=90),
    "ycbcr": imagecodecs.jpeg8_encode(COLOURS, level=90, subsampling="420"),
    "full": imagecodecs.jpeg8_encode(COLOURS, level=90, subsampling="444"),
    "rgb": imagecodecs.jpeg8_encode(COLOURS, level=90, colorspace="rgb", outcolorspace="rgb"),
}
RGB_IN_JFIF = JPEGS["rgb"][:2] + JFIF + JPEGS["rgb"][2:]
"""Adobe's marker says that nothing was transformed, and the other one is that of YCbCr."""
MARKED = JPEGS["full"][:2] + ADOBE + b"\x01" + JPEGS["full"][2 + len(JFIF) :]
UNMARKED = JPEGS["full"][:2] + JPEGS["full"][2 + len(JFIF) :]
SHOWN = {name: imagecodecs.jpeg8_decode(stream) for name, stream in JPEGS.items()}


def jpeg(stream: bytes, values: Any, *before: Any, **how: Any) -> Case:
    return case(values, 0, *before, named("jpeg", quality=90, **how), chunk=stream)


JPEG = {
    "jpeg, grey": jpeg(JPEGS["grey"], SHOWN["grey"]),
    "jpeg, grey with an axis": jpeg(JPEGS["grey"], SHOWN["grey"][..., None], subsampling=[[1, 1]]),
    "jpeg, ycbcr": jpeg(JPEGS["ycbcr"], SHOWN["ycbcr"], **YCBCR),
    "jpeg, ycbcr as drafts had it": jpeg(
        JPEGS["ycbcr"], SHOWN["ycbcr"], encoded_color_space="ycbcr", subsampling="4:2:0"
    ),
    "jpeg, ycbcr in full": jpeg(JPEGS["full"], SHOWN["full"], encoded_color_space="ycbcr"),
    "jpeg, marked ycbcr": jpeg(MARKED, SHOWN["full"], encoded_color_space="ycbcr"),
    "jpeg, unmarked": jpeg(UNMARKED, SHOWN["full"], encoded_color_space="ycbcr"),
    "jpeg, rgb": jpeg(JPEGS["rgb"], SHOWN["rgb"], **RGB),
    "jpeg, rgb in jfif": jpeg(RGB_IN_JFIF, SHOWN["rgb"], **RGB),
    "jpeg, transposed": jpeg(
        JPEGS["ycbcr"], SHOWN["ycbcr"].transpose(2, 0, 1), TO_THE_END, **YCBCR
    ),
    "jpeg, reshaped": jpeg(
        JPEGS["grey"],
        SHOWN["grey"].reshape(3, 7, SAMPLES),
        named("reshape", shape=[[0, 1], [2]]),
    ),
    "jpeg, transposed and reshaped": jpeg(
        JPEGS["grey"],
        SHOWN["grey"].reshape(3, 7, SAMPLES).transpose(2, 0, 1),
        TO_THE_END,
        named("reshape", shape=[-1, SAMPLES]),
    ),
}
# ---------------------------------------------------------------------- jpegxl

DRAWN = np.random.default_rng(5).integers(0, 2**16, (6, LINES, SAMPLES), "u2")
TINTED = np.ascontiguousarray(DRAWN[:3].transpose(1, 2, 0))
REALS = (DRAWN / 2**16).astype("f4")
WRITTEN = {
    "lossless": True,
    "distance": 0,
    "effort": 3,
    "decodingspeed": 0,
    "photometric": "gray",
    "primaries": "srgb",
    "transfer": "srgb",
    "bitspersample": 8,
    "usecontainer": False,
}


def drawn(values: Any, **how: Any) -> bytes:
    """Return an image without loss."""
    found: bytes = imagecodecs.jpegxl_encode(values, lossless=True, effort=3, **how)
    return found


def jpegxl(stream: bytes, values: Any, *before: Any) -> Case:
    return case(values, 0, *before, named("jpegxl", **WRITTEN), chunk=stream)


def kept(values: Any, **how: Any) -> Case:
    return jpegxl(drawn(values, **how), values)


LOSSY = imagecodecs.jpegxl_encode(COLOURS, lossless=False, distance=1.0, effort=3)
FRAMES = DRAWN.astype("u1")
TURNED = bytearray(drawn(FRAMES))
# three bits behind 2 bytes, 26 bits of the size and 2 flags say how it is to be turned
TURNED[5] |= 0b110 << 4
JPEGXL = {
    "jpegxl, uint8": kept(GREY),
    "jpegxl, uint8 in a container": kept(GREY, usecontainer=True),
    "jpegxl, uint8 of 3 bits": kept(GREY % 8, bitspersample=3),
    "jpegxl, uint16": kept(DRAWN[0]),
    "jpegxl, uint16 of 12 bits": kept(DRAWN[0] % 4096, bitspersample=12),
    "jpegxl, uint16 of 8 bits": jpegxl(drawn(GREY), GREY.astype("u2")),
    "jpegxl, uint16 of 5 bits": jpegxl(drawn(GREY % 32, bitspersample=5), GREY.astype("u2") % 32),
    "jpegxl, float16": kept(REALS[1].astype("f2")),
    "jpegxl, float32": kept(REALS[0]),
    "jpegxl, two channels": kept(TINTED[..., :2].copy()),
    "jpegxl, three channels": kept(TINTED.astype("u1")),
    "jpegxl, four channels": kept(np.stack([*DRAWN[:4]], -1)),
    "jpegxl, three channels of float32": kept(np.stack([*REALS[1:4]], -1)),
    "jpegxl, frames": kept(DRAWN),
    "jpegxl, frames of float32": kept(REALS),
    "jpegxl, frames of three channels": kept(np.stack([TINTED, 7 * TINTED]).astype("u1")),
    "jpegxl, turned frames": jpegxl(bytes(TURNED), FRAMES),
    "jpegxl, with loss": jpegxl(LOSSY, imagecodecs.jpegxl_decode(LOSSY, keeporientation=True)),
    "jpegxl, a line": kept(GREY[:1]),
    "jpegxl, transposed": jpegxl(
        drawn(TINTED), np.ascontiguousarray(TINTED.transpose(2, 0, 1)), TO_THE_END
    ),
    "jpegxl, reshaped": jpegxl(
        drawn(DRAWN),
        DRAWN.reshape(2, 3, LINES, SAMPLES),
        named("reshape", shape=[[0, 1], [2], [3]]),
    ),
    "jpegxl, without an axis": jpegxl(
        drawn(DRAWN[0]), DRAWN[:1], named("reshape", shape=[[1], [2]])
    ),
}
# ---------------------------------------------------------------------- zfp

MODE = imagecodecs.ZFP.MODE
HEADER = 12
"""Bytes of what imagecodecs writes in front, which the registry's streams do not have."""
WAVES = np.cumsum(np.random.default_rng(6).normal(size=6 * LINES * SAMPLES)).reshape(DRAWN.shape)


def numbers(values: Any, mode: Any = MODE.REVERSIBLE, level: Any = None) -> tuple[bytes, Any]:
    """Return a stream without header and what fills up its last word, and what it decodes to."""
    stream = imagecodecs.zfp_encode(np.ascontiguousarray(values), mode=mode, level=level)
    return stream[HEADER:], imagecodecs.zfp_decode(stream).reshape(values.shape)


def zfp(stream: bytes, values: Any, *before: Any, mode: str = "reversible", **how: Any) -> Case:
    return case(values, 0, *before, named("zfp", mode=mode, **how), chunk=stream)


def exact(values: Any, wide: Any = None) -> Case:
    """Numbers that are the same afterwards; narrow ones are encoded as wider ones."""
    return zfp(numbers(values if wide is None else wide)[0], values)


def fixed_rate(values: Any, rate: float, bits: int) -> Case:
    """A stream of whose blocks each takes so many bits."""
    stream, shown = numbers(values, MODE.FIXED_RATE, rate)
    return zfp(stream[: -(-bits // 8)], shown, mode="fixed_rate", rate=rate)


SIGNED = (DRAWN[0].astype("i4") - 2**15).astype("i2")
TINY = SIGNED.astype("i1")
ACCURATE = numbers(WAVES, MODE.FIXED_ACCURACY, 0.05)
ZFP = {
    "zfp, float32": exact(WAVES[0].astype("f4")),
    "zfp, float64": exact(WAVES),
    "zfp, int32": exact((1e6 * WAVES[0]).astype("i4")),
    "zfp, int64": exact((1e12 * WAVES).astype("i8")),
    "zfp, one axis": exact(WAVES[0, 0]),
    "zfp, four axes": exact(WAVES.reshape(2, 3, LINES, SAMPLES)),
    "zfp, int8": exact(TINY, TINY.astype("i4") << 23),
    "zfp, uint8": exact(GREY, (GREY.astype("i4") - 2**7) << 23),
    "zfp, int16": exact(SIGNED, SIGNED.astype("i4") << 15),
    "zfp, uint16": exact(DRAWN[0], (DRAWN[0].astype("i4") - 2**15) << 15),
    "zfp, float16": exact(REALS[1].astype("f2"), REALS[1].astype("f2").astype("f4")),
    "zfp, fixed accuracy": zfp(*ACCURATE, mode="fixed_accuracy", tolerance=0.05),
    # 0.05 is more than 2 to the power of -5
    "zfp, expert": zfp(*ACCURATE, mode="expert", minbits=0, maxbits=16658, maxprec=64, minexp=-5),
    "zfp, fixed precision": zfp(
        *numbers(WAVES[0].astype("f4"), MODE.FIXED_PRECISION, 13),
        mode="fixed_precision",
        precision=13,
    ),
    # 6 * 9 blocks of 16 numbers; 2 * 6 * 9 of 64
    "zfp, fixed rate": fixed_rate(WAVES[0], 6.3, 6 * 9 * 101),
    "zfp, fixed rate of three axes": fixed_rate(WAVES.astype("f4"), 2.51, 2 * 6 * 9 * 161),
    "zfp, transposed": zfp(
        numbers(WAVES)[0], np.ascontiguousarray(WAVES.transpose(2, 0, 1)), TO_THE_END
    ),
    "zfp, reshaped": zfp(
        numbers(WAVES)[0],
        WAVES.reshape(2, 3, LINES, SAMPLES),
        named("reshape", shape=[[0, 1], [2], [3]]),
    ),
}
IMAGES = JPEG | JPEGXL | ZFP
ENDLESS = [*JPEGXL, *ZFP]
"""Streams behind whose end there may be something, or before it something that is not read."""
TURNED_IMAGES = [name for name in IMAGES if "transposed" in name]
