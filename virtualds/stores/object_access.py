"""Settings and credentials with which obstore accesses a bucket of S3 or a container of Azure.

They are translated from the options of s3fs and adlfs. An option that is not in the tables here
raises an error that names it: it is never ignored or guessed. The libraries of these clouds find
credentials that are not given: botocore for AWS (environment, profiles, SSO, roles, machines),
azure-identity for Azure.
"""

from __future__ import annotations

import inspect
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from virtualds.errors import UnsupportedError
from virtualds.source_file import StorageOptions
from virtualds.stores.requests import CONNECT_TIMEOUT, READ_TIMEOUT
from virtualds.stores.store import list_store_errors
from virtualds.urls import host_of, kind_of

IGNORED = frozenset(
    {"block_size", "cache_type", "cache_options", "skip_instance_cache", "use_listings_cache"}
    | {"listings_expiry_time", "max_paths", "default_block_size", "default_fill_cache"}
    | {"default_cache_type", "cache_regions", "max_concurrency", "fixed_upload_size"}
    | {"local_expiry_check", "blocksize", "assume_container_exists", "asynchronous", "loop"}
)
"""Options of caches, listings and large uploads, none of which are used here."""

REMEDY = (
    "leave it out, or pass an object that knows it: {'store': ...}, a store of obstore for this "
    "bucket, or {'filesystem': ...}, a filesystem of fsspec"
)


@dataclass(frozen=True)
class BucketAccess:
    """The access of obstore to a ``bucket`` or container; the ``kind`` is ``"s3"`` or ``"az"``.

    ``config`` has settings of obstore's store without credentials, ``client`` the settings of its
    HTTP client, and ``secrets`` the credentials, as a provider of obstore returns them. Without
    secrets they must be looked up: ``login`` is the profile of AWS, or an object of
    ``azure.identity``.
    """

    kind: str
    bucket: str
    config: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict, repr=False)
    secrets: dict[str, Any] = field(default_factory=dict, repr=False)
    login: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_anonymous(self) -> bool:
        """Whether requests are not signed."""
        return bool(self.config["skip_signature"])


def translate_options(root: str, options: Mapping[str, Any] | None) -> BucketAccess:
    """Return the access of obstore to a bucket, from the options that a user passes for fsspec.

    ``root`` is the beginning of a url, up to the bucket. Options without an equivalent in obstore
    raise an error, and so do two that contradict each other.

    Examples
    --------
    >>> options = {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}}
    >>> translate_options("s3://bucket", options).config["region"]
    'eu-west-1'
    >>> translate_options("s3://bucket", {"profile": "mine"}).login
    {'profile': 'mine'}
    """
    kept = {name: value for name, value in (options or {}).items() if name not in IGNORED}
    translate, nested = _TRANSLATIONS[kind_of(root)]
    given = _RemainingOptions(root, kept, nested)
    found = translate(root.partition("://")[2], given)
    given.check_nothing_left()
    return found


def find_options(filesystem: Any, url: str) -> StorageOptions | None:
    """Return options with which a url leads to the same object as in a filesystem of the user."""
    options = StorageOptions.of(filesystem.storage_options)
    if kind_of(url) in ("s3", "az"):
        try:
            translate_options(host_of(url), options)
        except (UnsupportedError, ValueError):
            return StorageOptions({"filesystem": filesystem})
    return options


def name_anonymous(given: dict[str, Any]) -> dict[str, Any]:
    """Return options of gcsfs in which ``anon``, the name in s3fs and adlfs, is renamed.

    Examples
    --------
    >>> name_anonymous({"anon": True, "project": "p"})
    {'project': 'p', 'token': 'anon'}
    """
    left = {name: value for name, value in given.items() if name != "anon"}
    if given.get("anon") and left.setdefault("token", "anon") != "anon":
        raise ValueError("anon=True and a token contradict each other; give one of them")
    return left


class _RemainingOptions:
    """Options that have not been translated yet; a translation takes those that it supports.

    The ``nested`` options contain others, which are named ``outer.inner`` here.
    """

    def __init__(self, root: str, options: Mapping[str, Any], nested: Sequence[str]) -> None:
        self.root, self.left = root, dict(options)
        for outer in nested:
            inner = self.pop(outer, {})
            if not isinstance(inner, Mapping):
                raise ValueError(f"{outer}: got {type(inner).__name__}; give a dict")
            self.left |= {f"{outer}.{name}": value for name, value in inner.items()}

    def pop(self, name: str, default: Any = None) -> Any:
        value = self.left.pop(name, None)
        return default if value is None else value

    def drop(self, name: str, *without_effect: Any) -> None:
        """Remove an option if its value has no effect."""
        if self.left.get(name) in (None, *without_effect):
            self.left.pop(name, None)

    def pop_one(self, what: str, *names: str) -> Any:
        """Return the value of a setting that can be given by one of several options."""
        values = [value for name in names if (value := self.pop(name, "")) != ""]
        if any(value != values[0] for value in values):
            raise ValueError(f"{self.root}: storage_options name two values of {what}; give one")
        return values[0] if values else None

    def check_nothing_left(self) -> None:
        """Raise an error for options that were not used."""
        if self.left:
            raise UnsupportedError(
                f"{self.root}: storage_options have {min(self.left)!r}, which has no meaning "
                f"here; {REMEDY}"
            )


# ---------------------------------------------------------------------- S3


_S3_ADDITIONAL = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
"""obstore's names for the arguments of S3's write requests."""

_S3_TUNING = (
    *("max_pool_connections", "retries", "tcp_keepalive", "user_agent_extra"),
    *("request_checksum_calculation", "response_checksum_validation"),
    *("parameter_validation", "disable_request_compression", "inject_host_prefix"),
)
"""Settings of botocore's own requests: the connections and retries are those of this package."""


_S3_NESTED = ("client_kwargs", "config_kwargs", "config_kwargs.s3", "s3_additional_kwargs")


def _translate_s3(bucket: str, given: _RemainingOptions) -> BucketAccess:
    for name in _S3_TUNING:
        given.pop(f"config_kwargs.{name}")
    key, secret, token = (
        given.pop_one(f"the {what}", *names, f"client_kwargs.aws_{full}")
        for what, names, full in (
            ("key", ("key", "username"), "access_key_id"),
            ("secret", ("secret", "password"), "secret_access_key"),
            ("token", ("token",), "session_token"),
        )
    )
    signing = str(given.pop("config_kwargs.signature_version", "s3v4"))
    anonymous = bool(given.pop("anon", False)) or "unsigned" in signing.lower()
    if bool(key) != bool(secret) and not anonymous:
        raise ValueError(f"{given.root}: storage_options have half a key; give key and secret")
    secure = given.pop_one("use_ssl", "use_ssl", "client_kwargs.use_ssl")
    endpoint = given.pop_one("the endpoint", "endpoint_url", "client_kwargs.endpoint_url")
    if secure is False and not endpoint:
        endpoint = "http://s3.amazonaws.com"
    if endpoint and "://" not in endpoint:
        endpoint = f"http{'' if secure is False else 's'}://{endpoint}"
    regions = ("client_kwargs.region_name", "config_kwargs.region_name")
    style = "config_kwargs.s3.addressing_style"
    given.drop(style, "path", "auto")
    payer = given.pop("s3_additional_kwargs.RequestPayer")
    config = {
        "skip_signature": anonymous,
        "region": given.pop_one("the region", *regions),
        "endpoint": endpoint,
        # whether the bucket is a part of the host name
        "virtual_hosted_style_request": given.left.get(style) == "virtual",
        "request_payer": bool(given.pop("requester_pays", False) or payer) or None,
        **{new: given.pop(f"s3_additional_kwargs.{n}") for n, new in _S3_ADDITIONAL.items()},
    }
    given.drop(style, "virtual")
    given.drop("version_aware", False)
    profile = given.pop("profile")
    return BucketAccess(
        "s3",
        bucket,
        {name: value for name, value in config.items() if value is not None},
        _translate_client(given, "client_kwargs.verify", "connect_timeout", "config_kwargs."),
        {"access_key_id": key, "secret_access_key": secret, "token": token}
        if key and not anonymous
        else {},
        {"profile": profile} if profile else {},
    )


def _translate_client(
    given: _RemainingOptions, checks: str, connect: str, within: str = ""
) -> dict[str, Any]:
    """Return the settings of an HTTP client: certificates, proxies and time limits."""
    found: dict[str, Any] = {
        "connect_timeout": f"{given.pop(within + connect, CONNECT_TIMEOUT)}s",
        "read_timeout": f"{given.pop(f'{within}read_timeout', READ_TIMEOUT)}s",
        "allow_http": True,
    }
    verify = given.pop(checks)
    bundle = verify if isinstance(verify, str | os.PathLike) else os.environ.get("AWS_CA_BUNDLE")
    if verify is False:
        found["allow_invalid_certificates"] = True
    elif bundle:
        with open(bundle, "rb") as file:
            found["root_certificate"] = file.read()
    proxies = given.pop(f"{within}proxies", {})
    if proxy := proxies.get("https", proxies.get("http")):
        found["proxy_url"] = proxy if "://" in proxy else f"http://{proxy}"
    if agent := given.pop(f"{within}user_agent"):
        found["user_agent"] = agent
    return found


# ---------------------------------------------------------------------- Azure


_AZURE_BOX = re.compile(r"([^@]+)@([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")
_AZURE_ENVIRONMENT = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "connection_string": "AZURE_STORAGE_CONNECTION_STRING",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    "tenant_id": "AZURE_STORAGE_TENANT_ID",
}
"""Environment variables in which adlfs looks for options that are not given."""

_EMULATED = (
    "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErC"
    "z4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1"
)
"""The connection string that ``UseDevelopmentStorage=true`` stands for: the emulator's account,
which is no secret.

See https://learn.microsoft.com/azure/storage/common/storage-use-azurite.
"""
_ENDPOINTS_OF_OTHERS = ("queueendpoint", "tableendpoint", "fileendpoint", "dfsendpoint")


def _translate_azure(box: str, given: _RemainingOptions) -> BucketAccess:
    found = _AZURE_BOX.fullmatch(box)
    anonymous = given.pop("anon")
    values = {name: given.pop(name) for name in _AZURE_ENVIRONMENT}
    named = any(values[name] for name in ("account_key", "connection_string", "sas_token"))
    credential, host = given.pop("credential"), given.pop("account_host")
    named = named or credential is not None
    if anonymous is None and not named:
        anonymous = os.environ.get("AZURE_STORAGE_ANON", "false").lower() in ("true", "1", "yes")
    if not anonymous:
        # secrets of the environment are not combined with those of the options
        variables = ("account_name",) if named else tuple(_AZURE_ENVIRONMENT)
        values |= {n: values[n] or os.environ.get(_AZURE_ENVIRONMENT[n]) for n in variables}
    account = values["account_name"] or (found[2] if found else None)
    if found and account != found[2]:
        raise ValueError(f"{given.root}: account_name is {account!r}; give the one of the url")
    given.drop("location_mode", "primary")
    given.drop("version_aware", False)
    given.pop("timeout")
    given.pop("socket_timeout")
    endpoint, secrets = f"https://{host}" if host else None, dict[str, Any]()
    # objects contain a key or a signature, or return tokens
    if isinstance(credential, str):
        secrets = {"sas_token" if "sig=" in credential else "access_key": credential}
    elif (pair := getattr(credential, "named_key", None)) is not None:
        secrets = {"access_key": pair.key}
    elif (signature := getattr(credential, "signature", None)) is not None:
        secrets = {"sas_token": signature.removeprefix("?")}
    if text := values["connection_string"]:
        # then nothing else counts
        account, endpoint, secrets = _split_connection_string(given, text)
        anonymous = anonymous or not secrets
    elif values["account_key"]:
        secrets = {"access_key": values["account_key"]}
    elif values["sas_token"]:
        secrets = {"sas_token": values["sas_token"].removeprefix("?")}
    if not account:
        raise ValueError(f"{given.root}: give account_name in storage_options")
    login = {"credential": credential} if credential is not None else {}
    if not secrets and values["client_id"] and values["client_secret"]:
        login = {name: values[name] for name in ("tenant_id", "client_id", "client_secret")}
    config = {
        "account_name": account,
        "endpoint": (endpoint or f"https://{account}.blob.core.windows.net").rstrip("/"),
        "skip_signature": bool(anonymous),
        # the environment may specify an emulator, for other programs
        "use_emulator": False,
    }
    client = _translate_client(given, "connection_verify", "connection_timeout")
    container = found[1] if found else box
    return BucketAccess("az", container, config, client, {} if anonymous else secrets, login)


def _split_connection_string(
    given: _RemainingOptions, text: str
) -> tuple[str, str, dict[str, Any]]:
    """Return the account, the endpoint and the secrets of a connection string."""
    if "usedevelopmentstorage=true" in text.lower():
        text = _EMULATED
    pairs = [part.partition("=") for part in text.rstrip(";").split(";")]
    fields = {name.strip().lower(): value for name, _, value in pairs}
    account, key = fields.pop("accountname", ""), fields.pop("accountkey", "")
    signature = fields.pop("sharedaccesssignature", "").removeprefix("?")
    protocol = fields.pop("defaultendpointsprotocol", "https")
    suffix = fields.pop("endpointsuffix", "core.windows.net")
    endpoint = fields.pop("blobendpoint", "") or f"{protocol}://{account}.blob.{suffix}"
    for name in _ENDPOINTS_OF_OTHERS:
        fields.pop(name, None)
    if fields or not account:
        raise ValueError(
            f"{given.root}: connection_string has no AccountName, or parts that have no meaning "
            f"here; {REMEDY}"
        )
    secrets = {"access_key": key} if key else {"sas_token": signature} if signature else {}
    return account, endpoint, secrets


_TRANSLATIONS: dict[str, tuple[Callable[[str, _RemainingOptions], BucketAccess], Sequence[str]]] = {
    "s3": (_translate_s3, _S3_NESTED),
    "az": (_translate_azure, ()),
}
"""Translations by kind of store, and the options that contain others."""


# ---------------------------------------------------------------------- credentials and regions


class NoCredentialsError(PermissionError):
    """No credentials were found, or they cannot be used; the cause says why."""


class Provider:
    """Passes credentials to obstore; ``error`` is the reason why none were found, if so."""

    def __init__(self, find: Callable[[], dict[str, Any]]) -> None:
        self._find = find
        self.error: Exception | None = None

    def __call__(self) -> dict[str, Any]:
        """Return credentials as obstore expects them."""
        try:
            found, self.error = self._find(), None
            return found
        except Exception as error:
            self.error = error
            raise


ASKED_AGAIN = timedelta(minutes=10)
"""The maximum time until botocore is asked again, since it renews credentials without notice."""


class _Session:
    """Settings and credentials of AWS that botocore finds in files and on machines."""

    def __init__(self, profile: str | None) -> None:
        try:
            botocore = import_module("botocore.session")
        except ImportError as error:
            raise ImportError(f"{error}, which looks for the credentials of AWS") from error
        self._session = botocore.Session(profile=profile)

    def find_region(self) -> str | None:
        found: str | None = self._session.get_config_variable("region")
        return found

    def find_endpoint(self) -> str | None:
        """Return the endpoint of S3 in the settings file."""
        settings = self._session.get_scoped_config()
        services = self._session.full_config.get("services", {})
        service = services.get(settings.get("services"), {}).get("s3", {})
        found: str | None = service.get("endpoint_url") or settings.get("endpoint_url")
        return found

    def make_provider(self) -> Provider:
        def find() -> dict[str, Any]:
            # botocore keeps what it has found, and looks again for what was not there
            found = self._session.get_credentials()
            if found is None:
                raise NoCredentialsError("botocore finds none")
            frozen = found.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + ASKED_AGAIN,
            }

        return Provider(find)


def _find_s3(access: BucketAccess) -> tuple[dict[str, Any], Callable[[], Provider] | None]:
    """Return the settings of a bucket, and a function that finds its credentials."""
    config, environment = dict(access.config), os.environ
    named = (environment.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    endpoint = config.get("endpoint") or next(filter(None, named), None)
    files = os.path.expanduser(environment.get("AWS_CONFIG_FILE", "~/.aws/config"))
    session = None
    if access.login or not (access.is_anonymous or access.secrets):
        session = _Session(access.login.get("profile"))
    elif not endpoint and os.path.exists(files):
        with suppress(ImportError):
            session = _Session(None)
    try:
        endpoint = endpoint or (session.find_endpoint() if session else None)
        region = config.get("region") or (session.find_region() if session else None)
    except list_store_errors() as error:
        raise NoCredentialsError(str(error)) from error
    region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint and config["virtual_hosted_style_request"]:
        # then the bucket is a part of the host, also for obstore
        endpoint = endpoint.replace("://", f"://{access.bucket}.", 1)
    if endpoint:
        config["endpoint"] = endpoint
    elif "region" not in config and not (region or "").startswith(_APART):
        region = find_bucket_region(access.bucket) or region
    config["region"] = region or "us-east-1"
    return config, session.make_provider if session else None


_APART = ("cn-", "us-gov-", "us-iso", "eusc-")
"""Beginnings of the names of regions that the public endpoint does not reach."""

REGIONS = "https://s3.amazonaws.com"
"""The server that reports the region of a bucket."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any) -> None:
        """Return None, so that no redirect is followed: only its headers are needed."""


@cache
def find_bucket_region(bucket: str) -> str | None:
    """Return the region of an AWS bucket, or None if it is unknown.

    S3 includes it in every response, even to those who may not read
    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html). No credentials are sent.
    """
    asked = urllib.request.Request(f"{REGIONS}/{bucket}", method="HEAD")
    try:
        with urllib.request.build_opener(_NoRedirects).open(asked, timeout=10) as answer:
            return answer.headers.get("x-amz-bucket-region")  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        return error.headers.get("x-amz-bucket-region")
    except OSError:
        return None


AZURE_SCOPE = "https://storage.azure.com/.default"


def _find_azure_login(access: BucketAccess) -> Provider:
    """Return the credentials of a container for which none are given."""
    credential = access.login.get("credential")
    if credential is None:
        try:
            identity = import_module("azure.identity")
        except ImportError as error:
            raise ImportError(f"{error}, which looks for a login of Azure") from error
        make = identity.ClientSecretCredential if access.login else identity.DefaultAzureCredential
        credential = make(**access.login)

    def find() -> dict[str, Any]:
        token = credential.get_token(AZURE_SCOPE)
        if inspect.isawaitable(token):
            from fsspec.asyn import get_loop, sync

            async def wait(given: Any = token) -> Any:
                return await given

            token = sync(get_loop(), wait)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return Provider(find)


def complete(access: BucketAccess) -> tuple[dict[str, Any], Provider | None]:
    """Return the settings and credentials of a bucket; look up those that are missing."""
    config: dict[str, Any] = access.config
    look_up: Callable[[], Provider] | None = partial(_find_azure_login, access)
    if access.kind == "s3":
        config, look_up = _find_s3(access)
    if access.is_anonymous:
        return config, None
    if access.secrets:
        return config, Provider(lambda: {**access.secrets, "expires_at": None})
    return config, look_up() if look_up else None


NOWHERE = "127.0.0.1:0"
"""An address where nothing can listen, since there is no port 0."""


def restrict_to_host(config: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an HTTP client that sends nothing to any host except the endpoint.

    obstore follows redirects, and no setting prevents that. Session tokens and signatures in the
    url would be sent along. So requests to any other host go to a proxy that does not exist. That
    is not possible if the endpoint itself is reached through a proxy.
    """
    found, endpoint = dict(client), urlsplit(config.get("endpoint", ""))
    host = endpoint.hostname
    # AWS only redirects to its own hosts
    if config["skip_signature"] or not host or "proxy_url" in client:
        return found
    if {endpoint.scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
        return found
    return {**found, "proxy_url": f"http://{NOWHERE}", "proxy_excludes": host}
