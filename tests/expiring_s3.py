"""An S3 server that knows session tokens, and forgets them: it stands before another one.

It also gives tokens, at ``/token``, as the endpoints of an archive do that let users into buckets.
"""

import json
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from counting_server import Counts, ProxyHandler
from range_server import running

EXPIRED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message></Error>"
)


@dataclass
class Tokens:
    """Which tokens are good, and how they are given."""

    url: str = ""
    good: set[str] = field(default_factory=set)
    given: list[str] = field(default_factory=list)
    life: float | None = None
    """How many seconds tokens say that they live; None says nothing."""
    uses: int = 10**9
    """How many requests are answered before all tokens expire."""
    answered: int = 0

    def give(self) -> dict[str, str]:
        token = f"token-{uuid.uuid4().hex}"
        self.good.add(token)
        self.given.append(token)
        keys = {"accessKeyId": "nobody", "secretAccessKey": "nothing", "sessionToken": token}
        if self.life is not None:
            keys["expiration"] = str(datetime.now(UTC) + timedelta(seconds=self.life))
        return keys

    def spend(self, token: str) -> bool:
        """Say whether a token is good, and let tokens expire that were used often enough."""
        known = token in self.good
        self.answered += known
        if self.answered >= self.uses:
            self.good.clear()
            self.answered = 0
        return known


class TokenHandler(ProxyHandler):
    """What the server behind answers to those who have a token."""

    def pass_on(self, behind: str) -> None:
        tokens: Tokens = self.server.tokens  # type: ignore[attr-defined]
        if self.path == "/token":
            self.send_short(200, json.dumps(tokens.give()).encode())
        elif tokens.spend(self.headers.get("x-amz-security-token", "")):
            super().pass_on(behind)
        else:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_short(400, EXPIRED)

    def send_short(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.pass_on(self.server.behind)  # type: ignore[attr-defined]

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


@contextmanager
def expiring_s3(options: dict[str, Any]) -> Iterator[Tokens]:
    """Stand before the S3 server that options lead to; give its tokens and its url."""
    tokens = Tokens()
    behind = urlsplit(options["client_kwargs"]["endpoint_url"]).netloc
    with running(TokenHandler, tokens=tokens, counts=Counts(), behind=behind) as server:
        tokens.url = server.url
        yield tokens


def fetch_token(url: str) -> dict[str, str]:
    """Ask a server for a token, as a function of a user does, in any process."""
    with urllib.request.urlopen(f"{url}/token") as answer:
        return dict(json.load(answer))


def renewing_options(tokens: Tokens) -> dict[str, Any]:
    """Return the options of a user whose tokens are renewed."""
    return {
        "credentials": partial(fetch_token, tokens.url),
        "client_kwargs": {"endpoint_url": tokens.url, "region_name": "us-east-1"},
    }
