"""A server of sets and files as plain Zarr over HTTP: a client that uses the library as users do.

``virtualds serve`` starts it, and any ASGI server runs what `create_app` returns.
"""

from virtualds_server.app import create_app
from virtualds_server.limits import Limits
from virtualds_server.versions import Served

__all__ = ["Limits", "Served", "create_app"]
