"""The guard of a private page: other users of the machine, and other pages, do not get in."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

REFUSAL = "open the address that virtualds view has printed, with its token\n"


class Guard:
    """Middleware that answers only a browser that has brought the token once.

    The token is in the address that is printed. The browser gets it as a cookie, and goes on to the
    same address without it, so that it is in no link that is shared.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        # cookies are shared by all ports of a machine
        self._cookie = f"virtualds-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._is_token(request.query_params.get("token")):
            answer: Any = RedirectResponse(request.url.path, 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        elif self._is_token(request.cookies.get(self._cookie)):
            answer = self._app
        else:
            answer = PlainTextResponse(REFUSAL, 403, {"cache-control": "no-store"})
        await answer(scope, receive, send)

    def _is_token(self, text: str | None) -> bool:
        return text is not None and hmac.compare_digest(text.encode(), self._token.encode())
