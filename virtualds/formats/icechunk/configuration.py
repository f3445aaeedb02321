"""What virtualds adds to the configuration of an Icechunk repository."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import icechunk

from virtualds.formats.icechunk.locations import ObjectLocation
from virtualds.formats.icechunk.needs import Split


def add_containers(config: Any, needed: Mapping[str, ObjectLocation]) -> None:
    """Let a repository refer to files below some prefixes."""
    stores = {"http": icechunk.http_store, "s3": icechunk.s3_store}
    for prefix, (kind, arguments) in needed.items():
        if kind == "local":
            store = icechunk.local_filesystem_store(arguments["path"])
        elif kind == "gcs":
            store = icechunk.gcs_store()
        elif kind == "azure":
            account = {"account": arguments["account"], **arguments["config"]}
            store = icechunk.ObjectStoreConfig.Azure(account)
        else:
            compatible = {"s3_compatible": True} if arguments.get("endpoint_url") else {}
            store = stores[kind](**arguments, **compatible)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))


def add_splits(config: Any, splits: Mapping[str, Split]) -> bool:
    """Split the manifests of arrays, so that an append writes the last one; say if this is new.

    A repository whose owner has split its arrays is left as it is.
    """
    wanted = {
        icechunk.ManifestSplitCondition.path_matches(f"^/{re.escape(path)}$"): {
            icechunk.ManifestSplitDimCondition.Axis(split.axis): split.chunks
        }
        for path, split in splits.items()
    }
    manifest = config.manifest or icechunk.ManifestConfig()
    known = manifest.splitting.to_dict() if manifest.splitting else {}
    lacking = {condition: split for condition, split in wanted.items() if condition not in known}
    if not lacking or (known and len(lacking) == len(wanted)):
        return False
    manifest.splitting = icechunk.ManifestSplittingConfig.from_dict({**known, **lacking})
    config.manifest = manifest
    return True
