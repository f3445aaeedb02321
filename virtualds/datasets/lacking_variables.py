"""Variables that only the set has, or only the data that are appended to it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray, default_fill, has_missing_value
from virtualds.datasets.lazy import get_virtual_array
from virtualds.errors import CombineError


@dataclass(frozen=True)
class Lacking:
    """What an append does about variables that one side lacks.

    Parameters
    ----------
    new : {"error", "fill", "drop"}
        Of variables that the set lacks: refuse them, add them with missing values where the set
        has data already, or leave them out.
    missing : {"error", "fill"}
        Of variables that the new dataset lacks: refuse it, or add missing values.
    """

    new: str = "error"
    missing: str = "error"

    def complete(
        self, present: xr.Dataset, new: xr.Dataset, dim: str
    ) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the set and the new dataset with the variables that they get.

        What is refused stays as it is, so that the comparison of both names it.

        Raises
        ------
        CombineError
            No value of a variable can mean that it is missing.
        """
        extra = [name for name in new.variables if name not in present.variables]
        if self.new == "drop":
            new = new.drop_vars(extra)
        elif self.new == "fill":
            present = _add_variables(present, new, extra, dim)
        if self.missing == "fill":
            lacks = [
                name
                for name, variable in present.variables.items()
                if dim in variable.dims and name not in new.variables
            ]
            new = _add_variables(new, present, lacks, dim)
        return present, new


LACKING_REFUSED = Lacking()
"""What one side lacks is refused."""


def _add_variables(
    dataset: xr.Dataset, model: xr.Dataset, names: list[Hashable], dim: str
) -> xr.Dataset:
    """Return a dataset with variables of another, missing along the dimension."""
    for name in names:
        variable = model.variables[name]
        if dim in variable.dims:
            variable = _make_missing(name, variable, dim, dataset.sizes[dim])
        _demand_lengths(name, variable, dataset)
        assign = dataset.assign_coords if name in model.coords else dataset.assign
        dataset = assign({name: variable})
    return dataset


def _demand_lengths(name: Hashable, variable: xr.Variable, dataset: xr.Dataset) -> None:
    for dim, size in variable.sizes.items():
        if size != (known := dataset.sizes.get(dim, size)):
            raise CombineError(
                f"{name}: it has {size} elements along {dim!r}, and the other variables have "
                f"{known}; select the same elements, or leave it out (ds.drop_vars)"
            )


def _make_missing(name: Hashable, variable: xr.Variable, dim: str, count: int) -> xr.Variable:
    """Return a variable like another without any value, of another length."""
    dtype = variable.dtype
    if not has_missing_value(dtype) or variable.dims == (name,):
        raise CombineError(
            f"{name}: one side lacks this variable, and no value of it ({dtype}) means that it is "
            f"missing; add it to the files, leave it out (ds.drop_vars, or new_variables='drop'), "
            f"or write it to a set of its own"
        )
    shape = tuple(count if d == dim else n for d, n in variable.sizes.items())
    fill = default_fill(dtype)
    if get_virtual_array(variable) is None:
        return xr.Variable(variable.dims, np.full(shape, fill), variable.attrs, variable.encoding)
    # no fragment, and so no reference: formats leave such chunks out
    data = ManifestArray.full(shape, fill, dtype)
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)
