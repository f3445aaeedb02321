"""A server of sets and files as plain Zarr over HTTP, outside the library.

It opens and reads them with the public functions of the library, as users do. It also uses modules
that detect changes of a set and that remove secrets from text; `tests/test_layout.py` lists them.

``virtualds serve`` starts it, and any ASGI server runs the application of `create_app`.
"""

from virtualds_server.app import create_app
from virtualds_server.bodies import Limits
from virtualds_server.versions import ServedData

__all__ = ["Limits", "ServedData", "create_app"]
