"""Convert groups to xarray datasets and trees, lazy or virtual, and datasets and trees to groups.

xarray decodes every stored variable, which determines its dtype, attributes and encoding. Variables
that stay virtual get the same decoding as the last step of their pipelines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import COPY_WARNING_BYTES, ManifestArray, unpack
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import check_size_in_files, check_values
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.chunks.tables import RecordCache
from virtualds.codecs.cf import (
    PACKING_ATTRIBUTES,
    UNITS_OF_DATES,
    Decoding,
    Packing,
    TimePacking,
    iterate_date_blocks,
)
from virtualds.codecs.codec import NO_FILTERS
from virtualds.datasets.decoding import (
    CHARACTER,
    CHARACTER_AXIS,
    DEFAULT_DATES,
    IDENTITY_ATTRIBUTES,
    TIME_ATTRIBUTES,
    UNNAMED,
    DecodingPlan,
    MisfitError,
    VariableDecoding,
    add_character_axis,
    append_unpacking,
    build_index,
    encoding_of,
    find_default_packing,
    load_decoded,
    make_plan_key,
)
from virtualds.datasets.lazy import (
    enlarge_blocks,
    get_virtual_array,
    is_lazy,
    restore_references,
    to_lazy,
)
from virtualds.datasets.location import Location
from virtualds.datasets.open_options import (
    OPEN_DEFAULTS,
    OpenOptions,
    count_bytes_in_files,
    fetch_coordinates,
    load_default_variables,
    make_load_predicate,
    needs_all_values,
)
from virtualds.errors import (
    CombineError,
    CopyWarning,
    FormatError,
    UnsupportedError,
    VirtualdsError,
    format_bytes,
    locating,
    warn_user,
    without_secrets,
)
from virtualds.formats import (
    DECODING_ERRORS,
    decode_group,
    decode_or_find_undecodable,
    name_variable_in_errors,
)
from virtualds.options import get_options
from virtualds.stores.access_rules import check_valid_url

DECODING_PLANS: RecordCache[DecodingPlan] = RecordCache(64)
"""Plans of decoded groups, reused for later groups of the same structure."""


DECODERS = ("mask_and_scale", "decode_times", "concat_characters", "decode_coords")
"""The decoders that ``decode_cf`` turns on and off."""


MUTABLE_TYPES = (np.ndarray, list, dict, set)
"""Types of mutable attributes."""


# ---------------------------------------------------------------------- group -> dataset


def to_lazy_dataset(group: ManifestGroup, **decoders: Any) -> xr.Dataset:
    """Return a group as a dataset that reads values on access, as native backends do.

    ``decoders`` are arguments of `xarray.conventions.decode_cf_variables`, such as
    ``decode_times``.
    """
    group = _label_arrays(group)
    variables, attributes, coordinates = _decode_group(group, decoders)
    decoded = {}
    for name, variable in variables.items():
        stored = group.variables[UNNAMED if name is None else str(name)]
        array = stored.data
        if not isinstance(array, ManifestArray):
            if variable.dims == (name,):
                with name_variable_in_errors(str(name)):
                    _check_deferred_size(stored, str(name))
            continue
        with name_variable_in_errors(str(name)):
            if str(name) in group.problems:
                decoded[name] = array
                continue
            if variable.dims == (name,):
                count = partial(count_bytes_in_files, array)
                check_size_in_files(array.nbytes, count, f"variable {name!r}")
            # decoding by chunk runs in threads; xarray would decode the selection in one thread
            with suppress(UnsupportedError):
                decoded[name] = _to_virtual_array(str(name), stored, array, variable)
    for name, data in decoded.items():
        variables[name] = variables[name].copy(data=to_lazy(data, str(name), is_decoded=True))
    enlarge_blocks(variables, decoded)
    _check_scalar_names(variables)
    # creating indexes would read values
    return _assemble_dataset(variables, {}, attributes, coordinates, group)


def _check_deferred_size(stored: ManifestVariable, name: str) -> None:
    """Raise an error if too many values outside of chunks would be loaded, such as strings."""
    data = stored.data
    if not isinstance(data, ManifestArray | np.ndarray):
        check_values(data.dtype.itemsize * prod(data.shape), f"variable {name!r}")


def to_virtual_dataset(
    group: ManifestGroup,
    opening: OpenOptions = OPEN_DEFAULTS,
    plan: DecodingPlan | None = None,
    *,
    dates: Mapping[str, ManifestArray] | None = None,
) -> xr.Dataset:
    """Return a group as a dataset of virtual arrays.

    ``plan`` is the decoding plan of the group, if it exists already. ``dates`` are readable parts
    of variables, from which xarray infers how to decode dates if their first or last value cannot
    be read.
    """
    if dates:
        return _decode_dataset(group, opening, dates)[1]
    if (usable_plan := plan or find_decoding_plan(group, opening)) is not None:
        try:
            variables, indexes = usable_plan.decode_variables(group)
            attributes = usable_plan.select_attributes(group)
            return _assemble_dataset(variables, indexes, attributes, usable_plan.coordinates, group)
        except (MisfitError, *DECODING_ERRORS):
            # decode by xarray below, whose error explains the problem
            pass
    usable_plan, dataset = _decode_dataset(group, opening)
    if (key := _make_cache_key(group, opening)) is not None:
        DECODING_PLANS.put(key, usable_plan)
    return dataset


def find_decoding_plan(group: ManifestGroup, opening: OpenOptions) -> DecodingPlan | None:
    """Return the plan of a group, with its reference dates, or None if it is not known yet."""
    key = _make_cache_key(group, opening)
    plan = None if key is None else DECODING_PLANS.find(key)
    with suppress(MisfitError):
        return None if plan is None else plan.with_units_of(group)
    return None


def _make_cache_key(group: ManifestGroup, opening: OpenOptions) -> bytes | None:
    """Return the key of the plan of a group, or None if the plan cannot be cached."""
    loadable = opening.loadable_variables
    if callable(loadable):
        return None
    return make_plan_key(group, opening.decode_cf, loadable, get_options())


def _decode_dataset(
    group: ManifestGroup, opening: OpenOptions, dates: Mapping[str, ManifestArray] | None = None
) -> tuple[DecodingPlan, xr.Dataset]:
    """Return the decoding plan of a group, and its dataset as decoded by xarray."""
    loadable, decode_cf = opening.loadable_variables, opening.decode_cf
    decoders = {} if decode_cf else dict.fromkeys(DECODERS, False)
    group = _label_arrays(group)
    prepared = load_default_variables(group) if loadable is None else group
    replaced = {
        name: replace(prepared.variables[name], data=part) for name, part in (dates or {}).items()
    }
    prepared = replace(prepared, variables={**prepared.variables, **replaced})
    variables, attributes, coordinates = _decode_group(prepared, decoders)
    is_loadable, loaded = make_load_predicate(loadable, coordinates), set()
    for name, variable in variables.items():
        stored_name = UNNAMED if name is None else str(name)
        stored = group.variables[stored_name]
        if name in group.problems:
            variables[name] = xr.Variable(variable.dims, stored.data, variable.attrs)
            continue
        with locating(f"variable {name!r}"):
            is_to_load = is_loadable(str(name), variable)
            with name_variable_in_errors(str(name)):
                if loadable is None and not is_to_load and isinstance(stored.data, ManifestArray):
                    is_small = variable.nbytes <= get_options().load_limit
                    is_to_load = is_small and needs_all_values(stored, variable)
                if is_to_load:
                    if loadable is None:
                        _check_deferred_size(stored, str(name))
                    data = prepared.variables[stored_name].data
                    variables[name] = load_decoded(variable, data, stored.attributes)
                    loaded.add(name)
                elif isinstance(stored.data, ManifestArray):
                    array = _to_virtual_array(str(name), stored, stored.data, variable)
                    # with fastpath, xarray does not import dask.array to check the type of the
                    # array
                    fields = (variable.dims, array, variable.attrs, variable.encoding)
                    variables[name] = xr.Variable(*fields, fastpath=True)
                elif isinstance(stored.data, np.ndarray):
                    variables[name] = variable.compute()
                    loaded.add(name)
    names = [n for n, v in variables.items() if v.dims == (n,) and get_virtual_array(v) is None]
    index_of = {}
    for name in names:
        with name_variable_in_errors(str(name)):
            index_of[name] = build_index(name, variables[name])
    variables |= {name: variable for name, (variable, _) in index_of.items()}
    indexes = {name: index for name, (_, index) in index_of.items()}
    parts = {}
    for name, variable in variables.items():
        stored_name = UNNAMED if name is None else str(name)
        in_memory = name in loaded or name in index_of
        parts[stored_name] = VariableDecoding.of(name, group, variable, in_memory, decode_cf)
    used = frozenset(group.attributes.keys() - attributes.keys())
    plan = DecodingPlan(parts, frozenset(coordinates), used)
    _check_scalar_names(variables)
    return plan, _assemble_dataset(variables, indexes, attributes, coordinates, group)


def _assemble_dataset(
    variables: Mapping[Any, xr.Variable],
    indexes: Mapping[Any, xr.Index],
    attributes: Mapping[str, Any],
    coordinates: Collection[Hashable],
    group: ManifestGroup,
) -> xr.Dataset:
    """Return a dataset of aligned variables and their indexes.

    `xarray.Dataset` would align the variables again, which costs more than all the rest of opening.
    """
    coords = {n: v for n, v in variables.items() if n in coordinates or v.dims == (n,)}
    ordered = {n: v for n, v in variables.items() if n not in coords} | coords
    # a variable with the name of a dimension is a coordinate
    coordinate_names = {*coordinates}.union(*(v.dims for v in variables.values()))
    data = [name for name in variables if name not in coordinate_names]
    for variable in variables.values():
        variable.attrs = _copy_attributes(variable.attrs)
        variable.encoding = _copy_attributes(variable.encoding)
    dataset = xr.Coordinates(ordered, indexes=indexes).to_dataset().reset_coords(data)
    dataset.attrs = _copy_attributes(attributes)
    dataset.encoding = _copy_attributes({"unlimited_dims": set(), **group.encoding})
    return dataset


def _copy_attributes(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of attributes that a user may change; groups of one structure share them."""
    return {n: deepcopy(v) if isinstance(v, MUTABLE_TYPES) else v for n, v in attributes.items()}


def _label_arrays(group: ManifestGroup) -> ManifestGroup:
    """Return a group in which every array has its name, for errors."""
    variables = {
        name: replace(v, data=replace(v.data, name=name))
        if isinstance(v.data, ManifestArray) and v.data.name != name
        else v
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables)


def _decode_group(
    group: ManifestGroup, decoders: Mapping[str, Any]
) -> tuple[Any, Any, set[Hashable]]:
    """Return the decoded variables of a group, its attributes, and the names of coordinates."""
    return decode_or_find_undecodable(group, lambda part: _decode_by_xarray(part, decoders))


def _decode_by_xarray(
    group: ManifestGroup, decoders: Mapping[str, Any]
) -> tuple[Any, Any, set[Hashable]]:
    """Return the variables, attributes and coordinates of a group as xarray decodes them."""
    variables: dict[Any, xr.Variable] = {
        name: xr.Variable(v.dims, to_lazy(v.data, name), dict(v.attributes), encoding_of(v))
        for name, v in group.variables.items()
    }
    if UNNAMED in variables:
        variables[None] = variables.pop(UNNAMED)
    order = list(variables)
    # the decoded dtype of unreadable values cannot be known
    unreadable = {name: variables[name] for name in order if name in group.problems}
    substitutes = {n: v.copy(deep=False) for n, v in unreadable.items()}
    for variable in substitutes.values():
        # attributes that are not strings may be the problem, so they are left out
        texts = {name: value for name, value in variable.attrs.items() if isinstance(value, str)}
        variable.attrs = texts
    left_out = {n: xr.Variable(v.dims, v.data, v.attributes) for n, v in group.left_out.items()}
    results = xr.conventions.decode_cf_variables(
        {**variables, **substitutes, **left_out},
        dict(group.attributes),
        drop_variables=[*unreadable, *left_out],
        **decoders,
    )
    decoded = {**results[0], **unreadable}
    for name, variable in decoded.items():
        stored = group.variables[UNNAMED if name is None else name]
        if stored.data.dtype.kind in "mM":
            # bounds that are already dates do not need the units of their coordinate
            for key in {*UNITS_OF_DATES} - stored.attributes.keys():
                variable.attrs.pop(key, None)
        if stored.data.dtype == CHARACTER and decoders.get("concat_characters") is False:
            variable.encoding[CHARACTER_AXIS] = None
    return {name: decoded[name] for name in order}, dict(results[1]), set(results[2])


def _check_scalar_names(variables: Mapping[Any, xr.Variable]) -> None:
    """Raise an error for a scalar named like a dimension, which xarray cannot represent."""
    dims = {dim for variable in variables.values() for dim in variable.dims}
    if wrong := [name for name, v in variables.items() if name in dims and not v.dims]:
        raise FormatError(
            f"variable {wrong[0]!r} is a scalar with the name of a dimension, which xarray cannot "
            f"hold; leave it out with drop_variables"
        )


def _to_virtual_array(
    name: str, stored: ManifestVariable, array: ManifestArray, decoded: xr.Variable
) -> ManifestArray:
    """Return a virtual array whose chunks decode as xarray decoded the variable."""
    if needs_all_values(stored, decoded):
        raise UnsupportedError(
            f"its values decode from {stored.dims} {array.dtype} to {decoded.dims} "
            f"{decoded.dtype}, which is impossible chunk by chunk; load it with "
            f"loadable_variables=[{name!r}]"
        )
    dtype = decoded.dtype
    if any(p.packing is not None for p in array.pipelines) and dtype == array.dtype:
        # pipelines already unpack the chunks of each file by its own packing
        return array
    packing = _find_packing(stored, array.dtype, decoded)
    if packing is not None and packing.is_identity and dtype == array.dtype:
        packing = None
    return append_unpacking(array, packing, dtype, name)


def _find_packing(
    stored: ManifestVariable, dtype: np.dtype[Any], decoded: xr.Variable
) -> Decoding | None:
    """Return the decoding that xarray applied, inferred from the attributes that it consumed."""
    used = {
        name: value
        for name, value in stored.attributes.items()
        if name in TIME_ATTRIBUTES and not (name in PACKING_ATTRIBUTES and name in decoded.attrs)
    }
    if decoded.dtype.kind in "Mm" and dtype.kind not in "Mm":
        # bounds use the units of their coordinate
        used |= {n: decoded.encoding[n] for n in UNITS_OF_DATES if n in decoded.encoding}
        return TimePacking.from_attributes(used, decoded.dtype)
    packed = {name: used[name] for name in PACKING_ATTRIBUTES if name in used}
    packing = Packing.from_attributes(dtype, packed, decoded.dtype)
    if packing is None and decoded.dtype != dtype.newbyteorder("=") and decoded.dtype != dtype:
        raise UnsupportedError(
            f"xarray decodes {dtype} to {decoded.dtype} by an unknown rule; load it "
            f"with loadable_variables"
        )
    return packing


# ---------------------------------------------------------------------- group -> tree


MakeDataset = Callable[[ManifestGroup], xr.Dataset]
"""A function that converts a group to a dataset, without the groups below."""


def to_lazy_datasets(
    group: ManifestGroup, on_error: str = "raise", **decoders: Any
) -> dict[str, xr.Dataset]:
    """Return a group and its subgroups as lazy datasets, by path.

    The group itself has the path ``""``. ``decoders`` are those of `to_lazy_dataset`, and
    ``on_error`` is what to do with variables that cannot be decoded.
    """
    return dict(_make_datasets(group, lambda part: to_lazy_dataset(part, **decoders), on_error))


def to_virtual_tree(group: ManifestGroup, opening: OpenOptions = OPEN_DEFAULTS) -> xr.DataTree:
    """Return a group and its subgroups as a tree of datasets of virtual arrays.

    Parameters and errors are as in `to_virtual_dataset`; ``opening.on_error`` says what to do with
    variables that cannot be decoded.
    """

    def make(part: ManifestGroup) -> xr.Dataset:
        return to_virtual_dataset(part, opening)

    return to_tree(dict(_make_datasets(group, make, opening.on_error)))


def _make_datasets(
    group: ManifestGroup, make: MakeDataset, on_error: str
) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the path and the dataset of a group and of each group below it."""
    for path, part in group.walk():
        with locating(f"group /{path}"):
            yield path, decode_group(part, on_error, make, f"group /{path}")


def to_tree(datasets: Mapping[str, xr.Dataset]) -> xr.DataTree:
    """Create a tree from datasets by path; the root has the path ``""``."""
    for path, dataset in datasets.items():
        if invalid := [name for name in dataset.variables if "/" in str(name)]:
            raise UnsupportedError(
                f"group /{path}: the variable {invalid[0]!r} has a slash in its name, which xarray "
                f"takes for a path within a tree; leave the variable out with drop_variables, or "
                f"open the group alone with virtualds.open_virtual_dataset"
            )
    try:
        return xr.DataTree.from_dict({f"/{path}": dataset for path, dataset in datasets.items()})
    except ValueError as error:
        message, _, details = f"{error}".partition(":\n")
        combine_error = CombineError(
            f"{message}: in a tree of xarray, a group and all below it have the same coordinate "
            f"and length of a dimension; open one group with "
            f"virtualds.open_virtual_dataset(url, group=...), or all separately with "
            f"xr.open_groups(url, engine='virtual')"
        )
        combine_error.add_note(details)
        raise combine_error from error


# ---------------------------------------------------------------------- group -> dataset or tree


def make_dataset_or_tree(
    location: Location,
    group: ManifestGroup,
    opening: OpenOptions,
    plan: DecodingPlan | None = None,
) -> Any:
    """Return a group of a file as a tree with ``opening.below``, else as a dataset.

    Its encoding names its source. ``plan`` is how the group decodes, if that is already known.
    """
    if plan is None:
        groups = [part for _, part in group.walk()] if opening.below else [group]
        fetch_coordinates(location.url, groups, opening)
    result: Any
    try:
        if opening.below:
            result = to_virtual_tree(group, opening)
        else:
            decode = partial(to_virtual_dataset, opening=opening, plan=plan)
            result = decode_group(group, opening.on_error, decode, location.url)
    except VirtualdsError as error:
        error.locate_file(location.url)
        raise
    except ValueError as error:
        url = without_secrets(location.url)
        if url not in str(error):
            error.add_note(f"file {url}")
        raise
    result.encoding["source"] = location.given
    return result


# ---------------------------------------------------------------------- dataset -> group


STORAGE_ENCODING = {*NO_FILTERS, "contiguous", "chunksizes", "preferred_chunks", "original_shape"}
"""Entries of encodings that are about storage, and never come from attributes of these names."""


def group_from_dataset(dataset: xr.Dataset) -> ManifestGroup:
    """Return a dataset as a group of variables, as a format would read it from a set.

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
    # sets refer only to valid urls; those of an existing set were checked when it was written
    arrays = [v.data for v in variables.values() if isinstance(v.data, ManifestArray)]
    manifests = (f.manifest for array in arrays for f in array.fragments)
    tables = drop_repeated_tables(m.listed_files for m in manifests if not m.is_in_set)
    for file in chain.from_iterable(tables):
        check_valid_url(file.url)
    # variables that were not decoded are stored unchanged
    not_decoded = [
        name for name, v in variables.items() if v.encoding.get(CHARACTER_AXIS, "") is None
    ]
    # decoding moves attributes such as units to the encoding, and fails if they are in it already
    variables = {
        name: replace(
            v,
            encoding={
                key: entry
                for key, entry in v.encoding.items()
                if key not in v.attributes or key in STORAGE_ENCODING
            },
        )
        for name, v in add_character_axis(variables, not_decoded).items()
    }
    return ManifestGroup(variables, attributes, encoding=dataset.encoding)


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
            f"its type {variable.dtype} is a pandas type, which files cannot hold; assign its "
            f"values as a numpy array: for categories their text or numbers, for periods their "
            f"start dates, for other types the values that represent them"
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
            f"and write that; if you mean to copy, call ds.load() first",
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
    has_date_units = " since " in str(variable.attrs.get("units", ""))
    is_time = has_date_units and variable.dtype.kind in "iuf"
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
    # do not try the same encoding twice, since decoding many dates takes long
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
        blocks = [*iterate_date_blocks(len(dates))]
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
