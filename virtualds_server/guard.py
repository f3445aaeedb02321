"""Access control of a private page, against other users of the machine and other web pages."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

REFUSAL = "open the address that virtualds view has printed, with its token\n"


class TokenMiddleware:
    """Middleware that refuses requests without the token.

    The url that is printed has the token as a parameter. It is stored as a cookie, and the browser
    is redirected to the url without it, so that links which users share do not have it.
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
