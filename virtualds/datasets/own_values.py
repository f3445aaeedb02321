"""Values that a reference set holds itself, as files of its own."""

from __future__ import annotations

from dataclasses import replace

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable


def load_own_values(group: ManifestGroup, own: str) -> ManifestGroup:
    """Return a group with the values loaded that a set holds itself, below the url ``own``."""

    def read(variable: ManifestVariable) -> ManifestVariable:
        data = variable.data
        urls = [f.url for f in data.listed_sources] if isinstance(data, ManifestArray) else []
        held = bool(urls) and all(u.startswith(own) and f"{own}__" not in u for u in urls)
        return replace(variable, data=variable.read()) if held else variable

    return replace(
        group,
        variables={name: read(variable) for name, variable in group.variables.items()},
        groups={name: load_own_values(child, own) for name, child in group.groups.items()},
    )
