"""Convert xarray datasets and trees to groups of stored variables."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import COPY_WARNING_BYTES, ManifestArray, unpack
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.codecs.cf import PACKING_ATTRIBUTES
from virtualds.datasets.decoding import (
    CHARACTER_AXIS,
    DEFAULT_DATES,
    IDENTITY_ATTRIBUTES,
    TIME_ATTRIBUTES,
    UNNAMED,
    add_character_axis,
    find_default_packing,
    load_decoded,
)
from virtualds.datasets.lazy import get_virtual_array, is_lazy, restore_references
from virtualds.errors import CopyWarning, UnsupportedError, format_bytes, locating, warn_user
from virtualds.options import get_options
from virtualds.stores.access_rules import check_valid_url

# ---------------------------------------------------------------------- dataset -> group


def group_from_dataset(dataset: xr.Dataset) -> ManifestGroup:
    """Return a dataset as a group of variables in the form in which they are stored.

    The packing that all chunks of a virtual array share is moved back to its attributes. Loaded
    variables are encoded as their ``encoding`` says, or losslessly if that would change their
    values.
    """
    dataset = restore_references(dataset)
    coded, attributes = xr.conventions.encode_dataset_coordinates(dataset)
    variables = {}
    for name, variable in coded.items():
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise UnsupportedError(
                f"variable {name!r}: a name in a file is a string without '/'; rename it with "
                f"ds.rename"
            )
        with locating(f"variable {name!r}"):
            variables[UNNAMED if name is None else name] = _to_stored(str(name), variable)
    # no set may refer to such file names; files in a set were checked when it was written
    arrays = [v.data for v in variables.values() if isinstance(v.data, ManifestArray)]
    manifests = (f.manifest for array in arrays for f in array.fragments)
    tables = drop_repeated_tables(m.listed_files for m in manifests if not m.is_in_set)
    for file in chain.from_iterable(tables):
        check_valid_url(file.url)
    # variables that were not decoded are stored unchanged
    not_decoded = [
        name for name, v in variables.items() if v.encoding.get(CHARACTER_AXIS, "") is None
    ]
    variables = add_character_axis(variables, not_decoded)
    return ManifestGroup(variables, attributes, encoding=dataset.encoding)


def as_read(group: ManifestGroup) -> ManifestGroup:
    """Return the group of a dataset as a format would read it, ready to be decoded again.

    Decoding moves attributes such as units to the encoding, and fails if they are in it already.
    """
    variables = {
        name: replace(v, encoding={k: e for k, e in v.encoding.items() if k not in v.attributes})
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables)


def _to_stored(name: str, variable: xr.Variable) -> ManifestVariable:
    """Return a variable in the form in which it is stored."""
    dims = tuple(str(dim) for dim in variable.dims)
    if (data := get_virtual_array(variable)) is not None:
        array, packed = unpack(data)
        # a packing that changes no value appears only in the encoding
        is_unpacked = all(p.packing is None for p in array.pipelines)
        identity = {
            n: variable.encoding[n]
            for n in IDENTITY_ATTRIBUTES
            if is_unpacked and n in variable.encoding
        }
        return ManifestVariable(
            dims, array, variable.attrs | (packed or identity), variable.encoding
        )
    if not isinstance(variable.dtype, np.dtype):
        raise UnsupportedError(
            f"its type {variable.dtype} is one of pandas, which files do not have; assign its "
            f"values as a numpy array: for categories their text or numbers, for periods their "
            f"first dates, and whatever else distinguishes them"
        )
    check_loading(name, variable)
    encoded = _encode_loaded(name, variable)
    return ManifestVariable(dims, np.asarray(encoded.data), encoded.attrs, variable.encoding)


def check_loading(name: str, variable: xr.Variable) -> None:
    """Warn if writing must load many values, and raise an error if they exceed the limit."""
    if not (is_lazy(variable) or variable.chunks is not None):
        return
    limit = get_options().load_limit
    if variable.nbytes > limit:
        raise UnsupportedError(
            f"its {variable.nbytes:,} bytes would be read and written inline, more than the limit "
            f"of {limit:,}; open the source with virtualds.open_virtual_dataset, which keeps "
            f"references of all but variable-length strings, select less of it, leave it out "
            f"(ds.drop_vars), or raise the limit with virtualds.set_options(load_limit=...)"
        )
    if variable.dtype.hasobject:
        # variable-length strings have no references
        return
    warn_of_copy(name, variable.nbytes, "it is not virtual, but read when it is needed")


def warn_of_copy(name: str, nbytes: int, reason: str) -> None:
    """Warn that writing loads values that a user may expect to be references."""
    if nbytes > COPY_WARNING_BYTES:
        warn_user(
            f"{name}: writing loads {format_bytes(nbytes)}, and the set holds a copy of them, "
            f"since {reason}. To copy nothing, open its source with virtualds.open_virtual_dataset "
            f"and write that; if you mean to copy, call ds.load() before",
            CopyWarning,
        )


# ---------------------------------------------------------------------- tree -> group


def group_from_tree(tree: xr.DataTree, inherited: bool = False, path: str = "") -> ManifestGroup:
    """Return a tree as a group of groups in the form in which they are stored.

    With ``inherited``, every group also stores the coordinates that it inherits. The root always
    does if it is part of a larger tree. ``path`` is for errors.
    """
    with locating(f"group {path or '/'}"):
        group = group_from_dataset(tree.to_dataset(inherit=inherited or not path))
    subgroups = {
        name: group_from_tree(child, inherited, f"{path}/{name}")
        for name, child in tree.children.items()
    }
    return replace(group, groups=subgroups)


# ---------------------------------------------------------------------- values in memory
# Encoding of loaded variables, such that they decode to the same values.


TIMES = ("m", "M")
"""Dtype kinds of durations and dates."""
ENCODE_ERRORS = (ValueError, OverflowError, TypeError, KeyError, UserWarning)
"""Errors that xarray raises when values do not fit their encoding."""
COMPARED_AT_ONCE = 2**18
"""Number of dates that are decoded at a time to compare them."""


def _encode_loaded(name: str, variable: xr.Variable) -> xr.Variable:
    """Encode a loaded variable, and check that it decodes to itself."""
    variable = variable.copy(deep=False).to_base_variable()
    if not (variable.dtype.isnative or variable.dtype.hasobject):
        # decoded values have native byte order
        variable = variable.copy(data=variable.values.astype(variable.dtype.newbyteorder("=")))
    if (
        getattr(variable.encoding.get("dtype"), "kind", "") in TIMES
        and variable.dtype.kind in TIMES
    ):
        # the source stores dates as numpy does, not as CF does
        return variable
    counts_time = " since " in str(variable.attrs.get("units", ""))
    is_time = counts_time and variable.dtype.kind in "iuf"
    is_coded = is_time or not variable.attrs.keys().isdisjoint(PACKING_ATTRIBUTES)
    if is_coded and variable.dtype.kind in "iufSU":
        # a variable that was never decoded is stored unchanged
        return variable.copy(data=_to_plain(variable.data))
    for encoding in _iterate_encodings(variable):
        attempt = variable.copy(deep=False)
        # otherwise xarray would add a fill value to floats
        attempt.encoding = {"_FillValue": None, **encoding}
        try:
            with warnings.catch_warnings():
                # the units may not suit the values; the next encodings do
                warnings.simplefilter("error", UserWarning)
                stored = encode_like_xarray(name, attempt)
            unencoded = stored.copy(data=_to_plain(stored.data))
            variants = [unencoded]
            if "units" in unencoded.attrs and "units" in encoding:
                # units and calendar as in the source, then as by xarray
                as_in_source = unencoded.copy(deep=False)
                as_in_source.attrs["units"] = encoding["units"]
                if "calendar" not in encoding:
                    # xarray adds a calendar to dates that have none
                    as_in_source.attrs.pop("calendar", None)
                variants.insert(0, as_in_source)
            for variant in variants:
                if _decodes_to(name, variant, variable):
                    return variant
        except ENCODE_ERRORS:
            continue
    if variable.dtype.kind in TIMES:
        # no CF unit represents all of them exactly, but a numpy unit does
        return variable
    raise UnsupportedError(
        f"its values of dtype {variable.dtype} cannot be encoded without change; convert them, or "
        f"leave it out"
    )


def encode_like_xarray(name: str, variable: xr.Variable) -> xr.Variable:
    """Return a variable as xarray encodes it, but with one copy of its dates instead of five."""
    if variable.dtype == DEFAULT_DATES and variable.ndim == 1 and variable.size > 1:
        ends = xr.conventions.encode_cf_variable(variable[[0, -1]], name=name)
        packing = find_default_packing(ends.attrs)
        if packing is not None and packing.units == variable.encoding.get("units"):
            numbers = packing.encode_linearly(variable.values, ends.dtype)
            if numbers is not None:
                return xr.Variable(variable.dims, numbers, ends.attrs, ends.encoding)
    return xr.conventions.encode_cf_variable(variable, name=name)


def _iterate_encodings(variable: xr.Variable) -> Iterator[dict[str, Any]]:
    """Yield the encodings to try, the encoding of the source first."""
    # encoding of values only: without chunks and compression
    encoding = {k: v for k, v in variable.encoding.items() if k in (*TIME_ATTRIBUTES, "_Encoding")}
    if encoding.get("dtype") is str or getattr(encoding.get("dtype"), "kind", "") in "SOU":
        encoding.pop("dtype", None)
    yield encoding
    names = ("_FillValue", "units", "calendar")
    named = {k: v for k, v in variable.encoding.items() if k in names}
    # what was tried once is not tried again, since decoding many dates takes long
    if named.keys() != encoding.keys():
        yield named
    if named:
        yield {}


def _decodes_to(name: str, stored: xr.Variable, variable: xr.Variable) -> bool:
    """Return whether a stored variable decodes to the values of a variable."""
    packing = find_default_packing(stored.attrs)
    is_dates = variable.dtype == DEFAULT_DATES and variable.shape == stored.shape != ()
    if packing is not None and is_dates:
        dates, numbers = variable.values, stored.values
        blocks = [slice(n, n + COMPARED_AT_ONCE) for n in range(0, len(dates), COMPARED_AT_ONCE)]
        decoded = (packing.decode_linearly(numbers[block]) for block in blocks)
        # all decoded dates together take as much memory as the variable
        if all(
            found is not None and np.array_equal(found, dates[block])
            for found, block in zip(decoded, blocks, strict=True)
        ):
            return True
    # as a whole, since xarray chooses the unit of dates from all values
    decodings = _iterate_decodings(name, stored, variable)
    return any(_survived_encoding(decoded, variable) for decoded in decodings)


def _iterate_decodings(
    name: str, stored: xr.Variable, variable: xr.Variable
) -> Iterator[xr.Variable]:
    """Yield the values to which a stored variable may legitimately decode."""
    # characters get their axis where all variables are known
    decoded = xr.conventions.decode_cf_variable(
        name, stored.copy(deep=False), concat_characters=False
    )
    yield load_decoded(decoded, stored.data, stored.attrs)
    if variable.dtype.kind == "O" and " since " in str(stored.attrs.get("units", "")):
        # dates of the standard calendar may have been decoded to objects
        yield xr.conventions.decode_cf_variable(
            name,
            stored.copy(deep=False),
            concat_characters=False,
            decode_times=xr.coders.CFDatetimeCoder(use_cftime=True),
        )


def _to_plain(values: Any) -> Any:
    """Convert strings to objects, which every format can store, and other objects to numbers.

    xarray decodes bytes and booleans to objects where some may be missing.
    """
    array = np.asarray(values)
    if array.dtype.kind in "UT":
        return array.astype(object)
    kinds = {type(value) for value in array.flat} if array.dtype.kind == "O" else set()
    for kind in (bytes, bool):
        if kinds and kinds <= {kind, np.dtype(kind).type}:
            return array.astype(kind)
    return array


def _survived_encoding(decoded: xr.Variable, variable: xr.Variable) -> bool:
    """Return whether a variable survived encoding; the dtype of strings and times may change."""
    if decoded.dtype == variable.dtype and xr.Variable.equals(decoded, variable):  # type: ignore[no-untyped-call]
        return True
    if decoded.dtype.kind == variable.dtype.kind and decoded.dtype.kind in TIMES:
        # numpy's comparison of times in different units may overflow
        converted = decoded.values.astype(variable.dtype)
        back = converted.astype(decoded.dtype)
        pairs = ((converted, variable.values), (back, decoded.values))
        return all(np.array_equal(a.view(np.int64), b.view(np.int64)) for a, b in pairs)
    are_strings = decoded.dtype.kind in "OUST" and variable.dtype.kind in "OUST"
    return are_strings and bool(np.array_equal(decoded.values, variable.values))
