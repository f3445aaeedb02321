"""Repositories of Icechunk, which is not there in every environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xarray as xr


def repository(path: Path) -> Any:
    """A repository that may read the files it refers to."""
    import icechunk

    storage = icechunk.local_filesystem_storage(str(path))
    config = icechunk.Repository.fetch_config(storage)
    local = icechunk.credentials.LocalFileSystemAccess
    known = dict.fromkeys(config.virtual_chunk_containers or {}, local) if config else {}
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=known)


def by_icechunk(path: Path, **how: Any) -> xr.Dataset:
    """Open a repository with xarray and without virtualds."""
    store = repository(path).readonly_session(**(how or {"branch": "main"})).store
    return xr.open_zarr(store, consolidated=False, chunks=None)


def own_repository(path: Path, *folders: Path) -> Any:
    """An empty repository that may refer to files in some folders."""
    import icechunk

    config = icechunk.RepositoryConfig.default()
    for folder in folders:
        place = icechunk.local_filesystem_store(f"{folder}/")
        container = icechunk.VirtualChunkContainer(f"file://{folder}/", place)
        config.set_virtual_chunk_container(container)
    local = icechunk.credentials.LocalFileSystemAccess
    known = {f"file://{folder}/": local for folder in folders}
    return icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path)), config, authorize_virtual_chunk_access=known
    )
