"""Settings and credentials of obstore for a bucket of S3 or a container of Azure.

They are translated from the options of s3fs and adlfs; an unknown option raises an error.
Credentials that are not given are looked up by botocore for AWS (environment, profiles, SSO,
roles, instance metadata), and by azure-identity for Azure.
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
from virtualds.source_file import StorageOptions, host_of, kind_of
from virtualds.stores.requests import CONNECT_TIMEOUT, READ_TIMEOUT
from virtualds.stores.store import list_store_errors

IGNORED_OPTIONS = frozenset(
    {"block_size", "cache_type", "cache_options", "skip_instance_cache", "use_listings_cache"}
    | {"listings_expiry_time", "max_paths", "default_block_size", "default_fill_cache"}
    | {"default_cache_type", "cache_regions", "max_concurrency", "fixed_upload_size"}
    | {"local_expiry_check", "blocksize", "assume_container_exists", "asynchronous", "loop"}
)
"""Options of caches, listings and multipart uploads, which have no effect here."""

REMEDY = (
    "leave it out, or pass an object that knows it: {'store': ...}, a store of obstore for this "
    "bucket, or {'filesystem': ...}, a filesystem of fsspec"
)


@dataclass(frozen=True)
class BucketAccess:
    """Settings of obstore for a ``bucket`` or container; ``kind`` is ``"s3"`` or ``"az"``.

    ``config`` are settings of the store without credentials, ``client`` those of its HTTP client,
    and ``secrets`` the credentials, as an obstore credential provider returns them. Without
    secrets, credentials are looked up by ``login``: a profile of AWS, or arguments or an object of
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
    """Translate fsspec options of the user to settings of obstore.

    ``root`` is a url without the path after the bucket. Raises an error for options without an
    equivalent in obstore, and for options that contradict each other.

    Examples
    --------
    >>> options = {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}}
    >>> translate_options("s3://bucket", options).config["region"]
    'eu-west-1'
    >>> translate_options("s3://bucket", {"profile": "mine"}).login
    {'profile': 'mine'}
    """
    relevant = {
        name: value for name, value in (options or {}).items() if name not in IGNORED_OPTIONS
    }
    translate, nested = _TRANSLATIONS[kind_of(root)]
    remaining = _RemainingOptions(root, relevant, nested)
    access = translate(root.partition("://")[2], remaining)
    remaining.check_empty()
    return access


def extract_options(filesystem: Any, url: str) -> StorageOptions | None:
    """Return access options that open a url in the same way as a filesystem of the user does."""
    options = StorageOptions.of(filesystem.storage_options)
    if kind_of(url) in ("s3", "az"):
        try:
            translate_options(host_of(url), options)
        except (UnsupportedError, ValueError):
            return StorageOptions({"filesystem": filesystem})
    return options


def convert_anon_option(options: dict[str, Any]) -> dict[str, Any]:
    """Convert ``anon``, an option of s3fs and adlfs, to the equivalent option of gcsfs.

    Examples
    --------
    >>> convert_anon_option({"anon": True, "project": "p"})
    {'project': 'p', 'token': 'anon'}
    """
    converted = {name: value for name, value in options.items() if name != "anon"}
    if options.get("anon") and converted.setdefault("token", "anon") != "anon":
        raise ValueError("anon=True and a token contradict each other; give one of them")
    return converted


class _RemainingOptions:
    """Options that have not been translated yet; translations pop the ones that they support.

    Options within ``nested`` options are named ``outer.inner``.
    """

    def __init__(self, root: str, options: Mapping[str, Any], nested: Sequence[str]) -> None:
        self.root, self.remaining = root, dict(options)
        for outer in nested:
            inner = self.pop(outer, {})
            if not isinstance(inner, Mapping):
                raise ValueError(f"{outer}: got {type(inner).__name__}; give a dict")
            self.remaining |= {f"{outer}.{name}": value for name, value in inner.items()}

    def pop(self, name: str, default: Any = None) -> Any:
        value = self.remaining.pop(name, None)
        return default if value is None else value

    def drop(self, name: str, *without_effect: Any) -> None:
        """Remove an option if its value has no effect."""
        if self.remaining.get(name) in (None, *without_effect):
            self.remaining.pop(name, None)

    def pop_one(self, setting: str, *names: str) -> Any:
        """Pop a setting that has several equivalent options; raise if their values differ."""
        values = [value for name in names if (value := self.pop(name, "")) != ""]
        if any(value != values[0] for value in values):
            raise ValueError(f"{self.root}: storage_options name two values of {setting}; give one")
        return values[0] if values else None

    def check_empty(self) -> None:
        """Raise `UnsupportedError` for options that have not been popped."""
        if self.remaining:
            raise UnsupportedError(
                f"{self.root}: storage_options have {min(self.remaining)!r}, which has no meaning "
                f"here; {REMEDY}"
            )


# ---------------------------------------------------------------------- S3


_S3_ADDITIONAL = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
"""Names in obstore of arguments of write requests of S3."""

_S3_TUNING = (
    *("max_pool_connections", "retries", "tcp_keepalive", "user_agent_extra"),
    *("request_checksum_calculation", "response_checksum_validation"),
    *("parameter_validation", "disable_request_compression", "inject_host_prefix"),
)
"""Settings of botocore's own requests, which have no effect here."""


_S3_NESTED = ("client_kwargs", "config_kwargs", "config_kwargs.s3", "s3_additional_kwargs")


def _translate_s3(bucket: str, options: _RemainingOptions) -> BucketAccess:
    for name in _S3_TUNING:
        options.pop(f"config_kwargs.{name}")
    key, secret, token = (
        options.pop_one(f"the {setting}", *names, f"client_kwargs.aws_{aws_name}")
        for setting, names, aws_name in (
            ("key", ("key", "username"), "access_key_id"),
            ("secret", ("secret", "password"), "secret_access_key"),
            ("token", ("token",), "session_token"),
        )
    )
    signing = str(options.pop("config_kwargs.signature_version", "s3v4"))
    anonymous = bool(options.pop("anon", False)) or "unsigned" in signing.lower()
    if bool(key) != bool(secret) and not anonymous:
        raise ValueError(
            f"{options.root}: storage_options have only one of key and secret; give both"
        )
    secure = options.pop_one("use_ssl", "use_ssl", "client_kwargs.use_ssl")
    endpoint = options.pop_one("the endpoint", "endpoint_url", "client_kwargs.endpoint_url")
    if secure is False and not endpoint:
        endpoint = "http://s3.amazonaws.com"
    if endpoint and "://" not in endpoint:
        endpoint = f"http{'' if secure is False else 's'}://{endpoint}"
    regions = ("client_kwargs.region_name", "config_kwargs.region_name")
    style = "config_kwargs.s3.addressing_style"
    options.drop(style, "path", "auto")
    payer = options.pop("s3_additional_kwargs.RequestPayer")
    config = {
        "skip_signature": anonymous,
        "region": options.pop_one("the region", *regions),
        "endpoint": endpoint,
        # whether the bucket is part of the host name
        "virtual_hosted_style_request": options.remaining.get(style) == "virtual",
        "request_payer": bool(options.pop("requester_pays", False) or payer) or None,
        **{new: options.pop(f"s3_additional_kwargs.{n}") for n, new in _S3_ADDITIONAL.items()},
    }
    options.drop(style, "virtual")
    options.drop("version_aware", False)
    profile = options.pop("profile")
    return BucketAccess(
        "s3",
        bucket,
        {name: value for name, value in config.items() if value is not None},
        _translate_client(options, "client_kwargs.verify", "connect_timeout", "config_kwargs."),
        {"access_key_id": key, "secret_access_key": secret, "token": token}
        if key and not anonymous
        else {},
        {"profile": profile} if profile else {},
    )


def _translate_client(
    options: _RemainingOptions, verify_name: str, connect_name: str, prefix: str = ""
) -> dict[str, Any]:
    """Pop the settings of the HTTP client: certificates, proxies and time limits."""
    client: dict[str, Any] = {
        "connect_timeout": f"{options.pop(prefix + connect_name, CONNECT_TIMEOUT)}s",
        "read_timeout": f"{options.pop(f'{prefix}read_timeout', READ_TIMEOUT)}s",
        "allow_http": True,
    }
    verify = options.pop(verify_name)
    bundle = verify if isinstance(verify, str | os.PathLike) else os.environ.get("AWS_CA_BUNDLE")
    if verify is False:
        client["allow_invalid_certificates"] = True
    elif bundle:
        with open(bundle, "rb") as file:
            client["root_certificate"] = file.read()
    proxies = options.pop(f"{prefix}proxies", {})
    if proxy := proxies.get("https", proxies.get("http")):
        client["proxy_url"] = proxy if "://" in proxy else f"http://{proxy}"
    if agent := options.pop(f"{prefix}user_agent"):
        client["user_agent"] = agent
    return client


# ---------------------------------------------------------------------- Azure


_AZURE_CONTAINER_URL = re.compile(r"([^@]+)@([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")
_AZURE_ENVIRONMENT = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "connection_string": "AZURE_STORAGE_CONNECTION_STRING",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    "tenant_id": "AZURE_STORAGE_TENANT_ID",
}
"""Environment variables of adlfs, by the option for which they are the default."""

_EMULATOR_CONNECTION = (
    "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErC"
    "z4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1"
)
"""Connection string for ``UseDevelopmentStorage=true``: the well-known account of the emulator.

See https://learn.microsoft.com/azure/storage/common/storage-use-azurite.
"""
_OTHER_ENDPOINTS = ("queueendpoint", "tableendpoint", "fileendpoint", "dfsendpoint")


def _translate_azure(authority: str, options: _RemainingOptions) -> BucketAccess:
    match = _AZURE_CONTAINER_URL.fullmatch(authority)
    anonymous = options.pop("anon")
    values = {name: options.pop(name) for name in _AZURE_ENVIRONMENT}
    has_secret = any(values[name] for name in ("account_key", "connection_string", "sas_token"))
    credential, host = options.pop("credential"), options.pop("account_host")
    has_secret = has_secret or credential is not None
    if anonymous is None and not has_secret:
        anonymous = os.environ.get("AZURE_STORAGE_ANON", "false").lower() in ("true", "1", "yes")
    if not anonymous:
        # do not combine secrets of the environment with secrets of the options
        variables = ("account_name",) if has_secret else tuple(_AZURE_ENVIRONMENT)
        values |= {n: values[n] or os.environ.get(_AZURE_ENVIRONMENT[n]) for n in variables}
    account = values["account_name"] or (match[2] if match else None)
    if match and account != match[2]:
        raise ValueError(f"{options.root}: account_name is {account!r}; give the one of the url")
    options.drop("location_mode", "primary")
    options.drop("version_aware", False)
    options.pop("timeout")
    options.pop("socket_timeout")
    endpoint, secrets = f"https://{host}" if host else None, dict[str, Any]()
    # credential objects have a key or a SAS signature, or return tokens
    if isinstance(credential, str):
        secrets = {"sas_token" if "sig=" in credential else "access_key": credential}
    elif (pair := getattr(credential, "named_key", None)) is not None:
        secrets = {"access_key": pair.key}
    elif (signature := getattr(credential, "signature", None)) is not None:
        secrets = {"sas_token": signature.removeprefix("?")}
    if text := values["connection_string"]:
        # a connection string overrides all other credentials
        account, endpoint, secrets = _split_connection_string(options, text)
        anonymous = anonymous or not secrets
    elif values["account_key"]:
        secrets = {"access_key": values["account_key"]}
    elif values["sas_token"]:
        secrets = {"sas_token": values["sas_token"].removeprefix("?")}
    if not account:
        raise ValueError(f"{options.root}: give account_name in storage_options")
    login = {"credential": credential} if credential is not None else {}
    if not secrets and values["client_id"] and values["client_secret"]:
        login = {name: values[name] for name in ("tenant_id", "client_id", "client_secret")}
    config = {
        "account_name": account,
        "endpoint": (endpoint or f"https://{account}.blob.core.windows.net").rstrip("/"),
        "skip_signature": bool(anonymous),
        # ignore an emulator in the environment, which may be meant for other programs
        "use_emulator": False,
    }
    client = _translate_client(options, "connection_verify", "connection_timeout")
    container = match[1] if match else authority
    return BucketAccess("az", container, config, client, {} if anonymous else secrets, login)


def _split_connection_string(
    options: _RemainingOptions, text: str
) -> tuple[str, str, dict[str, Any]]:
    """Parse account, endpoint and secrets of a connection string."""
    if "usedevelopmentstorage=true" in text.lower():
        text = _EMULATOR_CONNECTION
    pairs = [part.partition("=") for part in text.rstrip(";").split(";")]
    fields = {name.strip().lower(): value for name, _, value in pairs}
    account, key = fields.pop("accountname", ""), fields.pop("accountkey", "")
    signature = fields.pop("sharedaccesssignature", "").removeprefix("?")
    protocol = fields.pop("defaultendpointsprotocol", "https")
    suffix = fields.pop("endpointsuffix", "core.windows.net")
    endpoint = fields.pop("blobendpoint", "") or f"{protocol}://{account}.blob.{suffix}"
    for name in _OTHER_ENDPOINTS:
        fields.pop(name, None)
    if fields or not account:
        raise ValueError(
            f"{options.root}: connection_string has no AccountName, or parts that have no meaning "
            f"here; {REMEDY}"
        )
    secrets = {"access_key": key} if key else {"sas_token": signature} if signature else {}
    return account, endpoint, secrets


_TRANSLATIONS: dict[str, tuple[Callable[[str, _RemainingOptions], BucketAccess], Sequence[str]]] = {
    "s3": (_translate_s3, _S3_NESTED),
    "az": (_translate_azure, ()),
}
"""By kind of store: the translation function, and the options that contain others."""


# ---------------------------------------------------------------------- credentials and regions


class NoCredentialsError(PermissionError):
    """Raised if no usable credentials are found; its cause is the reason."""


class CredentialProvider:
    """A credential provider for obstore that keeps its last error."""

    def __init__(self, find: Callable[[], dict[str, Any]]) -> None:
        self._find = find
        self.error: Exception | None = None

    def __call__(self) -> dict[str, Any]:
        """Return credentials as the dict that obstore expects."""
        try:
            credentials, self.error = self._find(), None
            return credentials
        except Exception as error:
            self.error = error
            raise


REFRESH_INTERVAL = timedelta(minutes=10)
"""Time after which credentials are requested again from botocore, which renews them."""


class _AwsSession:
    """Settings and credentials of AWS that botocore finds in files, environment and metadata."""

    def __init__(self, profile: str | None) -> None:
        try:
            botocore = import_module("botocore.session")
        except ImportError as error:
            raise ImportError(f"{error}; botocore is needed to find AWS credentials") from error
        self._session = botocore.Session(profile=profile)

    def find_region(self) -> str | None:
        region: str | None = self._session.get_config_variable("region")
        return region

    def find_endpoint(self) -> str | None:
        """Return the endpoint of S3 in the AWS config file, or None."""
        settings = self._session.get_scoped_config()
        services = self._session.full_config.get("services", {})
        service = services.get(settings.get("services"), {}).get("s3", {})
        endpoint: str | None = service.get("endpoint_url") or settings.get("endpoint_url")
        return endpoint

    def make_provider(self) -> CredentialProvider:
        def find() -> dict[str, Any]:
            # botocore caches and renews credentials
            credentials = self._session.get_credentials()
            if credentials is None:
                raise NoCredentialsError("botocore finds none")
            frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + REFRESH_INTERVAL,
            }

        return CredentialProvider(find)


def _complete_s3(
    access: BucketAccess,
) -> tuple[dict[str, Any], Callable[[], CredentialProvider] | None]:
    """Return the complete settings of an S3 bucket, and a function that makes its provider.

    The function is None if there is nothing to look up.
    """
    config, environment = dict(access.config), os.environ
    endpoints = (environment.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    endpoint = config.get("endpoint") or next(filter(None, endpoints), None)
    config_file = os.path.expanduser(environment.get("AWS_CONFIG_FILE", "~/.aws/config"))
    session = None
    if access.login or not (access.is_anonymous or access.secrets):
        session = _AwsSession(access.login.get("profile"))
    elif not endpoint and os.path.exists(config_file):
        with suppress(ImportError):
            session = _AwsSession(None)
    try:
        endpoint = endpoint or (session.find_endpoint() if session else None)
        region = config.get("region") or (session.find_region() if session else None)
    except list_store_errors() as error:
        raise NoCredentialsError(str(error)) from error
    region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint and config["virtual_hosted_style_request"]:
        # obstore expects the bucket in the host name of the endpoint
        endpoint = endpoint.replace("://", f"://{access.bucket}.", 1)
    if endpoint:
        config["endpoint"] = endpoint
    elif "region" not in config and not (region or "").startswith(_PRIVATE_REGION_PREFIXES):
        region = find_bucket_region(access.bucket) or region
    config["region"] = region or "us-east-1"
    return config, session.make_provider if session else None


_PRIVATE_REGION_PREFIXES = ("cn-", "us-gov-", "us-iso", "eusc-")
"""Prefixes of regions of other AWS partitions, which the public endpoint does not serve."""

REGION_ENDPOINT = "https://s3.amazonaws.com"
"""Endpoint that reports the region of a bucket."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Return None, so that redirects are not followed."""


@cache
def find_bucket_region(bucket: str) -> str | None:
    """Return the region of an AWS bucket, or None if it is unknown.

    S3 includes it in each response, even if access is denied
    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html). No credentials are sent.
    """
    request = urllib.request.Request(f"{REGION_ENDPOINT}/{bucket}", method="HEAD")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=10) as response:
            return response.headers.get("x-amz-bucket-region")  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        return error.headers.get("x-amz-bucket-region")
    except OSError:
        return None


AZURE_SCOPE = "https://storage.azure.com/.default"


def _make_azure_provider(access: BucketAccess) -> CredentialProvider:
    """Return a credential provider that gets tokens from azure.identity."""
    credential = access.login.get("credential")
    if credential is None:
        try:
            identity = import_module("azure.identity")
        except ImportError as error:
            raise ImportError(f"{error}, which looks for a login of Azure") from error
        credential_class = (
            identity.ClientSecretCredential if access.login else identity.DefaultAzureCredential
        )
        credential = credential_class(**access.login)

    def find() -> dict[str, Any]:
        token = credential.get_token(AZURE_SCOPE)
        if inspect.isawaitable(token):
            from fsspec.asyn import get_loop, sync

            async def wait(awaitable: Any = token) -> Any:
                return await awaitable

            token = sync(get_loop(), wait)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return CredentialProvider(find)


def complete_access(access: BucketAccess) -> tuple[dict[str, Any], CredentialProvider | None]:
    """Return the complete settings and the credential provider of a bucket.

    Looks up settings and credentials that the user has not given.
    """
    config: dict[str, Any] = access.config
    make_provider: Callable[[], CredentialProvider] | None = partial(_make_azure_provider, access)
    if access.kind == "s3":
        config, make_provider = _complete_s3(access)
    if access.is_anonymous:
        return config, None
    if access.secrets:
        return config, CredentialProvider(lambda: {**access.secrets, "expires_at": None})
    return config, make_provider() if make_provider else None


UNREACHABLE_PROXY = "127.0.0.1:0"
"""An address at which nothing can listen, since there is no port 0."""


def restrict_to_host(config: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an HTTP client that cannot connect to other hosts than the endpoint.

    obstore always follows redirects, which would send session tokens and signatures to other hosts.
    So requests to other hosts are sent to a proxy that does not exist. This is not possible if the
    endpoint itself is reached through a proxy.
    """
    restricted, endpoint = dict(client), urlsplit(config.get("endpoint", ""))
    host = endpoint.hostname
    # without an endpoint of the user, AWS redirects only to its own hosts
    if config["skip_signature"] or not host or "proxy_url" in client:
        return restricted
    if {endpoint.scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
        return restricted
    return {**restricted, "proxy_url": f"http://{UNREACHABLE_PROXY}", "proxy_excludes": host}
