"""Icechunk: it reads what we write, and we read what it and VirtualiZarr write."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from azure_server import ACCOUNT, KEY, AzureServer, filesystem_of
from cases import CASES, Archive
from counting_server import counting_server
from peers import peer
from range_server import faulty_server
from repositories import by_icechunk, own_repository, repository
from transforms import without_gaps

import virtualds
from virtualds import ConflictError, FormatError, UnsupportedError
from virtualds.chunks.columns import INLINE
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.writing import prepare_write

icechunk = peer("icechunk")
zarr = pytest.importorskip("zarr", reason="Icechunk needs it")

# zarr-python speaks of its own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = [name for name in CASES if name != "compound_types_of_big_endian"]
REFUSED = {
    # plain Zarr knows no bytes between the members of compound types, and no types within them
    "compound_types",
    "compound_types_within_others",
}


def years(folder: Path, count: int, *, chunk: int = 3) -> list[Path]:
    """Files of twelve months, in a folder whose names have to be quoted."""
    folder.mkdir(exist_ok=True)
    found = []
    for n in range(count):
        path = folder / f"a b#{n}%20.nc"
        values = np.random.default_rng(n).random((12, 4, 5)).astype("f4")
        ds = xr.Dataset(
            {"t": (("time", "lat", "lon"), values, {"units": "K"})},
            coords={"time": 12 * n + np.arange(12), "lat": np.arange(4.0), "lon": np.arange(5.0)},
        )
        ds.to_netcdf(path, encoding={"t": {"chunksizes": (chunk, 4, 5), "zlib": True}})
        found.append(path)
    return found


def native(paths: list[Path]) -> xr.Dataset:
    parts = [xr.load_dataset(path) for path in paths]
    return xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")


def virtual(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


# ---------------------------------------------------------------------- it reads what we write


def test_icechunk_and_virtualds_read_a_written_repository_alike(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in put", 3), tmp_path / "a.icechunk"
    virtualds.open_virtual_mfdataset(files).virtual.to_manifest(target)
    xr.testing.assert_identical(by_icechunk(target).load(), native(files))
    found = virtual(target)
    assert {Path(url).name for url in found[["t"]].virtual.sources.url} == {p.name for p in files}
    xr.testing.assert_identical(found.virtual.load(), native(files))
    xr.testing.assert_identical(xr.open_dataset(target, engine="virtual").load(), native(files))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_every_case_is_held_or_refused_by_name(name: str, archive: Archive, tmp_path: Path) -> None:
    target = tmp_path / "a.icechunk"
    for loadable in ([], None, "*"):
        try:
            virtualds.open_virtual_dataset(
                archive.path(name), group=CASES[name].group, loadable_variables=loadable
            ).virtual.to_manifest(target, mode="w")
        except UnsupportedError as error:
            said = str(error)
            assert not target.exists()
            continue
        found = xr.open_dataset(target, engine="virtual").load()
        xr.testing.assert_identical(without_gaps(found), without_gaps(archive.native(name)))
        return
    assert "icechunk cannot hold" in said
    assert name in REFUSED


def test_arrays_that_plain_zarr_cannot_describe_are_refused_by_name(tmp_path: Path) -> None:
    ragged = [*years(tmp_path / "a", 1), *years(tmp_path / "b", 2, chunk=5)[1:]]
    joined = virtualds.open_virtual_mfdataset(ragged)
    with pytest.raises(
        UnsupportedError, match=r"(?s)cannot hold a property.*zarr-v3.* t: chunk lengths"
    ):
        joined.virtual.to_manifest(tmp_path / "a.icechunk")
    assert not (tmp_path / "a.icechunk").exists()


def test_chunks_of_different_lengths_are_held_if_asked_for(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 1, chunk=5), tmp_path / "a.icechunk"
    [months] = years(tmp_path / "months", 1, chunk=4)
    parts = [virtual(files[0]).isel(time=slice(0, 10)), virtual(months)]
    joined = xr.concat(parts, "time", data_vars="minimal")
    with pytest.raises(UnsupportedError, match="rectilinear=True"):
        joined.virtual.to_manifest(target)
    joined.virtual.to_manifest(target, rectilinear=True, mode="w")
    xr.testing.assert_identical(virtual(target).virtual.load(), joined.virtual.load())
    with zarr.config.set({"array.rectilinear_chunks": True}):
        found = by_icechunk(target).load()
    xr.testing.assert_identical(found, joined.virtual.load())


def test_an_array_that_is_written_anew_in_the_store_it_is_read_from_keeps_its_chunks(
    tmp_path: Path,
) -> None:
    [file], [_, months] = years(tmp_path / "a", 1, chunk=5), years(tmp_path / "b", 2, chunk=4)
    given = own_repository(tmp_path / "refs", tmp_path)
    first, second = virtual(file).isel(time=slice(0, 10)), virtual(months)
    first.virtual.to_manifest(given)
    # other chunks: the grid is no longer a regular one
    second.virtual.to_manifest(given, append_dim="time", rectilinear=True)
    joined = xr.concat([first, second], "time", data_vars="minimal")
    found = virtualds.open_virtual_dataset(given, allow=[str(tmp_path)])
    xr.testing.assert_identical(found.virtual.load(), joined.virtual.load())


def test_a_changed_source_is_noticed_by_icechunk_and_virtualds(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 1), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target)
    before = files[0].stat()
    files[0].write_bytes(files[0].read_bytes() + b"more")
    import os

    os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns + 5 * 10**9))
    with pytest.raises(icechunk.IcechunkError, match="changed"):
        by_icechunk(target).load()
    with pytest.raises(virtualds.ReadError):
        xr.open_dataset(target, engine="virtual").load()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["repository", "session", "store"])
def test_a_repository_in_memory_is_not_read_as_missing_once_it_is_pickled(what: str) -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    peer("icechunk.xarray").to_icechunk(xr.Dataset({"b": ("x", np.arange(5.0))}), session)
    session.commit("five")
    opened: Any = repository
    if what != "repository":
        opened = repository.readonly_session("main")
        opened = opened if what == "session" else opened.store
    ds = virtualds.open_virtual_dataset(opened, loadable_variables=[])
    assert ds.virtual.load()["b"].values.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UnsupportedError, match="repositories in memory"):
        pickle.loads(pickle.dumps(ds))


def test_references_travel_to_workers(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 2), tmp_path / "a.icechunk"
    virtualds.open_virtual_mfdataset(files).virtual.to_manifest(target)
    path = tmp_path / "pickle"
    path.write_bytes(pickle.dumps(virtual(target)))
    code = f"import pickle; print(pickle.load(open({str(path)!r}, 'rb')).t.sum().item())"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert float(out.stdout) == pytest.approx(native(files).t.sum().item())


# ---------------------------------------------------------------------- commits


def test_appending_is_a_commit_and_writes_only_what_is_new(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 3), tmp_path / "a.icechunk"
    for n, path in enumerate(files):
        virtual(path).virtual.to_manifest(target, append_dim="time", message=f"year {n}")
    said = [s.message for s in repository(target).ancestry(branch="main")]
    assert said[:-1] == ["year 2", "year 1", "year 0"]
    xr.testing.assert_identical(by_icechunk(target).load(), native(files))
    earlier = virtualds.snapshots(target).snapshot[0]
    first = virtualds.open_virtual_dataset(target, snapshot=earlier)
    xr.testing.assert_identical(first.virtual.load(), native(files[:1]))


def test_snapshots_are_found_by_branch_tag_and_id(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 2), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target)
    repo = repository(target)
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("dev", repo.lookup_branch("main"))
    virtual(files[1]).virtual.to_manifest(target, append_dim="time", branch="dev")
    assert virtual(target).sizes["time"] == 12
    assert virtualds.open_virtual_dataset(target, snapshot="v1").sizes["time"] == 12
    assert virtualds.open_virtual_dataset(target, snapshot="dev").sizes["time"] == 24
    assert xr.open_dataset(target, engine="virtual", snapshot="dev").sizes["time"] == 24
    with pytest.raises(FileNotFoundError, match="dev"):
        virtualds.open_virtual_dataset(target, snapshot="nothing")


def test_a_session_is_written_to_and_left_to_its_owner(tmp_path: Path) -> None:
    files = years(tmp_path / "in", 2)
    repo = own_repository(tmp_path / "own", tmp_path / "in")
    session = repo.writable_session("main")
    virtual(files[0]).virtual.to_manifest(session.store)
    assert session.has_uncommitted_changes
    virtual(files[1]).virtual.to_manifest(session, append_dim="time")
    session.commit("mine")
    xr.testing.assert_identical(
        xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load(), native(files)
    )


def test_a_repository_is_committed_to(tmp_path: Path) -> None:
    files = years(tmp_path / "in", 2)
    repo = own_repository(tmp_path / "own", tmp_path / "in")
    virtual(files[0]).virtual.to_manifest(repo, message="first")
    virtual(files[1]).virtual.to_manifest(repo, append_dim="time")
    assert [s.message for s in repo.ancestry(branch="main")][1] == "first"
    with pytest.raises(FileExistsError):
        virtual(files[0]).virtual.to_manifest(repo, mode="w-")
    xr.testing.assert_identical(virtual(tmp_path / "own").virtual.load(), native(files))


def test_references_that_no_container_covers_are_refused(tmp_path: Path) -> None:
    files = years(tmp_path / "in", 1)
    repo = own_repository(tmp_path / "own", tmp_path / "elsewhere")
    with pytest.raises(UnsupportedError, match="no virtual chunk container"):
        virtual(files[0]).virtual.to_manifest(repo)


@pytest.mark.parametrize("path", ["/x.bin", "/in put/x.bin", "/in put/2001/x.bin"])
def test_files_for_which_icechunk_knows_no_folder_are_refused_by_name(
    path: str, tmp_path: Path
) -> None:
    array = {"shape": [4], "chunks": [4], "dtype": "<i2", "order": "C", "zarr_format": 2}
    array |= {"compressor": None, "filters": None, "fill_value": None}
    refs = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "v/.zarray": json.dumps(array),
        "v/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"]}),
        "v/0": [path, 0, 8],
    }
    found = virtualds.open_virtual_dataset({"version": 1, "refs": refs})
    with pytest.raises(UnsupportedError, match=rf"{path}: Icechunk.*root folder.*\n.*zarr-v3"):
        found.virtual.to_manifest(tmp_path / "a.icechunk")
    assert not (tmp_path / "a.icechunk").exists()


def test_containers_are_added_where_sources_lie(tmp_path: Path) -> None:
    files = [*years(tmp_path / "a", 1), *years(tmp_path / "b", 2)[1:]]
    target = tmp_path / "a.icechunk"
    for path in files:
        virtual(path).virtual.to_manifest(target, append_dim="time")
    assert len(repository(target).config.virtual_chunk_containers) == 2
    xr.testing.assert_identical(by_icechunk(target).load(), native(files))


def test_a_missing_container_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    files = years(tmp_path / "in", 1)
    repo = own_repository(tmp_path / "own", tmp_path / "elsewhere")
    told = (
        rf"(?s)VirtualChunk.* below file://{tmp_path}/in/:.*only "
        rf"\['file://{tmp_path}/elsewhere/'\]"
    )
    with pytest.raises(UnsupportedError, match=told):
        virtual(files[0]).virtual.to_manifest(repo)


def test_a_commit_keeps_its_message_and_metadata(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 2), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target, message="first", metadata={"n": 1})
    virtual(files[1]).virtual.to_manifest(
        target, append_dim="time", message="second", metadata={"n": 2, "by": ["me"]}
    )
    found = [(s.message, s.metadata) for s in repository(target).ancestry(branch="main")]
    assert found[:2] == [("second", {"n": 2, "by": ["me"]}), ("first", {"n": 1})]
    with pytest.raises(TypeError, match="metadata='x': give a dict"):
        virtual(files[0]).virtual.to_manifest(target, mode="w", metadata="x")


def test_a_branch_begins_where_main_is(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 2), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target)
    last = virtual(files[1])
    with pytest.raises(FileNotFoundError, match=r"no branch 'dev', only \['main'\].*create_branch"):
        last.virtual.to_manifest(target, append_dim="time", branch="dev")
    last.virtual.to_manifest(target, append_dim="time", branch="dev", create_branch=True)
    xr.testing.assert_identical(by_icechunk(target, branch="dev").load(), native(files))
    xr.testing.assert_identical(by_icechunk(target).load(), native(files[:1]))
    # a branch that is there is taken as it is
    last.virtual.to_manifest(target, mode="w", branch="dev", create_branch=True)
    assert by_icechunk(target, branch="dev").sizes["time"] == 12


def test_a_branch_goes_if_its_first_write_fails(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 2), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target)
    with pytest.raises(FileExistsError, match="exists already"):
        virtual(files[1]).virtual.to_manifest(target, branch="dev", create_branch=True)
    with pytest.raises(virtualds.CombineError):
        virtual(files[0]).virtual.to_manifest(
            target, append_dim="time", branch="dev", create_branch=True
        )
    assert repository(target).list_branches() == {"main"}


def test_a_new_repository_may_begin_with_a_branch(tmp_path: Path) -> None:
    [path], target = years(tmp_path / "in", 1), tmp_path / "a.icechunk"
    virtual(path).virtual.to_manifest(target, branch="dev", create_branch=True)
    assert repository(target).list_branches() == {"main", "dev"}
    xr.testing.assert_identical(by_icechunk(target, branch="dev").load(), native([path]))


def test_a_configuration_is_saved_in_the_repository(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 2), tmp_path / "a.icechunk"
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=7)
    virtual(files[0]).virtual.to_manifest(target, config=config)
    saved = repository(target).config
    assert saved.inline_chunk_threshold_bytes == 7
    assert len(saved.virtual_chunk_containers) == 1
    more = icechunk.RepositoryConfig(get_partial_values_concurrency=3)
    virtual(files[1]).virtual.to_manifest(target, append_dim="time", config=more)
    saved = repository(target).config
    assert (saved.inline_chunk_threshold_bytes, saved.get_partial_values_concurrency) == (7, 3)
    xr.testing.assert_identical(by_icechunk(target).load(), native(files))
    with pytest.raises(TypeError, match="RepositoryConfig"):
        virtual(files[0]).virtual.to_manifest(target, mode="w", config={"inline": 7})
    with pytest.raises(ValueError, match="has its own"):
        virtual(files[0]).virtual.to_manifest(repository(target), mode="w", config=config)


def test_manifests_are_written_anew_and_sources_move(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 3), tmp_path / "a.icechunk"
    for path in files:
        virtual(path).virtual.to_manifest(target, append_dim="time")
    assert virtualds.compact(target)
    xr.testing.assert_identical(by_icechunk(target).load(), native(files))
    (tmp_path / "in").rename(tmp_path / "new")
    moved = [tmp_path / "new" / path.name for path in files]
    before = repository(target).lookup_branch("main")
    with pytest.raises(virtualds.ReadError, match="cannot be read"):
        virtualds.rename_paths(target, {str(tmp_path / "in"): str(tmp_path / "nowhere")})
    assert repository(target).lookup_branch("main") == before
    assert virtualds.rename_paths(target, {str(tmp_path / "in"): str(tmp_path / "new")}) == 3
    xr.testing.assert_identical(by_icechunk(target).load(), native(moved))
    xr.testing.assert_identical(virtual(target).virtual.load(), native(moved))


def test_the_slower_of_two_sessions_gets_an_error(tmp_path: Path) -> None:
    from virtualds.formats.icechunk import library

    files, target = years(tmp_path / "in", 1), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target)
    slow = repository(target).writable_session("main")
    zarr.open_group(slow.store, mode="a").attrs["slow"] = True
    fast = repository(target).writable_session("main")
    zarr.open_group(fast.store, mode="a").attrs["fast"] = True
    fast.commit("fast")
    with pytest.raises(ConflictError):
        library.OpenStore(slow.store, str(target)).commit("slow", None)


def test_a_folder_that_is_no_repository_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.icechunk").mkdir()
    (tmp_path / "a.icechunk" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        virtual(years(tmp_path / "in", 1)[0]).virtual.to_manifest(tmp_path / "a.icechunk")
    assert (tmp_path / "a.icechunk" / "mine.txt").read_text() == "mine"


def test_a_branch_with_other_arrays_is_replaced_only_on_request(tmp_path: Path) -> None:
    [path] = years(tmp_path / "in", 1)
    repo = own_repository(tmp_path / "own", tmp_path / "in")
    first = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="native", data=np.arange(3.0))
    session.commit("theirs")
    theirs = repo.lookup_branch("main")
    told = r"'main' all that it holds, 1 arrays \(native\)"
    for place in (tmp_path / "own", str(tmp_path / "own"), repo):
        with pytest.raises(FileExistsError, match=told):
            virtual(path).virtual.to_manifest(place)
    with pytest.raises(FileExistsError, match=told):
        virtualds.convert(path, tmp_path / "own", format="icechunk")
    # it is looked at before a file is opened
    with pytest.raises(FileExistsError, match=told):
        prepare_write(tmp_path / "own", format="icechunk")
    with pytest.raises(FileExistsError, match=told):
        prepare_write(tmp_path / "own", format="icechunk", mode="w-")
    assert repo.lookup_branch("main") == theirs
    repo.create_branch("empty", first)
    prepare_write(tmp_path / "own", format="icechunk", branch="empty")
    virtual(path).virtual.to_manifest(tmp_path / "own", branch="empty")
    assert repo.lookup_branch("main") == theirs
    virtual(path).virtual.to_manifest(tmp_path / "own", mode="w")
    assert "native" not in by_icechunk(tmp_path / "own")


# ---------------------------------------------------------------------- we read what they write


def with_native_chunks(path: Path, _: Path) -> xr.Dataset:
    """Chunks of the repository itself, those that it holds in its manifests, and missing ones."""
    repo = own_repository(path)
    session = repo.writable_session("main")
    ds = xr.Dataset(
        {
            "big": (("x", "y"), np.random.default_rng(0).random((40, 50))),
            "small": ("x", np.arange(40, dtype="i2")),
            "text": ("y", np.array([f"n{i}" for i in range(50)])),
        },
        coords={"x": np.arange(40), "s": 3.5},
    )
    ds.to_zarr(session.store, consolidated=False, encoding={"big": {"chunks": (10, 50)}})
    hole = zarr.create_array(
        session.store, name="hole", shape=(40,), chunks=(10,), dtype="f4", fill_value=np.nan,
        dimension_names=("x",),
    )  # fmt: skip
    hole[10:20] = 7
    session.commit("native")
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()


def by_virtualizarr(path: Path, folder: Path) -> xr.Dataset:
    virtualizarr = pytest.importorskip("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    stores = pytest.importorskip("obstore.store")
    registry = pytest.importorskip("obspec_utils.registry")
    folder.mkdir()
    files = []
    for n in range(2):
        values = np.random.default_rng(n).random((12, 4)).astype("f4")
        ds = xr.Dataset({"t": (("time", "x"), values)}, coords={"time": 12 * n + np.arange(12)})
        files.append(folder / f"{n}.nc")
        ds.to_netcdf(files[-1], encoding={"t": {"chunksizes": (3, 4), "zlib": True}})
    parts = [
        virtualizarr.open_virtual_dataset(
            f"file://{file}",
            registry=registry.ObjectStoreRegistry({"file://": stores.LocalStore()}),
            parser=parsers.HDFParser(),
        )
        for file in files
    ]
    repo = own_repository(path, folder)
    session = repo.writable_session("main")
    parts[0].vz.to_icechunk(session.store)
    session.commit("one")
    session = repo.writable_session("main")
    parts[1].vz.to_icechunk(session.store, append_dim="time")
    session.commit("two")
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()


WRITERS: dict[str, Callable[[Path, Path], xr.Dataset]] = {
    "native chunks": with_native_chunks,
    "virtualizarr": by_virtualizarr,
}


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr", ".icechunk"])
@pytest.mark.parametrize("writer", WRITERS)
def test_repositories_of_other_tools_are_read_and_written_again(
    writer: str, suffix: str, tmp_path: Path
) -> None:
    expected = WRITERS[writer](tmp_path / "theirs", tmp_path / "in")
    xr.testing.assert_identical(virtual(tmp_path / "theirs").virtual.load(), expected)
    vds = virtualds.open_virtual_dataset(tmp_path / "theirs", loadable_variables=[])
    vds.virtual.to_manifest(tmp_path / f"ours{suffix}")
    found = xr.open_dataset(tmp_path / f"ours{suffix}", engine="virtual").load()
    xr.testing.assert_identical(found, expected)
    virtualds.convert(tmp_path / "theirs", tmp_path / f"converted{suffix}")
    found = xr.open_dataset(tmp_path / f"converted{suffix}", engine="virtual").load()
    xr.testing.assert_identical(found, expected)


def test_small_chunks_are_inline_and_others_lie_in_the_repository(tmp_path: Path) -> None:
    with_native_chunks(tmp_path / "theirs", tmp_path)
    group = open_group(Location.of(tmp_path / "theirs"))
    small = group.variables["small"].data.manifest.loaded()
    assert (small.file == INLINE).all()
    big = group.variables["big"].data
    assert {f.url.rpartition("/")[0] for f in big.sources} == {f"file://{tmp_path}/theirs/chunks"}


def test_repositories_are_combined_with_files(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 3), tmp_path / "a.icechunk"
    virtualds.open_virtual_mfdataset(files[:2]).virtual.to_manifest(target)
    joined = xr.concat([virtual(target), virtual(files[2])], "time", data_vars="minimal")
    for suffix in (".json", ".parquet", ".zarr", ".icechunk"):
        joined.virtual.to_manifest(tmp_path / f"b{suffix}")
        found = xr.open_dataset(tmp_path / f"b{suffix}", engine="virtual").load()
        xr.testing.assert_identical(found, native(files))


def test_a_set_may_refer_only_where_it_is_allowed_to(tmp_path: Path) -> None:
    files, target = years(tmp_path / "in", 1), tmp_path / "a.icechunk"
    virtual(files[0]).virtual.to_manifest(target)
    ds = xr.open_dataset(target, engine="virtual", allow=tmp_path / "in").load()
    xr.testing.assert_identical(ds, native(files))
    with pytest.raises(virtualds.AccessError):
        xr.open_dataset(target, engine="virtual", allow=tmp_path / "elsewhere").load()


# ---------------------------------------------------------------------- object stores


def test_a_token_for_a_web_server_is_given_by_readers_and_not_kept(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer only-for-me"}
    [first] = years(tmp_path / "in", 1)
    source = first.rename(first.with_name("a.nc"))
    target = tmp_path / "a.icechunk"
    with faulty_server(tmp_path / "in") as served:
        url, options = f"{served.url}/a.nc", {"headers": headers}
        vds = virtualds.open_virtual_dataset(url, storage_options=options)
        vds.virtual.to_manifest(target)
        storage = icechunk.local_filesystem_storage(str(target))
        saved = icechunk.Repository.fetch_config(storage)
        [(prefix, kept)] = saved.virtual_chunk_containers.items()
        assert (prefix, "only-for-me" in str(kept)) == (f"{served.url}/", False)
        config = icechunk.RepositoryConfig.default()
        config.set_virtual_chunk_container(
            icechunk.VirtualChunkContainer(prefix, icechunk.http_store(headers=headers))
        )
        repo = icechunk.Repository.open(
            storage, config=config, authorize_virtual_chunk_access={prefix: None}
        )
        served.requests.clear()
        theirs = xr.open_zarr(repo.readonly_session("main").store, consolidated=False, chunks=None)
        xr.testing.assert_identical(theirs.load(), native([source]))
        assert {sent.get("authorization") for *_, sent in served.requests} == {*headers.values()}


def test_a_repository_in_s3_refers_to_files_in_s3(
    s3_server: dict[str, Any], s3_bucket: str, tmp_path: Path
) -> None:
    options, root = s3_server, s3_bucket
    filesystem = fsspec.filesystem("s3", **options)
    files = years(tmp_path / "in", 2)
    for n, path in enumerate(files):
        filesystem.put_file(str(path), f"{root}/in put/{n}.nc")
        vds = virtualds.open_virtual_dataset(f"{root}/in put/{n}.nc", storage_options=options)
        vds.virtual.to_manifest(f"{root}/refs.icechunk", append_dim="time", storage_options=options)
    found = xr.open_dataset(f"{root}/refs.icechunk", engine="virtual", storage_options=options)
    xr.testing.assert_identical(found.load(), native(files))
    secrets = {"access_key_id": options["key"], "secret_access_key": options["secret"]}
    place = {
        "endpoint_url": options["client_kwargs"]["endpoint_url"],
        "allow_http": True,
        "force_path_style": True,
        "region": "us-east-1",
    }
    repo = icechunk.Repository.open(
        icechunk.s3_storage(
            bucket=root.removeprefix("s3://"), prefix="refs.icechunk", **place, **secrets
        ),
        authorize_virtual_chunk_access=icechunk.containers_credentials(
            {f"{root}/": icechunk.s3_credentials(**secrets)}
        ),
    )
    theirs = xr.open_zarr(repo.readonly_session("main").store, consolidated=False)
    xr.testing.assert_identical(theirs.load(), native(files))


def test_a_repository_in_azure_refers_to_files_in_azure(
    azure_server: AzureServer, azure_box: str, tmp_path: Path
) -> None:
    options, root = azure_server.options, azure_box
    files = years(tmp_path / "in", 2)
    for n, path in enumerate(files):
        filesystem_of(azure_server).put_file(str(path), f"{root}/in put/{n}.nc")
        vds = virtualds.open_virtual_dataset(f"{root}/in put/{n}.nc", storage_options=options)
        vds.virtual.to_manifest(f"{root}/refs.icechunk", append_dim="time", storage_options=options)
    found = xr.open_dataset(f"{root}/refs.icechunk", engine="virtual", storage_options=options)
    xr.testing.assert_identical(found.load(), native(files))
    repo = icechunk.Repository.open(
        icechunk.azure_storage(
            account=ACCOUNT, container=root.removeprefix("az://"), prefix="refs.icechunk",
            access_key=KEY, config={"endpoint": azure_server.endpoint, "allow_http": "true"},
        ),
        authorize_virtual_chunk_access=icechunk.containers_credentials(
            {f"{root}/": icechunk.azure_credentials(access_key=KEY)}
        ),
    )  # fmt: skip
    theirs = xr.open_zarr(repo.readonly_session("main").store, consolidated=False)
    xr.testing.assert_identical(theirs.load(), native(files))


@pytest.mark.parametrize("host", ["abfss://{}", "abfs://{}@account.dfs.core.windows.net"])
def test_icechunk_refers_to_no_files_by_other_urls_of_azure(
    host: str, azure_server: AzureServer, azure_box: str, tmp_path: Path
) -> None:
    [path], how = years(tmp_path / "in", 1), {"storage_options": azure_server.options}
    filesystem_of(azure_server).put_file(str(path), f"{azure_box}/a.nc")
    url = host.format(azure_box.removeprefix("az://"))
    vds = virtualds.open_virtual_dataset(f"{url}/a.nc", **how)
    with pytest.raises(UnsupportedError, match="az://container"):
        vds.virtual.to_manifest(f"{azure_box}/a.icechunk", **how)
    # a repository itself may lie there
    vds.virtual.load().virtual.to_manifest(f"{url}/b.icechunk", **how)
    found = xr.open_dataset(f"{azure_box}/b.icechunk", engine="virtual", **how)
    xr.testing.assert_identical(found.load(), native([path]))


def test_an_option_that_icechunk_has_no_name_for_is_refused(tmp_path: Path) -> None:
    [path] = years(tmp_path / "in", 1)
    with pytest.raises(UnsupportedError, match="profile"):
        virtual(path).virtual.to_manifest(
            "s3://bucket/a.icechunk", storage_options={"profile": "mine"}
        )
    with pytest.raises(UnsupportedError, match="memory"):
        virtual(path).virtual.to_manifest("memory://a.icechunk")


# ---------------------------------------------------------------------- what is open already


def grown(folder: Path) -> tuple[Any, Path]:
    """A repository with references, chunks of its own and inline ones, on two snapshots."""
    folder.mkdir()
    [file] = years(folder / "in", 1)
    repo = own_repository(folder / "a", folder / "in")
    ds = virtual(file)
    ds["own"] = "time", np.arange(12) * np.pi
    ds["big"] = ("time", "lat", "lon"), np.random.default_rng(5).random((12, 4, 5))
    ds.virtual.to_manifest(repo)
    repo.create_tag("first", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="own", mode="r+")[:3] = 1
    session.commit("changed")
    return repo, folder / "in"


OPENED: dict[str, Callable[[Any], Any]] = {
    "repository": lambda repo: repo,
    "session": lambda repo: repo.readonly_session("main"),
    "store": lambda repo: repo.readonly_session("main").store,
}


@pytest.mark.parametrize("kind", OPENED)
def test_objects_that_icechunk_opened_are_sources(kind: str, tmp_path: Path) -> None:
    repo, folder = grown(tmp_path / "b")
    opened = OPENED[kind](repo)
    expected = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    found = virtualds.open_virtual_dataset(opened, allow=folder, loadable_variables=[])
    xr.testing.assert_identical(found.virtual.load(), expected)
    lazy = xr.open_dataset(opened, engine="virtual", allow=folder, chunks={})
    xr.testing.assert_identical(lazy.load(), expected)
    found.virtual.to_manifest(tmp_path / "refs.json")
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual").load()
    xr.testing.assert_identical(again, expected)


def test_a_repository_is_opened_at_a_snapshot_and_a_session_has_one(tmp_path: Path) -> None:
    repo, folder = grown(tmp_path / "b")
    first = virtualds.open_virtual_dataset(repo, snapshot="first", allow=folder)
    np.testing.assert_array_equal(first.own, np.arange(12) * np.pi)
    with pytest.raises(ValueError, match="leave it out"):
        virtualds.open_virtual_dataset(repo.readonly_session("main"), snapshot="first")


def test_uncommitted_changes_of_a_session_are_seen(tmp_path: Path) -> None:
    repo, folder = grown(tmp_path / "b")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="own", mode="r+")[:] = 7
    assert (virtualds.open_virtual_dataset(session, allow=folder).own.values == 7).all()
    assert (virtualds.open_virtual_dataset(repo, allow=folder).own.values != 7).any()


def test_an_opened_store_leads_to_local_files_only_where_that_is_allowed(tmp_path: Path) -> None:
    repo, _ = grown(tmp_path / "b")
    with pytest.raises(virtualds.AccessError, match="allow="):
        virtualds.open_virtual_dataset(repo)["t"].values  # noqa: B018


@pytest.mark.parametrize("metadata", [b'{"node_type": "gr\n', b"\xa4", b"[1]"])
def test_damaged_metadata_of_a_repository_are_named(metadata: bytes, tmp_path: Path) -> None:
    from virtualds.formats.icechunk import library

    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    session.commit("a group")
    # Icechunk keeps the metadata of nodes in its snapshots, which are compressed
    store = repository.readonly_session("main").store

    class Damaged(type(store)):  # type: ignore[misc]
        """A store that gives other bytes for the metadata of the root."""

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            return prototype.buffer.from_bytes(metadata)

    store.__class__ = Damaged
    with pytest.raises(FormatError, match="metadata of 'the root'"):
        library.OpenStore(store, "r").read_documents()


def test_writing_counts_chunks_array_by_array(tmp_path: Path) -> None:
    ours = tmp_path / "ours.icechunk"
    for n, path in enumerate(years(tmp_path / "a", 2)):
        told: list[virtualds.Progress] = []
        virtual(path).virtual.to_manifest(ours, append_dim="time", progress=told.append)
        # four chunks a year; those of the first year are there already
        assert [(now.done, now.total) for now in told][-1] == (told[-1].total,) * 2
        assert told[-1].total >= 4 * (n + 1)
        assert {now.job for now in told} == {"writing"}


def test_a_far_repository_opens_in_as_few_requests_as_by_icechunk(tmp_path: Path) -> None:
    coordinates = {name: np.arange(200.0) + n for n, name in enumerate("xyz")}
    xr.Dataset(coords=coordinates).virtual.to_manifest(tmp_path / "r.icechunk")
    with counting_server(tmp_path) as (url, counts):
        found = xr.open_dataset(f"{url}/r.icechunk", engine="virtual")
        ours = [path for _, path, _ in counts.requests]
        counts.requests.clear()
        opened = icechunk.Repository.open(icechunk.http_storage(f"{url}/r.icechunk"))
        session = opened.readonly_session("main")
        theirs = xr.open_zarr(session.store, consolidated=False, chunks=None)
        # what the suffix says is looked at first
        assert len(ours) <= 1 + len(counts.requests)
        chunks = [path for path in ours if "/chunks/" in path]
        assert len(chunks) == len(set(chunks)) == 3
        xr.testing.assert_identical(found.load(), theirs.load())
