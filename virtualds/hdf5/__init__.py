"""HDF5 files as netCDF sees them: structure, attributes, storage, and what only h5py reads."""
