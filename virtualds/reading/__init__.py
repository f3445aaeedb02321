"""Reads a selection: plans it, fetches chunks, and decodes them directly into the result."""
