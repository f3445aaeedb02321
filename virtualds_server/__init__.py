"""A server of sets and files as plain Zarr over HTTP: a client beside the library.

It opens and reads what it serves by the public names, as users do. Besides them it uses modules of
the library that tell whether a set has changed, and leave secrets out; `tests/test_layout.py` lists
them.

``virtualds serve`` starts it, and any ASGI server runs what `create_app` returns.
"""

from virtualds_server.app import create_app
from virtualds_server.limits import Limits
from virtualds_server.versions import Served

__all__ = ["Limits", "Served", "create_app"]
