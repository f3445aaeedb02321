"""Three servers on loopback that let users in as NASA Earthdata does; they are not the service.

The archive redirects whoever has no session to the login host, and whoever shows a token, or has a
session, to a signed url at the storage host. The login host looks for a token and redirects back.
The storage host knows signed urls alone. Like S3, it refuses requests that show a token as well.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from range_server import RangeHandler, running


@dataclass
class Earthdata:
    """The servers: where they are, what they know, and what they were asked."""

    token: str = "right"
    takes_tokens: bool = True
    """Whether the archive itself takes tokens, or only the login host."""
    answers_with_a_page: bool = False
    """Whether the login host answers strangers with a page, in place of 401."""
    uses: int = 10**9
    """How many requests a signed url is good for."""
    stale: int = 0
    """How many of the next signed urls have expired when they arrive."""
    signatures: dict[str, int] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    asked: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    archive: str = ""
    login: str = ""
    storage: str = ""

    def knows(self, headers: Any) -> bool:
        return str(headers.get("Authorization")) == f"Bearer {self.token}"

    def sign(self) -> str:
        name = uuid.uuid4().hex
        self.signatures[name] = 0 if self.stale > 0 else self.uses
        self.stale -= 1
        return name


class Host(RangeHandler):
    """What the three have in common."""

    name = ""

    @property
    def earthdata(self) -> Earthdata:
        return self.server.earthdata  # type: ignore[attr-defined, no-any-return]

    def send_head(self) -> Any:
        self.earthdata.asked.setdefault(self.name, []).append(dict(self.headers))
        found = urlsplit(self.path)
        return self.answer(found.path, {k: v[0] for k, v in parse_qs(found.query).items()})

    def answer(self, path: str, query: dict[str, str]) -> Any:
        raise NotImplementedError

    def send_short(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Archive(Host):
    name = "archive"

    def answer(self, path: str, query: dict[str, str]) -> Any:
        service = self.earthdata
        if path == "/session":
            session = uuid.uuid4().hex
            service.sessions.add(session)
            back = {"Location": query["state"], "Set_Cookie": f"session={session}; Path=/"}
            return self.send_short(302, **back)
        cookie = self.headers.get("Cookie", "").removeprefix("session=")
        if cookie in service.sessions or (service.takes_tokens and service.knows(self.headers)):
            to = f"{service.storage}{path}?X-Amz-Signature={service.sign()}"
            return self.send_short(303, Location=to)
        return self.send_short(302, Location=f"{service.login}/authorize?state={path}")


class Login(Host):
    name = "login"

    def answer(self, path: str, query: dict[str, str]) -> Any:
        service = self.earthdata
        if service.knows(self.headers):
            to = f"{service.archive}/session?state={query['state']}"
            return self.send_short(302, Location=to)
        status = 200 if service.answers_with_a_page else 401
        page = b"<!DOCTYPE html><html>Log in</html>"
        return self.send_short(status, page, Content_Type="text/html")


class Storage(Host):
    name = "storage"

    def answer(self, path: str, query: dict[str, str]) -> Any:
        signature = query.get("X-Amz-Signature", "")
        if "Authorization" in self.headers:
            return self.send_short(400, b"<Error><Code>InvalidArgument</Code></Error>")
        left = self.earthdata.signatures.get(signature, 0)
        # a url is signed for one method
        if left <= 0 or self.command != "GET":
            return self.send_short(403, b"<Error><Message>Request has expired</Message></Error>")
        self.earthdata.signatures[signature] = left - 1
        self.path = path
        return RangeHandler.send_head(self)


@contextmanager
def earthdata_server(folder: Path) -> Iterator[Earthdata]:
    """Serve the files of a folder to those who log in."""
    service = Earthdata()
    with ExitStack() as stack:
        for kind in (Archive, Login, Storage):
            handler = partial(kind, directory=str(folder))
            server = stack.enter_context(running(handler, earthdata=service, ranges=[]))
            # aiohttp keeps no cookies of numbered hosts, and those of one name for all its ports
            url = server.url.replace("127.0.0.1", "localhost") if kind is Archive else server.url
            setattr(service, kind.name, url)
        yield service
