"""Finding the fsspec filesystem of a url, with credentials that are valid now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from virtualds.extras import say_install
from virtualds.options import get_options
from virtualds.source_file import StorageOptions
from virtualds.stores import google
from virtualds.stores.credentials import find_grant, note_refusal, renew, resolve_options
from virtualds.stores.http_session import add_own_session
from virtualds.stores.retry import list_store_errors
from virtualds.stores.store import StoreError
from virtualds.urls import kind_of, scheme_of

T = TypeVar("T")


def find_filesystem(url: str, options: StorageOptions | None) -> tuple[Any, str]:
    """Return the fsspec filesystem of a url, and the path in it.

    Raises
    ------
    StoreError
        fsspec has no filesystem for the url, or not with these options.
    """
    return _find_filesystem(url, dict(resolve_options(options) or {}))


def find_reading_filesystem(url: str, options: StorageOptions | None) -> tuple[Any, str]:
    """Return a filesystem for many requests at a time, without its own retries."""
    settings = _SETTINGS.get(kind_of(url), dict)
    present = dict(resolve_options(options) or {})
    filesystem, path = _find_filesystem(url, settings(present), retries=False)
    if speaks(filesystem, "s3", "call_s3"):
        # its retries would multiply ours; no other part of virtualds has this instance
        filesystem.retries = 1
    return filesystem, path


def use_filesystem(
    url: str,
    options: StorageOptions | None,
    work: Callable[[Any, str], T],
    find: Callable[[str, StorageOptions | None], tuple[Any, str]] = find_reading_filesystem,
) -> T:
    """Return what work on a filesystem and a path in it returns.

    Work is done once more if credentials, which a function gave, have expired meanwhile.
    """
    if (used := find_grant(options)) is None:
        return work(*find(url, options))
    try:
        return work(*find(url, options))
    except list_store_errors() as error:
        if not renew(options, used, error):
            raise
    newer = find_grant(options) or used
    try:
        return work(*find(url, options))
    except list_store_errors() as error:
        note_refusal(options, newer, error)
        raise


def _find_filesystem(url: str, options: dict[str, Any], *, retries: bool = True) -> tuple[Any, str]:
    # imported here: it takes as long as importing the rest of virtualds
    import fsspec

    options = _SESSIONS.get(scheme_of(url), dict)(options)
    try:
        if kind_of(url) == "gs" and "::" not in url:
            return google.make_filesystem(url, options, retries=retries)
        return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]
    except (ImportError, TypeError, ValueError) as error:
        install = _INSTALLS.get(kind_of(url)) if isinstance(error, ImportError) else None
        advice = f"; {install}" if install else ""
        raise StoreError(f"{error}{advice}") from error


def speaks(filesystem: Any, protocol: str, needs: str) -> bool:
    """Say whether a filesystem has a protocol, and an inner method that is used here."""
    spoken = filesystem.protocol
    return protocol in ((spoken,) if isinstance(spoken, str) else spoken) and hasattr(
        filesystem, needs
    )


def _enlarge_pool(given: dict[str, Any]) -> dict[str, Any]:
    """Return S3 options without botocore's limit of 10 connections, and without its retries."""
    ours = {
        "max_pool_connections": get_options().max_requests,
        "retries": {"total_max_attempts": 1},
    }
    return {**given, "config_kwargs": {**ours, **given.get("config_kwargs", {})}}


_OF_WEB = "pip install aiohttp obstore"
_INSTALLS = {
    **dict.fromkeys(("http", "https"), _OF_WEB),
    **{kind: say_install(extra) for kind, extra in (("s3", "s3"), ("gs", "gcs"), ("az", "azure"))},
}
"""The command that installs the filesystem, by kind of store."""

_SETTINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"s3": _enlarge_pool}
"""Changes of options for reading, by kind of store."""

_SESSIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "http": add_own_session,
    "https": add_own_session,
}
"""Changes of options for all requests, by scheme."""
