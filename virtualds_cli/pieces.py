"""The option that says how uncompressed chunks are cut: ``time=1``, or ``t:time=1``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click


class Piece(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Elements of a chunk along a dimension, of all variables or of one."""

    name = "[variable:]dim=n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, int]:
        """Return the variable, or "", the dimension, and the number."""
        if not isinstance(value, str):
            return tuple(value)
        found = re.fullmatch(r"(?:([^:=]+):)?([^:=]+)=([1-9]\d*)", value)
        if not found:
            self.fail(f"{value!r} is neither DIM=N nor VARIABLE:DIM=N", param, ctx)
        return found[1] or "", found[2], int(found[3])


def join_pieces(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, str, int]]
) -> dict[str, Any] | None:
    """Return the ``subchunk`` of `virtualds` that all given pieces make."""
    found: dict[str, Any] = {}
    for variable, dim, length in value:
        (found.setdefault(variable, {}) if variable else found)[dim] = length
    return found or None
