"""Translate urls and options of fsspec into those of Icechunk.

An option that is not in the tables is refused, not guessed. No request is made here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from virtualds.errors import UnsupportedError
from virtualds.stores.filesystems import resolve_options
from virtualds.stores.object_access import name_anonymous, translate_options
from virtualds.urls import local_path, scheme_of

VERBATIM = ("http", "https")
"""Schemes whose urls are quoted already."""
SAFE = "/:@!$&'()*+,;=~"
"""Characters of a name that stand for themselves in a url."""
S3_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "anonymous",
    "endpoint_url": "endpoint_url",
    "region_name": "region",
    "requester_pays": "requester_pays",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Names of Icechunk for options of s3fs and botocore."""
S3_SECRETS = ("access_key_id", "secret_access_key", "session_token", "anonymous")
"""Credentials, which are no part of how a repository describes a bucket."""
AZURE_SECRETS = frozenset({"account_key", "sas_token", "connection_string", "credential"})
"""Options of adlfs that hold credentials."""


class ObjectLocation(NamedTuple):
    """A kind of storage, and the named arguments that Icechunk's functions for it take."""

    kind: str
    arguments: dict[str, Any]


def quote_url(url: str) -> str:
    """Return a url as Icechunk writes it: names are quoted.

    Examples
    --------
    >>> quote_url("file:///data/a b#1.nc")
    'file:///data/a%20b%231.nc'
    """
    if scheme_of(url) in VERBATIM:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(rest, safe=SAFE)}"


def unquote_url(location: str) -> str:
    """Return a location of Icechunk as a url with unquoted names.

    Examples
    --------
    >>> unquote_url("file:///data/a%20b%231.nc")
    'file:///data/a b#1.nc'
    """
    return location if scheme_of(location) in VERBATIM else unquote(location)


def find_storage(url: str, options: Mapping[str, Any] | None) -> ObjectLocation:
    """Return where a repository lies."""
    locate = _find_locator(url, "keeps no repository")
    return locate(url.rstrip("/"), dict(resolve_options(options) or {}))


def _find_locator(url: str, lack: str) -> Callable[[str, dict[str, Any]], ObjectLocation]:
    """Return the translator for a url; refuse a url of a storage that Icechunk does not know."""
    scheme = scheme_of(url)
    if "::" in url or scheme not in LOCATORS:
        raise UnsupportedError(f"{url}: Icechunk {lack} there; these are known: {sorted(LOCATORS)}")
    return LOCATORS[scheme]


def find_container(url: str, options: Mapping[str, Any] | None) -> tuple[str, ObjectLocation]:
    """Return the prefix of urls that a container for a source file has, and what it reads."""
    _find_locator(url, "refers to no files")
    scheme = scheme_of(url)
    if scheme == "file":
        folder = _find_plain_folder(posixpath.dirname(local_path(url)))
        if folder == "/":
            raise UnsupportedError(
                f"{url}: Icechunk refers to no files in the root folder, nor in a folder of it "
                f"whose name it quotes; write a set of zarr-v3, or move the file and change its "
                f"path with ds.virtual.rename_paths"
            )
        return f"file://{folder}", ObjectLocation("local", {"path": folder})
    host = "/".join(url.split("/")[:3]) + "/"
    if scheme == "abfss" or (scheme in ("az", "abfs") and "@" in host):
        raise UnsupportedError(
            f"{url}: Icechunk refers to no files by such a url; name the file az://container/path, "
            f"and give account_name in storage_options"
        )
    place = find_storage(host, options)
    told = {n: v for n, v in place.arguments.items() if n in CONTAINER.get(place.kind, ())}
    return host, ObjectLocation(place.kind, told)


def _find_plain_folder(folder: str) -> str:
    """Return the innermost folder above whose names Icechunk finds: none of them is quoted.

    Examples
    --------
    >>> _find_plain_folder("/data/in put/2001"), _find_plain_folder("/data/2001")
    ('/data/', '/data/2001/')
    """
    names = folder.strip("/").split("/")
    quoted = (n for n, name in enumerate(names) if quote(name, safe=SAFE) != name)
    return "/".join(["", *names[: next(quoted, len(names))], ""]).replace("//", "/")


def find_containers(
    files: Iterable[tuple[str, Mapping[str, Any] | None]],
) -> dict[str, ObjectLocation]:
    """Return the containers that files need, the fewest: none lies in another.

    Examples
    --------
    >>> list(find_containers([("file:///data/2001/a.nc", None), ("file:///data/b.nc", None)]))
    ['file:///data/']
    """
    found: dict[str, ObjectLocation] = {}
    known: set[tuple[str, int]] = set()
    for url, options in files:
        folder = (url.rpartition("/")[0], id(options))
        if folder not in known:
            known.add(folder)
            prefix, place = find_container(url, options)
            found.setdefault(prefix, place)
    kept: dict[str, ObjectLocation] = {}
    for prefix in sorted(found, key=len):
        if not prefix.startswith(tuple(kept)):
            kept[prefix] = found[prefix]
    return kept


def _locate_local(url: str, options: dict[str, Any]) -> ObjectLocation:
    _check_nothing_left(url, {n: v for n, v in options.items() if n != "auto_mkdir"})
    return ObjectLocation("local", {"path": local_path(url)})


def _locate_http(url: str, options: dict[str, Any]) -> ObjectLocation:
    headers = options.pop("headers", None)
    client = dict(options.pop("client_kwargs", None) or {})
    headers = {**(client.pop("headers", None) or {}), **(headers or {})}
    _check_nothing_left(url, options | client)
    return ObjectLocation("http", {"base_url": url, "headers": headers or None})


def _locate_s3(url: str, options: dict[str, Any]) -> ObjectLocation:
    client = dict(options.pop("client_kwargs", None) or {})
    secure = options.pop("use_ssl", True)
    left = options | client
    found = {S3_NAMES[n]: left.pop(n) for n in list(left) if n in S3_NAMES}
    _check_nothing_left(url, left)
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if found.get("endpoint_url"):
        plain = str(found["endpoint_url"]).startswith("http://") or not secure
        found |= {"force_path_style": True, "allow_http": plain}
        found.setdefault("region", "us-east-1")
    if not any(found.get(name) for name in S3_SECRETS):
        found["from_env"] = True
    return ObjectLocation("s3", {"bucket": bucket, "prefix": prefix or None, **found})


def _locate_gcs(url: str, options: dict[str, Any]) -> ObjectLocation:
    options = name_anonymous(options)
    token = options.pop("token", None)
    options.pop("project", None)
    _check_nothing_left(url, options)
    if token not in (None, "anon") and not isinstance(token, str):
        _check_nothing_left(url, {"token": token})
    bucket, _, prefix = url.partition("://")[2].partition("/")
    access = {None: {"from_env": True}, "anon": {"anonymous": True}}.get(
        token, {"application_credentials": token}
    )
    return ObjectLocation("gcs", {"bucket": bucket, "prefix": prefix or None, **access})


def _locate_azure(url: str, options: dict[str, Any]) -> ObjectLocation:
    scheme, _, rest = url.partition("://")
    box, _, prefix = rest.partition("/")
    is_public = bool(options.get("anon"))
    # Icechunk looks for a login of this machine where obstore, which is asked here, looks for none
    needs_login = not is_public and not AZURE_SECRETS & options.keys()
    try:
        found = translate_options(f"{scheme}://{box}", options | {"anon": is_public or needs_login})
    except ValueError as error:
        raise UnsupportedError(str(error)) from error
    # Icechunk takes no objects that give tokens, and no secrets of applications
    _check_nothing_left(url, found.login)
    account = found.config["account_name"]
    access: dict[str, Any] = {"account": account, **found.secrets}
    access |= {"from_env": True} if needs_login else {"anonymous": True} if is_public else {}
    place: dict[str, Any] = {"container": found.place, "prefix": prefix, "config": {}}
    if (endpoint := found.config["endpoint"]) != f"https://{account}.blob.core.windows.net":
        is_plain = endpoint.startswith("http://")
        place["config"] = {"endpoint": endpoint, "allow_http": str(is_plain).lower()}
    return ObjectLocation("azure", place | access)


def _check_nothing_left(url: str, left: Mapping[str, Any]) -> None:
    if left:
        raise UnsupportedError(
            f"{url}: Icechunk has no name for the option {min(left)!r}; leave it out, or open the "
            f"repository with icechunk and pass that"
        )


LOCATORS: dict[str, Callable[[str, dict[str, Any]], ObjectLocation]] = {
    "file": _locate_local,
    "http": _locate_http,
    "https": _locate_http,
    "s3": _locate_s3,
    "gs": _locate_gcs,
    "gcs": _locate_gcs,
    "az": _locate_azure,
    "abfs": _locate_azure,
    "abfss": _locate_azure,
}
"""Translators of urls and options, by scheme."""
CONTAINER = {
    "s3": (
        *("region", "endpoint_url", "allow_http"),
        *("force_path_style", "requester_pays", "anonymous"),
    ),
    "azure": ("account", "config"),
}
"""Options of a server that a container keeps; readers pass their own credentials."""
