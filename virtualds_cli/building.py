"""Opening many files as one dataset, as ``scan`` and ``append`` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from virtualds_cli.options import said
from virtualds_cli.output import number

if TYPE_CHECKING:
    import xarray as xr

OPENING = (
    "combine",
    "concat_dim",
    "data_vars",
    "coords",
    "compat",
    "join",
    "combine_attrs",
    "attrs_file",
    "loadable_variables",
    "drop_variables",
    "group",
    "decode_cf",
    "parser",
    "on_error",
    "allow",
    "storage_options",
)
"""The options of `virtualds.open_virtual_mfdataset`."""


def opened(files: Sequence[str], options: Mapping[str, Any]) -> xr.Dataset:
    """Return files as one dataset, opened as the options say."""
    import virtualds

    chosen = said(options, OPENING)
    dims = chosen.pop("concat_dim", None)
    if dims is not None:
        chosen["concat_dim"] = dims if len(dims) > 1 else dims[0]
        chosen.setdefault("combine", "nested")
    return virtualds.open_virtual_mfdataset(files, **chosen)


def summary(files: Sequence[str], dataset: xr.Dataset) -> dict[str, Any]:
    """Return what was opened, for machines."""
    return {
        "files": len(files),
        "dims": dict(dataset.sizes),
        "variables": [str(name) for name in dataset.data_vars],
        "references": dataset.virtual.nchunks,
    }


def in_words(document: Mapping[str, Any]) -> str:
    """Return a summary for people."""
    parts = (
        number(document["files"], "file"),
        number(len(document["variables"]), "variable"),
        number(document["references"], "reference"),
        ", ".join(f"{name} {size:,}" for name, size in document["dims"].items()),
        f"{document['seconds']:.1f} s",
    )
    return ", ".join(part for part in parts if part)
