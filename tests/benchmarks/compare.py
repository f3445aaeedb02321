"""Compare the speed of virtualds with other readers; see the README beside this file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import many
import numpy as np
import remote
from sets import STEPS, SUFFIXES

Result = dict[str, Any]
"""Median seconds, greatest peak memory in MB, and the value that all readers agree on."""

NATIVE = ("netcdf4", "h5netcdf", "hidefix")
VIRTUAL = ("kerchunk", "virtualizarr", "icechunk")
READERS = {
    "full": ("virtualds", "limit", *NATIVE, *VIRTUAL),
    "packed": ("virtualds", "netcdf4", "h5netcdf", *VIRTUAL),
    "slice": ("virtualds", *NATIVE, *VIRTUAL),
    "point": ("virtualds", *NATIVE, *VIRTUAL),
    "raw": ("virtualds", "limit", *NATIVE, *VIRTUAL),
    "tiny": ("virtualds", *NATIVE),
    "walk": ("virtualds", *NATIVE),
    "cold": ("virtualds", *NATIVE),
    "http-chunks": ("virtualds", "kerchunk", "icechunk"),
    "http-runs": ("virtualds", "kerchunk", "icechunk"),
    "http-dask": ("virtualds", "no dask", "kerchunk", "icechunk"),
    "http-dask-200": ("virtualds", "no dask", "kerchunk", "icechunk"),
    "http-dask-slow": ("virtualds", "no dask", "kerchunk", "icechunk"),
    "http-dask-workers": ("virtualds", "no dask", "kerchunk", "icechunk"),
    "http-scan": ("virtualds", "virtualizarr"),
    "http-scan-100": ("virtualds", "virtualizarr"),
    "cluster": ("virtualds", "h5netcdf"),
    "index": ("virtualds", "h5py"),
    "scan-500": ("virtualds", "two processes", "h5py"),
    "concat": ("virtualds", "virtualizarr"),
    "ragged": ("regular", "ragged"),
    "plan": ("uniform", "mixed"),
    "mixed": ("uniform", "ragged", "unshuffled", "recoded"),
    "write": (*SUFFIXES, "icechunk", "virtualizarr"),
    "open": (*SUFFIXES, "icechunk", "virtualizarr"),
    "scale": ("zarr-v3", "kerchunk-parquet"),
}
"""What is measured for every work, virtualds first; of some, ways of ours to store the same."""
MODULES = {"netcdf4": "netCDF4"}
"""Names of the modules of readers that are called otherwise."""
STORED = (
    "limit",
    "no dask",
    "two processes",
    "regular",
    "uniform",
    "ragged",
    "mixed",
    "unshuffled",
    "recoded",
    *SUFFIXES,
)
"""Ways to store, which need nothing to be installed."""


COMPRESSED = {"compression": "gzip", "shuffle": True}


def make_inputs(folder: Path) -> None:
    """Write the input files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "one.nc": ((96, 1024, 1024), {"chunks": (1, 512, 512), **COMPRESSED}),
        "raw.nc": ((96, 1024, 1024), {"chunks": (1, 512, 512)}),
        "tiny.nc": ((96, 1024, 1024), {"chunks": (1, 32, 32)}),
        "walk.nc": ((72, 540, 720), {"chunks": (24, 90, 180), **COMPRESSED}),
    }
    for name, (shape, options) in fields.items():
        if not (folder / name).exists():
            _write_field(folder / name, shape, options)
    if not (folder / "packed.nc").exists():
        _write_packed(folder / "packed.nc", folder / "one.nc")
    if not (folder / "many").exists():
        many.write_files(folder / "many")
    if not (folder / "remote").exists():
        remote.write_files(folder / "remote")
    if not (folder / "index.nc").exists():
        with h5py.File(folder / "index.nc", "w", libver="latest") as file:
            values = np.arange(4_000_000, dtype="f4").reshape(1000, 1000, 4)
            file.create_dataset("v", data=values, chunks=(1, 1, 4))
    if not (folder / "few.nc").exists():
        with h5py.File(folder / "few.nc", "w", libver="latest") as file:
            values = np.arange(400, dtype="f4").reshape(10, 10, 4)
            file.create_dataset("v", data=values, chunks=(1, 1, 4))
    if not (folder / "months").exists():
        _write_months(folder / "months")


def _write_months(folder: Path) -> None:
    """Write 384 steps: in files of 32, of 28 to 36, of 32 without shuffle, and with and without."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    x = np.linspace(0, 9, 512 * 512).reshape(512, 512)
    noise = rng.normal(0, 0.3, (512, 512))
    lengths = {
        "uniform": (32,) * 12,
        "ragged": (31, 28, 36, 33) * 3,
    }
    lengths |= dict.fromkeys(("unshuffled", "recoded"), lengths["uniform"])
    for way, sizes in lengths.items():
        begin = 0
        for number, size in enumerate(sizes):
            with h5py.File(folder / f"{way}{number:02}.nc", "w") as file:
                shuffle = way != "unshuffled" and (way != "recoded" or number % 2 == 0)
                options = {"chunks": (4, 512, 512), "compression": "gzip", "shuffle": shuffle}
                field = file.create_dataset("t", (size, 512, 512), "f4", **options)
                for step in range(size):
                    wave = 280 + 5 * np.sin((begin + step) / 7 + x)
                    field[step] = np.round(wave + np.roll(noise, begin + step), 2)
                for axis, (name, count) in enumerate({"time": size, "y": 512, "x": 512}.items()):
                    scale = file.create_dataset(name, data=np.arange(float(count)))
                    scale.make_scale(name)
                    field.dims[axis].attach_scale(scale)
            begin += size


def _write_field(path: Path, shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    """Write waves with a little noise, rounded as observations are."""
    rng = np.random.default_rng(11)
    steps, rows, columns = shape
    y, x = np.meshgrid(np.linspace(0, 6, rows), np.linspace(0, 9, columns), indexing="ij")
    with h5py.File(path, "w") as file:
        field = file.create_dataset("t", shape, "f4", **options)
        for step in range(steps):
            wave = 280 + 15 * np.sin(y) * np.cos(x) + 5 * np.sin(step / 7 + x)
            field[step] = np.round(wave + rng.normal(0, 0.3, y.shape), 2)
        for axis, (name, size) in enumerate(zip(("time", "y", "x"), shape, strict=True)):
            scale = file.create_dataset(name, data=np.arange(float(size)))
            scale.make_scale(name)
            field.dims[axis].attach_scale(scale)


def _write_packed(path: Path, source: Path) -> None:
    """Write a field as archives mostly do: as short integers, with a scale and an offset."""
    with h5py.File(source) as one, h5py.File(path, "w") as file:
        field, options = one["t"], {"chunks": (1, 512, 512), "fillvalue": -32767, **COMPRESSED}
        packed = file.create_dataset("t", field.shape, "i2", **options)
        packed.attrs.update(scale_factor=0.01, add_offset=280.0, _FillValue=np.int16(-32767))
        for step in range(field.shape[0]):
            packed[step] = np.round((field[step] - 280) / 0.01).astype("i2")
        for axis, name in enumerate(("time", "y", "x")):
            scale = file.create_dataset(name, data=one[name][...])
            scale.make_scale(name)
            packed.dims[axis].attach_scale(scale)


def is_installed(reader: str) -> bool:
    """Say whether a reader can be measured here."""
    return reader in STORED or importlib.util.find_spec(MODULES.get(reader, reader)) is not None


def measure(work: str, reader: str, folder: Path) -> Result:
    """Run one work in a process of its own."""
    program = Path(__file__).parent / "works.py"
    command = [sys.executable, str(program), work, reader, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError(f"{work} by {reader}: {done.stderr.strip().splitlines()[-1]}")
    found: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(work: str, folder: Path, readers: Sequence[str], runs: int) -> dict[str, Result]:
    """Measure one work for every reader, in turn so that noise hits all alike, and print it."""
    found: dict[str, list[dict[str, Any]]] = {r: [] for r in readers if is_installed(r)}
    for _ in range(runs):
        for reader, measured in tuple(found.items()):
            try:
                measured.append(measure(work, reader, folder))
            except ChildProcessError as error:
                print(error)
                del found[reader]
    results = {reader: _median(measured) for reader, measured in found.items()}
    first = next(iter(results.values()))["seconds"]
    print(f"== {work}")
    for reader, result in results.items():
        ratio = result["seconds"] / first
        told = f"{result['peak_mb']:6.0f} MB  {result['check']}"
        print(f"  {reader:14} {result['seconds']:9.3f} s  x{ratio:6.2f}  {told}", flush=True)
    return results


def _median(measured: Sequence[dict[str, Any]]) -> Result:
    return {
        "seconds": statistics.median(m["seconds"] for m in measured),
        "peak_mb": max(m["peak_mb"] for m in measured),
        "check": measured[0]["check"],
    }


def record(path: Path, work: str, results: dict[str, Result]) -> None:
    """Put the results of a work beside those of others, for the page that shows them."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[work] = results
    path.write_text(json.dumps(known, indent=1) + "\n")


def follow(folder: Path) -> None:
    """Print what every step costs in the life of a large set, once, for each of our formats."""
    for way in READERS["scale"]:
        print(f"== scale: {way}")
        for step in STEPS:
            found = measure(f"scale: {step}", way, folder)
            print(
                f"  {step:18} {found['seconds']:9.3f} s  {found['peak_mb']:6.0f} MB  "
                f"{found['check']}",
                flush=True,
            )


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", nargs="*", default=list(READERS), help=", ".join(READERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--record", type=Path, help="JSON file to write results to")
    parser.add_argument("--file", type=Path, action="append", default=[], help="file to read whole")
    chosen = parser.parse_args()
    make_inputs(chosen.folder)
    for path in chosen.file:
        results = compare("files", path.resolve(), ("virtualds", *NATIVE), chosen.runs)
        if chosen.record:
            record(chosen.record, f"file {path.name}", results)
    for work in [] if chosen.file else chosen.work:
        if work == "scale":
            follow(chosen.folder)
            continue
        results = compare(work, chosen.folder, READERS[work], chosen.runs)
        if chosen.record:
            record(chosen.record, work, results)


if __name__ == "__main__":
    main()
