"""Everybody's readers find over HTTP what virtualds serves, as it reads it itself."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import h5py
import numpy as np
import pytest
import xarray as xr
from archives import KINDS
from products import looped
from range_server import running
from served_kinds import BOXES, SERVED, one_set_of_all
from serving import serving_apart as serving
from zarr_readers import (
    READERS,
    Asked,
    PageHandler,
    Values,
    ask_gdal,
    ask_node,
    browser_with_zarrita,
    read_in_gdal,
    read_in_node,
    run_in_node,
)

import virtualds

tensorstore = pytest.importorskip("tensorstore")
pytest.importorskip("rasterio")

pytestmark = [
    # these files have no places on the Earth
    pytest.mark.filterwarnings("ignore:Dataset has no geotransform"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore:.*Zarr V3 specification.*"),
]
SETS_DIFFER = {"unsigned_bytes_next_to_signed_ones", "a_variable_that_some_files_lack"}
ARCHIVES = [name for name in KINDS if name not in SETS_DIFFER]
NODE, BROWSER = "zarrita in node", "zarrita in a browser"
FORMATS = (3, 2)

TEXT = ("text of any length", "text of a fixed length")
SPACE = "a name with a space"
UNKNOWN: dict[tuple[str, int], set[str]] = {
    ("tensorstore", 3): {*TEXT},
    ("tensorstore", 2): {*TEXT, "shuffle"},
    ("GDAL", 3): {*TEXT, SPACE},
    ("GDAL", 2): {TEXT[0], SPACE},
    (NODE, 3): {TEXT[1], "complex", "float16"},
    (NODE, 2): {"complex", "float16"},
    (BROWSER, 3): {TEXT[1], "complex"},
    (BROWSER, 2): {"complex"},
}
"""What readers do not know in a version of Zarr; they have to say so, and give no values.

zarrita has 16-bit floats where JavaScript has: in browsers, and from node 24 on.
"""


def read_in_browser(asked: Sequence[Asked]) -> list[Values | Exception]:
    with browser_with_zarrita() as browser:
        return browser.read(asked)


PROCESSES = {"GDAL": read_in_gdal, NODE: read_in_node, BROWSER: read_in_browser}
"""Readers in processes of their own."""
KINDS_OF = dict.fromkeys(("zarr-python", "xarray", BROWSER), SERVED)
KINDS_OF |= dict.fromkeys(("tensorstore", "GDAL", NODE), (*SERVED, *ARCHIVES))
"""The kinds of sets that each reader reads.

`tests/server` reads the archives with xarray, and zarrita does in a browser what it does in node.
"""


@dataclass(eq=False)
class Everything:
    """One server of sets of each kind, and what it has to show."""

    url: str
    target: Path
    _found: dict[str, dict[Asked, Values | Exception]] = field(default_factory=dict)

    @cached_property
    def tree(self) -> xr.DataTree:
        """All arrays as they are stored."""
        return xr.open_datatree(self.target, engine="virtual", decode_cf=False)

    @cached_property
    def decoded(self) -> xr.DataTree:
        """All arrays as xarray decodes them."""
        return xr.open_datatree(self.target, engine="virtual")

    def ask(self, kind: str) -> Iterator[tuple[Asked, Values]]:
        """Yield what to ask for of a kind, and the values; numbers instead of times."""
        for node in self.tree[kind].subtree:
            for name, variable in node.to_dataset(inherit=False).variables.items():
                path = f"{node.path}/{name}".strip("/")
                for box in BOXES.get(kind, (None,)):
                    values = variable[box or ...].values
                    values = values.view("i8") if values.dtype.kind in "mM" else values
                    for zarr_format in FORMATS:
                        yield Asked(self.url, zarr_format, path, box), values

    def ask_all(self, reader: str) -> list[Asked]:
        """Return what to ask a reader for."""
        return [asked for kind in KINDS_OF[reader] for asked, _ in self.ask(kind)]

    def find_all(self, reader: str) -> dict[Asked, Values | Exception]:
        """Let a reader in a process of its own read everything, once."""
        if reader not in self._found:
            asked = self.ask_all(reader)
            self._found[reader] = dict(zip(asked, PROCESSES[reader](asked), strict=True))
        return self._found[reader]

    def find_unknown(self, reader: str, zarr_format: int) -> set[str]:
        """Return what a reader does not know; what zarrita does depends on node."""
        has_float16 = reader == NODE and self._has_float16
        return UNKNOWN.get((reader, zarr_format), set()) - ({"float16"} if has_float16 else set())

    @cached_property
    def _has_float16(self) -> bool:
        return bool(ask_node("hasFloat16"))

    def read(self, reader: str, asked: Asked) -> Values:
        """Return what a reader finds, or raise its error."""
        if reader in READERS:
            return READERS[reader](asked)
        found = self.find_all(reader)[asked]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    folder = tmp_path_factory.mktemp("kinds")
    with one_set_of_all(folder, ARCHIVES) as target, serving(target) as url:
        yield Everything(url, target)


DIFFICULTIES = {
    TEXT[0]: r"string|\|O",
    TEXT[1]: r".*null_terminated_bytes.*|[|<>][SU]\d+",
    "complex": r"complex\d+|[<>]c\d+",
    "float16": r"float16|[<>]f2",
}
"""Data types of Zarr that some readers do not know."""


@cache
def find_difficulty(asked: Asked) -> str:
    """Return what in the metadata of an array some readers do not know, or nothing."""
    name = "zarr.json" if asked.zarr_format == 3 else ".zarray"
    with urllib.request.urlopen(f"{asked.root}/{quote(asked.path)}/{name}") as answer:
        said = json.load(answer)
    if " " in asked.path:
        return SPACE
    kind = str(said.get("data_type", said.get("dtype")))
    found = [name for name, known in DIFFICULTIES.items() if re.fullmatch(known, kind)]
    found += [step["id"] for step in said.get("filters") or () if step["id"] == "shuffle"]
    return " and ".join(found)


def assert_same(found: Values, expected: Values, asked: Asked) -> None:
    """Text as text, whatever holds it; other values to the bit."""
    assert found.shape == expected.shape, asked
    if expected.dtype.kind in "OSU":
        assert list_text(found) == list_text(expected), asked
        return
    # GDAL has no booleans
    kind = "u1" if expected.dtype == bool and found.dtype == "u1" else expected.dtype
    native = found.astype(found.dtype.newbyteorder("="))
    assert native.dtype == np.dtype(kind).newbyteorder("="), asked
    assert native.tobytes() == expected.astype(native.dtype).tobytes(), asked


def list_text(values: Values) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else one for one in values.ravel().tolist()]


@pytest.mark.parametrize("reader", KINDS_OF)
def test_each_reader_finds_each_kind_of_set(reader: str, everything: Everything) -> None:
    for kind in KINDS_OF[reader]:
        tried = 0
        for asked, expected in everything.ask(kind):
            if find_difficulty(asked) in everything.find_unknown(reader, asked.zarr_format):
                with pytest.raises(Exception):  # noqa: B017
                    everything.read(reader, asked)
            else:
                assert_same(everything.read(reader, asked), expected, asked)
            tried += 1
        assert tried, kind


@looped("kind", SERVED)
def test_xarray_makes_of_each_kind_what_it_makes_of_the_set(
    kind: str, everything: Everything
) -> None:
    boxes = BOXES.get(kind, [()])
    for root in ("zarr", "zarr2"):
        found = xr.open_datatree(everything.url + root, engine="zarr", group=kind, chunks=None)
        for node in everything.decoded[kind].subtree:
            expected = node.to_dataset(inherit=False)
            same = found[node.relative_to(everything.decoded[kind])].to_dataset(inherit=False)
            for box in boxes:
                part = dict(zip(expected.sizes, box, strict=False))
                xr.testing.assert_identical(same.isel(part).load(), expected.isel(part).load())


def test_zarrita_lists_all_arrays(everything: Everything) -> None:
    expected = {asked.path for asked in everything.ask_all(NODE)}
    for zarr_format in FORMATS:
        root = Asked(everything.url, zarr_format, "").as_json()
        found = ask_node("listArrays", root)
        assert {path.strip("/") for path in found} == expected


def test_the_example_of_javascript_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
    [example] = re.findall(r"```javascript\n(.*?)```", page.read_text(), re.DOTALL)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = np.arange(2 * 3 * 30, dtype="<f4").reshape(2, 3, 30)
        file.create_dataset("t", data=values, chunks=(1, 2, 15), compression=4, shuffle=True)
    with serving(tmp_path / "a.h5") as url:
        code = example.replace("http://127.0.0.1:8000/", url)
        code += "console.log(JSON.stringify([shape, Array.from(data), store.contents()]));"
        shape, data, contents = json.loads(run_in_node(code))
    assert {"path": "/t", "kind": "array"} in contents
    np.testing.assert_array_equal(np.reshape(data, shape), values[0, :, 10:20])


def test_a_page_of_another_origin_may_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = np.arange(4, dtype="<i4")
    with serving(tmp_path / "a.h5") as url, browser_with_zarrita() as browser:
        code = """async (url) => {
            const whole = await fetch(url);
            const headers = { "If-None-Match": whole.headers.get("etag") };
            const same = await fetch(url, { headers, cache: "no-store" });
            const part = await fetch(url, { headers: { Range: "bytes=4-7" } });
            const bytes = Array.from(new Uint8Array(await part.arrayBuffer()));
            return [same.status, part.status, part.headers.get("content-range"), bytes];
        }"""
        found = browser.evaluate(code, f"{url}zarr/t/c/0")
        assert found == [304, 206, "bytes 4-7/16", [1, 0, 0, 0]]
        asked = [Asked(url, zarr_format, "t") for zarr_format in FORMATS]
        for values in browser.read(asked):
            np.testing.assert_array_equal(values, np.arange(4))
        # from no other place
        assert browser.hosts == {urlsplit(browser.url).netloc, urlsplit(url).netloc}
        # a server that says nothing of other origins
        virtualds.open_virtual_dataset(tmp_path / "a.h5").load().to_zarr(tmp_path / "zarr")
        with running(partial(PageHandler, directory=str(tmp_path))) as other:
            [refused] = browser.read([Asked(f"{other.url}/", 3, "t")])
            assert isinstance(refused, OSError) and "Failed to fetch" in str(refused)
            [allowed] = READERS["zarr-python"](Asked(f"{other.url}/", 3, "t"))[1:2]
            assert allowed == 1


def test_a_broken_source_is_an_error_for_each_reader(tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "a.json"
    with h5py.File(source, "w") as file:
        for name, how in (("plain", {}), ("zipped", {"compression": 4, "shuffle": True})):
            file.create_dataset(name, data=np.ones((4, 4)), chunks=(2, 2), **how)
    virtualds.open_virtual_dataset(source).virtual.to_manifest(target)
    with serving(target) as url:
        source.unlink()
        asked = [Asked(url, number, name) for number in FORMATS for name in ("plain", "zipped")]
        for one in asked:
            for reader, read in READERS.items():
                if find_difficulty(one) not in UNKNOWN.get((reader, one.zarr_format), ()):
                    with pytest.raises(Exception, match="502"):
                        read(one)
        for read_in_process in PROCESSES.values():
            assert {type(one) for one in read_in_process(asked)} == {OSError}


def test_gdal_finds_attributes_and_packing(tmp_path: Path) -> None:
    made = xr.Dataset({"t": (("y", "x"), np.linspace(270, 290, 12).reshape(3, 4))})
    made["t"].attrs["units"] = "K"
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    made.to_netcdf(tmp_path / "a.nc", engine="netcdf4", encoding={"t": packing})
    with serving(tmp_path / "a.nc") as url:
        names = [f'ZARR:"/vsicurl/{url}{version}":/t' for version in ("zarr", "zarr2")]
        for said in ask_gdal("describe_images", names):
            assert (said["count"], said["units"]) == (1, ("K",))
            assert (said["scales"], said["offsets"]) == ((0.01,), (273.15,))
            found = said["values"] * 0.01 + 273.15
            np.testing.assert_allclose(found, made["t"].values, atol=0.006)


def test_the_documents_are_strict_json(everything: Everything) -> None:
    for path in ("zarr/zarr.json", "zarr2/.zmetadata"):
        with urllib.request.urlopen(everything.url + path) as answer:
            text = answer.read()
        json.loads(text, parse_constant=pytest.fail)
        assert b"Infinity" in text and b"NaN" in text
