"""References as kerchunk writes them: entries of JSON, records of Parquet, templates."""
