"""References into files in archives, as references into the archives themselves.

Whoever reads them needs to know nothing of archives: a member that is stored as it is, is a range.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_

from virtualds.array import ManifestArray
from virtualds.fragment import Fragment
from virtualds.group import ManifestGroup, ManifestVariable
from virtualds.stores import is_in_archive, outside_archives


def in_plain_files(group: ManifestGroup) -> ManifestGroup:
    """Return a group of which no reference leads into a file in an archive.

    Raises
    ------
    StoreError
        An archive cannot be read, or has changed.
    """
    variables = {name: _variable(v) for name, v in group.variables.items()}
    groups = {name: in_plain_files(child) for name, child in group.groups.items()}
    before = [*group.variables.values(), *group.groups.values()]
    if all(map(is_, before, [*variables.values(), *groups.values()])):
        return group
    return replace(group, variables=variables, groups=groups)


def _variable(variable: ManifestVariable) -> ManifestVariable:
    data = variable.data
    if not isinstance(data, ManifestArray):
        return variable
    fragments = tuple(map(_fragment, data.fragments))
    if all(new is old for new, old in zip(fragments, data.fragments, strict=True)):
        return variable
    return replace(variable, data=replace(data, fragments=fragments))


def _fragment(fragment: Fragment) -> Fragment:
    manifest = fragment.manifest
    if manifest.is_in_set or not any(map(is_in_archive, manifest.files)):
        return fragment
    return replace(fragment, manifest=manifest.relocated(outside_archives(manifest.files)))
