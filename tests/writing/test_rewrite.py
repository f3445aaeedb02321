"""Chunks that a format cannot hold are cut, or rewritten; all others stay references."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from cases import CASES, Archive
from mixed_archives import CUT, MIXED, ZLIB, Mixed, write_lzf
from products import few_quick
from programs import run_module

import virtualds
from virtualds import CombineError, ManifestArray, UnsupportedError
from virtualds.codecs.cf import TimePacking
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.writing import rewrite
from virtualds.writing.rewrite_plan import _pack_times

SETS = {"kerchunk-json": "refs.json", "kerchunk-parquet": "refs.parquet"}


@pytest.fixture(params=SETS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


def assert_same_bits(found: xr.Dataset, wanted: xr.Dataset) -> None:
    for name in wanted.variables:
        ours, theirs = found[name].values, wanted[name].values
        assert ours.dtype == theirs.dtype.newbyteorder("=")
        np.testing.assert_array_equal(ours, theirs)
        present = ours == ours
        assert ours[present].tobytes() == theirs.astype(ours.dtype)[present].tobytes()
    assert found["t"].dims == wanted["t"].dims


# ---------------------------------------------------------------------- cutting


@pytest.mark.parametrize("name", CUT)
def test_uncompressed_chunks_are_cut_so_that_a_regular_grid_results(
    name: str, form: str, tmp_path: Path
) -> None:
    paths = CUT[name].write(tmp_path)
    virtual = CUT[name].virtual(paths)
    virtual.virtual.to_manifest(tmp_path / SETS[form])
    found = opened(tmp_path / SETS[form])
    assert_same_bits(found, CUT[name].native(paths))
    assert {Path(url).suffix for url in found.virtual.sources["url"]} == {".nc"}
    assert virtual.virtual.cost(form)["rewritten"].sum() == 0


def test_small_pieces_beyond_number_are_not_made(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(8))
    array = ManifestArray.from_arrays(
        shape=(2**10, 2**10, 6), chunks=(2**10, 2**10, 6), dtype="f4",
        path=str(tmp_path / "a.bin"), offsets=[[[0]]], lengths=4 * 6 * 2**20,
    )  # fmt: skip
    ds = xr.Dataset({"t": (("a", "b", "c"), array)}).isel(c=slice(1, 3))
    with pytest.raises(UnsupportedError, match=r"refs\.json"):
        ds.virtual.to_manifest(tmp_path / "refs.json")


def test_an_append_of_another_month_cuts_those_of_the_set(form: str, tmp_path: Path) -> None:
    paths = CUT["months"].write(tmp_path)
    target = tmp_path / SETS[form]
    for path in paths:
        opened(path).virtual.to_manifest(target, append_dim="time")
    assert_same_bits(opened(target), CUT["months"].native(paths))


# ---------------------------------------------------------------------- rewriting


@pytest.mark.parametrize("name", MIXED)
def test_mixed_archives_are_written_bit_for_bit(name: str, form: str, tmp_path: Path) -> None:
    paths = MIXED[name].write(tmp_path)
    virtual, target = MIXED[name].virtual(paths), tmp_path / SETS[form]
    with pytest.raises(UnsupportedError):
        virtual.virtual.to_manifest(target)
    virtual.virtual.to_manifest(target, on_unsupported="rewrite")
    assert_same_bits(opened(target), MIXED[name].native(paths))


@pytest.mark.parametrize("name", MIXED)
def test_kerchunk_with_zarr_v3_metadata_holds_what_is_rewritten(name: str, tmp_path: Path) -> None:
    paths, target = MIXED[name].write(tmp_path), tmp_path / "refs.json"
    virtual, choices = MIXED[name].virtual(paths), {"on_unsupported": "rewrite", "zarr_format": 3}
    virtual.virtual.to_manifest(target, **choices)
    assert_same_bits(opened(target), MIXED[name].native(paths))


@pytest.mark.parametrize("name", MIXED)
def test_only_chunks_that_the_format_cannot_hold_are_rewritten(
    name: str, form: str, tmp_path: Path
) -> None:
    paths = MIXED[name].write(tmp_path)
    virtual, target = MIXED[name].virtual(paths), tmp_path / SETS[form]
    [row] = virtual.virtual.cost(form).query("variable == 't'").to_dict("records")
    assert row["rewritten"] == MIXED[name].rewritten
    virtual.virtual.to_manifest(target, on_unsupported="rewrite")
    array = opened(target).virtual.arrays["t"]
    original = {path.as_uri() for path in paths}
    manifest = array.manifest.loaded()
    kept = sum(manifest.files[n].url in original for n in manifest.file.ravel() if n >= 0)
    missing = int((manifest.file == -1).sum())
    assert kept + missing == row["chunks"] - row["rewritten"]


def test_small_chunks_are_held_in_the_set(tmp_path: Path) -> None:
    tiny = {"chunksizes": (1, 5, 7), "zlib": True}
    mixed = Mixed((tiny, tiny | {"complevel": 9, "shuffle": False}), 8)
    paths = mixed.write(tmp_path)
    mixed.virtual(paths).virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    assert not (tmp_path / "refs.json.chunks").exists()
    assert_same_bits(opened(tmp_path / "refs.json"), mixed.native(paths))


def test_codecs_without_an_encoder_give_way_to_others(tmp_path: Path) -> None:
    paths = write_lzf(tmp_path)
    parts = [virtualds.open_virtual_dataset(p, loadable_variables=[]) for p in paths]
    ds = xr.concat(parts, "phony_dim_0")
    [row] = ds.virtual.cost("kerchunk-json").to_dict("records")
    assert "lzf" not in row["encoding"] and row["rewritten"] == 6
    ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    assert_same_bits(opened(tmp_path / "refs.json"), ds.virtual.load())


def test_times_of_several_units_are_written_bit_for_bit(form: str, tmp_path: Path) -> None:
    parts = []
    for year in (2001, 2002):
        when = np.datetime64(f"{year}-03-01T00:00:01", "ns") + np.arange(40) * np.timedelta64(
            7, "s"
        )
        when[3] = np.datetime64("NaT")
        ds = xr.Dataset({"when": ("row", when)})
        encoding = {"units": f"seconds since {year}-01-01", "dtype": "f8", "_FillValue": -1.0}
        ds.to_netcdf(tmp_path / f"{year}.nc", encoding={"when": encoding})
        parts.append(virtualds.open_virtual_dataset(tmp_path / f"{year}.nc", loadable_variables=[]))
    joined, target = xr.concat(parts, "row"), tmp_path / SETS[form]
    joined.virtual.to_manifest(target, on_unsupported="rewrite")
    found = xr.open_dataset(target, engine="virtual")["when"].values
    assert found.tobytes() == joined["when"].values.tobytes()


def test_missing_chunks_without_a_place_for_their_fill_are_written_once(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("t", (4000, 32, 32), "i4", chunks=(1, 32, 32), fillvalue=7)
        made[5] = 9
    ds = virtualds.open_virtual_dataset(tmp_path / "a.h5", loadable_variables=[])
    with pytest.raises(UnsupportedError, match="cannot store such a fill value"):
        ds.virtual.to_manifest(tmp_path / "refs.json")
    ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    found = opened(tmp_path / "refs.json").virtual.arrays["t"]
    assert len(found.manifest.loaded().inline) + len(found.sources) <= 2
    assert (found.read() == ds.virtual.arrays["t"].read()).all()


def test_packing_that_would_lose_bits_is_refused_where_the_user_wants_it(tmp_path: Path) -> None:
    paths = MIXED["packing_changes"].write(tmp_path)
    virtual = MIXED["packing_changes"].virtual(paths)
    with pytest.raises(UnsupportedError, match="would change values that are packed"):
        virtual.virtual.to_manifest(
            tmp_path / "refs.json", on_unsupported="rewrite", main_encoding={"t": {"dtype": "i2"}}
        )
    assert not (tmp_path / "refs.json").exists()


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_gaps_that_a_packing_has_no_number_for_are_written_unpacked(
    form: str, tmp_path: Path
) -> None:
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 270.0, "_FillValue": None}
    for number in range(2):
        ds = xr.Dataset(
            {"t": ("x", 270 + 0.01 * np.arange(8.0))}, {"x": np.arange(8) + 10 * number}
        )
        ds.to_netcdf(tmp_path / f"{number}.nc", encoding={"t": {**packing, "chunksizes": (4,)}})
    parts = [virtualds.open_virtual_dataset(tmp_path / f"{number}.nc") for number in range(2)]
    ds, target = xr.concat(parts, "x").reindex(x=np.arange(20)), tmp_path / SETS[form]
    with pytest.raises(UnsupportedError, match="cannot represent gaps of nan"):
        ds.virtual.to_manifest(
            target, on_unsupported="rewrite", main_encoding={"t": {"dtype": "i2"}}
        )
    assert not target.exists()
    ds.virtual.to_manifest(target, on_unsupported="rewrite")
    assert_same_bits(xr.open_dataset(target, engine="virtual"), ds.virtual.load())


def test_a_number_that_means_missing_elsewhere_is_refused(tmp_path: Path) -> None:
    # 271.0 is stored as 100, which is the fill value of the other file
    first, second = {"chunksizes": (4,), "zlib": True}, {"chunksizes": (4,), "zlib": True}
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 270.0}
    for number, (how, fill, n) in enumerate(((first, 100, 16), (second, -9, 4))):
        ds = xr.Dataset({"t": ("time", np.full(n, 271.0 if number else 270.5))})
        ds.to_netcdf(
            tmp_path / f"{number}.nc", encoding={"t": how | packing | {"_FillValue": fill}}
        )
    files = (tmp_path / "0.nc", tmp_path / "1.nc")
    parts = [virtualds.open_virtual_dataset(file, loadable_variables=[]) for file in files]
    ds = xr.concat(parts, "time")
    with pytest.raises(UnsupportedError, match="would change values"):
        ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    plain = {"t": {"dtype": "float64"}}
    ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite", main_encoding=plain)
    assert_same_bits(xr.open_dataset(tmp_path / "refs.json", engine="virtual"), ds.virtual.load())


REPACKED = {"compound_types": "bytes between its members"}
"""Cases whose type changes, and why."""
NAMES = [name for name, case in CASES.items() if case.source != "grib"]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("name", few_quick(NAMES, NAMES[::12]))
def test_every_variable_can_be_encoded_anew_bit_for_bit(
    name: str, archive: Archive, tmp_path: Path
) -> None:
    try:
        ds = virtualds.open_virtual_dataset(
            archive.path(name), group=CASES[name].group, loadable_variables=[]
        )
    except UnsupportedError:
        return  # other tests say which files are refused
    target = tmp_path / "refs.json"
    for variable in ds.virtual.arrays:
        one = ds[[variable]]
        if one[variable].dtype.kind == "S":
            continue  # xarray joins characters to strings when it opens a set
        wanted = {variable: {"codecs": [{"id": "zlib", "level": 1}]}}
        one.virtual.to_manifest(target, mode="w", on_unsupported="rewrite", main_encoding=wanted)
        found = xr.open_dataset(target, engine="virtual")[variable].values
        native = one.virtual.load()[variable].values
        if name in REPACKED:
            native = native.astype(found.dtype)
        assert found.dtype == native.dtype
        np.testing.assert_array_equal(found, native)
        if native.dtype.kind not in "OfcV":
            assert found.tobytes() == native.tobytes()


# ---------------------------------------------------------------------- what users say


@pytest.mark.parametrize("name", [*SETS.values(), "refs.zarr"])
def test_the_main_encoding_is_what_the_user_says(name: str, tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    virtual, target = MIXED["codec_changes"].virtual(paths), tmp_path / name
    wanted = {"t": {"chunks": {"time": 6}, "codecs": [{"id": "zstd", "level": 3}]}}
    virtual.virtual.to_manifest(target, on_unsupported="rewrite", main_encoding=wanted)
    found = opened(target)
    assert found["t"].encoding["chunksizes"] == (6, 5, 7)
    assert "zstd" in str(found.virtual.arrays["t"].pipelines[0].codecs).lower()
    assert_same_bits(found, MIXED["codec_changes"].native(paths))


def test_unknown_choices_are_refused(tmp_path: Path) -> None:
    virtual = MIXED["codec_changes"].virtual(MIXED["codec_changes"].write(tmp_path))
    target = tmp_path / "refs.json"
    for how, error in (
        ({"on_unsupported": "copy"}, "give 'error', or 'rewrite'"),
        ({"rewrite_limit": 3}, "are for rewriting"),
        ({"on_unsupported": "rewrite", "rewrite_limit": -1}, "number of bytes"),
        ({"on_unsupported": "rewrite", "main_encoding": {"u": {}}}, r"main_encoding of \['u'\]"),
        ({"on_unsupported": "rewrite", "main_encoding": {"t": {"level": 3}}}, "give a dict of"),
    ):
        with pytest.raises(ValueError, match=error):
            virtual.virtual.to_manifest(target, **how)
    assert not target.exists()


def test_a_limit_guards_against_surprises(form: str, tmp_path: Path) -> None:
    virtual = MIXED["codec_changes"].virtual(MIXED["codec_changes"].write(tmp_path))
    target, nbytes = tmp_path / SETS[form], 2 * 4 * 5 * 7 * 4
    assert virtual.virtual.cost(form)["bytes"].sum() == nbytes
    with pytest.raises(UnsupportedError, match=r"more than rewrite_limit=1,119\n.*\n  t: 2 chunks"):
        virtual.virtual.to_manifest(target, on_unsupported="rewrite", rewrite_limit=nbytes - 1)
    assert not target.exists() and not Path(f"{target}.chunks").exists()
    virtual.virtual.to_manifest(target, on_unsupported="rewrite", rewrite_limit=nbytes)


def test_progress_counts_all_bytes(tmp_path: Path) -> None:
    virtual = MIXED["chunk_shape_changes"].virtual(MIXED["chunk_shape_changes"].write(tmp_path))
    told: list[virtualds.Progress] = []
    virtual.virtual.to_manifest(
        tmp_path / "refs.json",
        on_unsupported="rewrite",
        progress=told.append,
    )
    last = [now for now in told if now.job == "rewriting"][-1]
    assert last.unit == "B"
    assert last.done == last.total == virtual.virtual.cost("kerchunk-json")["bytes"].sum()


def test_convert_rewrites_what_another_format_cannot_hold(form: str, tmp_path: Path) -> None:
    paths = MIXED["packing_changes"].write(tmp_path)
    MIXED["packing_changes"].virtual(paths).virtual.to_manifest(tmp_path / "all.zarr")
    with pytest.raises(UnsupportedError):
        virtualds.convert(tmp_path / "all.zarr", tmp_path / SETS[form])
    virtualds.convert(tmp_path / "all.zarr", tmp_path / SETS[form], on_unsupported="rewrite")
    assert_same_bits(opened(tmp_path / SETS[form]), MIXED["packing_changes"].native(paths))


def test_an_append_rewrites_only_what_is_new(form: str, tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    target = tmp_path / SETS[form]
    for path in paths:
        opened(path).virtual.to_manifest(target, append_dim="time", on_unsupported="rewrite")
    assert_same_bits(opened(target), MIXED["codec_changes"].native(paths))
    sources = opened(target).virtual.sources["url"].tolist()
    assert [Path(url).name for url in sources if url.endswith(".nc")] == ["0.nc", "2.nc"]


# ---------------------------------------------------------------------- streaming and resuming

BIG = {"zlib": True, "complevel": 6, "shuffle": True}
SLOW = """
import sys, xarray as xr, virtualds
from pathlib import Path
from virtualds.writing import rewrite
rewrite.BLOCK = 2**20
folder = Path(sys.argv[1])
parts = [virtualds.open_virtual_dataset(folder / f"{n}.nc") for n in range(2)]
ds = xr.concat(parts, "time")
def tell(now):
    if now.job == "rewriting":
        print(now.done, flush=True)
ds.virtual.to_manifest(folder / "refs.json", on_unsupported="rewrite", progress=tell)
"""


def write_large(folder: Path, days: int = 120) -> xr.Dataset:
    rng = np.random.default_rng(0)
    for number in range(2):
        values = rng.normal(size=(days + 4 * (1 - number), 256, 256)).cumsum(2).astype("f4")
        ds = xr.Dataset({"t": (("time", "y", "x"), values)})
        ds["time"] = "time", np.arange(len(values)) + 1000 * number
        how = BIG | {"shuffle": not number, "chunksizes": (1, 256, 256)}
        ds.to_netcdf(folder / f"{number}.nc", encoding={"t": how})
    parts = [virtualds.open_virtual_dataset(folder / f"{n}.nc") for n in range(2)]
    return xr.concat(parts, "time")


@pytest.mark.full
def test_an_interrupted_rewrite_ends_at_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "BLOCK", 2**20)
    ds = write_large(tmp_path, days=40)
    total = int(ds.virtual.cost("kerchunk-json")["bytes"].sum())
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW), str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        while int(process.stdout.readline() or total) < total * 0.8:
            pass
        begun = time.perf_counter()
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert process.returncode != 0
    # a second on a machine that does nothing else
    assert time.perf_counter() - begun < 10
    assert "the same call goes on from there" in error
    assert not (tmp_path / "refs.json").exists()
    done = list((tmp_path / "refs.json.chunks").rglob("*-*"))
    assert done
    before = {path: path.stat().st_mtime_ns for path in done}
    ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    assert before == {path: path.stat().st_mtime_ns for path in done}
    assert_same_bits(opened(tmp_path / "refs.json"), ds.virtual.load())


def test_chunks_that_are_there_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = write_large(tmp_path, days=8)
    ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")

    def read(*_: Any) -> Any:
        raise AssertionError("a chunk was read")

    monkeypatch.setattr(ManifestArray, "read", read)
    ds.virtual.to_manifest(tmp_path / "refs.json", mode="w", on_unsupported="rewrite")


def test_chunks_of_changed_sources_are_not_taken(tmp_path: Path) -> None:
    write_large(tmp_path, days=8).virtual.to_manifest(
        tmp_path / "refs.json", on_unsupported="rewrite"
    )
    for path in tmp_path.glob("*.nc"):
        path.unlink()
    again = write_large(tmp_path, days=9)
    again.virtual.to_manifest(tmp_path / "refs.json", mode="w", on_unsupported="rewrite")
    assert_same_bits(opened(tmp_path / "refs.json"), again.virtual.load())


def test_a_damaged_file_of_chunks_is_written_again(tmp_path: Path) -> None:
    ds = write_large(tmp_path, days=8)
    ds.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    [path, *_] = (tmp_path / "refs.json.chunks").rglob("*.0-0")
    path.write_bytes(path.read_bytes()[:-9])
    ds.virtual.to_manifest(tmp_path / "refs.json", mode="w", on_unsupported="rewrite")
    assert_same_bits(opened(tmp_path / "refs.json"), ds.virtual.load())


def test_blocks_hold_whole_chunks_and_fit_in_memory() -> None:
    array = ManifestArray.from_arrays(
        shape=(204, 256, 256), chunks=(1, 256, 256), dtype="f4", path="/t.bin", offsets=0, lengths=9
    )
    wanted = np.zeros((204, 1, 1), bool)
    wanted[104:] = True
    found = rewrite.list_blocks(array, (1, 256, 256), wanted)
    sizes = [(b[0].stop - b[0].start) * 2**18 for b in found]
    assert max(sizes) <= 8 * 2**20 and sum(sizes) == 100 * 2**18
    assert min(sizes) > rewrite.MAX_INLINE_BYTES


# ---------------------------------------------------------------------- the command line


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return run_module("virtualds_cli", *arguments)


@pytest.mark.full
def test_a_dry_run_shows_the_cost_and_writes_nothing(tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    MIXED["codec_changes"].virtual(paths).virtual.to_manifest(tmp_path / "all.zarr")
    before = sorted(os.listdir(tmp_path))
    shown = command("convert", tmp_path / "all.zarr", tmp_path / "refs.json", "--dry-run")
    assert "2 of 6 chunks to rewrite, 1.1 kB decoded" in shown.stdout
    assert "nothing has been written" in shown.stdout
    assert "its chunks use 2 encodings" in shown.stdout
    found = command("convert", tmp_path / "all.zarr", tmp_path / "refs.json", "--dry-run", "--json")
    assert json.loads(found.stdout)["variables"][0]["rewritten"] == 2
    assert sorted(os.listdir(tmp_path)) == before


def test_convert_of_the_command_line_rewrites(tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    MIXED["codec_changes"].virtual(paths).virtual.to_manifest(tmp_path / "all.zarr")
    pair = (tmp_path / "all.zarr", tmp_path / "refs.json")
    refused = command("convert", *pair, "--on-unsupported", "rewrite", "--rewrite-limit", 9)
    assert refused.returncode == 1 and "more than --rewrite-limit 9" in refused.stderr
    done = command(
        "convert", *pair, "--on-unsupported", "rewrite", "--main-encoding", 't={"codecs": []}'
    )
    assert done.returncode == 0, done.stderr
    assert_same_bits(opened(tmp_path / "refs.json"), MIXED["codec_changes"].native(paths))
    assert not opened(tmp_path / "refs.json").virtual.arrays["t"].pipelines[0].codecs


# ---------------------------------------------------------------------- verify


@pytest.mark.parametrize("name", ["codec_changes", "packing_changes", "chunk_shape_changes"])
def test_verify_compares_rewritten_chunks_with_their_originals(name: str, tmp_path: Path) -> None:
    paths = MIXED[name].write(tmp_path)
    MIXED[name].virtual(paths).virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    found = opened(tmp_path / "refs.json").virtual.verify(sample=None, against="native")
    assert found.ok, str(found)
    assert found.compared["the originals"] == MIXED[name].rewritten


def test_verify_finds_a_rewritten_chunk_that_is_another(tmp_path: Path) -> None:
    paths = MIXED["packing_changes"].write(tmp_path)
    MIXED["packing_changes"].virtual(paths).virtual.to_manifest(
        tmp_path / "refs.json", on_unsupported="rewrite", main_encoding={"t": {"codecs": []}}
    )
    [path] = (tmp_path / "refs.json.chunks").rglob("0-*")
    data = bytearray(path.read_bytes())
    data[1003] ^= 1
    path.write_bytes(data)
    found = opened(tmp_path / "refs.json").virtual.verify(sample=None, against="native")
    assert not found.ok
    assert "its original: 1 of 140 elements differ" in str(found)


def test_verify_says_so_where_the_originals_are_gone(tmp_path: Path) -> None:
    paths = MIXED["packing_changes"].write(tmp_path)
    MIXED["packing_changes"].virtual(paths).virtual.to_manifest(
        tmp_path / "refs.json", on_unsupported="rewrite"
    )
    for path in paths:
        path.unlink()
    found = opened(tmp_path / "refs.json").virtual.verify(sample=None, against="native")
    assert not found.ok and "its original cannot be read" in str(found)


# ---------------------------------------------------------------------- object stores


def test_chunks_lie_beside_a_set_on_s3(
    s3_folder: str, s3_server: dict[str, Any], tmp_path: Path
) -> None:
    paths = MIXED["packing_changes"].write(tmp_path)
    virtual, target = MIXED["packing_changes"].virtual(paths), f"{s3_folder}/refs.json"
    for mode in ("w-", "w"):
        virtual.virtual.to_manifest(
            target, mode=mode, on_unsupported="rewrite", storage_options=s3_server
        )
    found = virtualds.open_virtual_dataset(target, storage_options=s3_server)
    assert_same_bits(found, MIXED["packing_changes"].native(paths))
    assert all(url.startswith(f"{target}.chunks/t/") for url in found.virtual.sources["url"])
    assert found.virtual.verify(sample=None).ok


def test_cost_refuses_options_that_the_format_does_not_have(tmp_path: Path) -> None:
    virtual = MIXED["codec_changes"].virtual(MIXED["codec_changes"].write(tmp_path))
    with pytest.raises(TypeError, match="kerchunk-json has no option 'rectilinear'"):
        virtual.virtual.cost("kerchunk-json", rectilinear=True)
    assert virtual.virtual.cost("zarr-v3")["rewritten"].sum() == 0


def test_the_cost_of_icechunk_is_known_without_icechunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = MIXED["codec_changes"].virtual(MIXED["codec_changes"].write(tmp_path))
    monkeypatch.setitem(sys.modules, "icechunk", None)
    for name in ("library", "references", "write"):
        monkeypatch.delitem(sys.modules, f"virtualds.formats.icechunk.{name}", raising=False)
    assert virtual.virtual.cost("icechunk")["rewritten"].sum() > 0


def test_cost_is_that_of_the_metadata_and_of_chunks_that_are_cut(tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    whole = opened(paths[0]).transpose(..., "time")
    assert whole.virtual.cost("kerchunk-json")["rewritten"].sum() > 0
    assert whole.virtual.cost("kerchunk-json", zarr_format=3)["rewritten"].sum() == 0
    whole.virtual.to_manifest(
        tmp_path / "refs.json", zarr_format=3, on_unsupported="rewrite", rewrite_limit=0
    )
    assert_same_bits(opened(tmp_path / "refs.json"), whole.virtual.load())
    plain = CUT["months"].virtual(CUT["months"].write(tmp_path))
    table = plain.virtual.cost("zarr-v3", subchunk={"time": 1}).set_index("variable")
    assert table["chunks"]["t"] == plain.sizes["time"]


def test_an_append_that_adds_nothing_rewrites_nothing(tmp_path: Path) -> None:
    paths = MIXED["codec_changes"].write(tmp_path)
    target = tmp_path / "refs.zarr"
    one = opened(paths[0])
    one.virtual.to_manifest(target)
    wanted = {"t": {"codecs": [{"id": "zstd", "level": 3}]}}
    how = {"on_unsupported": "rewrite", "main_encoding": wanted, "on_duplicate": "skip"}
    one.virtual.to_manifest(target, append_dim="time", **how)
    assert not Path(f"{target}.chunks").exists()
    assert_same_bits(opened(target), one.virtual.load())


# ---------------------------------------------------------------------- copies name no source


def test_a_source_is_replaced_with_the_chunks_that_it_shares_with_others(
    form: str, tmp_path: Path
) -> None:
    how = ZLIB | {"chunksizes": (2, 5, 7), "days": 5}
    paths = Mixed((how,) * 3, 0).write(tmp_path)
    target = tmp_path / SETS[form]
    joined = xr.concat(map(opened, paths), "time")
    joined.virtual.to_manifest(target, on_unsupported="rewrite")
    for number in (0, 2, 1):
        native = xr.load_dataset(paths[number])
        native["t"] += 1000 + number
        native.to_netcdf(paths[number])
        again = opened(paths[number])
        again.virtual.to_manifest(
            target, mode="replace-source", append_dim="time", on_unsupported="rewrite"
        )
        assert_same_bits(opened(target), xr.concat(map(xr.load_dataset, paths), "time"))


def test_a_source_is_not_dropped_beside_chunks_of_unknown_sources(
    form: str, tmp_path: Path
) -> None:
    how = ZLIB | {"chunksizes": (2, 5, 7), "days": 5}
    paths = Mixed((how,) * 3, 0).write(tmp_path)
    target = tmp_path / SETS[form]
    joined = xr.concat(map(opened, paths), "time")
    joined.virtual.to_manifest(target, on_unsupported="rewrite")
    with pytest.raises(CombineError, match="write the set again without this source"):
        virtualds.drop_sources(target, str(paths[0]), dim="time")
    with pytest.raises(CombineError, match="has no such source"):
        virtualds.drop_sources(target, str(tmp_path / "never.nc"))
    assert_same_bits(opened(target), xr.concat(map(xr.load_dataset, paths), "time"))


def test_a_cost_is_readable_on_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    months = [
        xr.Dataset({f"variable_{n}": ("x", np.zeros(m)) for n in range(30)}) for m in (31, 28)
    ]
    for number, month in enumerate(months):
        month.to_netcdf(f"{number}.nc", encoding={n: {"zlib": True} for n in month})
    joined = virtualds.open_virtual_mfdataset(["0.nc", "1.nc"], combine="nested", concat_dim="x")
    table = joined.virtual.cost("icechunk")
    lines = repr(table).splitlines()
    assert lines[0] == "30 of 60 chunks to rewrite, 7.4 kB decoded"
    assert lines[1:5] == [
        "variable_0",
        "  chunks     2",
        "  rewritten  1",
        "  bytes      248 bytes",
    ]
    assert lines[5] == "  encoding   float64, shuffle zlib, chunks (31,)"
    assert lines[6].startswith("  reason     chunk lengths along 'x' vary (31, 28")
    assert lines[-1] == "... and 10 more"
    # a path is one word, however long it is
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in lines)
    page = table._repr_html_()
    assert "30 of 60 chunks to rewrite" in page and page.count("<tr>") == 21
    assert "10 more" in page
    # it is a pandas table, and so is what is made of it
    assert table["rewritten"].sum() == 30
    assert type(table[["variable", "bytes"]]) is type(table.query("bytes > 0")) is pd.DataFrame


def test_a_box_is_cut_behind_the_bytes_that_fit() -> None:
    found = rewrite._cut_box((slice(10, 20),), [np.arange(0, 30, 2)], 10, 4)
    assert found == [(slice(10, 14),), (slice(14, 20),)]


def test_times_are_packed_in_the_units_of_the_set() -> None:
    times = np.array(["2000-01-01", "2000-01-03"], "M8[ns]")
    units = {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"}
    packing = TimePacking.from_attributes(units, times.dtype)
    stored = _pack_times(times, CodecPipeline(np.dtype("i8")), packing)
    assert stored.tolist() == [0, 2]
