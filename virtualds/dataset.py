"""From groups of files to datasets and back.

xarray itself decodes: dtype, attributes and encoding of every variable are what it says of the
variable as stored. What stays virtual then gets the same decoding as the last step of its
pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.fill import default_fill
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import demand_backed, demand_values
from virtualds.chunks.columns import each_once
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES, Decoding, Packing
from virtualds.codecs.cf_time import TimePacking, may_be_finer
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.decoding.outline import Outline, Outlines, outline_key
from virtualds.decoding.part import MisfitError, Part, encoding_of, indexed, noted, unpacked
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.formats.undecodable import (
    COMPLAINTS,
    UndecodableError,
    complaints_about,
    decoded_together,
)
from virtualds.keywords import names_of
from virtualds.lazy import is_unread, lazily, virtual_data
from virtualds.loaded_values import TIME_ATTRIBUTES, encoded
from virtualds.options import get_options
from virtualds.references_behind import with_references
from virtualds.stores.access_rules import is_nameable

Loadable = None | str | Iterable[str] | Callable[[str, xr.Variable], bool]
"""Which variables to load: names or glob patterns, a predicate, or None for the default."""
OUTLINES = Outlines()
"""How groups decoded whose like may come again: an archive is of few structures."""
NO_NAME = "__values__"
"""What xarray calls a variable whose name is None when it writes it."""
DECODERS = ("mask_and_scale", "decode_times", "concat_characters", "decode_coords")
"""What ``decode_cf`` switches."""
IDENTITIES = ("_FillValue", "missing_value", "_Unsigned")
"""Packing attributes that need not change a value."""


# ---------------------------------------------------------------------- group -> dataset


def lazy_dataset(group: ManifestGroup, **decoders: Any) -> xr.Dataset:
    """Return a group as a dataset that reads when somebody looks, as native backends do.

    Parameters
    ----------
    group : ManifestGroup
    **decoders
        What `xarray.conventions.decode_cf_variables` takes: ``mask_and_scale`` and so on.
    """
    group = _named(group)
    variables, attributes, coordinates = _decoded(group, decoders)
    for name, variable in variables.items():
        stored = group.variables[NO_NAME if name is None else str(name)]
        array = stored.data
        if not isinstance(array, ManifestArray):
            continue
        with complaints_about(str(name)):
            unread = str(name) in group.problems
            if variable.dims == (name,) and not unread:
                demand_backed(array.nbytes, partial(_bytes_in_files, array), f"variable {name!r}")
            data = array if unread else _decoded_by_chunk(name, stored, array, variable)
        if data is not None:
            variables[name] = variable.copy(data=lazily(data, str(name), is_decoded=True))
    return _dataset(variables, attributes, coordinates, group)


def _bytes_in_files(array: ManifestArray) -> int:
    """Return how many bytes files have for an array, as far as their sizes are known."""
    total = 0
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        total += sum(map(len, manifest.inline))
        for number in np.unique(manifest.file[manifest.file >= 0]):
            wanted = int(manifest.length[manifest.file == number].sum())
            size = manifest.files[number].size
            total += wanted if size is None else min(wanted, size)
    return total


def _decoded_by_chunk(
    name: Hashable, stored: ManifestVariable, array: ManifestArray, decoded: xr.Variable
) -> ManifestArray | None:
    """Return an array whose chunks are decoded as they are read, None if chunks cannot be.

    xarray would do it in one thread, with the whole selection, step after step.
    """
    if _decodes_as_a_whole(stored, decoded):
        return None
    try:
        return virtual_data(_virtual(str(name), stored, array, decoded))
    except UnsupportedError:
        # xarray knows what to do, which is as good
        return None


def virtual_dataset(
    group: ManifestGroup, loadable: Loadable = None, decode_cf: bool = True
) -> xr.Dataset:
    """Return a group as a dataset of virtual arrays.

    Parameters
    ----------
    group : ManifestGroup
    loadable : names, glob patterns, predicate, or None
        Which variables to load; by default dimension coordinates, scalars, other coordinates that
        are small, and whatever exists only once it is loaded.
    decode_cf : bool
        Whether to decode CF conventions, as in `xarray.open_dataset`.

    Raises
    ------
    UnsupportedError
        A variable that is not to be loaded has values that only exist once it is.
    """
    if loadable is not None and not callable(loadable):
        loadable = list(names_of("loadable_variables", loadable))
    key = _key(group, loadable, decode_cf)
    outline = OUTLINES.get(key)
    if outline is not None:
        try:
            return _outlined(outline, group)
        except (MisfitError, *COMPLAINTS):
            # xarray says what is wrong with the values, if anything is
            pass
    outline, dataset = _decoded_dataset(group, loadable, decode_cf)
    if key is not None:
        OUTLINES.put(key, outline)
    return dataset


def known_outline(group: ManifestGroup, loadable: Loadable, decode_cf: bool) -> Outline | None:
    """Return how a group decodes, if a dataset has been made of one like it."""
    return OUTLINES.get(_key(group, loadable, decode_cf))


def _key(group: ManifestGroup, loadable: Loadable, decode_cf: bool) -> bytes | None:
    if callable(loadable):
        return None
    names = None if loadable is None else list(names_of("loadable_variables", loadable))
    return outline_key(group, names, decode_cf, get_options())


def _outlined(outline: Outline, group: ManifestGroup) -> xr.Dataset:
    """Return a group as a dataset, decoded as one of the same structure was.

    Raises
    ------
    MisfitError
        Values decode to something else.
    """
    variables: dict[Any, xr.Variable] = {}
    indexes: dict[Any, xr.Index] = {}
    for name, part in outline.parts.items():
        stored = group.variables[name]
        with noted(part):
            if part.is_index:
                variables[part.name], indexes[part.name] = part.index(stored)
            else:
                variables[part.name] = part.variable(stored)
    attributes = {n: v for n, v in group.attributes.items() if n not in outline.used}
    return _assembled(variables, indexes, attributes, outline.coordinates, group)


def _decoded_dataset(
    group: ManifestGroup, loadable: Loadable, decode_cf: bool
) -> tuple[Outline, xr.Dataset]:
    """Return a group as a dataset, all of it decoded by xarray, and how that was done."""
    decoders = {} if decode_cf else dict.fromkeys(DECODERS, False)
    group = _named(group)
    ahead = _read_ahead(group) if loadable is None else group
    variables, attributes, coordinates = _decoded(ahead, decoders)
    wanted, loaded = _chooser(loadable, coordinates), set()
    for name, variable in variables.items():
        stored = group.variables[NO_NAME if name is None else str(name)]
        if name in group.problems:
            variables[name] = xr.Variable(variable.dims, stored.data, variable.attrs)
            continue
        try:
            is_wanted = wanted(str(name), variable)
            with complaints_about(str(name)):
                if is_wanted or (loadable is None and _needs_loading(stored, variable)):
                    variables[name] = variable.compute()
                    loaded.add(name)
                elif isinstance(stored.data, ManifestArray):
                    variables[name] = _virtual(str(name), stored, stored.data, variable)
                elif isinstance(stored.data, np.ndarray):
                    variables[name] = variable.compute()
                    loaded.add(name)
        except VirtualdsError as error:
            error.add_note(f"variable {name!r}")
            raise
    names = [n for n, v in variables.items() if v.dims == (n,) and is_in_memory(v)]
    made = {}
    for name in names:
        with complaints_about(str(name)):
            made[name] = indexed(name, variables[name])
    variables |= {name: variable for name, (variable, _) in made.items()}
    indexes = {name: index for name, (_, index) in made.items()}
    parts = {}
    for name, variable in variables.items():
        known = NO_NAME if name is None else str(name)
        in_memory = name in loaded or name in made
        parts[known] = Part.of(name, group.variables[known], variable, in_memory, decode_cf)
    used = frozenset(group.attributes.keys() - attributes.keys())
    outline = Outline(parts, frozenset(coordinates), used)
    _demand_no_scalar_of_a_dimension(variables)
    return outline, _assembled(variables, indexes, attributes, coordinates, group)


def _assembled(
    variables: Mapping[Any, xr.Variable],
    indexes: Mapping[Any, xr.Index],
    attributes: Mapping[str, Any],
    coordinates: Collection[Hashable],
    group: ManifestGroup,
) -> xr.Dataset:
    """Put a dataset together of variables that are known to fit, and of indexes that are made.

    `xarray.Dataset` would align what is aligned, at the cost of all that was done before.
    """
    coords = {n: v for n, v in variables.items() if n in coordinates or v.dims == (n,)}
    ordered = {n: v for n, v in variables.items() if n not in coords} | coords
    # what is called like a dimension is a coordinate to xarray, whatever its own dimensions are
    named = {*coordinates}.union(*(v.dims for v in variables.values()))
    data = [name for name in variables if name not in named]
    dataset = xr.Coordinates(ordered, indexes=indexes).to_dataset().reset_coords(data)
    dataset.attrs = dict(attributes)
    dataset.encoding = {"unlimited_dims": set(), **group.encoding}
    return dataset


def _named(group: ManifestGroup) -> ManifestGroup:
    """Tell every array what it is called, for errors."""
    variables = {
        name: replace(v, data=replace(v.data, name=name))
        if isinstance(v.data, ManifestArray)
        else v
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables)


def _read_ahead(group: ManifestGroup) -> ManifestGroup:
    """Read what is loaded in any case once: decoding dates would look at it again and again.

    Raises
    ------
    UndecodableError
        Some of it cannot be loaded: it is too large.
    """
    read: dict[str, ManifestVariable] = {}
    problems: dict[str, VirtualdsError] = {}
    for name, array in loaded_first(group).items():
        try:
            with complaints_about(name):
                demand_values(array.nbytes, f"variable {name!r}")
                read[name] = replace(group.variables[name], data=array.read())
        except UndecodableError as error:
            problems |= error.problems
    if problems:
        raise UndecodableError(problems)
    return replace(group, variables={**group.variables, **read})


def loaded_first(group: ManifestGroup) -> dict[str, ManifestArray]:
    """Return the arrays that are loaded by default whatever they decode to, large ones too."""
    return {
        name: v.data
        for name, v in group.variables.items()
        if isinstance(v.data, ManifestArray)
        and v.dims in ((), (name,))
        and name not in group.problems
    }


def _decoded(group: ManifestGroup, decoders: Mapping[str, Any]) -> tuple[Any, Any, set[Hashable]]:
    """Return the variables of a group decoded, its attributes, and the names of coordinates.

    Raises
    ------
    UndecodableError
        xarray cannot decode some of them.
    """
    return decoded_together(group, lambda part: _by_xarray(part, decoders))


def _by_xarray(group: ManifestGroup, decoders: Mapping[str, Any]) -> tuple[Any, Any, set[Hashable]]:
    variables: dict[Any, xr.Variable] = {
        name: xr.Variable(v.dims, lazily(v.data, name), dict(v.attributes), encoding_of(v))
        for name, v in group.variables.items()
    }
    if NO_NAME in variables:
        variables[None] = variables.pop(NO_NAME)
    order = list(variables)
    # nobody knows what the values would be that cannot be read
    refused = {name: variables.pop(name) for name in order if name in group.problems}
    found = xr.conventions.decode_cf_variables(variables, dict(group.attributes), **decoders)
    decoded = {**found[0], **refused}
    for name, variable in decoded.items():
        stored = group.variables[NO_NAME if name is None else name]
        if stored.data.dtype.kind in "mM":
            # bounds that are dates already need not be told the units of what they bound
            for key in {"units", "calendar"} - stored.attributes.keys():
                variable.attrs.pop(key, None)
    return {name: decoded[name] for name in order}, dict(found[1]), set(found[2])


def _dataset(
    variables: Mapping[Any, xr.Variable],
    attributes: Mapping[str, Any],
    coordinates: set[Hashable],
    group: ManifestGroup,
) -> xr.Dataset:
    """Put a dataset together without building indexes, which would read."""
    _demand_no_scalar_of_a_dimension(variables)
    coords = {n: v for n, v in variables.items() if n in coordinates or v.dims == (n,)}
    data = {n: v for n, v in variables.items() if n not in coords}
    dataset = xr.Dataset(data, xr.Coordinates(coords, indexes={}), attributes)
    dataset.encoding = {"unlimited_dims": set(), **group.encoding}
    return dataset


def _demand_no_scalar_of_a_dimension(variables: Mapping[Any, xr.Variable]) -> None:
    """Refuse what no dataset of xarray holds: a scalar that is named like a dimension."""
    dims = {dim for variable in variables.values() for dim in variable.dims}
    if wrong := [name for name, found in variables.items() if name in dims and not found.dims]:
        raise FormatError(
            f"variable {wrong[0]!r} has no dimensions and is named like one, which xarray cannot "
            f"hold; leave it out with drop_variables"
        )


def _chooser(loadable: Loadable, coordinates: set[Hashable]) -> Callable[[str, xr.Variable], bool]:
    """Return what decides whether a variable is loaded.

    The default goes by what a variable is, so that it decides alike for every file of an archive.
    """
    if loadable is None:
        limit = get_options().small_variable
        return lambda name, v: (
            v.dims == (name,) or not v.dims or (name in coordinates and v.nbytes <= limit)
        )
    if callable(loadable):
        return loadable
    patterns = [loadable] if isinstance(loadable, str) else list(loadable)
    return lambda name, v: any(fnmatchcase(name, pattern) for pattern in patterns)


def _needs_loading(stored: ManifestVariable, decoded: xr.Variable) -> bool:
    """Say whether chunks cannot be decoded one by one, and the whole is not too large to load."""
    if not isinstance(stored.data, ManifestArray):
        return False
    return _decodes_as_a_whole(stored, decoded) and decoded.nbytes <= get_options().load_limit


def _decodes_as_a_whole(stored: ManifestVariable, decoded: xr.Variable) -> bool:
    """Say whether xarray only knows what becomes of a variable once it has all values.

    Characters become strings and dates objects; the unit of a duration may turn out finer than
    its attribute ``dtype`` says, and what is no number is none of a boolean's two values.
    """
    if decoded.dims != stored.dims or decoded.dtype.kind == "O":
        return True
    if decoded.dtype.kind == "m" and may_be_finer(stored.attributes, stored.data.dtype):
        return True
    numeric = {"_FillValue", "missing_value", "scale_factor", "add_offset"}
    used = stored.attributes.keys() - decoded.attrs.keys()
    return decoded.dtype.kind == "b" and not numeric.isdisjoint(used)


def is_in_memory(variable: xr.Variable) -> bool:
    return virtual_data(variable) is None


def _virtual(
    name: str, stored: ManifestVariable, array: ManifestArray, decoded: xr.Variable
) -> xr.Variable:
    """Return a decoded variable whose data are virtual and decode to the same."""
    if _decodes_as_a_whole(stored, decoded):
        raise UnsupportedError(
            f"its values decode from {stored.dims} {array.dtype} to {decoded.dims} "
            f"{decoded.dtype}, which chunks cannot do one by one; load it with "
            f"loadable_variables=[{name!r}]"
        )
    dtype = decoded.dtype
    if any(p.packing is not None for p in array.pipelines) and dtype == array.dtype:
        # each file was packed in its own way, which its pipeline undoes
        return xr.Variable(decoded.dims, array, decoded.attrs, decoded.encoding)
    packing = _packing(stored, array.dtype, decoded)
    if packing is not None and packing.is_identity and dtype == array.dtype:
        packing = None
    data = unpacked(array, packing, dtype, name)
    return xr.Variable(decoded.dims, data, decoded.attrs, decoded.encoding)


def _packing(
    stored: ManifestVariable, dtype: np.dtype[Any], decoded: xr.Variable
) -> Decoding | None:
    """Return the decoding step that xarray applied, as told by the attributes that it used up."""
    used = {
        name: value
        for name, value in stored.attributes.items()
        if name in TIME_ATTRIBUTES and not (name in PACKING_ATTRIBUTES and name in decoded.attrs)
    }
    if decoded.dtype.kind in "Mm" and dtype.kind not in "Mm":
        # bounds have the units of the variable that they belong to
        used |= {n: decoded.encoding[n] for n in ("units", "calendar") if n in decoded.encoding}
        return TimePacking.from_attributes(used, decoded.dtype)
    packed = {name: used[name] for name in PACKING_ATTRIBUTES if name in used}
    packing = Packing.from_attributes(dtype, packed, decoded.dtype)
    if packing is None and decoded.dtype != dtype.newbyteorder("=") and decoded.dtype != dtype:
        raise UnsupportedError(
            f"xarray decodes {dtype} to {decoded.dtype} by a rule that is not known here; load it "
            f"with loadable_variables"
        )
    return packing


# ---------------------------------------------------------------------- dataset -> group


def group_from_dataset(dataset: xr.Dataset) -> ManifestGroup:
    """Return a dataset as a group of variables as they are to be stored.

    Virtual arrays give back the packing that all their chunks share; loaded variables are encoded
    as their ``encoding`` says, or losslessly where that would change them.

    Raises
    ------
    UnsupportedError
        A variable cannot be encoded without changing its values.
    """
    dataset = with_references(dataset)
    coded, attributes = xr.conventions.encode_dataset_coordinates(dataset)
    variables = {}
    for name, variable in coded.items():
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise UnsupportedError(
                f"variable {name!r}: a name in a file is a string without '/'; rename it with "
                f"ds.rename"
            )
        try:
            variables[NO_NAME if name is None else name] = _stored(str(name), variable)
        except VirtualdsError as error:
            error.add_note(f"variable {name!r}")
            raise
    _check_urls(variables.values())
    return ManifestGroup(variables, attributes, encoding=dataset.encoding)


def _check_urls(variables: Iterable[ManifestVariable]) -> None:
    """Refuse files that no set may name, before one is written that nobody could open."""
    arrays = [v.data for v in variables if isinstance(v.data, ManifestArray)]
    manifests = (f.manifest for array in arrays for f in array.fragments)
    # what lies in a set has been named already
    tables = each_once(m.listed for m in manifests if not m.is_in_set)
    for file in chain.from_iterable(tables):
        if not is_nameable(file.url):
            raise UnsupportedError(
                f"{file.url!r}: a name with control characters, as line breaks are, cannot stand "
                f"in a reference set; rename the file"
            )


def _stored(name: str, variable: xr.Variable) -> ManifestVariable:
    dims = tuple(str(dim) for dim in variable.dims)
    if (data := virtual_data(variable)) is not None:
        array, packed = unpack(data)
        # what changed no value is known to the encoding alone
        same = all(p.packing is None for p in array.pipelines)
        kept = {n: variable.encoding[n] for n in IDENTITIES if same and n in variable.encoding}
        return ManifestVariable(dims, array, variable.attrs | (packed or kept), variable.encoding)
    _check_size(variable)
    plain = encoded(name, variable)
    return ManifestVariable(dims, np.asarray(plain.data), plain.attrs, variable.encoding)


def _check_size(variable: xr.Variable) -> None:
    """Refuse to write out what would have to be read or computed first, and is large."""
    limit = get_options().load_limit
    is_lazy = is_unread(variable) or variable.chunks is not None
    if is_lazy and variable.nbytes > limit:
        raise UnsupportedError(
            f"its {variable.nbytes:,} bytes would be read and written inline, more than the limit "
            f"of {limit:,}; open the source with virtualds.open_virtual_dataset, which keeps "
            f"references"
        )


def unpack(array: ManifestArray) -> tuple[ManifestArray, dict[str, Any] | None]:
    """Return an array as stored and its packing attributes, if all its chunks share one packing.

    Otherwise the array comes back as it is, with None.
    """
    packings = {p.packing for p in array.pipelines}
    dtypes = {p.dtype for p in array.pipelines}
    if len(packings) != 1 or len(dtypes) != 1:
        return array, None
    packing, dtype = packings.pop(), dtypes.pop()
    if (packing.dtype if packing else dtype.newbyteorder("=")) != array.dtype:
        return array, None
    pipelines: dict[CodecPipeline, None] = {replace(p, packing=None): None for p in array.pipelines}
    fill = default_fill(dtype)
    if array.has_gaps:
        if not array.gaps_read_as_missing:
            return array, None
        fill = array.pipelines[0].fill_value
    plain = replace(array, dtype=dtype, fill_value=fill, pipelines=tuple(pipelines))
    return plain, dict(packing.attributes) if packing else None
