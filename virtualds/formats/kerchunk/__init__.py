"""The formats of kerchunk: JSON and Parquet."""
