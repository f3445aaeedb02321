"""Remote files are read right or not at all, by obstore and by fsspec alike."""

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
from range_server import Fault, RangeHandler, Served, faulty_server, running

import virtualds
from virtualds import SourceFile, set_options
from virtualds.source_file import StorageOptions
from virtualds.stores import filesystems, obstore, retry
from virtualds.stores import fsspec as fsspec_store
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.obstore import split_url, translate_options
from virtualds.stores.store import StoreError

pytest.importorskip("obstore")

STORE = FsspecStore()
DATA = bytes(range(256)) * 8

# Options that only fsspec knows keep obstore out; each way leads to the same server.
WAYS = {
    "obstore": None,
    "fsspec": StorageOptions(client_kwargs={"cookies": {"way": "fsspec"}}),
}
# Sessions are shared by all who give the same options: nobody else gives these.
IMPATIENT_WAYS = {
    "obstore": StorageOptions(headers={"Authorization": "impatient"}),
    "fsspec": StorageOptions(client_kwargs={"cookies": {"way": "impatient"}}),
}
S3_WAYS: dict[str, dict[str, Any]] = {
    "obstore": {},
    "fsspec": {"config_kwargs": {"user_agent_extra": "fsspec"}},
}

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
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.002)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "a.bin").write_bytes(DATA)
    with faulty_server(tmp_path) as server:
        server.etag = '"one"'
        yield server


def source(served: Served, way: str, name: str = "a.bin", **known: Any) -> SourceFile:
    return SourceFile(f"{served.url}/{name}", options=WAYS[way], **known)


def refusal(file: SourceFile, *ranges: tuple[int, int]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        STORE.get_ranges(file, ranges or [(10, 20)])
    return caught.value


def agents(served: Served) -> list[str]:
    """Who asked, request by request."""
    named = [
        headers.get("User-Agent", headers.get("user-agent", "")) for *_, headers in served.requests
    ]
    return ["obstore" if name.startswith("object_store") else "fsspec" for name in named]


# ---------------------------------------------------------------------- sound answers


@pytest.mark.parametrize("way", WAYS)
def test_obstore_and_fsspec_give_the_requested_bytes(served: Served, way: str) -> None:
    file = source(served, way, size=len(DATA), etag='"one"')
    ranges = [(0, 1), (100, 300), (7, 0), (len(DATA) - 5, 5), (100, 300)]
    assert list(STORE.get_ranges(file, ranges)) == [DATA[o : o + n] for o, n in ranges]
    assert agents(served) == [way] * 4
    assert all(isinstance(found, bytes) for found in STORE.get_ranges(file, ranges[:1]))
    assert list(STORE.get_ranges(file, [])) == []


@pytest.mark.parametrize("way", WAYS)
def test_as_many_requests_are_under_way_as_threads_ask(served: Served, way: str) -> None:
    """The server answers when all of them are there."""
    file = source(served, way)
    served.together = threading.Barrier(64)
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda n: STORE.get_ranges(file, [(n, 9)])[0], range(64)))
    assert found == [DATA[n : n + 9] for n in range(64)]
    assert agents(served) == [way] * 64


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


@pytest.mark.parametrize("way", WAYS)
def test_no_more_requests_are_under_way_than_the_setting_says(tmp_path: Path, way: str) -> None:
    """However many threads ask for however many ranges."""
    (tmp_path / "a.bin").write_bytes(DATA)
    handler, ranges = partial(Watched, directory=str(tmp_path)), [(n, 9) for n in range(20)]
    watch = {"lock": threading.Lock(), "four": threading.Barrier(4), "live": 0, "most": 0}
    with (
        running(handler, ranges=[], **watch) as server,
        set_options(max_requests=4),
        ThreadPoolExecutor(3) as pool,
    ):
        file = SourceFile(f"{server.url}/a.bin", options=WAYS[way])
        found = list(pool.map(lambda _: STORE.get_ranges(file, ranges), range(3)))
    assert found == [[DATA[n : n + 9] for n in range(20)]] * 3
    assert server.most == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_description_keeps_the_etag(served: Served, way: str) -> None:
    found = STORE.describe(f"{served.url}/a.bin", WAYS[way])
    assert (found.size, found.etag) == (len(DATA), '"one"')
    assert STORE.get_ranges(found, [(3, 4)]) == [DATA[3:7]]


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
from virtualds import SourceFile
from virtualds.stores import FsspecStore
file = SourceFile(sys.argv[1])
here = FsspecStore().get_ranges(file, [(5, 9)])
child = os.fork()
if not child:
    os._exit(0 if FsspecStore().get_ranges(file, [(5, 9)]) == here else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_asks_through_fsspec(served: Served) -> None:
    command = [sys.executable, "-c", FORKED, f"{served.url}/a.bin"]
    assert subprocess.run(command, timeout=300).returncode == 0
    assert agents(served) == ["obstore", "fsspec"]


# ---------------------------------------------------------------------- what may pass


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", PASSING)
def test_temporary_failures_are_tried_again(served: Served, fault: str, way: str) -> None:
    served.faults.append(PASSING[fault])
    assert STORE.get_ranges(source(served, way), [(10, 20)]) == [DATA[10:30]]
    assert agents(served) == [way, "fsspec"]


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_takes_too_long_is_asked_again(
    served: Served, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (filesystems, obstore):
        monkeypatch.setattr(module, "READ_TIMEOUT", 1.0)
    served.faults.append(Fault("slow", seconds=5.0))
    file = SourceFile(f"{served.url}/a.bin", options=IMPATIENT_WAYS[way])
    assert STORE.get_ranges(file, [(10, 20)]) == [DATA[10:30]]
    assert agents(served) == [way, "fsspec"]


@pytest.mark.parametrize("fault", LASTING)
def test_lasting_failures_raise_the_same_error_at_once(served: Served, fault: str) -> None:
    served.always, words = LASTING[fault]
    told = {way: str(refusal(source(served, way))) for way in WAYS}
    assert told["obstore"] == told["fsspec"]
    assert words in told["fsspec"]
    assert "tried" not in told["fsspec"]
    assert agents(served) == ["obstore", "fsspec", "fsspec"]


LEAVING = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from virtualds import SourceFile
from virtualds.stores import FsspecStore, retry
waits = threading.Event()
choose_wait = retry.choose_wait
retry.choose_wait = lambda *given: waits.set() or choose_wait(*given)
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
    told = {}
    with set_options(retries=retries):
        for way in WAYS:
            served.requests.clear()
            told[way] = str(refusal(source(served, way)))
            # without another attempt it is fsspec that must say what is wrong
            assert len(served.requests) == retries + 1 + (way == "obstore" and not retries)
    assert told["obstore"] == told["fsspec"]
    assert "503" in told["fsspec"]
    assert (f"tried {retries + 1} times" in told["fsspec"]) == (retries > 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_range_that_failed_is_numbered(served: Served, way: str) -> None:
    assert refusal(source(served, way), (0, 5), (len(DATA) + 9, 5)).item == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_range_beyond_the_end_is_an_error(served: Served, way: str) -> None:
    assert "sent 5 of 8 bytes" in str(refusal(source(served, way), (len(DATA) - 5, 8)))


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
        told = [str(refusal(SourceFile(url, options=options))) for options in WAYS.values()]
    assert told[0] == told[1]
    assert "no server answers" in told[0]


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
    assert least <= retry.choose_wait(1, Refused(503, after)) <= most


def test_waits_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_WAIT", 1.0)
    longest = [max(retry.choose_wait(n, OSError()) for _ in range(200)) for n in (1, 3, 9)]
    assert longest[0] <= 1 < longest[1] <= 4 < longest[2] <= retry.LONGEST_WAIT


# ---------------------------------------------------------------------- another file than before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("known", "words"),
    [({"etag": '"two"'}, "modified after it was scanned"), ({"size": 5}, "had 5 when scanned")],
)
def test_a_file_that_changed_is_refused(
    served: Served, way: str, known: dict[str, Any], words: str
) -> None:
    file = source(served, way, **known)
    assert words in str(refusal(file))
    assert agents(served) == [way]
    with set_options(check_sources=False):
        assert STORE.get_ranges(file, [(10, 20)]) == [DATA[10:30]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("etag", ['"one"', 'W/"one"', "one"])
def test_an_etag_is_the_same_in_any_spelling(served: Served, way: str, etag: str) -> None:
    assert STORE.get_ranges(source(served, way, etag=etag), [(10, 20)]) == [DATA[10:30]]


@pytest.mark.parametrize("way", WAYS)
def test_a_small_file_of_a_server_without_ranges_is_cut(served: Served, way: str) -> None:
    served.always = Fault("deaf")
    assert STORE.get_ranges(source(served, way), [(10, 20)]) == [DATA[10:30]]
    assert "sent 5 of 8" in str(refusal(source(served, way), (len(DATA) - 5, 8)))


@pytest.mark.parametrize("way", WAYS)
def test_no_large_file_is_got_as_a_whole(
    served: Served, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec_store, "WHOLE", 100)
    served.always = Fault("deaf")
    assert f"knows no ranges and sends the whole file, of {len(DATA)} bytes" in str(
        refusal(source(served, way))
    )


# ---------------------------------------------------------------------- S3


def s3_source(bucket: str, options: dict[str, Any], way: str, key: str = "x/a.bin") -> SourceFile:
    return SourceFile(f"{bucket}/{key}", options=StorageOptions(options | S3_WAYS[way]))


@pytest.mark.product
@pytest.mark.parametrize("signed", ["signed", "anonymous"])
@pytest.mark.parametrize("way", S3_WAYS)
@pytest.mark.parametrize("key", ["x/a.bin", "a b.bin", "a#b%20c.bin", "ü.bin", "T00:00.bin"])
def test_obstore_and_fsspec_read_objects_alike(
    s3_server: dict[str, Any], s3_bucket: str, way: str, signed: str, key: str
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    filesystem.pipe_file(f"{s3_bucket}/{key}", DATA, ACL="public-read")
    options = s3_server
    if signed == "anonymous":
        options = {"anon": True, "endpoint_url": s3_server["client_kwargs"]["endpoint_url"]}
    file = STORE.describe(*s3_source(s3_bucket, options, way, key)[0::4])
    assert (file.size, bool(file.etag)) == (len(DATA), True)
    assert STORE.get_ranges(file, [(10, 20), (0, 3)]) == [DATA[10:30], DATA[:3]]
    fast = obstore.get_range(file, 10, 20, again=False)
    assert (fast is not None) == (way == "obstore")
    assert "modified" in str(refusal(file._replace(etag='"other"')))
    assert "416" in (text := str(refusal(file, (len(DATA) + 5, 3)))) or "range" in text


@pytest.mark.parametrize(
    ("missing", "words"), [("key", "key does not exist"), ("bucket", "bucket does not exist")]
)
def test_a_missing_object_and_a_missing_bucket_are_told_apart(
    s3_server: dict[str, Any], s3_bucket: str, missing: str, words: str
) -> None:
    bucket = s3_bucket if missing == "key" else f"{s3_bucket}-none"
    told = [str(refusal(s3_source(bucket, s3_server, way))) for way in S3_WAYS]
    assert told[0] == told[1]
    assert words in told[0]
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
@pytest.mark.parametrize("way", S3_WAYS)
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
    served: Served, s3_like: dict[str, Any], way: str, fault: Fault
) -> None:
    served.faults.extend([fault, fault])
    file = s3_source("s3://bucket", s3_like, way)
    assert STORE.get_ranges(file, [(10, 20)]) == [DATA[10:30]]
    assert len(served.requests) == 3
    assert agents(served)[0] == way


WRONG_KEYS = ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"]


@pytest.mark.parametrize("code", few_quick(WRONG_KEYS, WRONG_KEYS[:1]))
def test_an_error_of_a_wrong_key_says_what_to_do(
    served: Served, s3_like: dict[str, Any], code: str
) -> None:
    served.always = s3_fault(403, code)
    told = [str(refusal(s3_source("s3://bucket", s3_like, way))) for way in S3_WAYS]
    assert told[0] == told[1]
    assert "refuses access" in told[0] and "storage_options" in told[0]
    assert len(served.requests) == 3


# ---------------------------------------------------------------------- translation

TOLD: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("https://host:8443", {}, {}),
    ("https://host", {"block_size": 5, "cache_type": "none"}, {}),
    (
        "s3://bucket",
        {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}},
        {"aws_skip_signature": "true", "aws_region": "eu-west-1"},
    ),
    (
        "s3://bucket",
        {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://x", "use_ssl": False},
        {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_session_token": "t"}
        | {"aws_endpoint": "http://x", "aws_region": "us-east-1"},
    ),
    (
        "s3a://bucket",
        {"username": "k", "password": "s", "requester_pays": True}
        | {"client_kwargs": {"endpoint_url": "http://x"}},
        {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_endpoint": "http://x"}
        | {"aws_request_payer": "true", "aws_region": "us-east-1"},
    ),
    ("gs://bucket", {"token": "anon", "project": "p"}, {"google_skip_signature": "true"}),
    (
        "gcs://bucket",
        {"anon": True, "endpoint_url": "http://127.0.0.1:1"},
        {"google_skip_signature": "true", "google_base_url": "http://127.0.0.1:1"},
    ),
    (
        "gcs://bucket",
        {"token": {"type": "service_account", "private_key": "p"}},
        {"google_service_account_key": '{"type": "service_account", "private_key": "p"}'},
    ),
    (
        "az://box",
        {"account_name": "a", "account_key": "k"},
        {"azure_storage_account_name": "a", "azure_storage_account_key": "k"},
    ),
    (
        "abfs://box",
        {"account_name": "a", "sas_token": "?sv=1"},
        {"azure_storage_account_name": "a", "azure_storage_sas_key": "?sv=1"},
    ),
    (
        "abfs://box",
        {"account_name": "a", "anon": True},
        {"azure_storage_account_name": "a", "azure_skip_signature": "true"},
    ),
    (
        "abfss://box@acc.dfs.core.windows.net",
        {"account_key": "k", "account_name": "acc", "account_host": "blobs.example.org"},
        {"azure_storage_account_name": "acc", "azure_storage_account_key": "k"}
        | {"azure_storage_endpoint": "https://blobs.example.org"},
    ),
    (
        "az://box",
        {"connection_string": "AccountName=a;AccountKey=k==;EndpointSuffix=core.example.org"},
        {"azure_storage_account_name": "a", "azure_storage_account_key": "k=="}
        | {"azure_storage_endpoint": "https://a.blob.core.example.org"},
    ),
    (
        "az://box",
        {"connection_string": "BlobEndpoint=http://x/a/;AccountName=a;", "account_key": "other"},
        {"azure_storage_account_name": "a", "azure_skip_signature": "true"}
        | {"azure_storage_endpoint": "http://x/a"},
    ),
]
UNTOLD: list[tuple[str, dict[str, Any]]] = [
    ("https://host", {"client_kwargs": {"auth": object()}}),
    ("https://host", {"ssl": False}),
    ("https://host", {"headers": {"x": 5}}),
    ("s3://bucket", {}),
    ("s3://bucket", {"anon": True}),
    ("s3://bucket", {"key": "k", "endpoint_url": "http://x"}),
    ("s3://bucket", {"profile": "mine"}),
    ("s3://bucket", {"anon": True, "endpoint_url": "http://x", "version_aware": True}),
    ("s3://bucket", {"anon": True, "endpoint_url": "http://x", "session": object()}),
    ("s3://bucket", {"anon": True, "endpoint_url": "http://x", "config_kwargs": {"proxies": {}}}),
    ("s3://bucket", {"anon": True, "client_kwargs": {"region_name": "r", "verify": False}}),
    (
        "s3://bucket",
        {"anon": True, "endpoint_url": "http://x", "client_kwargs": {"endpoint_url": "http://y"}},
    ),
    ("gs://bucket", {}),
    ("gs://bucket", {"token": "/home/me/key.json"}),
    ("gs://bucket", {"token": "anon", "requester_pays": True}),
    ("gs://bucket", {"anon": True, "token": "hunter2"}),
    ("az://box", {"account_name": "a"}),
    ("az://box", {"connection_string": "c"}),
    ("az://box", {"connection_string": "UseDevelopmentStorage=true"}),
    ("az://box", {"account_name": "a", "account_key": "k", "location_mode": "secondary"}),
    ("az://box@acc.dfs.core.windows.net", {"account_name": "other", "account_key": "k"}),
    ("az://box", {"account_name": "a", "credential": object()}),
    ("az://box", {"account_name": "a", "account_key": "k", "sas_token": "s"}),
    ("ftp://host", {}),
    ("memory://x", {}),
]


@pytest.mark.parametrize(("place", "options", "config"), TOLD)
def test_options_translate(place: str, options: dict[str, Any], config: dict[str, str]) -> None:
    before = dict(options)
    found = translate_options(place, options)
    assert found is not None
    assert dict(found.config) == config
    assert options == before


@pytest.mark.parametrize("where", [{}, {"client_kwargs": {}}], ids=["request", "session"])
def test_headers_translate(where: dict[str, Any], served: Served) -> None:
    headers = {"Authorization": "Bearer x"}
    options = {"client_kwargs": {"headers": headers}} if where else {"headers": headers}
    file = SourceFile(f"{served.url}/a.bin", options=StorageOptions(options))
    assert STORE.get_ranges(file, [(1, 2)]) == [DATA[1:3]]
    [(_, _, sent)] = served.requests
    assert agents(served) == ["obstore"]
    assert {name.lower(): value for name, value in sent.items()}["authorization"] == "Bearer x"


@pytest.mark.parametrize(("place", "options"), UNTOLD)
def test_options_without_a_translation_are_left_to_fsspec(
    place: str, options: dict[str, Any]
) -> None:
    assert translate_options(place, options) is None


@pytest.mark.parametrize(
    "url",
    [
        *("http://host/a.bin?x=1", "http://host/a.bin#x", "http://host/a%20b", "http://u:p@host/a"),
        *("http://host/a/", "http://host//a", "http://host/a//b", "http://host/a/../b"),
        *("http://host", "s3://bucket//a", "s3://bucket/a/", "s3://bucket/a/./b", "s3://bucket"),
        *("s3://bucket/a?versionId=1", "s3://arn:aws:s3:eu:1:accesspoint/x/a"),
        *("abfs://box@a.dfs.core/x", "simplecache::s3://bucket/a", "zip://a::http://host/b.zip"),
    ],
)
def test_urls_that_two_libraries_might_read_in_two_ways_are_left_to_fsspec(url: str) -> None:
    assert split_url(url) is None


@pytest.mark.parametrize(
    ("name", "bends"),
    [
        ("AWS_SESSION_TOKEN", True),
        ("AWS_ENDPOINT_URL", True),
        ("AWS_REGION", False),
        ("HOME", False),
    ],
)
def test_settings_that_only_one_library_reads_keep_obstore_out(
    monkeypatch: pytest.MonkeyPatch, served: Served, s3_like: dict[str, Any], name: str, bends: bool
) -> None:
    for known in [known for known in os.environ if known.startswith("AWS_")]:
        monkeypatch.delenv(known)
    monkeypatch.setenv(name, served.url)
    file = s3_source("s3://bucket", s3_like, "obstore")
    assert (obstore.get_range(file, 1, 2, again=False) is None) == bends
