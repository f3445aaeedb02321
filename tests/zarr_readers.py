"""Readers of Zarr of others: each reads one array over HTTP, whole or a box of it.

GDAL reads in a process of its own, zarrita in node and in a page of a browser. On a machine without
these its tests are skipped, but in continuous integration a test that cannot run is an error.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import xarray as xr
from browser import browsing
from other_s3_servers import needed, stop_without
from range_server import running

Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Asked:
    """An array that a server has: in which version of Zarr, its path, and which part of it."""

    url: str
    zarr_format: int
    path: str
    box: tuple[slice, ...] | None = None

    @property
    def root(self) -> str:
        """The url of the hierarchy."""
        return f"{self.url}{'zarr' if self.zarr_format == 3 else 'zarr2'}"

    def as_json(self) -> dict[str, Any]:
        """What the side of zarrita takes."""
        box = None if self.box is None else [[s.start, s.stop] for s in self.box]
        return {"url": self.root, "format": self.zarr_format, "path": self.path, "box": box}


# ---------------------------------------------------------------------- Python


def read_zarr_python(asked: Asked) -> Values:
    import zarr

    array = zarr.open_array(f"{asked.root}/{asked.path}", mode="r")
    return np.asarray(array[asked.box or ...])


def read_xarray(asked: Asked) -> Values:
    group, _, name = asked.path.rpartition("/")
    return np.asarray(_open_group(asked.root, group)[name].variable[asked.box or ...].values)


@lru_cache(4)
def _open_group(root: str, group: str) -> xr.Dataset:
    return xr.open_zarr(root, group=group, decode_cf=False, chunks=None, consolidated=True)


def read_tensorstore(asked: Asked) -> Values:
    import tensorstore

    driver = "zarr3" if asked.zarr_format == 3 else "zarr"
    # it would try for minutes
    context = {"http_request_retries": {"max_retries": 1}}
    spec = {"driver": driver, "kvstore": f"{asked.root}/{asked.path}/", "context": context}
    array = tensorstore.open(spec, open=True, read=True).result()
    if array.dtype == tensorstore.char:
        raise TypeError("tensorstore gives numpy no characters")
    return np.asarray(array[asked.box or ...].read().result())


# ---------------------------------------------------------------------- GDAL


def read_in_gdal(asked: Sequence[Asked]) -> list[Values | Exception]:
    """Read arrays in one process of GDAL."""
    return ask_gdal("read_all", [(one.root, one.path, one.box) for one in asked])


def ask_gdal(function: str, asked: Any) -> Any:
    """Call a function of the side of GDAL, which has no library of others in its process."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("gdal_side.py")), function]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "timeout": 300, "check": True}
    return pickle.loads(subprocess.run(command, input=pickle.dumps(asked), **how).stdout)


# ---------------------------------------------------------------------- zarrita

SIDE = Path(__file__).with_name("zarrita_side.mjs")
MAIN = """
import { readFileSync } from "node:fs";
import * as zarr from "zarrita";
import { FUNCTION } from "SIDE";
console.log(JSON.stringify(await FUNCTION(zarr, JSON.parse(readFileSync(0, "utf8")))));
"""
PAGE = """<!doctype html><meta charset="utf-8"><title>zarrita</title>
<script type="importmap">{"imports": IMPORTS}</script>
"""
IMPORTS = {
    "zarrita": "/modules/zarrita/dist/src/index.js",
    "@zarrita/storage/fetch": "/modules/@zarrita/storage/dist/src/fetch.js",
    **{
        f"numcodecs/{name}": f"/modules/numcodecs/dist/{name}.js"
        for name in ("blosc", "gzip", "lz4", "zlib", "zstd")
    },
}
"""Where a browser finds the modules that zarrita names."""


def find_modules() -> Path:
    """Return the folder of node's modules that has zarrita: its programs are on the path."""
    folders = [Path(one) for one in os.environ["PATH"].split(os.pathsep)]
    for folder in folders:
        if folder.name == ".bin" and (folder.parent / "zarrita").is_dir():
            return folder.parent
    stop_without("zarrita")


def read_in_node(asked: Sequence[Asked]) -> list[Values | Exception]:
    """Read arrays in one process of node."""
    found = ask_node("readAll", [one.as_json() for one in asked])
    return [*map(_decode, found)]


def ask_node(function: str, asked: Any = None) -> Any:
    """Call a function of the side of zarrita in node."""
    code = MAIN.replace("FUNCTION", function).replace("SIDE", SIDE.as_uri())
    return json.loads(run_in_node(code, json.dumps(asked)))


def run_in_node(code: str, given: str = "") -> str:
    """Run a module of JavaScript, which may import zarrita; return what it prints."""
    place = find_modules() / IMPORTS["zarrita"].removeprefix("/modules/")
    code = code.replace('"zarrita"', f'"{place.as_uri()}"')
    command = [needed("node"), "--input-type=module", "--eval", code]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": True}
    return subprocess.run(command, input=given, **how).stdout


class PageHandler(SimpleHTTPRequestHandler):
    """A page that loads zarrita, which lies on the same server."""

    def do_GET(self) -> None:
        if self.path == "/":
            page = PAGE.replace("IMPORTS", json.dumps(IMPORTS)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        else:
            super().do_GET()

    def translate_path(self, path: str) -> str:
        if path == f"/{SIDE.name}":
            return str(SIDE)
        return super().translate_path(path.removeprefix("/modules"))

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Browser:
    """A page of a browser, and the hosts that it asked."""

    def __init__(self, page: Any, url: str) -> None:
        self._page, self.url = page, url
        self.hosts = set[str]()
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.goto(url)

    def evaluate(self, code: str, asked: Any) -> Any:
        """Call a function of JavaScript."""
        return self._page.evaluate(code, asked)

    def read(self, asked: Sequence[Asked]) -> list[Values | Exception]:
        """Read arrays with zarrita."""
        code = f"""async (asked) => {{
            const [side, zarr] = [await import("/{SIDE.name}"), await import("zarrita")];
            return JSON.stringify(await side.readAll(zarr, asked));
        }}"""
        found = json.loads(self.evaluate(code, [one.as_json() for one in asked]))
        return [*map(_decode, found)]


@contextmanager
def browser_with_zarrita() -> Iterator[Browser]:
    """Run Chromium without a window, on a page of a server of its own."""
    handler = partial(PageHandler, directory=str(find_modules()))
    with running(handler) as server, browsing() as browser:
        yield Browser(browser.new_page(), f"{server.url}/")


def _decode(said: Mapping[str, Any]) -> Values | Exception:
    """Return an array, or the error instead of it."""
    if "error" in said:
        return OSError(said["error"])
    shape, kind = said["shape"], said["dtype"]
    if "values" in said:
        flat = np.empty(len(said["values"]), bool if kind == "bool" else object)
        flat[:] = said["values"]
    else:
        flat = np.frombuffer(bytes.fromhex(said["bytes"]), kind)
    steps = [step * flat.itemsize for step in said["stride"]]
    return np.lib.stride_tricks.as_strided(flat, shape, steps)


READERS: dict[str, Callable[[Asked], Values]] = {
    "zarr-python": read_zarr_python,
    "xarray": read_xarray,
    "tensorstore": read_tensorstore,
}
"""Readers of Python."""
