"""Build the documents of a STAC collection, with an item for each entry of a catalogue.

Sources: STAC 1.1.0 (https://github.com/radiantearth/stac-spec), and its extensions datacube 2.2.0
and xarray-assets 1.0.0.
"""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, count
from typing import Any

import numpy as np

from virtualds.checks.catalog.entries import CatalogEntry, Extent
from virtualds.errors import CombineError

VERSION = "1.1.0"
EXTENSIONS = [
    "https://stac-extensions.github.io/datacube/v2.2.0/schema.json",
    "https://stac-extensions.github.io/xarray-assets/v1.0.0/schema.json",
]
MEDIA_TYPES = {
    "hdf5": "application/x-hdf5",
    "netcdf3": "application/netcdf",
    "tiff": "image/tiff",
    "grib": "application/x-grib",
    "fits": "application/fits",
    "kerchunk-json": "application/json",
    "kerchunk-parquet": "application/vnd.apache.parquet",
    "zarr-v3": "application/vnd.zarr; version=3",
    "zarr": "application/vnd.zarr",
    "cfa": "application/netcdf",
}
"""Media types of assets by format."""

Document = dict[str, Any]


def build_documents(
    entries: Sequence[CatalogEntry], id: str, description: str, license: str
) -> dict[str, Document]:
    """Return the items, followed by the collection, by their paths in the folder."""
    ids = _make_ids(entries)
    items = [_make_item(entry, item_id, id) for entry, item_id in zip(entries, ids, strict=True)]
    paths = [f"{item_id}/{item_id}.json" for item_id in ids]
    starts = [item["properties"]["start_datetime"] for item in items]
    stops = [item["properties"]["end_datetime"] for item in items]
    collection = {
        "type": "Collection",
        "stac_version": VERSION,
        "id": id,
        "description": description,
        "license": license,
        "extent": {
            "spatial": {"bbox": [_find_common_box([item["bbox"] for item in items])]},
            "temporal": {"interval": [[min(starts), max(stops)]]},
        },
        "links": [
            _link("root", "./collection.json"),
            *({**_link("item", f"./{path}"), "type": "application/geo+json"} for path in paths),
        ],
    }
    return {**dict(zip(paths, items, strict=True)), "collection.json": collection}


def _make_ids(entries: Sequence[CatalogEntry]) -> list[str]:
    """Return unique ids of entries, which are valid file names."""
    ids: dict[str, None] = {}
    for entry in entries:
        base = re.sub(r"[^\w-]+", "-", f"{entry.name}{entry.group}".strip("/"))
        candidates = chain([base], (f"{base}-{number}" for number in count(2)))
        ids[next(candidate for candidate in candidates if candidate not in ids)] = None
    return list(ids)


def _link(rel: str, href: str) -> dict[str, str]:
    return {"rel": rel, "href": href, "type": "application/json"}


def _make_item(entry: CatalogEntry, id: str, collection: str) -> Document:
    lon, lat, time = map(entry.find_extent, ("longitude", "latitude", "time"))
    if lon is None or lat is None or time is None:
        raise CombineError(f"{entry.place}: an item needs a longitude, a latitude and a time")
    west, east = to_longitudes(lon.start, lon.stop)
    box = [west, lat.start, east, lat.stop]
    start, stop = to_datetime(time.start), to_datetime(time.stop, is_end=True)
    properties: Document = {
        # null for a range of times
        "datetime": start if start == stop else None,
        "start_datetime": start,
        "end_datetime": stop,
        **({"title": entry.title} if entry.title else {}),
        **({"updated": to_datetime(entry.modified)} if entry.modified else {}),
        "cube:dimensions": {
            dim: _describe_dimension(dim, size, entry.extents.get(dim))
            for dim, size in entry.sizes.items()
        },
        "cube:variables": {
            name: {
                "dimensions": list(facts.dims),
                "type": "data",
                **({"description": facts.long_name} if facts.long_name else {}),
                **({"unit": facts.units} if facts.units else {}),
            }
            for name, facts in entry.variables.items()
        },
    }
    open_kwargs = {"engine": "virtual"} | ({} if entry.group == "/" else {"group": entry.group})
    media_type = MEDIA_TYPES.get(entry.format)
    asset = {
        "href": entry.path,
        **({"type": media_type} if media_type else {}),
        "roles": ["data"],
        "xarray:open_kwargs": open_kwargs,
    }
    return {
        "type": "Feature",
        "stac_version": VERSION,
        "stac_extensions": EXTENSIONS,
        "id": id,
        "collection": collection,
        "geometry": to_geometry(*box),
        "bbox": box,
        "properties": properties,
        "assets": {"data": asset},
        "links": [_link(rel, "../collection.json") for rel in ("root", "parent", "collection")],
    }


def _describe_dimension(dim: str, size: int, extent: Extent | None) -> Document:
    """Return a dimension of the datacube extension."""
    if extent is None:
        description = "positions; the dimension has no coordinate that was read"
        return {"type": "count", "extent": [0, max(size - 1, 0)], "description": description}
    if extent.calendar:
        ends = [to_datetime(extent.start), to_datetime(extent.stop, is_end=True)]
        description = f"calendar {extent.calendar}"
        return {"type": "temporal", "extent": ends, "description": description}
    ends = [extent.start, extent.stop]
    unit = {"unit": extent.units} if extent.units else {}
    if extent.axis == "vertical":
        return {"type": "spatial", "axis": "z", "extent": ends} | unit
    if extent.axis:
        axis = "x" if extent.axis == "longitude" else "y"
        return {"type": "spatial", "axis": axis, "extent": ends, "reference_system": 4326}
    if extent.values:
        return {"type": "label", "values": list(extent.values)}
    return {"type": "coordinate", "extent": ends} | unit


# ---------------------------------------------------------------------- bounding boxes and dates


def to_longitudes(start: float, stop: float) -> tuple[float, float]:
    """Return the west and east end of a range of longitudes, between -180 and 180.

    If the range crosses the antimeridian, west is greater than east (RFC 7946, section 5.2).

    Examples
    --------
    >>> to_longitudes(0, 359), to_longitudes(170, 190), to_longitudes(-20, 30)
    ((-180.0, 180.0), (170.0, -170.0), (-20.0, 30.0))
    """
    if start < -180 or stop > 180:
        if stop - start > 180:
            return -180.0, 180.0
        start, stop = ((value + 180) % 360 - 180 for value in (start, stop))
    return float(start), float(stop)


def to_geometry(west: float, south: float, east: float, north: float) -> Document:
    """Return a bounding box as a GeoJSON polygon, multipolygon, line or point."""
    if (west, south) == (east, north):
        return {"type": "Point", "coordinates": [west, south]}
    if west == east or south == north:
        return {"type": "LineString", "coordinates": [[west, south], [east, north]]}
    if west <= east:
        return {"type": "Polygon", "coordinates": [_make_ring(west, south, east, north)]}
    boxes = [_make_ring(west, south, 180.0, north)], [_make_ring(-180.0, south, east, north)]
    return {"type": "MultiPolygon", "coordinates": list(boxes)}


def _make_ring(west: float, south: float, east: float, north: float) -> list[list[float]]:
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def _find_common_box(boxes: Sequence[Sequence[float]]) -> list[float]:
    west, south, east, north = np.transpose(boxes)
    crosses_antimeridian = bool((west > east).any())
    is_global = crosses_antimeridian and len(boxes) > 1
    ends = (-180.0, 180.0) if is_global else (west.min(), east.max())
    return [float(ends[0]), float(south.min()), float(ends[1]), float(north.max())]


DATE = re.compile(r"(-?\d+)-(\d\d)-(\d\d)(?:[T ](\d\d:\d\d:\d\d)(\.\d+)?)?")


def to_datetime(text: str, *, is_end: bool = False) -> str:
    """Convert an ISO 8601 date of any calendar to RFC 3339, in UTC and the Gregorian calendar.

    A day that does not exist becomes the last day of its month. Fractions of a second are rounded
    to six digits: up with ``is_end``, otherwise down.

    Examples
    --------
    >>> to_datetime("2001-02-30"), to_datetime("2001-02-03T12:00:00.25")
    ('2001-02-28T00:00:00Z', '2001-02-03T12:00:00.250000Z')
    """
    match = DATE.match(text)
    if match is None or not 0 < int(match[1]) < 10_000:
        raise CombineError(
            f"{text}: dates of STAC have years from 1 to 9999; leave this group out of the "
            f"catalogue, or write to_esm"
        )
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    day = min(day, calendar.monthrange(year, month)[1])
    fraction = float(match[5] or 0) * 1e6
    microsecond = min(math.ceil(fraction) if is_end else math.floor(fraction), 999_999)
    time_of_day = datetime.fromisoformat(f"2000-01-01T{match[4] or '00:00:00'}")
    date = time_of_day.replace(year=year, month=month, day=day, microsecond=microsecond)
    return f"{date.isoformat()}Z"
