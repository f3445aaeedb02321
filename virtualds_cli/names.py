"""The names that shells complete: variables, dimensions and groups of a local reference set.

A shell waits for its user, so only one small JSON document is read, and no library is imported.
Whatever is not there, or not as expected, has no names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

MOST_BYTES = 2**22
"""Bytes of a document that is read in a twentieth of a second."""
DOCUMENTS = ("zarr.json", ".zmetadata", "")
"""The documents of zarr-v3, kerchunk-parquet and kerchunk-json, within the set."""
ARGUMENTS = ("url", "target", "source")
"""Arguments of commands that may be a set."""
MISSHAPEN_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading something else than a set raises."""


class Node(NamedTuple):
    """An array or group of a set: its path, and the dimensions of an array."""

    path: str
    dims: tuple[str, ...] | None = None


class Name(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A name that shells complete with those in the set on the command line.

    Parameters
    ----------
    kind : {"variable", "dimension", "group"}
    """

    def __init__(self, kind: str = "variable") -> None:
        self.kind = kind

    @property
    def name(self) -> str:  # type: ignore[override]
        """What help shows in place of a value."""
        return "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin as the user has typed."""
        # click keeps arguments apart while the value of the last option is missing
        given = [*(ctx.params.get(argument) for argument in ARGUMENTS), *ctx.args]
        found = (list_names(url, self.kind) for url in given if isinstance(url, str))
        names = next((names for names in found if names), [])
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def list_names(url: str, kind: str) -> list[str]:
    """Return the names of one kind in a local set, each once."""
    nodes = list_nodes(url)
    if kind == "group":
        return [node.path for node in nodes if node.dims is None and node.path]
    if kind == "dimension":
        found = (dim for node in nodes for dim in node.dims or ())
    else:
        found = (node.path.rpartition("/")[2] for node in nodes if node.dims is not None)
    return list(dict.fromkeys(found))


def list_nodes(url: str) -> list[Node]:
    """Return the arrays and groups of a local set; none if there is no such set."""
    for document in DOCUMENTS:
        path = os.path.join(os.path.expanduser(url.removeprefix("file://")), document).rstrip("/")
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= MOST_BYTES:
                with open(path, encoding="utf-8") as file:
                    return list(_read_nodes(json.load(file)))
        except MISSHAPEN_ERRORS:
            return []
    return []


def _read_nodes(found: Mapping[str, Any]) -> Iterator[Node]:
    if "consolidated_metadata" in found:
        # Zarr v3: the form in which zarr-python consolidates metadata
        for path, node in found["consolidated_metadata"]["metadata"].items():
            is_array = node["node_type"] == "array"
            yield Node(path, tuple(node.get("dimension_names") or ()) if is_array else None)
        return
    # Zarr v2, or kerchunk: keys of metadata beside keys of chunks, as documents or their texts
    keys: Mapping[str, Any] = found.get("metadata") or found.get("refs") or found
    for key in keys:
        path, _, last = key.rpartition("/")
        if last == ".zgroup":
            yield Node(path)
        elif last == ".zarray":
            attributes = keys.get(f"{path}/.zattrs", {})
            parsed = json.loads(attributes) if isinstance(attributes, str) else attributes
            yield Node(path, tuple(parsed.get("_ARRAY_DIMENSIONS", ())))
