"""Decode stored variables as xarray decoded other variables of the same structure.

The stored dimensions, dtype, attributes and encoding determine the decoded ones, except for dates
and durations, where xarray also looks at values. Variables that depend on values are decoded by
xarray file by file. The files of an archive mostly decode alike: a `DecodingPlan` holds how xarray
decoded one group, and applies to every group with equal names, shapes, dtypes, attributes and
encoding.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, count
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray, get_default_fill
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import ValuesPerFile
from virtualds.chunks.fragment import to_preferred_chunks
from virtualds.codecs.cf import (
    CALENDARS,
    PACKING_ATTRIBUTES,
    UNITS_OF_DATES,
    Decoding,
    TimePacking,
    iterate_date_blocks,
)
from virtualds.codecs.cf import are_date_units as are_date_units
from virtualds.datasets.lazy import to_lazy
from virtualds.errors import locating

TIME_ATTRIBUTES = (*UNITS_OF_DATES, "dtype", *PACKING_ATTRIBUTES)
"""Attributes that determine how dates, durations and packed numbers decode."""
CHARACTER = np.dtype("S1")
"""The type of characters, which xarray joins along their last axis (NUG, "Strings")."""
CHARACTER_AXIS = "char_dim_name"
"""The encoding entry that names the axis of characters; None for data that were not decoded."""
PER_FILE_ENCODING = ("source", "preferred_chunks")
"""Names of encoding entries that differ between files."""
SHARED_INDEX_BYTES = 2**16
"""Size in bytes up to which files with equal values of a coordinate share its index."""


UNNAMED = "__values__"
"""The name that xarray writes for a variable without a name."""
DEFAULT_DATES = np.dtype("M8[ns]")
"""The dtype that xarray gives to dates unless they need another."""
SECONDS = {"days": 86400.0, "day": 86400.0, "hours": 3600.0, "minutes": 60.0}
"""Units of dates, in seconds. In other units, only whole numbers are known to be whole seconds."""


class MisfitError(Exception):
    """Raised by methods that decode by a plan, if values do not decode as planned."""


@dataclass(frozen=True, eq=False)
class VariableDecoding:
    """The decoding of one variable.

    ``name`` is its name in xarray. ``stored`` and ``decoded`` are the dims and dtype before and
    after decoding; ``attributes`` and ``encoding`` are those after it. ``declared`` are the stored
    attributes, and ``inherited`` those that come from another variable: bounds use the units of
    their coordinate. ``packing`` says how chunks decode, if the variable is not loaded, and
    ``decodes`` whether CF conventions are decoded. ``dated_by`` is the name of the stored variable
    whose ``units`` have the reference date: this variable, or the one whose bounds it holds. The
    reference date may differ between files.
    """

    name: Any
    stored: tuple[tuple[str, ...], np.dtype[Any]]
    decoded: tuple[tuple[Hashable, ...], np.dtype[Any]]
    attributes: Mapping[str, Any]
    encoding: Mapping[str, Any]
    declared: Mapping[str, Any]
    inherited: Mapping[str, Any]
    is_loaded: bool
    packing: Decoding | None
    decodes: bool
    dated_by: str | None = None

    @classmethod
    def of(
        cls, name: Any, group: ManifestGroup, decoded: xr.Variable, loaded: bool, decodes: bool
    ) -> VariableDecoding:
        """Derive the decoding of a variable from its stored and decoded forms."""
        stored_name = UNNAMED if name is None else str(name)
        stored = group.variables[stored_name]
        data = stored.data
        inherited = {
            key: decoded.encoding[key]
            for key in UNITS_OF_DATES
            if key in decoded.encoding.keys() - stored.attributes.keys() - stored.encoding.keys()
        }
        pipelines = () if loaded or not isinstance(data, ManifestArray) else decoded.data.pipelines
        is_date = decoded.dtype.kind in "MO" and data.dtype.kind not in "MO"
        dated_by = None
        if is_date and are_date_units(decoded.encoding.get("units")):
            # bounds take their units from their coordinate (CF 7.1)
            coordinate_names = (
                n
                for n, v in group.variables.items()
                if v.attributes.get("bounds") == stored_name
                and are_date_units(v.attributes.get("units"))
            )
            dated_by = stored_name if "units" in stored.attributes else next(coordinate_names, None)
        return cls(
            name=name,
            stored=(stored.dims, data.dtype),
            decoded=(decoded.dims, decoded.dtype),
            attributes=dict(decoded.attrs),
            encoding=dict(decoded.encoding),
            declared=dict(stored.attributes),
            inherited=inherited,
            is_loaded=loaded,
            packing=pipelines[0].packing if pipelines else None,
            decodes=decodes,
            dated_by=dated_by,
        )

    def with_units(self, units: Any) -> VariableDecoding:
        """Return the decoding of the same variable in a file with another reference date."""
        if not are_date_units(units):
            raise MisfitError
        new_units, packing = {"units": units}, self.packing
        if isinstance(packing, TimePacking):
            packing = TimePacking.from_attributes(
                {**packing.attributes, **new_units}, packing.dtype
            )
        return replace(
            self,
            declared={**self.declared, **(new_units if "units" in self.declared else {})},
            inherited={**self.inherited, **(new_units if "units" in self.inherited else {})},
            encoding={**self.encoding, **new_units},
            packing=packing,
        )

    @property
    def is_index(self) -> bool:
        """Whether the variable is loaded and indexes its dimension."""
        return self.is_loaded and self.decoded[0] == (self.name,)

    @property
    def units(self) -> Any:
        """The units of dates, including the reference date."""
        return self._decoding_attributes.get("units")

    @property
    def depends_on_values(self) -> bool:
        """Whether the decoded dtype depends on the values."""
        return self.decoded[1].kind in "mMO" and self.decoded[1] != self.stored[1]

    def decode_variable(self, stored: ManifestVariable) -> xr.Variable:
        """Return a decoded variable."""
        if self.is_loaded:
            values = self._read_stored(stored)
            variable = self._decode_by_xarray(replace(stored, data=values))
            return self._unshare(load_decoded(variable, values, stored.attributes), stored)
        if not isinstance(stored.data, ManifestArray):
            return self._unshare(self._decode_by_xarray(stored), stored)
        array = self.decode_array(stored)
        # without fastpath, xarray imports dask to check whether this is a dask array
        return self._unshare(xr.Variable(self.decoded[0], array, fastpath=True), stored)

    def decode_array(self, stored: ManifestVariable) -> ManifestArray:
        """Return the decoded array of a variable that stays virtual."""
        if self.is_loaded or not isinstance(stored.data, ManifestArray):
            raise MisfitError
        if self.depends_on_values:
            self._decode_by_xarray(stored)
        return self.unpack(stored)

    def unpack(self, stored: ManifestVariable) -> ManifestArray:
        """Return the decoded array of a virtual variable, without checking its values."""
        array: Any = stored.data
        return append_unpacking(array, self.packing, self.decoded[1], str(self.name))

    def build_index(self, stored: ManifestVariable) -> tuple[xr.Variable, xr.Index]:
        """Return a decoded dimension coordinate and its index, which files may share."""
        values = self._read_stored(stored)
        if values.dtype.hasobject or values.nbytes > SHARED_INDEX_BYTES:
            variable, index = build_index(self.name, self.decode_as_variable(values))
        else:
            variable, index = _get_shared_index(self, values.tobytes())
        return self._unshare(variable.copy(deep=False), stored), index

    def load_values(self, stored: ManifestVariable) -> npt.NDArray[Any]:
        """Return the stored values of a variable."""
        data = stored.data
        if isinstance(data, ManifestArray) and data.name != str(self.name):
            # so that errors name the variable
            data = replace(data, name=str(self.name))
        return data if isinstance(data, np.ndarray) else data.read((slice(None),) * data.ndim)

    def load(self, stored: ManifestVariable) -> ManifestVariable:
        """Return a variable with its stored values in memory, and the encoding of its chunks."""
        values = self.load_values(stored)
        if values is stored.data:
            return stored
        return replace(stored, data=values, encoding=encoding_of(stored))

    def _read_stored(self, stored: ManifestVariable) -> npt.NDArray[Any]:
        """Return the stored values of a variable, in the byte order of the plan."""
        values = self.load_values(stored)
        if values.dtype != self.stored[1] and values.dtype == self.stored[1].newbyteorder("="):
            # concatenated values have native byte order
            values = values.astype(self.stored[1])
        return values

    def decodes_like(self, other: VariableDecoding) -> bool:
        """Return whether both decode equal stored values to equal results."""
        return self is other or (
            (self.stored, self.decoded, self.decodes)
            == (other.stored, other.decoded, other.decodes)
            and have_same_attributes(self._decoding_attributes, other._decoding_attributes)
        )

    @property
    def _decoding_attributes(self) -> dict[str, Any]:
        """The attributes that decoding uses, including inherited ones."""
        return {**self.declared, **self.inherited}

    @property
    def attributes_without_date_units(self) -> dict[str, Any]:
        """The attributes that decoding uses, without the units of dates."""
        return {
            n: v
            for n, v in self._decoding_attributes.items()
            if n != "units" or self.dated_by is None
        }

    def decode_values(self, values: npt.NDArray[Any], in_place: bool = False) -> npt.NDArray[Any]:
        """Decode stored values, and check that the result fits the plan.

        With ``in_place``, the result may overwrite the values, to save memory.
        """
        if (
            self.decoded[1] == DEFAULT_DATES
            and self.stored[0] == self.decoded[0]
            # reference dates often differ between files, and xarray is slow to decode each
            and (packing := find_default_packing(self._decoding_attributes)) is not None
            and (dates := packing.decode_linearly(values, in_place)) is not None
        ):
            return dates
        return np.asarray(self.decode_as_variable(values).data)

    def check_ends(self, ends: npt.NDArray[Any]) -> None:
        """Check, from its first and last values, that a virtual variable decodes as planned.

        These are the values from which xarray infers the dtype.
        """
        ends_decoding = replace(
            self, stored=(("ends",), self.stored[1]), decoded=(("ends",), self.decoded[1])
        )
        ends_decoding.decode_values(ends)

    def decode_as_variable(self, values: npt.NDArray[Any]) -> xr.Variable:
        """Return stored values as a variable in memory, decoded as xarray decodes them."""
        stored = ManifestVariable(self.stored[0], values, self.declared)
        return load_decoded(self._decode_by_xarray(stored), values, self.declared)

    def is_elementwise(self, values: npt.NDArray[Any]) -> bool:
        """Return whether each value decodes independently of the others.

        xarray chooses the finest unit that any of the dates needs. For integers and whole seconds,
        that unit never depends on the values. Dates in calendars that numpy lacks are objects,
        which xarray decodes one by one.
        """
        if self.stored[0] != self.decoded[0] or values.dtype.hasobject:
            return False
        if not self.depends_on_values:
            return True
        if not self.declared.keys().isdisjoint(("dtype", *PACKING_ATTRIBUTES)):
            return False
        if self.decoded[1].kind == "O" and values.dtype.kind in "iuf":
            is_numpy_calendar = (
                str(self._decoding_attributes.get("calendar", "")).lower() in CALENDARS
            )
            return not is_numpy_calendar and bool(np.isfinite(values).all())
        if self.decoded[1].kind not in "mM" or values.dtype.kind in "iu":
            return self.decoded[1].kind in "mM"
        unit, *_ = str(self._decoding_attributes.get("units", "")).split() or [""]
        scale = SECONDS.get(unit.lower(), 1.0)
        flat = values.reshape(-1)
        blocks = (flat[block] * scale for block in iterate_date_blocks(flat.size))
        return all((np.rint(seconds) == seconds).all() for seconds in blocks)

    def _decode_by_xarray(self, stored: ManifestVariable) -> xr.Variable:
        """Return a variable that xarray decodes on its own, and reads on access."""
        attributes = {**stored.attributes, **self.inherited}
        raw = xr.Variable(stored.dims, to_lazy(stored.data, self.name), attributes)
        decoded = xr.conventions.decode_cf_variable(
            self.name,
            raw,
            mask_and_scale=self.decodes,
            decode_times=self.decodes,
            concat_characters=self.decodes,
            stack_char_dim=self.decoded[0] != self.stored[0],
        )
        if (decoded.dims, decoded.dtype) != self.decoded:
            raise MisfitError
        return decoded

    def _unshare(self, variable: xr.Variable, stored: ManifestVariable) -> xr.Variable:
        """Give a variable copies of the attributes and encoding that it shares with other files."""
        file_encoding = {n: v for n, v in encoding_of(stored).items() if n in PER_FILE_ENCODING}
        variable.attrs = {n: stored.attributes.get(n, v) for n, v in self.attributes.items()}
        # keep the order of entries of the first file, even if another file was opened first
        shared_encoding = {
            n: v
            for n, v in self.encoding.items()
            if n in file_encoding or n not in PER_FILE_ENCODING
        }
        variable.encoding = {**shared_encoding, **file_encoding}
        return variable


def all_decode_alike(parts: Sequence[VariableDecoding]) -> bool:
    """Return whether equal stored values of a variable decode to equal results in all groups."""
    # compare each object once, since groups share them
    return all(part.decodes_like(parts[0]) for part in {id(part): part for part in parts}.values())


def decode_together(
    parts: Sequence[VariableDecoding], values: Sequence[npt.NDArray[Any]], dim: Hashable
) -> npt.NDArray[Any]:
    """Decode the stored values of one variable of several groups, and concatenate them."""
    first = parts[0]
    if all_decode_alike(parts) and (whole := decode_whole(first, values, dim)) is not None:
        return whole
    decoded = [
        part.decode_values(part_values) for part, part_values in zip(parts, values, strict=True)
    ]
    return np.concatenate(decoded, axis=first.decoded[0].index(dim))


def decode_whole(
    part: VariableDecoding, values: Sequence[npt.NDArray[Any]], dim: Hashable
) -> npt.NDArray[Any] | None:
    """Concatenate stored values and decode them, or return None if a value depends on others."""
    stored = np.concatenate(values, axis=part.stored[0].index(str(dim)))
    return part.decode_values(stored, in_place=True) if part.is_elementwise(stored) else None


def load_decoded(variable: xr.Variable, stored: Any, attributes: Mapping[str, Any]) -> xr.Variable:
    """Load a variable that xarray decodes lazily.

    ``stored`` are its stored values, and ``attributes`` those that it had before decoding.
    """
    if (
        variable.dtype == DEFAULT_DATES
        and isinstance(stored, np.ndarray)
        and stored.shape == variable.shape
    ):
        # bounds have the units of their coordinate
        units = {n: variable.encoding[n] for n in UNITS_OF_DATES if n in variable.encoding}
        # xarray makes three copies, which take much memory for many dates
        packing = find_default_packing({**attributes, **units})
        if packing is not None and (dates := packing.decode_linearly(stored)) is not None:
            # without fastpath, xarray imports dask to check whether this is a dask array
            fields = (variable.dims, dates, variable.attrs, variable.encoding)
            return xr.Variable(*fields, fastpath=True)
    return variable.compute()


def find_default_packing(attributes: Mapping[str, Any]) -> TimePacking | None:
    """Return the packing of dates of the dtype that xarray prefers, or None without units."""
    used = {n: v for n, v in attributes.items() if n in TIME_ATTRIBUTES}
    # some formats store dates as numpy does, without units
    return TimePacking.from_attributes(used, DEFAULT_DATES) if "units" in used else None


def have_same_attributes(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Return whether xarray considers the attributes identical."""
    first, second = (xr.Variable((), 0, attributes) for attributes in (left, right))
    return bool(first.identical(second))  # type: ignore[no-untyped-call]


@lru_cache(256)
def _get_shared_index(part: VariableDecoding, raw: bytes) -> tuple[xr.Variable, xr.Index]:
    """Return the coordinate decoded from stored bytes, and its index."""
    return build_index(part.name, part.decode_as_variable(np.frombuffer(raw, part.stored[1])))


def build_index(name: Any, variable: xr.Variable) -> tuple[xr.Variable, xr.Index]:
    """Return a variable as the index variable of its dimension, and its index."""
    if variable.dtype == DEFAULT_DATES:
        # pandas would copy the dates
        variable = variable.copy(deep=False, data=pd.Index(variable.values, copy=False))
    coordinates = xr.Coordinates({name: variable})
    return coordinates.variables[name], coordinates.xindexes[name]


def find_joined_characters(variables: Mapping[str, ManifestVariable]) -> list[str]:
    """Return the names of variables whose characters xarray joins when it decodes the group.

    xarray joins along an axis that only characters have, so this depends on all variables.
    """
    if not any(v.data.dtype == CHARACTER and v.dims for v in variables.values()):
        return []
    stored = {name: xr.Variable(v.dims, to_lazy(v.data, name)) for name, v in variables.items()}
    decoded, *_ = xr.conventions.decode_cf_variables(
        stored, {}, mask_and_scale=False, decode_times=False, decode_coords=False
    )
    return [name for name, variable in stored.items() if decoded[name].dims != variable.dims]


def add_character_axis(
    variables: Mapping[str, ManifestVariable], joined: Collection[str]
) -> dict[str, ManifestVariable]:
    """Add a character axis of length 1 to single characters that xarray would otherwise join.

    netCDF stores them in this way. ``joined`` are the names of variables whose characters xarray
    should join.
    """
    result = dict(variables)
    used_names = {*variables}.union(*(v.dims for v in variables.values()))
    for name in find_joined_characters(variables):
        if name in joined:
            continue
        variable = variables[name]
        preferred = str(variable.encoding.get(CHARACTER_AXIS, "string1"))
        names = chain([preferred, "string1"], (f"string1_{n}" for n in count(2)))
        dim = next(name for name in names if name not in used_names)
        data = np.expand_dims(variable.data, -1)  # type: ignore[arg-type]
        result[name] = replace(variable, dims=(*variable.dims, dim), data=data)
    return result


def make_independent_of_left_out(group: ManifestGroup) -> ManifestGroup:
    """Return a group, with all below it, that decodes independently of left-out variables."""
    variables = add_character_axis(
        group.variables, find_joined_characters({**group.variables, **group.left_out})
    )
    for coordinate in group.left_out.values():
        units, name = (coordinate.attributes.get(key) for key in ("units", "bounds"))
        if name in variables and isinstance(units, str) and "since" in units:
            date_attributes = {
                k: v for k, v in coordinate.attributes.items() if k in UNITS_OF_DATES
            }
            bounds = variables[name]
            variables[name] = replace(bounds, attributes={**date_attributes, **bounds.attributes})
    subgroups = {name: make_independent_of_left_out(child) for name, child in group.groups.items()}
    return replace(group, variables=variables, groups=subgroups, left_out={})


def append_unpacking(
    array: ManifestArray, packing: Decoding | None, dtype: np.dtype[Any], name: str
) -> ManifestArray:
    """Return an array whose chunks are unpacked after their codecs are decoded."""
    fill = get_default_fill(dtype)
    is_unchanged = array.dtype == dtype and array.fill_value is fill
    if packing is None and is_unchanged and not array.has_gaps:
        return array if array.name == name else replace(array, name=name)
    pipelines = tuple(
        [p if p.packing is packing else replace(p, packing=packing) for p in array.pipelines]
    )
    if array.has_gaps:
        # missing chunks read as the stored fill value, which is unpacked as well
        stored = np.full((1,), array.fill_value, array.dtype.newbyteorder("="))
        fill = (packing.decode(stored) if packing else stored.astype(dtype))[0]
    return ManifestArray(array.shape, dtype, fill, pipelines, array.fragments, name)


def encoding_of(variable: ManifestVariable) -> dict[str, Any]:
    """Return the encoding of a variable, with chunk lengths for dask if they vary.

    The encoding of the source already has regular chunks, and a single chunk needs no entry.
    """
    data = variable.data
    if "preferred_chunks" in variable.encoding or not isinstance(data, ManifestArray):
        return dict(variable.encoding)
    if data.nchunks < 2:
        return dict(variable.encoding)
    chunks = dict(zip(variable.dims, map(to_preferred_chunks, data.blocks), strict=True))
    return {**variable.encoding, "preferred_chunks": chunks}


@dataclass(frozen=True, eq=False)
class DecodingPlan:
    """The decoding of all variables of a group.

    ``parts`` maps the names of stored variables to their decoding. ``coordinates`` are the names of
    coordinates, and ``used`` the group attributes that decoding consumes. ``derived_from`` is the
    plan from which this one was derived, if they differ only in units of dates.
    """

    parts: Mapping[str, VariableDecoding]
    coordinates: frozenset[Hashable]
    used: frozenset[str]
    derived_from: DecodingPlan | None = None

    @property
    def schema(self) -> DecodingPlan:
        """The plan that stands for all plans that differ from it only in units of dates."""
        return self.derived_from or self

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _unpickle_plan, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        """The pickled plan, cached since many files share it."""
        return pickle.dumps((self.parts, self.coordinates, self.used), 5)

    def with_units_of(self, group: ManifestGroup) -> DecodingPlan:
        """Return the plan of a group with the same structure and other reference dates."""
        parts = {
            name: part.with_units(units)
            for name, part in self.parts.items()
            if part.dated_by is not None
            and (units := group.variables[part.dated_by].attributes["units"]) != part.units
        }
        if not parts:
            return self
        return replace(self, parts={**self.parts, **parts}, derived_from=self.schema)

    def select_attributes(self, group: ManifestGroup) -> dict[str, Any]:
        """Return the attributes of a group that decoding does not consume."""
        return {n: v for n, v in group.attributes.items() if n not in self.used}

    def find_index(self, dim: Hashable) -> str | None:
        """Return the name of the variable that indexes a dimension, or None if there is none."""
        found = (name for name, part in self.parts.items() if part.name == dim and part.is_index)
        return next(found, None)

    def list_parts(
        self, name: str, attributes: ValuesPerFile, count: int
    ) -> list[VariableDecoding]:
        """Return the decoding of a variable in each of several files.

        ``attributes`` are the attributes that differ between the files, with the value in each.
        """
        part = self.parts[name]
        units = None if part.dated_by is None else attributes.get((part.dated_by, "units"))
        if units is None:
            return [part] * count
        part_of_units = {part.units: part}
        for unit in units:
            if unit not in part_of_units:
                part_of_units[unit] = part.with_units(unit)
        return [part_of_units[unit] for unit in units]

    def decode_variables(
        self, group: ManifestGroup
    ) -> tuple[dict[Any, xr.Variable], dict[Any, xr.Index]]:
        """Return the decoded variables of a group, and the indexes of its dimensions."""
        variables: dict[Any, xr.Variable] = {}
        indexes: dict[Any, xr.Index] = {}
        for name, part in self.parts.items():
            stored = group.variables[name]
            with locating(f"variable {part.name!r}"):
                if part.is_index:
                    variables[part.name], indexes[part.name] = part.build_index(stored)
                else:
                    variables[part.name] = part.decode_variable(stored)
        return variables, indexes

    def load(self, group: ManifestGroup) -> ManifestGroup:
        """Return a group with the stored values of its loaded variables in memory."""
        variables = dict(group.variables)
        for name, part in self.parts.items():
            if part.is_loaded:
                with locating(f"variable {part.name!r}"):
                    variables[name] = part.load(group.variables[name])
        return replace(group, variables=variables)


@lru_cache(64)
def _unpickle_plan(pickled: bytes) -> DecodingPlan:
    """Return the plan in a pickle; equal pickles give one shared plan, also in this process."""
    return DecodingPlan(*pickle.loads(pickled))


ANY_DATES = ("units of dates",)
"""Replaces the units of dates in the key of a plan."""


def make_plan_key(group: ManifestGroup, decodes: bool, *options: Any) -> bytes | None:
    """Return a key of everything on which the plan of a group depends, or None if it has no key.

    The key is a pickle. Groups with equal keys have the same structure, except for the reference
    dates.
    """
    if group.problems:
        return None
    variables = []
    for name, variable in group.variables.items():
        data, attributes = variable.data, dict(variable.attributes)
        is_virtual = isinstance(data, ManifestArray)
        if isinstance(data, ManifestArray) and any(p.packing is not None for p in data.pipelines):
            # chunks are already unpacked, with the packing of each file
            return None
        if decodes and data.dtype.kind in "iuf" and are_date_units(attributes.get("units")):
            attributes["units"] = ANY_DATES
        special = data.has_gaps if isinstance(data, ManifestArray) else isinstance(data, np.ndarray)
        encoding = {n: v for n, v in encoding_of(variable).items() if n != "source"}
        shape = (variable.dims, is_virtual, special, data.dtype, data.shape)
        variables.append((name, *shape, attributes, encoding))
    left_out = [(n, v.dims, v.data.dtype, dict(v.attributes)) for n, v in group.left_out.items()]
    coordinates = group.attributes.get("coordinates")
    try:
        return pickle.dumps((variables, left_out, coordinates, decodes, options), 5)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None


IDENTITY_ATTRIBUTES = ("_FillValue", "missing_value", "_Unsigned")
"""Packing attributes that may leave all values unchanged."""
