"""Groups as xarray datasets and back: open, write, append, convert, materialize."""
