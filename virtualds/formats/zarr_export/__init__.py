"""Show virtual arrays as keys and values of plain Zarr."""
