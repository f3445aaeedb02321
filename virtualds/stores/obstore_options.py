"""Translates urls and options of fsspec to those of obstore.

Options that are not in the tables have no translation: then fsspec asks. A translation has exactly
the same meaning. No requests are made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from virtualds.urls import scheme_of

Config = tuple[tuple[str, str], ...]

IGNORED = frozenset(
    {"block_size", "cache_type", "cache_options", "skip_instance_cache", "use_listings_cache"}
    | {"listings_expiry_time", "max_paths", "default_block_size", "default_fill_cache"}
    | {"default_cache_type", "simple_links", "same_scheme", "cache_regions", "max_concurrency"}
    | {"fixed_upload_size", "local_expiry_check", "consistency", "cache_timeout", "project"}
    | {"access", "blocksize"}
)
"""Options that say nothing of how a range is got: of caches, listings and writing."""
KEPT_TO_ONE_HOST = frozenset({"authorization", "cookie", "user-agent", "accept"})
"""Headers, in lower case, that obstore leaves out where a redirect leads to another host, or that
say nothing of who asks."""


class Translation(NamedTuple):
    """What obstore is told: which kind of store, which url or bucket, configured how."""

    kind: str
    place: str
    config: Config = ()
    headers: Config = ()


class Untranslatable(Exception):
    """Only fsspec knows what this means."""


_HTTP_URL = re.compile(r"(https?://[A-Za-z0-9.-]+(?::\d+)?)/(.+)", re.IGNORECASE)
_HTTP_PATH = re.compile(r"[A-Za-z0-9._~=@:,+!$&'()*;/-]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NO_KEY = re.compile(r"^/|/$|//|(^|/)\.\.?(/|$)|[\x00-\x1f\x7f]|\?versionId=|#generation=|^#")


def split_url(url: str) -> tuple[str, str] | None:
    """Return the server, or bucket, of a url and the path in it; None where readings may differ.

    Examples
    --------
    >>> split_url("https://example.org/2001/a.nc"), split_url("s3://bucket/2001/a.nc")
    (('https://example.org', '2001/a.nc'), ('s3://bucket', '2001/a.nc'))
    """
    if "::" in url:
        return None
    if scheme_of(url) in ("http", "https"):
        found = _HTTP_URL.fullmatch(url)
        if found is None or not _HTTP_PATH.fullmatch(found[2]) or _NO_KEY.search(found[2]):
            return None
        return found[1], found[2]
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or not key or _NO_KEY.search(key):
        return None
    return f"{scheme}://{bucket}", key


def translate_options(place: str, options: Mapping[str, Any] | None) -> Translation | None:
    """Return what obstore is told of a server or bucket, None where only fsspec will do.

    Examples
    --------
    >>> region = {"region_name": "eu-west-1"}
    >>> translate_options("s3://bucket", {"anon": True, "client_kwargs": region})
    Translation(kind='s3', place='bucket', config=(('aws_region', 'eu-west-1'), ...
    >>> translate_options("s3://bucket", {"profile": "mine"}) is None
    True
    """
    translate = TRANSLATIONS.get(scheme_of(place))
    if translate is None:
        return None
    left = {name: value for name, value in (options or {}).items() if name not in IGNORED}
    try:
        found = translate(place, left)
    except Untranslatable:
        return None
    return None if left else found


def _translate_http(place: str, left: dict[str, Any]) -> Translation:
    client = _to_dict(left.pop("client_kwargs", None))
    headers = {**_to_dict(client.pop("headers", None)), **_to_dict(left.pop("headers", None))}
    if client or not all(isinstance(text, str) for text in (*headers, *headers.values())):
        raise Untranslatable
    if {name.lower() for name in headers} - KEPT_TO_ONE_HOST:
        # obstore follows redirects, and would take any other header along
        raise Untranslatable
    return Translation("http", place, (), tuple(sorted(headers.items())))


def _translate_s3(place: str, left: dict[str, Any]) -> Translation:
    client = _to_dict(left.pop("client_kwargs", None))
    found, others = _rename_keys(left, _S3_NAMES), _rename_keys(client, _S3_CLIENT_NAMES)
    if any(found.get(name, value) != value for name, value in others.items()):
        raise Untranslatable
    found |= others | _find_s3_addressing(_to_dict(left.pop("config_kwargs", None)))
    if client or _to_dict(left.pop("s3_additional_kwargs", None)) or left.pop("version_aware", 0):
        raise Untranslatable
    if left.pop("requester_pays", False):
        found["aws_request_payer"] = "true"
    if left.pop("anon", False):
        for name in _S3_SECRETS:
            found.pop(name, None)
        found["aws_skip_signature"] = "true"
    elif not all(found.get(name) for name in _S3_SECRETS[:2]):
        # s3fs would look for them in files and on other machines
        raise Untranslatable
    if not found.get("aws_endpoint") and (
        not found.get("aws_region") or not left.get("use_ssl", True)
    ):
        raise Untranslatable
    left.pop("use_ssl", None)
    found.setdefault("aws_region", "us-east-1")
    return Translation("s3", _bucket_of(place), _to_config(found))


_S3_NAMES = {
    "key": "aws_access_key_id",
    "username": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "password": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
}
_S3_CLIENT_NAMES = {
    "endpoint_url": "aws_endpoint",
    "region_name": "aws_region",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
}
_S3_SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def _find_s3_addressing(config: dict[str, Any]) -> dict[str, str]:
    """Return how a bucket is named, from the settings of botocore."""
    config.pop("max_pool_connections", None)
    style = _to_dict(config.pop("s3", None))
    if config or style.keys() - {"addressing_style"}:
        raise Untranslatable
    if style.get("addressing_style", "path") not in ("path", "auto"):
        raise Untranslatable
    return {}


def _translate_gcs(place: str, left: dict[str, Any]) -> Translation:
    token = left.pop("token", None)
    if token == "anon":
        found = {"google_skip_signature": "true"}
    elif isinstance(token, Mapping) and token.get("type") == "service_account":
        found = {"google_service_account_key": json.dumps(dict(token))}
    else:
        raise Untranslatable
    return Translation("gs", _bucket_of(place), _to_config(found))


def _translate_azure(place: str, left: dict[str, Any]) -> Translation:
    anonymous = left.pop("anon", None)
    found = _rename_keys(left, _AZURE_NAMES)
    if "azure_storage_account_name" not in found:
        raise Untranslatable
    if anonymous is True and len(found) == 1:
        found["azure_skip_signature"] = "true"
    elif anonymous or len(found) != 2:
        raise Untranslatable
    return Translation("az", _bucket_of(place), _to_config(found))


_AZURE_NAMES = {
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
}

TRANSLATIONS: dict[str, Callable[[str, dict[str, Any]], Translation]] = {
    "http": _translate_http,
    "https": _translate_http,
    "s3": _translate_s3,
    "s3a": _translate_s3,
    "gs": _translate_gcs,
    "gcs": _translate_gcs,
    "az": _translate_azure,
    "abfs": _translate_azure,
}
"""How options are translated, by scheme; each takes what it understands out of the mapping."""


def _bucket_of(place: str) -> str:
    return place.partition("://")[2]


def _to_dict(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Untranslatable
    return dict(value)


def _rename_keys(left: dict[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """Take out of a mapping the names that are known, under their new ones."""
    found: dict[str, str] = {}
    for name in left.keys() & names.keys():
        value = left.pop(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str) or found.get(names[name], value) != value:
            raise Untranslatable
        found[names[name]] = value
    return found


def _to_config(found: dict[str, str]) -> Config:
    return tuple(sorted(found.items()))
