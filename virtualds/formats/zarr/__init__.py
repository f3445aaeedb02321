"""What the Zarr specifications say, versions 2 and 3, as the formats share it."""
