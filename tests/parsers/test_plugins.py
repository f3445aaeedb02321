"""Parsers of other packages: the page about them works, and a broken one harms nobody."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import run_code

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "adding-a-parser.md"
PYTHON, TOML, USE = (
    re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    for language in ("python", "toml", "py")
)


def installed(site: Path, name: str, module: str, entry: str, codec: str = "") -> Path:
    """Install a package of one module that brings a parser into a folder of its own."""
    dist = site / f"{name}-1.0.dist-info"
    dist.mkdir(parents=True)
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    codecs = f"[numcodecs.codecs]\n{codec}\n" if codec else ""
    (dist / "entry_points.txt").write_text(f"[virtualds.parsers]\n{entry}\n{codecs}")
    (site / f"{name.replace('-', '_')}.py").write_text(module)
    return site


def run(code: str, folder: Path, *sites: Path) -> subprocess.CompletedProcess[str]:
    start = f"import sys\nsys.path[:0] = {[str(site) for site in sites]}\n"
    return run_code(f"{start}import os\nos.chdir({str(folder)!r})\n{code}")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A site folder with the package that the page builds."""
    assert PYTHON and TOML and USE
    key, value = TOML[1].splitlines()[1].split(" = ")
    return installed(tmp_path / "site", "toy-parser", PYTHON[1], f"{key} = {value.strip(chr(34))}")


def test_the_page_works_as_it_stands(toy: Path, tmp_path: Path) -> None:
    done = run(USE[1], tmp_path, toy)  # type: ignore[index]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_parser_is_found_by_name_and_by_bytes_and_its_references_can_be_written(
    toy: Path, tmp_path: Path
) -> None:
    more = """
import xarray as xr
named = virtualds.open_virtual_dataset("a.toy", parser="toy")
named.virtual.to_manifest("toy.json")
again = xr.open_dataset("toy.json", engine="virtual")
assert again.identical(xr.open_dataset("a.toy", engine="virtual")), again
assert again.attrs == {"title": "toy"} and again.t.attrs == {"units": "K"}
try:
    virtualds.open_virtual_dataset("a.toy", group="none")
except FileNotFoundError:
    pass
else:
    raise SystemExit("there is no such group")
"""
    done = run(USE[1] + more, tmp_path, toy)  # type: ignore[index]
    assert (done.returncode, done.stderr) == (0, "")


INVERTED = """
import numcodecs.abc
import numpy as np
import virtualds

class Inverted(numcodecs.abc.Codec):
    codec_id = "toy_inverted"
    def encode(self, buf):
        return self.decode(buf)
    def decode(self, buf, out=None):
        data = np.frombuffer(buf, "u1")
        if data[0] == 0:
            raise KeyError("not inverted")
        return ~data

def read(source, group=None, skip=()):
    array = virtualds.ManifestArray.from_arrays(
        shape=(4, 2), chunks=(2, 2), dtype="<i2", path=source, offsets=np.array([[4], [12]]),
        lengths=8, codecs=[{"id": "toy_inverted"}],
    )
    return virtualds.ManifestGroup({"v": virtualds.ManifestVariable(("y", "x"), array)})

parser = virtualds.Parser("inverted", (".inv",), lambda head: head[:4] == b"INV1", read)
"""


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_a_package_brings_codecs_to_numcodecs_and_they_are_found_there(
    suffix: str, tmp_path: Path
) -> None:
    site = installed(
        tmp_path / "site", "inverted", INVERTED, "inverted = inverted:parser",
        "toy_inverted = inverted:Inverted",
    )  # fmt: skip
    values = np.arange(1, 9, dtype="<i2").reshape(4, 2)
    (tmp_path / "a.inv").write_bytes(b"INV1" + (~values).tobytes())
    (tmp_path / "damaged.inv").write_bytes(b"INV1" + bytes(8) + (~values[2:]).tobytes())
    code = f"""
import virtualds, xarray as xr
ds = virtualds.open_virtual_dataset("a.inv", loadable_variables=[])
assert ds.v.values.ravel().tolist() == list(range(1, 9))
ds.virtual.to_manifest("refs{suffix}")
again = xr.open_dataset("refs{suffix}", engine="virtual")
assert again.v.values.ravel().tolist() == list(range(1, 9))
damaged = virtualds.open_virtual_dataset("damaged.inv", loadable_variables=[])
try:
    damaged.v.values
except virtualds.ReadError as error:
    assert "not inverted" in str(error), error
else:
    raise SystemExit("it is damaged")
"""
    done = run(code, tmp_path, site)
    assert (done.returncode, done.stderr) == (0, "")
    without = run(f"import xarray\nxarray.load_dataset('refs{suffix}', engine='virtual')", tmp_path)
    assert without.returncode == 1
    assert "UnsupportedError" in without.stderr
    assert "toy_inverted" in without.stderr


BROKEN = {
    "that is not there": ("", "bad = no_such_module:parser", "ModuleNotFoundError"),
    "that fails": ("raise RuntimeError('boom')", "bad = bad_plugin:parser", "boom"),
    "without its parser": ("", "bad = bad_plugin:parser", "AttributeError"),
    "that is none": ("parser = 3", "bad = bad_plugin:parser", "not a virtualds.Parser"),
    "of a name that is taken": (
        "import virtualds\n"
        "parser = virtualds.Parser('hdf5', (), lambda head: True, lambda *a, **k: None)",
        "bad = bad_plugin:parser",
        "'hdf5' already",
    ),
    "whose detection fails": (
        "import virtualds\n"
        "parser = virtualds.Parser('bad', (), lambda head: head[10**9], lambda *a, **k: None)",
        "bad = bad_plugin:parser",
        "detect() failed",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_parser_is_named_and_others_work(kind: str, toy: Path, tmp_path: Path) -> None:
    module, entry, complaint = BROKEN[kind]
    bad = installed(tmp_path / "bad", "bad-plugin", module, entry)
    done = run(USE[1], tmp_path, bad, toy)  # type: ignore[index]
    assert done.returncode == 0, done.stderr
    assert complaint in done.stderr
    assert "'bad'" in done.stderr


def test_plugins_are_imported_only_if_no_parser_of_ours_knows_a_file(
    toy: Path, tmp_path: Path, archive_files: list[Path]
) -> None:
    code = f"""
import virtualds
virtualds.open_virtual_dataset({str(archive_files[0])!r})
assert "toy_parser" not in sys.modules
try:
    virtualds.open_virtual_dataset({str(archive_files[0])!r}, parser="no such")
except ValueError as error:
    assert "'toy'" in str(error), error
assert "toy_parser" in sys.modules
"""
    done = run(code, tmp_path, toy)
    assert (done.returncode, done.stderr) == (0, "")


def test_references_of_a_source_file_keep_its_fingerprint() -> None:
    import virtualds

    source = virtualds.SourceFile("s3://bucket/a.toy", size=100, etag="x")
    array = virtualds.ManifestArray.from_arrays(
        shape=(4,), chunks=(2,), dtype="f4", path=source, offsets=np.array([0, 8]), lengths=8
    )
    assert array.sources == (source,)
