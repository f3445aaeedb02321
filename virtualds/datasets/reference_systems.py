"""Coordinate reference systems of variables, which must be one where data are joined.

A variable names its grid mapping, and the attributes of the grid mapping say which system it is
(CF conventions 1.12, section 5.6 and appendix F). Its value means nothing, so that comparing values
finds two systems equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from virtualds.datasets.source_positions import urls_of
from virtualds.errors import CombineError

KINDS = ("grid_mapping_name", "sweep_angle_axis", "fixed_angle_axis")
NUMBERS = (
    *("azimuth_of_central_line", "earth_radius", "false_easting", "false_northing"),
    *("grid_north_pole_latitude", "grid_north_pole_longitude", "inverse_flattening"),
    *("latitude_of_projection_origin", "longitude_of_central_meridian"),
    *("longitude_of_prime_meridian", "longitude_of_projection_origin"),
    *("north_pole_grid_longitude", "perspective_point_height"),
    *("scale_factor_at_central_meridian", "scale_factor_at_projection_origin"),
    *("semi_major_axis", "semi_minor_axis", "standard_parallel"),
    *("straight_vertical_longitude_from_pole", "towgs84"),
)
TITLES = (
    *("projected_crs_name", "geographic_crs_name", "horizontal_datum_name"),
    *("reference_ellipsoid_name", "prime_meridian_name"),
    *("geoid_name", "geopotential_datum_name"),
)
TEXTS = ("crs_wkt", "spatial_ref", "proj4", "proj4_params")
"""Attributes with the whole system as text: that of the CF conventions, of GDAL, and of PROJ."""
CODES = ("epsg_code", "srid")
"""Attributes with the code of the whole system."""
SYSTEM_ATTRIBUTES = frozenset((*KINDS, *NUMBERS, *TITLES, *TEXTS, *CODES))
"""Attributes of a grid mapping that say which system it is."""

TOLERANCE = 1e-10
"""Difference of equal numbers: programs write the flattening with 12 or more digits.

It is relative, and absolute near 0.
"""
SHORT_TOLERANCE = 1e-7
"""The relative difference of numbers of 32 bits."""
CODE = re.compile(
    r"""(?:ID|AUTHORITY)\["([^"]+)",\s*"?([^",\[\]]+)"?(?:,[^\[\]]*)?\s*\]\s*\]\s*$"""
)
"""The code of a whole system, which ends its text; the version of the code may follow it."""
PLAIN_CODE = re.compile(r"(?:urn:ogc:def:crs:)?([A-Za-z]+):(?:[\d.]*:)?(\w+)")
"""A code alone, or its URN."""
TITLE = re.compile(r"""^\s*\w+\["([^"]+)\"""")

System = Mapping[str, Any]
"""The attributes of a grid mapping."""
Systems = Mapping[tuple[str, int], System]
"""Systems by the variable that names them, or that holds them; a variable may name several."""


def list_systems(dataset: xr.Dataset) -> dict[tuple[str, int], System]:
    """Return the reference systems of the variables of a dataset.

    Examples
    --------
    >>> attributes = {"grid_mapping_name": "latitude_longitude"}
    >>> found = xr.Dataset({"t": ("x", [1.0], {"grid_mapping": "crs"}), "crs": ((), 0, attributes)})
    >>> sorted(list_systems(found))
    [('crs', 0), ('t', 0)]
    """
    naming = "grid_mapping"
    return find_systems(
        {n: {naming: v.encoding.get(naming), **v.attrs} for n, v in dataset.variables.items()}
    )


def find_systems(attributes: Mapping[Any, Mapping[Any, Any]]) -> dict[tuple[str, int], System]:
    """Return the reference systems of variables, of which the attributes are given."""
    found: dict[tuple[str, int], System] = {}
    for name, given in attributes.items():
        if not given.keys().isdisjoint(SYSTEM_ATTRIBUTES):
            found[str(name), 0] = given
        for number, mapping in enumerate(_list_mappings(given.get("grid_mapping"))):
            if mapping in attributes:
                found[str(name), number] = attributes[mapping]
    return found


def select_system(attributes: System) -> System:
    """Return the attributes that say which system a variable has."""
    return {name: v for name, v in attributes.items() if name in SYSTEM_ATTRIBUTES}


def _list_mappings(text: Any) -> list[str]:
    """Return the names of grid mappings in an attribute.

    >>> _list_mappings("crs"), _list_mappings("crs: x y geographic: lat lon")
    (['crs'], ['crs', 'geographic'])
    """
    words = text.split() if isinstance(text, str) else []
    named = [word[:-1] for word in words if word.endswith(":")]
    return named or words[:1]


def check_one_system(files: Mapping[str, Systems]) -> None:
    """Refuse files of several reference systems, by the names of the files."""
    first: dict[tuple[str, int], tuple[str, System]] = {}
    for file, systems in files.items():
        for key, system in systems.items():
            known, before = first.setdefault(key, (file, system))
            if before is not system and (difference := describe_difference(before, system)):
                one, other = difference
                raise CombineError(
                    f"{file}: the coordinate reference system of {key[0]!r} is {other}, and "
                    f"{one} in {known}; open the files of each system apart, or reproject the "
                    f"files to one system first"
                )


def check_systems_of_set(known: Systems, new: xr.Dataset, systems: Systems | None = None) -> None:
    """Refuse a dataset of another reference system than a set, of which the systems are ``known``.

    ``systems`` are those that the set would have with the dataset; by default those of the dataset.
    """
    for key, system in (list_systems(new) if systems is None else systems).items():
        difference = describe_difference(known.get(key, {}), system)
        if difference is not None:
            one, other = difference
            file = next(iter(sorted(urls_of(new))), "the new dataset")
            too = "" if systems is None else f"replace {key[0]!r} too, "
            raise CombineError(
                f"{file}: the coordinate reference system of {key[0]!r} is {other}, and {one} in "
                f"the set; {too}write the file to a set or a group of its own, or reproject it "
                f"to the system of the set first; nothing has been written"
            )


def describe_difference(one: System, other: System) -> tuple[str, str] | None:
    """Return what two systems are, None if nothing says that they differ.

    Numbers and kinds are compared where both have them. Codes decide about names and texts, which
    differ between versions of the programs that write them.
    """
    names = list_differing(one, other)
    return (_describe(one, other, names), _describe(other, one, names)) if names else None


def list_differing(one: System, other: System) -> list[str]:
    """Return the attributes by which two systems differ, numbers and kinds first.

    >>> list_differing({"earth_radius": 6371.0}, {"earth_radius": "6372.0"})
    ['earth_radius']
    """
    names = [n for n in (*KINDS, *NUMBERS) if not _is_alike(one.get(n), other.get(n))]
    names += [n for n in CODES if not _is_alike(_write_code(one, n), _write_code(other, n))]
    codes = find_code(one), find_code(other)
    if None in codes:
        names += [n for n in (*TITLES, *TEXTS) if not _is_alike(one.get(n), other.get(n))]
    elif codes[0] != codes[1]:
        names += [n for n in (*TEXTS, *CODES) if n not in names]
    return names


def find_code(system: System) -> str | None:
    """Return the code of a system, None if it is not known.

    >>> find_code({"crs_wkt": 'PROJCRS["UTM 32", UNIT["m",1], ID["EPSG",32632]]'})
    'EPSG:32632'
    """
    for name in (*TEXTS, *CODES):
        text = _write_code(system, name) or ""
        if found := CODE.search(text) or PLAIN_CODE.fullmatch(text):
            return ":".join(found.groups()).upper()
    return None


def _write_code(system: System, name: str) -> str | None:
    """Return an attribute as text without spaces around it; numbers alone are codes of EPSG.

    >>> [_write_code({"srid": given}, "srid") for given in (4326, "EPSG:4326", "-1")]
    ['EPSG:4326', 'EPSG:4326', '-1']
    """
    if name not in system:
        return None
    text = _join_items(system[name]).strip()
    if name not in CODES:
        return text
    found = PLAIN_CODE.fullmatch(text)
    if re.fullmatch(r"[1-9]\d*", text):
        return f"EPSG:{text}"
    return ":".join(found.groups()) if found else text


def describe_system(system: System, names: Sequence[str] = (*KINDS, *NUMBERS)) -> str:
    """Return what a system is called, or its attributes of some names."""
    code = find_code(system)
    of_texts = (TITLE.match(str(system.get(name, ""))) for name in TEXTS)
    titles = [*(match[1] for match in of_texts if match), *(system.get(n) for n in TITLES[:2])]
    title = next((str(title) for title in titles if title), None)
    if code or title:
        return " ".join(filter(None, (code, f"({title})" if code and title else title)))
    found = [f"{n}={_shorten(system[n])}" for n in names if n in system]
    return ", ".join(found) or "not described"


def _describe(system: System, other: System, names: Sequence[str]) -> str:
    """Return what a system is called, and where that is the same, what differs."""
    shown = describe_system(system, names)
    if shown != describe_system(other, names):
        return shown
    found = [f"{n}={_shorten(system[n])}" for n in names if n in system]
    return f"{shown} with {', '.join(found)}"


def _shorten(value: Any) -> str:
    text = str(np.asarray(value, object).tolist())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_alike(one: Any, other: Any) -> bool:
    """Say whether two values of an attribute agree, or one is not given.

    >>> _is_alike("0,0,0", [0, 0, 1e-12]), _is_alike(["30", "60"], ["30", "61"])
    (True, False)
    """
    if one is None or other is None:
        return True
    first, second = _list_numbers(one), _list_numbers(other)
    if first is None or second is None:
        words = ("".join(_join_items(value).split()).lower() for value in (one, other))
        return next(words) == next(words)
    is_short = any(getattr(value, "dtype", None) == np.float32 for value in (one, other))
    within = SHORT_TOLERANCE if is_short else TOLERANCE
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=within, abs_tol=TOLERANCE) or (a != a and b != b)
        for a, b in zip(first, second, strict=True)
    )


def _list_items(value: Any) -> list[Any]:
    found: list[Any] = np.ravel(np.asarray(value, object)).tolist()
    return found


def _join_items(value: Any) -> str:
    return " ".join(map(str, _list_items(value)))


def _list_numbers(value: Any) -> list[float] | None:
    """Return the numbers of an attribute, which may be written as text; None if it has others."""
    is_text = isinstance(value, str)
    items = re.sub(r"[\[\],]", " ", value).split() if is_text else _list_items(value)
    try:
        return [float(item) for item in items] or None
    except (TypeError, ValueError):
        return None


def list_system_names(dataset: xr.Dataset) -> Iterator[tuple[Hashable, str]]:
    """Yield the grid mappings of a dataset, and what their systems are called."""
    mappings = {
        name
        for v in dataset.variables.values()
        for name in _list_mappings(v.attrs.get("grid_mapping", v.encoding.get("grid_mapping")))
    }
    for name, variable in dataset.variables.items():
        if name in mappings or not variable.attrs.keys().isdisjoint(SYSTEM_ATTRIBUTES):
            yield name, describe_system(variable.attrs)
