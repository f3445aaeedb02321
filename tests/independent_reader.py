"""A reader of local zarr-v3 sets, written from ``docs/reference/formats/zarr-v3.md`` alone.

It shares no code with virtualds and uses no zarr: what it reads, the page has specified. Here is
what is the format's own: where the bytes of chunks lie, and where their values go. What bytes mean
(types, codecs, CF packing) is in `independent_decoding`.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard
from independent_decoding import (
    Unknown,
    decoded,
    dtype_of,
    fill_of,
    plain_pipeline,
)

RECORD = 100_000


class Set:
    """A set in a local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        document = json.loads((root / "zarr.json").read_bytes())
        assert document["attributes"]["virtualds"]["version"] == 1
        self.nodes: dict[str, Any] = document["consolidated_metadata"]["metadata"]
        self._held: dict[Path, Any] = {}

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
                manifest = self.once(folder / manifest, lambda path: json.loads(path.read_bytes()))
            dotted = ".".join(map(str, place)) or "0"
            return self.of_entries(
                manifest, f"{number}." * numbered + dotted, zarr_key(node, place)
            )
        assert transformer["name"] == "chunk-manifest-parquet"
        found, rest = None, 0
        for part in said["parts"]:
            inside = [i - o for i, o in zip(place, part["origin"], strict=True)]
            if part.get("fragment", 0) == number and all(
                0 <= i < n for i, n in zip(inside, part["shape"], strict=True)
            ):
                row = part["first"] + sum(
                    s * i for s, i in zip(part["strides"], inside, strict=True)
                )
                data, which = self.of_table(folder, part["table"], row)
                rest = part.get("pipelines", range(2**16))[which]
                # the last part that has the chunk counts
                found = data if data is not None else found
        return found, rest

    def of_entries(self, manifest: Any, dotted: str, key: str) -> tuple[bytes | None, int]:
        entry = manifest.get(dotted)
        prefixes = [] if entry else [p for p in manifest if p.endswith("/")]
        prefixes = [p for p in prefixes if key.startswith(p.removeprefix("./"))]
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
        if "begins" in table:
            record = bisect_right(table["begins"], number) - 1
            numbers: list[int] = []
            if record >= 0:
                path = folder / table["path"] / f"{record}.parquet"
                numbers = self.once(path, pq.read_table)["chunk"].to_pylist()
                assert numbers[0] == table["begins"][record]
            if number not in numbers:
                return None, 0
            number = record * RECORD + numbers.index(number)
        row = self.row(folder / table["path"], number)
        which = row["pipeline"] if table.get("pipelines") else 0
        if row["source"] == -1:
            return None, which
        if row["source"] == -2:
            return row["data"], which
        data = self.range(
            self.row(folder / table["sources"][0], row["source"])["path"],
            row["offset"],
            row["length"],
        )
        assert row.get("checksum", 0) in (0, 2**32 + zlib.crc32(data))
        return data, which

    def row(self, folder: Path, number: int) -> dict[str, Any]:
        table = self.once(folder / f"{number // RECORD}.parquet", pq.read_table)
        row: dict[str, Any] = table.slice(number % RECORD, 1).to_pylist()[0]
        return row

    def once(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """Return what a file lists, which takes longer to read than all that it lists."""
        if path not in self._held:
            self._held[path] = read(path)
        return self._held[path]

    def file(self, path: str) -> Path:
        if "://" in path and not path.startswith("file://"):
            raise Unknown(path)
        return self.root / path.removeprefix("file://")

    def range(self, path: str, offset: int, length: int | None) -> bytes:
        with self.file(path).open("rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)


def zarr_key(node: Any, place: Any) -> str:
    encoding = node["chunk_key_encoding"]
    if encoding["name"] == "virtualds.manifest":
        encoding = encoding["configuration"]["base_encoding"]
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
    if name == "virtualds.axes":
        return [([0] * len(shape), list(map(slabs_of, said["axes"])))], [plain_pipeline(node)]
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
    if "packed" in axis:
        data = zstandard.decompress(base64.b64decode(axis["packed"]))
        columns = np.frombuffer(data, axis["type"]).reshape(3, axis["slabs"]).tolist()
    else:
        columns = [
            [v for v, n in axis[name] for _ in range(n)] for name in ("lengths", "stored", "hidden")
        ]
    begins = np.cumsum([0, *columns[0]]).tolist()[:-1]
    return list(zip(begins, *columns, strict=True))


# ---------------------------------------------------------------------- types
