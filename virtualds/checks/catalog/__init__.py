"""Catalogues of the contents of sets and files, from metadata and coordinates.

A catalogue can be converted to a table, an intake-esm catalogue, or a STAC collection.
"""

from __future__ import annotations

import calendar
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count, takewhile
from typing import Any, Literal

import numpy as np
import pandas as pd

from virtualds.checks.catalog.entries import (
    AXIS_COLUMNS,
    COLUMNS,
    CatalogEntry,
    Extent,
    list_entries,
)
from virtualds.combine.ordering import Files, Paths, find_pattern
from virtualds.combine.report import make_left_out_section
from virtualds.combine.workers import LeftOut
from virtualds.datasets.location import SET_SUFFIXES, Location, find_existing_format
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import (
    CombineError,
    CombineWarning,
    FormatError,
    VirtualdsError,
    format_bytes,
    format_count,
    format_names,
    public,
    warn_user,
    without_secrets,
)
from virtualds.json_values import to_records
from virtualds.options import check_arguments, check_choice, get_options
from virtualds.pictures import Block, Heading, Report, Table
from virtualds.source_file import (
    StorageOptions,
    join_path,
    local_path,
    name_of,
    normalise_url,
    scheme_of,
)
from virtualds.stores import find_store
from virtualds.stores.access_rules import Allow
from virtualds.stores.listing import PathPattern, escape_pattern, find_entries, is_pattern
from virtualds.stores.store import explain_write_errors


@public
@dataclass(frozen=True, repr=False)
class Catalog(Report):
    """The contents of sets and files by group, as returned by `virtualds.catalog`.

    Parameters
    ----------
    entries : tuple of CatalogEntry
        The groups in the order of the sets or files.
    left_out : tuple of LeftOut
        Sets and files that could not be opened, with the reason.

    Examples
    --------
    >>> str(catalog("20*.nc")).splitlines()[0]
    '2 groups of 2 sets or files'
    """

    entries: tuple[CatalogEntry, ...]
    left_out: tuple[LeftOut, ...] = ()

    _title = "Catalogue"

    def __len__(self) -> int:
        return len(self.entries)

    def to_dataframe(self) -> pd.DataFrame:
        """Return a table with one row for each group.

        The columns are ``name``, ``path`` and ``group``, the names of the pattern, and then
        ``format``, ``variables`` (a list), ``sizes`` (a dict), ``time_start`` and ``time_end`` (ISO
        8601, in the calendar of the data), ``lon_min``, ``lon_max``, ``lat_min`` and ``lat_max``
        (as stored), ``files`` and ``bytes`` (number and size of source files), ``nbytes`` (of
        decoded values), ``snapshots`` (their number), and ``snapshot`` and ``modified`` (id and
        time of the newest one).

        Examples
        --------
        >>> catalog("20*.nc").to_dataframe()[["name", "time_start", "time_end"]]
              name  time_start    time_end
        0  2001.nc  2001-01-01  2001-12-01
        1  2002.nc  2002-01-01  2002-12-01
        """
        names = self._list_names()
        columns = [*COLUMNS[:3], *names, *COLUMNS[3:]]
        table = pd.DataFrame([entry.to_row() for entry in self.entries], columns=columns)
        counts = ("files", "bytes", "nbytes", "snapshots")
        ends = [name for axis in ("longitude", "latitude") for name in AXIS_COLUMNS[axis]]
        return table.astype(dict.fromkeys(counts, "Int64") | dict.fromkeys(ends, "float64"))

    def to_esm(
        self,
        url: str | os.PathLike[str],
        *,
        csv: bool = False,
        description: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an intake-esm catalogue.

        Open it with ``intake.open_esm_datastore(url)``, and its data with
        ``to_dataset_dict(xarray_open_kwargs={"engine": "virtual"})``. ``path`` in its table is the
        url of the set with the path of the group. Rows with equal values of all names of the
        pattern are joined along time. Columns without values are left out. A column of numbers
        becomes text if some rows have no number.

        Parameters
        ----------
        url : str or path
            The file to write or replace; its name must end in ``.json``.
        csv : bool, default False
            Whether to write the table as a separate CSV file. Then intake-esm needs
            ``columns_with_iterables=["variables"]``, and reads all other columns as text.
        description : str, optional
            A description of the contents.
        storage_options : dict, optional
            Access options of the target for fsspec.

        Raises
        ------
        ValueError
            The name does not end in ``.json``.

        Examples
        --------
        >>> catalog("20*.nc").to_esm("archive.json", csv=True)
        >>> import pandas as pd
        >>> pd.read_csv("archive.csv")["asset_format"].to_list()
        ['netcdf', 'netcdf']
        """
        target = normalise_url(url)
        if not target.endswith(".json"):
            raise ValueError(f"{target}: give the catalogue a name that ends in .json")
        stem = name_of(target).removesuffix(".json")
        table = self._build_esm_table()
        time_dims = Counter(
            name
            for entry in self.entries
            for name, extent in entry.extents.items()
            if extent.axis == "time"
        )
        joins = [
            {"type": "join_existing", "attribute_name": "time_start", "options": {"dim": name}}
            for name, _ in time_dims.most_common(1)
        ]
        rows = {"catalog_file": f"{stem}.csv"} if csv else {"catalog_dict": to_records(table)}
        document = {
            "esmcat_version": "0.1.0",
            "id": stem,
            "description": description or f"{self._summary}, listed by virtualds",
            "attributes": [
                {"column_name": name} for name in table if name not in ("path", "asset_format")
            ],
            "assets": {"column_name": "path", "format_column_name": "asset_format"},
            "aggregation_control": {
                "variable_column_name": "variables",
                # intake-esm cannot look up keys that consist of a single column
                "groupby_attrs": [*(self._list_names() or ["name"]), "group"],
                "aggregations": [{"type": "union", "attribute_name": "variables"}, *joins],
            },
            **rows,
        }
        texts = {f"{stem}.csv": table.to_csv(index=False)} if csv else {}
        texts[name_of(target)] = _to_json(document)
        _write(target.rpartition("/")[0], texts, storage_options)

    def _build_esm_table(self) -> pd.DataFrame:
        """Return the table with one type per column: intake-esm infers types from a few rows."""
        table = self.to_dataframe().assign(
            sizes=[json.dumps(entry.sizes) for entry in self.entries],
            path=[entry.place for entry in self.entries],
            asset_format=[_find_asset_format(entry) for entry in self.entries],
        )
        table = table.replace("", None).dropna(axis="columns", how="all")
        for name in table.columns[table.isna().any()]:
            table[name] = [("" if pd.isna(value) else str(value)) for value in table[name]]
        return table

    def to_stac(
        self,
        folder: str | os.PathLike[str],
        *,
        id: str | None = None,
        description: str | None = None,
        license: str = "other",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a STAC 1.1 collection: ``collection.json``, and an item for each group.

        Items have the datacube extension (dimensions with their extents, and variables), and an
        asset with the arguments of `xarray.open_dataset` (``xarray:open_kwargs``). Groups without
        a longitude, a latitude or a time have no item; a warning names them. Longitudes are
        converted to -180 to 180. Dates that do not exist in the Gregorian calendar, such as 30
        February, become the last day of the month.

        Parameters
        ----------
        folder : str or path
            The target folder. Existing files of the same names are replaced.
        id : str, optional
            Id of the collection, by default the name of the folder.
        description : str, optional
            A description of the contents.
        license : str, default "other"
            An SPDX identifier, such as ``"CC-BY-4.0"``.
        storage_options : dict, optional
            Access options of the target for fsspec.

        Raises
        ------
        ValueError
            No group has a longitude, a latitude and a time.

        Examples
        --------
        >>> catalog("20*.nc").to_stac("stac", license="CC-BY-4.0")  # doctest: +SKIP
        """
        target = normalise_url(folder)
        complete = [entry for entry in self.entries if not _list_missing_axes(entry)]
        incomplete = [
            f"{entry.place} has no {missing[0]}"
            for entry in self.entries
            if (missing := _list_missing_axes(entry))
        ]
        if not complete:
            names = format_names(incomplete, 3) or "the catalogue is empty"
            raise ValueError(
                f"{target}: an item of STAC needs a longitude, a latitude and a time, and no group "
                f"has all ({names}); give coordinates their standard_name, or write to_esm"
            )
        if incomplete:
            warn_user(f"{target}: left out of the collection: {format_names(incomplete, 5)}")
        description = description or f"{self._summary}, listed by virtualds"
        documents = build_documents(complete, id or name_of(target), description, license)
        texts = {path: _to_json(document) for path, document in documents.items()}
        _write(target, texts, storage_options)

    def _list_names(self) -> list[str]:
        return list(dict.fromkeys(name for entry in self.entries for name in entry.names))

    @property
    def _summary(self) -> str:
        groups, paths = len(self.entries), len({entry.path for entry in self.entries})
        noun = "set or file" if paths == 1 else "sets or files"
        return f"{format_count(groups, 'group')} of {paths:,} {noun}"

    def _iterate_blocks(self) -> Iterator[Block]:
        yield Heading(self._summary)
        names = self._list_names()
        head = ("name", "group", *names, "variables", "sizes", "time", "longitude", "latitude")
        rows = []
        for entry in self.entries:
            extents = [entry.find_extent(axis) for axis in AXIS_COLUMNS]
            row = (
                entry.name,
                entry.group,
                *(entry.names.get(name, "") for name in names),
                format_names(entry.variables, 3),
                " ".join(f"{dim} {size:,}" for dim, size in entry.sizes.items()),
                *(
                    "" if e is None else f"{_shorten(e.start)} to {_shorten(e.stop)}"
                    for e in extents
                ),
                "" if entry.files is None else f"{entry.files:,}",
                "" if entry.bytes is None else format_bytes(entry.bytes),
                "" if entry.snapshots is None else f"{entry.snapshots:,}",
            )
            rows.append(row)
        numbers = range(len(head), len(head) + 3)
        head = (*head, "files", "bytes", "snapshots")
        yield Table(head, rows, tuple(numbers), rest="to_dataframe() has all")
        yield make_left_out_section("Left out", self.left_out)


def _shorten(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _list_missing_axes(entry: CatalogEntry) -> list[str]:
    return [axis for axis in AXIS_COLUMNS if entry.find_extent(axis) is None]


NETCDF4_ENGINE_FORMATS = ("hdf5", "netcdf3")
"""Formats that xarray's engine netcdf4 also opens."""


def _find_asset_format(entry: CatalogEntry) -> str:
    """Return the format for which intake-esm passes a path that the engine can open.

    intake-esm opens remote files itself and passes file objects, except with ``opendap``. With
    ``reference`` it can open the root of kerchunk JSON without this engine.
    """
    if entry.format in NETCDF4_ENGINE_FORMATS and entry.group == "/":
        return "netcdf"
    is_reference = entry.format == "kerchunk-json" and entry.group == "/"
    return "reference" if is_reference else "opendap"


def _to_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _write(folder: str, texts: Mapping[str, str], options: Mapping[str, Any] | None) -> None:
    """Write files into a folder in their order; the last one refers to the others."""
    store, access = find_store(folder), StorageOptions.of(options)
    for name, text in texts.items():
        url = join_path(folder, name)
        with explain_write_errors(url):
            if scheme_of(url) == "file":
                os.makedirs(os.path.dirname(local_path(url)), exist_ok=True)
            store.write_all(url, text.encode(), access, replace=True)


# ---------------------------------------------------------------------- listing sets and files


@check_arguments()
def catalog(
    paths: Paths,
    *,
    tree: str | None = None,
    newest: str | None = None,
    on_error: Literal["raise", "skip", "collect"] = "raise",
    storage_options: Mapping[str, Any] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    allow: Allow = None,
) -> Catalog:
    """List the variables, sizes, extents, files and versions of sets and files, by group.

    Only metadata and coordinates are read: those that opening loads, and the longitudes and
    latitudes of curvilinear grids, up to 64 MB each.

    Parameters
    ----------
    paths : str or path, or list of them
        A set or a file; a folder of sets (files and folders with the suffix of a format); a pattern
        of sets or files, as in `open_virtual_mfdataset`; or several sets and files. The names of a
        pattern become columns.
    tree : str, optional
        A pattern of paths of groups, such as ``"/{model}/{variable}"``, as it was passed to
        `open_virtual_mfdatatree` or `sync`. Its names become columns, which are empty for groups
        that it does not match.
    newest : str, optional
        A name of the pattern, as in `open_virtual_mfdataset`: only the newest versions are listed.
    on_error : {"raise", "skip", "collect"}
        What to do with one of several sets and files that cannot be opened: raise an error; leave
        it out with a warning; or leave it out, with an entry in ``left_out``.
    storage_options : dict, optional
        Access options for fsspec.
    parser, parser_options, allow
        As in `open_virtual_dataset`.

    Returns
    -------
    Catalog
        A report, which ``to_dataframe()``, ``to_esm(...)`` and ``to_stac(...)`` convert.

    Raises
    ------
    FileNotFoundError
        There is no such set or file, or nothing matches the pattern.
    ValueError
        ``on_error`` is unknown, or a name of a pattern is that of another column.
    FormatError
        A folder contains no sets; or as `open_virtual_dataset`.

    Examples
    --------
    >>> catalog("{year:d}.nc").to_dataframe()["year"].to_list()
    ['2001', '2002']
    """
    check_choice("on_error", on_error, ("raise", "skip", "collect"))
    options = OpenOptions(
        parser=parser, on_error="keep", allow=allow, below=True, parser_options=parser_options
    )
    is_one = isinstance(paths, str | os.PathLike) and not is_pattern(os.fspath(paths))
    if isinstance(paths, str) and is_pattern(paths):
        access = StorageOptions.of(storage_options)
        files = Files(find_entries(paths, access), access, find_pattern(paths))
    else:
        files = Files.of(paths, storage_options)
    if newest is not None:
        files = files.select_newest(newest)
    groups = PathPattern(f"/{(tree or '').strip('/')}")
    names = [*(files.pattern.names if files.pattern else ()), *groups.names]
    column_counts = Counter([*COLUMNS, "asset_format", *names])
    if clashes := [name for name in names if column_counts[name] > 1]:
        raise ValueError(
            f"{{{clashes[0]}}}: the catalogue has a column of this name; give this part of the "
            f"pattern another name"
        )
    try:
        results = _list_all(files, groups, options, is_one or on_error == "raise")
    except (FileNotFoundError, FormatError):
        # the path may be a folder of sets
        if not is_one or not (sets := _find_sets(files)):
            raise
        results = _list_all(replace(files, nested=sets), groups, options, on_error == "raise")
    left_out = tuple(result for result in results if isinstance(result, LeftOut))
    if left_out and on_error == "skip":
        warn_user(
            f"left out of the catalogue: {format_names(map(str, left_out), 5)}", CombineWarning
        )
    entries = (entry for result in results if isinstance(result, list) for entry in result)
    return Catalog(tuple(entries), left_out)


EntriesOrError = list[CatalogEntry] | LeftOut
"""The entries of a set or file, or the reason why it cannot be opened."""


def _list_all(
    files: Files, groups: PathPattern, options: OpenOptions, raises: bool
) -> list[EntriesOrError]:
    """Return the entries of sets and files in order; remote ones are opened in threads."""
    folders = [normalise_url(file).rpartition("/")[0].split("/") for file in files.flat]
    levels = takewhile(lambda names: len({*names}) == 1, zip(*folders, strict=False))
    common_folder = "/".join(names[0] for names in levels)

    def list_one(number: int) -> EntriesOrError:
        location = Location.of_url(files.flat[number], files.options)
        try:
            entries = list_entries(location, options, common_folder, files.facts[number])
        except (VirtualdsError, OSError) as error:
            if raises:
                raise
            return LeftOut.of(without_secrets(location.url), error)
        return [
            replace(entry, names={**entry.names, **(groups.match(entry.group) or {})})
            for entry in entries
        ]

    numbers = range(len(files.flat))
    if not files.are_remote or len(numbers) < 2:
        return [list_one(number) for number in numbers]
    with ThreadPoolExecutor(min(len(numbers), get_options().max_requests)) as pool:
        tasks = [pool.submit(copy_context().run, list_one, number) for number in numbers]
        try:
            return [task.result() for task in tasks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _find_sets(files: Files) -> list[str]:
    """Return the urls of the sets in a folder, by their suffixes; an empty list for a file."""
    url = normalise_url(files.flat[0])
    if "::" in url:
        return []
    pattern = join_path(escape_pattern(url), f"*{{{','.join(SET_SUFFIXES)}}}")
    urls = list[str]()
    with suppress(OSError):
        urls = find_entries(pattern, files.options)
    return [
        set_url for set_url in urls if find_existing_format(Location.of_url(set_url, files.options))
    ]


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
    # ids are unique, and valid names of files
    ids: dict[str, None] = {}
    for entry in entries:
        base = re.sub(r"[^\w-]+", "-", f"{entry.name}{entry.group}".strip("/"))
        candidates = chain([base], (f"{base}-{number}" for number in count(2)))
        ids[next(candidate for candidate in candidates if candidate not in ids)] = None
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
            _make_link("root", "./collection.json"),
            *(
                {**_make_link("item", f"./{path}"), "type": "application/geo+json"}
                for path in paths
            ),
        ],
    }
    return {**dict(zip(paths, items, strict=True)), "collection.json": collection}


def _make_link(rel: str, href: str, media_type: str = "application/json") -> dict[str, str]:
    return {"rel": rel, "href": href, "type": media_type}


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
        "links": [
            _make_link(rel, "../collection.json") for rel in ("root", "parent", "collection")
        ],
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
