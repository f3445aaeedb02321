"""The files of the page, and its views: JSON and pictures that the page requests by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from virtualds_server.archive import Archive
from virtualds_server.bodies import Body, BodyCache
from virtualds_server.colours import list_css_colours
from virtualds_server.slices import (
    Selection,
    Slice,
    describe_dimensions,
    read_point,
    read_series,
    read_value,
    read_values,
)
from virtualds_server.versions import Version

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "png": "image/png",
}
PAGE_HEADERS = {
    # allow no other origins, and no inline scripts
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

VIEWS: dict[str, Callable[[Archive, Mapping[str, str]], dict[str, Any]]] = {
    "dimensions.json": describe_dimensions,
    "variable.json": lambda archive, query: archive.describe_variable(query.get("variable", "")),
    "series.json": read_series,
    "point.json": read_point,
    "value.json": read_value,
    "values.json": read_values,
}
"""Functions of views by their names, without ``contents.json``, ``slice.json``, ``picture.png``."""


class VersionMismatchError(Exception):
    """A request asks for a version that is no longer served."""


@cache
def read_page_files() -> dict[str, Body]:
    """Return the files of the page by name."""
    folder = files("virtualds_server") / "page"
    return {file.name: Body.of(file.read_bytes()) for file in folder.iterdir() if file.is_file()}


async def get_view(
    bodies: BodyCache, version: Version, name: str, query: Mapping[str, str]
) -> Body | None:
    """Return the body of a view, or None if there is no view of this name."""
    key = (version.number, name, *sorted(f"{k}={v}" for k, v in query.items()))
    archive = await bodies.run(version.open_archive)
    if name == "contents.json":
        served = version.served
        header = {
            "name": served.name,
            "version": version.token,
            "number": version.number,
            "maps": list_css_colours(),
            "code": served.code if served.is_private else None,
            "zarr": not served.is_private,
        }
        return await bodies.get(key, lambda: encode_json({**header, **archive.describe()}))
    if name in VIEWS:
        return await bodies.get(key, lambda: encode_json(VIEWS[name](archive, query)))
    if name not in ("slice.json", "picture.png"):
        return None
    if query.get("version", version.token) != version.token:
        raise VersionMismatchError
    view = Slice(archive, Selection.of(query), query)
    # cache the values apart from the picture, so that other colours need no chunks
    values_key = (version.number, "values", await bodies.run(lambda: view.key))
    values = await bodies.get(values_key, view.read)
    assert values is not None
    if name == "picture.png":
        return await bodies.get(key, lambda: view.draw(view.parse(values.data)))
    header = {"version": version.token}
    return await bodies.get(
        key, lambda: encode_json({**header, **view.describe(view.parse(values.data))})
    )


def encode_json(document: Mapping[str, Any]) -> bytes:
    """Encode a document as JSON. Raises `ValueError` for NaN and infinite numbers."""
    return json.dumps(document, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
