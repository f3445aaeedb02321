"""Writing reference sets: creating them, changing them, and what they keep of earlier states."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import xarray as xr

from virtualds.appending import appended, with_sources_replaced, without_sources
from virtualds.dataset import group_from_dataset
from virtualds.errors import ConflictError, FormatError, UnsupportedError
from virtualds.formats import FORMATS, Format
from virtualds.group import ManifestGroup
from virtualds.manifest import StorageOptions
from virtualds.stores import store_for
from virtualds.urls import normalise_url

Change = Callable[[ManifestGroup], ManifestGroup]
"""What becomes of a set."""
MODES = ("w", "w-", "a", "replace-source")
ATTEMPTS = 30
"""How often a change is made again because another writer was faster."""
PAUSE = 0.05
"""Seconds that are waited at first, on average; twice as long after every attempt."""


def write_manifest(
    dataset: xr.Dataset,
    url: str | os.PathLike[str],
    *,
    format: str | None = None,
    mode: str | None = None,
    append_dim: str | None = None,
    position: str = "end",
    on_duplicate: str = "raise",
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
) -> None:
    """Write the references of a dataset; see ``ds.virtual.to_manifest``."""
    mode = _settled(mode, append_dim)
    absolute = normalise_url(url)
    options = StorageOptions(storage_options) if storage_options else None
    target = _format_for(absolute, format, options)
    if unknown := set(choices or ()) - set(target.choices):
        raise TypeError(
            f"{min(unknown)!r} is no option of {target.name}, which has {list(target.choices)}"
        )
    create = partial(_create, target, dataset, absolute, options, choices or {})
    if mode in ("w", "w-"):
        create(replace=mode == "w")
        return
    change: Change
    if mode == "replace-source":
        change = partial(with_sources_replaced, new=dataset, dim=append_dim)
    else:
        change = partial(
            appended, new=dataset, dim=str(append_dim), position=position, on_duplicate=on_duplicate
        )

    def attempt() -> None:
        try:
            _update(target, absolute, change, options, choices or {})
        except FileNotFoundError:
            if mode != "a":
                raise
            _create_first(create, absolute)

    _settling_conflicts(attempt, conflict)


def _settled(mode: str | None, append_dim: str | None) -> str:
    """Return the mode that is meant."""
    if mode is None:
        mode = "w" if append_dim is None else "a"
    if mode not in MODES:
        raise ValueError(
            f"mode {mode!r}: there are 'w' (create or replace), 'w-' (create), 'a' (append along "
            f"append_dim), and 'replace-source'"
        )
    if (mode == "a" and append_dim is None) or (mode in ("w", "w-") and append_dim is not None):
        raise ValueError(
            f"mode {mode!r} with append_dim={append_dim!r}: name the dimension to append along, "
            f"and nothing else to create a set"
        )
    return mode


def _create(
    target: Format,
    dataset: xr.Dataset,
    url: str,
    options: StorageOptions | None,
    choices: Mapping[str, Any],
    *,
    replace: bool,
) -> None:
    write: Callable[..., None] = target.write
    write(group_from_dataset(dataset), url, options, replace=replace, **choices)


def _create_first(create: Callable[..., None], url: str) -> None:
    """Create a set that is to be appended to, unless somebody else has just done so."""
    try:
        create(replace=False)
    except FileExistsError as error:
        raise ConflictError(
            f"{url}: another writer has just created it; append again, or pass conflict='retry'"
        ) from error


def _update(
    target: Format,
    url: str,
    change: Change,
    options: StorageOptions | None,
    choices: Mapping[str, Any] | None = None,
) -> None:
    update: Callable[..., None] | None = target.update
    if update is None:
        raise UnsupportedError(f"{url}: {target.name} cannot be changed in place; write it anew")
    update(url, change, options, **(choices or {}))


def _settling_conflicts(attempt: Callable[[], None], conflict: str) -> None:
    """Make a change, again if wanted and another writer was faster."""
    if conflict not in ("raise", "retry"):
        raise ValueError(f"conflict {conflict!r}: there are 'raise' and 'retry'")
    left = ATTEMPTS if conflict == "retry" else 1
    pause = PAUSE
    while True:
        try:
            return attempt()
        except ConflictError:
            left -= 1
            if not left:
                raise
        # of writers that wait equally long, the same one would lose again
        time.sleep(random.uniform(0, 2 * pause))
        pause = min(2 * pause, 5.0)


def drop_sources(
    url: str | os.PathLike[str],
    sources: str | Iterable[str],
    *,
    dim: str | None = None,
    format: str | None = None,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Take what comes from some sources out of a reference set.

    Parameters
    ----------
    url : str or path
        Of the set.
    sources : str or iterable of str
        Paths or urls, as ``ds.virtual.sources`` lists them.
    dim : str, optional
        Along which they follow each other; by default the only dimension along which they do.
    format : str, optional
        Name of the format, where neither suffix nor content say it.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Raises
    ------
    CombineError
        The set has no such source, or nothing but these.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    absolute = normalise_url(url)
    options = StorageOptions(storage_options) if storage_options else None
    target = _format_for(absolute, format, options)
    given = [sources] if isinstance(sources, str) else list(sources)
    change = partial(without_sources, urls=[normalise_url(source) for source in given], dim=dim)
    _settling_conflicts(lambda: _update(target, absolute, change, options), conflict)


def _format_for(url: str, name: str | None, options: StorageOptions | None) -> Format:
    """Return the format of a name, or of what is there, or that the suffix chooses."""
    if name is not None:
        known = {form.name: form for form in FORMATS}
        if name not in known:
            raise ValueError(f"format {name!r}: there are {sorted(known)}")
        return known[name]
    for form in FORMATS:
        if url.endswith(form.suffixes):
            return form
    if (found := _format_there(url, options)) is not None:
        return found
    suffixes = {form.name: form.suffixes for form in FORMATS}
    raise ValueError(f"{url}: its suffix chooses no format of {suffixes}; pass format=")


def _format_there(url: str, options: StorageOptions | None) -> Format | None:
    """Return the format of the set that is there, if there is one."""
    for form in FORMATS:
        path = url if form.marker is None else f"{url.rstrip('/')}/{form.marker}"
        try:
            if form.detect(store_for(path).read_all(path, options)):
                return form
        except (OSError, FormatError):
            continue
    return None
