"""Read from an aggregation file where the fragments of its variables are.

CF conventions 1.13, section 2.8 "Aggregation Variables" and appendix L; before that, CFA
conventions 0.6.2. An aggregation variable is a scalar that names the dimensions of the array
(``aggregated_dimensions``) and the variables that describe its fragments (``aggregated_data``):
their lengths along each dimension, and the file and variable of each, or its only value.
`virtualds.datasets.aggregation` assembles the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import AGGREGATED_DATA, AGGREGATED_DIMENSIONS, is_aggregation
from virtualds.bounds import check_axes, check_values
from virtualds.chunks.axes import MAX_AXIS_LENGTH
from virtualds.errors import (
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    without_secrets,
)
from virtualds.source_file import SourceFile, scheme_of
from virtualds.stores import find_store

Array = npt.NDArray[Any]
Index = tuple[int, ...]
Name = tuple[str, str]
"""The path of a group, and the name of a variable in it."""

FEATURES = ({"map", "uris", "identifiers"}, {"map", "unique_values"})
"""The standardised features of CF 1.13, section 2.8.2: of fragments in files, and of constants."""
OLD_FEATURES = {"location", "file", "format", "address"}
"""The features of CFA 0.6.2, section "Standardized aggregation instructions"."""
KNOWN_FEATURES = OLD_FEATURES.union(*FEATURES)
READABLE_FORMATS = {"nc", "netcdf", "netcdf3", "netcdf4", "hdf5", "zarr"}
"""Formats of CFA 0.6.2 that can be read; files are recognised by their bytes."""
CONSTANT_FORMAT = "full"
"""The format by which cf-python 3.14 to 3.16 marks a fragment whose address is its only value."""
CONVENTIONS = "CF-1.13"
"""The first version of the CF conventions that has aggregation variables."""
OWN_CONVENTIONS = "conventions_of_dataset"
"""The attribute of a ``map`` in which we keep the attribute ``Conventions`` of the dataset."""
MAX_DEPTH = 8
"""Maximum depth of aggregation files that refer to other aggregation files."""
MAX_FRAGMENTS = 2**21
"""Maximum number of fragments of a variable, or of versions of them."""
NETCDF_FILLS: Mapping[str, Any] = {
    **{"i1": -127, "u1": 255, "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295},
    **{"i8": -9223372036854775806, "u8": 18446744073709551614, "S1": b"\0"},
}
"""Default fill values of netCDF (NetCDF Users Guide, appendix "Default fill values")."""


class FragmentPlace(NamedTuple):
    """A fragment in a file: its index among the fragments, the file, and its path there."""

    at: Index
    file: SourceFile
    path: str
    is_here: bool
    """Whether the file is the aggregation file itself."""


@dataclass(frozen=True)
class AggregationPlan:
    """The fragments of one aggregation variable.

    ``lengths`` are the lengths of fragments along each axis. ``files`` are the fragments in files,
    and ``values`` are the constants of others; all the rest are missing.
    """

    path: str
    name: str
    variable: ManifestVariable
    dims: tuple[str, ...]
    lengths: tuple[tuple[int, ...], ...]
    files: tuple[FragmentPlace, ...]
    values: Mapping[Index, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(map(sum, self.lengths))

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of fragments along each axis."""
        return tuple(map(len, self.lengths))

    @property
    def has_gaps(self) -> bool:
        """Whether fragments are missing."""
        return prod(self.grid) > len(self.files) + len(self.values)

    def compute_starts(self) -> list[list[int]]:
        """Return the start of each fragment along each axis."""
        return [[0, *accumulate(row)][:-1] for row in self.lengths]

    def shape_of(self, index: Index) -> tuple[int, ...]:
        """Return the shape of a fragment."""
        return tuple(row[n] for row, n in zip(self.lengths, index, strict=True))


class AggregationFile:
    """An aggregation file, from which the plans of its variables are read.

    Parameters
    ----------
    source : SourceFile
    get_file : callable
        Returns the file for a uri, or raises an error if the file may not refer to it.
    above : frozenset of str
        Urls of the aggregation files that refer to this one.
    read_all : callable
        Reads all groups of the file, with all variables.
    """

    def __init__(
        self,
        source: SourceFile,
        get_file: Callable[[str], SourceFile],
        above: frozenset[str],
        read_all: Callable[[], ManifestGroup],
    ) -> None:
        self.source, self._get_file = source, get_file
        self.above = above | {source.url}
        self._read_all = read_all

    @cached_property
    def groups(self) -> dict[str, ManifestGroup]:
        """All groups of the file by path, as they are stored."""
        return dict(self._read_all().walk())

    @cached_property
    def _sizes(self) -> dict[str, set[int]]:
        """The lengths that variables have along each dimension."""
        found = dict[str, set[int]]()
        for group in self.groups.values():
            for variable in group.variables.values():
                for dim, size in zip(variable.dims, variable.data.shape, strict=True):
                    found.setdefault(dim, set()).add(size)
        return found

    def make_error(self, plan: AggregationPlan | Name, problem: str) -> FormatError:
        """Return the error for an inconsistent variable."""
        return FormatError(f"{self.describe(plan)}: {problem}")

    def make_unsupported_error(
        self, plan: AggregationPlan | Name, problem: str
    ) -> UnsupportedError:
        """Return the error for a valid variable that cannot be assembled."""
        return UnsupportedError(f"{self.describe(plan)}: {problem}")

    def describe(self, plan: AggregationPlan | Name) -> str:
        """Return the name of a variable and its file, for errors."""
        path, name = plan if isinstance(plan, tuple) else (plan.path, plan.name)
        shown = f"{path}/{name}" if path else name
        return f"aggregation variable {shown!r} of {without_secrets(self.source.url)}"

    # ------------------------------------------------------------------ plans of variables

    def plan(self, path: str, name: str) -> AggregationPlan:
        """Return the plan of a variable, read from the variables that describe it."""
        key = path, name
        variable = self.groups[path].variables[name]
        listed = variable.attributes.get(AGGREGATED_DIMENSIONS)
        if not isinstance(listed, str):
            raise self.make_error(
                key,
                f"its attribute {AGGREGATED_DIMENSIONS} is {listed!r:.100}, not a list of "
                f"dimensions; correct it, or leave the variable out with drop_variables",
            )
        dims = tuple(listed.split())
        # example L.6 of CF 1.13 has a variable with its own dimensions
        if variable.dims not in ((), dims):
            raise self.make_error(
                key,
                f"it has the dimensions {variable.dims}, but must be a scalar (CF 2.8); remove its "
                f"attribute {AGGREGATED_DIMENSIONS}",
            )
        if len(set(dims)) < len(dims):
            raise self.make_error(key, f"it names a dimension twice: {dims}; write the file again")
        check_axes(len(dims), f"variable {name!r}")
        features = self._parse_features(key, variable)
        places = {feature: self._find_variable(key, target) for feature, target in features.items()}
        values_of_feature = {
            f: self._read_values(key, *p) for f, p in places.items() if f in KNOWN_FEATURES
        }
        lengths = self._read_lengths(
            key, dims, values_of_feature.get("map", values_of_feature.get("location"))
        )
        plan = AggregationPlan(path, name, variable, dims, lengths, (), {})
        if prod(plan.shape) * max(variable.data.dtype.itemsize, 1) >= MAX_AXIS_LENGTH:
            raise self.make_error(plan, f"it is larger than arrays may be: {plan.shape}")
        if "unique_values" in values_of_feature:
            unique_values = values_of_feature["unique_values"]
            self._check_grid(plan, "unique_values", unique_values, False)
            mask, values = np.ma.getmaskarray(unique_values), np.ma.getdata(unique_values)
            # constants of fragments by index (CF 2.8.2, ``unique_values``)
            constants = {i: values[i] for i in np.ndindex(*plan.grid) if not mask[i]}
            return replace(plan, values=constants)
        names = self._iterate_versions(plan, values_of_feature)
        return self._locate_fragments(plan, names, places)

    def find_fragment_array_variables(self, path: str, name: str) -> set[Name]:
        """Return the fragment array variables of an aggregation variable that exist."""
        found = set[Name]()
        with suppress(VirtualdsError):
            features = self._parse_features((path, name), self.groups[path].variables[name])
            for feature in KNOWN_FEATURES & features.keys():
                found.add(self._find_variable((path, name), features[feature]))
        return found

    def restore_conventions(
        self, attributes: Mapping[str, Any], fragment_arrays: Iterable[Name]
    ) -> Mapping[str, Any]:
        """Return root attributes with the original ``Conventions``, if virtualds wrote the file."""
        for path, name in fragment_arrays:
            original = self.groups[path].variables[name].attributes.get(OWN_CONVENTIONS)
            if isinstance(original, str) and attributes.get("Conventions") == add_conventions(
                original
            ):
                others = {n: v for n, v in attributes.items() if n != "Conventions"}
                return {**attributes, "Conventions": original} if original else others
        return attributes

    def _parse_features(self, key: Name, variable: ManifestVariable) -> dict[str, str]:
        """Return the variable of each feature (CF 2.8.2: blank-separated ``feature: variable``)."""
        text = variable.attributes.get(AGGREGATED_DATA)
        words = text.split() if isinstance(text, str) else []
        targets = dict[str, str]()
        for feature, target in zip(words[::2], words[1::2], strict=False):
            if not feature.endswith(":") or feature in (":", *(f"{f}:" for f in targets)):
                words = []
            targets[feature[:-1]] = target
        if not words or len(words) % 2:
            raise self.make_error(
                key,
                f"its attribute {AGGREGATED_DATA} {text!r:.200} is not a list of 'feature: "
                f"variable'; correct it, or leave the variable out with drop_variables",
            )
        # keywords of CFA 0.6.2 are not case-sensitive
        lower = {feature.lower(): target for feature, target in targets.items()}
        if lower.keys() >= OLD_FEATURES and not targets.keys() >= OLD_FEATURES:
            targets = lower
        feature_sets = (*FEATURES, OLD_FEATURES)
        if sum(feature_set <= targets.keys() for feature_set in feature_sets) != 1 or any(
            targets.keys() & (KNOWN_FEATURES - feature_set)
            for feature_set in feature_sets
            if feature_set <= targets.keys()
        ):
            raise self.make_unsupported_error(
                key,
                f"its {AGGREGATED_DATA} has the features {sorted(targets)}; a variable needs map, "
                f"uris and identifiers, or map and unique_values (CF 1.13), or location, file, "
                f"format and address (CFA 0.6.2); write the file with cf-python, or leave the "
                f"variable out with drop_variables",
            )
        return targets

    def _find_variable(self, key: Name, target: str) -> Name:
        """Return the group and name of a variable that another one names (CF 2.7.1, "Scope")."""
        path, _ = key
        folder, _, name = target.rpartition("/")
        parts = [] if target.startswith("/") else list(filter(None, path.split("/")))
        for part in filter(None, folder.split("/")):
            parts = parts[:-1] if part == ".." else parts if part == "." else [*parts, part]
        group_paths = [parts]
        if "/" not in target:
            group_paths = [parts[:n] for n in range(len(parts), -1, -1)]
        for group_path in map("/".join, group_paths):
            if group_path in self.groups and name in self.groups[group_path].variables:
                return group_path, name
        raise self.make_error(
            key,
            f"there is no variable {target!r}, which its {AGGREGATED_DATA} names; restore it, or "
            f"leave the variable out with drop_variables",
        )

    def _read_values(self, key: Name, path: str, name: str) -> Array:
        """Return the values of a variable as a masked array, with strings as objects."""
        variable = self.groups[path].variables[name]
        if is_aggregation(variable.attributes):
            raise self.make_error(
                key, f"{name!r}, which it names, is an aggregation variable itself"
            )
        data = variable.data
        if (problem := self.groups[path].problems.get(name)) is not None:
            raise problem
        check_values(data.dtype.itemsize * prod(data.shape), f"variable {name!r}")
        if prod(data.shape[: -1 if data.dtype == "S1" else None]) > MAX_FRAGMENTS:
            raise self.make_unsupported_error(
                key,
                f"{name!r} has the shape {data.shape}, and more than {MAX_FRAGMENTS:,} fragments "
                f"are not read; leave the variable out with drop_variables",
            )
        values = variable.read()
        fill = variable.attributes.get("_FillValue", variable.attributes.get("missing_value"))
        if values.dtype.kind == "S" and values.dtype.itemsize == 1 and values.ndim:
            # text of netCDF classic: characters along the last dimension
            joined = np.ascontiguousarray(values).view(f"S{max(values.shape[-1], 1)}")
            values = joined.reshape(values.shape[:-1])
            fill = None
        if values.dtype.kind in "SUO":
            strings = np.empty(values.shape, object)
            flat = [
                value.rstrip(b"\0 ").decode("utf-8", "surrogateescape")
                if isinstance(value, bytes)
                else value
                for value in values.ravel().tolist()
            ]
            strings[...] = np.array(flat, object).reshape(values.shape)
            mask = np.array([string in ("", fill) for string in flat], bool).reshape(values.shape)
            return np.ma.array(strings, mask=mask)
        mask = np.zeros(values.shape, bool)
        # numbers of one byte have no default, since all 256 may be values
        default = NETCDF_FILLS.get(values.dtype.str[1:]) if values.dtype.itemsize > 1 else None
        fills = [default] if fill is None else np.ravel(fill)
        for number in fills:
            if number is not None:
                mask |= values == number
        if values.dtype.kind == "f":
            mask |= np.isnan(values)
            if fill is None and values.dtype.itemsize > 2:
                mask |= values == values.dtype.type(9.969209968386869e36)
        return np.ma.array(values, mask=mask)

    def _read_lengths(
        self, key: Name, dims: tuple[str, ...], lengths_map: Any
    ) -> tuple[tuple[int, ...], ...]:
        """Return the lengths of fragments along each axis (CF 2.8.2, ``map``)."""
        if lengths_map.dtype.kind not in "iu":
            raise self.make_error(
                key, f"its map holds {lengths_map.dtype}, not integers; write it again"
            )
        values = np.ma.getdata(lengths_map)
        mask = np.ma.getmaskarray(lengths_map)
        if not dims:
            if values.size != 1 or values.ravel()[0] != 1:
                raise self.make_error(
                    key, f"the map of a scalar must be 1, not {values.tolist()!r:.100}"
                )
            return ()
        if values.ndim == 1 and len(dims) == 1:
            values, mask = values[np.newaxis], mask[np.newaxis]
        if values.ndim != 2 or values.shape[0] != len(dims):
            raise self.make_error(
                key,
                f"its map has the shape {values.shape}, and the array {len(dims)} dimensions: one "
                f"row for each is needed; write it again",
            )
        rows = []
        for dim, row, gaps in zip(dims, values, mask, strict=True):
            count = int((~gaps).sum())
            if not count or gaps[:count].any() or (row[:count] <= 0).any():
                raise self.make_error(
                    key,
                    f"its map has {np.ma.array(row, mask=gaps).tolist()!r:.200} for the fragments "
                    f"along {dim!r}, which are not lengths; write it again",
                )
            rows.append(tuple(int(n) for n in row[:count]))
        for dim, lengths in zip(dims, rows, strict=True):
            # groups may have different dimensions of one name
            sizes = self._sizes.get(dim, set())
            if len(sizes) == 1 and sizes != {sum(lengths)}:
                raise self.make_error(
                    key,
                    f"its map adds up to {sum(lengths)} along {dim!r}, which has {min(sizes)} "
                    f"elements; write it again",
                )
        return tuple(rows)

    def _check_grid(
        self, plan: AggregationPlan, kind: str, values: Array, allow_versions: bool
    ) -> None:
        """Raise an error unless a variable has one element for each fragment."""
        extra_shape = values.shape[len(plan.grid) :]
        if values.shape[: len(plan.grid)] != plan.grid or len(extra_shape) > allow_versions:
            raise self.make_error(
                plan,
                f"its {kind} has the shape {values.shape}, and its map has {plan.grid} "
                f"fragments; write it again",
            )

    def _iterate_versions(
        self, plan: AggregationPlan, values_of_feature: Mapping[str, Array]
    ) -> Iterator[tuple[Index, list[tuple[str | None, Any, str]]]]:
        """Yield the index of each fragment, and its versions as (file, address, format)."""
        is_old = "file" in values_of_feature
        uris, names = (
            (values_of_feature["file"], values_of_feature["address"])
            if is_old
            else (
                values_of_feature["uris"],
                values_of_feature["identifiers"],
            )
        )
        self._check_grid(plan, "file" if is_old else "uris", uris, is_old)
        if names.ndim:
            self._check_grid(plan, "address" if is_old else "identifiers", names, is_old)
        forms = values_of_feature.get("format", np.ma.array("nc", object))
        if forms.ndim and forms.shape not in (uris.shape, plan.grid):
            raise self.make_error(
                plan, f"its format has the shape {forms.shape}, its file {uris.shape}"
            )
        masks = [np.ma.getmaskarray(one) for one in (uris, names)]
        data = [np.ma.getdata(one) for one in (uris, names, forms)]
        count = uris.shape[-1] if uris.ndim > len(plan.grid) else None
        for index in np.ndindex(*plan.grid):
            versions = []
            for number in range(count or 1):
                at = index if count is None else (*index, number)
                indexes = [at[: one.ndim] for one in data]
                if masks[1][indexes[1]] and (is_old or masks[0][indexes[0]]):
                    continue
                uri = None if masks[0][indexes[0]] else str(data[0][indexes[0]])
                if uri is None and (number or not is_old):
                    continue
                name = None if masks[1][indexes[1]] else data[1][indexes[1]]
                versions.append((uri, name, str(data[2][indexes[2]]).lower()))
            yield index, versions

    def _locate_fragments(
        self,
        plan: AggregationPlan,
        fragments: Iterator[tuple[Index, list[tuple[str | None, Any, str]]]],
        key_of_feature: Mapping[str, Name],
    ) -> AggregationPlan:
        """Return a plan with the file of each fragment, the first of its versions that exists."""
        path, name = key_of_feature.get("file") or key_of_feature["uris"]
        words = str(self.groups[path].variables[name].attributes.get("substitutions", "")).split()
        if len(words) % 2 or any(not w.endswith(":") for w in words[::2]):
            raise self.make_error(
                plan, f"the attribute substitutions of {name!r} is malformed: {words}"
            )
        changes = {w[:-1]: to for w, to in zip(words[::2], words[1::2], strict=True)}
        files, values = [], dict[Index, Any]()
        for index, versions in fragments:
            candidates = []
            for uri, address, file_format in versions:
                if file_format == CONSTANT_FORMAT:
                    values[index] = address
                    break
                if (
                    uri is not None
                    and file_format not in READABLE_FORMATS
                    and "format" in key_of_feature
                ):
                    raise self.make_unsupported_error(
                        plan,
                        f"a fragment in {without_secrets(uri)!r} has the format {file_format!r}, "
                        f"which is not netCDF; convert it, or leave the variable out with "
                        f"drop_variables",
                    )
                if not isinstance(address, str):
                    raise self.make_unsupported_error(
                        plan,
                        f"fragment {index} is named {address!r}, which is not the name of a "
                        f"variable; leave it out with drop_variables",
                    )
                candidates += self._list_candidates(plan, index, uri, address, changes)
            if candidates and index not in values:
                files.append(
                    candidates[0]
                    if len(candidates) == 1
                    else self._choose_existing(plan, candidates)
                )
        return replace(plan, files=tuple(files), values=values)

    def _list_candidates(
        self,
        plan: AggregationPlan,
        index: Index,
        uri: str | None,
        address: str,
        substitutions: Mapping[str, str],
    ) -> list[FragmentPlace]:
        """Return the possible places of a fragment; uris are relative to the aggregation file."""
        if uri is None:
            path, name = self._find_variable((plan.path, plan.name), address)
            return [FragmentPlace(index, self.source, f"{path}/{name}", True)]
        for word, replacement in substitutions.items():
            uri = uri.replace(word, replacement)
        if "${" in uri:
            raise self.make_error(
                plan,
                f"the substitution in the file {without_secrets(uri)!r} is not defined; add it",
            )
        file = self._get_file(uri)
        files = [file]
        if "%" in uri and scheme_of(file.url) == "file":
            # not all writers escape special characters as RFC 3986, section 2.1, demands
            files.insert(0, self._get_file(unquote(uri)))
        for file in files:
            if file.url in self.above and file.url != self.source.url:
                raise self.make_error(
                    plan,
                    f"its fragment in {without_secrets(file.url)} refers back to this file; "
                    f"break the cycle",
                )
        if len(self.above) > MAX_DEPTH:
            raise self.make_unsupported_error(
                plan, f"more than {MAX_DEPTH} aggregation files refer to one another; join them"
            )
        return [FragmentPlace(index, f, address, f.url == self.source.url) for f in files]

    def _choose_existing(
        self, plan: AggregationPlan, versions: Sequence[FragmentPlace]
    ) -> FragmentPlace:
        """Return the first place of a fragment whose file exists (CFA 0.6.2, ``file``)."""
        for version in versions:
            try:
                find_store(version.file.url).describe(version.file.url, version.file.options)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ReadError(f"{self.describe(plan)}: {error}") from error
            return version
        names = [without_secrets(version.file.url) for version in versions]
        raise ReadError(
            f"{self.describe(plan)}: none of the files of a fragment exists: {names}; restore one"
        )


def add_conventions(text: Any) -> str:
    """Return the attribute ``Conventions`` with a CF version that has aggregation variables.

    >>> add_conventions("CF-1.8 ACDD-1.3"), add_conventions("")
    ('CF-1.13 ACDD-1.3', 'CF-1.13')
    """
    words = str(text).replace(",", " ").split()
    others = [word for word in words if not word.startswith(("CF-", "CFA-"))]
    return " ".join([CONVENTIONS, *others])
