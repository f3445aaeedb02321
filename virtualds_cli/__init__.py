"""The command line, a client of the library: only public ways in, imported when a command runs.

It is a package beside the library, since whoever imports a part of that imports xarray. Help and
completion have to answer at once.
"""
