"""A listing has the files of a pattern with their states, or it is an error."""

from __future__ import annotations

import os
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from counting_server import counting_server
from range_server import running

from virtualds.source_file import NO_NUMBER, StorageOptions, normalise_url
from virtualds.stores.listing import fetch_state, find_matching_files, list_states

FILES = {
    "a.nc": b"1",
    "b.nc": b"22",
    "c.txt": b"",
    "one/d.nc": b"333",
    "one/deep/e.nc": b"4444",
    "two/d.nc": b"55555",
}
PATTERNS = {
    "*.nc": ["a.nc", "b.nc"],
    "[ab].nc": ["a.nc", "b.nc"],
    "?.nc": ["a.nc", "b.nc"],
    "*/d.nc": ["one/d.nc", "two/d.nc"],
    "o*/d*": ["one/d.nc"],
    "one/*": ["one/d.nc"],
    "**/e.nc": ["one/deep/e.nc"],
    "one/**/*.nc": ["one/d.nc", "one/deep/e.nc"],
    "**/*.nc": ["a.nc", "b.nc", "one/d.nc", "one/deep/e.nc", "two/d.nc"],
}
OF_WEB_PAGES = [pattern for pattern in PATTERNS if not set("?[") & set(pattern)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / ".hidden.nc").touch()
    (tmp_path / "dangling.nc").symlink_to("nowhere")
    return tmp_path


def sizes(root: str, pattern: str, options: Any = None) -> dict[str, int]:
    """The sizes of listed files, by path below a folder."""
    found = list_states(f"{root}/{pattern}", StorageOptions.of(options))
    return {
        url.removeprefix(f"{root}/"): int(n) for url, n in zip(found.urls, found.sizes, strict=True)
    }


@pytest.mark.parametrize("pattern", PATTERNS)
def test_local_files_are_listed_with_size_and_time(pattern: str, folder: Path) -> None:
    root = normalise_url(folder)
    assert sizes(root, pattern) == {name: len(FILES[name]) for name in PATTERNS[pattern]}
    found = list_states(f"{root}/{pattern}", None)
    states = [os.stat(folder / name) for name in PATTERNS[pattern]]
    assert found.mtimes.tolist() == [state.st_mtime_ns for state in states]
    assert np.allclose(found.modified, [state.st_mtime for state in states])


def test_a_path_with_a_tilde_or_relative_to_the_working_folder_is_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "one")
    monkeypatch.setenv("HOME", str(folder))
    for pattern in ("../?.nc", "~/?.nc"):
        assert list_states(pattern, None).urls.tolist() == [
            f"{normalise_url(folder)}/{name}" for name in ("a.nc", "b.nc")
        ]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_store_in_memory_lists_what_its_own_glob_finds(pattern: str) -> None:
    fsspec.filesystem("memory").pipe({f"/listing/{name}": data for name, data in FILES.items()})
    root = "memory://listing"
    found = list_states(f"{root}/{pattern}", None)
    # as open_virtual_mfdataset names them, which takes folders too
    assert set(found.urls) <= set(find_matching_files([f"{root}/{pattern}"]))
    assert found.urls.tolist() == [f"memory:///listing/{name}" for name in PATTERNS[pattern]]
    assert found.sizes.tolist() == [len(FILES[name]) for name in PATTERNS[pattern]]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_bucket_is_listed_with_sizes_etags_and_times(
    pattern: str, s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    for name, data in FILES.items():
        filesystem.pipe_file(f"{s3_bucket}/{name}", data)
    assert sizes(s3_bucket, pattern, s3_server) == {n: len(FILES[n]) for n in PATTERNS[pattern]}
    found = list_states(f"{s3_bucket}/{pattern}", StorageOptions.of(s3_server))
    for url, etag in zip(found.urls, found.etags, strict=True):
        # the same as what is noted of a file that is scanned
        assert etag == fetch_state(url, StorageOptions.of(s3_server)).etag != ""
    assert (np.abs(found.modified - time.time()) < 3600).all()


@pytest.mark.parametrize("pattern", OF_WEB_PAGES)
def test_pages_of_a_server_are_listed_by_name_alone(pattern: str, folder: Path) -> None:
    for name in ("dangling.nc", ".hidden.nc"):
        (folder / name).unlink()
    with counting_server(folder) as (url, counts):
        found = sizes(url, pattern)
        assert found == dict.fromkeys(PATTERNS[pattern], NO_NUMBER)
        assert not any(method == "HEAD" for method, _, _ in counts.requests)
        state = fetch_state(f"{url}/b.nc", None)
    # Last-Modified has whole seconds
    assert state.size == 2
    assert abs(state.modified - (folder / "b.nc").stat().st_mtime) <= 1


def test_nothing_listed_is_an_error(folder: Path, s3_bucket: str, s3_server: Any) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/empty/a.txt", b"")
    for pattern in (
        f"{folder}/none*",
        f"{folder}/none/*.nc",
        f"{folder}/t*",
        "memory://empty/*.nc",
    ):
        with pytest.raises(FileNotFoundError, match="no file matches"):
            list_states(pattern, None)
    for pattern in (f"{s3_bucket}/*.nc", "s3://no-such-bucket/*.nc"):
        with pytest.raises(FileNotFoundError, match="no file matches"):
            list_states(pattern, StorageOptions.of(s3_server))


class GuardedHandler(SimpleHTTPRequestHandler):
    """Files of a folder, except those in ``two``, which nobody may list."""

    def do_GET(self) -> None:
        if self.path.startswith("/two"):
            self.send_error(self.server.status)  # type: ignore[attr-defined]
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(("status", "error"), [(403, PermissionError), (501, OSError)])
def test_a_folder_that_cannot_be_listed_is_no_empty_folder(
    status: int, error: type[Exception], folder: Path
) -> None:
    (folder / "dangling.nc").unlink()
    handler = partial(GuardedHandler, directory=str(folder))
    with (
        running(handler, status=status) as server,
        pytest.raises(error, match="two") as caught,
    ):
        list_states(f"{server.url}/*/d.nc", None)
    # whoever asks whether something is gone must not take a refusal for that
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_local_folder_that_cannot_be_listed_is_no_empty_folder(folder: Path) -> None:
    # a link to itself, since permissions do not stop every user
    (folder / "three").symlink_to("three")
    assert find_matching_files([f"{folder}/*/d.nc"])
    with pytest.raises(OSError, match="three"):
        list_states(f"{folder}/three/*.nc", None)


def test_an_object_with_the_name_of_its_folder_is_no_file(
    s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    filesystem.call_s3("put_object", Bucket=s3_bucket[5:], Key="data/", Body=b"")
    filesystem.pipe_file(f"{s3_bucket}/data/a", b"1")
    assert sizes(s3_bucket, "data/*", s3_server) == {"data/a": 1}
