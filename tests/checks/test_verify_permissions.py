"""A file without read permission is unreachable, not missing: a process of another user tries."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from products import few_quick
from programs import run_code

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)

NOBODY = 65534
LOOKS = ("fingerprint", "range", "native")
CHILD = f"""
import json, os, sys
import virtualds

file, locked = sys.argv[1:]
ds = virtualds.open_virtual_dataset(file, loadable_variables=[])
# what is imported late is imported before the user changes
assert ds.virtual.verify(against="native").ok
os.chmod(locked, 0)
os.setgid({NOBODY})
os.setuid({NOBODY})
found = [ds.virtual.verify(against=against) for against in {LOOKS}]
try:
    ds.v.values
    read = ""
except OSError as error:
    read = type(error).__name__
looks = [[one.ok, sorted(one.counts), str(one)] for one in found]
print(json.dumps([read, looks]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can come to, which that of pytest is not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("locked", few_quick(["a.nc", "."], ["a.nc"]))
def test_a_file_without_permission_is_unreachable(locked: str, folder: Path) -> None:
    path = folder / "a.nc"
    xr.Dataset({"v": ("x", np.arange(5.0))}).to_netcdf(path, engine="h5netcdf")
    told = run_code(CHILD, path, folder / locked)
    assert not told.returncode, told.stderr
    read, looks = json.loads(told.stdout)
    assert read == "ReadError"
    for is_ok, kinds, text in looks:
        assert (is_ok, kinds) == (False, ["unreachable"])
        assert "ermission denied" in text
