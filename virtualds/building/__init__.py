"""Building one dataset out of many files: who opens them, what is done about those that fail."""
