"""Building one dataset out of many files."""
