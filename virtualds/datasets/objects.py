"""Objects that users give in place of paths: where the file or set is that they mean.

An open file that has a path or url means the file of that name, so that references to it can be
written. Bytes, other open files and dicts of references get a url that only this process knows.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.held import HeldBytes, HeldFile, HeldObject, make_options
from virtualds.urls import normalise_url, scheme_of

LOCAL = (None, "file", "local")
"""Protocols of paths."""

KNOWN = {"fo", "target_protocol", "target_options", "remote_protocol", "remote_options", "fs"} | {
    *("ref_storage_args", "template_overrides")
}
"""Options of fsspec's ``reference`` filesystem that say what it opens."""
TUNING = {"simple_templates", "max_gap", "max_block", "cache_size", "asynchronous", "loop"} | {
    *("lazy", "batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time")
}
"""Its options that say how it works, which we do without."""


@dataclass(frozen=True)
class Meant:
    """What an object means: a url, with access options, and how files of the set are opened.

    Parameters
    ----------
    url : str
    options : StorageOptions, optional
    policy : AccessPolicy
    """

    url: str
    options: StorageOptions | None = None
    policy: AccessPolicy = ANYWHERE


def is_reference_url(given: Any) -> bool:
    """Say whether a url is that of fsspec's filesystem of references."""
    return isinstance(given, str) and scheme_of(given) == "reference"


def find_meaning(given: Any, options: Mapping[str, Any] | None = None) -> Meant | None:
    """Return what an object means, None for a path and for objects that mean no file.

    Parameters
    ----------
    given : object
        A ``reference://`` url, bytes, an open binary file, a file, mapper or filesystem of fsspec,
        or a dict of kerchunk references.
    options : mapping, optional
        Access options of the user; for references, those of the files that they name.

    Examples
    --------
    >>> find_meaning(b"CDF").url.startswith("held://")
    True
    """
    if is_reference_url(given):
        return _open_reference_url(given, options or {})
    if isinstance(given, str | os.PathLike):
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return _hold(HeldBytes(given))
    if (filesystem := _filesystem_of(given)) is not None:
        return _find_in_fsspec(given, filesystem, options)
    # datasets of xarray are mappings, too
    if isinstance(given, dict):
        return _hold_references(given, options)
    return _find_open_file(given)


def _hold(held: HeldObject, policy: AccessPolicy = ANYWHERE) -> Meant:
    return Meant(held.name, make_options(held), policy)


# ---------------------------------------------------------------------- open files


def _find_open_file(given: Any) -> Meant | None:
    """Return the file that an open file of Python means, None if it is none."""
    if not (hasattr(given, "read") and hasattr(given, "seek")):
        return None
    if isinstance(given, io.TextIOBase):
        raise TypeError(f"{given!r:.80} is open as text; open it in mode 'rb'")
    if (path := _find_path(given)) is not None:
        return Meant(normalise_url(path))
    if isinstance(given, io.BytesIO):
        # the user may change or close it later
        return _hold(HeldBytes(given.getbuffer(), "BytesIO"))
    return _hold(HeldFile(given))


def _find_path(file: Any) -> str | None:
    """Return the path of an open local file, if that still leads to it."""
    name = getattr(file, "name", None)
    if not isinstance(file, io.BufferedReader | io.FileIO | io.BufferedRandom):
        return None
    if not isinstance(name, str | os.PathLike):
        return None
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(name))
    except OSError:
        return None
    return os.fspath(name) if is_there else None


# ---------------------------------------------------------------------- fsspec


def _filesystem_of(given: Any) -> Any:
    """Return the filesystem of an object of fsspec, None for other objects."""
    # where fsspec was not imported, there are no objects of it
    spec: Any = sys.modules.get("fsspec.spec")
    if spec is None:
        return None
    if isinstance(given, spec.AbstractFileSystem):
        return given
    found = getattr(given, "fs", None)
    return found if isinstance(found, spec.AbstractFileSystem) else None


def _find_in_fsspec(given: Any, filesystem: Any, options: Mapping[str, Any] | None) -> Meant | None:
    """Return what a file, mapper or filesystem of fsspec means."""
    path = getattr(given, "root", None) if hasattr(given, "root") else getattr(given, "path", None)
    if _is_references(filesystem) and not (path or "").strip("/"):
        positional = dict(zip(("fo",), filesystem.storage_args, strict=False))
        return _open_references({**positional, **filesystem.storage_options}, options)
    if given is filesystem:
        raise TypeError(
            f"{type(given).__name__}: a filesystem is not a file; give its url, or a mapper of it "
            f"(fs.get_mapper(path)); only a ReferenceFileSystem is a set by itself"
        )
    if (meant := _find_url(given, filesystem, path)) is not None:
        return meant
    return _find_open_file(given)


def _is_references(filesystem: Any) -> bool:
    spoken = filesystem.protocol
    return "reference" in ((spoken,) if isinstance(spoken, str) else spoken)


def _find_url(given: Any, filesystem: Any, path: Any) -> Meant | None:
    """Return the url and options of a path, None where fsspec would not find it again by them."""
    import fsspec

    if not isinstance(path, str) or _is_references(filesystem):
        return None
    if getattr(given, "compression", None):
        # the object gives other bytes than the file of this name
        return None
    url, options = filesystem.unstrip_protocol(path), dict(filesystem.storage_options)
    try:
        again = fsspec.core.url_to_fs(url, **options)[0]
    except (ImportError, TypeError, ValueError):
        return None
    if again != filesystem:
        return None
    return Meant(normalise_url(url), StorageOptions.of(options))


# ---------------------------------------------------------------------- references


def _open_reference_url(url: str, options: Mapping[str, Any]) -> Meant:
    """Return the set that a url ``reference://`` or ``reference::URL`` means with its options."""
    _, _, rest = url.partition("::")
    given = {**options, **({"fo": rest} if rest else {})}
    inside = url.partition("::")[0].removeprefix("reference").strip(":/")
    if inside or "fo" not in given:
        raise ValueError(
            f"{url}: give the set as storage_options={{'fo': ...}}, a url or a dict, and a group "
            f"in it with group="
        )
    return _open_references(given, None)


def _open_references(given: Mapping[str, Any], options: Mapping[str, Any] | None) -> Meant:
    """Return the set that options of fsspec's ``reference`` filesystem mean."""
    if other := sorted(given.keys() - KNOWN - TUNING):
        raise UnsupportedError(
            f"reference://: virtualds does not know the options {other} of fsspec's filesystem of "
            f"references, which has {sorted(KNOWN)}; open the set by its url or as a dict"
        )
    policy = _find_policy(given, options)
    if isinstance(given["fo"], Mapping):
        document = given["fo"]
        if overrides := given.get("template_overrides"):
            document = {**document, "templates": {**document.get("templates", {}), **overrides}}
        return _hold_references(document, None, policy)
    if given.get("template_overrides"):
        raise UnsupportedError(
            "reference://: template_overrides need the references as a dict; give fo= the loaded "
            "JSON, or change the references with ds.virtual.rename_paths"
        )
    access = given.get("target_options") or given.get("ref_storage_args")
    return Meant(_add_protocol(given["fo"], given), StorageOptions.of(access), policy)


def _add_protocol(fo: Any, given: Mapping[str, Any]) -> str:
    protocol = given.get("target_protocol")
    bare = isinstance(fo, str) and protocol not in LOCAL and scheme_of(fo) == "file"
    return normalise_url(f"{protocol}://{fo}" if bare else fo)


def _find_policy(given: Mapping[str, Any], options: Mapping[str, Any] | None) -> AccessPolicy:
    """Return how the files of a set are opened, by options of fsspec's filesystem."""
    protocol, access = given.get("remote_protocol"), given.get("remote_options")
    if (filesystem := given.get("fs")) is not None:
        if isinstance(filesystem, Mapping):
            raise UnsupportedError(
                "reference://: virtualds takes one filesystem for the files of a set, and fs= has "
                "several; open the set by its url or as a dict, with storage_options="
            )
        spoken = filesystem.protocol
        protocol = spoken if isinstance(spoken, str) else spoken[0]
        access = filesystem.storage_options
    found = StorageOptions.of(options if options is not None else access)
    return AccessPolicy(options=found, protocol=None if protocol in LOCAL else protocol)


def _hold_references(
    document: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    policy: AccessPolicy | None = None,
) -> Meant:
    """Return a dict of references as a set of this process."""
    text = json.dumps(dict(document), default=_to_json).encode()
    return _hold(
        HeldBytes(text, "references"), policy or AccessPolicy(options=StorageOptions.of(options))
    )


def _to_json(value: Any) -> Any:
    """Return what dicts of references hold besides JSON: bytes, and numbers of numpy."""
    if isinstance(value, bytes):
        # as in fsspec, bytes may hold the text of an inline value
        is_encoded = value.startswith(b"base64:")
        return value.decode() if is_encoded else f"base64:{base64.b64encode(value).decode()}"
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"references hold {type(value).__name__}, which is neither JSON nor bytes; give a dict of "
        f"kerchunk references"
    )
