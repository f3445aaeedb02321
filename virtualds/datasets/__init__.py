"""Groups and xarray datasets: finding the reader of a url, opening, decoding, and back."""
