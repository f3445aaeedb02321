"""Credentials that expire: a function gives them, and gives new ones when they are needed.

A user gives the function as ``storage_options={"credentials": function}``. It returns options of
fsspec, such as ``key``, ``secret`` and ``token``, in place of itself. Options are never written
into a set; a function travels to workers by pickling, and each process asks it for itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from virtualds.errors import AccessError
from virtualds.source_file import StorageOptions
from virtualds.stores.responses import is_about_expiry

OPTION = "credentials"

MARGIN = 300.0
"""Seconds before their end at which credentials are renewed; half of their life if that is less."""

NAMES = {
    **dict.fromkeys(("accesskeyid", "awsaccesskeyid", "accesskey"), "key"),
    **dict.fromkeys(("secretaccesskey", "awssecretaccesskey", "secretkey"), "secret"),
    **dict.fromkeys(("sessiontoken", "awssessiontoken"), "token"),
    **dict.fromkeys(("expiration", "expiresat", "expirytime", "expires"), "expiration"),
}
"""Names of fsspec for those of AWS, earthaccess, obstore and botocore, in lower case without _."""

MOST = 64
"""Functions whose credentials are kept."""


PATIENCE = 60.0
"""Seconds after which a function is asked again whose new credentials were refused, too."""


class Grant(NamedTuple):
    """What a function gave, and until when, in seconds since 1970, it is used."""

    options: dict[str, Any]
    until: float
    refused: bool = False


_GRANTS: dict[Hashable, Grant] = {}
_LOCKS: dict[int, threading.Lock] = {}


def resolve_options(options: Mapping[str, Any] | None) -> StorageOptions | None:
    """Return options in which present credentials stand in place of the function that gives them.

    Raises
    ------
    AccessError
        The function is none, or returns no options. Its own errors pass.

    Examples
    --------
    >>> resolve_options({"credentials": lambda: {"accessKeyId": "me"}, "use_ssl": False})["key"]
    'me'
    """
    if not options or OPTION not in options:
        return StorageOptions.of(options)
    left = {name: value for name, value in options.items() if name != OPTION}
    return StorageOptions(left | _find_grant(options[OPTION]).options)


def find_grant(options: Mapping[str, Any] | None) -> Grant | None:
    """Return what the function of options gives at present, None if they have no function."""
    return _find_grant(options[OPTION]) if options and OPTION in options else None


def renew(options: Mapping[str, Any] | None, used: Grant, error: BaseException) -> bool:
    """Forget credentials that have expired, as an error says; say whether there are newer ones.

    The function is asked once, however many requests fail at the same time.
    """
    if options is None or used.refused or not is_about_expiry(error):
        return False
    name = _name(options[OPTION])
    with _get_lock():
        if _GRANTS.get(name) is used:
            del _GRANTS[name]
    return True


def note_refusal(options: Mapping[str, Any] | None, used: Grant, error: BaseException) -> None:
    """Note that new credentials were refused, too: these are not renewed for a while."""
    if options is None or not is_about_expiry(error):
        return
    name = _name(options[OPTION])
    with _get_lock():
        if _GRANTS.get(name) is used:
            until = min(used.until, time.time() + PATIENCE)
            _GRANTS[name] = used._replace(refused=True, until=until)


def _find_grant(function: Callable[[], Any]) -> Grant:
    if not callable(function):
        raise AccessError(
            f"storage_options: credentials is of type {type(function).__name__}; give a function "
            f"without arguments that returns a dict of options"
        )
    name = _name(function)
    # one thread asks, the others wait for its answer
    with _get_lock():
        found = _GRANTS.get(name)
        if found is None or time.time() >= found.until:
            found = _ask(function)
            _GRANTS.pop(name, None)
            while len(_GRANTS) >= MOST:
                del _GRANTS[next(iter(_GRANTS))]
            _GRANTS[name] = found
    return found


def _ask(function: Callable[[], Any]) -> Grant:
    try:
        given = function()
    except Exception as error:
        error.add_note("this function is `credentials` of storage_options")
        raise
    if not isinstance(given, Mapping) or not given:
        raise AccessError(
            f"the function credentials of storage_options returned {type(given).__name__} without "
            f"options; let it return a dict, such as one of key, secret, token and expiration"
        )
    named = {_translate(str(name)): value for name, value in given.items()}
    return Grant(named, _plan_renewal(named.pop("expiration", None)))


def _translate(name: str) -> str:
    return NAMES.get(name.lower().replace("_", ""), name)


def _plan_renewal(end: Any) -> float:
    """Return when credentials are renewed that end at a time: a datetime, ISO 8601, or seconds."""
    if end is None:
        return float("inf")
    if isinstance(end, str):
        end = datetime.fromisoformat(end)
    if isinstance(end, datetime):
        end = (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    now = time.time()
    return float(max(end - MARGIN, now + (end - now) / 2))


def _name(function: Any) -> Hashable:
    """Return what is the same for equal functions: each unpickled `partial` is another object."""
    if isinstance(function, partial):
        name = (function.func, function.args, tuple(sorted(function.keywords.items())))
        try:
            hash(name)
        except TypeError:
            return function
        return name
    return function  # type: ignore[no-any-return]


def _get_lock() -> threading.Lock:
    # a forked child has its own: threads of the parent do not release the child's copy
    return _LOCKS.setdefault(os.getpid(), threading.Lock())
