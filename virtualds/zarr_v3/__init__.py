"""Zarr v3 as it stands on disk: metadata, chunk manifests, values, and the document of a set."""
