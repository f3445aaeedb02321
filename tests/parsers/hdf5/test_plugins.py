"""Filters that only a plugin of HDF5 undoes are read by h5py, which is given hdf5plugin."""

from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from programs import run_code

import virtualds
from virtualds.codecs import HDF5PLUGIN_FILTERS

PLUGINS = {
    "SZ": hdf5plugin.SZ(absolute=1e-3),
    "SZ3": hdf5plugin.SZ3(absolute=1e-3),
    "SPERR": hdf5plugin.Sperr(rate=8),
    "HTJ2K": hdf5plugin.Htj2k(),
}

# a process of its own: this one has imported hdf5plugin
READ = """
import sys
import numpy as np, virtualds
path, installed = sys.argv[1:]
if installed == "no":
    sys.modules["hdf5plugin"] = None
expected = np.load(path + ".npy")
for limit in (0, 2**20):
    with virtualds.set_options(small_variable=limit):
        found = virtualds.open_virtual_dataset(path)["v"]
    assert "hdf5plugin" in sys.modules
    assert found.dtype == expected.dtype and np.array_equal(found.values, expected)
    assert np.array_equal(found[3:5, ::-2].values, expected[3:5, ::-2])
"""

READ_ELSEWHERE = """
import pickle, sys
sys.modules["hdf5plugin"] = None
pickle.load(open(sys.argv[1], "rb")).values
"""


def write(path: Path, name: str) -> None:
    dtype = "u2" if name == "HTJ2K" else "f4"
    values = np.add.outer(np.arange(32), np.arange(48)).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=values, chunks=(16, 48), compression=PLUGINS[name])
    with h5py.File(path) as file:
        np.save(f"{path}.npy", file["v"][:])


def run(code: str, *args: str) -> str:
    """Run code in a new process; return what it says."""
    return run_code(code, *args).stderr


def test_all_filters_that_hdf5plugin_alone_has_are_tried() -> None:
    assert {plugin.filter_id for plugin in PLUGINS.values()} == HDF5PLUGIN_FILTERS


@pytest.mark.parametrize("name", PLUGINS)
def test_hdf5plugin_is_used_where_it_is_installed(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.h5", name)
    assert run(READ, str(tmp_path / "a.h5"), "yes") == ""


def test_hdf5plugin_is_named_where_it_is_not_installed(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", "SZ3")
    said = run(READ, str(tmp_path / "a.h5"), "no")
    assert "HDF5 filter 32024 (SZ3)" in said
    assert "install hdf5plugin" in said


def test_a_worker_without_hdf5plugin_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", "SZ3")
    with virtualds.set_options(small_variable=0):
        found = virtualds.open_virtual_dataset(tmp_path / "a.h5")["v"]
    (tmp_path / "v.pickle").write_bytes(pickle.dumps(found))
    said = run(READ_ELSEWHERE, str(tmp_path / "v.pickle"))
    assert "UnsupportedError" in said
    assert "HDF5 filter 32024 (SZ3)" in said
    assert "install hdf5plugin" in said


@pytest.mark.parametrize("limit", [0, 2**20])
def test_a_filter_that_nobody_has_is_named_where_hdf5_reads_the_values(
    limit: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    padded = h5py.h5t.C_S1.copy()
    padded.set_size(4)
    padded.set_strpad(h5py.h5t.STR_SPACEPAD)
    with h5py.File(path, "w", libver="earliest") as file:
        options = {"dtype": h5py.Datatype(padded), "chunks": (4,), "compression": "gzip"}
        file.create_dataset("v", (8,), **options)[...] = b"ab"
    raw = bytearray(path.read_bytes())
    # the number of a filter lies 8 bytes before its name (IV.A.2.l)
    at = raw.index(b"deflate\0") - 8
    raw[at : at + 2] = (305).to_bytes(2, "little")
    path.write_bytes(raw)
    with (
        virtualds.set_options(small_variable=limit),
        pytest.raises(virtualds.UnsupportedError, match=r"'v' of .*a\.h5: HDF5 filter 305 \(LZO\)"),
    ):
        virtualds.open_virtual_dataset(path)
