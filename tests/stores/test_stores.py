"""Stores give exactly the bytes asked for, write whole files, and tell no secrets."""

import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

import fsspec
import numpy as np
import pytest
from products import looped
from range_server import range_server
from virtual_arrays import ZLIB, exactly, path_of, virtual

from virtualds import ManifestArray, ReadError, SourceFile, set_options
from virtualds.source_file import StorageOptions, join_url, local_path, normalise_url, scheme_of
from virtualds.stores import find_store, requests
from virtualds.stores.block_cache import MemoryFile
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.local import CAN_PREFETCH, LocalStore, exchange_paths
from virtualds.stores.store import StoreError

NAMES = ["plain.bin", "with space.bin", "a#b.bin", "100%.bin", "a%20b.bin", "T00:00:00.bin",
         "a?b.bin", "ü–ñ.bin", "a+b&c=d;e.bin", "~x.bin", "[0].bin", "a*b.bin"]  # fmt: skip


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder of fsspec's files in memory."""
    folder = f"memory://{uuid.uuid4().hex}"
    yield folder
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(folder):
        filesystem.rm(folder, recursive=True)


# ---------------------------------------------------------------------- urls


@looped(
    "url, scheme",
    [
        ("/data/a.nc", "file"),
        ("a.nc", "file"),
        ("file:///data/a.nc", "file"),
        ("local:///data/a.nc", "file"),
        ("s3://bucket/a.nc", "s3"),
        ("S3://bucket/a.nc", "s3"),
        ("https://host:80/a.nc?x=s3://b", "https"),
        ("abfs+x://c/a.nc", "abfs+x"),
        ("simplecache::s3://bucket/a.nc", "simplecache"),
        ("T00:00:00.nc", "file"),
        ("/data/s3://a.nc", "file"),
        ("C:/data/a.nc", "file"),
        ("", "file"),
    ],
)
def test_the_scheme_of_a_url(url: str, scheme: str) -> None:
    assert scheme_of(url) == scheme


@looped("name", NAMES)
def test_a_local_name_is_taken_to_the_letter(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    url = normalise_url(path)
    assert url == f"file://{path.as_posix()}"
    assert normalise_url(url) == normalise_url(str(path)) == url
    assert local_path(url) == str(path)
    assert join_url(url, "other.nc") == normalise_url(tmp_path / "other.nc")


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise_url("a/../b.nc") == f"file://{tmp_path.as_posix()}/b.nc"
    assert normalise_url("s3://bucket/a/../b.nc") == "s3://bucket/a/../b.nc"


@pytest.mark.skipif(os.name == "nt", reason="there they are drives")
@pytest.mark.parametrize("path", ["/d:/data.nc", "/C:x.nc", "/a:b/c.nc"])
def test_a_colon_does_not_make_a_drive_of_a_folder(path: str) -> None:
    assert normalise_url(path) == f"file://{path}"
    assert local_path(f"file://{path}") == path


@pytest.mark.parametrize("wrong", [b"/data/a.nc", 5, None])
def test_objects_that_are_no_paths_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        normalise_url(wrong)  # type: ignore[arg-type]


def test_each_url_has_a_store() -> None:
    assert isinstance(find_store("/data/a.nc"), LocalStore)
    assert isinstance(find_store("FILE:///data/a.nc"), LocalStore)
    assert isinstance(find_store("s3://bucket/a.nc"), FsspecStore)


# ---------------------------------------------------------------------- local files


@looped("name", NAMES)
def test_a_file_of_any_name_is_written_and_read(tmp_path: Path, name: str) -> None:
    store, url = LocalStore(), normalise_url(tmp_path / name)
    store.write_all(url, b"0123456789", None, replace=False)
    assert store.read_all(url, None) == b"0123456789"
    found = store.describe(url, None)
    assert (found.url, found.size) == (url, 10)
    assert list(store.get_ranges(found, [(0, 3), (9, 1), (2, 2)])) == [b"012", b"9", b"23"]
    assert store.read_head(url, None, 2) == (found, b"01")
    assert store.read_head(url, None, 20) == (found, b"0123456789")
    array = ManifestArray.from_arrays(
        shape=(10,), chunks=(10,), dtype="S1", path=str(tmp_path / name), offsets=0, lengths=10
    )
    assert b"".join(array.read().tolist()) == b"0123456789"


def test_describing_what_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStore().describe(f"file://{tmp_path}/none", None)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=ascii)
def test_a_file_of_an_impossible_name_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match="no file can have such a name"):
        LocalStore().describe(f"file://{tmp_path}/{name}", None)
    with pytest.raises(FileNotFoundError, match="no file can have such a name"):
        LocalStore().read_all(f"file://{tmp_path}/{name}", None)
    for file in (SourceFile(f"file://{tmp_path}/{name}"),):
        with pytest.raises(StoreError):
            LocalStore().get_ranges(file, [(0, 1)])
        with pytest.raises(StoreError):
            LocalStore().check_unchanged(file)
        LocalStore().prefetch(file, [(0, 2**20)])


def test_an_open_file_has_its_size_and_stays_where_it_is() -> None:
    file = io.BytesIO(b"0123456789")
    file.seek(4)
    held = MemoryFile(file)
    assert (held.size, file.tell()) == (10, 4)
    assert [held.read(2, 3), held.read(8, 5)] == [b"234", b"89"]


@pytest.mark.parametrize("ranges", [[(0, 11)], [(0, 1), (8, 3)], [(10, 1)], [(50, 1)]], ids=str)
def test_a_range_beyond_the_end_says_which(tmp_path: Path, ranges: list[tuple[int, int]]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    with pytest.raises(StoreError, match="ends") as caught:
        LocalStore().get_ranges(SourceFile(f"file://{path}"), ranges)
    assert caught.value.item == len(ranges) - 1


@pytest.mark.skipif(not CAN_PREFETCH, reason="the system does not say what it holds")
def test_only_what_the_system_does_not_hold_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(2**20))
    asked: list[tuple[int, int]] = []

    def read(handle: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        if offset < 2**18:
            return 1
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "posix_fadvise", lambda handle, *span: asked.append(span[:2]))
    ranges = [(begin, 2**16) for begin in (0, 2**19, 2**20 - 2**16)]
    LocalStore().prefetch(SourceFile(f"file://{tmp_path}/a"), ranges)
    assert asked == ranges[1:]


def test_two_folders_are_exchanged_in_one_step_where_the_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.mkdir()
        (path / path.name).touch()
    rename, steps = os.rename, []

    def note(*names: str) -> None:
        steps.append(names)
        rename(*names)

    monkeypatch.setattr(os, "rename", note)
    exchange_paths(str(one), str(other))
    assert (os.listdir(one), os.listdir(other)) == (["other"], ["one"])
    assert len(steps) == (0 if sys.platform == "linux" else 3)
    monkeypatch.setattr("ctypes.CDLL", lambda *names, **how: None)
    exchange_paths(str(one), str(other))
    assert (os.listdir(one), os.listdir(other)) == (["one"], ["other"])
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]


@looped("interrupted", [False, True])
@looped("ending", [False, True])
def test_requests_end_only_if_a_user_has_interrupted_a_program_that_ends(
    monkeypatch: pytest.MonkeyPatch, interrupted: bool, ending: bool
) -> None:
    event = threading.Event()
    if interrupted:
        event.set()
    monkeypatch.setattr(requests, "INTERRUPTED", event)
    monkeypatch.setattr(requests, "is_exiting", lambda: ending)
    assert requests.is_abandoned() == (interrupted and ending)


def test_one_of_several_requests_is_logged_only_if_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "virtualds")
    for method in ("GET", ""):
        assert requests.retry_request(lambda: b"abc", requests.Request(method, "a.nc")) == b"abc"
    [message] = caplog.messages
    assert message.startswith("GET a.nc: 3 bytes in ")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Whoever has opened the old file goes on reading it."""
    store, path = LocalStore(), tmp_path / "refs.json"
    url = normalise_url(path)
    store.write_all(url, b"old" * 1000, None, replace=False)
    with path.open("rb") as reader:
        assert reader.read(3) == b"old"
        store.write_all(url, b"new", None, replace=True)
        assert reader.read() == b"old" * 999
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["refs.json"]


def test_readers_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    store, path = LocalStore(), tmp_path / "refs.json"
    contents = [bytes([n]) * 200_000 for n in range(40)]
    store.write_all(normalise_url(path), contents[0], None, replace=True)
    seen, stop = set(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for content in contents:
        store.write_all(normalise_url(path), content, None, replace=True)
    stop.set()
    watcher.join()
    assert seen <= set(contents)


def test_a_file_that_exists_is_not_replaced_unasked(tmp_path: Path) -> None:
    store, path = LocalStore(), tmp_path / "refs.json"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        store.write_all(normalise_url(path), b"new", None, replace=False)
    assert "refs.json" in str(caught.value)
    assert "mode='w'" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["refs.json"]


def test_of_many_writers_one_creates_the_file(tmp_path: Path) -> None:
    store, path = LocalStore(), tmp_path / "refs.json"
    barrier, won = threading.Barrier(8), []

    def write(number: int) -> None:
        barrier.wait(300)
        try:
            store.write_all(normalise_url(path), bytes([number]) * 1000, None, replace=False)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert path.read_bytes() == bytes(won) * 1000
    assert os.listdir(tmp_path) == ["refs.json"]


def test_writing_into_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStore().write_all(f"file://{tmp_path}/none/x", b"", None, replace=True)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    store, path = LocalStore(), tmp_path / "refs.json"
    path.write_bytes(b"old")
    for wrong in ("text", None):
        with pytest.raises(TypeError):
            store.write_all(normalise_url(path), wrong, None, replace=True)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["refs.json"]


KILLED = """
import os, sys
from virtualds.stores import LocalStore

store = LocalStore()
print("go", flush=True)
while True:
    store.write_all(sys.argv[1], b"a" * 3_000_000, None, replace=True)
    store.write_all(sys.argv[1], b"b" * 3_000_000, None, replace=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are of Unix")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_write_that_is_killed_leaves_a_whole_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "refs.json"
    path.write_bytes(b"a" * 3_000_000)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, f"file://{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        # a few writes later, wherever it may be
        threading.Event().wait(0.05)
        # Python drops an interrupt that arrives while it runs a finalizer
        while process.poll() is None:
            process.send_signal(getattr(signal, how))
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
    assert path.read_bytes() in (b"a" * 3_000_000, b"b" * 3_000_000)
    if how == "SIGINT":
        assert os.listdir(tmp_path) == ["refs.json"]


@pytest.mark.skipif(os.name == "nt", reason="modes are of Unix")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_written_file_has_the_mode_of_any_other(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        LocalStore().write_all(f"file://{tmp_path}/x", b"data", None, replace=True)
        (tmp_path / "y").write_bytes(b"data")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "xy"]
    assert modes[0] == modes[1] == 0o666 & ~mask


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/{'n' * 250}.json"
    LocalStore().write_all(url, b"data", None, replace=True)
    assert LocalStore().read_all(url, None) == b"data"


# ---------------------------------------------------------------------- anything of fsspec


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_written_and_read(memory: str, name: str) -> None:
    store, url = FsspecStore(), f"{memory}/{name}"
    store.write_all(url, b"0123456789", None, replace=False)
    assert store.read_all(url, None) == b"0123456789"
    found = store.describe(url, None)
    assert (found.url, found.size) == (url, 10)
    assert list(map(bytes, store.get_ranges(found, [(0, 3), (9, 1)]))) == [b"012", b"9"]
    with pytest.raises(FileExistsError, match="mode='w'"):
        store.write_all(url, b"new", None, replace=False)
    store.write_all(url, b"new", None, replace=True)
    for length in (2, 3, 20):
        assert store.read_head(url, None, length) == (store.describe(url, None), b"new"[:length])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, ManifestArray]:
    values = np.random.default_rng(3).normal(size=(12, 9))
    folder = tmp_path_factory.mktemp("served")
    return values, virtual(values, folder, chunks=(5, 4), codecs=ZLIB, name="t2m")


def moved(array: ManifestArray, url: str, options: StorageOptions | None = None) -> ManifestArray:
    """The array with its chunks in another file."""
    [fragment] = array.fragments
    manifest = fragment.manifest.with_files(lambda f: SourceFile(url, f.size, options=options))
    return replace(array, fragments=(replace(fragment, manifest=manifest),))


def check_an_error(array: ManifestArray, *parts: str) -> str:
    with pytest.raises(ReadError) as caught:
        array.read()
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert all(part in text for part in (array.sources[0].url, "bytes ", "t2m", "chunk", *parts))
    return text


def test_an_array_in_memory_is_read(memory: str, stored: tuple[np.ndarray, ManifestArray]) -> None:
    values, array = stored
    data = path_of(array).read_bytes()
    url = f"{memory}/a b#c%20:d.bin"
    elsewhere = moved(array, url)
    check_an_error(elsewhere, "there is no such file")
    FsspecStore().write_all(url, data[:-3], None, replace=True)
    check_an_error(elsewhere, "sent")
    FsspecStore().write_all(url, data, None, replace=True)
    exactly(elsewhere, values)
    exactly(elsewhere[3:7, [8, 0]], values[3:7, [8, 0]])


def test_an_array_on_a_web_server_is_read_by_ranges(
    stored: tuple[np.ndarray, ManifestArray],
) -> None:
    values, array = stored
    path = path_of(array)
    with range_server(path.parent) as (url, ranges):
        remote = moved(array, f"{url}/{path.name}")
        exactly(remote, values)
        # the chunks lie one behind the other
        begin, nbytes = array.manifest.offset.min(), array.manifest.length.sum()
        assert ranges == [(begin, nbytes)]
        found = FsspecStore().describe(f"{url}/{path.name}", None)
        assert found.size == path.stat().st_size
        check_an_error(moved(array, f"{url}/none.bin"), "there is no such file")
    with set_options(retries=1):
        check_an_error(remote, "tried 2 times")


@pytest.mark.parametrize("name", ["with space.bin", "a#b.bin", "100%.bin", "T00:00:00.bin"])
def test_a_quoted_web_url_is_read(
    tmp_path: Path, stored: tuple[np.ndarray, ManifestArray], name: str
) -> None:
    values, array = stored
    (tmp_path / name).write_bytes(path_of(array).read_bytes())
    with range_server(tmp_path) as (url, _):
        exactly(moved(array, f"{url}/{quote(name)}"), values)


def test_a_server_without_ranges_does_not_pass_for_one(
    tmp_path: Path, stored: tuple[np.ndarray, ManifestArray]
) -> None:
    """It sends the whole file where a part of it was asked for."""
    from http.server import SimpleHTTPRequestHandler

    import range_server as served

    class Deaf(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    values, array = stored
    before, served.RangeHandler = served.RangeHandler, Deaf  # type: ignore[misc, assignment]
    try:
        with range_server(path_of(array).parent) as (url, _):
            remote = moved(array, f"{url}/{path_of(array).name}")
            try:
                exactly(remote, values)
            except ReadError as error:
                assert "bytes" in str(error)
    finally:
        served.RangeHandler = before  # type: ignore[misc]


def test_an_unknown_scheme_is_named(stored: tuple[np.ndarray, ManifestArray]) -> None:
    check_an_error(moved(stored[1], "nosuch://host/x"), "nosuch")
    for use in (FsspecStore().describe, partial(FsspecStore().read_head, length=9)):
        with pytest.raises(OSError, match="nosuch"):
            use("nosuch://host/x", None)
    with pytest.raises(OSError, match="nosuch"):
        FsspecStore().read_all("nosuch://host/x", None)
    with pytest.raises(OSError, match="nosuch"):
        FsspecStore().write_all("nosuch://host/x", b"", None, replace=True)


# ---------------------------------------------------------------------- secrets

SECRET = "hush-hush"


def test_storage_options_are_used_but_never_shown(
    memory: str, stored: tuple[np.ndarray, ManifestArray]
) -> None:
    _, array = stored
    options = StorageOptions(secret=SECRET, client_kwargs={"password": SECRET})
    there = moved(array, f"{memory}/x.bin", options)
    shown = [
        str(options), repr(options), f"{options}", repr(there), repr(there.sources),
        str(there.sources[0]), there._repr_html_(), repr(there.manifest), repr(there.fragments),
    ]  # fmt: skip
    assert not any(SECRET in text for text in shown)
    assert SECRET not in check_an_error(there)
    unknown = moved(array, "nosuch://host/x", options)
    assert SECRET not in check_an_error(unknown)
    assert pickle.loads(pickle.dumps(there)).sources[0].options == options
    assert there.sources[0].options != array.sources[0].options


@pytest.mark.parametrize(
    "options", [{"fo": "/none/x.zip", "password": SECRET}, {"no_such_option": SECRET}], ids=str
)
def test_options_that_a_filesystem_cannot_use_are_an_error_without_values(
    stored: tuple[np.ndarray, ManifestArray], options: dict[str, str]
) -> None:
    array = moved(stored[1], "zip://x.bin", StorageOptions(options))
    assert SECRET not in check_an_error(array)
