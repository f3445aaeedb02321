"""Describe a set, catalogue sets and files, diagnose an archive, verify references."""
