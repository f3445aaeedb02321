"""Filters that HDF5 itself undoes, with those of the package hdf5plugin where it is installed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from virtualds.codecs import make_no_filter_error


def can_undo(numbers: Iterable[int]) -> bool:
    """Say whether h5py can undo all filters of such numbers."""
    return all(map(_is_there, numbers))


def demand_filters(dataset: Any) -> None:
    """Refuse a dataset that h5py has opened, if it cannot undo a filter in this process.

    Raises
    ------
    UnsupportedError
        It cannot; the file may have been scanned in a process that could.
    """
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if missing := [number for number in numbers if not _is_there(number)]:
        raise make_no_filter_error(missing[0])


def _is_there(number: int) -> bool:
    return _is_known(number) or (_import_plugins() and _is_known(number))


def _is_known(number: int) -> bool:
    """Say whether HDF5 has a filter that decodes."""
    import h5py

    can_decode = h5py.h5z.FILTER_CONFIG_DECODE_ENABLED
    return bool(h5py.h5z.filter_avail(number) and h5py.h5z.get_filter_info(number) & can_decode)


@cache
def _import_plugins() -> bool:
    """Import hdf5plugin, which registers its filters with HDF5; say whether it is installed."""
    try:
        import_module("hdf5plugin")
    except ImportError:
        return False
    return True
