"""What the README says of other tools: their versions here do what its table says.

The table is read: a cell is one of `OUTCOMES`, and may say more after a colon or a comma.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from markup import table_between
from peers import peer
from repositories import by_icechunk, own_repository

import virtualds

for library in ("icechunk", "kerchunk", "virtualizarr"):
    peer(library)

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

README = Path(__file__).parents[2] / "README.md"
PACKED = {"dtype": "i2", "_FillValue": -1}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chunks of different lengths, such as months": (
        {"chunksizes": (31, 4), "zlib": True},
        {"chunksizes": (28, 4), "zlib": True},
    ),
    "compression that changed": ({"zlib": True}, {"zlib": False}),
    "`scale_factor` that changed": (
        PACKED | {"scale_factor": 0.01},
        PACKED | {"scale_factor": 0.02},
    ),
}
"""Rows of the table: how two files are stored, which differ in one thing."""


def write_months(change: str) -> xr.Dataset:
    """Write ``1.nc`` and ``2.nc``, and return what xarray reads from them."""
    both = CHANGES.get(change, ({}, {}))
    for number, (days, stored) in enumerate(zip((31, 28), both, strict=True), start=1):
        values = np.random.default_rng(number).integers(0, 300, (days, 4)) / 100
        first = np.datetime64(f"2001-{number:02}-01", "ns")
        time = first + np.arange(days) * np.timedelta64(1, "D")
        month = xr.Dataset({"t": (("time", "x"), values)}, {"time": time, "x": np.arange(4)})
        units = {"units": "days since 2001-01-01", "dtype": "i4"}
        encoding = {"t": {"chunksizes": (1, 4)} | stored, "time": units}
        month.to_netcdf(f"{number}.nc", encoding=encoding, engine="netcdf4")
    return xr.concat([xr.load_dataset(f"{number}.nc") for number in (1, 2)], "time")


def write_with_virtualds() -> None:
    vds = virtualds.open_virtual_mfdataset("?.nc", combine="nested", concat_dim="time")
    vds.virtual.to_manifest("refs.zarr")


def read_with_virtualds() -> xr.Dataset:
    return xr.load_dataset("refs.zarr", engine="virtual")


def read_with_kerchunk() -> xr.Dataset:
    # fsspec keeps what it has opened, by its path
    return xr.load_dataset(f"{os.getcwd()}/refs.json", engine="kerchunk")


def registry() -> Any:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    return ObjectStoreRegistry({"file://": LocalStore()})


def open_with_virtualizarr() -> xr.Dataset:
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    found: xr.Dataset = open_virtual_mfdataset(
        [f"file://{os.getcwd()}/{number}.nc" for number in (1, 2)],
        registry=registry(),
        parser=HDFParser(),
        combine="nested",
        concat_dim="time",
        loadable_variables=["time", "x"],
    )
    return found


def write_with_virtualizarr() -> None:
    open_with_virtualizarr().vz.to_kerchunk("refs.json", format="json")


def write_into_icechunk() -> None:
    vds = open_with_virtualizarr()
    session = own_repository(Path("refs.icechunk"), Path.cwd()).writable_session("main")
    vds.vz.to_icechunk(session.store)
    session.commit("both months")


def write_with_kerchunk() -> None:
    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.hdf import SingleHdf5ToZarr

    paths = [f"{os.getcwd()}/{number}.nc" for number in (1, 2)]
    files = [SingleHdf5ToZarr(path, inline_threshold=0).translate() for path in paths]
    how = {"concat_dims": ["time"], "identical_dims": ["x"], "inline_threshold": 0}
    whole = MultiZarrToZarr(files, **how).translate()
    Path("refs.json").write_text(json.dumps(whole))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


Do, Read = Callable[[], None], Callable[[], xr.Dataset]
TOOLS: dict[str, tuple[Do, Read]] = {
    "virtualds": (write_with_virtualds, read_with_virtualds),
    "VirtualiZarr": (write_with_virtualizarr, read_with_kerchunk),
    "kerchunk": (write_with_kerchunk, read_with_kerchunk),
    "Icechunk": (write_into_icechunk, lambda: by_icechunk(Path("refs.icechunk"))),
}
"""How the tools of the columns write references, and how these are read."""


def is_right(write: Do, read: Read, expected: xr.Dataset) -> None:
    write()
    xr.testing.assert_equal(read(), expected)


def is_refused(write: Do, read: Read, expected: xr.Dataset) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=r"chunk|codecs"):
        write()


def is_undecodable(write: Do, read: Read, expected: xr.Dataset) -> None:
    write()
    with pytest.raises(zlib.error, match="incorrect header"):
        np.asarray(read()["t"])


def is_wrong(write: Do, read: Read, expected: xr.Dataset) -> None:
    """All files are unpacked with the scale of one."""
    write()
    found, values = read()["t"].values, expected["t"].values
    ratios = [
        np.median(found[month][values[month] > 0] / values[month][values[month] > 0])
        for month in (slice(31), slice(31, None))
    ]
    assert ratios in (pytest.approx([1, 0.5]), pytest.approx([2, 1]))


OUTCOMES: dict[str, Callable[[Do, Read, xr.Dataset], None]] = {
    "yes": is_right,
    "refused": is_refused,
    "undecodable chunks": is_undecodable,
    "wrong values": is_wrong,
}


def outcome(row: str, tool: str) -> str:
    """What a cell of the table begins with."""
    cells = table_between(README, "comparison")[row]
    [cell] = [cell for column, cell in cells.items() if column.split()[0] == tool]
    return re.split("[:,]", cell)[0]


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "Icechunk"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_readme_says_what_a_tool_makes_of_files_that_differ(change: str, tool: str) -> None:
    expected = write_months(change)
    OUTCOMES[outcome(change, tool)](*TOOLS[tool], expected)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_readme_says_who_notices_that_a_file_has_changed(tool: str) -> None:
    before = write_months("alike")["t"]
    write, read = TOOLS[tool]
    write()
    data, day = bytearray(Path("2.nc").read_bytes()), before.values[-1].tobytes()
    start = data.index(day)
    data[start : start + 8] = np.float64(7).tobytes()
    Path("2.nc").write_bytes(data)
    later = Path("2.nc").stat().st_mtime + 10
    os.utime("2.nc", (later, later))
    said = outcome("a file that changed since", tool)
    if said == "an error":
        with pytest.raises(Exception, match=r"was modified|has changed"):
            np.asarray(read()["t"])
    else:
        assert said == "not noticed"
        found = read()["t"].values
        assert found[-1, 0] == 7 and (found == before.values).sum() == before.size - 1


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_that_is_gone_is_an_error_for_all(tool: str) -> None:
    write_months("alike")
    write, read = TOOLS[tool]
    write()
    Path("2.nc").unlink()
    with pytest.raises(Exception, match=r"2\.nc"):
        np.asarray(read()["t"])


def test_virtualizarr_cuts_between_chunks_and_reads_no_values_of_a_dataset() -> None:
    write_months("alike")
    vds = open_with_virtualizarr()
    assert vds.isel(time=slice(2, 5))["t"].shape == (3, 4)
    with pytest.raises(Exception, match="split individual chunks"):
        vds.isel(x=slice(1, 3))
    with pytest.raises(NotImplementedError, match="cannot be converted into a numpy array"):
        np.asarray(vds["t"])


def test_the_manifest_store_of_one_file_has_values() -> None:
    from virtualizarr.parsers import HDFParser

    write_months("alike")
    store = HDFParser()(f"file://{os.getcwd()}/1.nc", registry())
    with xr.open_zarr(store, consolidated=False, zarr_format=3) as found:
        np.testing.assert_array_equal(found["t"].values, xr.load_dataset("1.nc")["t"].values)
