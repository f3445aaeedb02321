"""How a file or a set is opened: all that a user says of it, besides where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from virtualds.datasets.keywords import check_choice, names_of
from virtualds.datasets.what_to_load import Loadable
from virtualds.formats.undecodable import ON_ERROR
from virtualds.stores.access_rules import Allow


def _make_repeatable(value: Any) -> Any:
    once = isinstance(value, Iterable) and not isinstance(value, str | tuple)
    return tuple(value) if once else value


@dataclass(frozen=True)
class OpenOptions:
    """What of a file or a set is opened, and how.

    Names, patterns and folders may be any iterables; they are kept as tuples, since they are gone
    through for every file.

    Parameters
    ----------
    group, drop_variables, parser, on_error, allow, snapshot, loadable_variables, decode_cf
        As in `virtualds.open_virtual_dataset`.
    parser_options
        As there; a copy, so that nobody changes it later.
    below : bool
        Whether all groups below the group are opened, too, as a tree.
    omits_damaged : bool
        Whether damaged parts of a file are left out, and named by its group, instead of being a
        matter of ``on_error``.
    defers : bool
        Whether references may be looked up in source files when values are read.

    Raises
    ------
    ValueError
        ``on_error`` is none that there is.
    TypeError
        ``drop_variables``, or ``loadable_variables``, are no names.
    """

    group: str | None = None
    drop_variables: str | Iterable[str] | None = None
    parser: str | None = None
    on_error: str = "raise"
    allow: Allow = None
    snapshot: str | None = None
    loadable_variables: Loadable = None
    decode_cf: bool = True
    below: bool = False
    omits_damaged: bool = False
    defers: bool = False
    parser_options: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        for name in ("drop_variables", "loadable_variables", "allow"):
            object.__setattr__(self, name, _make_repeatable(getattr(self, name)))
        names_of("drop_variables", self.drop_variables)
        object.__setattr__(self, "parser_options", dict(self.parser_options or {}))
        if not callable(self.loadable_variables):
            names_of("loadable_variables", self.loadable_variables)

    @property
    def skip(self) -> tuple[str, ...]:
        """The names of the variables that are left out."""
        return names_of("drop_variables", self.drop_variables)


OPEN_DEFAULTS = OpenOptions()
"""How a file is opened of which a user says nothing but where it is."""
