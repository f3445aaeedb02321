"""What one reader makes of many sets, in a process of its own.

Run as a program: ``python reading_side.py READER FOLDER``, with a reader of `READERS`. The file
``FOLDER/sets.json`` has the path or the url of each set by a name. The values of ``t`` of each set
are written to ``FOLDER/READER/NAME.npy``, or the error to ``FOLDER/READER/NAME.txt``. Readers whose
names do not say virtualds cannot import it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def is_kerchunk(where: str) -> bool:
    return where.endswith((".json", ".parquet"))


def read_with_the_engine(where: str) -> Any:
    import xarray as xr

    return xr.open_dataset(where, engine="virtual")["t"].values


def read_with_xarray(where: str) -> Any:
    import xarray as xr

    if is_kerchunk(where):
        # fsspec looks for the protocol in the first reference, and in Parquet that may be NaN
        how = {"remote_protocol": "file"}
        return xr.open_dataset(where, engine="kerchunk", storage_options=how)["t"].values
    if where.endswith(".icechunk"):
        from repositories import by_icechunk

        return by_icechunk(Path(where))["t"].values
    return xr.open_zarr(where)["t"].values


def read_with_the_store(where: str) -> Any:
    import zarr

    import virtualds

    return zarr.open_group(virtualds.zarr_store(where), mode="r")["t"][...]


def read_with_zarr_python(where: str) -> Any:
    import fsspec
    import zarr

    store: Any = where
    if is_kerchunk(where):
        how = {"fo": where, "remote_protocol": "file", "asynchronous": True}
        store = zarr.storage.FsspecStore(fsspec.filesystem("reference", **how), path="")
    elif where.endswith(".icechunk"):
        from repositories import repository

        store = repository(Path(where)).readonly_session("main").store
    return zarr.open_group(store, mode="r")["t"][...]


def read_with_virtualizarr(where: str) -> Any:
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore, LocalStore
    from virtualizarr import parsers

    stores: dict[str, Any] = {"file://": LocalStore()}
    url = where if where.startswith("http") else f"file://{where}"
    if where.startswith("http"):
        stores[url] = HTTPStore.from_url(url, client_options={"allow_http": True})
    elif where.endswith(".icechunk"):
        stores[url] = LocalStore(where)
    kinds = {
        ".json": parsers.KerchunkJSONParser,
        ".parquet": parsers.KerchunkParquetParser,
        ".icechunk": getattr(parsers, "IcechunkParser", None),
    }
    parser: Any = kinds.get(Path(where).suffix, parsers.ZarrParser)
    registry = ObjectStoreRegistry(stores)
    found = virtualizarr.open_virtual_dataset(
        url, registry=registry, parser=parser(), loadable_variables=["t"]
    )
    return found["t"].values


def read_with_gdal(where: str) -> Any:
    import rasterio

    place = f"/vsicurl/{where}" if where.startswith("http") else where
    with rasterio.open(f'ZARR:"{place}":/t') as found:
        return found.read()


def read_with_tensorstore(where: str) -> Any:
    import tensorstore

    place = where if where.startswith("http") else f"file://{where}"
    driver = "zarr" if is_kerchunk(where) else "zarr3"
    spec = {"driver": driver, "kvstore": f"{place}/t/"}
    return tensorstore.open(spec, open=True, read=True).result().read().result()


READERS: dict[str, Callable[[str], Any]] = {
    "xarray with virtualds": read_with_the_engine,
    "zarr-python with virtualds": read_with_the_store,
    "xarray": read_with_xarray,
    "zarr-python": read_with_zarr_python,
    "VirtualiZarr": read_with_virtualizarr,
    "GDAL": read_with_gdal,
    "tensorstore": read_with_tensorstore,
}


def main(reader: str, folder: Path) -> None:
    import numpy as np

    if "virtualds" not in reader:
        # importing it is an error now
        sys.modules["virtualds"] = None  # type: ignore[assignment]
    warnings.simplefilter("ignore")
    (folder / reader).mkdir()
    for name, where in json.loads((folder / "sets.json").read_text()).items():
        target = folder / reader / name
        try:
            found = np.asarray(READERS[reader](where))
        except Exception:  # noqa: BLE001
            # the test shows whatever it was
            target.with_name(f"{name}.txt").write_text(traceback.format_exc())
        else:
            np.save(target.with_name(f"{name}.npy"), found)


if __name__ == "__main__":
    # last, so that no module of the tests hides one of a library
    sys.path.append(str(Path(__file__).parent))
    main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    # libraries that bring the same library twice may not end well, after all is done
    os._exit(0)
