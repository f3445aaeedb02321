"""Access rules for the urls in a reference set, whose writer may be untrusted.

Each url is made absolute (dots resolved, scheme and host normalised, RFC 3986 section 6.2.2) and
checked, and then opened in exactly this form.
"""

from __future__ import annotations

import os
import re
import socket
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote

from virtualds.errors import AccessError, UnsupportedError, without_secrets
from virtualds.source_file import (
    OBJECT_SCHEME,
    StorageOptions,
    is_in_folder,
    join_url,
    local_path,
    normalise_url,
    scheme_of,
)

Allow = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None
"""The type of the argument ``allow``: None, one prefix, or several."""

REMOTE_SCHEMES = frozenset(
    {"http", "https", "ftp", "ssh", "sftp", "webdav", "hdfs", "webhdfs", "s3", "s3a", "gs", "gcs"}
    | {"az", "abfs", "abfss", "adl", "oci", "ocilake", "oss", "tos", "hf", "github", "gist"}
    | {"box", "dropbox", "gdrive", "lakefs"}
)
"""Schemes that never open local files, and send no credentials by default."""
TRUSTED_SCHEMES = frozenset({"file", "memory", OBJECT_SCHEME})
"""Schemes of reference sets on this machine or in the memory of this process."""
TRANSPARENT_LINK = re.compile(
    r"(simplecache|filecache|blockcache|cached)(://)?|(zip|tar|libarchive)://.*"
)
"""Matches links of fsspec's chained urls that only open the next link.

A cache link with a path would open that path instead.
"""
OPAQUE_SCHEMES = frozenset(
    {"reference", "generic", "dir", "dask", "dvc", "async_wrapper", "asyncwrapper", "zip", "tar"}
)
"""Schemes that may open any other url, or run code."""
DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21", "ssh": "22", "sftp": "22"}
"""Default ports of schemes with a host."""
SCHEMES_WITH_HOST = frozenset({*DEFAULT_PORTS, "webdav", "hdfs", "webhdfs"})
"""Schemes whose authority is a host, possibly after a user name."""

BUCKET_SCHEMES = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos"}
)
"""Schemes whose authority is a bucket."""
LOCAL_NAMES = frozenset({"localhost", "ip6-localhost", "ip6-loopback", "broadcasthost"})
LOCAL_SUFFIXES = (".localhost", ".local", ".localdomain", ".internal", ".lan", ".home.arpa")
"""Host names of this machine and its local network (RFC 6761, 6762, 8375)."""
NAT64 = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that contain an IPv4 address (RFC 6052)."""
LOCAL_NETWORKS = tuple(
    ip_network(text) for text in ("192.0.0.0/24", "64:ff9b:1::/48", "::ffff:0:0:0/96", "fec0::/10")
)
"""Private networks that versions of `ipaddress` treat as public (RFC 6890, 8215, 7915, 3513)."""
Address = IPv4Address | IPv6Address

REMEDY = "if you trust it, name the folder that may be read with allow=[...]"

_LABEL = r"[\w~-]{1,63}"
_HOST = re.compile(
    rf"(|{_LABEL}(\.{_LABEL})*\.?|\[(?P<address>.+)\])(:(?P<port>[0-9]*))?", re.ASCII
)
"""Matches a host as returned by `_encode_host` (RFC 1034, section 3.1), or an address with port."""
_REMOTE_URL = re.compile(r"([^:]+)://([^/?#]*)(.*)", re.DOTALL)
_SHORT_FILE_URL = re.compile(r"(?:file|local):(?=/(?!/))", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Matches control characters, and surrogates for bytes that are not UTF-8."""
_DOTS = re.compile(r"(?:^|[/\\])\.\.?(?:[/\\;]|$)")
_MAX_DECODINGS = 5


class UrlParts(NamedTuple):
    """The parts of a url; ``authority`` is the host, with user and port, or the bucket."""

    scheme: str
    authority: str
    path: str
    query: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}{self.query}"


@dataclass(frozen=True)
class AccessPolicy:
    """The urls to which a set may refer, and the options with which they are opened.

    ``prefixes`` are the absolute urls that are allowed; by default a local set may refer to any
    file, a remote set to remote files. ``options`` are the access options of the source files, and
    ``protocol`` the default scheme of urls, if the user passed these separately from the options of
    the set.

    Examples
    --------
    >>> allowed = AccessPolicy.from_argument(["s3://bucket/2001", "/data"])
    >>> allowed.check("s3://bucket/2001/a.nc", "https://example.org/refs.json")
    >>> allowed.check("s3://bucket/2001-b/a.nc", "https://example.org/refs.json")
    Traceback (most recent call last):
    ...
    virtualds.AccessError: https://example.org/refs.json: it refers to ...
    """

    prefixes: tuple[str, ...] | None = None
    options: StorageOptions | None = None
    protocol: str | None = None

    @classmethod
    def from_argument(cls, allow: Allow) -> AccessPolicy:
        """Build the policy from the argument ``allow``; raise if a prefix is invalid."""
        if allow is None:
            return cls()
        prefixes = [allow] if isinstance(allow, str | os.PathLike) else allow
        if not isinstance(prefixes, Iterable):
            raise TypeError(f"allow {allow!r}: give a folder, as path or url, or several of them")
        return cls(tuple(_normalise_prefix(prefix) for prefix in prefixes))

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """The local folders among the prefixes, with symbolic links resolved."""
        local = [p for p in self.prefixes or () if scheme_of(p) == "file"]
        return tuple(os.path.realpath(local_path(prefix)) for prefix in local)

    @cached_property
    def _remote_prefixes(self) -> tuple[UrlParts, ...]:
        return tuple(_parse_url(p) for p in self.prefixes or () if scheme_of(p) != "file")

    def check(self, url: str, base: str) -> None:
        """Raise `AccessError` if the set at ``base`` may not refer to an absolute url."""
        *outer, last = _split_links(url)
        opaque_link = next((link for link in outer if not TRANSPARENT_LINK.fullmatch(link)), None)
        is_unrestricted = self.prefixes is None
        is_guarded = is_unrestricted and not is_trusted(base)
        is_local = "file" in (scheme_of(last), opaque_link and scheme_of(f"{opaque_link}://"))
        opaque_url = opaque_link or (last if scheme_of(last) in OPAQUE_SCHEMES else None)
        # the schemes of the set itself are allowed as well
        remote_schemes = REMOTE_SCHEMES | {scheme_of(link) for link in _split_links(base)}
        violations = (
            (
                is_guarded and is_local,
                f"the local file {url}, which a remote set may not; {REMEDY}",
            ),
            (
                opaque_url,
                f"{url}, and where {opaque_url} leads cannot be judged; refer to the file itself",
            ),
            (
                # fsspec would open a local folder, pipe or device
                outer
                and scheme_of(last) == "file"
                and os.path.exists(local_path(last))
                and not os.path.isfile(local_path(last)),
                f"{url}, which is not a regular file; refer to a file",
            ),
            (
                is_guarded
                and has_private_host(last)
                and not has_private_host(_split_links(base)[-1]),
                f"{url}, an address of this machine or its network, which a set of a public host "
                f"may not; {REMEDY}",
            ),
            (
                not is_unrestricted and not self._is_allowed(last),
                f"{url}, which lies under none of {list(self.prefixes or ())}; {REMEDY}",
            ),
            (
                is_guarded and scheme_of(last) not in remote_schemes,
                f"{url}, which a remote set may not, because it may be local; {REMEDY}",
            ),
        )
        if message := next((text for is_violated, text in violations if is_violated), None):
            raise AccessError(f"{base}: it refers to {message}")

    def _is_allowed(self, url: str) -> bool:
        if scheme_of(url) == "file":
            real = os.path.realpath(local_path(url))
            return any(is_in_folder(real, folder) for folder in self.folders)
        parsed = _parse_url(url)
        return not _has_hidden_dots(parsed.path) and any(
            parsed.scheme == prefix.scheme
            and prefix.authority in ("", parsed.authority)
            and is_in_folder(parsed.path, prefix.path)
            for prefix in self._remote_prefixes
        )


DEFAULT_POLICY = AccessPolicy()
"""The policy if the argument ``allow`` is not given."""


def resolve_url(url: str, base: str) -> str:
    """Return the absolute form of a url in the set ``base``, in which it is checked and opened.

    Raises `AccessError` for a string that is neither a url nor a path.
    """
    if not is_valid_url(url):
        raise _make_invalid_url_error(url, base)
    url = _SHORT_FILE_URL.sub("file://", url, count=1)
    has_scheme = scheme_of(url) != "file" or url.lower().startswith(("file://", "local://"))
    if not has_scheme and "://" in url and "::" not in url:
        raise _make_invalid_url_error(url, base)
    if not has_scheme and not os.path.isabs(url):
        url = _join_to_folder(base, url)
    *outer, last = _split_links(url)
    last = _SHORT_FILE_URL.sub("file://", last, count=1)
    if scheme_of(last) == "file":
        # like the operating system, resolve .. after a symbolic link from the target of the link
        folder, dots, name = (path := local_path(last)).rpartition("/../")
        path = os.path.join(os.path.realpath(f"{folder}/.."), name) if dots else path
        # resolve symbolic links of a chain now, since they are not checked when the file is read
        return "::".join([*outer, normalise_url(os.path.realpath(path) if outer else path)])
    parsed = _parse_url(last)
    if re.search(r"[\\\s]", parsed.authority):
        raise _make_invalid_url_error(url, base)
    if parsed.scheme in SCHEMES_WITH_HOST and not _is_host(parsed.authority.rpartition("@")[2]):
        raise AccessError(
            f"{base}: it refers to {url!r}, whose host is not a name or address that can be "
            f"looked up; write the host in ASCII (as IDNA encodes it), and a port of 0 to 65535"
        )
    return "::".join([*outer, str(parsed)])


def is_trusted(base: str) -> bool:
    """Return whether a set is local or in the memory of this process, and therefore trusted.

    Examples
    --------
    >>> is_trusted("/data/refs.json"), is_trusted("memory://refs.json"), is_trusted("s3://bucket/refs.json")
    (True, True, False)
    """
    return scheme_of(base) == "file" or ("::" not in base and scheme_of(base) in TRUSTED_SCHEMES)


def is_same_host(url: str, other: str) -> bool:
    """Return whether two absolute urls have the same host or bucket, and the same chained links."""
    (*outer, last), (*others, end) = _split_links(url), _split_links(other)
    if scheme_of(last) == "file" or scheme_of(end) == "file":
        return False
    return outer == others and _parse_url(last)[:2] == _parse_url(end)[:2]


def has_private_host(url: str) -> bool:
    """Return whether a url has a host that is this machine or in its network, without DNS look-ups.

    Special names are known (RFC 6761, section 6.3). Addresses are parsed as by ``inet_aton``:
    decimal, octal or hexadecimal, with one to four parts.
    """
    if scheme_of(url) not in DEFAULT_PORTS and "@" not in url:
        has_host = _REMOTE_URL.fullmatch(url) is not None and scheme_of(url) not in BUCKET_SCHEMES
        if not has_host:
            return False
    authority = _parse_url(url).authority.rpartition("@")[2]
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority
    if not authority.startswith("["):
        host = host.partition(":")[0]
    # hosts of other schemes than `SCHEMES_WITH_HOST` are not normalised yet
    host = unicodedata.normalize("NFKC", unquote(host)).lower().rstrip(".").partition("%")[0]
    if not host or host in LOCAL_NAMES or host.endswith(LOCAL_SUFFIXES):
        return True
    address = _parse_address(host)
    return address is not None and not _is_public(address)


def _is_host(text: str) -> bool:
    """Return whether a host, with an optional port, has a form that clients do not change."""
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 0) >= 2**16:
        return False
    return match["address"] is None or isinstance(_parse_address(match["address"]), IPv6Address)


def _parse_address(host: str) -> Address | None:
    """Return the IP address of a host, or None if the host is a name."""
    try:
        return ip_address(socket.inet_aton(host))
    except (OSError, ValueError):
        pass
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_public(address: Address) -> bool:
    """Return whether an address, and any IPv4 address embedded in it, is public."""
    if isinstance(address, IPv6Address):
        embedded: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
        if address in NAT64:
            embedded.append(ip_address(address.packed[-4:]))
        if int(address) >> 32 == 0:
            embedded.append(ip_address(address.packed[-4:]))
        if any(inner is not None and not _is_public(inner) for inner in embedded):
            return False
    is_local = address.is_multicast or any(address in network for network in LOCAL_NETWORKS)
    return address.is_global and not is_local


def is_valid_url(url: str) -> bool:
    """Return whether a url is valid in a reference set: UTF-8 without control characters."""
    return not _CONTROL.search(url)


def check_valid_url(url: str) -> None:
    """Raise `UnsupportedError` for a url that is invalid in reference sets."""
    if not is_valid_url(url):
        raise UnsupportedError(
            f"{without_secrets(url)!r}: a name with control characters, such as line breaks, or "
            f"one that is not UTF-8 cannot be stored in a reference set; rename the file"
        )


def _make_invalid_url_error(url: str, base: str) -> AccessError:
    return AccessError(
        f"{base}: it refers to {url!r}, which is neither a url nor a path; write the set again"
    )


def _normalise_prefix(prefix: str | os.PathLike[str]) -> str:
    """Convert a prefix of ``allow`` to the absolute form in which urls are checked."""
    url = normalise_url(prefix)
    if not os.fspath(prefix) or "::" in url or _CONTROL.search(url):
        raise ValueError(f"allow: {prefix!r} is not a prefix; give a folder, or a url without '::'")
    if scheme_of(url) == "file":
        return url
    parsed = _parse_url(url)
    if parsed.query:
        raise ValueError(f"allow: {prefix!r} has a query; give the url of a folder")
    return str(parsed)


def _split_links(url: str) -> list[str]:
    """Return the links of a chain of fsspec filesystems; a local path is one link."""
    return [url] if scheme_of(url) == "file" else url.split("::")


def _parse_url(url: str) -> UrlParts:
    """Return the normalised parts of a remote url."""
    match = _REMOTE_URL.fullmatch(url)
    scheme, authority, path = match.groups() if match else (scheme_of(url), "", "")
    scheme, query = scheme.lower(), ""
    if scheme in DEFAULT_PORTS:
        # ? and # end the path of an HTTP url, but are ordinary characters in object names
        end = min((i for i in (path.find("?"), path.find("#")) if i >= 0), default=len(path))
        path, query = path[:end], path[end:]
    if scheme in SCHEMES_WITH_HOST:
        user, at, host = authority.rpartition("@")
        host = _encode_host(host)
        host = re.sub(rf":0*(?:{DEFAULT_PORTS.get(scheme, '')})?$", "", host)
        authority = user + at + host
    return UrlParts(scheme, authority, _resolve_dots(path), query)


def _encode_host(host: str) -> str:
    """Encode a host, with an optional port, in the ASCII form that clients look up.

    Clients differ in how they map the characters of a host (RFC 3986, section 3.2.2; UTS 46; RFC
    5891), but do not change a host in ASCII form. A host that cannot be encoded is returned in a
    form that `_HOST` does not match.
    """
    host = (host if host.startswith("[") else unquote(host)).lower()
    # clients remove invisible characters, which changes the name
    if host.isascii() or any(unicodedata.category(letter) == "Cf" for letter in host):
        return host
    name, colon, port = host.partition(":")
    # idna is a dependency of HTTP clients, so it is installed with them
    with suppress(ImportError, UnicodeError):
        name = import_module("idna").encode(name, uts46=True).decode("ascii")
    return name + colon + port


def _resolve_dots(path: str) -> str:
    """Resolve the segments ``.`` and ``..`` (RFC 3986, section 5.2.4)."""
    if not _DOTS.search(path):
        return path
    first, *parts = path.split("/")
    resolved: list[str] = []
    for part in parts:
        if part == "..":
            del resolved[-1:]
        elif part != ".":
            resolved.append(part)
    if parts and parts[-1] in (".", ".."):
        resolved.append("")
    return "/".join([first, *resolved])


def _has_hidden_dots(path: str) -> bool:
    """Return whether a path has dot segments after percent-decoding, possibly repeated."""
    for _ in range(_MAX_DECODINGS):
        if _DOTS.search(path):
            return True
        path, encoded = unquote(path), path
        if path == encoded:
            return False
    return True


def _join_to_folder(base: str, relative: str) -> str:
    """Return a path that is relative to the folder of a set as an absolute url.

    The url of the set may be a chain.
    """
    if scheme_of(base) == OBJECT_SCHEME:
        # an object in memory is in no folder
        return normalise_url(relative)
    links = _split_links(base)
    number = next((i for i, link in enumerate(links) if "://" in link), 0)
    if scheme_of(links[number]) == "file":
        links[number] = join_url(links[number], relative)
    else:
        links[number] = join_url(str(_parse_url(links[number])._replace(query="")), relative)
    return "::".join(links)
