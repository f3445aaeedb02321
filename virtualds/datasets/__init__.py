"""Groups as xarray datasets and back: which parser or format reads a url, opened and decoded."""
