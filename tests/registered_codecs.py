"""Chunks as the codecs of the registry zarr-extensions lay them down, worked out number by number.

Every case is an array of two chunks of which the first is there: its bytes, and the values that
they stand for. What is expected is reckoned with Python's integers and numpy's scalars.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from zarr_stores import BIG, LITTLE, PLAIN, Store, named, v3

NAN, INF = np.nan, np.inf
FLOATS = (0.0, -0.0, 1.0, -2.5, 0.1, 1e-7, 3e4, NAN, INF, -INF)


@dataclass(frozen=True)
class Case:
    """An array, the bytes of its first chunk, and the values of that."""

    store: Store
    chunk: bytes
    values: Any

    @property
    def expected(self) -> Any:
        """All of the array: the chunk that is there, and fill values."""
        spelled = self.store.array["fill_value"]
        fill = complex(*spelled) if isinstance(spelled, list) else float(spelled)
        return np.concatenate([self.values, np.full_like(self.values, fill)])

    def write(self, path: Path, **changes: Any) -> Path:
        """Write the store; the array is called ``a``."""
        folder = path / "a/c" / "/".join("0" * self.values.ndim)
        folder.parent.mkdir(parents=True)
        folder.write_bytes(self.chunk)
        group = {"zarr_format": 3, "node_type": "group"}
        (path / "zarr.json").write_text(json.dumps(group))
        (path / "a/zarr.json").write_text(json.dumps(self.store.array | changes))
        return path


def case(values: Any, stored: Any, *codecs: Any, fill: Any = 0, chunk: bytes | None = None) -> Case:
    """An array of values, and the numbers that are stored for them, in the order of their bytes."""
    values, stored = np.asarray(values), np.asarray(stored)
    shape = (2 * values.shape[0], *values.shape[1:])
    store = v3(values.dtype.name, fill, *codecs, shape=shape, chunks=values.shape)
    return Case(store, stored.tobytes() if chunk is None else chunk, values)


# ---------------------------------------------------------------------- scale_offset


def scaled(
    dtype: str, offset: Any, scale: Any, stored: Sequence[Any], endian: Any = LITTLE, fill: Any = 0
) -> Case:
    """Numbers that were stored as ``(x - offset) * scale``."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        o, s = (kind.newbyteorder("=").type(float(one)) for one in (offset, scale))
        with np.errstate(all="ignore"):
            shown = [x / s + o for x in np.asarray(stored, kind.newbyteorder("="))]
    else:
        assert all(x % scale == 0 for x in stored)
        shown = [x // scale + offset for x in stored]
    values = np.array(shown, kind.newbyteorder("="))
    filter_ = named("scale_offset", offset=offset, scale=scale)
    return case(values, np.array(stored, kind), filter_, endian, fill=fill)


HALVES = np.arange(0x10000, dtype="u2").view("f2")
SCALED = {
    "scaled float32": scaled("<f4", 5, 0.1, FLOATS, fill="NaN"),
    "scaled float32, big-endian": scaled(">f4", -273.15, 100, FLOATS, BIG),
    "scaled float64": scaled("<f8", 0.1, 0.3, (*FLOATS, 1e308, 5e-324)),
    "scaled float16": scaled("<f2", 0.1, 3, HALVES[np.isfinite(HALVES)][::61].tolist()),
    "scaled to infinity": scaled("<f4", 0, 1e-30, (1e30, -1e30, 1.0)),
    "scaled int8": scaled("|i1", 27, 2, (-128, -2, 0, 126), PLAIN),
    "scaled int16": scaled("<i2", -100, -3, (-32766, -3, 0, 32766), fill=7),
    "scaled int32, big-endian": scaled(">i4", 2**31 - 1, 1, (-(2**31), -1, 0), BIG),
    "scaled int64": scaled("<i8", -1, -1, (-(2**63), 0, 2**63 - 1)),
    "scaled uint8": scaled("|u1", 250, 51, (0, 51, 255), PLAIN),
    "scaled uint64": scaled("<u8", 2**64 - 6, 3, (0, 3, 15)),
    "scaled uint64 of all bits": scaled("<u8", 0, 1, (0, 2**63, 2**64 - 1)),
}
SCALED["scaled, in hexadecimal digits"] = case(
    np.array([5.0, 9.0], "f4"),
    np.array([0.0, 1.0], "f4"),
    named("scale_offset", offset="0x40a00000", scale="0x3e800000"),
    LITTLE,
)
SCALED["scaled by nothing"] = case(
    np.array([5.0, NAN]), np.array([5.0, NAN]), named("scale_offset"), LITTLE
)

# ---------------------------------------------------------------------- cast_value


def cast(values: Any, stored: Any, *behind: Any, **how: Any) -> Case:
    """Numbers that were stored as another type."""
    stored = np.asarray(stored)
    filter_ = named("cast_value", data_type=stored.dtype.name, **how)
    return case(values, stored, filter_, *(behind or (LITTLE,)))


TIES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.25, -2.75])
ROUNDED = {
    "nearest-even": [-2, -2, 0, 0, 2, 2, 2, -3],
    "towards-zero": [-2, -1, 0, 0, 1, 2, 2, -2],
    "towards-positive": [-2, -1, 0, 1, 2, 3, 3, -2],
    "towards-negative": [-3, -2, -1, 0, 1, 2, 2, -3],
    "nearest-away": [-3, -2, -1, 1, 2, 3, 2, -3],
}
WIDE = np.array([2**53 + 1, -(2**53) - 1, 2**63 - 1], "i8")
NARROW = np.array([0.1, -0.1, 16777217.0])
"""float32 has 0x3dcccccc and 0x3dcccccd around 0.1; 16777216 and 16777218 around the last."""
UP, DOWN = 0x3DCCCCCD, 0x3DCCCCCC
LOW = 1 << 31
NARROWED = {
    "nearest-even": [UP, UP | LOW, 0x4B800000],
    "towards-zero": [DOWN, DOWN | LOW, 0x4B800000],
    "towards-positive": [UP, DOWN | LOW, 0x4B800001],
    "towards-negative": [DOWN, UP | LOW, 0x4B800000],
    "nearest-away": [UP, UP | LOW, 0x4B800001],
}
ENDS, FEW = (-32768, 0, 32767), (NAN, INF, -0.0, 0.5)
CAST = {
    "cast from int16": cast(np.array(ENDS, "f4"), np.array(ENDS, "i2")),
    "cast from int16, big-endian": cast(np.array(ENDS, "f8"), np.array(ENDS, ">i2"), BIG),
    "cast from float32": cast(np.array(FEW, "f8"), np.array(FEW, "f4")),
    "cast from float32 to bytes in either order": cast(
        np.array([1, 255], "u1"), np.array([1, 255], ">f4"), BIG
    ),
    "cast to itself": cast(np.array([NAN, 3.0]), np.array([NAN, 3.0]), rounding="towards-zero"),
    **{
        f"cast and rounded {way}": cast(np.array(found, "i2"), TIES, rounding=way)
        for way, found in ROUNDED.items()
    },
    **{
        f"cast to float32 {way}": cast(np.array(found, "u4").view("f4"), NARROW, rounding=way)
        for way, found in NARROWED.items()
    },
    "cast from int64": cast(np.array([2.0**53, -(2.0**53), 2.0**63]), WIDE),
    "cast from int64 upwards": cast(
        np.array([2.0**53 + 2, -(2.0**53), 2.0**63]), WIDE, rounding="towards-positive"
    ),
    "cast and clamped": cast(
        np.array([255, 0, 255, 0, 3], "u1"),
        np.array([300, -1, 2**31 - 1, -(2**31), 3], "i4"),
        out_of_range="clamp",
    ),
    "cast and wrapped": cast(
        np.array([44, 255, 0, 128], "u1"),
        np.array([300, -1, -(2**31), 128], ">i4"),
        BIG,
        out_of_range="wrap",
    ),
    "cast and clamped to infinity": cast(
        np.array([INF, -INF, 1.0], "f4"), np.array([1e300, -1e300, 1.0]), out_of_range="clamp"
    ),
    "cast, where no number is one": cast(
        np.array([0.0, NAN, INF, 254.0], "f4"),
        np.array([0, 255, 253, 254], "u1"),
        PLAIN,
        scalar_map={"encode": [["NaN", 255], ["Infinity", 253]],
                    "decode": [[255, "NaN"], [253, "Infinity"]]},
    ),
    "cast, where only encoding maps": cast(
        np.array([0.0, 255.0]),
        np.array([0, 255], "u1"),
        PLAIN,
        scalar_map={"encode": [["NaN", 255]]},
    ),
    "cast, where no number is an integer": cast(
        np.array([-9, 3, -9], "i8"),
        np.array([NAN, 3, NAN], "f4"),
        scalar_map={"decode": [["NaN", -9]]},
    ),
}  # fmt: skip

# ---------------------------------------------------------------------- packbits


def fields(
    values: Any, padding: str | None = None, first: int = 0, last: int | None = None
) -> bytes:
    """Return the bits of numbers side by side, as one integer."""
    values = np.asarray(values)
    size = values.dtype.itemsize // (2 if values.dtype.kind == "c" else 1)
    numbers = values.reshape(-1).view(f"u{size}").tolist()
    top = (0 if values.dtype.kind == "b" else 8 * size - 1) if last is None else last
    width = top - first + 1
    parts = [(n >> first) & ((1 << width) - 1) for n in numbers]
    whole = int("".join(f"{part:0{width}b}" for part in reversed(parts)), 2)
    length = -(-len(numbers) * width // 8)
    said = bytes([8 * length - len(numbers) * width])
    found = whole.to_bytes(length, "little")
    return {"first_byte": said + found, "last_byte": found + said}.get(padding or "none", found)


def packed(values: Any, *behind: Any, **how: Any) -> Case:
    values = np.asarray(values)
    places = {"padding_encoding": "padding", "first_bit": "first", "last_bit": "last"}
    told = {places[name]: value for name, value in how.items() if value is not None}
    fill = [0, 0] if values.dtype.kind == "c" else 0
    filter_ = named("packbits", **how)
    return case(values, 0, filter_, *behind, fill=fill, chunk=fields(values, **told))


TRUTH = np.arange(21) % 3 == 0
BITS = np.random.default_rng(3).integers(0, 256, 8 * 37, "u1")
PACKED = {
    "packed bool": packed(TRUTH),
    "packed bool, counted first": packed(TRUTH, padding_encoding="first_byte"),
    "packed bool, counted last": packed(TRUTH, padding_encoding="last_byte"),
    "packed bool of whole bytes": packed(TRUTH[:16], padding_encoding="last_byte"),
    "packed bool in two dimensions": packed(TRUTH.reshape(3, 7), padding_encoding="none"),
    "packed uint8": packed(np.arange(16, dtype="u1") % 8, last_bit=2),
    "packed uint8 of many": packed((np.arange(70_000) % 29).astype("u1"), last_bit=4),
    "packed uint16": packed(np.arange(0, 4096, 97, dtype="u2"), last_bit=11),
    "packed uint16 of higher bits": packed(
        np.arange(0, 4096, 16, dtype="u2"), first_bit=4, last_bit=11),
    "packed int8": packed(np.arange(-4, 4, dtype="i1"), first_bit=None, last_bit=2),
    "packed int16 of higher bits": packed(
        np.arange(-512, 512, 4, dtype="i2"), first_bit=2, last_bit=9),
    "packed int32": packed(np.array([-(2**18), 2**18 - 1, -1], "i4"), last_bit=18),
    "packed int64": packed(np.array([-(2**62), 2**62 - 1, -1, 0, 1], "i8"), last_bit=62),
    "packed uint64": packed(np.array([2**64 - 2, 0, 2**63], "u8"), first_bit=1),
    "packed float32 whole": packed(np.array(FLOATS, "f4")),
    "packed float32 whole, counted": packed(np.array(FLOATS, "f4"), padding_encoding="first_byte"),
    "packed float64 of fewer digits": packed(
        (BITS.view("u8") & (2**64 - 2**40)).view("f8"), first_bit=40),
    "packed complex64": packed(np.array([1 + 2j, -1j, 3], "c8"), first_bit=16),
    "packed bits of one": packed(np.array([0, 8, 8, 0], "u2"), first_bit=3, last_bit=3),
}  # fmt: skip

# ---------------------------------------------------------------------- chains

TURNED = named("transpose", order=[1, 0])
GRID = np.arange(12, dtype="i2").reshape(3, 4)
TENTHS = [named("scale_offset", offset=-5, scale=10), named("cast_value", data_type="int16")]


def tenths(stored: Any, dtype: str) -> Any:
    """Values of tenths above -5, in the arithmetic of their type."""
    kind = np.dtype(dtype)
    return stored.astype(kind) / kind.type(10) + kind.type(-5)


CHAINS = {
    "tenths": case(tenths(GRID, "f4"), GRID, *TENTHS, LITTLE, fill=7),
    "tenths, big-endian": case(tenths(GRID, "f8"), GRID.astype(">i2"), *TENTHS, BIG),
    "tenths, transposed before": case(tenths(GRID, "f4"), GRID.T, TURNED, *TENTHS, LITTLE),
    "tenths, transposed between": case(
        tenths(GRID, "f4"), GRID.T.astype(">i2"), TENTHS[0], TURNED, TENTHS[1], BIG
    ),
    "cast and packed": case(
        GRID.astype("f8"),
        0,
        named("cast_value", data_type="uint16"),
        named("packbits", last_bit=4),
        chunk=fields(GRID.view("u2"), last=4),
    ),
    "packed and transposed": case(
        GRID.view("u2"),
        0,
        TURNED,
        named("packbits", last_bit=3),
        chunk=fields(np.ascontiguousarray(GRID.T).view("u2"), last=3),
    ),
    "rounded bits": case(np.array([1.5, -3.0], "f4"), np.array([1.5, -3.0], ">f4"),
                         named("bitround", keepbits=3), BIG),
    "rounded bits of integers": case(np.array([96, -6], "i4"), np.array([96, -6], "i4"),
                                     named("bitround", keepbits=3), LITTLE),
}  # fmt: skip

REGISTERED = SCALED | CAST | PACKED | CHAINS
