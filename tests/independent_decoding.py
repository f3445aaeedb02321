"""What the bytes of chunks mean, for `independent_reader`: types, codecs and CF packing.

It is slow, and refuses (`Unknown`) codecs and types that take more than Python, numpy and Arrow.
"""

from __future__ import annotations

import base64
import bz2
import zlib
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

UNITS = {"days": "D", "hours": "h", "minutes": "m", "seconds": "s"}
NUMBERS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


class Unknown(Exception):
    """Something that this reader does not know."""


def dtype_of(kind: Any) -> np.dtype[Any]:
    name = kind if isinstance(kind, str) else kind["name"]
    said = {} if isinstance(kind, str) else kind.get("configuration", {})
    if name in ("numpy.datetime64", "numpy.timedelta64"):
        return np.dtype(f"{name[6:]}[{said['scale_factor']}{said['unit']}]")
    if name in ("null_terminated_bytes", "raw_bytes"):
        return np.dtype(f"{'S' if name[0] == 'n' else 'V'}{said['length_bytes']}")
    if name == "virtualds.numpy":
        return numpy_dtype(said["dtype"])
    if name == "string":
        return np.dtype(object)
    if not name.startswith(("bool", "int", "uint", "float", "complex")):
        raise Unknown(name)
    return np.dtype(name)


def numpy_dtype(said: Any) -> np.dtype[Any]:
    if isinstance(said, str):
        return np.dtype(said)
    if isinstance(said, list):
        raise Unknown("fields of Zarr v2")
    names, kinds, shapes, offsets = zip(*said["members"], strict=True)
    formats = [(numpy_dtype(k), tuple(s)) for k, s in zip(kinds, shapes, strict=True)]
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": said["itemsize"]}
    )


def fill_of(value: Any, kind: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(kind, dict) and kind["name"] == "virtualds.numpy":
        return np.frombuffer(base64.b64decode(value), dtype)[0]
    if dtype.kind in "SV":
        return np.frombuffer(base64.b64decode(value).ljust(dtype.itemsize, b"\0"), dtype)[0]
    if dtype.kind == "c":
        return complex(*(NUMBERS.get(v, v) for v in value))
    if isinstance(value, str) and value.startswith("0x"):
        return np.frombuffer(bytes.fromhex(value[2:]), dtype.newbyteorder(">"))[0]
    return value if dtype.kind in "mMO" else NUMBERS.get(value, value)


# ---------------------------------------------------------------------- chunks


def plain_pipeline(node: Any) -> dict[str, Any]:
    """Return the codecs of plain Zarr as a pipeline."""
    dtype = dtype_of(node["data_type"])
    names = [codec["name"] for codec in node["codecs"]]
    if names[0] == "vlen-utf8":
        return {"dtype": dtype, "codecs": node["codecs"][1:], "fill": "", "layout": None}
    layout = list(range(len(node["shape"])))
    codecs = list(node["codecs"])
    while codecs[0]["name"] == "transpose":
        layout = [layout[i] for i in codecs.pop(0)["configuration"]["order"]]
    if codecs[0]["name"] != "bytes":
        raise Unknown(codecs[0]["name"])
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    stored = dtype.newbyteorder("<" if endian == "little" else ">")
    fill = np.full(1, fill_of(node["fill_value"], node["data_type"], dtype), stored)
    return {"dtype": stored, "codecs": codecs[1:], "fill": fill.tobytes(), "layout": layout}


def decoded(data: bytes | None, pipeline: Any, stored: list[int]) -> Any:
    """Return the elements of a chunk, hidden ones too, along the axes of the array."""
    dtype, layout, fill = pipeline["dtype"], pipeline["layout"], pipeline["fill"]
    if layout is None:
        return strings(data, pipeline["codecs"], stored)
    dtype = dtype if isinstance(dtype, np.dtype) else numpy_dtype(dtype)
    if data is None:
        fill = base64.b64decode(fill) if isinstance(fill, str) else fill or bytes(dtype.itemsize)
        values = np.full(stored, np.frombuffer(fill, dtype)[0], dtype)
    else:
        shape = [stored[e] if isinstance(e, int) else e["length"] for e in layout]
        size = prod(shape) * dtype.itemsize
        for codec in reversed(pipeline["codecs"]):
            data = undone(codec["name"], codec.get("configuration", {}), data, size)
        values = np.frombuffer(data, dtype).reshape(shape)
        flipped = pipeline.get("flipped", ())
        shown = {e: slice(None, None, -1 if e in flipped else 1) for e in range(len(stored))}
        values = values[(*(shown[e] if isinstance(e, int) else e["index"] for e in layout), ...)]
        values = values.transpose(np.argsort([e for e in layout if isinstance(e, int)]).tolist())
        values = values.reshape(stored)
    return unpacked(values, pipeline["packing"]) if "packing" in pipeline else values


def strings(data: bytes | None, codecs: Any, shape: list[int]) -> Any:
    if data is None:
        return np.full(shape, "", object)
    if codecs:
        raise Unknown(codecs[0]["name"])
    count, place, found = int.from_bytes(data[:4], "little"), 4, []
    for _ in range(count):
        length = int.from_bytes(data[place : place + 4], "little")
        found.append(data[place + 4 : place + 4 + length].decode())
        place += 4 + length
    return np.array(found, object).reshape(shape)


def undone(name: str, said: Any, data: bytes, size: int) -> bytes:
    if name == "numcodecs.zlib":
        return zlib.decompress(data)
    if name == "gzip":
        return zlib.decompress(data, 31)
    if name == "zstd":
        return bytes(pa.decompress(data, size, "zstd"))
    if name == "numcodecs.bz2":
        return bz2.decompress(data)
    if name == "numcodecs.fletcher32":
        return data[:-4]
    if name == "numcodecs.shuffle":
        return unshuffled(data, said["elementsize"])
    if name == "blosc":
        return unblosced(data)
    raise Unknown(name)


def unshuffled(data: bytes, width: int) -> bytes:
    whole = len(data) // width * width
    return np.frombuffer(data[:whole], "u1").reshape(width, -1).T.tobytes() + data[whole:]


def unblosced(data: bytes) -> bytes:
    """Undo Blosc's chunk format 2 with zstd, as sets have it: blocks, each of one or more pieces.

    A header of 16 bytes, of which bits are at byte 2, is followed by where each block begins.
    """
    bits, width = data[2], data[3]
    size, block = np.frombuffer(data[4:12], "<u4").tolist()
    if bits & 2:
        return data[16 : 16 + size]
    if bits & 4 or bits >> 5 != 4:
        raise Unknown("blosc")
    found = b""
    for place in np.frombuffer(data, "<u4", -(-size // block), 16).tolist():
        length = min(block, size - len(found))
        # one piece for each byte of an element, unless a bit says no, or the block is shorter
        count = 1 if bits & 16 or length < block else width
        pieces = b""
        for _ in range(count):
            stored = int.from_bytes(data[place : place + 4], "little")
            piece, place = data[place + 4 : place + 4 + stored], place + 4 + stored
            whole = stored == length // count
            pieces += piece if whole else bytes(pa.decompress(piece, length // count, "zstd"))
        found += unshuffled(pieces, width) if bits & 1 else pieces
    return found


# ---------------------------------------------------------------------- packing


def unpacked(values: Any, packing: Any) -> Any:
    kind, types = np.dtype(packing["dtype"]), packing["types"]
    found = {n: attribute(v, types.get(n)) for n, v in packing["attributes"].items()}
    if kind.kind in "mM":
        return times(values, found, kind)
    values = values.astype(values.dtype.newbyteorder("="))
    fills = [f for n in ("_FillValue", "missing_value") for f in np.ravel(found.get(n, ()))]
    sign = {("i", "true"): "u", ("u", "false"): "i"}.get(
        (values.dtype.kind, found.get("_Unsigned", ""))
    )
    if sign is not None:
        stored, other = values.dtype, np.dtype(f"{sign}{values.dtype.itemsize}")
        first = found.get("_FillValue")
        fills = [int(np.array(f, stored).view(other)) if f == first else f for f in fills]
        values = values.view(other)
    out = values.astype(kind)
    absent = np.zeros(out.shape, bool)
    for fill in fills:
        absent |= out == fill
    if absent.any():
        out[absent] = np.nan if kind.kind in "fc" else np.iinfo(np.int64).min
    for name, step in (("scale_factor", np.multiply), ("add_offset", np.add)):
        if name in found:
            out = step(out, np.ravel(found[name])[0]).astype(kind)
    return out


def attribute(value: Any, kind: str | None) -> Any:
    if kind is None or kind == "S":
        return value
    return np.array(NUMBERS.get(value, value) if isinstance(value, str) else value, kind)[()]


def times(values: Any, found: Any, kind: np.dtype[Any]) -> Any:
    unit, _, since = found["units"].partition(" since ")
    if found.get("calendar", "standard") not in ("standard", "proleptic_gregorian"):
        raise Unknown(found["calendar"])
    if found.keys() & {"_FillValue", "missing_value", "scale_factor", "add_offset"}:
        raise Unknown("packed times")
    step = np.timedelta64(1, UNITS[unit]).astype(f"m8[{np.datetime_data(kind)[0]}]").astype(int)
    counts = np.where(np.isfinite(values), values, 0)
    after = np.round(counts.astype("f8") * step) if counts.dtype.kind == "f" else counts * step
    passed = after.astype("i8").view(kind.str.replace("M", "m"))
    out = passed if kind.kind == "m" else np.datetime64(since.replace(" ", "T")) + passed
    return np.where(np.isfinite(values), out, np.array("NaT", kind)).astype(kind)
