"""Settings of HDF5 that h5py has no names for, set through the library that h5py has loaded.

Where that library cannot be found (h5py of a distribution may link it statically), files are made
without these settings: `have_library` says so.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import h5py

HID, UNSIGNED, SIZE = ctypes.c_int64, ctypes.c_uint, ctypes.c_size_t
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "H5Pset_sym_k": (HID, UNSIGNED, UNSIGNED),
    "H5Pset_istore_k": (HID, UNSIGNED),
    "H5Pset_shared_mesg_nindexes": (HID, UNSIGNED),
    "H5Pset_shared_mesg_index": (HID, UNSIGNED, UNSIGNED, UNSIGNED),
    "H5Pset_shared_mesg_phase_change": (HID, UNSIGNED, UNSIGNED),
    "H5Pset_chunk_opts": (HID, UNSIGNED),
    "H5Pset_link_phase_change": (HID, UNSIGNED, UNSIGNED),
    "H5Pset_local_heap_size_hint": (HID, SIZE),
    "H5Pset_est_link_info": (HID, UNSIGNED, UNSIGNED),
    "H5Pset_char_encoding": (HID, ctypes.c_int),
    "H5Pset_fill_value": (HID, HID, ctypes.c_void_p),
    "H5Pset_nbit": (HID,),
}
DONT_FILTER_PARTIAL_CHUNKS = 2
SHARED_MESSAGES = {"space": 0x2, "type": 0x8, "fill": 0x20, "filters": 0x800, "attribute": 0x1000}
"""Messages that can be shared, as H5Pset_shared_mesg_index counts them."""


@cache
def _library() -> ctypes.CDLL | None:
    """Return the library of this h5py, not that of another package."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split()[-1] for line in lines if "libhdf5" in line and "_hl" not in line}
    own = [path for path in sorted(paths) if "h5py.libs" in path]
    return ctypes.CDLL(own[0]) if own else None


def have_library() -> bool:
    """Say whether `set_property` has an effect."""
    return _library() is not None


def set_property(plist: Any, name: str, *values: int | None) -> None:
    """Call a function of the library on a property list of h5py."""
    library = _library()
    if library is None:
        return
    function = getattr(library, name)
    function.argtypes, function.restype = SIGNATURES[name], ctypes.c_int
    with h5py._hl.base.phil:
        if function(plist.id, *values) < 0:
            raise ValueError(f"{name}{values} failed")
