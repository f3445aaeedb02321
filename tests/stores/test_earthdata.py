"""Archives that ask for a login: tokens go where they are meant to, and signed urls may expire."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from earthdata_server import Earthdata, earthdata_server

import virtualds
from virtualds import AccessError
from virtualds.stores import requests

pytest.importorskip("aiohttp")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting costs nothing here."""
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.002)


@pytest.fixture
def service(archive_files: list[Path]) -> Iterator[Earthdata]:
    with earthdata_server(archive_files[0].parent) as running:
        yield running


def token(service: Earthdata, text: str = "right") -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {text}"}}


def opened(service: Earthdata, options: Any, tmp_path: Path) -> xr.Dataset:
    """Scan a file of the archive, write the set, open the set."""
    url = f"{service.archive}/2001.nc"
    scanned = virtualds.open_virtual_dataset(url, storage_options=options)
    scanned.virtual.to_manifest(tmp_path / "refs.zarr")
    return xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", storage_options=options)


def is_shown(text: str, asked: list[dict[str, str]]) -> list[bool]:
    return [text in str(headers) for headers in asked]


def test_a_token_opens_an_archive_and_goes_to_no_other_host(
    service: Earthdata, archive_files: list[Path], tmp_path: Path
) -> None:
    ds = opened(service, token(service), tmp_path)
    xr.testing.assert_identical(ds.load(), xr.load_dataset(archive_files[0]))
    assert all(is_shown("right", service.asked["archive"]))
    assert service.asked["storage"] and not any(is_shown("right", service.asked["storage"]))
    assert "login" not in service.asked


def test_a_signed_url_that_expired_is_asked_for_again(
    service: Earthdata, archive_files: list[Path], tmp_path: Path
) -> None:
    service.uses = 1
    ds = opened(service, token(service), tmp_path)
    service.stale = 1
    xr.testing.assert_identical(ds.load(), xr.load_dataset(archive_files[0]))
    assert service.stale < 0


@pytest.mark.parametrize("form", ["refs.zarr", "refs.json", "refs.parquet"])
def test_neither_a_token_nor_a_signature_is_written(
    form: str, service: Earthdata, tmp_path: Path
) -> None:
    url = f"{service.archive}/2001.nc"
    scanned = virtualds.open_virtual_dataset(url, storage_options=token(service))
    scanned.virtual.to_manifest(tmp_path / form)
    files = [p for p in (tmp_path / form, *tmp_path.rglob("*")) if p.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert written
    for secret in ("Bearer", "Signature", *service.signatures):
        assert secret.encode() not in written


def test_a_trusted_login_host_gets_the_token_too(
    service: Earthdata, archive_files: list[Path], tmp_path: Path
) -> None:
    service.takes_tokens = False
    options = token(service) | {"trusted_hosts": [service.login]}
    ds = opened(service, options, tmp_path)
    xr.testing.assert_identical(ds.load(), xr.load_dataset(archive_files[0]))
    assert all(is_shown("right", service.asked["login"]))
    assert not any(is_shown("right", service.asked["storage"]))
    # a session is opened once, and kept
    assert len(service.asked["login"]) <= 2


@pytest.mark.parametrize("page", [False, True])
def test_a_host_that_is_not_trusted_gets_no_token_and_is_named(
    page: bool, service: Earthdata, tmp_path: Path
) -> None:
    service.takes_tokens, service.answers_with_a_page = False, page
    with pytest.raises(AccessError, match=r"127\.0\.0\.1.*\n.*trusted_hosts"):
        opened(service, token(service), tmp_path)
    assert service.asked["login"] and not any(is_shown("right", service.asked["login"]))


@pytest.mark.parametrize("page", [False, True])
def test_whoever_has_no_token_is_told_what_to_give(
    page: bool, service: Earthdata, tmp_path: Path
) -> None:
    service.answers_with_a_page = page
    with pytest.raises(AccessError, match=r"the server refuses access.*\n.*Authorization"):
        opened(service, None, tmp_path)


def test_trusted_hosts_are_asked_by_https_unless_they_say_otherwise() -> None:
    from virtualds.stores.fsspec import _to_origins

    assert _to_origins(["urs.example.org", "http://127.0.0.1:80"]) == (
        "http://127.0.0.1",
        "https://urs.example.org",
    )
    with pytest.raises(TypeError, match="a list"):
        _to_origins("urs.example.org")


def give_token(service: Earthdata) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {service.token}"}}


def test_a_token_that_is_renewed_is_asked_for_again(
    service: Earthdata, archive_files: list[Path], tmp_path: Path
) -> None:
    options = {"credentials": lambda: give_token(service)}
    ds = opened(service, options, tmp_path)
    service.token = "newer"
    xr.testing.assert_identical(ds.load(), xr.load_dataset(archive_files[0]))
    assert partial(give_token, service)()["headers"]["Authorization"] == "Bearer newer"
