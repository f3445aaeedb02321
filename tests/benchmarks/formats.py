"""Write a million references in every format, open them, append one file, and replace one.

Prints bytes, processor seconds and memory. Each step is a process of its own. Icechunk needs its
library. With ``--references`` one array of so many goes through all steps in one process; memory is
the most that a step takes besides what was there before it, in bytes a reference.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("refs.zarr", "refs.parquet", "refs.json", "refs.json.zst", "refs.icechunk")
FILES, VARIABLES = 10_000, 100
WRITE = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from million import block
dataset = block(0, int(sys.argv[2]), int(sys.argv[3]))
before = time.process_time()
dataset.virtual.to_manifest(sys.argv[1])
print(json.dumps({"write": time.process_time() - before}))
"""
OPEN = """
import json, resource, sys, time
import xarray as xr
from virtualds.backend import VirtualBackendEntrypoint
before = time.process_time()
xr.open_dataset(sys.argv[1], engine="virtual", decode_times=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"open": time.process_time() - before, "MB in memory": peak}))
"""
CHANGE = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from million import block
target, files, variables = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def measure(work):
    before = time.process_time()
    work()
    return time.process_time() - before

def append(to, number, count):
    block(number, number + 1, count).virtual.to_manifest(to, append_dim="time")

def replace(to, number, count):
    block(number, number + 1, count).virtual.to_manifest(to, mode="replace-source")

small = target.with_name("small" + target.name.removeprefix("refs"))
block(0, 3, 2).virtual.to_manifest(small)
append(small, 3, 2)
replace(small, 1, 2)
new, old = files, files // 2
found = {"append one file": measure(lambda: append(target, new, variables))}
found["replace one file"] = measure(lambda: replace(target, old, variables))
print(json.dumps(found))
"""


STEPS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from formats import work
print(json.dumps(work(sys.argv[1], int(float(sys.argv[2])))))
"""
PARTS, ROWS, COLUMNS = 10, 100, 100
"""Parts that are joined of references in one array, and chunks of one step of it."""


def run(code: str, *arguments: str) -> dict[str, float]:
    """Return what a new process prints as its last line."""
    command = [sys.executable, "-c", code, *arguments]
    where = Path(__file__).parent
    found = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
    return dict(json.loads(found.stdout.splitlines()[-1]))


def stored_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)


# ---------------------------------------------------------------------- in a process of its own


def part(steps: int, number: int) -> Any:
    """Return a part of an array of so many steps, a file for each ten of them."""
    import numpy as np
    import xarray as xr

    import virtualds

    grid = (steps, ROWS, COLUMNS)
    files = [
        virtualds.SourceFile(f"s3://some-archive/daily/v3/{number:02d}/{n:07d}.nc", size=2**50)
        for n in range(-(-steps // 10))
    ]
    length = np.random.default_rng(number).integers(500_000, 1_500_000, grid)
    offset = np.cumsum(length).reshape(grid) - length
    file = np.broadcast_to((np.arange(steps, dtype=np.int32) // 10)[:, None, None], grid)
    manifest = virtualds.ChunkManifest.build(
        grid, files=files, file=file.copy(), offset=offset, length=length
    )
    axes = tuple(virtualds.ChunkAxis.regular(n * 10, 10) for n in grid)
    pipeline = virtualds.CodecPipeline(np.dtype("f4"), layout=(0, 1, 2))
    fragment = virtualds.Fragment((0, 0, 0), axes, manifest)
    array = virtualds.ManifestArray.from_fragment(fragment, pipeline)
    return xr.Dataset({"v": (("time", "y", "x"), array)})


@contextmanager
def step(name: str, facts: dict[str, float], references: int) -> Iterator[None]:
    """Note processor seconds of a step, and the most bytes a reference that it takes besides."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak
    before, began = read_memory("VmRSS"), time.process_time()
    yield
    facts[name] = time.process_time() - began
    facts[f"{name} B"] = (read_memory("VmHWM") - before) / references


def read_memory(name: str) -> int:
    """Return what Linux says of the memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def work(target: str, references: int) -> dict[str, float]:
    """Return what each step takes for references in one array."""
    import xarray as xr

    import virtualds

    facts: dict[str, float] = {}
    steps = references // (PARTS * ROWS * COLUMNS)
    part(2, 0).virtual.to_manifest(Path(target).with_name(f"first-{Path(target).name}"))
    with step("build", facts, references):
        parts = [part(steps, number) for number in range(PARTS)]
    with step("concat", facts, references):
        whole = xr.concat(parts, "time")
    with step("write", facts, references):
        whole.virtual.to_manifest(target)
    del whole, parts
    more = part(steps, PARTS)
    with step("append", facts, references):
        more.virtual.to_manifest(target, append_dim="time")
    with step("open", facts, references):
        opened = virtualds.open_virtual_dataset(target)
    with step("join sets", facts, references):
        joined = xr.concat([opened, opened], "time")
    if not target.endswith((".json", ".zst", ".icechunk")):
        with step("write joined", facts, references):
            joined.virtual.to_manifest(Path(target).with_name(f"joined-{Path(target).name}"))
    return facts


def main() -> None:
    """Print one line for each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--variables", type=int, default=VARIABLES)
    parser.add_argument("--references", help="of one array, which goes through all steps")
    given = parser.parse_args()
    sizes = (str(given.files), str(given.variables))
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names:
            path = Path(folder) / name
            if given.references is not None:
                facts = run(STEPS, str(path), given.references)
                print(name, *(f"{title}: {value:.2f}" for title, value in facts.items()), sep="\t")
                continue
            written = run(WRITE, str(path), *sizes)
            opened = min((run(OPEN, str(path)) for _ in range(3)), key=lambda one: one["open"])
            facts = {"MB on disk": stored_bytes(path) / 1e6, **written, **opened}
            facts |= run(CHANGE, str(path), *sizes)
            print(name, *(f"{title}: {value:.2f}" for title, value in facts.items()), sep="\t")


if __name__ == "__main__":
    main()
