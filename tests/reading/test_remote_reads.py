"""Remote files are read right or not at all."""

import gc
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from products import few_quick
from programs import run_code
from range_server import Fault, RangeHandler, Served, faulty_server, running

import virtualds
from virtualds import SourceFile, set_options
from virtualds.source_file import StorageOptions
from virtualds.stores import fsspec as filesystems
from virtualds.stores import requests
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.store import StoreError

pytest.importorskip("obstore")

STORE = FsspecStore()
DATA = bytes(range(256)) * 8

# Sessions are shared by all who give the same options: nobody else gives these.
IMPATIENT = StorageOptions(headers={"Authorization": "impatient"})

PASSING = {
    **{str(n): Fault("status", n) for n in (408, 425, 429, 500, 502, 503, 504)},
    "retry-after": Fault("status", 503, {"Retry-After": "0"}),
    "cut": Fault("cut"),
    "short": Fault("short"),
}
LASTING = {
    "401": (Fault("status", 401), "the server refuses access"),
    "403": (Fault("status", 403), "give credentials"),
    "404": (Fault("status", 404), "there is no such file"),
    "410": (Fault("status", 410), "there is no such file"),
    "412": (Fault("status", 412), "412"),
    "416": (Fault("status", 416), "416"),
    "shifted": (Fault("shifted"), "other bytes"),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting costs nothing here."""
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.002)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "a.bin").write_bytes(DATA)
    with faulty_server(tmp_path) as server:
        server.etag = '"one"'
        yield server


def source(served: Served, name: str = "a.bin", **known: Any) -> SourceFile:
    return SourceFile(f"{served.url}/{name}", **known)


def refusal(file: SourceFile, *ranges: tuple[int, int]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        STORE.get_ranges(file, ranges or [(10, 20)])
    return caught.value


# ---------------------------------------------------------------------- sound answers


def test_the_requested_bytes_are_given(served: Served) -> None:
    file = source(served, size=len(DATA), etag='"one"')
    ranges = [(0, 1), (100, 300), (7, 0), (len(DATA) - 5, 5), (100, 300)]
    assert list(STORE.get_ranges(file, ranges)) == [DATA[o : o + n] for o, n in ranges]
    assert len(served.requests) == 4
    assert all(isinstance(found, bytes) for found in STORE.get_ranges(file, ranges[:1]))
    assert list(STORE.get_ranges(file, [])) == []


def test_as_many_requests_are_under_way_as_threads_ask(served: Served) -> None:
    """The server answers when all of them are there."""
    file = source(served)
    served.together = threading.Barrier(64)
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda n: STORE.get_ranges(file, [(n, 9)])[0], range(64)))
    assert found == [DATA[n : n + 9] for n in range(64)]
    assert len(served.requests) == 64


class Watched(RangeHandler):
    """Notes how many requests are under way, each of which waits for another three."""

    def send_part(self, *args: Any) -> None:
        server: Any = self.server
        with server.lock:
            server.live += 1
            server.most = max(server.most, server.live)
        server.four.wait(300)
        with server.lock:
            server.live -= 1
        super().send_part(*args)


def test_no_more_requests_are_under_way_than_the_setting_says(tmp_path: Path) -> None:
    """However many threads ask for however many ranges."""
    (tmp_path / "a.bin").write_bytes(DATA)
    handler, ranges = partial(Watched, directory=str(tmp_path)), [(n, 9) for n in range(20)]
    watch = {"lock": threading.Lock(), "four": threading.Barrier(4), "live": 0, "most": 0}
    with (
        running(handler, ranges=[], **watch) as server,
        set_options(max_requests=4),
        ThreadPoolExecutor(3) as pool,
    ):
        file = SourceFile(f"{server.url}/a.bin")
        found = list(pool.map(lambda _: STORE.get_ranges(file, ranges), range(3)))
    assert found == [[DATA[n : n + 9] for n in range(20)]] * 3
    assert server.most == 4


def test_a_description_keeps_the_etag(served: Served) -> None:
    found = STORE.describe(f"{served.url}/a.bin", None)
    assert (found.size, found.etag) == (len(DATA), '"one"')
    assert STORE.get_ranges(found, [(3, 4)]) == [DATA[3:7]]


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
from virtualds import SourceFile
from virtualds.stores import FsspecStore
from virtualds.source_file import StorageOptions
options = StorageOptions(eval(sys.argv[2]))
file = SourceFile(sys.argv[1], options=options)
here = FsspecStore().get_ranges(file, [(5, 9)])
child = os.fork()
if not child:
    grandchild = os.fork()
    same = FsspecStore().get_ranges(file, [(5, 9)]) == here
    if grandchild:
        same = same and os.waitpid(grandchild, 0)[1] == 0
    os._exit(0 if same else 1)
assert FsspecStore().get_ranges(file, [(5, 9)]) == here
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""A process reads, its child, and the child of that one."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_forked_child_reads_as_its_parent_does(
    served: Served, s3_like: dict[str, Any], kind: str
) -> None:
    url = f"{served.url}/a.bin" if kind == "http" else "s3://bucket/x/a.bin"
    options = repr({} if kind == "http" else s3_like)
    assert run_code(FORKED, url, options).returncode == 0
    assert len(served.requests) == 4


# ---------------------------------------------------------------------- what may pass


@pytest.mark.parametrize("fault", PASSING)
def test_temporary_failures_are_tried_again(served: Served, fault: str) -> None:
    served.faults.append(PASSING[fault])
    assert STORE.get_ranges(source(served), [(10, 20)]) == [DATA[10:30]]
    assert len(served.requests) == 2


def test_a_server_that_takes_too_long_is_asked_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystems, "READ_TIMEOUT", 1.0)
    served.faults.append(Fault("slow", seconds=5.0))
    file = SourceFile(f"{served.url}/a.bin", options=IMPATIENT)
    assert STORE.get_ranges(file, [(10, 20)]) == [DATA[10:30]]
    assert len(served.requests) == 2


@pytest.mark.parametrize("fault", LASTING)
def test_lasting_failures_raise_an_error_at_once(served: Served, fault: str) -> None:
    served.always, words = LASTING[fault]
    told = str(refusal(source(served)))
    assert words in told and "tried" not in told
    assert len(served.requests) == 1


LEAVING = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from virtualds import SourceFile
from virtualds.stores import FsspecStore, requests
waits = threading.Event()
choose_wait = requests.choose_wait
requests.choose_wait = lambda *given: waits.set() or choose_wait(*given)
ThreadPoolExecutor().submit(FsspecStore().get_ranges, SourceFile(sys.argv[1]), [(0, 9)])
waits.wait()
"""


def test_a_process_that_ends_does_not_wait_to_ask_again(served: Served) -> None:
    served.always = Fault("status", 503, {"Retry-After": "60"})
    command = [sys.executable, "-c", LEAVING, f"{served.url}/a.bin"]
    assert subprocess.run(command, timeout=50).returncode == 0
    assert len(served.requests) == 1


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_request_is_tried_as_often_as_the_setting_says(served: Served, retries: int) -> None:
    served.always = Fault("status", 503, {"Retry-After": "0"})
    with set_options(retries=retries):
        told = str(refusal(source(served)))
    assert len(served.requests) == retries + 1
    assert "503" in told
    assert (f"tried {retries + 1} times" in told) == (retries > 0)


def test_the_range_that_failed_is_numbered(served: Served) -> None:
    assert refusal(source(served), (0, 5), (len(DATA) + 9, 5)).item == 1


def test_a_range_beyond_the_end_is_an_error(served: Served) -> None:
    assert "sent 5 of 8 bytes" in str(refusal(source(served), (len(DATA) - 5, 8)))


def test_descriptions_and_whole_files_are_asked_for_again(served: Served) -> None:
    url = f"{served.url}/a.bin"
    # a description asks in two ways
    served.faults.extend([PASSING["503"]] * 2)
    assert STORE.describe(url, None).size == len(DATA)
    served.faults.append(PASSING["503"])
    assert STORE.read_all(url, None) == DATA


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (404, FileNotFoundError, "there is no such file"),
        (403, (PermissionError, FileNotFoundError), "storage_options"),
        (503, StoreError, "tried 2 times"),
    ],
)
def test_files_that_cannot_be_had_are_named(
    served: Served, status: int, kind: Any, words: str
) -> None:
    served.always = Fault("status", status)
    with set_options(retries=1):
        for verb in (STORE.describe, STORE.read_all):
            with pytest.raises(kind) as caught:
                verb(f"{served.url}/a.bin", None)
            assert str(caught.value).startswith(f"{served.url}/a.bin: ")
            assert words in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("name", ["typical.nc", "refs.json", "refs.zarr"])
def test_a_forbidden_file_or_set_is_named_as_it_was_given(
    served: Served, name: str, status: int
) -> None:
    served.always = Fault("status", status)
    with pytest.raises(virtualds.AccessError) as caught:
        virtualds.open_virtual_dataset(f"{served.url}/{name}")
    assert str(caught.value).startswith(f"{served.url}/{name}: ")
    assert f"{name}/" not in str(caught.value)


def test_an_unreachable_server_is_named(served: Served, tmp_path: Path) -> None:
    with faulty_server(tmp_path) as gone:
        url = f"{gone.url}/a.bin"
    with set_options(retries=1):
        with pytest.raises(StoreError, match="tried 2 times") as caught:
            STORE.describe(url, None)
        assert url in str(caught.value)
        assert "no server answers" in str(refusal(SourceFile(url)))


def test_a_file_in_a_remote_archive_is_opened_and_read(served: Served, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("x/a.bin", DATA)
    url = f"zip://x/a.bin::{served.url}/b.zip"
    file, begins = STORE.read_head(url, None, 100)
    gc.collect()
    assert (file.size, begins) == (len(DATA), DATA[:100])
    assert STORE.read_all(url, None) == DATA
    assert STORE.get_ranges(STORE.describe(url, None), [(10, 20)]) == [DATA[10:30]]


class Refused(OSError):
    """As libraries tell it."""

    def __init__(self, status: int, after: str) -> None:
        super().__init__("refused")
        self.status, self.headers = status, {"retry-after": after}


@pytest.mark.parametrize(
    ("after", "least", "most"),
    [
        ("0", 0, 0.1),
        ("7", 7, 7),
        ("100000", 60, 60),
        (format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True), 60, 60),
        (format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0, 0.1),
        ("soon", 0, 0.1),
        ("", 0, 0.1),
    ],
    # dates would be other names for every process that collects them
    ids=["at once", "seconds", "too long", "tomorrow", "yesterday", "no date", "nothing"],
)
def test_a_retry_waits_as_long_as_the_server_asks(after: str, least: float, most: float) -> None:
    assert least <= requests.choose_wait(1, Refused(503, after)) <= most


def test_waits_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 1.0)
    longest = [max(requests.choose_wait(n, OSError()) for _ in range(200)) for n in (1, 3, 9)]
    assert longest[0] <= 1 < longest[1] <= 4 < longest[2] <= requests.MAX_WAIT


# ---------------------------------------------------------------------- another file than before


@pytest.mark.parametrize(
    ("known", "words"),
    [({"etag": '"two"'}, "modified after it was scanned"), ({"size": 5}, "had 5 when scanned")],
)
def test_a_file_that_changed_is_refused(served: Served, known: dict[str, Any], words: str) -> None:
    file = source(served, **known)
    assert words in str(refusal(file))
    assert len(served.requests) == 1
    with set_options(check_sources=False):
        assert STORE.get_ranges(file, [(10, 20)]) == [DATA[10:30]]


@pytest.mark.parametrize("etag", ['"one"', 'W/"one"', "one"])
def test_an_etag_is_the_same_in_any_spelling(served: Served, etag: str) -> None:
    assert STORE.get_ranges(source(served, etag=etag), [(10, 20)]) == [DATA[10:30]]


def test_a_small_file_of_a_server_without_ranges_is_cut(served: Served) -> None:
    served.always = Fault("deaf")
    assert STORE.get_ranges(source(served), [(10, 20)]) == [DATA[10:30]]
    assert "sent 5 of 8" in str(refusal(source(served), (len(DATA) - 5, 8)))


def test_no_large_file_is_got_as_a_whole(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_WHOLE_FILE", 100)
    served.always = Fault("deaf")
    assert f"does not support range requests and sends the whole file, of {len(DATA)} bytes" in str(
        refusal(source(served))
    )


# ---------------------------------------------------------------------- S3


def s3_source(bucket: str, options: dict[str, Any], key: str = "x/a.bin") -> SourceFile:
    return SourceFile(f"{bucket}/{key}", options=StorageOptions(options))


@pytest.mark.product
@pytest.mark.parametrize("signed", ["signed", "anonymous"])
@pytest.mark.parametrize("key", ["x/a.bin", "a b.bin", "a#b%20c.bin", "ü.bin", "T00:00.bin"])
def test_an_object_of_any_name_is_read(
    s3_server: dict[str, Any], s3_bucket: str, signed: str, key: str
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    filesystem.pipe_file(f"{s3_bucket}/{key}", DATA, ACL="public-read")
    options = s3_server
    if signed == "anonymous":
        options = {"anon": True, "endpoint_url": s3_server["client_kwargs"]["endpoint_url"]}
    file = STORE.describe(*s3_source(s3_bucket, options, key)[0::4])
    assert (file.size, bool(file.etag)) == (len(DATA), True)
    assert STORE.get_ranges(file, [(10, 20), (0, 3)]) == [DATA[10:30], DATA[:3]]
    assert "modified" in str(refusal(file._replace(etag='"other"')))
    assert "416" in (text := str(refusal(file, (len(DATA) + 5, 3)))) or "range" in text


@pytest.mark.parametrize(
    ("missing", "words"), [("key", "key does not exist"), ("bucket", "bucket does not exist")]
)
def test_a_missing_object_and_a_missing_bucket_are_told_apart(
    s3_server: dict[str, Any], s3_bucket: str, missing: str, words: str
) -> None:
    bucket = s3_bucket if missing == "key" else f"{s3_bucket}-none"
    assert words in str(refusal(s3_source(bucket, s3_server)))
    with pytest.raises(FileNotFoundError) as caught:
        STORE.describe(f"{bucket}/x/a.bin", StorageOptions(s3_server))
    assert f"{bucket}/x/a.bin" in str(caught.value)


def s3_fault(status: int, code: str) -> Fault:
    body = f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()
    return Fault("status", status, {"Content-Type": "application/xml", "Retry-After": "0"}, body)


@pytest.fixture
def s3_like(served: Served, tmp_path: Path) -> dict[str, Any]:
    """The options that lead s3fs to a server that fails as S3 does."""
    (tmp_path / "bucket" / "x").mkdir(parents=True)
    (tmp_path / "bucket" / "x" / "a.bin").write_bytes(DATA)
    return {"key": "nobody", "secret": "nothing", "endpoint_url": served.url}


@pytest.mark.product
@pytest.mark.parametrize(
    "fault",
    [
        s3_fault(503, "SlowDown"),
        s3_fault(500, "InternalError"),
        s3_fault(400, "RequestTimeout"),
        Fault("cut"),
    ],
    ids=["SlowDown", "InternalError", "RequestTimeout", "cut"],
)
def test_temporary_failures_of_s3_are_tried_again(
    served: Served, s3_like: dict[str, Any], fault: Fault
) -> None:
    served.faults.extend([fault, fault])
    file = s3_source("s3://bucket", s3_like)
    assert STORE.get_ranges(file, [(10, 20)]) == [DATA[10:30]]
    assert len(served.requests) == 3


WRONG_KEYS = ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"]


@pytest.mark.parametrize("code", few_quick(WRONG_KEYS, WRONG_KEYS[:1]))
def test_an_error_of_a_wrong_key_says_what_to_do(
    served: Served, s3_like: dict[str, Any], code: str
) -> None:
    served.always = s3_fault(403, code)
    told = str(refusal(s3_source("s3://bucket", s3_like)))
    assert "refuses access" in told and "storage_options" in told
    assert len(served.requests) == 1
