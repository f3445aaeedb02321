"""HDF5 files of one structure, read together by a blueprint."""
