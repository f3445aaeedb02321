"""What scanning one remote file costs, of each kind, beside kerchunk and VirtualiZarr.

    python tests/benchmarks/scan_costs.py KIND=FILE [KIND=FILE ...] [--delay 20] [--runs 5]

A web server on loopback, whose answers take some milliseconds, counts requests and bytes. Every run
is a process of its own, which has imported what it needs and has scanned another file of this
content. Readers take turns; the least seconds count. Each reader does what it does without options.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from remote import served

Scan = Callable[[str], Any]


def open_dataset(url: str) -> Any:
    """Scan with virtualds."""
    import virtualds

    return virtualds.open_virtual_dataset(url)


def open_sidecar(url: str) -> Any:
    """Scan a sidecar with virtualds, which otherwise loads coordinates from the file beside it."""
    import virtualds

    return virtualds.open_virtual_dataset(url, loadable_variables=[], decode_cf=False)


def open_tree(url: str) -> Any:
    """Scan all groups with virtualds."""
    import virtualds

    return virtualds.open_virtual_datatree(url)


def translate_hdf5(url: str) -> Any:
    """Scan HDF5 with kerchunk."""
    import fsspec
    from kerchunk.hdf import SingleHdf5ToZarr

    with fsspec.open(url) as file:
        return SingleHdf5ToZarr(file, url).translate()


def translate_netcdf3(url: str) -> Any:
    """Scan netCDF classic with kerchunk."""
    from kerchunk.netCDF3 import NetCDF3ToZarr

    return NetCDF3ToZarr(url).translate()


def translate_grib(url: str) -> Any:
    """Scan GRIB with kerchunk, which makes references of each message."""
    from kerchunk.grib2 import scan_grib

    return scan_grib(url)


def translate_tiff(url: str) -> Any:
    """Scan TIFF with kerchunk."""
    from kerchunk.tiff import tiff_to_zarr

    return tiff_to_zarr(url)


def translate_fits(url: str) -> Any:
    """Scan FITS with kerchunk."""
    from kerchunk.fits import process_file

    return process_file(url)


def parse(parser: str, url: str) -> Any:
    """Scan with a parser of VirtualiZarr."""
    import virtualizarr.parsers
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore

    host = "/".join(url.split("/")[:3])
    store = HTTPStore.from_url(host, client_options={"allow_http": True})
    return getattr(virtualizarr.parsers, parser)()(url, ObjectStoreRegistry({host: store}))


KINDS: Mapping[str, Mapping[str, Scan]] = {
    "hdf5": {
        "virtualds": open_dataset,
        "kerchunk": translate_hdf5,
        "VirtualiZarr": lambda url: parse("HDFParser", url),
    },
    "netcdf3": {"virtualds": open_dataset, "kerchunk": translate_netcdf3},
    "grib": {"virtualds": open_tree, "kerchunk": translate_grib},
    "tiff": {"virtualds": open_dataset, "kerchunk": translate_tiff},
    "fits": {"virtualds": open_dataset, "kerchunk": translate_fits},
    "dmrpp": {
        "virtualds": open_sidecar,
        "VirtualiZarr": lambda url: parse("DMRPPParser", url),
    },
}


def measure(kind: str, reader: str, path: Path, delay: float) -> dict[str, float]:
    """Scan a file in this process, and return requests, bytes and seconds."""
    scan = KINDS[kind][reader]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "second"):
            shutil.copy(path, f"{folder}/{name}-{path.name}")
        url = served(Path(folder), delay)
        for _ in range(2):
            scan(f"{url}/first-{path.name}")
        urlopen(f"{url}/counts").read()
        begin, began = time.perf_counter(), time.process_time()
        scan(f"{url}/second-{path.name}")
        seconds = {
            "wall": time.perf_counter() - begin,
            "processor": time.process_time() - began,
        }
        with urlopen(f"{url}/counts") as answer:
            counts = json.load(answer)
    return {"requests": counts["requests"], "bytes": counts["bytes"], **seconds}


def run(kind: str, reader: str, path: Path, delay: float) -> dict[str, float]:
    """Measure in a new process; nothing if that fails."""
    command = [sys.executable, __file__, "--measure", kind, reader, str(path), str(delay)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"{kind}, {reader}: {found.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return {}
    return dict(json.loads(found.stdout.splitlines()[-1]))


def main() -> None:
    """Measure every file with every reader of its kind, and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("files", nargs="+", metavar="KIND=FILE")
    arguments.add_argument("--delay", type=float, default=20, help="milliseconds")
    arguments.add_argument("--runs", type=int, default=5)
    asked = arguments.parse_args()
    print("| file | reader | requests | bytes read | seconds | processor seconds |")
    print("|---|---|---:|---:|---:|---:|")
    for one in asked.files:
        kind, _, name = one.partition("=")
        path = Path(name).resolve()
        runs: dict[str, list[dict[str, float]]] = {reader: [] for reader in KINDS[kind]}
        for _ in range(asked.runs):
            for reader, found in runs.items():
                found.append(run(kind, reader, path, asked.delay))
        for reader, found in runs.items():
            if not all(found):
                print(f"| `{path.name}` | {reader} | – | – | – | – |")
                continue
            least = {key: min(one[key] for one in found) for key in found[0]}
            print(
                f"| `{path.name}`, {path.stat().st_size / 1e6:.1f} MB | {reader} "
                f"| {least['requests']:.0f} | {least['bytes'] / 1e3:,.0f} kB "
                f"| {least['wall']:.3f} | {least['processor']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--measure"]:
        kind, reader, name, delay = sys.argv[2:]
        print(json.dumps(measure(kind, reader, Path(name), float(delay))))
    else:
        main()
