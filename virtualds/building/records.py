"""Opened files in plain values, to be noted down, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.indexes import PandasIndex

from virtualds.building.notation import UnknownError
from virtualds.lazy import is_unread, virtual_data
from virtualds.tree import tree_of

Opened = xr.Dataset | xr.DataTree


def recorded(opened: Opened) -> tuple[Any, ...]:
    """Return a dataset, or a tree, in plain values, numpy arrays and virtual arrays.

    Raises
    ------
    UnknownError
        It holds values that nobody has read yet and that are no virtual arrays, or an index that
        is not simply one of a coordinate's values.
    """
    if isinstance(opened, xr.Dataset):
        return "dataset", _dataset(opened)
    nodes = {
        path: _dataset(node.to_dataset(inherit=False)) for path, node in opened.subtree_with_keys
    }
    return "tree", {"" if path == "." else path: node for path, node in nodes.items()}


def restored(record: tuple[Any, ...]) -> Opened:
    """Return the dataset, or tree, of a record."""
    kind, content = record
    return KINDS[kind](content)


def _dataset(dataset: xr.Dataset) -> dict[str, Any]:
    for name, index in dataset.xindexes.items():
        # opening a file makes no others
        if type(index) is not PandasIndex or dataset.variables[name].dims != (name,):
            raise UnknownError(f"an index {type(index)} of {name!r}")
    names = list(dataset.variables)
    last = _last_coords(names, set(dataset.coords))
    if any(dataset.variables[name].dims == (name,) for name in names[: len(names) - len(last)]):
        raise UnknownError(f"variables in the order {names}")
    return {
        "variables": {name: _variable(v) for name, v in dataset.variables.items()},
        "coords": [name for name in names if name in dataset.coords],
        "indexes": list(dataset.xindexes),
        "attrs": dict(dataset.attrs),
        "encoding": dict(dataset.encoding),
    }


def _variable(variable: xr.Variable) -> tuple[Any, ...]:
    if is_unread(variable):
        raise UnknownError("values that are read when somebody asks for them")
    data = virtual_data(variable)
    values: Any = np.asarray(variable.values) if data is None else data
    is_index = isinstance(variable, xr.IndexVariable)
    return variable.dims, values, dict(variable.attrs), dict(variable.encoding), is_index


def _restored_dataset(content: Mapping[str, Any]) -> xr.Dataset:
    variables = {name: _restored_variable(*v) for name, v in content["variables"].items()}
    # the order of variables is that in which xarray is given them: data first, then coordinates
    last = _last_coords(list(variables), set(content["coords"]))
    data = {name: variable for name, variable in variables.items() if name not in last}
    coords = {name: variables[name] for name in last}
    dataset = xr.Dataset(data, xr.Coordinates(coords, indexes={}), content["attrs"])
    dataset = dataset.set_coords(content["coords"])
    indexed = {name: dataset.variables[name] for name in content["indexes"]}
    dataset = dataset.assign_coords(xr.Coordinates(indexed))
    dataset.encoding = content["encoding"]
    return dataset


def _last_coords(names: list[Any], coords: set[Any]) -> list[Any]:
    """Return the coordinates behind which there are none but coordinates."""
    begin = next((n for n in range(len(names), 0, -1) if names[n - 1] not in coords), 0)
    return names[begin:]


def _restored_variable(
    dims: Any, values: Any, attrs: Any, encoding: Any, is_index: bool
) -> xr.Variable:
    kind = xr.IndexVariable if is_index else xr.Variable
    return kind(dims, values, attrs, encoding)


def _restored_tree(content: Mapping[str, Any]) -> xr.DataTree:
    return tree_of({path: _restored_dataset(node) for path, node in content.items()})


KINDS: dict[str, Callable[[Any], Opened]] = {
    "dataset": _restored_dataset,
    "tree": _restored_tree,
}
"""How what was recorded is put together again."""
