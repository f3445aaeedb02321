"""How stored variables decode, asked of xarray once for all groups that are alike."""
