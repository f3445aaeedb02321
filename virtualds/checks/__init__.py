"""Checks: describe a set, diagnose an archive, verify references."""
