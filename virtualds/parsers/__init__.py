"""Parsers, which read source files into groups of references."""
