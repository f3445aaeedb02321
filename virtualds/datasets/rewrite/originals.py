"""The references of a rewritten variable as it was, kept beside its chunks for `verify`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.copies import find_copy_folder
from virtualds.datasets.rewrite.cells import grid_of
from virtualds.datasets.rewrite.chunk_files import ChunkFiles
from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.errors import UnsupportedError
from virtualds.formats import zarr_manifests
from virtualds.formats.read_options import ReadOptions
from virtualds.formats.zarr_manifests import read
from virtualds.source_file import SourceFile
from virtualds.stores.access_rules import AccessPolicy

NAME = "original.zarr"
"""The set that holds the references, in the folder of the rewritten chunks."""
VARIABLE = "values"
"""The name of the variable in that set."""


@dataclass(frozen=True)
class Original:
    """A variable before it was rewritten.

    Parameters
    ----------
    array : ManifestArray
    chunks, order : tuple of int
        The chunk shape of its main encoding, and its axes in the order in which they are stored.
    is_decoded : bool
        Whether the array has the values of packed numbers.
    """

    array: ManifestArray
    chunks: tuple[int, ...]
    order: tuple[int, ...]
    is_decoded: bool

    def read(self, cell: int) -> npt.NDArray[Any]:
        """Return the values of a cell."""
        return self.array.read(self._find_box(cell))

    def show(self, stored: npt.NDArray[Any], cell: int) -> npt.NDArray[Any]:
        """Return the elements of a chunk that the array shows."""
        whole = stored.reshape([self.chunks[axis] for axis in self.order])
        box = self._find_box(cell)
        return whole.transpose(np.argsort(self.order))[tuple(slice(b.stop - b.start) for b in box)]

    def _find_box(self, cell: int) -> tuple[slice, ...]:
        grid = grid_of(self.array.shape, self.chunks)
        place = np.unravel_index(cell, grid) if grid else ()
        sizes = zip(place, self.chunks, self.array.shape, strict=True)
        return tuple(slice(int(i) * c, min((int(i) + 1) * c, n)) for i, c, n in sizes)


def keep_original(plan: VariablePlan, files: ChunkFiles) -> None:
    """Write the references of a variable before it is rewritten, beside its chunks."""
    main = plan.main
    noted = {
        "chunks": list(main.chunks),
        "order": list(main.order),
        "is_decoded": int(main.pipeline.packing is not None),
    }
    group = ManifestGroup({VARIABLE: plan.variable}, noted)
    # a store without conditional writes has no place for a set; verify says so then
    with suppress(UnsupportedError):
        zarr_manifests.write(group, f"{files.folder}/{NAME}", files.options, replace=True)


def find_original(file: SourceFile) -> Original | None:
    """Return the variable that the chunks of a file were made of; None if it is no such file."""
    folder = find_copy_folder(file.url)
    if folder is None:
        return None
    place = SourceFile(f"{folder}/{NAME}", options=file.options)
    try:
        group = read.read(place, ReadOptions(allow=AccessPolicy.of(None)))
    except FileNotFoundError:
        return None
    array, noted = group.variables[VARIABLE].data, group.attributes
    if not isinstance(array, ManifestArray):
        return None
    chunks, order = (tuple(np.atleast_1d(noted[n]).tolist()) for n in ("chunks", "order"))
    return Original(array, chunks, order, bool(noted["is_decoded"]))
