"""Many files in place of one, as ``xr.open_dataset(..., engine="virtual")`` takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.combine import open_virtual_mfdataset
from virtualds.datasets.from_dataset import as_read, group_from_dataset
from virtualds.datasets.keywords import list_arguments
from virtualds.syncing import sync

OF_FILES = frozenset(list_arguments(open_virtual_mfdataset)) - {"target_options", "snapshot"}
"""Arguments that say how files are opened and combined; ``cache`` xarray has itself."""


def read_archive(files: Any, given: Mapping[str, Any]) -> ManifestGroup:
    """Return the group of many files, as a set of them would hold it."""
    options = _list_options(given) | {"snapshot": given["snapshot"]}
    return as_read(group_from_dataset(open_virtual_mfdataset(_list_files(files), **options)))


def update_references(files: Any, given: Mapping[str, Any]) -> None:
    """Make the set ``references`` hold what the files hold now; never drop anything.

    Without ``concat_dim`` this is a `TypeError`. If there is no set yet, since all files may still
    be written, it is a `FileNotFoundError`.
    """
    options = {name: value for name, value in _list_options(given).items() if name != "concat_dim"}
    if given["concat_dim"] is None:
        raise TypeError(
            f"references={os.fspath(given['references'])!r}: name the dimension along which the "
            f"files follow each other with concat_dim="
        )
    done = sync(
        _list_files(files),
        given["references"],
        concat_dim=given["concat_dim"],
        on_removed="keep",
        settle=given["settle"],
        target_options=given["target_options"],
        **options,
    )
    if not done.exists:
        raise FileNotFoundError(
            f"{done.target}: there is no set yet, since {len(done.waiting)} files were modified "
            f"less than {given['settle']:g} seconds ago and {len(done.failed)} cannot be opened; "
            f"wait, pass a smaller settle=, or leave out references="
        )


def _list_files(files: Any) -> Any:
    return [files] if isinstance(files, os.PathLike) else files


def _list_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `open_virtual_mfdataset`."""
    found = {name: value for name, value in given.items() if name in OF_FILES}
    if found["combine"] is None:
        found["combine"] = "by_coords" if found["concat_dim"] is None else "nested"
    return found
