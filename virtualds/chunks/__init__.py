"""Chunk axes, manifests and fragments: which bytes contain the values of an array."""
