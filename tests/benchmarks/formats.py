"""Write a million references in every format, and open them: bytes, seconds and memory.

Each format is written and opened in a process of its own. Icechunk needs its library.
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
    with tempfile.TemporaryDirectory() as folder:
        for name in parser.parse_args().names:
            path = Path(folder) / name
            written = run(WRITE, str(path), str(FILES), str(VARIABLES))
            opened = min((run(OPEN, str(path)) for _ in range(3)), key=lambda one: one["open"])
            facts = {"MB on disk": stored_bytes(path) / 1e6, **written, **opened}
            print(name, *(f"{title}: {value:.2f}" for title, value in facts.items()), sep="\t")


if __name__ == "__main__":
    main()
