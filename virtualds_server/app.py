"""The ASGI application: its routes, its access control, and how uvicorn runs it."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from virtualds.errors import without_secrets
from virtualds_server.archive import ChunkTooLargeError, VariableNotFoundError
from virtualds_server.bodies import (
    CORS_HEADERS,
    METADATA_NAMES,
    PREFLIGHT_HEADERS,
    Body,
    BodyCache,
    Limits,
    OverloadedError,
    respond_to_get,
)
from virtualds_server.versions import (
    FORMATS,
    NotRepresentableError,
    ServedData,
    Version,
    VersionTracker,
    describe_error,
)
from virtualds_server.views import (
    MEDIA_TYPES,
    PAGE_HEADERS,
    BadRequestError,
    VersionMismatchError,
    get_view,
    read_page_files,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

INSTALL_HINT = "pip install starlette uvicorn zarr"
log = logging.getLogger("virtualds.server")

GDAL_ERROR_BODY = "!"
"""The body of a response to GDAL for a chunk that cannot be read.

GDAL takes every error status for a missing chunk and fills it. It raises an error for this body,
which is too short: no chunk of `virtualds.zarr_store` with ``readers="any"`` has one byte."""
LOOPBACK = ["localhost", "127.0.0.1"]
SOURCE_ERRORS = (OSError, ValueError, RuntimeError)
"""Errors of reading a source or a set that is broken. All others are bugs of this server."""


def create_app(
    url: Any,
    *,
    group: str | None = None,
    drop_variables: str | Iterable[str] | None = None,
    snapshot: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow: Any = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    limits: Limits | None = None,
    token: str | None = None,
) -> Starlette:
    """Return an ASGI application that serves a set or a file as plain Zarr, read only.

    ``/`` is a web page that shows it. ``/zarr/`` is the hierarchy as Zarr v3, ``/zarr2/`` the same
    as Zarr v2. ``/health`` reports whether it can be opened. Nothing is opened before the first
    request. When the set changes, its new version is served.

    Parameters
    ----------
    url : str or path, Dataset or DataTree, or ServedData
        What to serve. A `ServedData` also defines how it is opened again after a change.
    group, drop_variables, snapshot, storage_options, allow, parser, parser_options, on_error
        How to open it, as in `virtualds.zarr_store`.
    limits : Limits, optional
        Limits of threads, memory and time.
    token : str, optional
        Only browsers that have opened ``/?token=...`` with this token get access.

    Returns
    -------
    starlette.applications.Starlette

    Raises
    ------
    ImportError
        Starlette is not installed.

    Examples
    --------
    >>> app = create_app("refs.zarr", allow="/archive")
    >>> [route.path for route in app.routes]
    ['/', '/page/{name}', '/view/{name}', '/health', '/zarr/{key:path}', '/zarr2/{key:path}']
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Route
    except ImportError as error:
        raise ImportError(f"serving needs starlette ({error}); {INSTALL_HINT}") from error
    options = {
        "group": group,
        "drop_variables": drop_variables,
        "snapshot": snapshot,
        "storage_options": storage_options,
        "allow": allow,
        "parser": parser,
        "parser_options": parser_options,
        "on_error": on_error,
    }
    if on_error == "raise":
        del options["on_error"]
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(url, ServedData):
        if options:
            raise TypeError(
                f"{min(options)}= of a ServedData: give it to the function that opens it"
            )
        served = url
    else:
        served = ServedData.of(url, options)
    limits = limits or Limits()
    server = Server(VersionTracker(served, limits.check_every), BodyCache(limits))
    app = Starlette(
        routes=[
            Route("/", server.serve_page_file),
            Route("/page/{name}", server.serve_page_file),
            Route("/view/{name}", server.serve_view),
            Route("/health", server.serve_health),
            *(
                Route(f"/{name}/{{key:path}}", partial(server.serve_key, zarr_format))
                for name, zarr_format in ({} if served.is_private else FORMATS).items()
            ),
        ],
        # a page of another host whose name resolves to this server must not read (DNS rebinding)
        middleware=[
            *([Middleware(TrustedHostMiddleware, LOOPBACK)] if served.is_private else []),
            *([Middleware(TokenMiddleware, token)] if token else []),
        ],
        exception_handlers={404: handle_not_found, 405: handle_wrong_method},
        lifespan=server.lifespan,
    )
    app.state.server = server
    return app


class Server:
    """The handlers of the routes."""

    def __init__(self, tracker: VersionTracker, bodies: BodyCache) -> None:
        self.tracker, self.bodies = tracker, bodies

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Shut down the threads when the application ends."""
        yield
        self.bodies.close()

    # ------------------------------------------------------------------ Zarr

    async def serve_key(self, zarr_format: int, request: Request) -> Response:
        """Respond with the value of a Zarr key, or with 404 if there is no such key."""
        key = request.path_params["key"]
        name = key.rpartition("/")[2]
        is_metadata = name in METADATA_NAMES
        is_gdal = request.headers.get("user-agent", "").startswith("GDAL")
        try:
            version = await self._get_version(check_now=is_metadata)
            body = await self.bodies.get(
                (version.number, zarr_format, key),
                lambda: version.open_store(zarr_format).read(key),
            )
            if body is None:
                return make_text_response(404, "no such key\n", request)
            if is_gdal and name == ".zmetadata":
                body = drop_names_with_spaces(body)
            media_type = "application/json" if is_metadata else "application/octet-stream"
            return make_response(*respond_to_get(body, request.headers, media_type), request)
        except Exception as error:  # noqa: BLE001
            response = make_error_response(error, request, key)
            if is_gdal and not is_metadata:
                return make_text_response(200, GDAL_ERROR_BODY, request)
            return response

    async def _get_version(self, check_now: bool = False) -> Version:
        """Return the newest version, or the previous one if opening the newest takes too long."""
        if not check_now and (recent := self.tracker.peek()) is not None:
            return recent
        timeout = self.tracker.find_timeout(check_now)
        if timeout is not None and timeout <= 0:
            return self.tracker.get_last()
        try:
            return await self.bodies.run_version_check(lambda: self.tracker.get(check_now), timeout)
        except TimeoutError:
            if timeout is None:
                raise
            return self.tracker.get_last()

    # ------------------------------------------------------------------ health and page

    async def serve_health(self, request: Request) -> Response:
        """Respond with 200 if the set or file can be opened, else with 503 and the reason."""
        from starlette.responses import JSONResponse

        health: dict[str, Any] = {"status": "ok", "virtualds": version("virtualds")}
        status = 200
        try:
            health["version"] = (await self._get_version(check_now=True)).number
        except Exception as error:  # noqa: BLE001
            log_error(error, request)
            status = 503
            health |= {"status": "failing", "reason": format_public_error(error)}
        cors = CORS_HEADERS if allows_cross_origin(request) else {}
        return JSONResponse(health, status, headers={**cors, "cache-control": "no-store"})

    async def serve_page_file(self, request: Request) -> Response:
        """Respond with a file of the page."""
        name = request.path_params.get("name", "index.html")
        if (body := read_page_files().get(name)) is None:
            return make_text_response(404, "no such file\n", request)
        return make_page_response(body, name, request)

    async def serve_view(self, request: Request) -> Response:
        """Respond with a view: JSON or a picture that the page requests."""
        name = request.path_params["name"]
        query = dict(request.query_params)
        try:
            version = await self._get_version()
            body = await get_view(self.bodies, version, name, query)
        except VariableNotFoundError as error:
            return make_text_response(404, f"there is no variable {error.args[0]!r}\n", request)
        except BadRequestError as error:
            return make_text_response(400, f"{error}\n", request)
        except VersionMismatchError:
            return make_text_response(409, "the archive has changed\n", request)
        except ChunkTooLargeError as error:
            return make_text_response(501, f"{error}\n", request)
        except Exception as error:  # noqa: BLE001
            if self.tracker.served.is_private and isinstance(error, SOURCE_ERRORS):
                log_error(error, request)
                return make_text_response(502, f"{describe_error(error)}\n", request)
            return make_error_response(error, request, query.get("variable", ""))
        if body is None:
            return make_text_response(404, "no such view\n", request)
        return make_page_response(body, name, request, {"x-version": version.token})


# ---------------------------------------------------------------------- responses


def make_response(
    status: int, headers: Mapping[str, str], content: bytes, request: Request
) -> Response:
    """Return a response. A response to HEAD has the headers of GET, and no content."""
    from starlette.responses import Response

    if request.method == "HEAD":
        headers = {**headers, "content-length": str(len(content))}
        content = b""
    return Response(content, status, headers=dict(headers))


def make_text_response(
    status: int, text: str, request: Request, extra_headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response of plain text."""
    headers = {
        **(CORS_HEADERS if allows_cross_origin(request) else {}),
        "content-type": "text/plain; charset=utf-8",
        "cache-control": "no-cache" if status == 404 else "no-store",
        "x-content-type-options": "nosniff",
        **(extra_headers or {}),
    }
    return make_response(status, headers, text.encode(), request)


def make_page_response(
    body: Body, name: str, request: Request, extra_headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that only the page of this server may read: it has no CORS headers."""
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    headers = {**PAGE_HEADERS, **(extra_headers or {})}
    return make_response(*respond_to_get(body, request.headers, media_type, headers), request)


def allows_cross_origin(request: Request) -> bool:
    """Return whether pages of other origins may read the response (CORS)."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    is_private = request.app.state.server.tracker.served.is_private
    return not is_private and path.lstrip("/").partition("/")[0] in (*FORMATS, "health")


def drop_names_with_spaces(body: Body) -> Body:
    """Return consolidated metadata of Zarr v2 without arrays and groups whose names have spaces.

    GDAL cannot request a url with a space, and would fill all chunks of such an array.
    """
    document = json.loads(body.data)
    metadata = {key: value for key, value in document["metadata"].items() if " " not in key}
    return Body.of(json.dumps(document | {"metadata": metadata}).encode())


async def handle_not_found(request: Request, error: Exception) -> Response:
    """Respond to a path that has no route."""
    return make_text_response(404, "nothing is here; see / and /zarr/zarr.json\n", request)


async def handle_wrong_method(request: Request, error: Exception) -> Response:
    """Respond to a CORS preflight request, and refuse other methods."""
    if request.method == "OPTIONS":
        return make_response(204, PREFLIGHT_HEADERS, b"", request)
    return make_text_response(
        405, "read only: GET or HEAD\n", request, {"allow": "GET, HEAD, OPTIONS"}
    )


def make_error_response(error: Exception, request: Request, key: str) -> Response:
    """Return the response to a failed request; never 404, which readers take for missing chunks."""
    log_error(error, request)
    if isinstance(error, TimeoutError):
        return make_text_response(504, "the source did not answer in time\n", request)
    if isinstance(error, OverloadedError):
        return make_text_response(
            503, "too many requests wait; try again\n", request, {"retry-after": "1"}
        )
    if isinstance(error, SOURCE_ERRORS):
        status = 501 if isinstance(error, NotImplementedError) else 502
    else:
        status = 500
    return make_text_response(status, f"{format_public_error(error, key)}\n", request)


def log_error(error: Exception, request: Request) -> None:
    """Log an error without secrets, with its traceback if it is a bug of this server."""
    if isinstance(error, OverloadedError):
        # an overloaded server would log too much; uvicorn logs the request
        return
    if isinstance(error, SOURCE_ERRORS):
        log.warning("%s: %s", request.url.path, describe_error(error))
    else:
        text = without_secrets("".join(traceback.format_exception(error)))
        log.error("%s: %s", request.url.path, text)


def format_public_error(error: BaseException, key: str = "") -> str:
    """Return the type of an error, and the requested key, without the message of the error.

    Messages may contain folders and urls, so they are only written to the log of the server.

    Examples
    --------
    >>> format_public_error(OSError("https://me:pw@example.org/a.nc: it is gone"), "t/c/0/0")
    'OSError: t/c/0/0 cannot be read; the log of the server says why'
    """
    if isinstance(error, NotRepresentableError):
        return error.reason
    problem = f"{key} cannot be read" if key else "it cannot be opened"
    return f"{type(error).__name__}: {problem}; the log of the server says why"


# ---------------------------------------------------------------------- access

REFUSAL = "open the address that virtualds view has printed, with its token\n"


class TokenMiddleware:
    """Middleware that refuses requests without the token.

    It protects a private page against other users of the machine and against other web pages. The
    printed url has the token as a parameter. The token is stored as a cookie, and the browser is
    redirected to the url without the token, so that shared links do not contain it.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        # cookies are shared by all ports of a machine
        self._cookie = f"virtualds-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Redirect or refuse the request, or pass it on to the application."""
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._is_token(request.query_params.get("token")):
            handler: Any = RedirectResponse(request.url.path, 303)
            handler.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        elif self._is_token(request.cookies.get(self._cookie)):
            handler = self._app
        else:
            handler = PlainTextResponse(REFUSAL, 403, {"cache-control": "no-store"})
        await handler(scope, receive, send)

    def _is_token(self, text: str | None) -> bool:
        return text is not None and hmac.compare_digest(text.encode(), self._token.encode())


# ---------------------------------------------------------------------- uvicorn

MAX_CONNECTIONS = 2000
"""Maximum number of connections; requests on further connections get the status 503."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 means any free port.

    Raises
    ------
    OSError
        This machine does not have the address, or the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off, which delays responses by 40 ms, only if the protocol
    # is given
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise OSError(
            f"host={host!r} port={port}: {error.strerror or error}; give another port or host"
        ) from error
    return listener


def get_socket_url(listener: socket.socket) -> str:
    """Return the url at which a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def make_uvicorn_server(app: Any, logs_requests: bool = True) -> Any:
    """Return a uvicorn server that logs to standard error."""
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(f"serving needs uvicorn ({error}); {INSTALL_HINT}") from error
    # the command prints its result to standard output
    log_config = deepcopy(uvicorn.config.LOGGING_CONFIG)
    log_config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    log_config["loggers"]["virtualds.server"] = {
        "handlers": ["default"],
        "level": "INFO",
        "propagate": False,
    }
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=log_config,
            log_level="info" if logs_requests else "warning",
            limit_concurrency=MAX_CONNECTIONS,
            server_header=False,
        )
    )


def run(server: Any, listener: socket.socket) -> None:
    """Serve until Ctrl-C or a signal stops the process."""
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
