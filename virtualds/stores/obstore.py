"""Ranges of bytes through obstore, where it is installed and the options translate.

obstore is only a shortcut. Where it fails, fsspec asks again, and the user sees the answer or error
of fsspec.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.request import getproxies

from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.obstore_options import Translation, split_url, translate_options
from virtualds.stores.pace import TooSlowError, join_parts, seconds_for
from virtualds.stores.responses import Answer
from virtualds.stores.retry import CONNECT_TIMEOUT, PASSING_STATUSES, READ_TIMEOUT, BrokenAnswer

FAILURES, REST = 3, 60.0
"""Failures in a row after which a store rests, and the seconds of the rest."""

LONG_ANSWER = 2**23
"""Bytes: the time that a request may take is told to obstore once, for answers of this length."""


HARMLESS = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"}
    | {"AWS_CA_BUNDLE", "AWS_PAGER", "AWS_EXECUTION_ENV", "AWS_EC2_METADATA_DISABLED"}
    | {"AWS_SHARED_CREDENTIALS_FILE"}
)
"""Variables that obstore ignores, or that the options it is told come before."""

ENVIRONMENT = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Beginnings of the variables that obstore reads."""

NO_RETRIES = {
    "max_retries": 0,
    "retry_timeout": timedelta(0),
    "backoff": {"init_backoff": timedelta(0), "max_backoff": timedelta(0), "base": 2},
}
"""Asking again is ours to do."""

_STATUS = re.compile(r"status code: (\d{3})")
_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    # the threads of obstore stay in the parent, and the child would wait for them for ever
    os.register_at_fork(after_in_child=_note_fork)


class _Client:
    """One store of obstore, which all threads share."""

    def __init__(
        self, store: Any, get: Any, errors: tuple[type[BaseException], ...], is_http: bool
    ) -> None:
        self.store, self.get, self.errors, self.is_http = store, get, errors, is_http
        self.failures, self.rests_until = 0, 0.0

    def fetch(self, path: str, offset: int, length: int) -> Answer | BaseException:
        """Return an answer, or the error that obstore raised."""
        begun = time.monotonic()
        try:
            found = self.get(self.store, path, options={"range": (offset, offset + length)})
            if self.is_http and "Content-Encoding" in found.attributes:
                return BrokenAnswer("the server compresses what it sends")
            meta, (first, end) = found.meta, found.range
            data = join_parts((bytes(part) for part in found.stream(1)), begun)
            answer = Answer(data, meta["e_tag"], meta["size"])
        except self.errors as error:
            return error
        if first != offset or len(answer.data) != end - first:
            return BrokenAnswer("the body is not the range that was announced")
        self.failures = 0
        return answer

    def count_failure(self) -> None:
        self.failures += 1
        if self.failures >= FAILURES:
            self.failures, self.rests_until = 0, time.monotonic() + REST


def get_range(file: SourceFile, offset: int, length: int, *, again: bool) -> Answer | None:
    """Return a range of a file, None if it is fsspec that must be asked.

    Raises
    ------
    BrokenAnswer
        The failure may pass, and there is another attempt ``again``: it is better made later.
    TooSlowError
        The bytes come too slowly.
    """
    place = None if _forked else split_url(file.url)
    # few times are told, since each has connections of its own
    longest = seconds_for(max(LONG_ANSWER, 1 << length.bit_length()))
    client = None if place is None else _get_client(place[0], file.options, longest)
    if place is None or client is None or time.monotonic() < client.rests_until:
        return None
    found = client.fetch(place[1], offset, length)
    if isinstance(found, Answer):
        return found
    if isinstance(found, TooSlowError):
        raise found
    if isinstance(found, FileNotFoundError):
        return None
    client.count_failure()
    if again and _may_pass(str(found)):
        raise BrokenAnswer(str(found)) from None
    return None


def _may_pass(text: str) -> bool:
    """Say whether a server was reached, and answered that it is busy: the words are obstore's."""
    found = _STATUS.search(text)
    return found is not None and int(found[1]) in PASSING_STATUSES


@lru_cache(maxsize=256)
def _get_client(place: str, options: StorageOptions | None, seconds: float) -> _Client | None:
    """Return the store of a server or bucket, None where fsspec has to do."""
    found = translate_options(place, options)
    if found is None or _is_bent(found, os.environ):
        return None
    return _build_client(found, seconds)


def _is_bent(found: Translation, environment: Mapping[str, str]) -> bool:
    """Say whether the surroundings would tell obstore anything else than fsspec."""
    if found.kind == "http":
        # obstore asks through a proxy where aiohttp does not
        return bool(getproxies().keys() & {"http", "https", "all"})
    beginning = ENVIRONMENT[found.kind]
    told = {name.upper() for name in environment if name.upper().startswith(beginning)}
    return bool(told - HARMLESS) or (found.kind == "s3" and _may_be_led_elsewhere(found))


def _may_be_led_elsewhere(found: Translation) -> bool:
    """Say whether a file of settings, which only botocore reads, may name another endpoint."""
    path = os.path.expanduser("~/.aws/config")
    return "aws_endpoint" not in dict(found.config) and os.path.exists(path)


def _build_client(found: Translation, seconds: float) -> _Client | None:
    # optional, and not needed by those who read local files
    try:
        import obstore
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError:
        return None
    errors = (BaseError, OSError, ValueError, RuntimeError)
    settings: dict[str, Any] = {
        "client_options": {
            "connect_timeout": f"{CONNECT_TIMEOUT}s",
            "read_timeout": f"{READ_TIMEOUT}s",
            "timeout": f"{seconds}s",
            "allow_http": True,
        },
        "retry_config": NO_RETRIES,
    }
    headers = dict(found.headers)
    if found.kind == "http":
        headers["Accept-Encoding"] = "identity"
    if headers:
        settings["client_options"]["default_headers"] = headers
    try:
        if found.kind == "http":
            made: Any = store.HTTPStore.from_url(found.place, **settings)
        else:
            kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
            made = kind[found.kind](found.place, config=dict(found.config), **settings)
    except errors:
        return None
    return _Client(made, obstore.get, errors, found.kind == "http")
