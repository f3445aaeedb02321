"""``ds.virtual.plot``: pictures of a virtual dataset, drawn by matplotlib from its references."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import xarray as xr

from virtualds.accessors.plots.chunks import choose_axes, draw_chunks
from virtualds.accessors.plots.coverage import draw_coverage
from virtualds.accessors.plots.sizes import VariableSize, draw_sizes
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.coverage import find_coverage
from virtualds.arrays.survey import survey
from virtualds.datasets.axis_cells import AxisCells
from virtualds.datasets.keywords import format_suggestion

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class DatasetPlots:
    """Pictures of a virtual dataset: ``ds.virtual.plot``.

    They need matplotlib (``pip install matplotlib``), read no data, and return the `Axes`
    that they are drawn on: ``ax=``, or those of a new figure. Nothing calls ``plt.show()``.
    Legends lie below axes: a figure of several has room for them with ``layout="constrained"``. A
    title that the axes have stays.

    Examples
    --------
    >>> from virtualds import open_virtual_mfdataset
    >>> vds = open_virtual_mfdataset("20*.nc", combine="nested", concat_dim="time")
    >>> vds.virtual.plot.coverage("time").get_title()
    '2 files along time: no gap'
    """

    def __init__(self, dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray]) -> None:
        self._dataset = dataset
        self._arrays = arrays

    def __repr__(self) -> str:
        return "<ds.virtual.plot: coverage(dim), chunks(variable) and sizes() draw pictures>"

    def coverage(
        self, dim: Hashable = "time", variable: Hashable | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Draw which file covers which part of a dimension, with gaps and overlaps.

        Each file has a row, from the first to the last position whose values it holds. Hatched
        bands show where no file has values, where times are missing in an otherwise regular
        coordinate, and where the coordinate returns to values of other files.

        Parameters
        ----------
        dim : hashable, default "time"
            The dimension. Its axis has the values of its coordinate if these are loaded and in
            order within each file, else positions.
        variable : hashable, optional
            The variable whose files to show; those of all virtual variables by default.
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        ValueError
            No virtual variable has the dimension, or there is no such virtual variable.

        Examples
        --------
        >>> from virtualds import open_virtual_mfdataset
        >>> vds = open_virtual_mfdataset("20*.nc", combine="nested", concat_dim="time")
        >>> ax = vds.virtual.plot.coverage("time")
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['2001.nc', '2002.nc']
        """
        chosen = None if variable is None else [self._demand_variable(variable)]
        arrays = self._demand_dimension(dim, chosen or self._demand_arrays())
        found = find_coverage(self._dataset.sizes[dim], arrays)
        cells = AxisCells.of(self._dataset, dim, found.start)
        return draw_coverage(found, cells, str(dim), self._label_axis(dim, cells), ax)

    def chunks(
        self,
        variable: Hashable,
        *,
        x: Hashable | None = None,
        y: Hashable | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the chunks of a variable, coloured by how they are encoded.

        Hatched ground shows where no chunk is; values there read as fill value. Gaps in the dates
        of an otherwise regular coordinate stay empty.

        Parameters
        ----------
        variable : hashable
            Name of a virtual variable.
        x, y : hashable, optional
            The dimensions to show; by default those with the most chunks. The picture looks through
            all others.
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        ValueError
            There is no such virtual variable, or it has no such dimension.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ax = open_virtual_dataset("2001.nc").virtual.plot.chunks("t")
        >>> ax.get_title()
        't: 12 chunks of (1, 6, 8)'
        """
        array = self._arrays[self._demand_variable(variable)]
        dims = self._dataset.variables[variable].dims
        if x is not None and x == y:
            raise ValueError(f"ds.virtual.plot.chunks: x and y are both {str(x)!r}; name two")
        axes = choose_axes(array, [self._demand_axis(variable, dims, dim) for dim in (x, y)])
        cells = [AxisCells.of(self._dataset, dims[axis]) for axis in axes]
        labels = [self._label_axis(dims[axis], own) for axis, own in zip(axes, cells, strict=True)]
        return draw_chunks(str(variable), array, axes, cells, labels, ax)

    def sizes(self, *, ax: Axes | None = None) -> Axes:
        """Draw how many bytes the chunks of each virtual variable take, as stored and as decoded.

        Missing chunks count for nothing. References that lie in a set are read.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        ValueError
            The dataset has no virtual variable.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ax = open_virtual_dataset("2001.nc").virtual.plot.sizes()
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['t']
        """
        found = {n: survey(a, read=True) for n, a in self._demand_arrays().items()}
        return draw_sizes([VariableSize.of(str(n), own) for n, own in found.items()], ax)

    def _demand_arrays(self) -> Mapping[Hashable, ManifestArray]:
        """Return the virtual arrays; refuse if there are none."""
        if not self._arrays:
            raise ValueError(
                "ds.virtual.plot: the dataset has no virtual variable, only values in memory or "
                "computed by dask; open it with loadable_variables=[] to leave values in the files"
            )
        return self._arrays

    def _demand_variable(self, variable: Hashable) -> Hashable:
        """Refuse the name of a variable that is not virtual."""
        if variable in self._demand_arrays():
            return variable
        if variable in self._dataset.variables:
            what = "its values are loaded or computed, so it has no chunks"
        else:
            what = "the dataset has no such variable"
        known = ", ".join(repr(str(name)) for name in self._arrays)
        raise ValueError(
            f"ds.virtual.plot: {str(variable)!r} is not a virtual variable: {what}; there are "
            f"{known}{format_suggestion(variable, self._arrays)}"
        )

    def _demand_dimension(
        self, dim: Hashable, names: Iterable[Hashable]
    ) -> list[tuple[ManifestArray, int]]:
        """Return the arrays with a dimension, and the number of its axis; there has to be one."""
        dims = {name: self._dataset.variables[name].dims for name in names}
        found = [(self._arrays[n], own.index(dim)) for n, own in dims.items() if dim in own]
        if not found:
            known = list(dict.fromkeys(str(one) for own in dims.values() for one in own))
            listed = ", ".join(map(repr, known)) or "no dimension"
            raise ValueError(
                f"ds.virtual.plot.coverage: no virtual variable has the dimension {str(dim)!r}; "
                f"they have {listed}{format_suggestion(dim, known)}"
            )
        return found

    def _demand_axis(
        self, variable: Hashable, dims: Sequence[Hashable], dim: Hashable
    ) -> int | None:
        """Return the number of the axis of a given dimension, None if none is given."""
        if dim is not None and dim not in dims:
            listed = ", ".join(repr(str(one)) for one in dims) or "no dimension"
            raise ValueError(
                f"ds.virtual.plot.chunks: {str(variable)!r} has no dimension {str(dim)!r}; it has "
                f"{listed}{format_suggestion(dim, dims)}"
            )
        return None if dim is None else dims.index(dim)

    def _label_axis(self, dim: Hashable, cells: AxisCells) -> str:
        """Return what an axis shows, with its units."""
        if cells.kind == "positions":
            return f"position along {dim}"
        if cells.kind == "hours":
            return f"{dim} (hours)"
        units = self._dataset.variables[dim].attrs.get("units") if cells.kind == "numbers" else None
        return f"{dim} ({units})" if units else str(dim)
