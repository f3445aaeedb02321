"""What we write is read by others, and what others write is read by us.

The others are kerchunk, fsspec with zarr-python, and VirtualiZarr. Where they cannot say something
of a netCDF file, the difference is listed in the tables below with its reason.
"""

from __future__ import annotations

import pytest

kerchunk_hdf = pytest.importorskip("kerchunk.hdf", reason="kerchunk is the other side")
kerchunk_combine = pytest.importorskip("kerchunk.combine", reason="kerchunk is the other side")
pytest.importorskip("zarr", reason="zarr-python is the other side")

pytestmark = [
    # the others speak of their own affairs
    pytest.mark.filterwarnings("ignore"),
]
