"""Versions of files in fsspec filesystems, and conditional writes, which expect a version.

Object stores and the memory of this process have conditional writes. Each kind of object store is
one module and one line here.
"""

from __future__ import annotations

from typing import Any

from virtualds.stores.conditional.azure import InAzure
from virtualds.stores.conditional.by_content import ByContent, InMemory, list_protocols
from virtualds.stores.conditional.google import InGoogle
from virtualds.stores.conditional.s3 import InS3
from virtualds.urls import KINDS

_VERSIONING: dict[str, ByContent] = {
    "memory": InMemory(),
    **dict.fromkeys(KINDS["s3"], InS3()),
    **dict.fromkeys(KINDS["gs"], InGoogle()),
    **dict.fromkeys(KINDS["az"], InAzure()),
}
"""Versioning by protocol; other filesystems have no conditional writes."""

_ANY_OTHER = ByContent()


def find_versioning(filesystem: Any) -> ByContent:
    """Return the versioning of the files of a filesystem."""
    ways = (
        _VERSIONING[protocol] for protocol in list_protocols(filesystem) if protocol in _VERSIONING
    )
    # another library may implement the same protocol
    return next((way for way in ways if hasattr(filesystem, way.needs)), _ANY_OTHER)
