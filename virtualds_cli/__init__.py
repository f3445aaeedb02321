"""The command line, which uses only the public library.

It is a package of its own because importing any module of the library imports xarray, which takes
too long for help and completion. Commands import the library when they run.
"""
