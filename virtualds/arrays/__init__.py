"""Virtual arrays, and the variables and groups that hold them."""
