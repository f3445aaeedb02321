"""What many tests share: a small archive of real files, and which tests the quick suite runs."""

import gc
import logging
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from azure_server import AzureServer
from azure_server import azure_server as running_azure_server
from cases import Archive
from effort import add_option, leave_for_a_soak, set_effort, times
from google_servers import GoogleServer, google_server
from hypothesis import HealthCheck, settings
from object_stores import make_folder
from other_s3_servers import bucket_at, seaweedfs_server
from products import leave_for_the_full_suite
from s3_server import s3_server as running_s3_server
from temporary_files import write_into_memory

# A job in the background is started with interrupts ignored, and so would be what tests start and
# interrupt: they would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

write_into_memory()

pytest_addoption = add_option


def pytest_configure(config: pytest.Config) -> None:
    set_effort(config)
    # Every run draws the same examples; --hypothesis-profile=hunt draws many others.
    quiet = [HealthCheck.too_slow]
    settings.register_profile(
        "house",
        deadline=None,
        max_examples=times(30),
        derandomize=True,
        suppress_health_check=quiet,
    )
    settings.register_profile("hunt", deadline=None, max_examples=2000, suppress_health_check=quiet)
    settings.load_profile(config.getoption("hypothesis_profile", None) or "house")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave out of each search for garbage what is there until the end: modules and tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    leave_for_a_soak(items, config)
    leave_for_the_full_suite(items)


def write_year(path: Path, year: int) -> None:
    """One year of monthly values: ``t(time, lat, lon)``, packed, compressed, a month to a chunk."""
    rng = np.random.default_rng(year)
    ds = xr.Dataset(
        {"t": (("time", "lat", "lon"), 280 + rng.normal(size=(12, 6, 8)), {"units": "K"})},
        coords={
            "time": np.arange(f"{year}-01", f"{year + 1}-01", dtype="datetime64[M]").astype(
                "datetime64[ns]"
            ),
            "lat": np.linspace(-75.0, 75.0, 6),
            "lon": np.arange(0.0, 360.0, 45.0),
        },
        attrs={"title": "two small years"},
    )
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    storage = {"zlib": True, "shuffle": True, "chunksizes": (1, 6, 8)}
    time = {"units": "days since 2001-01-01", "dtype": "int32"}
    ds.to_netcdf(path, engine="netcdf4", encoding={"t": packing | storage, "time": time})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Whoever listens to the log stops at the end of the test, as code of the pages does not."""
    loggers = (logging.getLogger("virtualds"), logging.getLogger())
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def archive_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """``2001.nc`` and ``2002.nc``, made once; do not write to them."""
    folder = tmp_path_factory.mktemp("archive")
    paths = [folder / f"{year}.nc" for year in (2001, 2002)]
    # older than `sync` waits for a file that may still be written
    old = time.time() - 3600
    for path in paths:
        write_year(path, int(path.stem))
        os.utime(path, (old, old))
    return paths


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The files of the cases of `cases`, each made once; do not write to them."""
    return Archive(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="session")
def dask_workers() -> Iterator[Any]:
    """Two processes that work for dask, started once, since that takes seconds; make a client."""
    distributed = pytest.importorskip("distributed", reason="installed with the extra distributed")
    # what it watches itself for would take a twentieth of a processor, whether it works or not
    quiet = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "10s",
        "distributed.admin.system-monitor.interval": "60s",
    }
    workers = {"n_workers": 2, "threads_per_worker": 1}
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(**workers, host="127.0.0.1", dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(dask_workers: Any) -> Iterator[Any]:
    """A client of dask, with two processes, which computes what the test computes."""
    import distributed

    with distributed.Client(dask_workers) as client:
        # a test before may have killed one, which then starts again
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture(scope="session")
def moto() -> Iterator[dict[str, Any]]:
    """An S3 server of Python: the storage options that lead to it."""
    with running_s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """An S3 server that others run for their data: the storage options that lead to it."""
    with seaweedfs_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server.options


@pytest.fixture(scope="session")
def s3_server(moto: dict[str, Any]) -> dict[str, Any]:
    """An S3 server on loopback: the storage options that lead to it."""
    return moto


@pytest.fixture
def s3_bucket(s3_server: dict[str, Any]) -> str:
    """The url of a bucket that nobody else uses."""
    return bucket_at(s3_server)


@pytest.fixture
def s3_folder(request: pytest.FixtureRequest) -> str:
    """The url of a folder that nobody else uses, in a bucket that others use, too."""
    return make_folder("moto", request)[0]


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleServer]:
    """A server on loopback that speaks as Google Cloud Storage does, and keeps conditions."""
    with google_server(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """A server of Azure's blobs on loopback."""
    with running_azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture
def azure_box(azure_server: AzureServer) -> str:
    """The url of a container that nobody else uses."""
    return azure_server.make_box()
