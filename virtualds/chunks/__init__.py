"""Chunk axes, manifests and fragments: which bytes hold an array."""
