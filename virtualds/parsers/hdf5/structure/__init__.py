"""The structure of HDF5 files, read as bytes: one module for each part of the file format."""
