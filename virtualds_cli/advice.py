"""What messages of the library advise, in the words of the command line.

The library names arguments of Python, as in ``overlap='first'``. Each option of a command has the
name of the argument that it sets, so that the option can stand in its place.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from typing import Any

import click

ARGUMENT = re.compile(
    r"""(?<![\w./=&?%-])(?P<name>[a-z][a-z_]*)=(?P<value>'[^']*'|"[^"]*"|\[[^]\[]*\]|-?\d[\d.]*|"""
    r"""True|False|\.\.\.|(?=[\s,;:)]|$))"""
)
"""An argument of Python with its value, or without one; not a part of a path or of a query."""
CALL = re.compile(r"\bvirtualds\.(?P<name>[a-z_]+)\((?:[^()]|\([^()]*\))*\)")
"""A call of a function of virtualds."""
OTHER_NAMES = {"append_dim": "dim"}
"""Options that are called otherwise than the argument that they set."""
METHODS = {"ds.drop_vars": "drop_variables"}
"""Methods of datasets that do what an option does."""


def to_command_line(text: str) -> str:
    """Return a message with options of the command in place of arguments of Python.

    Arguments without an option stay as they are.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    command: Any = context.command
    commands = getattr(context.find_root().command, "commands", {})
    if isinstance(command, click.Group):
        command = commands.get(context.invoked_subcommand, command)
    options = {p.name: p for p in command.params if isinstance(p, click.Option) and p.name}

    def name_command(found: re.Match[str]) -> str:
        name = found["name"].replace("_", "-")
        return f"virtualds {name}" if name in commands else found[0]

    text = CALL.sub(name_command, text)
    text = ARGUMENT.sub(lambda found: _to_option(found, options), text)
    for method, name in METHODS.items():
        if name in options:
            text = text.replace(method, options[name].opts[0])
    return text


def _to_option(found: re.Match[str], options: Mapping[str, click.Option]) -> str:
    option = options.get(found["name"]) or options.get(OTHER_NAMES.get(found["name"], ""))
    if option is None:
        return found[0]
    name, text = option.opts[0], found["value"]
    if text in ("", "..."):
        return f"{name} ..." if text else name
    value = ast.literal_eval(text)
    if isinstance(value, bool):
        names = option.opts if value else option.secondary_opts
        return names[0] if names else found[0]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{name} {shlex.quote(str(one))}" for one in values)
