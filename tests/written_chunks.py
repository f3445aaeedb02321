"""What is written into HDF5 datasets with chunks: all of one, or a few elements far apart."""

from __future__ import annotations

import h5py
import numpy as np


def full(dataset: h5py.Dataset) -> None:
    dataset[...] = np.arange(dataset.size).reshape(dataset.shape)


def sparse(dataset: h5py.Dataset) -> None:
    for number in range(0, dataset.size, 37):
        dataset[np.unravel_index(number, dataset.shape)] = number
