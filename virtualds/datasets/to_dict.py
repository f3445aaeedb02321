"""Reference sets that stay in memory, as dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.changed_groups import EMPTY, add_group
from virtualds.datasets.registry import FORMATS
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import UnsupportedError
from virtualds.formats import Format
from virtualds.formats.admission import demand_admissible, know_nothing

WHERE = "a dict of references"
"""The name of the target in errors."""


def make_dict(
    whole: Callable[[], ManifestGroup],
    options: WriteOptions,
    storage_options: Mapping[str, Any] | None,
    call: Callable[..., Any],
) -> dict[str, Any]:
    """Return a group as a dict of references, as the format of ``options`` would write it.

    Raises
    ------
    UnsupportedError
        The format is none of one document, or cannot hold the group.
    ValueError
        An option is for sets that are written.
    """
    form, to_dict = _find_format(options.format)
    options.check_choices(form, call)
    _demand_new(options, storage_options)
    whole_set = add_group(EMPTY, options.path, whole())
    group = options.changes.apply(whole_set, know_nothing)
    demand_admissible(group, WHERE, keep_query=options.keep_query)
    return to_dict(group, **options.of_format)


def _demand_new(options: WriteOptions, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse options that have a meaning for files alone."""
    if options.rewriting.rewrites:
        raise UnsupportedError(
            "on_unsupported='rewrite' with url None: rewritten chunks lie in files beside a set, "
            "and a dict has no place; name a file"
        )
    given = {
        "mode": options.mode != "w-",
        "conflict": options.conflict != "raise",
        "allow": options.allow is not None,
        "storage_options": bool(storage_options),
    }
    if found := [name for name, is_given in given.items() if is_given]:
        raise ValueError(
            f"{', '.join(found)} with url None: a dict is always new and nothing is written; "
            f"leave out mode, append_dim, region, conflict, allow and storage_options, or name a "
            f"file"
        )


def _find_format(name: str | None) -> tuple[Format, Callable[..., dict[str, Any]]]:
    """Return the format of one document that a name means, and what makes a dict."""
    for form in FORMATS:
        if form.to_dict is not None and name in (None, form.name):
            return form, form.to_dict
    able = " or ".join(repr(form.name) for form in FORMATS if form.to_dict is not None)
    raise UnsupportedError(
        f"url None with format {name!r}: only format={able} is one document, which a dict can be; "
        f"name a file or folder"
    )
