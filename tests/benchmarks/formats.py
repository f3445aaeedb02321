"""Write a million references in every format, open them, append one file, and replace one.

Prints bytes, processor seconds and memory. Each step is a process of its own. Icechunk needs its
library.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
    """Print one line for each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--variables", type=int, default=VARIABLES)
    given = parser.parse_args()
    sizes = (str(given.files), str(given.variables))
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names:
            path = Path(folder) / name
            written = run(WRITE, str(path), *sizes)
            opened = min((run(OPEN, str(path)) for _ in range(3)), key=lambda one: one["open"])
            facts = {"MB on disk": stored_bytes(path) / 1e6, **written, **opened}
            facts |= run(CHANGE, str(path), *sizes)
            print(name, *(f"{title}: {value:.2f}" for title, value in facts.items()), sep="\t")


if __name__ == "__main__":
    main()
