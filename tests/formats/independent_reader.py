"""A reader of local zarr-v3 sets, written from ``docs/formats/zarr-v3.md`` alone.

It shares no code with virtualds and uses no zarr: what it reads, the page has specified. It is
slow, and refuses (`Unknown`) codecs and types that take more than Python, numpy and Arrow.
"""

from __future__ import annotations

import base64
import bz2
import json
import zlib
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RECORD = 100_000
UNITS = {"days": "D", "hours": "h", "minutes": "m", "seconds": "s"}
NUMBERS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


class Unknown(Exception):
    """Something that this reader does not know."""


class Set:
    """A set in a local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        document = json.loads((root / "zarr.json").read_bytes())
        assert document["attributes"]["virtualds"]["version"] == 1
        self.nodes: dict[str, Any] = document["consolidated_metadata"]["metadata"]

    def read(self, path: str) -> Any:
        """Return an array as it is stored; in one of fragments, packing is undone."""
        node = self.nodes[path]
        shape = tuple(node["shape"])
        fragments, pipelines = layout_of(node)
        dtype = dtype_of(node["data_type"])
        out = np.full(shape, fill_of(node["fill_value"], node["data_type"], dtype), dtype)
        for number, (start, axes) in enumerate(fragments):
            for place in product(*(range(len(axis)) for axis in axes)):
                data, which = self.chunk(path, node, number, place)
                slabs = [axis[i] for axis, i in zip(axes, place, strict=True)]
                values = decoded(data, pipelines[which], [stored for _, _, stored, _ in slabs])
                inner = tuple(slice(hid, hid + n) for _, n, _, hid in slabs)
                outer = tuple(
                    slice(s + a, s + a + n) for s, (a, n, _, _) in zip(start, slabs, strict=True)
                )
                out[(*outer, ...)] = values[(*inner, ...)]
        return out

    def chunk(self, path: str, node: Any, number: int, place: Any) -> tuple[bytes | None, int]:
        """Return the bytes of a chunk, None if it is missing, and the number of its pipeline."""
        folder = self.root / path
        if not node["storage_transformers"]:
            file = folder / zarr_key(node, place)
            return (file.read_bytes() if file.exists() else None), 0
        [transformer] = node["storage_transformers"]
        said = transformer["configuration"]
        if transformer["name"] == "chunk-manifest-json":
            numbered = node["chunk_grid"]["name"] == "virtualds.fragments"
            manifest = said["manifest"]
            if isinstance(manifest, str):
                manifest = json.loads((folder / manifest).read_bytes())
            dotted = ".".join(map(str, place)) or "0"
            return self.of_entries(
                manifest, f"{number}." * numbered + dotted, zarr_key(node, place)
            )
        assert transformer["name"] == "chunk-manifest-parquet"
        for part in said["parts"]:
            inside = [i - o for i, o in zip(place, part["origin"], strict=True)]
            if part.get("fragment", 0) == number and all(
                0 <= i < n for i, n in zip(inside, part["shape"], strict=True)
            ):
                row = part["first"] + sum(
                    s * i for s, i in zip(part["strides"], inside, strict=True)
                )
                data, which = self.of_table(folder, part["table"], row)
                return data, part.get("pipelines", range(2**16))[which]
        return None, 0

    def of_entries(self, manifest: Any, dotted: str, key: str) -> tuple[bytes | None, int]:
        entry = manifest.get(dotted)
        prefixes = [p for p in manifest if p.endswith("/") and key.startswith(p.removeprefix("./"))]
        if entry is None and prefixes:
            prefix = max(prefixes, key=len)
            file = self.file(manifest[prefix]["path"] + key[len(prefix.removeprefix("./")) :])
            return (file.read_bytes() if file.exists() else None), 0
        entry = entry or {}
        data = None
        if "data" in entry:
            data = base64.b64decode(entry["data"])
        elif "path" in entry:
            data = self.range(entry["path"], entry.get("offset", 0), entry.get("length"))
        if data is not None and "checksum" in entry:
            assert entry["checksum"] == f"crc32:{zlib.crc32(data):08x}"
        return data, entry.get("pipeline", 0)

    def of_table(self, folder: Path, table: Any, number: int) -> tuple[bytes | None, int]:
        row = row_of(folder / table["path"], number)
        which = row["pipeline"] if table.get("pipelines") else 0
        if row["source"] == -1:
            return None, which
        if row["source"] == -2:
            return row["data"], which
        data = self.range(
            row_of(folder / table["sources"][0], row["source"])["path"],
            row["offset"],
            row["length"],
        )
        assert row.get("checksum", 0) in (0, 2**32 + zlib.crc32(data))
        return data, which

    def file(self, path: str) -> Path:
        if "://" in path and not path.startswith("file://"):
            raise Unknown(path)
        return self.root / path.removeprefix("file://")

    def range(self, path: str, offset: int, length: int | None) -> bytes:
        with self.file(path).open("rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)


def row_of(folder: Path, number: int) -> dict[str, Any]:
    table = pq.read_table(folder / f"{number // RECORD}.parquet")
    row: dict[str, Any] = table.slice(number % RECORD, 1).to_pylist()[0]
    return row


def zarr_key(node: Any, place: Any) -> str:
    encoding = node["chunk_key_encoding"]
    default = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if default else ".")
    return separator.join(["c"] * default + list(map(str, place))) or "0"


# ---------------------------------------------------------------------- grids


def layout_of(node: Any) -> tuple[list[Any], list[Any]]:
    """Return fragments, each a start and the slabs of its axes, and pipelines."""
    name, said = node["chunk_grid"]["name"], node["chunk_grid"]["configuration"]
    shape = node["shape"]
    if name == "virtualds.fragments":
        [codec] = node["codecs"]
        fragments = [(f["start"], list(map(slabs_of, f["axes"]))) for f in said["fragments"]]
        return fragments, codec["configuration"]["pipelines"]
    lengths = said["chunk_shape"] if name == "regular" else said["chunk_shapes"]
    axes = [plain_slabs(n, cut) for n, cut in zip(shape, lengths, strict=True)]
    return [([0] * len(shape), axes)], [plain_pipeline(node)]


def plain_slabs(size: int, cut: Any) -> list[tuple[int, int, int, int]]:
    if isinstance(cut, int):
        cut = [[cut, -(-size // max(cut, 1))]]
    found, begin = [], 0
    for value, count in (item if isinstance(item, list) else [item, 1] for item in cut):
        for _ in range(count):
            if begin < size:
                found.append((begin, min(value, size - begin), value, 0))
            begin += value
    return found


def slabs_of(axis: Any) -> list[tuple[int, int, int, int]]:
    """Return what slabs show, from where on, how long they are stored, and what they hide."""
    if "size" in axis:
        size, chunk, hidden = axis["size"], axis["chunk"], axis["hidden"]
        count = -(-(hidden + size) // chunk) if size else 0
        edges = [min(max(i * chunk - hidden, 0), size) for i in range(count + 1)]
        stored = [chunk] * (count - 1) + [axis["last"]]
        return [
            (edges[i], edges[i + 1] - edges[i], stored[i], hidden if i == 0 else 0)
            for i in range(count)
        ]
    columns = [
        [v for v, n in axis[name] for _ in range(n)] for name in ("lengths", "stored", "hidden")
    ]
    begins = np.cumsum([0, *columns[0]]).tolist()[:-1]
    return list(zip(begins, *columns, strict=True))


# ---------------------------------------------------------------------- types


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
        values = values[(*(slice(None) if isinstance(e, int) else e["index"] for e in layout), ...)]
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
        width = said["elementsize"]
        whole = len(data) // width * width
        return np.frombuffer(data[:whole], "u1").reshape(width, -1).T.tobytes() + data[whole:]
    raise Unknown(name)


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
