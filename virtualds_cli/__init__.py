"""The command line: a client that uses only the public library.

It is a package of its own, because importing a part of the library imports xarray, and help and
completion have to answer at once. Commands import the library when they run.
"""
