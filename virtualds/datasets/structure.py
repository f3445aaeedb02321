"""Describe the structure of a dataset as facts, by which files of an archive are compared.

A fact describes one aspect of one variable or dimension in words. Files with equal facts have the
same structure. Listing them reads no value of a virtual array.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.codecs.pipeline import (
    FILL_ATTRIBUTES,
    SCALE_ATTRIBUTES,
    format_attributes,
    format_codecs,
)
from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.source_positions import urls_of
from virtualds.errors import CombineError

REGULAR_TOLERANCE = 0.12
"""Tolerance for steps, as a fraction of the usual step: months have 28 to 31 days."""
GAP_FACTOR = 1.5
"""The minimum length of a gap, in usual steps."""
MIN_STEPS = 2
"""The minimum number of usual steps that make an axis regular."""


def compute_steps(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the steps between times, in seconds.

    >>> compute_steps(np.array(["2001-01-01", "2001-01-03"], "M8[ns]"))
    array([172800.])
    """
    if values.dtype.kind == "M":
        return np.diff(values).astype("m8[ns]").astype(np.float64) / 1e9
    return np.array([step.total_seconds() for step in np.diff(values)], np.float64)


def find_gaps_among(steps: npt.NDArray[np.float64] | Sequence[float]) -> list[int]:
    """Return the indices of steps that are gaps; empty if the other steps are irregular.

    >>> find_gaps_among([31, 28, 61, 31, 30])
    [2]
    >>> find_gaps_among([1, 2, 4, 8])
    []
    """
    steps = np.asarray(steps, np.float64)
    usual_step = float(np.median(steps)) if steps.size else 0.0
    if not usual_step > 0:
        return []
    is_gap = steps >= GAP_FACTOR * usual_step
    is_regular = np.abs(steps - usual_step) <= REGULAR_TOLERANCE * usual_step
    is_determined = (is_gap | is_regular).all() and is_regular.sum() >= max(MIN_STEPS, is_gap.sum())
    return np.flatnonzero(is_gap).tolist() if is_determined else []


def find_gaps(index: pd.Index[Any]) -> list[tuple[Any, Any]]:
    """Return the times before and after each gap of a time index; empty for other indexes.

    >>> find_gaps(pd.DatetimeIndex(["2001-01-01", "2001-01-02", "2001-01-03", "2001-01-07"]))
    [(Timestamp('2001-01-03 00:00:00'), Timestamp('2001-01-07 00:00:00'))]
    """
    is_time = isinstance(index, pd.DatetimeIndex) or hasattr(index, "calendar")
    if not is_time or index.size <= MIN_STEPS or index.hasnans:
        return []
    ordered = index if index.is_monotonic_increasing else index[::-1]
    if not ordered.is_monotonic_increasing:
        return []
    return [
        (ordered[n], ordered[n + 1]) for n in find_gaps_among(compute_steps(ordered.to_numpy()))
    ]


# ---------------------------------------------------------------------- renamed dimensions


def find_renamed(
    usual: Sequence[str], other: Sequence[str], used_names: Collection[str] = ()
) -> dict[str, str]:
    """Return the usual names of the renamed dimensions of a variable, by their current names.

    The result is empty if the dimensions differ in more than names, or if a usual name is among
    ``used_names``.

    >>> find_renamed(("time", "lat", "lon"), ("time", "latitude", "lon"))
    {'latitude': 'lat'}
    >>> find_renamed(("time", "lat"), ("lat", "time"))
    {}
    """
    if len(usual) != len(other):
        return {}
    renamed = {new: old for old, new in zip(usual, other, strict=True) if old != new}
    is_possible = renamed.keys().isdisjoint(usual) and set(renamed.values()).isdisjoint(
        {*other, *used_names}
    )
    return renamed if is_possible else {}


def format_rename(names: Mapping[str, str]) -> str:
    """Return the code of a function that renames dimensions in the files that have them.

    >>> format_rename({"latitude": "lat"})
    'lambda ds: ds.rename({"latitude": "lat"} if "latitude" in ds.dims else {})'
    """
    text = {json.dumps(new): json.dumps(old) for new, old in names.items()}
    mapping = "{" + ", ".join(f"{new}: {old}" for new, old in text.items()) + "}"
    if len(text) == 1:
        return f"lambda ds: ds.rename({mapping} if {next(iter(text))} in ds.dims else {{}})"
    return f"lambda ds: ds.rename({{n: m for n, m in {mapping}.items() if n in ds.dims}})"


# ---------------------------------------------------------------------- facts

PRESENCE = "presence"
SIZE = "size"
DIMENSIONS = "dimensions"
DTYPE = "data type"
ROLE = "role"
VALUES = "values"
STORED = "stored type"
CODECS = "codecs"
SCALE = "scale and offset"
FILL = "fill value"
UNITS = "units"
CALENDAR = "calendar"
SYSTEM = "coordinate reference system"
CHUNKS, ATTRIBUTE = "chunks along ", "attribute "
"""Prefixes of aspects; the name of a dimension or an attribute follows."""
THERE = "there"
MAX_TEXT = 160
"""The longest text of a fact; longer texts are cut and end in a digest."""

Opened = xr.Dataset | xr.DataTree


class Fact(NamedTuple):
    """An aspect of a variable or dimension: ``("t", "data type")``.

    Facts of the dataset itself have the subject ``""``.
    """

    subject: str
    aspect: str


Facts = Mapping[Fact, str]


def find_dataset_facts(dataset: xr.Dataset) -> dict[Fact, str]:
    """Return all facts of a dataset.

    Examples
    --------
    >>> facts = find_dataset_facts(xr.Dataset({"t": ("x", np.zeros(3, "f4"), {"units": "K"})}))
    >>> facts[Fact("x", "size")], facts[Fact("t", "data type")], facts[Fact("t", "units")]
    ('3', 'float32', 'K')
    """
    facts = find_shape_facts(dataset)
    for name, variable in dataset.variables.items():
        facts |= {Fact(str(name), aspect): text for aspect, text in describe_storage(variable)}
        facts |= _find_attribute_facts(str(name), variable.attrs)
    return facts | _find_attribute_facts("", dataset.attrs)


def find_shape_facts(dataset: xr.Dataset, within: str = "") -> dict[Fact, str]:
    """Return the facts that may prevent datasets from being combined."""
    facts = {Fact(f"{within}{d}", SIZE): str(n) for d, n in dataset.sizes.items()}
    for name, variable in dataset.variables.items():
        subject = f"{within}{name}"
        role = "coordinate" if name in dataset.coords else "data variable"
        facts |= {
            Fact(subject, PRESENCE): THERE,
            Fact(subject, ROLE): role,
            Fact(subject, DIMENSIONS): ", ".join(map(str, variable.dims)) or "none",
            Fact(subject, DTYPE): str(variable.dtype),
        }
        if calendar := variable.encoding.get("calendar"):
            facts[Fact(subject, CALENDAR)] = str(calendar)
        if get_virtual_array(variable) is None and not is_lazy(variable):
            facts[Fact(subject, VALUES)] = digest_values(variable.values)
    for name, crs in iterate_crs_names(dataset):
        facts[Fact(f"{within}{name}", SYSTEM)] = shorten(crs)
    return facts


def digest_values(values: Any) -> str:
    """Return a short text that differs for different values.

    >>> [digest_values(np.arange(3)) == digest_values(v) for v in (np.arange(3), np.zeros(3))]
    [True, False]
    """
    array = np.asarray(values)
    if array.size == 1:
        return shorten(text_of(array.flat[0]))
    raw = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    ends = " to ".join(text_of(array.flat[n]) for n in (0, -1)) if array.size else "none"
    return f"{ends} ({array.size} values, {blake2b(raw, digest_size=4).hexdigest()})"


def text_of(value: Any) -> str:
    """Format a value as text; dates at midnight without the time.

    >>> text_of(np.datetime64("2001-01-31T00:00:00.000000000"))
    '2001-01-31'
    """
    if isinstance(value, np.datetime64):
        seconds = value.astype("datetime64[s]")
        return str(seconds if seconds == value else value).removesuffix("T00:00:00")
    return str(value).removesuffix(" 00:00:00")


def describe_gaps(indexes: Mapping[Any, pd.Index[Any]]) -> list[str]:
    """Return a sentence for each gap in time coordinates, with the times before and after it."""
    return [
        f"{str(dim)!r} has nothing between {text_of(before)} and {text_of(after)}"
        for dim, index in indexes.items()
        if not isinstance(index, pd.MultiIndex)
        for before, after in find_gaps(index)
    ]


def describe_storage(variable: xr.Variable) -> Iterator[tuple[str, str]]:
    """Yield facts about how values are stored, in words."""
    encoding, array = variable.encoding, get_virtual_array(variable)
    packing = encoding if array is None else {**encoding, **_find_packing(array)}
    yield STORED, str(packing.get("dtype", variable.dtype))
    yield SCALE, format_attributes(packing, SCALE_ATTRIBUTES)
    yield FILL, format_attributes(packing, FILL_ATTRIBUTES)
    if UNITS in encoding:
        yield UNITS, str(encoding[UNITS])
    if array is None:
        return
    yield CODECS, "; ".join(dict.fromkeys(format_codecs(p.codecs) for p in array.pipelines))
    for dim, lengths in zip(variable.dims, _format_chunks(array), strict=True):
        yield f"{CHUNKS}{dim}", lengths


def _find_packing(array: ManifestArray) -> dict[str, Any]:
    """Return the packing of the first pipeline, and the stored dtypes of all."""
    dtypes = ", ".join(dict.fromkeys(p.dtype.str for p in array.pipelines))
    packing = array.pipelines[0].packing if array.pipelines else None
    return {"dtype": dtypes or str(array.dtype), **(packing.attributes if packing else {})}


def _format_chunks(array: ManifestArray) -> Iterator[str]:
    """Yield the lengths of the stored chunks, axis by axis."""
    for axis in range(array.ndim):
        cuts = [f.axes[axis] for f in array.fragments]
        stored = (cut.slabs().encoded if cut.chunk is None else [cut.chunk] for cut in cuts)
        yield format_lengths(int(n) for row in stored for n in row)


def format_lengths(lengths: Iterable[int]) -> str:
    """Format the distinct lengths of chunks as text.

    >>> format_lengths([2, 2, 1]), format_lengths(range(5)), format_lengths([])
    ('2, 1', '0, 1, 2 and 2 others', 'none')
    """
    distinct = list(dict.fromkeys(lengths))
    shown = ", ".join(map(str, distinct[:3]))
    return f"{shown} and {len(distinct) - 3} others" if len(distinct) > 3 else shown or "none"


def _find_attribute_facts(subject: str, attributes: Mapping[Any, Any]) -> dict[Fact, str]:
    """Return the facts of the attributes of a variable or dataset."""
    return {name_attribute(subject, name): shorten(v) for name, v in attributes.items()}


def name_attribute(subject: str, name: Any) -> Fact:
    """Return the fact for an attribute; ``units`` of a variable have their own aspect."""
    return Fact(subject, UNITS if name == UNITS and subject else f"{ATTRIBUTE}{name}")


def shorten(value: Any) -> str:
    """Format an attribute as text; long text is cut and gets a digest."""
    text = str(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    if len(text) <= MAX_TEXT:
        return text
    digest = blake2b(text.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{text[: MAX_TEXT - 30]}... ({len(text)} characters, {digest})"


# ---------------------------------------------------------------------- combine errors

SEVERE = (SIZE, DIMENSIONS, ROLE, DTYPE, CALENDAR, VALUES, PRESENCE)
"""Aspects in which files must agree to be combined, the most likely cause of an error first."""
ABSENT = "not there"


def describe_worst_difference(
    files: Sequence[Any], opened: Iterable[Opened], joined: Iterable[Any] | None = None
) -> str | None:
    """Describe the worst difference from the first file, and the first file that has it.

    Returns None if no difference matters. Dimensions along which files are joined may differ: those
    in ``joined``, by default all that have a coordinate.

    >>> parts = [xr.Dataset({"t": ("x", np.zeros(n))}) for n in (3, 3, 4)]
    >>> describe_worst_difference(["a.nc", "b.nc", "c.nc"], parts)
    "c.nc is the first file that differs from a.nc in this way: size of 'x' is 4, not 3"
    """
    joined_dims = None if joined is None else frozenset(map(str, joined))
    first: dict[Fact, str] | None = None
    worst: tuple[int, Any, list[str]] | None = None
    for file, dataset in zip(files, opened, strict=True):
        nodes: dict[str, Any] = {"": dataset}
        if isinstance(dataset, xr.DataTree):
            trees = ((n.path.strip("/"), n.to_dataset(inherit=False)) for n in dataset.subtree)
            nodes = {f"{path}/".lstrip("/"): part for path, part in trees}
        shapes = (find_shape_facts(part, path) for path, part in nodes.items())
        all_facts = {fact: text for shape_facts in shapes for fact, text in shape_facts.items()}
        facts = {
            f: text for f, text in all_facts.items() if not _may_differ(f, all_facts, joined_dims)
        }
        first = facts if first is None else first
        severity, texts = _find_worst_differences(first, facts)
        if texts and (worst is None or severity < worst[0]):
            worst = severity, file, texts
    if worst is None:
        return None
    _, file, texts = worst
    described = "; ".join(texts[:3])
    return f"{file} is the first file that differs from {files[0]} in this way: {described}"


def _may_differ(fact: Fact, facts: Facts, joined: frozenset[str] | None) -> bool:
    """Return whether a fact may differ because it concerns a joined dimension."""
    if fact.aspect not in (SIZE, VALUES):
        return False
    within, _, name = fact.subject.rpartition("/")
    dims = {name} if fact.aspect == SIZE else {*facts[fact._replace(aspect=DIMENSIONS)].split(", ")}
    # dimensions with a coordinate are aligned by that coordinate
    aligned = {d for d in dims if Fact(f"{within}/{d}".lstrip("/"), PRESENCE) in facts}
    return bool(aligned if joined is None else dims & joined) or name in aligned


def _find_worst_differences(first: Facts, other: Facts) -> tuple[int, list[str]]:
    """Return the severity of the worst differences between two files, and these differences."""
    for severity, aspect in enumerate(SEVERE):
        texts = [
            f"{f.subject!r} is {other.get(f, ABSENT)}"
            if aspect == PRESENCE
            else f"{aspect} of {f.subject!r} is {other[f]}, not {first[f]}"
            for f in dict.fromkeys((*first, *other))
            if f.aspect == aspect
            and first.get(f) != other.get(f)
            and (aspect == PRESENCE or (f in first and f in other))
        ]
        if texts:
            return severity, texts
    return len(SEVERE), []


# ---------------------------------------------------------------------- CRSs


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
"""Attributes with the whole CRS as text: those of the CF conventions, GDAL and PROJ."""
CODES = ("epsg_code", "srid")
"""Attributes with the code of the whole CRS."""
CRS_ATTRIBUTES = frozenset((*KINDS, *NUMBERS, *TITLES, *TEXTS, *CODES))
"""Attributes of a grid mapping that identify the CRS."""

TOLERANCE = 1e-10
"""The tolerance for equal numbers: programs write the flattening with 12 or more digits.

It is relative, and absolute near 0.
"""
SHORT_TOLERANCE = 1e-7
"""The relative tolerance for 32-bit numbers."""
CODE = re.compile(
    r"""(?:ID|AUTHORITY)\["([^"]+)",\s*"?([^",\[\]]+)"?(?:,[^\[\]]*)?\s*\]\s*\]\s*$"""
)
"""The code of a whole CRS, at the end of its WKT; a version may follow it."""
PLAIN_CODE = re.compile(r"(?:urn:ogc:def:crs:)?([A-Za-z]+):(?:[\d.]*:)?(\w+)")
"""A code by itself, such as ``EPSG:4326``, or as a URN."""
TITLE = re.compile(r"""^\s*\w+\["([^"]+)\"""")

CRS = Mapping[str, Any]
"""The attributes of a grid mapping, which define a coordinate reference system (CRS)."""
CRSByVariable = Mapping[tuple[str, int], CRS]
"""CRSs by the name of the variable that names or holds them, and their number there: a variable may
name several."""


def find_crs_by_variable(dataset: xr.Dataset) -> dict[tuple[str, int], CRS]:
    """Return the CRSs of the variables of a dataset.

    Examples
    --------
    >>> attributes = {"grid_mapping_name": "latitude_longitude"}
    >>> ds = xr.Dataset({"t": ("x", [1.0], {"grid_mapping": "crs"}), "crs": ((), 0, attributes)})
    >>> sorted(find_crs_by_variable(ds))
    [('crs', 0), ('t', 0)]
    """
    attribute = "grid_mapping"
    return find_crs(
        {n: {attribute: v.encoding.get(attribute), **v.attrs} for n, v in dataset.variables.items()}
    )


def find_crs(attributes: Mapping[Any, Mapping[Any, Any]]) -> dict[tuple[str, int], CRS]:
    """Return the CRSs of variables from the attributes of all variables."""
    crs_by_variable: dict[tuple[str, int], CRS] = {}
    for name, variable_attributes in attributes.items():
        if not variable_attributes.keys().isdisjoint(CRS_ATTRIBUTES):
            crs_by_variable[str(name), 0] = variable_attributes
        for number, mapping in enumerate(_list_mappings(variable_attributes.get("grid_mapping"))):
            if mapping in attributes:
                crs_by_variable[str(name), number] = attributes[mapping]
    return crs_by_variable


def select_crs_attributes(attributes: CRS) -> CRS:
    """Return the attributes of a variable that identify a CRS."""
    return {name: v for name, v in attributes.items() if name in CRS_ATTRIBUTES}


def _list_mappings(text: Any) -> list[str]:
    """Return the names of the grid mappings in a ``grid_mapping`` attribute.

    >>> _list_mappings("crs"), _list_mappings("crs: x y geographic: lat lon")
    (['crs'], ['crs', 'geographic'])
    """
    words = text.split() if isinstance(text, str) else []
    names = [word[:-1] for word in words if word.endswith(":")]
    return names or words[:1]


def check_one_crs(files: Mapping[str, CRSByVariable]) -> None:
    """Raise an error if the CRS differs between files."""
    first: dict[tuple[str, int], tuple[str, CRS]] = {}
    for file, crs_by_variable in files.items():
        for key, crs in crs_by_variable.items():
            first_file, first_crs = first.setdefault(key, (file, crs))
            if first_crs is not crs and (difference := describe_difference(first_crs, crs)):
                usual, text = difference
                raise CombineError(
                    f"{file}: the coordinate reference system of {key[0]!r} is {text}, and "
                    f"{usual} in {first_file}; open the files of each system apart, or reproject "
                    f"the files to one system first"
                )


def check_crs_of_set(
    existing: CRSByVariable, new: xr.Dataset, crs_by_variable: CRSByVariable | None = None
) -> None:
    """Raise an error if the CRS of a dataset differs from the CRS of a set.

    ``existing`` are the CRSs of the set. ``crs_by_variable`` are the CRSs that the set would have
    with the dataset added, by default those of the dataset.
    """
    for key, crs in (
        find_crs_by_variable(new) if crs_by_variable is None else crs_by_variable
    ).items():
        difference = describe_difference(existing.get(key, {}), crs)
        if difference is not None:
            usual, text = difference
            file = next(iter(sorted(urls_of(new))), "the new dataset")
            too = "" if crs_by_variable is None else f"replace {key[0]!r} too, "
            raise CombineError(
                f"{file}: the coordinate reference system of {key[0]!r} is {text}, and {usual} in "
                f"the set; {too}write the file to a set or a group of its own, or reproject it "
                f"to the system of the set first; nothing has been written"
            )


def describe_difference(left: CRS, right: CRS) -> tuple[str, str] | None:
    """Describe both CRSs, or return None if no attribute shows that they differ.

    Numbers and kinds are compared where both have them. Codes decide about names and WKT, which
    differ between versions of the programs that write them.
    """
    names = list_differing(left, right)
    return (
        (_describe_distinctly(left, right, names), _describe_distinctly(right, left, names))
        if names
        else None
    )


def list_differing(left: CRS, right: CRS) -> list[str]:
    """Return the attributes in which two CRSs differ, kinds and numbers first.

    >>> list_differing({"earth_radius": 6371.0}, {"earth_radius": "6372.0"})
    ['earth_radius']
    """
    names = [n for n in (*KINDS, *NUMBERS) if not _agree(left.get(n), right.get(n))]
    names += [n for n in CODES if not _agree(_format_code(left, n), _format_code(right, n))]
    codes = find_code(left), find_code(right)
    if None in codes:
        names += [n for n in (*TITLES, *TEXTS) if not _agree(left.get(n), right.get(n))]
    elif codes[0] != codes[1]:
        names += [n for n in (*TEXTS, *CODES) if n not in names]
    return names


def find_code(crs: CRS) -> str | None:
    """Return the code of a CRS, or None if it has none.

    >>> find_code({"crs_wkt": 'PROJCRS["UTM 32", UNIT["m",1], ID["EPSG",32632]]'})
    'EPSG:32632'
    """
    for name in (*TEXTS, *CODES):
        text = _format_code(crs, name) or ""
        if found := CODE.search(text) or PLAIN_CODE.fullmatch(text):
            return ":".join(found.groups()).upper()
    return None


def _format_code(crs: CRS, name: str) -> str | None:
    """Format an attribute as a code, or return None; bare numbers are EPSG codes.

    >>> [_format_code({"srid": given}, "srid") for given in (4326, "EPSG:4326", "-1")]
    ['EPSG:4326', 'EPSG:4326', '-1']
    """
    if name not in crs:
        return None
    text = _join_items(crs[name]).strip()
    if name not in CODES:
        return text
    found = PLAIN_CODE.fullmatch(text)
    if re.fullmatch(r"[1-9]\d*", text):
        return f"EPSG:{text}"
    return ":".join(found.groups()) if found else text


def describe_crs(crs: CRS, names: Sequence[str] = (*KINDS, *NUMBERS)) -> str:
    """Return the name of a CRS, or else its attributes of the given names."""
    code = find_code(crs)
    matches = (TITLE.match(str(crs.get(name, ""))) for name in TEXTS)
    titles = [*(match[1] for match in matches if match), *(crs.get(n) for n in TITLES[:2])]
    title = next((str(title) for title in titles if title), None)
    if code or title:
        return " ".join(filter(None, (code, f"({title})" if code and title else title)))
    attributes = [f"{n}={_shorten_value(crs[n])}" for n in names if n in crs]
    return ", ".join(attributes) or "not described"


def _describe_distinctly(crs: CRS, other: CRS, names: Sequence[str]) -> str:
    """Return the name of a CRS, with the differing attributes if both have the same name."""
    name = describe_crs(crs, names)
    if name != describe_crs(other, names):
        return name
    attributes = [f"{n}={_shorten_value(crs[n])}" for n in names if n in crs]
    return f"{name} with {', '.join(attributes)}"


def _shorten_value(value: Any) -> str:
    """Format the value of an attribute as text of at most 60 characters."""
    text = str(np.asarray(value, object).tolist())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _agree(left: Any, right: Any) -> bool:
    """Return whether two values of an attribute agree, or one of them is missing.

    >>> _agree("0,0,0", [0, 0, 1e-12]), _agree(["30", "60"], ["30", "61"])
    (True, False)
    """
    if left is None or right is None:
        return True
    first, second = _list_numbers(left), _list_numbers(right)
    if first is None or second is None:
        words = ("".join(_join_items(value).split()).lower() for value in (left, right))
        return next(words) == next(words)
    is_short = any(getattr(value, "dtype", None) == np.float32 for value in (left, right))
    tolerance = SHORT_TOLERANCE if is_short else TOLERANCE
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=TOLERANCE) or (a != a and b != b)
        for a, b in zip(first, second, strict=True)
    )


def _list_items(value: Any) -> list[Any]:
    """Return the items of an attribute, which may be a scalar."""
    items: list[Any] = np.ravel(np.asarray(value, object)).tolist()
    return items


def _join_items(value: Any) -> str:
    """Format the items of an attribute, separated by blanks."""
    return " ".join(map(str, _list_items(value)))


def _list_numbers(value: Any) -> list[float] | None:
    """Return the numbers in an attribute, which may be a string, or None if it is not numeric."""
    is_text = isinstance(value, str)
    items = re.sub(r"[\[\],]", " ", value).split() if is_text else _list_items(value)
    try:
        return [float(item) for item in items] or None
    except (TypeError, ValueError):
        return None


def iterate_crs_names(dataset: xr.Dataset) -> Iterator[tuple[Hashable, str]]:
    """Yield the grid mappings of a dataset, each with the name of its CRS."""
    mappings = {
        name
        for v in dataset.variables.values()
        for name in _list_mappings(v.attrs.get("grid_mapping", v.encoding.get("grid_mapping")))
    }
    for name, variable in dataset.variables.items():
        if name in mappings or not variable.attrs.keys().isdisjoint(CRS_ATTRIBUTES):
            yield name, describe_crs(variable.attrs)
