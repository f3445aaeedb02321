"""What combining does without an error to files of different dimensions or grids, as xarray does.

Values are repeated along dimensions that only other files have, and coordinates of two grids are
united, so that most of the result is missing. Both follow from names and sizes that are known once
the files are combined: nothing is read for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import xarray as xr

from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.renamed import find_renamed, write_rename
from virtualds.datasets.structure import digest_values
from virtualds.errors import CombineWarning, warn_user, without_secrets
from virtualds.quantities import name_some

MOST_NAMES = 3
"""Variables, or files, that a sentence names; of more it gives the number."""
SILENCE = (
    "if this is meant, silence the warning: "
    'warnings.simplefilter("ignore", virtualds.CombineWarning)'
)

Parts = Mapping[str, xr.Dataset]
"""The dataset, or one group, of each file, by the name of the file."""


def warn_of_unlike_files(
    combination: Combination, opened: Mapping[str, Any], combined: xr.Dataset | xr.DataTree
) -> None:
    """Warn once if combining repeated values along a dimension, or united two grids.

    Parameters
    ----------
    combination : Combination
        How the files were combined.
    opened : mapping of str to Dataset or DataTree
        What was combined, by the name of the file.
    combined : Dataset or DataTree
        The result.
    """
    found: list[str] = []
    for path, result in list_groups(combined):
        found_in = {file: _select_group(each, path) for file, each in opened.items()}
        parts = {file: part for file, part in found_in.items() if part is not None}
        joined = _find_joined(combination, parts)
        found += _describe_repeated(parts, result, joined)
        if combination.options.get("join", "outer") == "outer":
            found += _describe_united(combination, parts, result, joined)
    if found:
        text = "\n  ".join([f"the {len(opened)} files combine, but are not alike", *found, SILENCE])
        warn_user(without_secrets(text), CombineWarning)


def list_groups(opened: Any) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield a dataset, or the groups of a tree with their paths."""
    if isinstance(opened, xr.Dataset):
        yield "", opened
    else:
        yield from ((node.path, node.to_dataset(inherit=False)) for node in opened.subtree)


def _select_group(opened: Any, path: str) -> xr.Dataset | None:
    if isinstance(opened, xr.Dataset):
        return opened
    return opened[path].to_dataset(inherit=False) if path in opened.groups else None


def _find_joined(combination: Combination, parts: Parts) -> set[Any]:
    """Return the dimensions along which files follow each other.

    Those that coordinates tell are the ones that `xarray.combine_by_coords` finds: along which
    files of the same variables begin with other values.
    """
    if combination.combine == "nested":
        return set(combination.dims)
    return {
        dim
        for alike in _group_by_variables(parts).values()
        for dim, found in _list_indexes(alike.values()).items()
        if len({index[0] for index in found if index.size}) > 1
    }


def _group_by_variables(parts: Parts) -> dict[frozenset[Any], dict[str, xr.Dataset]]:
    found: dict[frozenset[Any], dict[str, xr.Dataset]] = defaultdict(dict)
    for file, part in parts.items():
        found[frozenset(part.data_vars)][file] = part
    return found


def _list_indexes(parts: Any) -> dict[Any, list[pd.Index[Any]]]:
    found: dict[Any, list[pd.Index[Any]]] = defaultdict(list)
    for part in parts:
        for dim, index in part.indexes.items():
            if dim in part.sizes:
                found[dim].append(index)
    return found


# ---------------------------------------------------------------------- repeated values

Dims = tuple[str, ...]
EQUAL_DIMENSIONS = "make the dimensions equal in preprocess= (ds.isel, ds.squeeze, ds.expand_dims)"


def _describe_repeated(parts: Parts, result: xr.Dataset, joined: Collection[Any]) -> Iterator[str]:
    """Yield a sentence for each way in which values of some files are repeated."""
    found: dict[tuple[Dims, Dims, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, variable in result.variables.items():
        kinds = _group_by_dims(parts, name, joined)
        whole = {str(dim) for dim in variable.dims if dim not in joined}
        if any(set(dims) < whole for dims in kinds):
            usual = max(kinds, key=lambda dims: len(kinds[dims]))
            for dims in [dims for dims in kinds if dims != usual]:
                found[usual, dims, tuple(kinds[dims])].append(str(name))
    for (usual, other, files), names in found.items():
        taken = {str(name) for file in files for name in parts[file].variables}
        renamed = find_renamed(usual, other, taken)
        remedy = f"rename it: preprocess={write_rename(renamed)}" if renamed else EQUAL_DIMENSIONS
        yield (
            f"{name_some(map(repr, names), MOST_NAMES)}: {_write_dims(other)} in "
            f"{name_some(files, MOST_NAMES)}, "
            f"{_write_dims(usual)} in others: repeated along what each lacks; {remedy}"
        )


def _group_by_dims(parts: Parts, name: Any, joined: Collection[Any]) -> dict[Dims, list[str]]:
    """Return the files that have a variable by dimensions: in any order, without the joined."""
    kinds: dict[frozenset[str], Dims] = {}
    found: dict[Dims, list[str]] = defaultdict(list)
    for file, part in parts.items():
        if name in part.variables:
            dims = tuple(str(dim) for dim in part.variables[name].dims if dim not in joined)
            found[kinds.setdefault(frozenset(dims), dims)].append(file)
    return found


# ---------------------------------------------------------------------- united grids


def _describe_united(
    combination: Combination, parts: Parts, result: xr.Dataset, joined: Collection[Any]
) -> Iterator[str]:
    """Yield a sentence for each coordinate that has elements which a file lacks.

    Times are no grid: members and variables that begin or end at other times are ordinary.
    """
    for dim, whole in result.indexes.items():
        if dim in joined or dim not in result.sizes or _counts_time(whole):
            continue
        having = {file: part.indexes[dim] for file, part in parts.items() if dim in part.indexes}
        is_filled = any(index.size < whole.size for index in having.values())
        if is_filled and _is_mixed(combination, parts, dim, whole):
            yield _describe_union(str(dim), whole.size, having)


def _counts_time(index: pd.Index[Any]) -> bool:
    return isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex | xr.CFTimeIndex)


def _is_mixed(combination: Combination, parts: Parts, dim: Any, whole: pd.Index[Any]) -> bool:
    """Say whether files are of two grids, instead of covering parts of one.

    Files that are only merged may cover other parts, as years that one variable lacks. Those that
    are joined along another dimension may not.
    """
    is_merged = combination.combine == "nested" and set(combination.dims) <= {None}
    groups = [parts] if combination.combine == "nested" else _group_by_variables(parts).values()
    joined = [] if is_merged else [_list_indexes(alike.values())[dim] for alike in groups]
    if any(not index.equals(alike[0]) for alike in joined for index in alike):
        return True
    return any(_has_others_between(index, whole) for index in _list_indexes(parts.values())[dim])


def _has_others_between(index: pd.Index[Any], whole: pd.Index[Any]) -> bool:
    """Say whether an index lacks elements of another one between its own.

    >>> _has_others_between(pd.Index([1, 3]), pd.Index([1, 2, 3]))
    True
    >>> _has_others_between(pd.Index([1, 2]), pd.Index([1, 2, 3]))
    False
    """
    if not (index.size and whole.is_unique):
        return False
    places = whole.get_indexer(index)
    return bool(places.max() - places.min() + 1 > index.size)


def _describe_union(dim: str, size: int, having: Mapping[str, pd.Index[Any]]) -> str:
    grids: dict[str, list[str]] = defaultdict(list)
    for file, index in having.items():
        grids[digest_values(index.values)].append(file)
    most = sorted(grids.items(), key=lambda item: -len(item[1]))[:MOST_NAMES]
    places = "; ".join(f"{grid} in {name_some(files, MOST_NAMES)}" for grid, files in most)
    return (
        f"{dim!r}: {places}: united to {size:,} values, and filled where a file has none; leave "
        f'out the files of another grid, or open them apart (join="exact" refuses them)'
    )


def _write_dims(dims: Sequence[str]) -> str:
    return f"({', '.join(dims)})"
