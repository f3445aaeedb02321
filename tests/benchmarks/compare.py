"""Measure virtualds beside the native libraries and its peers; see the README beside this file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
from sets import STEPS, SUFFIXES

READERS = {
    "full": ("virtualds", "netcdf4", "h5netcdf", "hidefix", "kerchunk"),
    "slice": ("virtualds", "netcdf4", "h5netcdf", "hidefix", "kerchunk"),
    "point": ("virtualds", "netcdf4", "h5netcdf", "hidefix", "kerchunk"),
    "cluster": ("virtualds", "h5netcdf"),
    "index": ("virtualds", "h5py"),
    "concat": ("virtualds", "virtualizarr"),
    "import": ("virtualds",),
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
STORED = ("regular", "uniform", "ragged", "mixed", "unshuffled", "recoded", *SUFFIXES)
"""Ways to store, which need nothing to be installed."""


def make_inputs(folder: Path) -> None:
    """Write the input files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "one.nc").exists():
        _write_field(folder / "one.nc")
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


def _write_field(path: Path) -> None:
    """Write waves with a little noise, rounded as observations are."""
    rng = np.random.default_rng(11)
    y, x = np.meshgrid(np.linspace(0, 6, 1024), np.linspace(0, 9, 1024), indexing="ij")
    with h5py.File(path, "w") as file:
        options = {"chunks": (1, 512, 512), "compression": "gzip", "shuffle": True}
        field = file.create_dataset("t", (96, 1024, 1024), "f4", **options)
        for step in range(96):
            wave = 280 + 15 * np.sin(y) * np.cos(x) + 5 * np.sin(step / 7 + x)
            field[step] = np.round(wave + rng.normal(0, 0.3, y.shape), 2)
        for axis, (name, size) in enumerate({"time": 96, "y": 1024, "x": 1024}.items()):
            scale = file.create_dataset(name, data=np.arange(float(size)))
            scale.make_scale(name)
            field.dims[axis].attach_scale(scale)


def is_installed(reader: str) -> bool:
    """Say whether a reader can be measured here."""
    return reader in STORED or importlib.util.find_spec(MODULES.get(reader, reader)) is not None


def measure(work: str, reader: str, folder: Path) -> dict[str, float]:
    """Run one work in a process of its own."""
    program = Path(__file__).parent / "works.py"
    command = [sys.executable, str(program), work, reader, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(work: str, folder: Path, runs: int) -> None:
    """Print the medians of one work for every reader, in turn so that noise hits all alike."""
    readers = [reader for reader in READERS[work] if is_installed(reader)]
    found: dict[str, list[dict[str, float]]] = {reader: [] for reader in readers}
    for _ in range(runs):
        for reader in readers:
            found[reader].append(measure(work, reader, folder))
    first = statistics.median(m["seconds"] for m in found[readers[0]])
    print(f"== {work}")
    for reader, measured in found.items():
        seconds = statistics.median(m["seconds"] for m in measured)
        peak = max(m["peak_mb"] for m in measured)
        check = measured[0]["check"]
        print(f"  {reader:14} {seconds:9.3f} s  x{seconds / first:6.2f}  {peak:6.0f} MB  {check}")


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
    arguments = parser.parse_args()
    make_inputs(arguments.folder)
    for work in arguments.work:
        if work == "scale":
            follow(arguments.folder)
        else:
            compare(work, arguments.folder, arguments.runs)


if __name__ == "__main__":
    main()
