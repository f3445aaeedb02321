"""How one stored variable decodes, as xarray told of one that is like it.

Dimensions, dtype, attributes and encoding of decoded variables follow from those of the stored
ones, but for dates and durations, where xarray looks at values too. What depends on values xarray
still decodes file by file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.fill import default_fill
from virtualds.arrays.group import ManifestVariable
from virtualds.chunks.alignment import to_preferred_chunks
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES, Decoding
from virtualds.datasets.lazy import to_lazy
from virtualds.errors import VirtualdsError

OWN_ENCODING = ("source", "preferred_chunks")
"""Encoding that a variable takes from its own file: the name of it, and what may be changed."""
SHARED_INDEX_BYTES = 2**16
"""Bytes of a coordinate, as stored, up to which equal ones of several files share an index."""


class MisfitError(Exception):
    """Values decode to something else than those of the group that an outline was made of."""


class _LoadedVariable(NamedTuple):
    """A variable whose values are in memory, as stored."""

    dims: tuple[str, ...]
    data: npt.NDArray[Any]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class VariableDecoding:
    """How one variable decodes.

    Parameters
    ----------
    name : str or None
        What xarray calls it.
    stored, decoded : tuple of dims and numpy dtype
        Of the variable in the file, and in the dataset.
    attributes, encoding : dict
        As decoded.
    declared, inherited : dict
        Attributes as stored, and those decoding takes from another variable: bounds
        have the units of what they bound.
    is_loaded : bool
    packing : Decoding or None
        How chunks decode, if it is not loaded.
    decodes : bool
        Whether CF conventions are decoded at all.
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

    @classmethod
    def of(
        cls, name: Any, stored: ManifestVariable, shown: xr.Variable, loaded: bool, decodes: bool
    ) -> VariableDecoding:
        """Note what became of a variable."""
        data = stored.data
        inherited = {
            key: shown.encoding[key]
            for key in ("units", "calendar")
            if key in shown.encoding.keys() - stored.attributes.keys() - stored.encoding.keys()
        }
        virtual = () if loaded or not isinstance(data, ManifestArray) else shown.data.pipelines
        return cls(
            name=name,
            stored=(stored.dims, data.dtype),
            decoded=(shown.dims, shown.dtype),
            attributes=dict(shown.attrs),
            encoding=dict(shown.encoding),
            declared=dict(stored.attributes),
            inherited=inherited,
            is_loaded=loaded,
            packing=virtual[0].packing if virtual else None,
            decodes=decodes,
        )

    @property
    def is_index(self) -> bool:
        """Whether it is loaded and becomes the index of its dimension."""
        return self.is_loaded and self.decoded[0] == (self.name,)

    @property
    def depends_on_values(self) -> bool:
        """Whether xarray looks at values to tell what they decode to."""
        return self.decoded[1].kind in "mMO" and self.decoded[1] != self.stored[1]

    def variable(self, stored: ManifestVariable) -> xr.Variable:
        """Return a variable decoded.

        Raises
        ------
        MisfitError
            Its values decode to something else.
        """
        if self.is_loaded:
            return self._own(self._by_xarray(self._read(stored)).compute(), stored)
        if not isinstance(stored.data, ManifestArray):
            return self._own(self._by_xarray(stored), stored)
        return self._own(xr.Variable(self.decoded[0], self.array(stored)), stored)

    def array(self, stored: ManifestVariable) -> ManifestArray:
        """Return the array of a variable that stays virtual, decoded.

        Raises
        ------
        MisfitError
            Its values decode to something else, or it is none that could stay virtual.
        """
        if self.is_loaded or not isinstance(stored.data, ManifestArray):
            raise MisfitError
        if self.depends_on_values:
            self._by_xarray(stored)
        return append_unpacking(stored.data, self.packing, self.decoded[1], str(self.name))

    def index(self, stored: ManifestVariable) -> tuple[xr.Variable, xr.Index]:
        """Return a dimension coordinate decoded, and its index, which other files may share.

        Raises
        ------
        MisfitError
            Its values decode to something else.
        """
        read = self._read(stored)
        if read.data.dtype.hasobject or read.data.nbytes > SHARED_INDEX_BYTES:
            found, index = build_index(self.name, self._by_xarray(read))
        else:
            found, index = _get_shared_index(self, read.data.tobytes())
        return self._own(found.copy(deep=False), stored), index

    def values(self, stored: ManifestVariable) -> npt.NDArray[Any]:
        """Return the values of a variable as stored.

        Raises
        ------
        ReadError
            Bytes cannot be had, have changed, or do not decode.
        """
        data = stored.data
        if isinstance(data, ManifestArray) and data.name != str(self.name):
            # for errors
            data = replace(data, name=str(self.name))
        return data if isinstance(data, np.ndarray) else data.read((slice(None),) * data.ndim)

    def _read(self, stored: ManifestVariable) -> _LoadedVariable:
        return _LoadedVariable(stored.dims, self.values(stored), stored.attributes)

    def decodes_like(self, other: VariableDecoding) -> bool:
        """Say whether the same stored values mean the same in both."""
        return self is other or (
            (self.stored, self.decoded, self.decodes)
            == (other.stored, other.decoded, other.decodes)
            and has_same_attributes(self._declared, other._declared)
        )

    @property
    def _declared(self) -> dict[str, Any]:
        """The attributes that decoding goes by."""
        return {**self.declared, **self.inherited}

    def decoded_values(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values decoded.

        Raises
        ------
        MisfitError
            They decode to something else.
        """
        return np.asarray(self.decoded_variable(values).compute().data)

    def decoded_variable(self, values: npt.NDArray[Any]) -> xr.Variable:
        """Return values as xarray decodes them.

        Raises
        ------
        MisfitError
            They decode to something else.
        """
        return self._by_xarray(_LoadedVariable(self.stored[0], values, self.declared))

    def goes_by_elements(self, values: npt.NDArray[Any]) -> bool:
        """Say whether what one of these values decodes to has nothing to do with the others.

        Of dates xarray looks for the finest unit that all of them need, which is no matter for
        whole numbers.
        """
        if self.stored[0] != self.decoded[0] or values.dtype.hasobject:
            return False
        if not self.depends_on_values:
            return True
        if not self.declared.keys().isdisjoint(("dtype", *PACKING_ATTRIBUTES)):
            return False
        whole = values.dtype.kind in "iu" or bool((np.rint(values) == values).all())
        return self.decoded[1].kind in "mM" and whole

    def _by_xarray(self, stored: ManifestVariable | _LoadedVariable) -> xr.Variable:
        """Return a variable as xarray decodes it by itself, read when somebody looks."""
        attributes = {**stored.attributes, **self.inherited}
        raw = xr.Variable(stored.dims, to_lazy(stored.data, self.name), attributes)
        found = xr.conventions.decode_cf_variable(
            self.name,
            raw,
            mask_and_scale=self.decodes,
            decode_times=self.decodes,
            concat_characters=self.decodes,
            stack_char_dim=self.decoded[0] != self.stored[0],
        )
        if (found.dims, found.dtype) != self.decoded:
            raise MisfitError
        return found

    def _own(self, found: xr.Variable, stored: ManifestVariable) -> xr.Variable:
        """Give a variable attributes and encoding that no other file's shares."""
        own = {n: v for n, v in encoding_of(stored).items() if n in OWN_ENCODING}
        found.attrs = {n: stored.attributes.get(n, v) for n, v in self.attributes.items()}
        # in the order of the first file: who opens which first is not to be seen
        alike = {n: v for n, v in self.encoding.items() if n in own or n not in OWN_ENCODING}
        found.encoding = {**alike, **own}
        return found


@contextmanager
def name_variable_in_errors(part: VariableDecoding) -> Iterator[None]:
    """Let errors within the block say what variable it was."""
    try:
        yield
    except VirtualdsError as error:
        error.add_note(f"variable {part.name!r}")
        raise


def all_decode_alike(parts: Sequence[VariableDecoding]) -> bool:
    """Say whether the same stored values mean the same in all of some groups."""
    # groups share their parts, and most of them one
    return all(part.decodes_like(parts[0]) for part in {id(part): part for part in parts}.values())


def decode_together(
    parts: Sequence[VariableDecoding], values: Sequence[npt.NDArray[Any]], dim: Hashable
) -> npt.NDArray[Any]:
    """Return stored values of a variable of several groups, decoded and joined along a dimension.

    Raises
    ------
    MisfitError
        Some decode to something else.
    """
    one = parts[0]
    if all_decode_alike(parts):
        whole = np.concatenate(values, axis=one.stored[0].index(str(dim)))
        if one.goes_by_elements(whole):
            return one.decoded_values(whole)
    decoded = [part.decoded_values(some) for part, some in zip(parts, values, strict=True)]
    return np.concatenate(decoded, axis=one.decoded[0].index(dim))


def has_same_attributes(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether attributes are the same to xarray."""
    first, second = (xr.Variable((), 0, attributes) for attributes in (one, other))
    return bool(first.identical(second))  # type: ignore[no-untyped-call]


@lru_cache(256)
def _get_shared_index(part: VariableDecoding, raw: bytes) -> tuple[xr.Variable, xr.Index]:
    """Return a coordinate from its bytes, and its index."""
    return build_index(part.name, part.decoded_variable(np.frombuffer(raw, part.stored[1])))


def build_index(name: Any, variable: xr.Variable) -> tuple[xr.Variable, xr.Index]:
    """Return a variable as the index of its dimension, and that index."""
    found = xr.Coordinates({name: variable})
    return found.variables[name], found.xindexes[name]


def append_unpacking(
    array: ManifestArray, packing: Decoding | None, dtype: np.dtype[Any], name: str
) -> ManifestArray:
    """Return an array whose chunks are unpacked as the last step of decoding them."""
    fill = default_fill(dtype)
    alike = array.dtype == dtype and array.fill_value is fill
    if packing is None and alike and not array.has_gaps:
        return array if array.name == name else replace(array, name=name)
    pipelines = tuple(
        [p if p.packing is packing else replace(p, packing=packing) for p in array.pipelines]
    )
    if array.has_gaps:
        # gaps of a file are numbers as stored, and decode as they do
        stored = np.full((1,), array.fill_value, array.dtype.newbyteorder("="))
        fill = (packing.decode(stored) if packing else stored.astype(dtype))[0]
    return ManifestArray(array.shape, dtype, fill, pipelines, array.fragments, name)


def encoding_of(variable: ManifestVariable) -> dict[str, Any]:
    """Return the encoding of a variable, with the chunks that dask is to have if they are ragged.

    What is regular has them from its source; what lies in one piece may be cut anywhere.
    """
    data = variable.data
    if "preferred_chunks" in variable.encoding or not isinstance(data, ManifestArray):
        return dict(variable.encoding)
    if data.nchunks < 2:
        return dict(variable.encoding)
    chunks = dict(zip(variable.dims, map(to_preferred_chunks, data.blocks), strict=True))
    return {**variable.encoding, "preferred_chunks": chunks}
