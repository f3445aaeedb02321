"""What importing costs: a call imports what it needs, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write_year
from products import looped
from programs import run_code

import virtualds

ROOT = Path(__file__).parents[1]


# Each name is used first in a process of its own: 7 s.
@pytest.mark.full
def test_each_public_name_may_be_the_first_that_a_program_uses() -> None:
    code = """
import os
import dask, fsspec, h5py, numcodecs, pandas, pyarrow.parquet, xarray  # once, not in each process
import virtualds
for name in virtualds.__all__:
    # a new process in which nothing else of the package has been imported
    if (child := os.fork()) == 0:
        found = getattr(virtualds, name, None)
        os._exit(found is None or name not in dir(virtualds))
    _, status = os.waitpid(child, 0)
    assert status == 0, name
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


CALLS_AT_ONCE = """
import concurrent.futures, sys, threading
import virtualds, xarray

file = sys.argv[1]
held = xarray.Dataset({"t": ("x", [1.0])}).virtual
calls = [
    *(lambda name=name: getattr(virtualds, name) for name in virtualds.__all__),
    *(lambda name=name: getattr(held, name) for name in ("nchunks", "sources")),
    *(lambda name=name: getattr(held, name)() for name in ("load", "to_lazy", "verify")),
    *(lambda to=to: held.to_manifest(to) for to in ("new.json", "new.parquet", "new.zarr")),
    lambda: xarray.open_dataset(file, engine="virtual"),
    lambda: xarray.open_datatree(file, engine="virtual"),
    lambda: xarray.open_dataset([file], engine="virtual", concat_dim="time"),
]
start = threading.Barrier(len(calls))

def run(call):
    start.wait()
    call()

with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
    list(pool.map(run, calls))
"""


# Processes import all from the beginning, several times: 4 s.
@pytest.mark.full
def test_threads_may_be_the_first_to_use_every_name_at_once(tmp_path: Path) -> None:
    write_year(tmp_path / "2001.nc", 2001)
    ran = subprocess.run(
        [sys.executable, "-c", CALLS_AT_ONCE, str(tmp_path / "2001.nc")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr


def test_a_process_that_was_forked_while_a_thread_imports_can_import(tmp_path: Path) -> None:
    code = """
import os, threading, time
import virtualds
from virtualds.importing import importing
held = threading.Event()
def hold():
    with importing:
        held.set()
        time.sleep(0.5)
threading.Thread(target=hold).start()
held.wait()
if (child := os.fork()) == 0:
    virtualds.ReadError
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
virtualds.ReadError
"""
    run_code(code, check=True, timeout=60)


def test_no_garbage_is_looked_for_while_modules_are_imported() -> None:
    code = """
import gc, sys, xarray
from virtualds.importing import importing
gc.set_threshold(1, 1, 1)
with importing:
    before, modules = gc.get_stats()[2]["collections"], len(sys.modules)
    import virtualds.datasets.open
    with importing:
        import virtualds.combine
    found = gc.get_stats()[2]["collections"], len(sys.modules)
assert found[0] == before and found[1] > modules + 50, found
assert gc.isenabled()
"""
    run_code(code, check=True, timeout=60)


def test_own_packages_and_the_version_are_there_at_once() -> None:
    code = """
import importlib.metadata, os, pkgutil
import xarray  # once, not in each process
import virtualds
for name in [*(found.name for found in pkgutil.iter_modules(virtualds.__path__)), "__version__"]:
    # a new process in which nothing else of the package has been imported
    if (child := os.fork()) == 0:
        getattr(virtualds, name)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, name
assert virtualds.__version__ == importlib.metadata.version("virtualds")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_dataset'"):
        _ = virtualds.open_dataset  # type: ignore[attr-defined]


# Calls, and what they have no need of. xarray imports dask to decode times, and dask.array, which
# imports scipy, when it makes a variable of an array; pandas imports pyarrow.
ELSEWHERE = {"distributed", "icechunk", "kerchunk", "obstore", "s3fs", "tqdm", "zarr"}
LAZY = {
    *("virtualds.checks", "virtualds.combine", "virtualds.syncing", "dask.array", "fsspec"),
    *("h5py", "scipy", *ELSEWHERE),
}
BY_XARRAY = {"dask.array", "scipy"}
PARSERS = {f"virtualds.parsers.{n}" for n in ("fits", "grib", "netcdf3", "numpy", "tiff")}
CODECS = {f"virtualds.codecs.{name}" for name in ("blosc2", "jpeg", "szip", "tiff", "zfp")}
# what only files and sets of another kind need
OTHERS = {*PARSERS, *CODECS, "virtualds.formats.icechunk"}
FORMATS = {"virtualds.formats.kerchunk", "virtualds.formats.zarr_manifests"}
FILE = {"pyarrow.parquet", *OTHERS, *FORMATS}
SET = {"numcodecs", *OTHERS}
UNNEEDED = {
    "import virtualds.backend": LAZY | {"dask", "numcodecs", "pyarrow.parquet", "virtualds.arrays"},
    "xr.open_dataset('other.nc', engine='h5netcdf')": (LAZY | {"virtualds"}) - {"h5py"},
    "ENGINE().guess_can_open('other.nc')": LAZY | {"virtualds.arrays"},
    "ds = xr.open_dataset('2001.nc', engine=ENGINE); ds.virtual.nchunks; ds.t.values": LAZY | FILE,
    "xr.open_dataset('refs.zarr', engine=ENGINE)": (
        LAZY | SET | {"virtualds.parsers", "pyarrow.parquet"}
    ),
    "xr.open_dataset('refs.json', engine=ENGINE)": LAZY | SET | {"pyarrow.parquet"},
    "xr.open_dataset('refs.parquet', engine=ENGINE)": LAZY | SET | {"virtualds.parsers"},
    "virtualds.open_virtual_dataset('2001.nc'); virtualds.open_virtual_dataset('other.nc')": (
        LAZY | FILE
    ),
    "virtualds.open_virtual_mfdataset(['2001.nc'])": (
        (LAZY | OTHERS) - {"virtualds.combine", *BY_XARRAY}
    ),
    "VDS.virtual.to_manifest('new.json')": (LAZY | {"pyarrow.parquet"}) - BY_XARRAY,
    "main(['info', '2001.nc'])": (LAZY | FILE) - {"virtualds.checks"},
}


PREPARED = {
    "ENGINE": "from virtualds.backend import VirtualBackendEntrypoint as ENGINE",
    "VDS": "import virtualds; VDS = virtualds.open_virtual_dataset('2001.nc')",
    "main(": "from virtualds_cli.program import main as run\n"
    "def main(given): run(given, standalone_mode=False)",
    "virtualds.": "import virtualds",
}
"""What stands before a call that has such a word."""

EACH = """
import json, os, sys
import xarray as xr

for code in json.loads(sys.argv[1]):
    # a new process in which nothing but xarray has been imported
    if (child := os.fork()) == 0:
        exec(code)
        print("\\nMODULES", *sys.modules, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, code
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What each call imports, beside a file, another engine's file, and three sets."""
    folder = tmp_path_factory.mktemp("opened")
    for name in ("2001", "other"):
        write_year(folder / f"{name}.nc", 2001)
    vds = virtualds.open_virtual_dataset(folder / "2001.nc")
    for suffix in (".json", ".parquet", ".zarr"):
        vds.virtual.to_manifest(folder / f"refs{suffix}")
    calls = [
        "\n".join([*(line for word, line in PREPARED.items() if word in call), call])
        for call in UNNEEDED
    ]
    ran = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(calls)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    modules = [line for line in ran.stdout.splitlines() if line.startswith("MODULES ")]
    return {call: set(line.split()) for call, line in zip(UNNEEDED, modules, strict=True)}


@looped("call", UNNEEDED)
def test_nothing_is_imported_that_a_call_does_not_need(
    call: str, imported: dict[str, set[str]]
) -> None:
    assert "xarray" in imported[call]
    assert not UNNEEDED[call] & imported[call]


def test_the_class_of_the_engine_waits_for_no_other_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_year(tmp_path / "2001.nc", 2001)
    (tmp_path / "other_engine.py").write_text(
        "from xarray.backends import BackendEntrypoint\nclass Other(BackendEntrypoint): ...\n"
    )
    (tmp_path / "other_engine-1.dist-info").mkdir()
    (tmp_path / "other_engine-1.dist-info/METADATA").write_text("Name: other-engine\nVersion: 1\n")
    entry = "[xarray.backends]\nother = other_engine:Other\n"
    (tmp_path / "other_engine-1.dist-info/entry_points.txt").write_text(entry)
    code = """
import sys
import virtualds, xarray
engine = virtualds.VirtualBackendEntrypoint
found = xarray.open_dataset("2001.nc", engine=engine).load()
tree = xarray.open_datatree("2001.nc", engine=engine).load()
several = xarray.open_mfdataset(["2001.nc"], engine=engine).load()
assert "other_engine" not in sys.modules
# what a name costs: if this fails, xarray has learnt to load the named engine alone
expected = xarray.open_dataset("2001.nc", engine="virtual").load()
assert "other_engine" in sys.modules
for other in (found, tree.to_dataset(), several):
    xarray.testing.assert_identical(other, expected)
"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_code(code, check=True, timeout=60)
