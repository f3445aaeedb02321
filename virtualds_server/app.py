"""The ASGI application: its routes, and errors as answers."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from virtualds.errors import without_secrets
from virtualds_server.answers import EXPOSED, METADATA_NAMES, PREFLIGHT, answer_request
from virtualds_server.archive import NoSuchVariableError, TooLargeError
from virtualds_server.bodies import Bodies, Body, OverloadedError
from virtualds_server.guard import Guard
from virtualds_server.limits import Limits
from virtualds_server.slices import BadRequestError
from virtualds_server.versions import (
    FORMATS,
    Follower,
    NoFormError,
    Served,
    Version,
    describe_error,
)
from virtualds_server.views import (
    MEDIA,
    PAGE_HEADERS,
    OtherVersionError,
    find_view,
    read_page,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

NEEDED = "pip install starlette uvicorn zarr"
log = logging.getLogger("virtualds.server")

NO_CHUNK = "!"
"""What GDAL gets for a chunk that cannot be read: it takes every status of an error for a missing
chunk, and fills it. This is too short for any chunk (`virtualds.zarr_store` with
``readers="any"`` has none of one byte), so that GDAL raises an error."""
LOOPBACK = ["localhost", "127.0.0.1"]
SOURCE_ERRORS = (OSError, ValueError, RuntimeError)
"""What reading raises if a source, or the set itself, is broken. Others are mistakes of ours."""


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

    ``/`` is a page that shows it. ``/zarr/`` is the hierarchy as Zarr v3, ``/zarr2/`` the same as
    Zarr v2. ``/health`` says whether it can be read. Nothing is opened before the first request.
    When the set changes, its new version is served.

    Parameters
    ----------
    url : str or path, Dataset or DataTree, or Served
        What to serve; `Served` says how to open it again.
    group, drop_variables, snapshot, storage_options, allow, parser, parser_options, on_error
        How to open it, as in `virtualds.zarr_store`.
    limits : Limits, optional
        Threads, memory and seconds that it may use.
    token : str, optional
        Only browsers get in that have brought this token once, as ``/?token=...``.

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
        raise ImportError(f"serving needs starlette ({error}); {NEEDED}") from error
    opening = {
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
        del opening["on_error"]
    given = {key: value for key, value in opening.items() if value is not None}
    if isinstance(url, Served):
        if given:
            raise TypeError(f"{min(given)}= of a Served: give it to the function that opens it")
        served = url
    else:
        served = Served.of(url, given)
    limits = limits or Limits()
    server = Server(Follower(served, limits.check_every), Bodies(limits))
    app = Starlette(
        routes=[
            Route("/", server.show_file),
            Route("/page/{name}", server.show_file),
            Route("/view/{name}", server.show_view),
            Route("/health", server.tell_health),
            *(
                Route(f"/{name}/{{key:path}}", partial(server.serve_key, kind))
                for name, kind in ({} if served.is_private else FORMATS).items()
            ),
        ],
        # a name of another server that leads here is a trick of a page of that server
        middleware=[
            *([Middleware(TrustedHostMiddleware, LOOPBACK)] if served.is_private else []),
            *([Middleware(Guard, token)] if token else []),
        ],
        exception_handlers={404: answer_unknown, 405: answer_method},
        lifespan=server.live,
    )
    app.state.server = server
    return app


class Server:
    """The functions behind the routes."""

    def __init__(self, follower: Follower, bodies: Bodies) -> None:
        self.follower, self.bodies = follower, bodies

    @asynccontextmanager
    async def live(self, app: Starlette) -> AsyncIterator[None]:
        """Let the threads end with the application."""
        yield
        self.bodies.close()

    # ------------------------------------------------------------------ Zarr

    async def serve_key(self, kind: int, request: Request) -> Response:
        """Answer with the value of a key, or a part of it; 404 if Zarr has no such key.

        ``kind`` is the version of Zarr.
        """
        key = request.path_params["key"]
        name = key.rpartition("/")[2]
        is_metadata = name in METADATA_NAMES
        is_gdal = request.headers.get("user-agent", "").startswith("GDAL")
        try:
            # the whole answer comes from this version
            current = await self._find_version(at_once=is_metadata)
            body = await self.bodies.get(
                (current.number, kind, key), lambda: current.open_store(kind).read(key)
            )
            if body is None:
                return answer_text(404, "no such key\n", request)
            if is_gdal and name == ".zmetadata":
                body = hide_spaces(body)
            media = "application/json" if is_metadata else "application/octet-stream"
            found = answer_request(body, request.headers, media)
            return make_response(found.status, found.headers, found.content, request)
        except Exception as error:  # noqa: BLE001
            answer = answer_error(error, request, key)
            return answer_text(200, NO_CHUNK, request) if is_gdal and not is_metadata else answer

    async def _find_version(self, at_once: bool = False) -> Version:
        """Return the newest version, or the one before if finding the newest takes long."""
        if not at_once and (recent := self.follower.peek()) is not None:
            return recent
        patience = self.follower.find_patience(at_once)
        if patience is not None and patience <= 0:
            return self.follower.answer()
        try:
            return await self.bodies.look(lambda: self.follower.get(at_once), patience)
        except TimeoutError:
            if patience is None:
                raise
            return self.follower.answer()

    # ------------------------------------------------------------------ for people

    async def tell_health(self, request: Request) -> Response:
        """Answer whether what is served can be opened."""
        from starlette.responses import JSONResponse

        said: dict[str, Any] = {"status": "ok", "virtualds": version("virtualds")}
        status = 200
        try:
            said["version"] = (await self._find_version(at_once=True)).number
        except Exception as error:  # noqa: BLE001
            log_error(error, request)
            status, said = 503, said | {"status": "failing", "reason": give_reason(error)}
        headers = {**(EXPOSED if allows_cross_origin(request) else {}), "cache-control": "no-store"}
        return JSONResponse(said, status, headers=headers)

    async def show_file(self, request: Request) -> Response:
        """Answer with a file of the page."""
        name = request.path_params.get("name", "index.html")
        if (body := read_page().get(name)) is None:
            return answer_text(404, "no such file\n", request)
        return answer_page(body, name, request)

    async def show_view(self, request: Request) -> Response:
        """Answer a question of the page."""
        name = request.path_params["name"]
        query = dict(request.query_params)
        try:
            current = await self._find_version()
            body = await find_view(self.bodies, current, name, query)
        except NoSuchVariableError as error:
            return answer_text(404, f"there is no variable {error.args[0]!r}\n", request)
        except BadRequestError as error:
            return answer_text(400, f"{error}\n", request)
        except OtherVersionError:
            return answer_text(409, "the archive has changed\n", request)
        except TooLargeError as error:
            return answer_text(501, f"{error}\n", request)
        except Exception as error:  # noqa: BLE001
            if self.follower.served.is_private and isinstance(error, SOURCE_ERRORS):
                log_error(error, request)
                return answer_text(502, f"{describe_error(error)}\n", request)
            return answer_error(error, request, query.get("variable", ""))
        if body is None:
            return answer_text(404, "no such question\n", request)
        return answer_page(body, name, request, {"x-version": current.token})


# ---------------------------------------------------------------------- answers


def make_response(
    status: int, headers: Mapping[str, str], content: bytes, request: Request
) -> Response:
    """Return a response; to HEAD one without content, with the length that GET has."""
    from starlette.responses import Response

    if request.method == "HEAD":
        headers = {**headers, "content-length": str(len(content))}
        content = b""
    return Response(content, status, headers=dict(headers))


def answer_text(
    status: int, text: str, request: Request, more: Mapping[str, str] | None = None
) -> Response:
    """Return a short answer for people."""
    headers = {
        **(EXPOSED if allows_cross_origin(request) else {}),
        "content-type": "text/plain; charset=utf-8",
        "cache-control": "no-cache" if status == 404 else "no-store",
        "x-content-type-options": "nosniff",
        **(more or {}),
    }
    return make_response(status, headers, text.encode(), request)


def answer_page(
    body: Body, name: str, request: Request, more: Mapping[str, str] | None = None
) -> Response:
    """Answer with something that only the page of this server may read."""
    media = MEDIA[name.rpartition(".")[2]]
    found = answer_request(body, request.headers, media, {**PAGE_HEADERS, **(more or {})})
    return make_response(found.status, found.headers, found.content, request)


def allows_cross_origin(request: Request) -> bool:
    """Return whether pages of other origins may read the response (CORS)."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    is_private = request.app.state.server.follower.served.is_private
    return not is_private and path.lstrip("/").partition("/")[0] in (*FORMATS, "health")


def hide_spaces(body: Body) -> Body:
    """Return consolidated metadata of Zarr v2 without arrays and groups whose names have spaces.

    GDAL asks for no url with a space, and would fill all chunks of such an array.
    """
    said = json.loads(body.data)
    kept = {key: value for key, value in said["metadata"].items() if " " not in key}
    return Body.of(json.dumps(said | {"metadata": kept}).encode())


async def answer_unknown(request: Request, error: Exception) -> Response:
    """Answer a path that no route has."""
    return answer_text(404, "nothing is here; see / and /zarr/zarr.json\n", request)


async def answer_method(request: Request, error: Exception) -> Response:
    """Answer a browser that asks whether it may ask, and refuse other methods."""
    if request.method == "OPTIONS":
        return make_response(204, PREFLIGHT, b"", request)
    return answer_text(405, "read only: GET or HEAD\n", request, {"allow": "GET, HEAD, OPTIONS"})


def answer_error(error: Exception, request: Request, key: str) -> Response:
    """Answer a request that failed; never with 404, which readers take for missing values."""
    log_error(error, request)
    if isinstance(error, TimeoutError):
        return answer_text(504, "the source did not answer in time\n", request)
    if isinstance(error, OverloadedError):
        return answer_text(
            503, "too many requests wait; try again\n", request, {"retry-after": "1"}
        )
    if isinstance(error, SOURCE_ERRORS):
        status = 501 if isinstance(error, NotImplementedError) else 502
    else:
        status = 500
    return answer_text(status, f"{give_reason(error, key)}\n", request)


def log_error(error: Exception, request: Request) -> None:
    """Log all that an error says but secrets; of a mistake of ours also where it happened."""
    if isinstance(error, OverloadedError):
        # requests are logged already, and there are too many
        return
    if isinstance(error, SOURCE_ERRORS):
        log.warning("%s: %s", request.url.path, describe_error(error))
    else:
        text = without_secrets("".join(traceback.format_exception(error)))
        log.error("%s: %s", request.url.path, text)


def give_reason(error: BaseException, key: str = "") -> str:
    """Return the kind of an error, and the key that was asked for; the log has its message.

    Messages are for those who run the server: they name folders and urls, in any form.

    Examples
    --------
    >>> give_reason(OSError("https://me:pw@example.org/a.nc?token=abc: it is gone"), "t/c/0/0")
    'OSError: t/c/0/0 cannot be read; the log of the server says why'
    """
    if isinstance(error, NoFormError):
        return error.reason
    what = f"{key} cannot be read" if key else "it cannot be opened"
    return f"{type(error).__name__}: {what}; the log of the server says why"
