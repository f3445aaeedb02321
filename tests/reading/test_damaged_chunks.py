"""Damage ends in an error or is no longer than the chunk, and never ends the process.

Each family of codecs is tried in a process of its own, with what is encoded right before a page
that cannot be read, and again without the packages that are only faster.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from encoded_bytes import CHECKED, CONFIGS, SZIP, encoded
from filtered_chunks import FILTERS, Filter, codecs_of, raw_chunks, store
from products import few_quick
from programs import run_code

PROGRAM = Path(__file__).parents[1] / "damaged_chunks.py"
SIZES = (50, 20_000, 140_000)
"""Elements of chunks: few, more than fit into one block of anything, and those of a large one."""
FAMILIES = {
    "deflate": ("zlib", "zlib 0", "zlib 9", "gzip"),
    "zstd": ("zstd", "zstd checksum"),
    "lz4": ("lz4",),
    "blosc": ("blosc", "blosc zstd"),
    "older": ("bz2", "lzma"),
    "shuffle": ("shuffle 4", "shuffle 8", "shuffle 3"),
    "checksums": ("fletcher32", "crc32c", "crc32c before"),
    "szip": ("szip",),
}
STEPS = {"jpegls": 40, "fastcrc google_crc32c": 10}
"""Of so many damaged chunks one is decoded: CharLS may look for seconds for the end of a number.

Without these two packages crc32c is numpy's work, which takes ten times as long.
"""
FASTER = {
    "deflate": [("deflate",)],
    "shuffle": [("zlib_into",)],
    "checksums": [("fastcrc",), ("fastcrc", "google_crc32c")],
    "bitshuffle": [("imagecodecs",)],
}
"""What families are decoded without, too."""


def of_zarr(name: str) -> dict[str, dict[str, Any]]:
    config = SZIP if name == "szip" else CONFIGS[name]
    found = {}
    for size in SIZES:
        size = size // 64 * 64 or 64
        data = (np.cumsum(np.random.default_rng(size).integers(0, 9, size)) % 9999).astype("<i2")
        raw = encoded(config, data.tobytes())
        found[f"{name} {size}"] = {"config": config, "raw": raw.hex(), "nbytes": data.nbytes}
    return found


def of_hdf5(family: str) -> dict[str, dict[str, Any]]:
    found = {}
    with h5py.File("nowhere", "w", driver="core", backing_store=False) as file:
        for name in (n for n in FILTERS if n.split()[0].rstrip(",") == family):
            chosen = FILTERS[name]
            for dtype in {chosen.dtypes[0], chosen.dtypes[-1]}:
                data = (np.arange(9000) // 12 % 90).reshape(1, 90, 100).astype(dtype)
                label = f"{name} {dtype}"
                store(file, label, Filter(chosen.number, chosen.how), data, data.shape)
                codec = codecs_of(file[label])[-1]
                _, _, raw = next(raw_chunks(file[label]))
                nbytes = len(codec.decode(raw, None))
                config = codec.to_zarr_v2()
                found[label] = {"config": config, "raw": raw.hex(), "nbytes": nbytes}
    return found


HDF5 = sorted({name.split()[0].rstrip(",") for name in FILTERS} - {"zstd", "blosc", "bzip2"})
ALL = [f"zarr {name}" for name in FAMILIES] + [f"hdf5 {name}" for name in HDF5]


def run(family: str, folder: Path, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what became of the chunks of a family, in a process that has to live."""
    where, _, name = family.partition(" ")
    if where == "zarr":
        chunks = {key: chunk for one in FAMILIES[name] for key, chunk in of_zarr(one).items()}
    else:
        chunks = of_hdf5(name)
    step = STEPS.get(" ".join(missing), STEPS.get(name, 1))
    chunks = {key: {**chunk, "step": step} for key, chunk in chunks.items()}
    path = folder / "chunks.json"
    path.write_text(json.dumps(chunks))
    done = run_code(PROGRAM.read_text(), path, *missing)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found
    return found


@cache
def run_with_all(family: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run(family, Path(folder))


def check(found: dict[str, Any]) -> None:
    for name, what in found.items():
        assert len(what["sound"]) == 64, f"{name}: {what['sound']}"
        assert set(what["counts"]) <= {"CodecError", "sound", "undetected"}, name
        if name.rpartition(" ")[0] in CHECKED:
            assert "undetected" not in what["counts"], name
        assert sum(what["counts"].values()) > 5


@pytest.mark.parametrize("family", few_quick(ALL, ("zarr zstd", "hdf5 lz4")))
def test_damage_is_an_error_or_keeps_the_length(family: str) -> None:
    check(run_with_all(family))


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "missing"),
    [
        pytest.param(family, missing, id=f"{family} without {' '.join(missing)}")
        for family in ALL
        for missing in FASTER.get(family.split()[1], [])
    ],
)
def test_optional_packages_only_make_decoding_faster(
    family: str, missing: tuple[str, ...], tmp_path: Path
) -> None:
    without = run(family, tmp_path, missing)
    check(without)
    assert {name: what["sound"] for name, what in without.items()} == {
        name: what["sound"] for name, what in run_with_all(family).items()
    }
