"""Ranges of bytes, and listings, through obstore, if it is installed and knows the options.

obstore is only a shortcut. If it fails, fsspec repeats the request, and the user sees the answer or
the error of fsspec.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.filesystems import resolve_options
from virtualds.stores.responses import Answer
from virtualds.stores.retry import (
    CONNECT_TIMEOUT,
    PASSING_STATUSES,
    READ_TIMEOUT,
    BrokenAnswer,
    TooSlowError,
    join_parts,
    seconds_for,
)
from virtualds.urls import kind_of, scheme_of

# ---------------------------------------------------------------------- urls and options
# Translates urls and options of fsspec to those of obstore.
#
# A translation has exactly the same meaning. Options that are not in the tables have no
# translation; then fsspec makes the requests. This module makes no requests.


Config = tuple[tuple[str, str], ...]

IGNORED = frozenset(
    {"block_size", "cache_type", "cache_options", "skip_instance_cache", "use_listings_cache"}
    | {"listings_expiry_time", "max_paths", "default_block_size", "default_fill_cache"}
    | {"default_cache_type", "simple_links", "same_scheme", "cache_regions", "max_concurrency"}
    | {"fixed_upload_size", "local_expiry_check", "consistency", "cache_timeout", "access"}
    | {"blocksize"}
)
"""Options of caches, listings and writing, which do not change how a range is read."""
SAFE_HEADERS = frozenset({"authorization", "cookie", "user-agent", "accept"})
"""Headers, in lower case, that are safe if a redirect leads to another host: obstore leaves them
out, or they say nothing about the user."""


class Translation(NamedTuple):
    """The arguments of obstore: the kind of store, its url or bucket, and its configuration."""

    kind: str
    place: str
    config: Config = ()
    headers: Config = ()


class Untranslatable(Exception):
    """Only fsspec knows what these options mean."""


_HTTP_URL = re.compile(r"(https?://[A-Za-z0-9.-]+(?::\d+)?)/(.+)", re.IGNORECASE)
_HTTP_PATH = re.compile(r"[A-Za-z0-9._~=@:,+!$&'()*;/-]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_AZURE_BOX = re.compile(r"([^@]+)@([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")
_NO_KEY = re.compile(r"^/|/$|//|(^|/)\.\.?(/|$)|[\x00-\x1f\x7f]|\?versionId=|#generation=|^#")


def split_url(url: str) -> tuple[str, str] | None:
    """Return the server or bucket of a url, and the path in it; None for an ambiguous url.

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
    box = _AZURE_BOX.fullmatch(bucket) if kind_of(url) == "az" else None
    if not _BUCKET.fullmatch(box[1] if box else bucket) or not key or _NO_KEY.search(key):
        return None
    return f"{scheme}://{bucket}", key


def translate_options(place: str, options: Mapping[str, Any] | None) -> Translation | None:
    """Return the arguments of obstore for a server or bucket, None if there is no translation.

    Examples
    --------
    >>> region = {"region_name": "eu-west-1"}
    >>> translate_options("s3://bucket", {"anon": True, "client_kwargs": region})
    Translation(kind='s3', place='bucket', config=(('aws_region', 'eu-west-1'), ...
    >>> translate_options("s3://bucket", {"profile": "mine"}) is None
    True
    """
    translate = TRANSLATIONS.get(kind_of(place))
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
    if {name.lower() for name in headers} - SAFE_HEADERS:
        # obstore follows redirects, and would send any other header to another host
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
        # s3fs looks for credentials in files and on other machines
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
    """Return how requests name a bucket, from the settings of botocore."""
    config.pop("max_pool_connections", None)
    style = _to_dict(config.pop("s3", None))
    if config or style.keys() - {"addressing_style"}:
        raise Untranslatable
    if style.get("addressing_style", "path") not in ("path", "auto"):
        raise Untranslatable
    return {}


def _translate_gcs(place: str, left: dict[str, Any]) -> Translation:
    token = "anon" if left.pop("anon", False) else left.pop("token", None)
    if left.pop("token", token) != token:
        raise Untranslatable
    if token == "anon":
        found = {"google_skip_signature": "true"}
    elif isinstance(token, Mapping) and token.get("type") == "service_account":
        found = {"google_service_account_key": json.dumps(dict(token))}
    else:
        raise Untranslatable
    found |= _rename_keys(left, {"endpoint_url": "google_base_url"})
    project, payer = left.pop("project", None), left.pop("requester_pays", False)
    payer = project if payer is True else payer
    if not isinstance(payer, str) and payer is not False:
        raise Untranslatable
    # https://docs.cloud.google.com/storage/docs/xml-api/reference-headers#xgooguserproject
    headers = (("x-goog-user-project", payer),) if payer else ()
    return Translation("gs", _bucket_of(place), _to_config(found), headers)


def _translate_azure(place: str, left: dict[str, Any]) -> Translation:
    anonymous, host = left.pop("anon", None), left.pop("account_host", None)
    connection = left.pop("connection_string", None)
    if left.pop("location_mode", "primary") != "primary" or left.pop("version_aware", False):
        raise Untranslatable
    left.pop("assume_container_exists", None)
    found = _rename_keys(left, _AZURE_NAMES)
    box = _AZURE_BOX.fullmatch(_bucket_of(place))
    if box and found.setdefault(_AZURE_ACCOUNT, box[2]) != box[2]:
        raise Untranslatable
    if connection:
        # adlfs looks at no other option then
        found = _split_connection_string(connection)
        anonymous = not found.keys() & _AZURE_SECRETS
    elif host:
        found["azure_storage_endpoint"] = f"https://{host}"
    secrets = found.keys() & _AZURE_SECRETS
    if _AZURE_ACCOUNT not in found or bool(anonymous) == len(secrets) or len(secrets) > 1:
        raise Untranslatable
    if anonymous:
        found["azure_skip_signature"] = "true"
    return Translation("az", box[1] if box else _bucket_of(place), _to_config(found))


_AZURE_ACCOUNT = "azure_storage_account_name"
_AZURE_NAMES = {
    "account_name": _AZURE_ACCOUNT,
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
}
_AZURE_SECRETS = {"azure_storage_account_key", "azure_storage_sas_key"}
_CONNECTION_NAMES = {
    "accountname": _AZURE_ACCOUNT,
    "accountkey": "azure_storage_account_key",
    "sharedaccesssignature": "azure_storage_sas_key",
    "blobendpoint": "azure_storage_endpoint",
}
_ENDPOINTS_OF_OTHERS = ("queueendpoint", "tableendpoint", "fileendpoint", "dfsendpoint")


def _split_connection_string(text: str) -> dict[str, str]:
    """Return what a connection string says, as the client of Azure reads it."""
    settings = [part.partition("=") for part in text.rstrip(";").split(";")]
    given = {name.strip().lower(): value for name, _, value in settings}
    protocol = given.pop("defaultendpointsprotocol", "https")
    suffix = given.pop("endpointsuffix", "core.windows.net")
    for name in _ENDPOINTS_OF_OTHERS:
        given.pop(name, None)
    found = _rename_keys(given, _CONNECTION_NAMES)
    if given or "" in found.values() or _AZURE_ACCOUNT not in found:
        raise Untranslatable
    account = f"{protocol}://{found[_AZURE_ACCOUNT]}.blob.{suffix}"
    found["azure_storage_endpoint"] = found.get("azure_storage_endpoint", account).rstrip("/")
    return found


TRANSLATIONS: dict[str, Callable[[str, dict[str, Any]], Translation]] = {
    "http": _translate_http,
    "https": _translate_http,
    "s3": _translate_s3,
    "gs": _translate_gcs,
    "az": _translate_azure,
}
"""The translation of each kind of store; it takes the options that it knows out of the mapping."""


def _bucket_of(place: str) -> str:
    return place.partition("://")[2]


def _to_dict(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Untranslatable
    return dict(value)


def _rename_keys(left: dict[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """Take the known names out of a mapping, and return their values under the new names."""
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


# ---------------------------------------------------------------------- requests


Result = TypeVar("Result")

FAILURES, REST = 3, 60.0
"""After so many failures in a row, obstore gets no requests for so many seconds."""

LONG_ANSWER = 2**23
"""Bytes: requests up to this length share one client, and so one timeout."""


HARMLESS = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"}
    | {"AWS_CA_BUNDLE", "AWS_PAGER", "AWS_EXECUTION_ENV", "AWS_EC2_METADATA_DISABLED"}
    | {"AWS_SHARED_CREDENTIALS_FILE"}
)
"""Variables that obstore ignores, or that have less weight than the options it gets."""

ENVIRONMENT = {"s3": ("AWS_",), "gs": ("GOOGLE_", "STORAGE_EMULATOR_HOST"), "az": ("AZURE_",)}
"""Prefixes of the environment variables that obstore or fsspec reads, by kind of store."""

META_VERSIONS = {"gs": "version"}
"""What names a version, in what obstore says of a file, if not the etag: Google's generation."""

NO_RETRIES = {
    "max_retries": 0,
    "retry_timeout": timedelta(0),
    "backoff": {"init_backoff": timedelta(0), "max_backoff": timedelta(0), "base": 2},
}
"""The settings that turn the retries of obstore off: `stores.retry` repeats requests."""

_STATUS = re.compile(r"status code: (\d{3})")
_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    # the threads of obstore exist only in the parent: a forked child would wait for them for ever
    os.register_at_fork(after_in_child=_note_fork)


class _Client:
    """A store of obstore, which all threads share."""

    def __init__(
        self, store: Any, library: Any, errors: tuple[type[BaseException], ...], kind: str
    ) -> None:
        self.store, self.errors, self.is_http = store, errors, kind == "http"
        self.version = META_VERSIONS.get(kind, "e_tag")
        self.get, self.list_all = library.get, library.list_with_delimiter
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
            answer = Answer(data, meta[self.version], meta["size"])
        except self.errors as error:
            return error
        if first != offset or len(answer.data) != end - first:
            return BrokenAnswer("the body is not the range that was announced")
        self.failures = 0
        return answer

    def list_folder(self, path: str | None) -> list[dict[str, Any]] | None:
        """Return the entries of a folder, None if obstore raised an error."""
        try:
            found = self.list_all(self.store, path)
            entries = [
                {"name": _last_part(one), "type": "directory"} for one in found["common_prefixes"]
            ]
            # some tools write an empty object with the name of the folder
            for one in (one for one in found["objects"] if one["path"] != path):
                state = {"size": one["size"], "ETag": one["e_tag"]}
                times = {"LastModified": one["last_modified"], "type": "file"}
                entries.append({"name": _last_part(one["path"]), **state, **times})
        except self.errors:
            return None
        self.failures = 0
        return entries

    def count_failure(self) -> None:
        self.failures += 1
        if self.failures >= FAILURES:
            self.failures, self.rests_until = 0, time.monotonic() + REST


def get_range(file: SourceFile, offset: int, length: int, *, again: bool) -> Answer | None:
    """Return a range of a file, None if fsspec has to get it.

    Raises
    ------
    BrokenAnswer
        The failure is temporary, and ``again`` says that the caller repeats the request later.
    TooSlowError
        The bytes arrive too slowly.
    """
    place = None if _forked else split_url(file.url)
    # few different timeouts, since each needs a client with connections of its own
    longest = seconds_for(max(LONG_ANSWER, 1 << length.bit_length()))
    client = (
        None if place is None else _get_client(place[0], resolve_options(file.options), longest)
    )
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


def list_names(url: str, options: StorageOptions | None) -> set[str] | None:
    """Return the names directly in a folder of an object store; None if obstore cannot list it.

    Reading and listing are two permissions, so a refusal says nothing about later requests.
    """
    if (asked := _find_lister(url, options)) is None:
        return None
    found = _run_apart(asked[0].list_folder, asked[1])
    return None if found is None else {entry["name"] for entry in found}


def list_folder(url: str, options: StorageOptions | None) -> list[dict[str, Any]] | None:
    """Return what lies directly in a folder of an object store, None if fsspec has to list it.

    It takes a twentieth of the time of s3fs. Each entry has the keys of s3fs; its name is the last
    part of the key.
    """
    # in a list, obstore has no generations of Google's objects
    if kind_of(url) == "gs" or (asked := _find_lister(url, options)) is None:
        return None
    client, path = asked
    found = _run_apart(client.list_folder, path)
    if found is None:
        client.count_failure()
    # of an empty folder, fsspec says whether there is such a bucket
    return found or None


def _find_lister(url: str, options: StorageOptions | None) -> tuple[_Client, str | None] | None:
    """Return the client that lists a folder, and its path there; None if obstore cannot."""
    place = None if _forked else split_url(f"{url.rstrip('/')}/name")
    if place is None or url.startswith("http"):
        return None
    client = _get_client(place[0], resolve_options(options), seconds_for(LONG_ANSWER))
    if client is None or time.monotonic() < client.rests_until:
        return None
    return client, place[1].rpartition("/")[0] or None


def _run_apart(work: Callable[..., Result], *given: Any) -> Result:
    """Do work in a thread that nobody waits for: obstore does not notice an interrupt."""
    done: Future[Result] = Future()

    def run() -> None:
        done.set_result(work(*given))

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def _may_pass(text: str) -> bool:
    """Say whether obstore's message names a status with which a busy server answers."""
    found = _STATUS.search(text)
    return found is not None and int(found[1]) in PASSING_STATUSES


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@lru_cache(maxsize=256)
def _get_client(place: str, options: StorageOptions | None, seconds: float) -> _Client | None:
    """Return the client of a server or bucket, None if only fsspec understands the options."""
    found = translate_options(place, options)
    if found is None or _has_other_settings(found, os.environ):
        return None
    return _build_client(found, seconds)


def _has_other_settings(found: Translation, environment: Mapping[str, str]) -> bool:
    """Say whether settings outside the options may mean different things to obstore and fsspec."""
    if found.kind == "http":
        from urllib.request import getproxies

        # obstore uses these proxies, and aiohttp does not
        return bool(getproxies().keys() & {"http", "https", "all"})
    prefixes = ENVIRONMENT[found.kind]
    names = {name.upper() for name in environment if name.upper().startswith(prefixes)}
    return bool(names - HARMLESS) or (found.kind == "s3" and _may_have_other_endpoint(found))


def _may_have_other_endpoint(found: Translation) -> bool:
    """Say whether a settings file, which only botocore reads, may name another endpoint."""
    path = os.path.expanduser("~/.aws/config")
    return "aws_endpoint" not in dict(found.config) and os.path.exists(path)


def _build_client(found: Translation, seconds: float) -> _Client | None:
    # obstore is an optional package
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
    return _Client(made, obstore, errors, found.kind)
