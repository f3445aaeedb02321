"""The Zarr specifications, versions 2 and 3, which the formats share."""
