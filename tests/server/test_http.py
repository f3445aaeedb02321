"""What the server says over HTTP: ranges, tags, errors, versions, and nothing that is secret."""

from __future__ import annotations

import http.client
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h5py
import httpx
import numpy as np
import pytest
import xarray as xr
from gauge import Gauge
from products import looped
from range_server import Fault, faulty_server
from serving import NO_TLS, get, make_client, request, running, serving

import virtualds
from virtualds_server import Limits, ServedData, create_app
from virtualds_server.app import bind_socket, make_uvicorn_server
from virtualds_server.versions import find_set_state

zarr = pytest.importorskip("zarr", minversion="3.0")

VALUES = np.arange(24, dtype="<f4").reshape(6, 4)
CHUNK = VALUES[:2].tobytes()


def make_file(path: Path, values: np.ndarray[Any, Any] = VALUES, **how: Any) -> Path:
    """Write ``t`` in chunks of two rows; by default they are stored as they are."""
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=values, chunks=(2, 4), **how)
    return path


def make_set(folder: Path, **how: Any) -> Path:
    source = make_file(folder / "source.h5", **how)
    target = folder / "refs.zarr"
    virtualds.open_virtual_dataset(source).virtual.to_manifest(target, mode="w")
    return target


def ask(url: str, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Ask for a path as it is written, which clients would otherwise clean."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        connection.endheaders()
        found = connection.getresponse()
        return found.status, found.read()
    finally:
        connection.close()


# ---------------------------------------------------------------------- resources


def test_chunks_are_the_bytes_of_the_source_where_readers_know_them(tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url:
        assert get(f"{url}zarr/t/c/0/0").content == CHUNK
        assert get(f"{url}zarr2/t/0.0").content == CHUNK


def test_shuffled_chunks_are_passed_on_in_zarr_v2_and_decoded_in_v3(tmp_path: Path) -> None:
    target = make_set(tmp_path, compression=4, shuffle=True)
    with h5py.File(tmp_path / "source.h5") as file:
        stored = file["t"].id.read_direct_chunk((0, 0))[1]
    with serving(target) as url:
        assert get(f"{url}zarr2/t/0.0").content == stored
        names = [codec["name"] for codec in get(f"{url}zarr/t/zarr.json").json()["codecs"]]
        assert names == ["bytes", "zstd"]


def test_metadata_are_consolidated_in_both_versions(tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url:
        root = get(f"{url}zarr/zarr.json")
        assert root.headers["content-type"] == "application/json"
        assert list(root.json()["consolidated_metadata"]["metadata"]) == ["t"]
        old = get(f"{url}zarr2/.zmetadata").json()
        assert set(old["metadata"]) == {".zgroup", ".zattrs", "t/.zarray", "t/.zattrs"}
        assert old["metadata"]["t/.zarray"] == get(f"{url}zarr2/t/.zarray").json()


def test_a_tag_is_the_same_for_equal_bytes_and_spares_the_transfer(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    with serving(target) as url, serving(target) as other:
        found = get(f"{url}zarr/t/c/0/0")
        tag = found.headers["etag"]
        assert re.fullmatch(r'"[0-9a-f]{32}"', tag)
        assert get(f"{other}zarr/t/c/0/0").headers["etag"] == tag
        assert get(f"{url}zarr/t/c/1/0").headers["etag"] != tag
        for condition in (tag, f'"x", W/{tag}', "*"):
            again = get(f"{url}zarr/t/c/0/0", headers={"If-None-Match": condition})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        changed = get(f"{url}zarr/t/c/0/0", headers={"If-None-Match": '"x"'})
        assert changed.content == CHUNK


RANGES = {
    "bytes=0-3": (206, CHUNK[:4], "bytes 0-3/32"),
    "bytes=30-": (206, CHUNK[30:], "bytes 30-31/32"),
    "bytes=30-99": (206, CHUNK[30:], "bytes 30-31/32"),
    "bytes=-5": (206, CHUNK[-5:], "bytes 27-31/32"),
    "bytes=-99": (206, CHUNK, "bytes 0-31/32"),
    "bytes=32-": (416, b"", "bytes */32"),
    "bytes=99-120": (416, b"", "bytes */32"),
    "bytes=-0": (416, b"", "bytes */32"),
    f"bytes={'9' * 5000}-": (416, b"", "bytes */32"),
    f"bytes=0-{'9' * 5000}": (206, CHUNK, "bytes 0-31/32"),
    "bytes=0-1,4-5": (200, CHUNK, None),
    "bytes=3-2": (200, CHUNK, None),
    "bytes=-": (200, CHUNK, None),
    "lines=0-1": (200, CHUNK, None),
    "bytes=٣-": (200, CHUNK, None),
}


def test_single_ranges_are_sent(tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url, make_client(base_url=url) as client:
        tag = client.get("zarr/t/c/0/0").headers["etag"]
        for asked, (status, content, said) in RANGES.items():
            found = client.get("zarr/t/c/0/0", headers={"Range": asked.encode()})
            assert (found.status_code, found.content) == (status, content), asked
            assert found.headers.get("content-range") == said, asked
            assert found.headers["content-length"] == str(len(content)), asked
        of_this = client.get("zarr/t/c/0/0", headers={"Range": "bytes=0-3", "If-Range": tag})
        assert of_this.status_code == 206
        of_another = client.get("zarr/t/c/0/0", headers={"Range": "bytes=0-3", "If-Range": '"x"'})
        assert (of_another.status_code, of_another.content) == (200, CHUNK)


@looped("path", ["zarr/zarr.json", "zarr/t/c/0/0", "zarr/t/c/9/9", "zarr2/.zmetadata", ""])
def test_head_says_what_get_says(path: str, tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url, make_client(base_url=url) as client:
        whole, head = client.get(path), client.head(path)
        assert head.status_code == whole.status_code
        assert head.content == b"" and whole.content
        told = [{k: v for k, v in r.headers.items() if k != "date"} for r in (whole, head)]
        assert told[0] == told[1]
        part = client.head(path, headers={"Range": "bytes=0-3"})
        assert part.status_code in (206, 200, 404)


def test_pages_of_any_origin_may_read(tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url:
        origin = {"Origin": "https://example.org"}
        for path, status in (("zarr/t/c/0/0", 200), ("zarr/t/c/9/9", 404), ("health", 200)):
            found = get(url + path, headers=origin)
            assert found.status_code == status
            assert found.headers["access-control-allow-origin"] == "*"
            exposed = found.headers["access-control-expose-headers"].lower()
            assert {"etag", "content-range"} <= {one.strip() for one in exposed.split(",")}
        asks = {**origin, "Access-Control-Request-Method": "GET"}
        asks["Access-Control-Request-Headers"] = "range"
        found = request("OPTIONS", f"{url}zarr/t/c/0/0", headers=asks)
        assert found.status_code == 204
        assert found.headers["access-control-allow-methods"] == "GET, HEAD"
        assert "range" in found.headers["access-control-allow-headers"].lower()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(method: str, tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url:
        for path in ("zarr/t/c/0/0", "zarr2/.zgroup", "health", ""):
            found = request(method, url + path)
            assert found.status_code == 405
            assert found.headers["allow"] == "GET, HEAD, OPTIONS"
        assert get(f"{url}zarr/t/c/0/0").content == CHUNK


NOWHERE = (
    *("/zarr/t/c/3/0", "/zarr/t/c/0", "/zarr/t/c/00/0", "/zarr/t/c/-1/0", "/zarr/u/zarr.json"),
    *("/zarr/", "/zarr2/", "/zarr/t", "/zarr2/t/3.0", "/zarr2/t/0/0", "/zarr2/zarr.json"),
    *("/zarr/.zmetadata", "/nowhere", "/zarr3/zarr.json", "//zarr/zarr.json"),
    *("/zarr/../zarr.json", "/zarr/../../source.h5", "/zarr/%2e%2e/source.h5"),
    *("/zarr/..%2fsource.h5", "/zarr/..%5csource.h5", "/zarr/%2fetc/passwd", "/zarr//etc/passwd"),
    *("/zarr/t/../zarr.json", "/zarr/t/c/../c/0/0", "/zarr/t//zarr.json", "/zarr/zarr.json%00"),
    *("/zarr/file:///etc/passwd", "/zarr2/../zarr/zarr.json", "/source.h5", "/zarr/%ff/zarr.json"),
    *("/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/zarr/__virtualds__", "/zarr/t/c/%D9%A3/0"),
)


def test_what_does_not_exist_is_404_and_no_way_leads_out_of_the_hierarchy(tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url:
        for path in NOWHERE:
            status, content = ask(url, path)
            assert status == 404, (path, status)
            assert len(content) < 80 and b"root:" not in content
        assert ask(url, "/zarr/zarr.json")[0] == 200


def test_a_missing_chunk_is_404_and_reads_as_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", (4,), "<f4", chunks=(2,), fillvalue=7.5)[:2] = [1, 2]
    with serving(tmp_path / "a.h5") as url:
        assert get(f"{url}zarr/t/c/0").status_code == 200
        assert get(f"{url}zarr/t/c/1").status_code == 404
        found = zarr.open_array(f"{url}zarr/t", mode="r")
        assert np.asarray(found[...]).tolist() == [1, 2, 7.5, 7.5]


def test_health_says_what_is_served(tmp_path: Path) -> None:
    with serving(make_set(tmp_path)) as url:
        health = get(f"{url}health")
        assert health.json() == {
            "status": "ok",
            "version": 1,
            "virtualds": virtualds.__version__,
        }


# ---------------------------------------------------------------------- broken sources


def damage_gone(source: Path) -> None:
    source.unlink()


def damage_cut(source: Path) -> None:
    os.truncate(source, 100)


def damage_changed(source: Path) -> None:
    make_file(source, VALUES + 1)
    os.utime(source, (1, 1))


DAMAGES = {"gone": damage_gone, "cut": damage_cut, "changed": damage_changed}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_source_is_502_and_never_fill(damage: str, tmp_path: Path) -> None:
    for number, how in enumerate(({}, {"compression": 4, "shuffle": True})):
        folder = tmp_path / str(number)
        folder.mkdir()
        target = make_set(folder, **how)
        with serving(target) as url:
            DAMAGES[damage](folder / "source.h5")
            for key in ("zarr/t/c/0/0", "zarr2/t/0.0"):
                for method in ("GET", "HEAD"):
                    found = request(method, url + key)
                    assert found.status_code == 502, (key, method, found.text)
                    assert found.headers["cache-control"] == "no-store"
                said = get(url + key).text
                asked = key.partition("/")[2]
                assert (
                    said == f"ReadError: {asked} cannot be read; the log of the server says why\n"
                )
            for version in ("zarr", "zarr2"):
                array = zarr.open_group(url + version, mode="r")["t"]
                with pytest.raises(Exception, match="502"):
                    array[...]


def test_gdal_which_fills_after_every_error_gets_what_is_no_chunk(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    with serving(target) as url, make_client(headers={"User-Agent": "GDAL/3.11"}) as gdal:
        assert gdal.get(f"{url}zarr/t/c/0/0").content == CHUNK
        (tmp_path / "source.h5").unlink()
        for key in ("zarr/t/c/1/0", "zarr2/t/1.0"):
            found = gdal.get(url + key)
            assert (found.status_code, found.content) == (200, b"!")
            assert found.headers["cache-control"] == "no-store" and "etag" not in found.headers
            assert get(url + key).status_code == 502
        # a missing chunk it may fill, and missing metadata are an error for it, too
        assert gdal.get(f"{url}zarr/t/c/9/9").status_code == 404
    with serving(tmp_path / "gone.zarr") as url:
        assert gdal_status(url) == 502


@pytest.mark.parametrize("error", [TypeError, KeyError, MemoryError, AssertionError, OSError])
def test_gdal_gets_what_is_no_chunk_after_every_error(
    error: type[Exception], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(make_set(tmp_path))
    store = app.state.server.tracker.get().open_store(3)

    def fail(key: str) -> bytes | None:
        raise error("/archive/odd?code=hunter2&token=hunter2")

    store.read = fail
    with running(app) as url:
        found = get(f"{url}zarr/t/c/0/0", headers={"User-Agent": "GDAL/3.11"})
        assert (found.status_code, found.content) == (200, b"!")
        other = get(f"{url}zarr/t/c/0/0")
        assert other.status_code == (502 if error is OSError else 500)
        assert other.text.startswith(f"{error.__name__}: t/c/0/0 cannot be read")
        assert other.headers["access-control-allow-origin"] == "*"
        assert "archive" not in other.text and "hunter2" not in other.text
        assert "/archive/odd" in caplog.text and "token=hunter2" not in caplog.text
        # where it happened, of what is a mistake
        assert ("test_http.py" in caplog.messages[-1]) == (error is not OSError)


def test_opening_that_fails_in_any_way_is_an_error_each_time() -> None:
    def fail() -> xr.Dataset:
        raise TypeError("/archive/a.nc")

    with serving(ServedData("odd", fail)) as url:
        for _ in range(2):
            assert get(f"{url}zarr/zarr.json").status_code == 500
            health = get(f"{url}health")
            assert health.status_code == 503 and "archive" not in health.text
            assert health.json()["reason"].startswith("TypeError: it cannot be opened")


def gdal_status(url: str) -> int:
    return get(f"{url}zarr/zarr.json", headers={"User-Agent": "GDAL/3.11"}).status_code


@pytest.mark.parametrize("shape", [(), (3,)])
def test_no_chunk_is_a_single_byte(shape: tuple[int, ...], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("t", shape, "u1", chunks=(1,) if shape else None)
        made[...] = 7
    with serving(tmp_path / "a.h5") as url:
        for version, key in (("zarr", "c/0" if shape else "c"), ("zarr2", "0")):
            assert len(get(f"{url}{version}/t/{key}").content) > 1
            found = zarr.open_array(f"{url}{version}/t", mode="r")
            assert np.asarray(found[...]).tolist() == np.full(shape, 7).tolist()


def test_a_broken_source_that_is_mended_serves_again(tmp_path: Path) -> None:
    target, source = make_set(tmp_path), tmp_path / "source.h5"
    with serving(target) as url:
        source.rename(tmp_path / "away")
        assert get(f"{url}zarr/t/c/0/0").status_code == 502
        (tmp_path / "away").rename(source)
        assert get(f"{url}zarr/t/c/0/0").content == CHUNK


def test_a_set_that_is_gone_is_502_and_serves_when_it_is_back(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    with serving(target, limits=Limits(check_every=0)) as url:
        assert get(f"{url}zarr/zarr.json").status_code == 200
        target.rename(tmp_path / "away")
        for path in ("zarr/zarr.json", "zarr2/.zmetadata", "zarr/t/c/0/0"):
            assert get(url + path).status_code == 502
        health = get(f"{url}health")
        assert (health.status_code, health.json()["status"]) == (503, "failing")
        assert str(tmp_path) not in health.text
        (tmp_path / "away").rename(target)
        assert get(f"{url}zarr/t/c/0/0").content == CHUNK


def test_an_array_without_a_form_in_zarr_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.arange(3)
        file["odd"] = np.zeros(3, [("part", "<f4", (2,))])
    with serving(tmp_path / "a.h5") as url:
        found = get(f"{url}zarr/zarr.json")
        assert found.status_code == 501
        assert "'odd'" in found.text and "drop_variables" in found.text
    with serving(tmp_path / "a.h5", drop_variables="odd") as url:
        assert list(xr.open_zarr(f"{url}zarr", chunks=None)) == ["good"]


def test_a_slow_source_is_504_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    make_file(tmp_path / "source.h5")
    with faulty_server(tmp_path) as source:
        target = tmp_path / "refs.zarr"
        vds = virtualds.open_virtual_dataset(f"{source.url}/source.h5", loadable_variables=[])
        vds.virtual.to_manifest(target)
        with serving(target, limits=Limits(timeout=0.5)) as url:
            assert get(f"{url}zarr/zarr.json").status_code == 200
            source.always = Fault("slow", seconds=2)
            begun = time.monotonic()
            with ThreadPoolExecutor() as pool:
                slow = pool.submit(get, f"{url}zarr/t/c/0/0")
                time.sleep(0.1)
                assert get(f"{url}zarr/t/zarr.json").status_code == 200
                assert slow.result().status_code == 504
            assert time.monotonic() - begun < 2
            source.always = None


def test_too_many_requests_that_wait_are_503(tmp_path: Path) -> None:
    held = threading.Event()
    made = xr.Dataset({"t": ("x", np.arange(3))})

    def open_late() -> xr.Dataset:
        held.wait(60)
        return made

    served = ServedData("late", open_late)
    with serving(served, limits=Limits(threads=1, waiting=2)) as url:
        with ThreadPoolExecutor(20) as pool:
            asked = [pool.submit(get, f"{url}zarr/zarr.json", timeout=60) for _ in range(12)]
            until = time.monotonic() + 30
            while sum(one.done() for one in asked) < 9 and time.monotonic() < until:
                time.sleep(0.01)
            held.set()
            answers = [one.result() for one in asked]
        assert sorted(one.status_code for one in answers) == [200] * 3 + [503] * 9
        assert {one.headers.get("retry-after") for one in answers} == {"1", None}
        assert get(f"{url}zarr/zarr.json").status_code == 200


# ---------------------------------------------------------------------- secrets and access


def test_no_answer_has_a_secret_of_the_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_file(tmp_path / "source.h5", compression=4)
    secret = "hunter2"
    with faulty_server(tmp_path) as source:
        signed = f"{source.url}/source.h5?X-Amz-Signature={secret}&token={secret}&other={secret}"
        with serving(signed, limits=Limits(check_every=0)) as url:
            paths = ("", "health", "zarr/zarr.json", "zarr/t/c/0/0", "zarr2/t/0.0", "zarr/x")
            answers = [get(url + path) for path in paths]
            assert [one.status_code for one in answers] == [200] * 5 + [404]
            source.always = Fault("status", 403)
            with caplog.at_level(logging.INFO):
                broken = [get(url + path) for path in (*paths, "zarr2/t/1.0")]
            assert [one.status_code for one in broken] == [200, 503, 502, 502, 502, 502, 502]
            for one in answers + broken:
                assert secret not in one.text + repr(one.headers)
            assert broken[-1].text.startswith("AccessError: t/1.0 cannot be read")
        assert f"token={secret}" not in caplog.text and f"Signature={secret}" not in caplog.text


NAMES = {
    "https://me:pw@example.org": "example.org",
    "https://me:pw@example.org/?token=abc": "example.org",
    "https://me:pw@example.org/a.nc?code=abc": "a.nc",
    "https://example.org/a@b.nc;token=abc": "a@b.nc;token=...",
    "zip://a.nc::https://me:pw@example.org/x/a.zip?code=abc": "a.zip",
    "s3://archive": "archive",
    "/home/me/a?.nc": "a?.nc",
}


@pytest.mark.parametrize("url", NAMES)
def test_the_name_of_what_is_served_has_no_folder_and_no_secret(url: str) -> None:
    assert ServedData.of(url, {}).name == NAMES[url]
    assert ServedData.of_files([url], lambda: xr.Dataset(), None).name == NAMES[url]


LEAKS = ("o'brien/x/a.nc", "00:00/run/", "'/archive'", "https://h/a.nc?x=1;code=SECRET")


@pytest.mark.parametrize("text", LEAKS)
def test_answers_have_nothing_of_the_message_of_an_error(text: str) -> None:
    def fail() -> xr.Dataset:
        raise OSError(f"/home/{text}: it is gone")

    with serving(ServedData("odd", fail)) as url:
        for path in ("health", "zarr/zarr.json", "zarr2/t/0.0"):
            found = get(url + path)
            assert found.status_code in (502, 503)
            assert not re.search("home|brien|run|archive|SECRET|gone", found.text)


def test_on_error_is_no_name_of_a_variable_or_a_group(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raise/t"] = VALUES
    for served, expected in ((("group", "raise"), "t"), (("drop_variables", "raise"), None)):
        app = create_app(tmp_path / "a.h5", **dict([served]))
        assert app.state.server.tracker.served.options == dict([served]), expected
    plain = create_app(tmp_path / "a.h5", on_error="raise").state.server.tracker.served
    assert plain.options == {}


def test_only_allowed_files_are_read(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    with serving(target, allow=str(tmp_path / "elsewhere")) as url:
        found = get(f"{url}zarr/zarr.json")
        assert found.status_code == 502
        assert str(tmp_path) not in found.text
    with serving(target, allow=str(tmp_path)) as url:
        assert get(f"{url}zarr/t/c/0/0").content == CHUNK


# ---------------------------------------------------------------------- versions


def test_a_new_version_of_a_set_serves_at_once(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    other = make_file(tmp_path / "other.h5", VALUES[:2] * 2)
    with serving(target) as url:
        assert xr.open_zarr(f"{url}zarr", chunks=None)["t"].shape == (6, 4)
        added = virtualds.open_virtual_dataset(other)
        added.virtual.to_manifest(target, append_dim=added["t"].dims[0])
        for version in ("zarr", "zarr2"):
            found = xr.open_zarr(url + version, chunks=None)["t"].values
            assert found.tolist() == np.concatenate([VALUES, VALUES[:2] * 2]).tolist()
        assert get(f"{url}health").json()["version"] == 2


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_a_set_that_is_replaced_is_followed_in_each_format(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"refs{suffix}"
    for number in range(3):
        make_file(tmp_path / f"{number}.h5", VALUES + number)
        vds = virtualds.open_virtual_dataset(tmp_path / f"{number}.h5")
        vds.virtual.to_manifest(target, mode="w")
        if number == 0:
            context = serving(target)
            url = context.__enter__()
        found = xr.open_zarr(f"{url}zarr", chunks=None)["t"].values
        assert found.tolist() == (VALUES + number).tolist()
    context.__exit__(None, None, None)


def test_chunks_of_the_version_before_are_not_served_for_long(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    with serving(target, limits=Limits(check_every=0)) as url:
        before = get(f"{url}zarr/t/c/0/0")
        other = make_file(tmp_path / "other.h5", VALUES + 1)
        virtualds.open_virtual_dataset(other).virtual.to_manifest(target, mode="w")
        after = get(f"{url}zarr/t/c/0/0", headers={"If-None-Match": before.headers["etag"]})
        assert (after.status_code, after.content) == (200, (VALUES[:2] + 1).tobytes())


def test_files_that_appear_belong_to_a_pattern(tmp_path: Path) -> None:
    from virtualds_server.versions import find_files_state

    pattern = str(tmp_path / "*.nc")
    for day in range(2):
        made = xr.Dataset({"t": ("time", [float(day)])}, {"time": [day]})
        made.to_netcdf(tmp_path / f"{day}.nc", engine="netcdf4")
        if day == 0:
            before = find_files_state([pattern], None)
            served = ServedData.of_files(
                [pattern], lambda: virtualds.open_virtual_mfdataset(pattern), None
            )
            context = serving(served, limits=Limits(check_every=0))
            url = context.__enter__()
        found = xr.open_zarr(f"{url}zarr", chunks=None)["t"].values
        assert found.tolist() == [0.0, 1.0][: day + 1]
    context.__exit__(None, None, None)
    assert find_files_state([pattern], None) != before


def test_the_version_before_serves_while_files_are_combined_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("virtualds_server.versions.VERSION_TIMEOUT", 0.2)
    held, opened, state = threading.Event(), [], 0

    def open_late() -> xr.Dataset:
        opened.append(state)
        if state:
            held.wait(60)
        return xr.Dataset({"t": ("x", np.arange(3) + state)})

    served = ServedData("late", open_late, find_state=lambda: state)
    limits = Limits(threads=1, timeout=20, check_every=0)
    with serving(served, limits=limits) as url, make_client(base_url=url, timeout=60) as client:
        before = client.get("zarr/t/c/0").content
        state = 1
        begun = time.monotonic()
        with ThreadPoolExecutor(12) as pool:
            asked = list(pool.map(lambda _: get(f"{url}zarr/zarr.json"), range(12)))
        assert {one.status_code for one in asked} == {200}
        assert client.get("zarr/t/c/0").content == before
        assert client.get("health").json()["version"] == 1
        assert time.monotonic() - begun < 10
        held.set()
        until = time.monotonic() + 30
        while client.get("health").json()["version"] == 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert client.get("zarr/t/c/0").content != before
        assert opened == [0, 1]


@pytest.mark.parametrize("suffix", [".zarr", ".parquet", ""])
def test_a_remote_set_is_followed_where_the_server_answers_for_folders(
    suffix: str, tmp_path: Path
) -> None:
    name = f"refs{suffix}"
    written = tmp_path / "refs.zarr" if not suffix else tmp_path / name
    states = []
    with faulty_server(tmp_path) as source:
        for number in range(2):
            make_file(tmp_path / "source.h5", VALUES + number)
            vds = virtualds.open_virtual_dataset(tmp_path / "source.h5")
            vds.attrs["number"] = "n" * (number + 1)
            vds.virtual.to_manifest(written, mode="w")
            if not suffix:
                written.rename(tmp_path / name)
            states.append(find_set_state(f"{source.url}/{name}", None))
            if number == 0 and not suffix:
                (tmp_path / name).rename(written)
    assert states[0] != states[1] and None not in states


def test_a_refusal_of_a_marker_or_a_folder_is_no_error(tmp_path: Path) -> None:
    """As of S3, which says 403 of what is missing, without the right to list."""
    (tmp_path / "refs.icechunk").mkdir()
    (tmp_path / "refs.icechunk" / "repo").write_bytes(b"abc")
    (tmp_path / "a.nc").write_bytes(b"abc")
    with faulty_server(tmp_path) as source:
        source.faults.extend(Fault("status", 403) for _ in range(4))
        found = find_set_state(f"{source.url}/refs.icechunk", None)
        assert found is not None and "refs.icechunk/repo" in str(found)
        assert not source.faults
        source.requests.clear()
        assert "a.nc" in str(find_set_state(f"{source.url}/a.nc", None))
        assert len(source.requests) == 1
        source.always = Fault("status", 403)
        source.requests.clear()
        assert find_set_state(f"{source.url}/a.nc?sig=abc", None) is None
        assert {path for _, path, _ in source.requests} == {"/a.nc?sig=abc"}
        assert find_set_state(f"{source.url}/refs.icechunk", None) is None


# ---------------------------------------------------------------------- many clients


def ask_many(folder: Path, clients: int) -> None:
    values = np.arange(400 * 4, dtype="<f4").reshape(400, 4)
    target = make_set(folder, values=values, compression=4, shuffle=True)
    expected = [values[2 * i : 2 * i + 2] for i in range(200)]
    with serving(target, limits=Limits(cache_bytes=2**14)) as url:
        limits = httpx.Limits(max_connections=clients)

        async def ask_all() -> list[httpx.Response]:
            import asyncio

            async with httpx.AsyncClient(
                verify=NO_TLS, base_url=url, limits=limits, timeout=300
            ) as client:
                return await asyncio.gather(
                    *(client.get(f"zarr/t/c/{i % 200}/0") for i in range(clients))
                )

        import asyncio

        import numcodecs

        answers = asyncio.run(ask_all())
        assert {one.status_code for one in answers} == {200}
        for i, one in enumerate(answers):
            assert bytes(numcodecs.Zstd().decode(one.content)) == expected[i % 200].tobytes()


@pytest.mark.full
def test_200_requests_at_once_all_get_their_chunk(tmp_path: Path) -> None:
    ask_many(tmp_path, 200)


def test_no_more_chunks_are_decoded_at_once_than_allowed(tmp_path: Path) -> None:
    gauge = Gauge()
    app = create_app(make_set(tmp_path, values=np.zeros((80, 4), "f4")), limits=Limits(threads=3))
    store = app.state.server.tracker.get().open_store(3)
    read = store.read

    def watch(key: str) -> bytes | None:
        with gauge.inside():
            time.sleep(0.02)
        found: bytes | None = read(key)
        return found

    store.read = watch
    with running(app) as url, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda i: get(f"{url}zarr/t/c/{i}/0"), range(40)))
    assert {one.status_code for one in answers} == {200}
    assert gauge.most == 3


def test_a_chunk_that_many_ask_for_at_once_is_read_once(tmp_path: Path) -> None:
    app = create_app(make_set(tmp_path))
    store = app.state.server.tracker.get().open_store(3)
    read, asked = store.read, []

    def count(key: str) -> bytes | None:
        asked.append(key)
        time.sleep(0.2)
        found: bytes | None = read(key)
        return found

    store.read = count
    with running(app) as url, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: get(f"{url}zarr/t/c/0/0"), range(20)))
    assert {one.content for one in answers} == {CHUNK}
    assert asked == ["t/c/0/0"]


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    app = create_app(
        make_set(tmp_path, values=np.zeros((400, 4), "f4")), limits=Limits(cache_bytes=5000)
    )
    with running(app) as url, make_client(base_url=url) as client:
        for i in range(200):
            assert client.get(f"zarr/t/c/{i}/0").status_code == 200
        bodies = app.state.server.bodies
        assert 0 < bodies._nbytes <= 5000 and len(bodies._cache) < 10


def test_keys_that_do_not_exist_count_in_the_cache(tmp_path: Path) -> None:
    app = create_app(make_set(tmp_path), limits=Limits(cache_bytes=50_000))
    with running(app) as url, make_client(base_url=url) as client:
        for i in range(40):
            assert client.get(f"zarr/{i:03}{'x' * 8000}").status_code == 404
        kept = app.state.server.bodies._cache
        assert sum(sys.getsizeof(key) for _, _, key in kept) <= 50_000
        assert len(kept) > 1


# ---------------------------------------------------------------------- the program


def test_answers_are_sent_at_once() -> None:
    """Only of such a socket asyncio turns off Nagle's algorithm, which delays answers by 40 ms."""
    with bind_socket("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_the_command_serves_on_loopback_until_it_is_interrupted(tmp_path: Path) -> None:
    target = make_set(tmp_path)
    command = [sys.executable, "-m", "virtualds_cli", "serve", str(target), "--port", "0"]
    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            text += process.stdout.readline()
        import json
        import signal

        said = json.loads(text)
        assert said["url"].startswith("http://127.0.0.1:")
        assert said["served"] == "refs.zarr" and said["arrays"] == 1
        assert get(f"{said['zarr']}t/c/0/0").content == CHUNK
        process.send_signal(signal.SIGINT)
        rest, log = process.communicate(timeout=60)
        assert rest == "" and process.returncode == 0
        assert '"GET /zarr/t/c/0/0 HTTP/1.1" 200' in log


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    first = bind_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(OSError, match=f"port={port}: .*in use; give another port"):
        bind_socket("127.0.0.1", port)
    first.close()


def test_what_cannot_be_opened_is_an_error_of_the_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from virtualds_cli.program import main

    result = CliRunner().invoke(main, ["serve", str(tmp_path / "none.zarr"), "--check"])
    assert result.exit_code == 1 and "none.zarr" in result.stderr


def test_the_command_says_what_zarr_v2_has_no_form_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from click.testing import CliRunner

    from virtualds_cli.program import main

    make = virtualds.zarr_store

    def make_without(url: Any, **how: Any) -> Any:
        found = make(url, **how)
        if how["zarr_format"] == 2:
            reason = virtualds.UnsupportedError(f"variable t of {tmp_path}: it has no form")
            found._view.arrays["t"] = reason
        return found

    target = str(make_set(tmp_path))
    told = CliRunner().invoke(main, ["serve", target, "--check", "--json"])
    assert "without_zarr2" not in json.loads(told.stdout)
    monkeypatch.setattr(virtualds, "zarr_store", make_without)
    told = CliRunner().invoke(main, ["serve", target, "--check", "--json"])
    assert told.exit_code == 0 and json.loads(told.stdout)["without_zarr2"] == ["t"]
    text = " ".join(CliRunner().invoke(main, ["serve", target, "--check"]).stdout.split())
    assert "Zarr v2 none: it cannot represent 't'; leave them out with --drop-variables" in text


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_packages_of_the_extra_are_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.applications", None)
    with pytest.raises(ImportError, match=f"{package}.*pip install starlette uvicorn zarr"):
        make = create_app if package == "starlette" else make_uvicorn_server
        make(tmp_path)
