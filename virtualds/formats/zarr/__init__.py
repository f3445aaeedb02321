"""Metadata of Zarr versions 2 and 3, which several formats use."""
