"""Access rules: the urls to which a reference set may refer.

A set may come from an untrusted writer. Each url is made absolute (dots resolved, scheme and host
normalised, RFC 3986 section 6.2.2), checked, and opened in exactly this form.
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
from virtualds.source_file import StorageOptions
from virtualds.urls import HELD, is_in_folder, join_url, local_path, normalise_url, scheme_of

Allow = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None
"""The argument ``allow`` of users: None, one prefix, or several."""

REMOTE = frozenset(
    {"http", "https", "ftp", "ssh", "sftp", "webdav", "hdfs", "webhdfs", "s3", "s3a", "gs", "gcs"}
    | {"az", "abfs", "abfss", "adl", "oci", "ocilake", "oss", "tos", "hf", "github", "gist"}
    | {"box", "dropbox", "gdrive", "lakefs"}
)
"""Schemes that never lead to files of this machine, and send no credentials by default."""
OWN = frozenset({"file", "memory", HELD})
"""Schemes of sets that are trusted like local files, since this process itself holds them."""
TRANSPARENT = re.compile(
    r"(simplecache|filecache|blockcache|cached)(://)?|(zip|tar|libarchive)://.*"
)
"""Links of fsspec's chained urls that only open the next link.

A cache with a path of its own would open that path instead.
"""
OPAQUE = frozenset(
    {"reference", "generic", "dir", "dask", "dvc", "async_wrapper", "asyncwrapper", "zip", "tar"}
)
"""Schemes that open something other than their url states; some would run code."""
DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21", "ssh": "22", "sftp": "22"}
"""Default ports of schemes whose urls begin with a host."""
HOSTED = frozenset({*DEFAULT_PORTS, "webdav", "hdfs", "webhdfs"})
"""Schemes whose urls begin with a host that is looked up, possibly after a user name."""

BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos"})
"""Schemes whose urls begin with a bucket instead of a host."""
LOCAL_NAMES = frozenset({"localhost", "ip6-localhost", "ip6-loopback", "broadcasthost"})
LOCAL_SUFFIXES = (".localhost", ".local", ".localdomain", ".internal", ".lan", ".home.arpa")
"""Names of this machine and its network (RFC 6761, 6762, 8375)."""
NAT64 = IPv6Network("64:ff9b::/96")
"""Addresses that contain an IPv4 address (RFC 6052)."""
LOCAL_NETWORKS = tuple(
    ip_network(text) for text in ("192.0.0.0/24", "64:ff9b:1::/48", "::ffff:0:0:0/96", "fec0::/10")
)
"""Networks that `ipaddress` treats as public, at least in some Pythons (RFC 6890, 8215, 7915,
3513)."""
Address = IPv4Address | IPv6Address

REMEDY = "if you trust it, name the folder that may be read with allow=[...]"

_LABEL = r"[\w~-]{1,63}"
_HOST = re.compile(
    rf"(|{_LABEL}(\.{_LABEL})*\.?|\[(?P<address>.+)\])(:(?P<port>[0-9]*))?", re.ASCII
)
"""A host as `_encode_host` returns it (RFC 1034, section 3.1), or an address, and the port."""
_REMOTE_URL = re.compile(r"([^:]+)://([^/?#]*)(.*)", re.DOTALL)
_SHORT_FILE_URL = re.compile(r"(?:file|local):(?=/(?!/))", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and Python's replacements for bytes that are not UTF-8."""
_DOTS = re.compile(r"(?:^|[/\\])\.\.?(?:[/\\;]|$)")
_DECODINGS = 5


class UrlParts(NamedTuple):
    """The parts of a url; ``authority`` is the host, the bucket, or any other first part."""

    scheme: str
    authority: str
    path: str
    query: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}{self.query}"


@dataclass(frozen=True)
class AccessPolicy:
    """The urls to which a set may refer, and the options with which they are opened.

    ``prefixes`` are absolute urls; by default a set of this machine may refer to any file, a remote
    one to remote files. ``options`` open these files, and ``protocol`` is the scheme of urls that
    have none, if the user passed options for sources separately from the options of the set.

    Examples
    --------
    >>> allowed = AccessPolicy.of(["s3://bucket/2001", "/data"])
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
    def of(cls, allow: Allow) -> AccessPolicy:
        """Build the rules from an argument ``allow``; raise errors for chains, queries and ""."""
        if allow is None:
            return cls()
        given = [allow] if isinstance(allow, str | os.PathLike) else allow
        if not isinstance(given, Iterable):
            raise TypeError(f"allow {allow!r}: give a folder, as path or url, or several of them")
        return cls(tuple(_normalise_prefix(prefix) for prefix in given))

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """Local folders among the prefixes, with symbolic links resolved."""
        local = [p for p in self.prefixes or () if scheme_of(p) == "file"]
        return tuple(os.path.realpath(local_path(prefix)) for prefix in local)

    @cached_property
    def _remote(self) -> tuple[UrlParts, ...]:
        return tuple(_parse_url(p) for p in self.prefixes or () if scheme_of(p) != "file")

    def check(self, url: str, base: str) -> None:
        """Raise an error for an absolute url that the set at ``base`` may not refer to."""
        *outer, last = _split_links(url)
        bent = next((link for link in outer if not TRANSPARENT.fullmatch(link)), None)
        free = self.prefixes is None
        guarded = free and not is_own(base)
        is_local = "file" in (scheme_of(last), bent and scheme_of(f"{bent}://"))
        odd = bent or (last if scheme_of(last) in OPAQUE else None)
        # known to be remote, or of the set's own url
        remote = REMOTE | {scheme_of(link) for link in _split_links(base)}
        objections = (
            (guarded and is_local, f"the local file {url}, which a remote set may not; {REMEDY}"),
            (odd, f"{url}, and where {odd} leads cannot be judged; refer to the file itself"),
            (
                # fsspec would open a local folder, pipe or device
                outer
                and scheme_of(last) == "file"
                and os.path.exists(local_path(last))
                and not os.path.isfile(local_path(last)),
                f"{url}, which is not a regular file; refer to a file",
            ),
            (
                guarded and is_private(last) and not is_private(_split_links(base)[-1]),
                f"{url}, an address of this machine or its network, which a set of a public host "
                f"may not; {REMEDY}",
            ),
            (
                not free and not self._covers(last),
                f"{url}, which lies under none of {list(self.prefixes or ())}; {REMEDY}",
            ),
            (
                guarded and scheme_of(last) not in remote,
                f"{url}, which a remote set may not, for it may be local; {REMEDY}",
            ),
        )
        if found := next((text for holds, text in objections if holds), None):
            raise AccessError(f"{base}: it refers to {found}")

    def _covers(self, url: str) -> bool:
        if scheme_of(url) == "file":
            real = os.path.realpath(local_path(url))
            return any(is_in_folder(real, folder) for folder in self.folders)
        parsed = _parse_url(url)
        return not _has_hidden_dots(parsed.path) and any(
            parsed.scheme == prefix.scheme
            and prefix.authority in ("", parsed.authority)
            and is_in_folder(parsed.path, prefix.path)
            for prefix in self._remote
        )


ANYWHERE = AccessPolicy()
"""The rules that apply without an argument ``allow``."""


def resolve_url(url: str, base: str) -> str:
    """Return the absolute form of a url in the set ``base``, the form that is checked and opened.

    Raise an error for a string that is neither a url nor a path.
    """
    if not is_valid_url(url):
        raise _access_error(url, base)
    url = _SHORT_FILE_URL.sub("file://", url, count=1)
    has_scheme = scheme_of(url) != "file" or url.lower().startswith(("file://", "local://"))
    if not has_scheme and "://" in url and "::" not in url:
        raise _access_error(url, base)
    if not has_scheme and not os.path.isabs(url):
        url = _join_to_folder(base, url)
    *outer, last = _split_links(url)
    last = _SHORT_FILE_URL.sub("file://", last, count=1)
    if scheme_of(last) == "file":
        # .. after a symbolic link is relative to the target of the link, as for the system
        folder, dots, name = (path := local_path(last)).rpartition("/../")
        path = os.path.join(os.path.realpath(f"{folder}/.."), name) if dots else path
        # in a chain, links are not checked again when the file is read
        return "::".join([*outer, normalise_url(os.path.realpath(path) if outer else path)])
    parsed = _parse_url(last)
    if re.search(r"[\\\s]", parsed.authority):
        raise _access_error(url, base)
    if parsed.scheme in HOSTED and not _is_host(parsed.authority.rpartition("@")[2]):
        raise AccessError(
            f"{base}: it refers to {url!r}, whose host is no name or address that can be looked "
            f"up; write the host in ASCII (as IDNA encodes it), and a port of 0 to 65535"
        )
    return "::".join([*outer, str(parsed)])


def is_own(base: str) -> bool:
    """Return whether a set is on this machine or in this process, so that a user has put it there.

    Examples
    --------
    >>> is_own("/data/refs.json"), is_own("memory://refs.json"), is_own("s3://bucket/refs.json")
    (True, True, False)
    """
    return scheme_of(base) == "file" or ("::" not in base and scheme_of(base) in OWN)


def is_same_host(url: str, other: str) -> bool:
    """Return whether two absolute urls lead to the same host, or bucket, by the same chain."""
    (*outer, last), (*others, end) = _split_links(url), _split_links(other)
    if scheme_of(last) == "file" or scheme_of(end) == "file":
        return False
    return outer == others and _parse_url(last)[:2] == _parse_url(end)[:2]


def is_private(url: str) -> bool:
    """Return whether a url leads to this machine or its network, without looking up names.

    Some names of this machine are known (RFC 6761, section 6.3). Addresses are parsed as by the
    system: decimal, octal or hexadecimal, one to four parts.
    """
    if scheme_of(url) not in DEFAULT_PORTS and "@" not in url:
        found = _REMOTE_URL.fullmatch(url)
        if found is None or scheme_of(url) in BUCKETS:
            return False
    authority = _parse_url(url).authority.rpartition("@")[2]
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority
    if not authority.startswith("["):
        host = host.partition(":")[0]
    # hosts of schemes that are not `HOSTED` may be spelled in any way
    host = unicodedata.normalize("NFKC", unquote(host)).lower().rstrip(".").partition("%")[0]
    if not host or host in LOCAL_NAMES or host.endswith(LOCAL_SUFFIXES):
        return True
    address = _parse_address(host)
    return address is not None and not _is_public(address)


def _is_host(text: str) -> bool:
    """Return whether clients send a name or address, possibly with a port, unchanged."""
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or 0) >= 2**16:
        return False
    return found["address"] is None or isinstance(_parse_address(found["address"]), IPv6Address)


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
    """Return whether an address, and any address inside it, belongs to the public internet."""
    if isinstance(address, IPv6Address):
        inner: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
        if address in NAT64:
            inner.append(ip_address(address.packed[-4:]))
        if int(address) >> 32 == 0:
            inner.append(ip_address(address.packed[-4:]))
        if any(found is not None and not _is_public(found) for found in inner):
            return False
    is_local = address.is_multicast or any(address in network for network in LOCAL_NETWORKS)
    return address.is_global and not is_local


def is_valid_url(url: str) -> bool:
    """Return whether a url is valid in a reference set: UTF-8 without control characters."""
    return not _CONTROL.search(url)


def check_valid_url(url: str) -> None:
    """Raise an error for a url that is invalid in reference sets."""
    if not is_valid_url(url):
        raise UnsupportedError(
            f"{without_secrets(url)!r}: a name with control characters, as line breaks are, or one "
            f"that is not UTF-8 cannot stand in a reference set; rename the file"
        )


def _access_error(url: str, base: str) -> AccessError:
    return AccessError(
        f"{base}: it refers to {url!r}, which is neither a url nor a path; write the set anew"
    )


def _normalise_prefix(prefix: str | os.PathLike[str]) -> str:
    """Convert a prefix of the user to the form in which urls are checked."""
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
    found = _REMOTE_URL.fullmatch(url)
    scheme, authority, path = found.groups() if found else (scheme_of(url), "", "")
    scheme, query = scheme.lower(), ""
    if scheme in DEFAULT_PORTS:
        # ? and # end a path after a host; in object names they are ordinary characters
        end = min((i for i in (path.find("?"), path.find("#")) if i >= 0), default=len(path))
        path, query = path[:end], path[end:]
    if scheme in HOSTED:
        user, at, host = authority.rpartition("@")
        host = _encode_host(host)
        host = re.sub(rf":0*(?:{DEFAULT_PORTS.get(scheme, '')})?$", "", host)
        authority = user + at + host
    return UrlParts(scheme, authority, _resolve_dots(path), query)


def _encode_host(host: str) -> str:
    """Encode a host, possibly with a port, as clients look it up: unquoted, mapped, and in ASCII.

    Clients differ in how they map the characters of a host (RFC 3986, section 3.2.2; UTS 46; RFC
    5891). All of them leave a host in this form unchanged. A host without such a form is returned
    in one that `_HOST` does not match.
    """
    host = (host if host.startswith("[") else unquote(host)).lower()
    # clients that accept invisible characters leave them out, which changes the name
    if host.isascii() or any(unicodedata.category(letter) == "Cf" for letter in host):
        return host
    name, colon, port = host.partition(":")
    # idna is installed with each HTTP client
    with suppress(ImportError, UnicodeError):
        name = import_module("idna").encode(name, uts46=True).decode("ascii")
    return name + colon + port


def _resolve_dots(path: str) -> str:
    """Resolve the segments ``.`` and ``..`` (RFC 3986, section 5.2.4)."""
    if not _DOTS.search(path):
        return path
    first, *parts = path.split("/")
    kept: list[str] = []
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    if parts and parts[-1] in (".", ".."):
        kept.append("")
    return "/".join([first, *kept])


def _has_hidden_dots(path: str) -> bool:
    """Return whether a path has dot segments after a server has decoded it, possibly repeatedly."""
    for _ in range(_DECODINGS):
        if _DOTS.search(path):
            return True
        path, before = unquote(path), path
        if path == before:
            return False
    return True


def _join_to_folder(base: str, relative: str) -> str:
    """Return the url of a path relative to the folder of a set, whose url may be a chain."""
    if scheme_of(base) == HELD:
        # it is in no folder
        return normalise_url(relative)
    links = _split_links(base)
    number = next((i for i, link in enumerate(links) if "://" in link), 0)
    if scheme_of(links[number]) == "file":
        links[number] = join_url(links[number], relative)
    else:
        links[number] = join_url(str(_parse_url(links[number])._replace(query="")), relative)
    return "::".join(links)
