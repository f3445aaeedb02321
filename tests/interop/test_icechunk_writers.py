"""Several writers of one Icechunk repository: nothing that was told to be written is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from azure_server import AzureServer
from google_servers import ignorant_google_server
from other_s3_servers import OTHERS, bucket_at, ignorant_server, names_at
from peers import peer

import virtualds
from virtualds import UnsupportedError
from virtualds.errors import VirtualdsError
from virtualds.source_file import StorageOptions

peer("icechunk")
# which imports it
library = import_module("virtualds.formats.icechunk.library")

# zarr-python speaks of its own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

WRITERS = 6
LENGTH = 3
"""Positions that each of them adds."""


def part(number: int) -> xr.Dataset:
    time = LENGTH * number + np.arange(LENGTH)
    return xr.Dataset({"v": ("time", time)}, {"time": time})


def race(url: str | Path, options: dict[str, Any] | None) -> list[VirtualdsError | None]:
    """Let writers append at the same time; return what each of them was told."""
    together = threading.Barrier(WRITERS)

    def append(number: int) -> VirtualdsError | None:
        together.wait()
        try:
            part(number).virtual.to_manifest(
                url,
                append_dim="time",
                position="coordinate",
                conflict="retry",
                storage_options=options,
            )
        except VirtualdsError as error:
            return error
        return None

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(append, range(WRITERS)))


def opened(url: str | Path, options: dict[str, Any] | None = None) -> xr.Dataset:
    return xr.open_dataset(url, engine="virtual", storage_options=options).load()


@pytest.fixture(scope="module", params=["neither", *OTHERS])
def ignorant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    with ignorant_server(request.param, tmp_path_factory.mktemp("server")) as options:
        yield options


def test_writers_are_refused_by_a_server_that_ignores_conditions(ignorant: dict[str, Any]) -> None:
    bucket = bucket_at(ignorant)
    told = race(f"{bucket}/of/a.icechunk", ignorant)
    for error in told:
        assert isinstance(error, UnsupportedError)
        assert "only_writer=True" in str(error)
        assert ignorant["client_kwargs"]["endpoint_url"] in str(error)
    assert names_at(bucket, ignorant) == []


def test_the_only_writer_may_use_such_a_server_and_others_may_not(ignorant: dict[str, Any]) -> None:
    url = f"{bucket_at(ignorant)}/a.icechunk"
    with virtualds.set_options(only_writer=True):
        for number in (WRITERS, WRITERS + 1):
            part(number).virtual.to_manifest(url, append_dim="time", storage_options=ignorant)
    both = xr.concat([part(WRITERS), part(WRITERS + 1)], "time")
    xr.testing.assert_equal(opened(url, ignorant), both)
    assert all(isinstance(error, UnsupportedError) for error in race(url, ignorant))
    xr.testing.assert_equal(opened(url, ignorant), both)


def test_a_server_of_googles_protocol_is_refused_if_it_ignores_conditions(tmp_path: Path) -> None:
    with ignorant_google_server(tmp_path) as server:
        url = f"{server.make_bucket()}/a.icechunk"
        # Icechunk itself speaks to Google alone, so this asks for its server of another name
        place = library.ObjectLocation("gcs", {"bucket": "bucket", "prefix": "a.icechunk"})
        excluding = library.exclude_other_writers(place, url, StorageOptions(server.options))
        with pytest.raises(UnsupportedError, match="only_writer=True"), excluding:
            pytest.fail("it was not refused")


def test_nothing_is_lost_where_conditions_hold(s3_server: dict[str, Any], s3_bucket: str) -> None:
    assert race(f"{s3_bucket}/a.icechunk", s3_server) == [None] * WRITERS
    whole = xr.concat(map(part, range(WRITERS)), "time")
    xr.testing.assert_equal(opened(f"{s3_bucket}/a.icechunk", s3_server), whole)


def test_nothing_is_lost_in_azure(azure_server: AzureServer, azure_box: str) -> None:
    assert race(f"{azure_box}/a.icechunk", azure_server.options) == [None] * WRITERS
    whole = xr.concat(map(part, range(WRITERS)), "time")
    xr.testing.assert_equal(opened(f"{azure_box}/a.icechunk", azure_server.options), whole)


@pytest.mark.parametrize("again", range(3))
def test_nothing_is_lost_on_local_disk(again: int, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.icechunk"
    assert race(target, None) == [None] * WRITERS
    xr.testing.assert_equal(opened(target), xr.concat(map(part, range(WRITERS)), "time"))
    assert [path.name for path in target.parent.iterdir()] == [target.name]
