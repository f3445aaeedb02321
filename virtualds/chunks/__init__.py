"""Chunk axes, manifests and fragments: the byte ranges that contain the values of an array."""
