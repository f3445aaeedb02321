"""A reference set is data from somebody else: what it may name, and what it cannot make us do."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from products import looped
from range_server import RangeHandler, running

import virtualds
from virtualds import AccessError, FormatError, ReadError, UnsupportedError
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.access_rules import AccessPolicy, has_private_host, resolve_url
from virtualds.stores.store import StoreError

VALUES = np.arange(4, dtype="i2")
ZARRAY = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [4],
    "dtype": "<i2",
    "compressor": None,
    "filters": None,
    "fill_value": None,
    "order": "C",
}
METADATA: dict[str, Any] = {
    ".zgroup": {"zarr_format": 2},
    "v/.zarray": ZARRAY,
    "v/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
}

# ---------------------------------------------------------------------- the stage


def as_json(path: Path, url: str) -> str:
    path.with_suffix(".json").write_text(
        json.dumps({"version": 1, "refs": METADATA | {"v/0": [url, 0, 8]}})
    )
    return path.with_suffix(".json").name


def as_json_of_whole_files(path: Path, url: str) -> str:
    path.with_suffix(".json").write_text(
        json.dumps({"version": 1, "refs": METADATA | {"v/0": [url]}})
    )
    return path.with_suffix(".json").name


def as_parquet(path: Path, url: str) -> str:
    folder = path.with_suffix(".parquet")
    (folder / "v").mkdir(parents=True)
    (folder / ".zmetadata").write_text(json.dumps({"metadata": METADATA, "record_size": 1}))
    table = pa.table({"path": [url], "offset": [0], "size": [8]})
    pq.write_table(table, folder / "v" / "refs.0.parq")
    return folder.name


def as_zarr(path: Path, url: str, manifest: str) -> str:
    if url.startswith(("../", "./", "data/", "link/", "a.bin", "%")):
        # its paths are seen from inside the set
        url = f"../{url}"
    folder = path.with_suffix(".zarr")
    (folder / "v").mkdir(parents=True)
    said: dict[str, Any] = {"manifest": {"0": {"path": url, "offset": 0, "length": 8}}}
    if manifest == "json":
        (folder / "v" / "manifest.json").write_text(json.dumps(said["manifest"]))
        said = {"manifest": "./manifest.json"}
    if manifest == "parquet":
        for name, table in (
            ("refs", {"source": [0], "offset": [0], "length": [8]}),
            ("files", {"path": [url], "size": [None], "mtime": [None], "etag": [None]}),
        ):
            (folder / "v" / name).mkdir()
            pq.write_table(pa.table(table), folder / "v" / name / "0.parquet")
        table = {"path": "./refs", "rows": 1, "sources": ["./files", 1]}
        part = {"origin": [0], "shape": [1], "first": 0, "strides": [1], "table": table}
        said = {"parts": [part]}
    name = f"chunk-manifest-{'parquet' if manifest == 'parquet' else 'json'}"
    node = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": ["x"],
        "storage_transformers": [{"name": name, "configuration": said}],
    }
    root = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"v": node}}
    document = root | {"consolidated_metadata": consolidated}
    (folder / "zarr.json").write_text(json.dumps(document))
    return folder.name


WRITERS: dict[str, Callable[[Path, str], str]] = {
    "kerchunk-json": as_json,
    "kerchunk-json, whole files": as_json_of_whole_files,
    "kerchunk-parquet": as_parquet,
    "zarr-v3": partial(as_zarr, manifest="inline"),
    "zarr-v3, json": partial(as_zarr, manifest="json"),
    "zarr-v3, parquet": partial(as_zarr, manifest="parquet"),
}


class RecordingHandler(RangeHandler):
    """Notes what is asked for, and with which headers."""

    def send_head(self) -> Any:
        # names of headers mean the same in any case
        headers = {name.title(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, headers))  # type: ignore[attr-defined]
        return super().send_head()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], tuple[str, list[tuple[str, dict[str, str]]]]]]:
    with ExitStack() as servers:

        def start(folder: Path) -> tuple[str, list[tuple[str, dict[str, str]]]]:
            handler = partial(RecordingHandler, directory=str(folder))
            server = servers.enter_context(running(handler, asked=[], ranges=[]))
            return server.url, server.asked

        yield start


OPENED: list[str] = []


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        OPENED.append(os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else "")


sys.addaudithook(note_opened)


class Stage(NamedTuple):
    """A served folder with ``sets`` and ``data``, and a local secret beside it."""

    root: Path
    host: str
    asked: list[tuple[str, dict[str, str]]]

    def named(self, url: str) -> str:
        """Fill in where things are."""
        port = self.host.rpartition(":")[2]
        return url.format(root=self.root, host=self.host, port=port)

    def put(self, writer: str, url: str) -> str:
        """Write a set among the served ones and return its name, which no other has."""
        sets = self.root / "served" / "sets"
        number = len(list(sets.glob("refs*")))
        return WRITERS[writer](sets / f"refs{number}", self.named(url))

    def opened_outside(self) -> list[str]:
        """What was opened, and asked for, of what is secret."""
        files = [path for path in OPENED if "secret" in path]
        return files + [path for path, _ in self.asked if "secret" in path]


@pytest.fixture
def stage(tmp_path: Path, serve: Any) -> Stage:
    for folder in ("served/sets", "served/sets/data", "served/data", "served/secret", "secret"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("served/sets", "served/sets/data", "served/data", "served/secret", "secret"):
        (tmp_path / folder / "a.bin").write_bytes(VALUES.tobytes())
    host, asked = serve(tmp_path / "served")
    OPENED.clear()
    return Stage(tmp_path, host, asked)


def values(url: Any, **options: Any) -> Any:
    # a web server answers for a folder, with a list of its files
    if str(url).endswith(".parquet"):
        options["parser"] = "kerchunk-parquet"
    if str(url).endswith(".zarr"):
        options["parser"] = "zarr-v3"
    return xr.open_dataset(url, engine="virtual", **options)["v"].values


def chain_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


# ---------------------------------------------------------------------- what is refused

LOCAL = [
    "{root}/secret/a.bin",
    "file://{root}/secret/a.bin",
    "FILE://{root}/secret/a.bin",
    "file:{root}/secret/a.bin",
    "File:{root}/secret/a.bin",
    "local://{root}/secret/a.bin",
    "local:{root}/secret/a.bin",
    "file://localhost{root}/secret/a.bin",
    "file://{root}/served/sets/../../secret/a.bin",
    "//localhost{root}/secret/a.bin",
    "/{root}/secret/a.bin",
    "simplecache::{root}/secret/a.bin",
    "simplecache::file://{root}/secret/a.bin",
    "simplecache::file:{root}/secret/a.bin",
    "filecache::LOCAL://{root}/secret/a.bin",
    "blockcache::simplecache::file://{root}/secret/a.bin",
    "zip://a.bin::file://{root}/secret/a.bin",
    "dir::file://{root}/secret/a.bin",
    "x::file://{root}/secret/a.bin",
    "1::{root}/secret/a.bin",
    "{host}/data/a.bin::file://{root}/secret/a.bin",
    "file://{root}/secret/a.bin::{host}/data/a.bin",
]
ODD = [
    " file://{root}/secret/a.bin",
    "\tfile://{root}/secret/a.bin",
    "fi\nle://{root}/secret/a.bin",
    "file\x00://{root}/secret/a.bin",
    " s3://bucket/secret",
    "{root}/secret/a.bin\x00.nc",
    "https://evil.org\\@127.0.0.1:{port}/secret/a.bin",
    "https://evil.org /secret/a.bin",
]
OPAQUE = [
    "reference::{host}/secret/a.json",
    "reference://v/0::{host}/secret/a.json",
    "generic://{root}/secret/a.bin",
    "generic::{host}/secret/a.bin",
    "dir://../secret/a.bin::{host}/data",
    "simplecache://{root}/secret/a.bin::{host}/data/a.bin",
    "simplecache::reference::{host}/secret/a.json",
    "asyncwrapper::{host}/secret/a.bin",
    "dvc://secret/a.bin",
]
UNKNOWN = ["git://{root}/secret:main@a.bin", "smb://server/secret", "asynclocal://{root}/secret"]
OUTSIDE = [
    "../secret/a.bin",
    "../../secret/a.bin",
    "./data/../../secret/a.bin",
    "{host}/secret/a.bin",
    "{host}/data/../secret/a.bin",
    "{host}/data/%2e%2e/secret/a.bin",
    "{host}/data/.%2E/secret/a.bin",
    "{host}/data/%252e%252e/secret/a.bin",
    "{host}/data/%2525252525252e%2525252525252e/secret/a.bin",
    "{host}/data/..%2fsecret/a.bin",
    "{host}/data/..%5csecret/a.bin",
    "{host}/data/..\\secret/a.bin",
    "{host}/data/..;/secret/a.bin",
    "{host}/secret/%2e%2e/data/a.bin",
    "{host}/secret?/../data/a.bin",
    "{host}/secret#/../data/a.bin",
    "{host}/data-secret/a.bin",
    "{host}/database.secret",
    "{host}@evil.org/data/secret.bin",
    "http://evil.org@127.0.0.1:{port}/data/secret.bin",
    "https://127.0.0.1:{port}/data/secret.bin",
    "http://127.0.0.1/data/secret.bin",
    "http://127.0.0.1:1{port}/data/secret.bin",
    "simplecache::{host}/secret/a.bin",
    "zip://data/a.bin::{host}/secret/a.zip",
    "s3://bucket-evil/secret",
    "s3://bucket/../bucket-evil/secret",
    "s3://bucket/2001-evil/secret",
    "s3://bucket/2001/../secret",
    "S3://bucket/secret",
    "s3://BUCKET/2001/secret",
    "memory://data/secret",
]
ALLOWED = ["{host}/data", "s3://bucket/2001/"]


NAMED = ("v/0", "refs.0.parq of v", "entry '0' of", "v/refs/0.parquet of")


def link(path: Path, target: Path) -> None:
    if not path.is_symlink():
        path.symlink_to(target)


def refused(stage: Stage, writer: str, url: str, match: str, **options: Any) -> Path:
    """A set on the server with this url is refused, and nothing it names is looked at."""
    name = stage.put(writer, url)
    where = f"{stage.host}/sets/{name}"
    with pytest.raises(AccessError, match=match) as caught:
        values(where, **options)
    assert where in str(caught.value)
    assert any(name in chain_of(caught.value) for name in NAMED)
    assert not stage.opened_outside()
    return stage.root / "served" / "sets" / name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("url", LOCAL)
@looped("writer", WRITERS, quick=2)
def test_a_remote_set_does_not_reach_local_files(url: str, writer: str, stage: Stage) -> None:
    refused(stage, writer, url, "local file")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("url", [*LOCAL, *ODD, *OPAQUE, *UNKNOWN, *OUTSIDE])
@looped("writer", WRITERS, quick=2)
def test_references_outside_of_the_allowed_folders_are_refused(
    url: str, writer: str, stage: Stage
) -> None:
    prefixes = [stage.named(prefix) for prefix in ALLOWED]
    refused(stage, writer, url, "it refers to", allow=prefixes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("url", [*ODD, *OPAQUE])
@looped("writer", WRITERS, quick=2)
def test_urls_that_cannot_be_judged_are_refused(url: str, writer: str, stage: Stage) -> None:
    path = refused(stage, writer, url, "neither a url nor a path|cannot be judged")
    with pytest.raises(AccessError, match=r"neither a url nor a path|cannot be judged"):
        values(path)
    assert not stage.opened_outside()


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("url", UNKNOWN)
def test_urls_that_may_be_local_are_refused_behind_a_remote_set(
    url: str, writer: str, stage: Stage
) -> None:
    refused(stage, writer, url, "may be local")


@pytest.mark.parametrize(
    "url",
    [
        "../../secret/a.bin",
        "data/../../../secret/a.bin",
        "link/a.bin",
        "data/link.bin",
        "link/../secret/a.bin",
        "{root}/secret/a.bin",
        "file:{root}/served/sets/data/../../../secret/a.bin",
        "{root}/served/sets/data-secret/a.bin",
        "simplecache::file://{root}/served/sets/link/a.bin",
        "{host}/data/secret.bin",
    ],
)
@looped("writer", WRITERS)
def test_a_local_set_does_not_leave_the_allowed_folders(
    url: str, writer: str, stage: Stage
) -> None:
    sets = stage.root / "served" / "sets"
    link(sets / "link", stage.root / "secret")
    link(sets / "data" / "link.bin", stage.root / "secret" / "a.bin")
    with pytest.raises(AccessError, match="lies under none of"):
        values(sets / stage.put(writer, url), allow=sets / "data")
    assert not stage.opened_outside()


# ---------------------------------------------------------------------- what is permitted

PERMITTED = {
    "beside": ("data/a.bin", "http", None),
    "above": ("../data/a.bin", "http", None),
    "absolute": ("{host}/data/a.bin", "http", None),
    "spelled otherwise": ("HTTP://127.0.0.1:{port}/sets/.././data/a.bin", "http", "{host}/data"),
    "under a prefix": ("../data/a.bin", "http", "{host}/data"),
    "under a prefix with a slash": ("../data/a.bin", "http", "{host}/data/"),
    "the prefix itself": ("../data/a.bin", "http", "{host}/data/a.bin"),
    "a whole host": ("../data/a.bin", "http", "{host}"),
    "a whole scheme": ("../data/a.bin", "http", "http://"),
    "a query": ("../data/a.bin?sig=/../x", "http", "{host}/data"),
    "a chain": ("simplecache::{host}/data/a.bin", "http", "{host}/data"),
    "local because the user says so": ("{root}/secret/a.bin", "http", "{root}/secret"),
    "one local file": ("file://{root}/secret/a.bin", "http", "{root}/secret/a.bin"),
    "local, beside": ("a.bin", "local", None),
    "local, above": ("../../secret/a.bin", "local", None),
    "local, anything remote": ("{host}/data/a.bin", "local", None),
    "local, short": ("file:{root}/secret/a.bin", "local", None),
    "local, a percent sign": ("%2e%2e.bin", "local", "{root}/served/sets"),
    "local, under a prefix": ("../../secret/a.bin", "local", "{root}/secret"),
    "local, a link as prefix": ("{root}/secret/a.bin", "local", "{root}/served/link"),
    "local, through a link": ("../link/a.bin", "local", "{root}/secret"),
    "local, a chain": ("simplecache::{root}/secret/a.bin", "local", "{root}/secret"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", PERMITTED)
@looped("writer", WRITERS, quick=2)
def test_permitted_references_are_read(case: str, writer: str, stage: Stage) -> None:
    url, place, prefix = PERMITTED[case]
    link(stage.root / "served" / "link", stage.root / "secret")
    (stage.root / "served" / "sets" / "%2e%2e.bin").write_bytes(VALUES.tobytes())
    name = stage.put(writer, url)
    where = (
        stage.root / "served" / "sets" / name if place == "local" else f"{stage.host}/sets/{name}"
    )
    allow = prefix and stage.named(prefix)
    np.testing.assert_array_equal(values(where, allow=allow), VALUES)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_function_that_opens_sets_obeys_allow(writer: str, stage: Stage) -> None:
    path = stage.root / "served" / "sets" / stage.put(writer, "../../secret/a.bin")
    doors: list[Callable[..., Any]] = [
        virtualds.open_virtual_dataset,
        lambda url, **options: virtualds.open_virtual_mfdataset(
            [url], combine="nested", concat_dim="x", **options
        ),
        partial(xr.open_dataset, engine="virtual"),
    ]
    for door in doors:
        assert door(path)["v"].values.tolist() == VALUES.tolist()
        with pytest.raises(AccessError, match="lies under none of"):
            door(path, allow=[stage.root / "served"])["v"].values  # noqa: B018
        with pytest.raises(AccessError, match=r"lies under none of \[\]"):
            door(path, allow=[])["v"].values  # noqa: B018


@pytest.mark.parametrize("writer", ["kerchunk-parquet", "zarr-v3, parquet"])
def test_pickles_keep_the_allowed_folders(writer: str, stage: Stage) -> None:
    path = stage.root / "served" / "sets" / stage.put(writer, "../../secret/a.bin")
    ds = virtualds.open_virtual_dataset(path, loadable_variables=[], allow=stage.root / "served")
    with pytest.raises(AccessError, match="lies under none of"):
        pickle.loads(pickle.dumps(ds))["v"].values  # noqa: B018
    assert not stage.opened_outside()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_that_is_put_in_place_later_leads_nowhere(writer: str, stage: Stage) -> None:
    sets = stage.root / "served" / "sets"
    ds = virtualds.open_virtual_dataset(
        sets / stage.put(writer, "data/a.bin"), loadable_variables=[], allow=sets
    )
    ds["v"].data.sources  # noqa: B018
    ds = pickle.loads(pickle.dumps(ds))
    (sets / "data").rename(sets / "other")
    (sets / "data").symlink_to(stage.root / "secret")
    with pytest.raises((AccessError, ReadError), match="lies under none of"):
        ds["v"].values  # noqa: B018


@pytest.mark.parametrize("prefix", ["", "simplecache::s3://bucket", "http://h/get?x=", "s3://b\n"])
def test_an_impossible_prefix_is_refused(prefix: str, stage: Stage) -> None:
    with pytest.raises(ValueError, match="allow"):
        values(stage.root / "served" / "sets" / stage.put("kerchunk-json", "a.bin"), allow=prefix)


@looped(
    "url, prefix, covered",
    [
        ("s3://bucket/a", "s3://bucket", True),
        ("s3://bucket", "s3://bucket/", True),
        ("s3://bucket-evil/a", "s3://bucket", False),
        ("s3://Bucket/a", "s3://bucket", False),
        ("S3://bucket/a", "s3://bucket", True),
        ("s3://bucket/a?b#c", "s3://bucket/a?b#c", True),
        ("https://H.org:443/a", "https://h.org/a", True),
        ("https://h.org/a", "https://h.org:0443/", True),
        ("https://h.org:80/a", "https://h.org", False),
        ("http://h.org:80/a", "http://h.org", True),
        ("https://h.org@evil.org/a", "https://h.org", False),
        ("https://u@h.org/a", "https://h.org", False),
        ("https://h.org.evil.org/a", "https://h.org", False),
        ("https://h.org./a", "https://h.org", False),
        ("https://evil.org/?h=https://h.org/a", "https://h.org", False),
        ("https://h.org/a/./b/../c", "https://h.org/a/c", True),
        ("https://h.org/a//b", "https://h.org/a", True),
        ("https://h.org/../../a", "https://h.org/a", True),
        ("https://h.org/a/..", "https://h.org/a", False),
    ],
)
def test_spellings_of_one_place_are_one(url: str, prefix: str, covered: bool) -> None:
    base = "https://example.org/refs.json"
    found = True
    try:
        AccessPolicy.from_argument(prefix).check(resolve_url(url, base), base)
    except AccessError:
        found = False
    assert found == covered


# ---------------------------------------------------------------------- credentials


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    "spelling", ["{other}/data/a.bin", "http://127.0.0.1:{port}@{rest}/data/a.bin"]
)
def test_headers_do_not_go_to_another_host(
    spelling: str, writer: str, stage: Stage, serve: Any
) -> None:
    other, asked = serve(stage.root / "served")
    rest, port = other.removeprefix("http://"), stage.host.rpartition(":")[2]
    name = stage.put(writer, spelling.format(other=other, rest=rest, port=port))
    options = {"headers": {"X-Secret": "hunter2"}}
    for allow in (None, [stage.host, other, spelling.format(other=other, rest=rest, port=port)]):
        got = values(f"{stage.host}/sets/{name}", storage_options=options, allow=allow)
        np.testing.assert_array_equal(got, VALUES)
    assert all("X-Secret" in headers for path, headers in stage.asked)
    assert asked
    assert not any("X-Secret" in headers for path, headers in asked)


@pytest.mark.parametrize("writer", WRITERS)
def test_headers_go_where_the_set_lies(writer: str, stage: Stage) -> None:
    name = stage.put(writer, "../data/a.bin")
    options = {"headers": {"X-Secret": "hunter2"}}
    values(f"{stage.host}/sets/{name}", storage_options=options)
    assert [h for path, h in stage.asked if path == "/data/a.bin"]
    assert all(headers.get("X-Secret") == "hunter2" for path, headers in stage.asked)


class DemandingHandler(RecordingHandler):
    """Answers nobody who does not send a header."""

    def send_head(self) -> Any:
        if self.headers.get("X-Secret") != "hunter2":
            self.send_error(403)
            return None
        return super().send_head()


@looped("named", [True, False])
@looped("writer", WRITERS)
def test_options_of_a_local_set_reach_servers(writer: str, named: bool, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.bin").write_bytes(VALUES.tobytes())
    handler = partial(DemandingHandler, directory=str(tmp_path / "served"))
    options = {"headers": {"X-Secret": "hunter2"}}
    parser = "-".join(writer.partition(",")[0].split("-")[:2]) if named else None
    with running(handler, asked=[], ranges=[]) as server:
        name = tmp_path / WRITERS[writer](tmp_path / "refs", f"{server.url}/a.bin")
        with pytest.raises((AccessError, ReadError)):
            values(name, parser=parser)
        got = values(name, storage_options=options, parser=parser)
        np.testing.assert_array_equal(got, VALUES)


@pytest.mark.parametrize("writer", WRITERS)
def test_options_of_a_local_set_reach_s3(
    writer: str,
    tmp_path: Path,
    s3_bucket: str,
    s3_server: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.filesystem("s3", **s3_server).pipe(f"{s3_bucket}/a.bin", VALUES.tobytes())
    name = tmp_path / WRITERS[writer](tmp_path / "refs", f"{s3_bucket}/a.bin")
    np.testing.assert_array_equal(values(name, storage_options=s3_server), VALUES)


# ---------------------------------------------------------------------- special files


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


SPECIAL: dict[str, Callable[[Path], Path]] = {
    "pipe": lambda folder: pipe(folder / "pipe"),
    "endless device": lambda folder: Path("/dev/zero"),
    "empty device": lambda folder: Path("/dev/null"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    url = f"file://{SPECIAL[kind](tmp_path)}"
    store = find_store(url)
    for read in (
        lambda: store.describe(url, None),
        lambda: store.read_head(url, None, 8),
        lambda: store.read_all(url, None),
        lambda: store.get_ranges(SourceFile(url), [(0, 8)]),
    ):
        with pytest.raises(StoreError, match="not a regular file"):
            read()


@pytest.mark.sampled(3)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("prefix", ["", "file://", "simplecache::file://"])
def test_a_set_cannot_refer_to_pipes_and_devices(
    prefix: str, kind: str, writer: str, stage: Stage
) -> None:
    special = SPECIAL[kind](stage.root)
    name = stage.put(writer, f"{prefix}{special}")
    with pytest.raises((ReadError, AccessError), match="not a regular file"):
        values(stage.root / "served" / "sets" / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
@pytest.mark.parametrize("parser", [None, "hdf5", "kerchunk-json"])
def test_a_pipe_is_no_source(parser: str | None, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a regular file"):
        virtualds.open_virtual_dataset(pipe(tmp_path / "a.nc"), parser=parser)


# ---------------------------------------------------------------------- JSON


def documents(metadata: str) -> dict[str, str]:
    """The two formats around a piece of JSON."""
    return {
        "refs.json": f'{{"version": 1, "refs": {{{metadata}}}}}',
        "refs.parquet": f'{{"record_size": 1, "metadata": {{{metadata}}}}}',
    }


def open_document(name: str, text: str, folder: Path) -> None:
    path = folder / name
    if name.endswith("parquet"):
        path.mkdir()
        (path / ".zmetadata").write_text(text)
    else:
        path.write_text(text)
    virtualds.open_virtual_dataset(path, parser=f"kerchunk-{name.partition('.')[2]}")


DEEP = 100_000
BOMBS = {
    "lists": '".zgroup": ' + "[" * DEEP + "]" * DEEP,
    "objects": '".zgroup": ' + '{"a":' * DEEP + "1" + "}" * DEEP,
    "lists in text": '".zgroup": "' + "[" * DEEP + '"',
    "groups": f'".zgroup": {{}}, "{"a/" * 5000}.zgroup": {{}}',
}


@pytest.mark.parametrize("name", documents(""))
@pytest.mark.parametrize("kind", BOMBS)
def test_deep_nesting_is_a_fault_of_the_set(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"refs\.(json|parquet): "):
        open_document(name, documents(BOMBS[kind])[name], tmp_path)


REPEATED = {
    "beside each other": '".zgroup": {"zarr_format": 2}, ".zgroup" : {"zarr_format": 2}',
    "inside": '".zattrs": {"a": 1, ".zgroup": 2, ".zgroup": 1}',
    "in text": r'".zattrs": "{\"a\": 1, \".zgroup\": 2, \".zgroup\": 1}"',
    "escaped": r'".zgroup": {"zarr_format": 2}, "\u002ezgroup": {"zarr_format": 2}',
}


@pytest.mark.parametrize("name", documents(""))
@pytest.mark.parametrize("kind", REPEATED)
def test_repeated_keys_are_a_format_error(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"'\.zgroup' occurs 2 times"):
        open_document(name, documents(REPEATED[kind])[name], tmp_path)


# ---------------------------------------------------------------------- code


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("dtype", ["|O", "<i2"])
@pytest.mark.parametrize("where", ["compressor", "filters"])
def test_a_codec_that_runs_code_is_refused(dtype: str, where: str, tmp_path: Path) -> None:
    data = base64.b64encode(pickle.dumps(Bomb(tmp_path / "run"))).decode()
    codec: Any = {"id": "pickle"}
    strings = [{"id": "vlen-utf8"}] if dtype == "|O" else []
    changed = {"dtype": dtype, "filters": strings or None}
    changed |= {"compressor": codec} if where == "compressor" else {"filters": [codec, *strings]}
    refs = METADATA | {"v/.zarray": ZARRAY | changed, "v/0": f"base64:{data}"}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    with pytest.raises(UnsupportedError, match="pickle"):
        values(tmp_path / "refs.json")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("noted", [[1], 5, "abcd", {"size": 1}])
def test_a_fingerprint_that_is_none_is_a_fault_of_the_set(noted: Any, tmp_path: Path) -> None:
    refs = METADATA | {"v/0": ["a.bin", 0, 8]}
    document = {"version": 1, "refs": refs, "virtualds": {"files": {"a.bin": noted}}}
    (tmp_path / "refs.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="write"):
        values(tmp_path / "refs.json")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("https://h.org/sets/refs.json?token=a/b", "https://h.org/data/a.nc"),
        ("s3://bucket/sets/refs.json", "s3://bucket/data/a.nc"),
        ("simplecache::https://h.org/sets/refs.json", "simplecache::https://h.org/data/a.nc"),
        ("file:///sets/refs.json", "file:///data/a.nc"),
    ],
)
def test_neighbours_are_seen_from_the_folder_of_the_set(base: str, expected: str) -> None:
    assert resolve_url("../data/a.nc", base) == expected


# ---------------------------------------------------------------------- this machine

PRIVATE_HOSTS = (
    *("127.0.0.1", "127.1", "0x7f.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "0.0.0.0"),
    *("localhost", "LOCALHOST", "localhost.", "a.localhost", "printer.local", "db.internal"),
    *("10.0.0.1", "192.168.1.1", "172.16.0.9", "169.254.169.254", "100.64.0.1", "224.0.0.1"),
    *("[::1]", "[::]", "[fe80::1]", "[fe80::1%25eth0]", "[fc00::1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]"),
    *("[0:0:0:0:0:0:0:1]", "[0:0:0:0:0:ffff:7f00:1]", "[64:ff9b:0:0:0:0:a00:1]"),
    *("me:secret@127.0.0.1", "example.org@127.0.0.1", "127.0.0.1:8080", "[::1]:80"),
    *("%31%32%37.0.0.1", "１２７.0.0.1", "ⓛocalhost", "", "127。0。0。1", "127｡0.0｡1"),
    *("127%E3%80%820.0.1", "0x7f。1", "①②⑦.0.0.1", "localhost。", "ⅼocalhost", "a.localhoſt"),
    *("192.0.0.192", "[64:ff9b:1:0:0:0:a00:1]", "[0:0:0:0:ffff:0:7f00:1]", "[fec0:0:0:0:0:0:0:1]"),
)


@looped("host", PRIVATE_HOSTS)
@looped("base", ["https://example.org/refs.json", "s3://bucket/refs.json"])
def test_a_public_set_does_not_name_this_machine_or_its_network(base: str, host: str) -> None:
    url = f"http://{host}/a.nc"
    # what has "::" in it is taken for a chain of fsspec's, which ends on this machine
    with pytest.raises(AccessError, match="network" if "::" not in host else "local file"):
        AccessPolicy().check(resolve_url(url, base), base)


REACHING = ("127.0.0.1", "127。0。0。1", "127｡0｡0｡1", "127%E3%80%820.0.1", "１２７.0.0.1", "127.1")
"""Spellings of loopback for which some client asks there."""

UNSENDABLE = (
    *(
        "127.0.0.1%00",
        "local\u00adhost",
        "127.0.0.1\u200b",
        "exam\u200dple.org",
        "\ufeffexample.org",
    ),
    *("example.org%2f", "%2531.example.org", "ex%20ample.org", "☃％.org", "[127.0.0.1]", "[1:2:3]"),
    *("example.org:99999", "example.org:http", "a..org", f"{'a' * 64}.org", f"{'ä' * 64}.org"),
)
"""Hosts that no client can ask, or that clients take for different names."""


def test_no_spelling_of_loopback_makes_a_public_set_ask_there(
    stage: Stage, s3_bucket: str, s3_server: dict[str, Any], tmp_path: Path
) -> None:
    s3 = fsspec.filesystem("s3", **s3_server)
    for host in (*REACHING, *UNSENDABLE):
        port = "" if ":" in host else ":{port}"
        name = as_json(tmp_path / "refs", stage.named(f"http://{host}{port}/secret/a.bin"))
        s3.put(str(tmp_path / name), f"{s3_bucket}/{name}")
        with pytest.raises(AccessError, match=r"network|host is not a name|neither a url"):
            values(f"{s3_bucket}/{name}", storage_options=s3_server)
    assert not stage.asked


@pytest.mark.parametrize("host", UNSENDABLE)
def test_a_host_that_no_client_can_ask_is_refused_in_every_set(host: str, stage: Stage) -> None:
    for writer in WRITERS:
        path = stage.root / writer
        path.mkdir()
        url = stage.named(f"http://{host}/a.bin")
        with pytest.raises(AccessError, match="it refers to"):
            values(path / WRITERS[writer](path / "refs", url))


def test_hosts_are_compared_as_they_are_asked() -> None:
    base = "https://example.org/refs.json"
    for host, asked in (
        ("bücher.example", "xn--bcher-kva.example"),
        ("FAß.example:080", "xn--fa-hia.example"),
        ("me:p%40w@b%C3%BCcher.example:81", "me:p%40w@xn--bcher-kva.example:81"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a_b.example.org.", "a_b.example.org."),
    ):
        found = resolve_url(f"http://{host}/ü%C3%BC.nc", base)
        assert found == f"http://{asked}/ü%C3%BC.nc"
        AccessPolicy.from_argument(f"http://{host}/").check(found, base)
    assert resolve_url("s3://bücher/a.nc", base) == "s3://bücher/a.nc"


# urls with "::" are chains of fsspec's for sets, and addresses for everybody else
HOLD_OTHERS = {
    "[::ffff:127.0.0.1]": True,
    "[::ffff:8.8.8.8]": False,
    "[::127.0.0.1]": True,
    "[64:ff9b::127.0.0.1]": True,
    "[64:ff9b::8.8.8.8]": False,
    "[2002:7f00:1::]": True,
    "[2001:0:808:808:0:0:80ff:fffe]": True,
    "[fe80::1%25eth0]": True,
    "[ff0e::1]": True,
    "[2606:4700::1111]": False,
    "224.0.0.1": True,
    "%31%32%37.0.0.1": True,
    "me@127.0.0.1:80": True,
    "db.internal": True,
}
"""Hosts, and whether they are of this machine or its network: some addresses hold other ones."""


@looped("host", HOLD_OTHERS)
def test_an_address_is_private_if_the_one_that_it_holds_is(host: str) -> None:
    assert has_private_host(f"http://{host}/a.nc") == HOLD_OTHERS[host]
    # a bucket may be called anything
    assert not has_private_host("s3://localhost/a.nc")


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "example.org", "[2606:4700:0:0:0:0:0:1111]", "local.org:81"]
)
def test_a_public_set_names_public_hosts(host: str) -> None:
    base = "https://example.org/refs.json"
    AccessPolicy().check(resolve_url(f"http://{host}/a.nc", base), base)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "localhost"])
def test_a_set_of_the_network_names_the_network_and_others_are_allowed_to(host: str) -> None:
    url = f"http://{host}/a.nc"
    AccessPolicy().check(url, f"http://{host}/refs.json")
    AccessPolicy().check(url, "file:///refs.json")
    AccessPolicy.from_argument(f"http://{host}/").check(url, "https://example.org/refs.json")


SIGNED = (
    "https://example.org/a.nc?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2&n=1",
    "https://example.org/a.nc?sv=2024&sig=hunter2",
    "https://example.org/a.nc?Expires=1&Signature=hunter2&Key-Pair-Id=x",
    "https://example.org/a.nc?token=hunter2",
    "https://example.org/a.nc?a=1&access_token=hunter2",
    "https://example.org/a.nc?api_key=hunter2",
)


@pytest.mark.parametrize("url", SIGNED)
def test_signatures_are_not_shown(url: str) -> None:
    error = FormatError(f"{url}: it is damaged; fetch it again")
    error.add_note(f"variable 'v' of {url}")
    shown = (str(error), repr(error), *error.__notes__, repr(SourceFile(url, 8)))
    shown += (str(StoreError(f"no answer of {url}")),)
    assert not any("hunter2" in text for text in shown)
    assert all("example.org/a.nc" in text for text in shown)
    assert SourceFile(url).url == url
