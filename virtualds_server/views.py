"""What the page asks for: its own files, and by name pictures and facts of what is served."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from virtualds_server.archive import Archive
from virtualds_server.bodies import Bodies, Body
from virtualds_server.colours import list_maps
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

MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "png": "image/png",
}
PAGE_HEADERS = {
    # no other origins, and no inline scripts
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

QUESTIONS: dict[str, Callable[[Archive, Mapping[str, str]], dict[str, Any]]] = {
    "dimensions.json": describe_dimensions,
    "variable.json": lambda archive, query: archive.describe_variable(query.get("variable", "")),
    "series.json": read_series,
    "point.json": read_point,
    "value.json": read_value,
    "values.json": read_values,
}
"""What is answered by the name in the path, besides pictures and the table of contents."""


class OtherVersionError(Exception):
    """A picture of a version is asked for that is not served any more."""


@cache
def read_page() -> dict[str, Body]:
    """Return the files of the page by their names."""
    folder = files("virtualds_server") / "page"
    return {file.name: Body.of(file.read_bytes()) for file in folder.iterdir() if file.is_file()}


async def find_view(
    bodies: Bodies, version: Version, name: str, query: Mapping[str, str]
) -> Body | None:
    """Return the answer to a question of the page, or None if there is no such question."""
    key = (version.number, name, *sorted(f"{k}={v}" for k, v in query.items()))
    archive = await bodies.run(version.open_archive)
    if name == "contents.json":
        served = version.served
        told = {
            "name": served.name,
            "version": version.token,
            "number": version.number,
            "maps": list_maps(),
            "code": served.code if served.is_private else None,
            "zarr": not served.is_private,
        }
        return await bodies.get(key, lambda: encode({**told, **archive.describe()}))
    if name in QUESTIONS:
        return await bodies.get(key, lambda: encode(QUESTIONS[name](archive, query)))
    if name not in ("slice.json", "picture.png"):
        return None
    if query.get("version", version.token) != version.token:
        raise OtherVersionError
    shown = Slice(archive, Selection.of(query), query)
    # the values are kept, so that other colours of them need no chunk
    values_key = (version.number, "values", await bodies.run(lambda: shown.key))
    values = await bodies.get(values_key, shown.read)
    assert values is not None
    if name == "picture.png":
        return await bodies.get(key, lambda: shown.draw(shown.parse(values.data)))
    told = {"version": version.token}
    return await bodies.get(
        key, lambda: encode({**told, **shown.describe(shown.parse(values.data))})
    )


def encode(said: Mapping[str, Any]) -> bytes:
    """Return JSON; a number that it has no form for is an error."""
    return json.dumps(said, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
