"""Files that are compressed as a whole are refused with lines that open them, and these work."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zstandard
from astropy.io import fits
from click.testing import CliRunner
from counting_server import counting_server

import virtualds
from virtualds.errors import UnsupportedError
from virtualds_cli.program import main

FIELD = np.random.default_rng(3).normal(size=(300, 400)).astype("f4")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("y", 300)
        file.createDimension("x", 400)
        file.createVariable("t", "f4", ("y", "x"), chunksizes=(50, 400), zlib=True)[:] = FIELD
        file.createVariable("x", "f8", ("x",))[:] = np.arange(400)
    return path


def _deflated(path: Path, source: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source, "in/a.nc")
        archive.writestr("notes.txt", "text" * 100)


def _tarred(path: Path, source: Path) -> None:
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        archive.add(source, "in/a.nc")
        archive.addfile(tarfile.TarInfo("notes.txt"), io.BytesIO())


def _as(compress: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    return lambda path, source: path.write_bytes(compress(source.read_bytes())) and None


KINDS: dict[str, tuple[str, str, Callable[[Path, Path], Any]]] = {
    "a.nc.gz": ("{}", "gzip", _as(gzip.compress)),
    "a.nc.bz2": ("{}", "bzip2", _as(bz2.compress)),
    "a.nc.xz": ("{}", "xz", _as(lzma.compress)),
    "a.nc.zst": ("{}", "zstd", _as(zstandard.compress)),
    "a name without a suffix": ("{}", "gzip", _as(gzip.compress)),
    "a.zip": ("zip://in/a.nc::{}", "deflate", _deflated),
    "a.tar.gz": ("{}", "gzip", _tarred),
    "b.tar.gz": ("tar://in/a.nc::{}", "gzip", _tarred),
    "a.tar.bz2": ("tar://in/a.nc::{}", "bzip2", _tarred),
}
kinds = pytest.mark.parametrize("name", KINDS)


def lines_of(error: BaseException) -> str:
    """Return the code that an error shows."""
    text = str(error)
    return textwrap.dedent(text[text.index("  with ") :]).replace("MEMBER", "in/a.nc")


@kinds
@pytest.mark.parametrize("where", ["local", "on a server"])
def test_the_printed_lines_open_and_keep_the_file(
    where: str, name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, program, write = KINDS[name]
    name = name.replace(" ", "_")
    write(tmp_path / name, source)
    monkeypatch.chdir(tmp_path)
    with counting_server(tmp_path) as (url, _):
        given = form.format(name if where == "local" else f"{url}/{name}")
        pattern = f"(?s)compressed as a whole by {program}.*\ndecompress it"
        with pytest.raises(UnsupportedError, match=pattern) as caught:
            virtualds.open_virtual_dataset(given)
        assert re.search(re.escape(name), str(caught.value))
        known: dict[str, Any] = {"fsspec": fsspec, "virtualds": virtualds}
        exec(lines_of(caught.value), known)
    np.testing.assert_array_equal(known["ds"].t, FIELD)
    assert known["ds"].t.data.nchunks == 6
    with xr.open_dataset("copy.zarr", engine="virtual") as kept:
        np.testing.assert_array_equal(kept.t, FIELD)


def test_options_of_a_server_stand_in_the_line(source: Path) -> None:
    fsspec.filesystem("memory").pipe("/a.nc.gz", gzip.compress(source.read_bytes()))
    with pytest.raises(UnsupportedError) as caught:
        virtualds.open_virtual_dataset("memory://a.nc.gz", storage_options={"use_listings": 1})
    line = "fsspec.open('memory://a.nc.gz', compression='gzip', **storage_options)"
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "refused",
    [
        lambda path: xr.open_dataset(path, engine="virtual"),
        lambda path: virtualds.open_virtual_datatree(path),
        lambda path: virtualds.open_virtual_dataset(path, parser="hdf5"),
        lambda path: virtualds.open_virtual_mfdataset([path], combine="by_coords"),
    ],
)
def test_every_way_of_opening_says_the_same(
    refused: Callable[[Path], Any], source: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.nc.gz").write_bytes(gzip.compress(source.read_bytes()))
    with pytest.raises(UnsupportedError, match=r"(?s)whole by gzip.*fsspec\.open\('"):
        refused(tmp_path / "a.nc.gz")


def test_the_command_line_says_the_same(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a.nc.gz").write_bytes(gzip.compress(source.read_bytes()))
    found = CliRunner().invoke(main, ["scan", str(tmp_path / "a.nc.gz"), "-o", "refs.json"])
    assert found.exit_code == 1
    assert "compressed as a whole by gzip" in found.output


def test_many_compressed_files_are_combined_in_memory(source: Path, tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.nc.gz").write_bytes(gzip.compress(source.read_bytes()))
    with fsspec.open_files(f"{tmp_path}/*.nc.gz", compression="gzip") as files:
        held = [file.read() for file in files]
    found = xr.concat([virtualds.open_virtual_dataset(data) for data in held], "time")
    np.testing.assert_array_equal(found.t, [FIELD] * 3)
    with pytest.raises(TypeError, match=r"open objects with open_virtual_dataset"):
        virtualds.open_virtual_mfdataset(held, combine="nested", concat_dim="time")
    with xr.open_dataset(io.BytesIO(held[0]), engine="virtual", chunks={}) as lazy:
        np.testing.assert_array_equal(lazy.t, FIELD)


def test_a_file_of_compress_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.nc.Z").write_bytes(b"\x1f\x9d\x90" + bytes(100))
    with pytest.raises(UnsupportedError, match=r"whole by compress.*\ndecompress it$"):
        virtualds.open_virtual_dataset(tmp_path / "a.nc.Z")


def test_a_compressed_image_of_a_telescope_is_refused_like_others(tmp_path: Path) -> None:
    fits.PrimaryHDU(FIELD).writeto(tmp_path / "a.fits.gz")
    with pytest.raises(UnsupportedError, match="whole by gzip") as caught:
        virtualds.open_virtual_dataset(tmp_path / "a.fits.gz")
    known: dict[str, Any] = {"fsspec": fsspec, "virtualds": virtualds}
    exec(lines_of(caught.value).splitlines()[0] + "\n    data = file.read()", known)
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(known["data"]).PRIMARY, FIELD)
