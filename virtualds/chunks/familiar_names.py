"""Names that users of other libraries type: errors that say what to call here.

They are no attributes, so that ``hasattr`` says no: xarray takes an array with ``chunks`` for one
of dask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NoReturn


def is_private(name: str) -> bool:
    """Say whether a name is private; names of Python are not.

    >>> is_private("_map"), is_private("load"), is_private("__doc__")
    (True, False, False)
    """
    return name.startswith("_") and not name.startswith("__")


class FamiliarNames:
    """A class with names that other libraries have, and remedies for those who type them."""

    __slots__ = ()

    _FAMILIAR: ClassVar[Mapping[str, str]] = {}
    """What to call instead, by name."""

    def __dir__(self) -> list[str]:
        """List what users may call, without what is private."""
        return [name for name in super().__dir__() if not is_private(name)]

    if not TYPE_CHECKING:
        # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            remedy = self._FAMILIAR.get(name)
            if remedy is None:
                raise AttributeError(
                    f"{kind!r} object has no attribute {name!r}", name=name, obj=self
                )
            # Python adds no suggestion where there is no name
            raise AttributeError(f"{kind} has no {name!r}: {remedy}")


OF_MANIFESTS = {
    "entries": "dict() has the path, offset and length of every chunk",
    "get_entry": "lookup(chunk_id) returns the row of a chunk",
    "items": "dict().items() has the chunks by key",
    "iter_refs": "dict().items() has the chunks by key, and file, offset and length are arrays",
    "keys": "dict().keys() has the keys of the chunks",
    "rename_paths": "call ds.virtual.rename_paths(...) on the dataset, or with_files(...)",
    "shape_chunk_grid": "it is .shape",
    "values": "dict().values() has path, offset and length of the chunks",
}
"""Names of VirtualiZarr's ``ChunkManifest``."""

OF_ARRAYS = {
    "chunks": (
        "chunks may differ in length, so there is no one shape: .blocks has the lengths of whole "
        "chunks along every axis, and .fragments[0].axes how each axis is cut"
    ),
    "metadata": ".pipelines say how chunks decode; there are also .dtype, .shape and .fill_value",
    "rename_paths": "call ds.virtual.rename_paths(...) on the dataset",
    "to_virtual_variable": "wrap it yourself: xr.Variable(dims, array)",
    "zarray": ".pipelines say how chunks decode; to_manifest(None) has the Zarr metadata as a dict",
}
"""Names of VirtualiZarr's ``ManifestArray``."""

OF_DATASETS = {
    "nrefs": "it is .nchunks, which also counts missing chunks",
    "to_icechunk": "call to_manifest('repo.icechunk'), or to_manifest(session) of Icechunk",
    "to_kerchunk": (
        "call to_manifest('refs.json') or to_manifest('refs.parquet'); the dict is "
        "to_manifest(None, format='kerchunk-json')"
    ),
    "to_zarr": "call to_manifest('refs.zarr'); materialize('copy.zarr') copies the bytes, too",
}
"""Names of the accessors of VirtualiZarr."""
