"""The chunk manifests of a set, as lazy manifests over its tables.

``docs/reference/formats/zarr-v3.md`` specifies the forms, after the "Manifest storage transformer"
proposal (zarr-specs issue 287). Opening a set reads only manifests in the metadata; other
references are read on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import TiledReferences, have_overlap
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.document import ChunkKeys
from virtualds.formats.zarr.v3_arrays import ManifestPart, check_extras
from virtualds.formats.zarr_manifests.json_table import JsonTable
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable, SourceTable, read_counts
from virtualds.formats.zarr_manifests.set_files import SetFiles, to_set_path

JSON_MANIFEST, PARQUET_MANIFEST = "chunk-manifest-json", "chunk-manifest-parquet"
"""Names of the storage transformers."""
PART = ("fragment", "origin", "shape", "first", "strides", "pipelines", "table")
ENTRIES = ("fragment", "origin", "shape", "manifest", "sources")
"""Keys of a part whose references stand in the metadata."""
TABLE = ("path", "rows", "chunks", "begins", "sources", "pipelines", "counts")
"""Keys of a part of a manifest, and of its table: readers know all of them."""


def read_parts(
    files: SetFiles,
    folder: str,
    transformer: Mapping[str, Any],
    grids: list[tuple[int, ...]],
    numbered: int,
    key: ChunkKeys,
) -> list[ManifestPart]:
    """Return the chunks of the array in a folder from its storage transformer.

    ``grids`` are the chunks per axis of every fragment; ``numbered`` is the number of pipelines of
    an array of fragments, whose keys name the fragment, else 0; ``key`` names chunks, for prefixes.
    """
    name, said = transformer.get("name"), transformer.get("configuration", {})
    if name == PARQUET_MANIFEST:
        check_extras(said, {"parts"})
        found = [_read_part(files, folder, part, grids, numbered, key) for part in said["parts"]]
        return _lay_parts(found, grids, max(numbered, 1))
    if name != JSON_MANIFEST:
        raise UnsupportedError(
            f"storage transformer {name!r}: {JSON_MANIFEST!r} and {PARQUET_MANIFEST!r} are "
            f"known; a newer virtualds may know it"
        )
    check_extras(said, {"manifest", "sources"})
    manifest = said["manifest"]
    if isinstance(manifest, str):
        manifest = to_set_path(folder, manifest)
    known = said.get("sources")
    if isinstance(known, str):
        known = to_set_path(folder, known)
    tables = (
        JsonTable(files, manifest, grid, f"{n}." if numbered else "", key, known, numbered)
        for n, grid in enumerate(grids)
    )
    return [ManifestPart(n, (0,) * len(t.grid), t.to_manifest()) for n, t in enumerate(tables)]


def _read_part(
    files: SetFiles,
    folder: str,
    part: Mapping[str, Any],
    grids: list[tuple[int, ...]],
    numbered: int,
    key: ChunkKeys,
) -> ManifestPart:
    is_table = "table" in part
    check_extras(part, PART if is_table else ENTRIES)
    fragment = _check_naturals([part.get("fragment", 0)])[0]
    shape, origin = _check_naturals(part["shape"]), _check_naturals(part["origin"])
    if fragment >= len(grids):
        raise FormatError(
            f"{folder}: chunks of fragment {fragment} of {len(grids)}; the set is damaged, "
            f"write it anew"
        )
    grid = grids[fragment]
    if len(origin) != len(grid) or any(
        o + n > g for o, n, g in zip(origin, shape, grid, strict=True)
    ):
        raise FormatError(f"{folder}: chunks {shape} at {origin} lie outside the grid {grid}")
    if not is_table:
        listed = JsonTable(files, part["manifest"], shape, "", key, part.get("sources"), numbered)
        return ManifestPart(fragment, origin, ChunkManifest.of_table(listed, shape))
    said = part["table"]
    check_extras(said, TABLE)
    renumbered = part.get("pipelines")
    numbers = None if renumbered is None else _check_naturals(renumbered)
    if (numbers and max(numbers) >= numbered) or (said.get("pipelines") and not numbered):
        raise FormatError(f"{folder}: pipelines {renumbered!r:.80} of {numbered}")
    is_placed = "begins" in said
    table = ParquetTable(
        files,
        to_set_path(folder, said["path"]),
        _check_naturals([said["chunks" if is_placed else "rows"]])[0],
        read_source_table(folder, said["sources"], files.ranges),
        bool(said.get("pipelines", False)),
        max(numbered, 1) if numbers is None else len(numbers),
        read_counts(said.get("counts")),
        _check_naturals(said["begins"]) if is_placed else None,
    )
    strides, first = _check_integers(part["strides"]), _check_naturals([part["first"]])[0]
    ends = [s * max(n - 1, 0) for s, n in zip(strides, shape, strict=True)]
    low, high = (first + sum(f(e, 0) for e in ends) for f in (min, max))
    if not is_placed and 0 not in shape and not 0 <= low <= high < table.rows:
        raise FormatError(f"{folder}: its chunks count rows {low} to {high} of {table.rows}")
    return ManifestPart(
        fragment, origin, ChunkManifest.of_table(table, shape, strides, first, numbers)
    )


def _lay_parts(
    parts: list[ManifestPart], grids: list[tuple[int, ...]], pipelines: int
) -> list[ManifestPart]:
    """Return parts of which none lie over each other: one for each fragment where some do.

    Of those the last one that has a chunk counts.
    """

    def lies_over(part: ManifestPart) -> bool:
        # it has numbered chunks, or chunks of others among its entries
        table = part.manifest.table
        if isinstance(table, ParquetTable):
            return table.begins is not None
        others = (one for one in parts if one is not part and one.fragment == part.fragment)
        return any(have_overlap(part[1:], one[1:]) for one in others)

    layered = {part.fragment for part in parts if lies_over(part)}
    found = [part for part in parts if part.fragment not in layered]
    for fragment in sorted(layered):
        own = [part for part in parts if part.fragment == fragment]
        found.append(_lay_fragment(own, grids[fragment], pipelines))
    return found


def _lay_fragment(parts: list[ManifestPart], grid: tuple[int, ...], count: int) -> ManifestPart:
    used = {n for part in parts for n in part.manifest.used_pipelines(count).tolist()}
    if len(used) != 1:
        raise FormatError(
            f"chunks of fragment {parts[0].fragment} lie over each other and are decoded in "
            f"{len(used)} ways; the set is damaged"
        )
    layers = tuple((p.origin, p.manifest.with_pipelines([0] * count)) for p in parts)
    whole = ChunkManifest.of_table(TiledReferences(grid, layers), grid)
    return ManifestPart(parts[0].fragment, (0,) * len(grid), whole.with_pipelines([used.pop()]))


def list_parts(nodes: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts of the manifests of all arrays, as metadata say them, with their arrays."""
    for folder, node in nodes.items():
        for transformer in node.get("storage_transformers") or ():
            said = transformer["configuration"]
            for part in [said] if transformer["name"] == JSON_MANIFEST else said["parts"]:
                yield folder, part


def read_source_table(
    folder: str, said: Any, ranges: Mapping[str, Any] | None = None
) -> SourceTable:
    """Return the table of files that the metadata of an array name."""
    path, count = to_set_path(folder, said[0]), said[1]
    known = tuple((str(first), str(last)) for first, last in (ranges or {}).get(path, ()))
    return SourceTable(path, _check_naturals([count])[0], known)


def _check_integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(type(n) is not int for n in values):
        raise FormatError(f"{values!r:.80} are not integers; the set is damaged")
    return tuple(values)


def _check_naturals(values: Any) -> tuple[int, ...]:
    if any(n < 0 for n in _check_integers(values)):
        raise FormatError(f"{values!r:.80} are below 0; the set is damaged")
    return tuple(values)


def build_json_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the storage transformer of a manifest in the metadata."""
    return {"name": JSON_MANIFEST, "configuration": {"manifest": manifest}}
