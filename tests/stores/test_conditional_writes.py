"""Whoever would replace what somebody else has replaced is told so, in every store."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from object_stores import OBJECT_STORES, make_folder
from other_s3_servers import S3_SERVERS
from products import looped

import virtualds
from virtualds import UnsupportedError
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.fsspec import FsspecStore, find_filesystem
from virtualds.stores.local import hold_lock
from virtualds.stores.store import ChangedError, Store, StoreError

NAMES = ["plain.json", "with space", "a#b", "100%", "a%20b", "T00:00:00", "ü–ñ", "a+b&c=d;e",
         "[0]*", "x/y/z.json"]  # fmt: skip

STORES = ["local", "memory", *OBJECT_STORES]

SHARED = ["local", *OBJECT_STORES]
"""Stores that several processes see."""


@dataclass(frozen=True)
class Place:
    """A folder of a store, as formats see it."""

    folder: str
    options: StorageOptions | None = None

    @property
    def store(self) -> Store:
        return find_store(self.folder)

    def url(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def read(self, name: str) -> tuple[bytes, str]:
        return self.store.read_with_version(self.url(name), self.options)

    def version(self, name: str) -> str | None:
        return self.store.find_version(self.url(name), self.options)

    def write(self, name: str, data: bytes, expected: str | None) -> str:
        return self.store.write_version(self.url(name), data, self.options, expected)

    def put(self, name: str, data: bytes) -> None:
        self.store.write_file(self.url(name), data, self.options)

    def names(self, below: str = "") -> list[str]:
        folder = f"{self.folder}{below}"
        return [listed.path for listed in self.store.list_files(folder, self.options)]

    def remove(self, *names: str) -> None:
        self.store.remove([self.url(name) for name in names], self.options)


def increment(place: Place, times: int) -> None:
    """Count in a file, as often as it takes."""
    for _ in range(times):
        while True:
            data, version = place.read("count")
            try:
                place.write("count", b"%d" % (int(data) + 1), version)
                break
            except ChangedError:
                continue


COUNTERS = """
import os, pickle, sys, traceback
from contextlib import suppress

import test_conditional_writes

for name in ("adlfs", "gcsfs", "s3fs"):
    with suppress(ImportError):
        __import__(name)

def count(place, times, gate):
    try:
        # all begin together
        os.read(gate, 1)
        test_conditional_writes.increment(place, times)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

while True:
    print("ready", flush=True)
    place, processes, times = pickle.load(sys.stdin.buffer)
    gate, opens = os.pipe()
    children = [os.fork() or count(place, times, gate) for _ in range(processes)]
    os.write(opens, bytes(processes))
    os.close(gate)
    os.close(opens)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(ends, flush=True)
"""
"""A program that forks processes which count. Only these use a store, since threads do not survive
a fork; it imports what they need, which takes a second, once for all."""


@pytest.fixture(scope="module")
def counters() -> Iterator[subprocess.Popen[bytes]]:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", COUNTERS]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, **pipes) as started:
        yield started
        started.kill()


def in_bucket(request: pytest.FixtureRequest) -> Place:
    folder, options = make_folder(request.param, request)
    return Place(f"{folder}/of/it", StorageOptions(options))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    made: dict[str, Callable[[], Place]] = {
        "local": lambda: Place(f"file://{request.getfixturevalue('tmp_path').as_posix()}/of/it"),
        "memory": lambda: Place(f"memory://{uuid.uuid4().hex}"),
        **dict.fromkeys(OBJECT_STORES, lambda: in_bucket(request)),
    }
    return made[request.param]()


everywhere = pytest.mark.parametrize("place", STORES, indirect=True)
shared = pytest.mark.parametrize("place", SHARED, indirect=True)


# ---------------------------------------------------------------------- one writer


@pytest.mark.product
@everywhere
@looped("name", NAMES, quick=2)
def test_a_file_of_any_name_is_created_replaced_and_removed(place: Place, name: str) -> None:
    assert place.version(name) is None
    first = place.write(name, b"one", None)
    assert place.read(name) == (b"one", first)
    second = place.write(name, b"two", first)
    assert second != first
    assert (place.read(name), place.version(name)) == ((b"two", second), second)
    assert place.names() == [name]
    place.remove(name)
    assert (place.version(name), place.names()) == (None, [])


@everywhere
def test_reading_a_missing_file_is_an_error(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.read("none")


# aiohttp warns of bodies that Azure's client sends
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@everywhere
@pytest.mark.parametrize("data", [b"", b"x", b"0123456789abcdef" * 500_000], ids=len)
def test_bytes_of_any_length_come_back(place: Place, data: bytes) -> None:
    version = place.write("x", data, None)
    assert place.read("x") == (data, version)


@everywhere
def test_a_file_is_created_once(place: Place) -> None:
    version = place.write("x", b"first", None)
    for data in (b"second", b"first"):
        with pytest.raises(ChangedError, match="x"):
            place.write("x", data, None)
    assert place.read("x") == (b"first", version)
    assert place.names() == ["x"]


@everywhere
def test_only_the_version_that_was_read_is_replaced(place: Place) -> None:
    first = place.write("x", b"one", None)
    second = place.write("x", b"two", first)
    with pytest.raises(ChangedError, match="x"):
        place.write("x", b"three", first)
    assert place.read("x") == (b"two", second)


@everywhere
def test_a_removed_file_is_not_replaced(place: Place) -> None:
    version = place.write("x", b"one", None)
    place.remove("x")
    with pytest.raises(ChangedError, match="x"):
        place.write("x", b"two", version)
    assert place.names() == []
    place.write("x", b"three", None)


def test_a_removed_folder_is_a_removed_file(tmp_path: Path) -> None:
    with pytest.raises(ChangedError, match="removed"):
        Place(f"file://{tmp_path}/none").write("x", b"two", "some version")


def test_the_lock_of_a_long_name_is_not_longer_than_names_may_be(tmp_path: Path) -> None:
    place, name = Place(f"file://{tmp_path}"), "n" * 255
    place.write(name, b"two", place.write(name, b"one", None))
    assert os.listdir(tmp_path) == [name]


def test_a_file_in_place_of_a_folder_is_no_other_writer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError) as caught:
        Place(f"file://{tmp_path}/file").write("x", b"", None)
    assert not isinstance(caught.value, StoreError)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}")
    for write in (lambda: place.put("x", "text"), lambda: place.write("x", "text", None)):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            write()
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------- many writers


@everywhere
def test_of_many_threads_one_creates_the_file(place: Place) -> None:
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait(300)
        try:
            place.write("x", b"%d" % number, None)
        except ChangedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert place.read("x")[0] == b"%d" % won.index(True)
    assert place.names() == ["x"]


@everywhere
def test_threads_that_count_lose_nothing(place: Place) -> None:
    place.write("count", b"0", None)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, [place] * 8, [5] * 8))
    assert place.read("count")[0] == b"40"
    assert place.names() == ["count"]


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
@shared
def test_processes_that_count_lose_nothing(place: Place, counters: subprocess.Popen[bytes]) -> None:
    # on disk all may be over before the next has begun
    each = 200 if place.folder.startswith("file:") else 5
    place.write("count", b"0", None)
    assert counters.stdin is not None and counters.stdout is not None
    assert counters.stdout.readline() == b"ready\n"
    counters.stdin.write(pickle.dumps((place, 4, each)))
    counters.stdin.flush()
    assert counters.stdout.readline() == b"[0, 0, 0, 0]\n"
    assert int(place.read("count")[0]) == 4 * each
    assert place.names() == ["count"]


@everywhere
def test_a_reader_sees_whole_bytes_and_the_version_that_they_are(place: Place) -> None:
    contents = [bytes([n]) * 100_000 for n in range(25)]
    versions = {contents[0]: place.write("x", contents[0], None)}
    seen, stop = set(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add(place.read("x"))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        version = versions[contents[0]]
        for content in contents[1:]:
            version = versions[content] = place.write("x", content, version)
        stop.set()
        watching.result(60)
    assert seen
    assert all(versions[content] == version for content, version in seen)


# ---------------------------------------------------------------------- locks of local files

HOLDER = """
import sys, time
from virtualds.stores.local import hold_lock

with hold_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holding(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds a lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, lock], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(os.name == "nt", reason="signals are of Unix")
def test_a_writer_killed_with_its_lock_does_not_block_others(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}")
    version = place.write("x", b"one", None)
    with holding(tmp_path / ".x.lock") as process, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(place.write, "x", b"two", version)
        while len(os.listdir(tmp_path)) < 3:  # it has written its bytes, and waits
            assert not waiting.done()
        assert place.names() != [] and ".x.lock" not in place.names()
        assert place.read("x") == (b"one", version)
        process.send_signal(signal.SIGKILL)
        waiting.result(60)
    assert place.read("x")[0] == b"two"
    assert os.listdir(tmp_path) == ["x"]


def test_a_lock_left_behind_is_taken_and_removed(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}")
    version = place.write("x", b"one", None)
    (tmp_path / ".x.lock").touch()
    place.write("x", b"two", version)
    assert os.listdir(tmp_path) == ["x"]


def test_one_at_a_time_holds_a_lock_that_each_removes(tmp_path: Path) -> None:
    """Some wait for a file that is removed before they get it."""
    lock, inside, most = str(tmp_path / "lock"), [], []

    def hold(number: int) -> None:
        for _ in range(200):
            with hold_lock(lock):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0)
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(8)))
    assert (len(most), max(most)) == (1600, 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="processes are not forked there")
def test_an_error_within_a_lock_ends_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), hold_lock(str(tmp_path / "lock")):
        raise KeyError
    with hold_lock(str(tmp_path / "lock")):
        pass
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------- S3


in_object_stores = pytest.mark.parametrize("place", OBJECT_STORES, indirect=True)


def meanwhile(place: Place, patch: pytest.MonkeyPatch, does: Callable[[], Any]) -> None:
    """Lose the answer to the next conditional write, which is sent again after something else."""
    place.store.check_conditions(place.url("x"), place.options)
    kind = type(find_filesystem(place.folder, place.options)[0])
    send = kind.put_conditionally

    def put_conditionally(*request: Any) -> Any:
        patch.setattr(kind, "put_conditionally", send)
        send(*request)
        does()
        return send(*request)

    patch.setattr(kind, "put_conditionally", put_conditionally)


@in_object_stores
def test_a_request_that_is_sent_again_is_no_other_writer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer was lost: the second says that there is such an object, which is our own."""
    meanwhile(place, monkeypatch, lambda: None)
    first = place.write("x", b"one", None)
    meanwhile(place, monkeypatch, lambda: None)
    second = place.write("x", b"two", first)
    assert place.read("x") == (b"two", second)


@in_object_stores
def test_a_write_that_others_have_built_upon_was_done(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_upon(data: bytes) -> None:
        for _ in range(2):
            place.write("x", data, place.read("x")[1])

    meanwhile(place, monkeypatch, lambda: build_upon(b"three"))
    mine = place.write("x", b"two", None)
    assert place.read("x")[0] == b"three"
    # it is not ours to replace: we have not read what is there now
    assert mine != place.version("x")
    with pytest.raises(ChangedError):
        place.write("x", b"four", mine)


@pytest.mark.parametrize("place", S3_SERVERS, indirect=True)
def test_a_bucket_that_is_not_there_is_no_other_writer(place: Place) -> None:
    nowhere = Place("s3://no-such-bucket", place.options)
    for expected in (None, '"0123"'):
        with pytest.raises(FileNotFoundError):
            nowhere.write("x", b"", expected)
    with pytest.raises(FileNotFoundError):
        nowhere.put("x", b"")
    assert nowhere.version("x") is None
    assert nowhere.names() == []


@pytest.mark.parametrize("place", S3_SERVERS, indirect=True)
def test_more_objects_are_removed_than_one_request_may_name(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.stores.objects.MAX_DELETES_PER_REQUEST", 3)
    names = [f"{number}" for number in range(8)]
    for name in names:
        place.put(name, b"")
    place.remove(*names, "none")
    assert place.names() == []


def test_an_unreachable_server_is_an_os_error() -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b"}
    options |= {"config_kwargs": {"retries": {"max_attempts": 0}}}  # type: ignore[dict-item]
    place = Place("s3://bucket", StorageOptions(options))
    for use in (lambda: place.read("x"), lambda: place.write("x", b"", None)):
        # else it is asked for six seconds
        with pytest.raises(OSError) as caught, virtualds.set_options(retries=0):
            use()
        assert not isinstance(caught.value, ChangedError | FileNotFoundError)


# ---------------------------------------------------------------------- any other filesystem


def test_an_error_of_a_store_without_conditions_says_what_to_do(tmp_path: Path) -> None:
    options = StorageOptions(path=str(tmp_path))
    store = FsspecStore()
    (tmp_path / "x").write_bytes(b"one")
    data, version = store.read_with_version("dir://x", options)
    assert (data, store.find_version("dir://x", options)) == (b"one", version)
    for expected in (None, version):
        with pytest.raises(UnsupportedError, match=r"local disk, memory, .* not on dir"):
            store.write_version("dir://x", b"two", options, expected)
    assert (tmp_path / "x").read_bytes() == b"one"


def test_folders_are_made_where_they_are_needed(tmp_path: Path) -> None:
    options, store = StorageOptions(path=str(tmp_path)), FsspecStore()
    store.write_file("dir://a/b/c", b"data", options)
    assert (tmp_path / "a/b/c").read_bytes() == b"data"
    [listed] = store.list_files("dir://a", options)
    assert listed.path == "b/c"
    assert listed.file == store.describe("dir://a/b/c", options)
    assert listed.modified == (tmp_path / "a/b/c").stat().st_mtime
    store.remove(["dir://a/b/c", "dir://a/none"], options)
    assert store.list_files("dir://a", options) == []


def break_writes(monkeypatch: pytest.MonkeyPatch, filesystem: Any) -> None:
    """Let the connection break in the middle of each write."""
    whole = type(filesystem).pipe_file

    def write_half(filesystem: Any, path: str, data: bytes, **how: Any) -> None:
        if "memory" not in filesystem.protocol:
            whole(filesystem, path, data[: len(data) // 2], **how)
        raise ConnectionResetError("connection reset")

    monkeypatch.setattr(type(filesystem), "pipe_file", write_half)


@pytest.mark.parametrize("scheme", ["memory", "dir"])
def test_a_write_that_fails_leaves_the_file_that_another_has_made(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are named by their content, so two jobs may write the same one."""
    url = f"{scheme}://{uuid.uuid4().hex}/chunk"
    options = StorageOptions(path=str(tmp_path)) if scheme == "dir" else None
    store = FsspecStore()
    store.write_file(url, b"content", options)
    break_writes(monkeypatch, find_filesystem(url, options)[0])
    for name in (url, f"{url}-new"):
        with pytest.raises(OSError, match="connection reset"):
            store.write_file(name, b"content", options)
    assert store.read_all(url, options) == b"content"
    [listed] = store.list_files(url.rpartition("/")[0], options)
    assert listed.path == "chunk"


@pytest.mark.parametrize("refuses", [True, False])
def test_a_file_is_replaced_where_renaming_does_not_replace(
    refuses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a name that is taken, some filesystems say so, and some do nothing."""
    options, store = StorageOptions(path=str(tmp_path)), FsspecStore()
    kind = type(find_filesystem("dir://a/b", options)[0])
    renamed = kind.mv

    def rename(filesystem: Any, path: str, new: str, **how: Any) -> None:
        if not filesystem.exists(new):
            renamed(filesystem, path, new, **how)
        elif refuses:
            raise FileExistsError(new)

    monkeypatch.setattr(kind, "mv", rename)
    for data in (b"first", b"second"):
        store.write_file("dir://a/b", data, options)
    assert (tmp_path / "a/b").read_bytes() == b"second"
    assert os.listdir(tmp_path / "a") == ["b"]


# ---------------------------------------------------------------------- listing and removing


@everywhere
def test_all_files_below_a_folder_are_listed(place: Place) -> None:
    assert place.names() == []
    before = time.time()
    names = ["a", "b/c", "b/d/e", "b/[f]?*", "ü g"]
    for name in names:
        place.put(name, name.encode())
    found = place.store.list_files(place.folder, place.options)
    assert [listed.path for listed in found] == sorted(names)
    assert all(f.modified is not None and abs(f.modified - before) < 600 for f in found)
    told = [place.store.describe(place.url(name), place.options) for name in sorted(names)]
    assert [listed.file for listed in found] == told
    assert place.names("/") == sorted(names)
    assert place.names("/b") == ["[f]?*", "c", "d/e"]
    assert [place.read(name)[0] for name in names] == [name.encode() for name in names]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_listed_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "target").write_bytes(b"12345")
    (tmp_path / "folder/link").symlink_to(tmp_path / "target")
    (tmp_path / "folder/nowhere").symlink_to(tmp_path / "none")
    url = f"file://{tmp_path}/folder"
    link, nowhere = find_store(url).list_files(url, None)
    assert link.file == find_store(url).describe(f"{url}/link", None)
    assert (nowhere.path, nowhere.file.size) == ("nowhere", None)


@everywhere
def test_a_folder_is_not_what_its_name_begins_with(place: Place) -> None:
    for name in ("ab", "abc/x", "a/x"):
        place.put(name, b"")
    assert place.names("/a") == ["x"]
    assert place.names("/ab") == place.names("/none") == place.names("/a/x") == []


@everywhere
def test_a_list_shows_the_current_files(place: Place) -> None:
    """Even if somebody else, of whom the store knows nothing, changes it."""
    place.put("a", b"1")
    assert place.names() == ["a"]
    options = {**(place.options or {}), "skip_instance_cache": True, "use_listings_cache": False}
    other, path = find_filesystem(place.url("b"), StorageOptions(options))
    other.pipe_file(path, b"2")
    assert place.names() == ["a", "b"]
    other.rm_file(path)
    assert place.names() == ["a"]


@everywhere
def test_removing_a_missing_file_is_no_error(place: Place) -> None:
    names = ["a", "b/c", "b/d", "[f]*?"]
    for name in names:
        place.put(name, b"")
    place.remove("b/c", "none", "b/none", "no/ne", "[f]*?")
    assert place.names() == ["a", "b/d"]
    place.remove()
    place.remove("a", "b/d", "b/c")
    assert place.names() == []


def test_folders_that_became_empty_are_removed_below_the_one_that_holds_all(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/all")
    (tmp_path / "all/own").mkdir(parents=True)
    for name in ("a/b/c/1", "a/b/2", "d/3", "e/4", "e/5"):
        place.put(name, b"")
    place.remove("a/b/c/1", "a/b/2", "d/3", "e/4")
    assert sorted(os.listdir(tmp_path / "all")) == ["e", "own"]
    place.remove("e/5")
    assert os.listdir(tmp_path / "all/e") == []


def test_writers_and_removers_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}")

    def work(number: int) -> None:
        for turn in range(50):
            place.put(f"folder/{number}-{turn}", b"x")
            place.remove(f"folder/{number}-{turn}", "other")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert os.listdir(tmp_path) in ([], ["folder"])


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, failed = os.makedirs, list[str]()

    def meddled(name: str, **how: Any) -> None:
        if not failed:
            failed.append(name)
            raise error(name)
        make(name, **how)

    monkeypatch.setattr(os, "makedirs", meddled)
    place = Place(f"file://{tmp_path}")
    place.put("folder/a", b"x")
    assert failed
    assert (tmp_path / "folder/a").read_bytes() == b"x"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_folder_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(PermissionError):
        Place(f"file://{tmp_path}").names()
