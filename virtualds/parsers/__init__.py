"""Parsers read source files into groups of references."""
