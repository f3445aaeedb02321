"""One measurement in one process: python works.py WORK READER FOLDER -> one line of JSON."""

from __future__ import annotations

import atexit
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import many
import numpy as np
import remote
import xarray as xr
from readers import reading, reading_cold, reading_file, walking
from sets import STEPS, opening, scaling, writing

Job = Callable[[], Any]
warnings.filterwarnings("ignore")


def averaging(reader: str, folder: Path) -> Job:
    """Return a job that opens the field on two worker processes, and averages all of it."""
    from distributed import Client, LocalCluster

    source = folder / "one.nc"
    engine, path = reader, str(source)
    if reader == "virtualds":
        import virtualds

        engine, path = "virtual", f"{tempfile.mkdtemp()}/refs.json"
        virtualds.open_virtual_dataset(source).virtual.to_manifest(path)
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
    )
    client = Client(cluster)
    # closed in this order, before the loop that both need
    atexit.register(lambda: (client.close(), cluster.close()))

    def average(steps: slice) -> float:
        # a few steps a block, so that the workers have equally much to do
        chunks = {"time": 8, "y": 1024, "x": 1024}
        field = xr.open_dataset(path, engine=engine, chunks=chunks)["t"]
        return round(float(field[steps].mean(dtype="f8").compute()), 6)

    # what a process pays once, in both
    average(slice(16))
    return lambda: average(slice(None))


def indexing(reader: str, folder: Path) -> Job:
    """Return a job that finds all chunks of a file."""
    path = folder / "index.nc"
    if reader == "virtualds":
        import virtualds

        def scan() -> int:
            dataset = virtualds.open_virtual_dataset(path, loadable_variables=[])
            return int(dataset.virtual.nchunks)

        return scan
    import h5py

    def walk() -> int:
        rows = np.empty((1_000_000, 2), np.int64)
        count = 0

        def note(row: Any) -> None:
            nonlocal count
            rows[count] = row.byte_offset, row.size
            count += 1

        with h5py.File(path) as file:
            file["v"].id.chunk_iter(note)
        return count

    return walk


def concatenating(reader: str, folder: Path) -> Job:
    """Return a job that joins 1,000 arrays of 10,000 references."""
    offsets = (np.arange(10_000) * 1000).reshape(1, 100, 100)
    urls = [f"s3://bucket/some/long/prefix/product_{i:06d}.nc" for i in range(1000)]
    build = _virtualds_part if reader == "virtualds" else _virtualizarr_part
    parts = [build(url, offsets) for url in urls]
    return lambda: np.concatenate(parts, axis=0).shape[0]


def _virtualds_part(url: str, offsets: Any) -> Any:
    import virtualds

    return virtualds.ManifestArray.from_arrays(
        shape=(1, 1000, 1000),
        chunks=(1, 10, 10),
        dtype="f4",
        path=url,
        offsets=offsets,
        lengths=1000,
    )


def _virtualizarr_part(url: str, offsets: Any) -> Any:
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    paths = np.full(offsets.shape, url, dtype=np.dtypes.StringDType())
    manifest = ChunkManifest.from_arrays(
        paths=paths,
        offsets=offsets.astype("u8"),
        lengths=np.full(offsets.shape, 1000, "u8"),
        validate_paths=False,
    )
    metadata = create_v3_array_metadata(
        shape=(1, 1000, 1000),
        data_type=np.dtype("f4"),
        chunk_shape=(1, 10, 10),
        fill_value=0.0,
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
        dimension_names=None,
        attributes={},
    )
    return ManifestArray(metadata=metadata, chunkmanifest=manifest)


def ragging(way: str, folder: Path) -> Job:
    """Return a job that builds 10,000 arrays of one file each and joins them."""
    import virtualds

    lengths = [28, 31, 30] if way == "ragged" else [30]
    sizes = [lengths[i % len(lengths)] for i in range(10_000)]

    def build() -> int:
        parts = [
            virtualds.ManifestArray.from_arrays(
                shape=(n, 100, 100),
                chunks=(n, 100, 100),
                dtype="f4",
                path=f"s3://bucket/some/long/prefix/product_{i:06d}.nc",
                offsets=4096,
                lengths=1000,
            )
            for i, n in enumerate(sizes)
        ]
        return int(np.concatenate(parts, axis=0).nchunks)

    return build


def planning(way: str, folder: Path) -> Job:
    """Return a job that plans to read 1,000,000 chunks."""
    import virtualds
    from virtualds.reading.plan import plan_selection

    def rows(dtype: str, count: int, chunk: int) -> Any:
        grid = (count // chunk, 1000, 1)
        return virtualds.ManifestArray.from_arrays(
            shape=(count, 1000, 4),
            chunks=(chunk, 1, 4),
            dtype=dtype,
            path=f"s3://bucket/{dtype}{chunk}.nc",
            offsets=np.arange(np.prod(grid)).reshape(grid) * 20,
            lengths=20,
            codecs=[{"id": "zlib", "level": 1}],
        )

    if way == "mixed":  # cut every element, every two, and every three, of two byte orders
        parts = [rows("<f4", 300, 1), rows(">f4", 800, 2), rows("<f4", 900, 3)]
    else:
        parts = [rows("<f4", 1000, 1)]
    array = np.concatenate(parts, axis=0)
    return lambda: sum(len(b.ranges) for b in plan_selection(array, (slice(None),) * 3).batches)


def reading_months(way: str, folder: Path) -> Job:
    """Return a job that reads 384 MiB out of twelve files, stored in some way."""
    import virtualds

    files = sorted((folder / "months").glob(f"{way}*.nc"))
    parts = [virtualds.open_virtual_dataset(path) for path in files]
    field = xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")["t"]
    field[-1, -1, -1].values.sum()
    np.ones(2**27).sum()
    with virtualds.set_options(load_limit=2**40):
        return lambda: float(field.variable._data.read().sum(dtype="f8"))


JOBS: dict[str, Callable[[str, Path], Job]] = {
    "full": lambda reader, folder: reading(reader, folder / "one.nc", slice(None)),
    "packed": lambda reader, folder: reading(reader, folder / "packed.nc", slice(None)),
    "slice": lambda reader, folder: reading(reader, folder / "one.nc", 40),
    "point": lambda reader, folder: reading(reader, folder / "one.nc", np.s_[:, 700, 300]),
    "raw": lambda reader, folder: reading(reader, folder / "raw.nc", slice(None)),
    "tiny": lambda reader, folder: reading(reader, folder / "tiny.nc", slice(24)),
    "walk": lambda reader, folder: walking(reader, folder / "walk.nc"),
    "cold": lambda reader, folder: reading_cold(reader, folder / "one.nc"),
    "files": lambda reader, path: reading_file(reader, path),
    "http-chunks": lambda reader, folder: remote.reading(reader, folder / "remote", remote.CORNER),
    "http-runs": lambda reader, folder: remote.reading(reader, folder / "remote", slice(None)),
    "http-dask": lambda reader, folder: remote.averaging(reader, folder / "remote", 20),
    "http-dask-200": lambda reader, folder: remote.averaging(reader, folder / "remote", 200),
    "http-dask-slow": lambda reader, folder: remote.averaging(reader, folder / "remote", 20, 40),
    "http-dask-workers": lambda reader, folder: remote.averaging(
        reader, folder / "remote", 20, workers=2
    ),
    "http-scan": lambda reader, folder: remote.scanning(reader, folder / "remote", 1),
    "http-scan-100": lambda reader, folder: remote.scanning(reader, folder / "remote", 100),
    "cluster": averaging,
    "index": indexing,
    "scan-500": lambda reader, folder: many.scanning(reader, folder / "many"),
    "concat": concatenating,
    "ragged": ragging,
    "plan": planning,
    "mixed": reading_months,
    "write": writing,
    "open": opening,
}
JOBS |= {
    f"scale: {step}": lambda way, folder, step=step: scaling(step, way, folder) for step in STEPS
}


def peak_memory() -> float:
    """Return the peak memory of this process in MB; what Unix tells may be that of its parent."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def main() -> None:
    """Prepare, measure, and print."""
    work, reader, folder = sys.argv[1:]
    job = JOBS[work](reader, Path(folder))
    begin = time.perf_counter()
    check = job()
    seconds = time.perf_counter() - begin
    peak = peak_memory()
    if callable(check):
        check = check()
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "check": check}))


if __name__ == "__main__":
    main()
