"""Finds gcsfs's filesystem of Google Cloud Storage, and reads its options."""

from __future__ import annotations

from typing import Any

from virtualds.importing import import_named

FILES = "virtualds.stores.google_files:GoogleFiles"
"""The filesystem; its module needs gcsfs."""

GENERATION = "X-Goog-Generation"
"""The header that holds the version of an object.

The JSON API, which gcsfs speaks, and the XML API, which obstore speaks, send different etags of one
object (https://docs.cloud.google.com/storage/docs/hashes-etags), and the same generation.
"""


def name_anonymous(given: dict[str, Any]) -> dict[str, Any]:
    """Return options of gcsfs in which ``anon``, as s3fs and adlfs call it, has gcsfs's name.

    Examples
    --------
    >>> name_anonymous({"anon": True, "project": "p"})
    {'project': 'p', 'token': 'anon'}
    """
    left = {name: value for name, value in given.items() if name != "anon"}
    if given.get("anon") and left.setdefault("token", "anon") != "anon":
        raise ValueError("anon=True and a token contradict each other; give one of them")
    return left


def make_filesystem(url: str, options: dict[str, Any], *, retries: bool) -> tuple[Any, str]:
    """Return the filesystem of a url, and the path in it.

    ``retries`` says whether gcsfs repeats requests that fail.

    Raises
    ------
    ImportError
        gcsfs is not installed.
    PermissionError
        gcsfs finds no credentials, or cannot use those that it got.
    """
    # first, so that its absence is named before that of the libraries below it
    import_named("gcsfs:GCSFileSystem")
    google_auth_error = import_named("google.auth.exceptions:GoogleAuthError")
    kind = import_named(FILES)
    settings = {**kind._get_kwargs_from_urls(url), **name_anonymous(options)}
    try:
        return kind(**settings, repeats=retries), kind._strip_protocol(url)
    except google_auth_error as error:
        raise PermissionError(
            f"{url}: gcsfs found no credentials that it can use ({error}); log in with gcloud, or "
            f"give a token, or anon=True for a public bucket, in storage_options"
        ) from error
