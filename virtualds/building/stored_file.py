"""Files as they were read, of which datasets can be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import xarray as xr

from virtualds.api import called, dataset_of, open_group
from virtualds.array import ManifestArray
from virtualds.dataset import Loadable, known_outline
from virtualds.decoding.outline import Outline
from virtualds.errors import VirtualdsError
from virtualds.group import ManifestGroup
from virtualds.options import get_options


@dataclass(frozen=True, eq=False)
class StoredFile:
    """A file as it was read, and how it decodes.

    Parameters
    ----------
    url : str or path
    group : ManifestGroup
    outline : Outline
    values : mapping of str to numpy.ndarray
        What the dataset has in memory, as stored.
    loadable, decode_cf
        As `virtualds.open_virtual_dataset` was told.
    """

    url: Any
    group: ManifestGroup
    outline: Outline
    values: Mapping[str, npt.NDArray[Any]]
    loadable: Loadable
    decode_cf: bool

    @property
    def nchunks(self) -> int:
        """Chunks of what stays virtual."""
        found = (v.data for name, v in self.group.variables.items() if name not in self.values)
        return sum(data.nchunks for data in found if isinstance(data, ManifestArray))

    def stored_values(self, name: str) -> npt.NDArray[Any] | None:
        """Return a variable as stored, if it is in memory or small; None is any other.

        Raises
        ------
        ReadError
            Bytes cannot be had, have changed, or do not decode.
        """
        if name in self.values:
            return self.values[name]
        variable = self.group.variables[name]
        data = variable.data
        if not isinstance(data, ManifestArray) or data.nbytes > get_options().small_variable:
            return None
        return variable.read()

    def dataset(self) -> xr.Dataset:
        """Return the dataset of the file.

        Raises
        ------
        VirtualdsError
            Values cannot be had.
        """
        return dataset_of(self.url, self.group, self.loadable, self.decode_cf)


def decoded(opened: Any) -> Any:
    """Return the dataset of a file that was opened, or whatever else it was opened as.

    Raises
    ------
    VirtualdsError
        Values cannot be had.
    """
    return opened.dataset() if isinstance(opened, StoredFile) else opened


def open_stored(
    url: Any,
    *,
    loadable_variables: Loadable,
    drop_variables: str | Iterable[str] | None,
    storage_options: Mapping[str, Any] | None,
    decode_cf: bool,
    **choices: Any,
) -> xr.Dataset | StoredFile:
    """Read a local file; return its dataset where nothing is known of how it decodes.

    Arguments and errors are those of `virtualds.open_virtual_dataset`.
    """
    skip = (drop_variables,) if isinstance(drop_variables, str) else drop_variables or ()
    group = open_group(url, skip=skip, options=storage_options, **choices)
    outline = known_outline(group, loadable_variables, decode_cf)
    if outline is None:
        dataset = dataset_of(url, group, loadable_variables, decode_cf)
        outline = known_outline(group, loadable_variables, decode_cf)
        if outline is None:
            return dataset
    try:
        values = outline.values(group)
    except VirtualdsError as error:
        error.add_note(f"file {called(url)}")
        raise
    return StoredFile(url, group, outline, values, loadable_variables, decode_cf)
